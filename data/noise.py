"""Add noise to the training text, so that a causal model memorises a small text less.

Xie et al. 2017, section 3.
"""

import torch

from data.tokenizer import SPECIAL, UNK


def noise_tokens(idx, targets, counts, gen, drop=0.0, swap=0.0, rare=0.0):
    """Return idx and targets, both (B, T), with noise. Special tokens stay as they are.

    drop: the share of the words in idx that becomes [UNK]. swap: the share that becomes another
    token, drawn by its frequency ([BOS] included). rare: the share of targets that occur once in
    the training text that becomes [UNK]. So the model learns where a new text has unknown words.
    counts (V,): how often each token occurs in the training text.
    """
    words = idx >= len(SPECIAL)
    dice = torch.rand(idx.shape, generator=gen)
    idx = torch.where(words & (dice < drop), UNK, idx)
    swapped = words & (dice >= drop) & (dice < drop + swap)
    if swap:
        draws = torch.multinomial(counts.double(), idx.numel(), replacement=True, generator=gen)
        idx = idx.masked_scatter(swapped, draws)
    once = (targets >= len(SPECIAL)) & (counts[targets.clamp(min=0)] == 1)
    targets = torch.where(once & (torch.rand(targets.shape, generator=gen) < rare), UNK, targets)
    return idx, targets


def count_tokens(ids, vocab_size, swap, rare):
    """Return the counts (V,) of `noise_tokens`: how often each token occurs in ids, a stream.

    Counting takes a second per gigabyte of text, so they are zeros where swap and rare are 0.
    """
    return ids.bincount(minlength=vocab_size) if swap or rare else torch.zeros(vocab_size)
