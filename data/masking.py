"""Hide words for masked language modelling (Devlin et al. 2019, section 3.1)."""

import torch

from data.tokenizer import MASK, SPECIAL

UNITS = ("token", "word", "span")


def mask_tokens(idx, vocab_size, gen, rate=0.15, unit="token", starts=None, mean_span=3):
    """Choose tokens to predict and disguise them: 80% become [MASK], 10% a random word, 10% stay.

    idx (B, T) long -> inputs (B, T), labels (B, T). Labels hold the original id at every chosen
    token, disguised or not, and -100 elsewhere. In each row a share `rate` of the tokens is chosen,
    rounded at random, and at least one. Special tokens and padding are neither chosen nor drawn.

    unit: what is chosen together. "token": each by itself. "word": all pieces of a word; starts
    (V,) marks the tokens that begin one. "span": runs of geometric length with mean `mean_span`, as
    in SpanBERT. Each token is disguised by itself. In short rows, where a word or span exceeds the
    share, somewhat more than `rate` is masked.
    """
    B, T = idx.shape
    usable = idx >= len(SPECIAL)
    if unit == "token":
        begins = torch.ones_like(usable)
    elif unit == "word":
        begins = starts[idx] | ~usable
    else:
        begins = torch.rand(B, T, generator=gen) < 1 / mean_span
    unit_of = begins.cumsum(1)  # (B, T) which unit a token belongs to
    wanted = (rate * usable.sum(1) + torch.rand(B, generator=gen)).floor()  # (B,) tokens to choose

    # Shuffle the units of each row: one random number per unit, special tokens come last. A
    # token's rank is its place in this order, so the tokens of a unit have neighbouring ranks.
    order = torch.rand(B, T + 1, generator=gen).gather(1, unit_of).masked_fill(~usable, 2.0)
    rank = order.argsort(dim=1, stable=True).argsort(dim=1)  # (B, T)

    dice = torch.rand(B, T, generator=gen)
    vocab_size = max(vocab_size, len(SPECIAL) + 1)  # randint raises if there is no word
    random_words = torch.randint(len(SPECIAL), vocab_size, (B, T), generator=gen)
    luck = torch.rand(B, 1, generator=gen)

    def in_unit(values, how):
        """Return (B, T): the sum or the least ("amin") of the values in each token's unit."""
        of_unit = torch.zeros(B, T + 1, dtype=torch.long)
        of_unit.scatter_reduce_(1, unit_of, values, how, include_self=False)
        return of_unit.gather(1, unit_of)

    # A unit has the ranks lowest to lowest + size - 1. Choose the first unit, and each whose ranks
    # are all below `wanted`. Choose one that crosses this limit with probability
    # (wanted - lowest) / size, so that the expected number of tokens is `wanted`.
    lowest, size = in_unit(rank, "amin"), in_unit(usable.long(), "sum")  # (B, T)
    chosen = usable & ((lowest + luck * size < wanted[:, None]) | (lowest == 0))

    labels = idx.masked_fill(~chosen, -100)
    inputs = torch.where(chosen & (dice < 0.9), random_words, idx)
    inputs = torch.where(chosen & (dice < 0.8), MASK, inputs)
    return inputs, labels
