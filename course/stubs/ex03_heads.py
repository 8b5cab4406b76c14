"""Exercise 3: split the channels into heads, and join them again (Vaswani et al. 2017, 3.2.2).

Head h has D = C / H channels of each token: h * D, ..., h * D + D - 1.
"""

import torch
from torch import Tensor


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """x (B, T, C) -> (B, H, T, D)."""
    raise NotImplementedError


def join_heads(y: Tensor) -> Tensor:
    """y (B, H, T, D) -> (B, T, C): undo split_heads."""
    raise NotImplementedError


if __name__ == "__main__":
    x = torch.arange(12).view(1, 2, 6)
    print(split_heads(x, n_head=3), join_heads(split_heads(x, n_head=3)), sep="\n")
