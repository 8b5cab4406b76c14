"""Exercise 2: scaled dot-product attention (Vaswani et al. 2017, equation 1).

    softmax(q k^T / sqrt(D) + bias) v

B sequences, H heads, T queries, S keys, D channels per head. Keys where the mask is False, or the
bias -inf, are not seen: their score is -inf, or so low (-1e9) that their weight is 0. Dropout is
always active; in evaluation the caller gives 0.
"""

import torch
from torch import Tensor


def attend(
    q: Tensor,  # (B, H, T, D)
    k: Tensor,  # (B, H, S, D)
    v: Tensor,  # (B, H, S, D)
    mask: Tensor | None = None,  # (B, S) bool, True on real tokens
    bias: Tensor | None = None,  # broadcasts to (B, H, T, S)
    dropout: float = 0.0,  # share of weights that become 0; the others grow as in F.dropout
) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, T, D) and the weights (B, H, T, S) from before the dropout."""
    raise NotImplementedError


if __name__ == "__main__":
    q = torch.randn(1, 2, 3, 4)
    output, weights = attend(q, q, q, mask=torch.tensor([[True, True, False]]))
    print(weights, weights.sum(-1), sep="\n")
