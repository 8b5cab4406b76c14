"""Exercise 3: split the channels into heads, and join them again (Vaswani et al. 2017, 3.2.2).

Head h has D = C / H channels of each token: h * D, ..., h * D + D - 1.
"""

import torch

from course.judge import Task


def split_heads(x: torch.Tensor, n_head: int) -> torch.Tensor:
    """x (B, T, C) -> (B, H, T, D)."""
    return x.unflatten(2, (n_head, -1)).transpose(1, 2)


def join_heads(y: torch.Tensor) -> torch.Tensor:
    """y (B, H, T, D) -> (B, T, C): undo split_heads."""
    return y.transpose(1, 2).flatten(2)


if __name__ == "__main__":
    x = torch.arange(12).view(1, 2, 6)
    print(split_heads(x, n_head=3), join_heads(split_heads(x, n_head=3)), sep="\n")

# ---- only for the check


def split_cases(gen):
    for B, H, T, D in ((5, 8, 6, 3), (3, 4, 8, 7), (7, 5, 4, 6)):
        yield torch.randn(B, T, H * D, generator=gen), H


TASKS = [
    Task(split_heads, split_cases, "output"),
    Task(join_heads, lambda gen: [(split_heads(*case),) for case in split_cases(gen)], "output"),
]
