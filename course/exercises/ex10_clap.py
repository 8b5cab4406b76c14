"""Exercise 10: CLAP's word vectors and head, which learn no scale of their own.

    vector = e / |e|, but the zero vector for the mask token
    logits = beta * h (e / |e|)^T

e are the rows of the table (V, C). The scalar beta is learned.
"""

import torch
import torch.nn.functional as F

from course.judge import Task


def embed(idx: torch.Tensor, table: torch.Tensor, mask_id: int) -> torch.Tensor:
    """idx (B, T), table (V, C) -> vectors (B, T, C)."""
    return F.normalize(table[idx], dim=-1) * (idx != mask_id)[:, :, None]


def logits(h: torch.Tensor, table: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """h (B, T, C), table (V, C), beta () -> logits (B, T, V)."""
    return beta * h @ F.normalize(table, dim=-1).T


if __name__ == "__main__":
    table = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 1.0]])
    x = embed(torch.tensor([[0, 1, 2]]), table, mask_id=2)
    print(x, logits(x, table, torch.tensor(2.0)), sep="\n")

# ---- only for the check


def clap_cases(gen):
    for B, T, V, C in ((5, 8, 6, 3), (3, 4, 8, 7)):
        idx = torch.randint(V, (B, T), generator=gen)
        idx[:, 1] = V - 1
        yield idx, 3 * torch.randn(V, C, generator=gen), V - 1


def logit_cases(gen):
    for idx, table, _ in clap_cases(gen):
        yield torch.randn(*idx.shape, table.size(1), generator=gen), table, torch.tensor(3.0)


TASKS = [Task(embed, clap_cases, "vectors"), Task(logits, logit_cases, "logits")]
