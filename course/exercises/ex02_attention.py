"""Exercise 2: scaled dot-product attention (Vaswani et al. 2017, equation 1).

    softmax(q k^T / sqrt(D) + bias) v

B sequences, H heads, T queries, S keys, D channels per head. Keys where the mask is False, or the
bias -inf, are not seen: their score is -inf, or so low (-1e9) that their weight is 0. Dropout is
always active; in evaluation the caller gives 0. With one head, D = 1, q = [[0]], k = [[1], [2]] and
v = [[10], [20]] both scores are 0, so the weights are [[0.5, 0.5]] and the output is [[15]].

40 minutes, medium. All floats are float32. Gradients must flow to q, k, v and the bias.
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


def hide_future(T: int, S: int) -> torch.Tensor:
    """Return the causal mask as a bias (T, S): 0 where a query may see a key, -inf at later keys.

    The T queries are the last of the S tokens: query i is token S - T + i, and sees itself and the
    tokens before it. T = 2, S = 3 gives [[0, 0, -inf], [0, 0, 0]].
    """
    i = torch.arange(S - T, S)[:, None]
    j = torch.arange(S)
    return torch.zeros(T, S).masked_fill(j > i, -torch.inf)
