"""Exercise 8: hide words for masked language modelling (Devlin et al. 2019, 3.1).

Choose a share `rate` of the words at random. Of the chosen ones, 80% become MASK, 10% a random
word, and 10% stay as they are. All chosen words are to be predicted.
"""

import torch
from torch import Tensor

MASK, N_SPECIAL = 2, 5  # ids below 5 are special tokens ([PAD], [UNK], [MASK], ...), not words


def mask_words(
    idx: Tensor, vocab_size: int, rate: float, gen: torch.Generator
) -> tuple[Tensor, Tensor]:
    """idx (B, T) -> inputs (B, T), labels (B, T).

    Labels hold the original ids of the chosen words, and -100 elsewhere. Special tokens are neither
    chosen nor drawn as random words. Draw numbers with torch.rand(..., generator=gen).
    """
    raise NotImplementedError


if __name__ == "__main__":
    idx = torch.arange(12).view(2, 6)
    print(*mask_words(idx, 12, 0.5, torch.Generator().manual_seed(0)), sep="\n")
