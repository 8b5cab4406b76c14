"""Exercise 9: from the states of a sentence to its class.

mean = sum of the states of real tokens / their number
logits = dropout(relu(x w1^T + b1)) w2^T + b2
"""

import torch
import torch.nn.functional as F


def mean_pool(h: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """h (B, T, C), mask (B, T), True on real tokens -> the means (B, C) without padding."""
    return (h * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)


def classify(x, w1, b1, w2, b2, dropout, training):
    """x (B, C), w1 (F, C) as in nn.Linear, b1 (F,), w2 (K, F), b2 (K,) -> the logits (B, K).

    Dropout, a probability, is active only if training is True.
    """
    hidden = F.linear(x, w1, b1).relu()
    return F.linear(F.dropout(hidden, dropout, training), w2, b2)
