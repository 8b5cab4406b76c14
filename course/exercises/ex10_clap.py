"""Exercise 10: word vectors of length 1, and a head that compares with them.

CLAP (Contrastive Language Pretraining, github.com/EIFY/fairseq) gives a masked language model a
head that compares its output with the vector of each word. The vectors have length 1: one number,
beta, is the scale of all logits. The mask token is the zero vector.

    vector = e / |e|, but the zero vector for the mask token
    logits = beta * h (e / |e|)^T

e are the rows of the table (V, C). The scalar beta is learned. The row [3, 4] becomes [0.6, 0.8];
for h = [1, 0] and beta = 2 its logit is 1.2.

25 minutes, medium. Ids are int64, floats float32. Gradients must flow to h, table and beta.
"""

import torch
import torch.nn.functional as F


def embed(idx: torch.Tensor, table: torch.Tensor, mask_id: int) -> torch.Tensor:
    """idx (B, T), table (V, C) -> vectors (B, T, C)."""
    return F.normalize(table[idx], dim=-1) * (idx != mask_id)[:, :, None]


def logits(h: torch.Tensor, table: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """h (B, T, C), table (V, C), beta () -> logits (B, T, V)."""
    return beta * h @ F.normalize(table, dim=-1).T
