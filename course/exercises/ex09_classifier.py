"""Exercise 9: from the states of a sentence to its class.

mean = sum of the states of real tokens / their number
logits = dropout(relu(x w1^T + b1)) w2^T + b2

The states [1], [3], [9] with the mask [True, True, False] have the mean [2]. For x = [1],
w1 = [[-1]], b1 = [0], w2 = [[5]], b2 = [7] the hidden channel is relu(-1) = 0 and the logit [7].

25 minutes, easy. Floats are float32. Gradients must flow to h, x, and all weights.
Sources: Collobert et al. 2011, 3.3.2 (pooling over a sentence); Srivastava et al. 2014 (dropout).
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
