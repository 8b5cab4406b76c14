"""Exercise 8: hide words for masked language modelling (Devlin et al. 2019, 3.1).

Choose a share `rate` of the words at random. Of the chosen ones, 80% become MASK, 10% a random
word, and 10% stay as they are. All chosen words are to be predicted. If only 8 of [3, 7, 8, 9] is
chosen and becomes [MASK], inputs are [3, 7, 2, 9] and labels [-100, -100, 8, -100].

40 minutes, hard. Ids are int64.
"""

import torch

MASK = 2  # the id of [MASK]
N_SPECIAL = 5  # ids below 5 are special tokens ([PAD], [UNK], [MASK], ...), not words


def mask_words(idx, vocab_size, rate, gen):
    """idx (B, T) -> inputs (B, T), labels (B, T).

    Labels hold the original ids of the chosen words, and -100 elsewhere. Special tokens are neither
    chosen nor drawn as random words. Draw numbers with torch.rand(..., generator=gen).
    """
    chosen = (torch.rand(idx.shape, generator=gen) < rate) & (idx >= N_SPECIAL)
    dice = torch.rand(idx.shape, generator=gen)
    words = torch.randint(N_SPECIAL, vocab_size, idx.shape, generator=gen)
    inputs = torch.where(chosen & (dice < 0.8), MASK, idx)
    inputs = torch.where(chosen & (dice >= 0.8) & (dice < 0.9), words, inputs)
    return inputs, idx.masked_fill(~chosen, -100)
