"""Exercise 10: CLAP's word vectors and head, which learn no scale of their own.

    vector = e / |e|, but the zero vector for the mask token
    logits = beta * h (e / |e|)^T

e are the rows of the table (V, C). The scalar beta is learned.
"""

import torch
import torch.nn.functional as F


def embed(idx: torch.Tensor, table: torch.Tensor, mask_id: int) -> torch.Tensor:
    """idx (B, T), table (V, C) -> vectors (B, T, C)."""
    return F.normalize(table[idx], dim=-1) * (idx != mask_id)[:, :, None]


def logits(h: torch.Tensor, table: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """h (B, T, C), table (V, C), beta () -> logits (B, T, V)."""
    return beta * h @ F.normalize(table, dim=-1).T
