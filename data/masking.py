"""Hide words for masked language modelling (Devlin et al. 2019, section 3.1)."""

import torch

from data.tokenizer import MASK, SPECIAL

MEAN_SPAN = 3  # tokens


def mask_tokens(idx, vocab_size, gen, rate=0.15, unit="token", starts=None):
    """Choose tokens to predict and disguise them: 80% become [MASK], 10% a random word, 10% stay.

    idx (B, T) long -> inputs (B, T), labels (B, T): the original id at every chosen token, and -100
    elsewhere. In each row a share `rate` of the tokens is chosen, rounded at random, and at least
    one, but no special tokens. unit: what is chosen together: "token", each by itself; "word", its
    pieces, starts (V,) marks the first ones; "span", runs of geometric length as in SpanBERT. The
    first unit is never cut, so short lines lose more: 0.21 of the speeches by spans at 0.15."""
    B, T = idx.shape
    usable = idx >= len(SPECIAL)
    if unit == "token":
        begins = torch.ones_like(usable)
    elif unit == "word":
        begins = starts[idx] | ~usable
    else:
        begins = torch.rand(B, T, generator=gen) < 1 / MEAN_SPAN
    unit_of = begins.cumsum(1)  # (B, T) each token's unit, numbered from 0 to T
    wanted = (rate * usable.sum(1) + torch.rand(B, generator=gen)).floor()  # (B,) tokens to choose

    luck_of_unit = torch.rand(B, T + 1, generator=gen)
    ranks = luck_of_unit.argsort(dim=1, stable=True).argsort(dim=1)  # a random order of the units
    place = ranks.gather(1, unit_of)  # (B, T) of each token's unit in the random order
    dice = torch.rand(B, T, generator=gen)
    vocab_size = max(vocab_size, len(SPECIAL) + 1)  # randint raises if there is no word
    random_words = torch.randint(len(SPECIAL), vocab_size, (B, T), generator=gen)
    luck = torch.rand(B, 1, generator=gen)

    # Choose the first unit, and those after it while they fit into `wanted`. The one that crosses
    # this limit has probability (wanted - before) / size, so `wanted` tokens are expected.
    size = torch.zeros_like(ranks).scatter_add(1, place, usable.long())  # of the unit at each place
    before = size.cumsum(1) - size  # tokens in the units before, (B, T + 1)
    take = (before + luck * size < wanted[:, None]) | (before == 0)
    chosen = usable & take.gather(1, place)

    labels = idx.masked_fill(~chosen, -100)
    inputs = torch.where(chosen & (dice < 0.9), random_words, idx)
    inputs = torch.where(chosen & (dice < 0.8), MASK, inputs)
    return inputs, labels
