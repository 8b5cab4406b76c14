"""Exercise 2: scaled dot-product attention (Vaswani et al. 2017, equation 1).

    softmax(q k^T / sqrt(D) + bias) v

B sequences, H heads, T queries, S keys, D channels per head. Keys where the mask is False, or the
bias -inf, are not seen: their score is -inf, or so low (-1e9) that their weight is 0. Dropout is
always active; in evaluation the caller gives 0.
"""

import torch
import torch.nn.functional as F


def attend(q, k, v, mask=None, bias=None, dropout=0.0):
    """q (B, H, T, D), k and v (B, H, S, D) -> output (B, H, T, D), weights (B, H, T, S).

    mask (B, S), True on real tokens; bias broadcasts to (B, H, T, S); dropout: share of weights
    that become 0, the others grow as in F.dropout. The weights returned are from before it.
    """
    scores = q @ k.mT / q.size(-1) ** 0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v, weights
