"""Exercise 11: rotary positions (Su et al. 2021, equations 15 and 34).

Token t turns the pair of channels (n, n + D/2) of its query and its key by an angle:

    angle = t / 10000^(2n / D)        n = 0, ..., D/2 - 1
    a, b  become  a cos - b sin, a sin + b cos

The score of a query at i and a key at j then depends on i - j alone. (The paper pairs channels 2n
and 2n + 1; Llama and this exercise pair n and n + D/2.) For D = 2 and an angle of pi / 2, [1, 0]
becomes [0, 1].

40 minutes, medium. Floats are float32. Gradients must flow to x, q and k.
"""

import torch


def angles(positions: torch.Tensor, D: int) -> torch.Tensor:
    """positions (T,) of the tokens, such as [5, 6, 7] -> the angles (T, D/2)."""
    n = torch.arange(D // 2)
    return positions[:, None] * 10000.0 ** (-2 * n / D)


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x (B, H, T, D), angles (T, D/2) -> x rotated (B, H, T, D)."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def scores(q, k, i, j):
    """q (B, H, T, D) at the positions i (T,), k (B, H, S, D) at the positions j (S,) -> the scores
    q k^T / sqrt(D) (B, H, T, S) after the rotation. Use the two functions above."""
    D = q.size(-1)
    q = rotate(q, angles(i, D))
    k = rotate(k, angles(j, D))
    return q @ k.mT / D**0.5
