"""Exercise 1: sentences of different lengths in one batch.

T is the length of the longest. The tokens come first, then padding with the id PAD.
"""

import torch
from torch import Tensor

PAD = 0


def pad(sequences: list[Tensor]) -> tuple[Tensor, Tensor]:
    """sequences: B tensors of ids -> idx (B, T) long, mask (B, T) bool, True on real tokens."""
    raise NotImplementedError


if __name__ == "__main__":
    idx, mask = pad([torch.tensor([7, 8, 9]), torch.tensor([5])])
    print(idx, mask, sep="\n")
