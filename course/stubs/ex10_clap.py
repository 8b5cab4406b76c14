"""Exercise 10: CLAP's word vectors and head, which learn no scale of their own.

    vector = e / |e|, but the zero vector for the mask token
    logits = beta * h (e / |e|)^T

e are the rows of the table (V, C). The scalar beta is learned.
"""

import torch
from torch import Tensor


def embed(idx: Tensor, table: Tensor, mask_id: int) -> Tensor:
    """idx (B, T), table (V, C) -> vectors (B, T, C)."""
    raise NotImplementedError


def logits(h: Tensor, table: Tensor, beta: Tensor) -> Tensor:
    """h (B, T, C), table (V, C), beta () -> logits (B, T, V)."""
    raise NotImplementedError


if __name__ == "__main__":
    table = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 1.0]])
    x = embed(torch.tensor([[0, 1, 2]]), table, mask_id=2)
    print(x, logits(x, table, torch.tensor(2.0)), sep="\n")
