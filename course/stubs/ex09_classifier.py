"""Exercise 9: from the states of a sentence to its class.

mean = sum of the states of real tokens / their number
logits = dropout(relu(x w1^T + b1)) w2^T + b2
"""

import torch
from torch import Tensor


def mean_pool(h: Tensor, mask: Tensor) -> Tensor:
    """h (B, T, C), mask (B, T), True on real tokens -> the means (B, C) without padding."""
    raise NotImplementedError


def classify(
    x: Tensor,  # (B, C)
    w1: Tensor,  # (F, C), as in nn.Linear
    b1: Tensor,  # (F,)
    w2: Tensor,  # (K, F)
    b2: Tensor,  # (K,)
    dropout: float,
    training: bool,
) -> Tensor:
    """Return the logits (B, K). Dropout is active only in training."""
    raise NotImplementedError


if __name__ == "__main__":
    h, mask = torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])
    print(mean_pool(h, mask))  # 2
