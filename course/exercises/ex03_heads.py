"""Exercise 3: split the channels into heads, and join them again (Vaswani et al. 2017, 3.2.2).

Head h has D = C / H channels of each token: h * D, ..., h * D + D - 1. One token with the channels
[1, 2, 3, 4] has [1, 2] in head 0 and [3, 4] in head 1.

20 minutes, medium. Floats are float32. Gradients must flow.
"""

import torch


def split_heads(x: torch.Tensor, n_head: int) -> torch.Tensor:
    """x (B, T, C) -> (B, H, T, D)."""
    return x.unflatten(2, (n_head, -1)).transpose(1, 2)


def join_heads(y: torch.Tensor) -> torch.Tensor:
    """y (B, H, T, D) -> (B, T, C): undo split_heads."""
    return y.transpose(1, 2).flatten(2)
