"""What masked language modelling hides (Devlin et al. 2019, section 3.1), and noise against learning a small text by heart."""

import torch

from data.tokenizer import MASK, PAD, SPECIAL, UNK

UNITS = ("token", "word", "span")


def mask_tokens(idx, vocab_size, gen, rate=0.15, unit="token", starts=None, mean_span=3):
    """Choose tokens to predict and disguise them: 80% become [MASK], 10% a random word, 10% stay.

    idx (B, T) long -> inputs (B, T), labels (B, T) with the original id at every chosen token (all three
    kinds, since the model must not know which it sees) and -100 elsewhere. In each row `rate` of the tokens
    are chosen, randomly rounded, at least one. Special tokens and padding are never chosen, nor drawn.

    unit: what is chosen together; "token", "word" (all pieces of a word, whose first tokens `starts` (V,) marks),
    or "span" (runs of geometric length with mean `mean_span`, as in SpanBERT). The disguise is drawn for each
    token by itself. Words and spans hide somewhat more than `rate` in rows so short that one unit exceeds it.
    """
    B, T = idx.shape
    usable = idx >= len(SPECIAL)
    if unit == "token":
        begins = torch.ones_like(usable)
    elif unit == "word":
        begins = starts[idx] | ~usable
    else:
        begins = torch.rand(B, T, generator=gen) < 1 / mean_span
    unit_of = begins.long().cumsum(1).clamp(max=T)  # (B, T) which unit a token belongs to
    count = usable.sum(1)
    wanted = (
        (rate * count + torch.rand(B, generator=gen)).floor().clamp(min=1).minimum(count)
    )  # (B,)

    # Shuffle the units of each row and take them in that order until enough tokens are covered.
    order = (
        torch.rand(B, T + 1, generator=gen).gather(1, unit_of).masked_fill(~usable, 2.0)
    )  # (B, T)
    rank = order.argsort(dim=1, stable=True).argsort(
        dim=1
    )  # (B, T) tokens of one unit have neighbouring ranks
    first = (
        torch.full((B, T + 1), T)
        .scatter_reduce(1, unit_of, rank.masked_fill(~usable, T), "amin")
        .gather(1, unit_of)
    )
    size = (
        torch.zeros(B, T + 1, dtype=torch.long)
        .scatter_add(1, unit_of, usable.long())
        .gather(1, unit_of)
    )
    dice = torch.rand(B, T, generator=gen)
    random_words = torch.randint(
        len(SPECIAL), max(vocab_size, len(SPECIAL) + 1), (B, T), generator=gen
    )
    # A unit that would overshoot is taken with the probability that keeps the expected number as wanted.
    luck = torch.rand(B, 1, generator=gen)
    chosen = usable & ((first + luck * size < wanted[:, None]) | (first == 0))

    labels = idx.masked_fill(~chosen, -100)
    inputs = torch.where(chosen & (dice < 0.8), MASK, idx)
    inputs = torch.where(chosen & (dice >= 0.8) & (dice < 0.9), random_words, inputs)
    assert not (chosen & (idx == PAD)).any()
    return inputs, labels


def noise_tokens(idx, targets, counts, gen, drop=0.0, swap=0.0, rare=0.0):
    """Make a small text different each time it is read by a causal model (Xie et al. 2017, section 3).

    idx, targets (B, T); counts (V,): how often each token stands in the training text. Of the words in idx, a share `drop`
    becomes [UNK] and a share `swap` a word drawn by its frequency. Of the targets that stand only once in the training text,
    a share `rare` becomes [UNK]: where one such word stands, a new text may have any unknown one. Special tokens stay.
    Returns new (idx, targets).
    """
    words = idx >= len(SPECIAL)
    dice = torch.rand(idx.shape, generator=gen)
    idx = torch.where(words & (dice < drop), UNK, idx)
    swapped = words & (dice >= drop) & (dice < drop + swap)
    if swap:
        idx = idx.masked_scatter(
            swapped,
            torch.multinomial(counts.double(), idx.numel(), replacement=True, generator=gen),
        )
    once = (targets >= len(SPECIAL)) & (counts[targets.clamp(min=0)] == 1)
    targets = torch.where(once & (torch.rand(targets.shape, generator=gen) < rare), UNK, targets)
    return idx, targets
