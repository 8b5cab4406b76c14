"""Exercise 3: split the channels into heads, and join them again (Vaswani et al. 2017, 3.2.2).

Head h has D = C / H channels of each token: h * D, ..., h * D + D - 1.
"""

import torch


def split_heads(x: torch.Tensor, n_head: int) -> torch.Tensor:
    """x (B, T, C) -> (B, H, T, D)."""
    return x.unflatten(2, (n_head, -1)).transpose(1, 2)


def join_heads(y: torch.Tensor) -> torch.Tensor:
    """y (B, H, T, D) -> (B, T, C): undo split_heads."""
    return y.transpose(1, 2).flatten(2)
