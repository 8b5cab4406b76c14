"""Exercise 4: sinusoids, one vector for each position (Vaswani et al. 2017, 3.5).

    channel 2i is sin(t / 10000^(2i / C)), channel 2i + 1 is cos(t / 10000^(2i / C))

for the positions t = 0, ..., T - 1 and i = 0, ..., C / 2 - 1. The row of t = 1 for C = 4 is
[sin 1, cos 1, sin 0.01, cos 0.01] = [0.8415, 0.5403, 0.0100, 1.0000].

20 minutes, medium. The table is float32.
"""

import torch


def sinusoids(T: int, n_embd: int) -> torch.Tensor:
    """Return the (T, C) table; C = n_embd is even."""
    i = torch.arange(n_embd // 2)
    angles = torch.arange(T)[:, None] * 10000.0 ** (-2 * i / n_embd)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
