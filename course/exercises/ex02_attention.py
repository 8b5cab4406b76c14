"""Exercise 2: scaled dot-product attention (Vaswani et al. 2017, equation 1).

    softmax(q k^T / sqrt(D) + bias) v

B sequences, H heads, T queries, S keys, D channels per head. Keys where the mask is False, or the
bias -inf, are not seen: their score is -inf, or so low (-1e9) that their weight is 0. Dropout is
always active; in evaluation the caller gives 0.
"""

import torch
import torch.nn.functional as F

from course.judge import Task


def attend(
    q: torch.Tensor,  # (B, H, T, D)
    k: torch.Tensor,  # (B, H, S, D)
    v: torch.Tensor,  # (B, H, S, D)
    mask: torch.Tensor | None = None,  # (B, S) bool, True on real tokens
    bias: torch.Tensor | None = None,  # broadcasts to (B, H, T, S)
    dropout: float = 0.0,  # share of weights that become 0; the others grow as in F.dropout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output (B, H, T, D) and the weights (B, H, T, S) from before the dropout."""
    scores = q @ k.mT / q.size(-1) ** 0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
    weights = scores.softmax(-1)
    return F.dropout(weights, dropout) @ v, weights


if __name__ == "__main__":
    q = torch.randn(1, 2, 3, 4)
    print(*attend(q, q, q, mask=torch.tensor([[True, True, False]])), sep="\n")

# ---- only for the check


def attention_cases(gen):
    for B, H, T, S, D in ((5, 8, 6, 6, 3), (3, 5, 7, 8, 4), (7, 3, 5, 5, 6)):
        q, k, v = (torch.randn(B, H, n, D, generator=gen) for n in (T, S, S))
        mask = torch.arange(S) < torch.randint(2, S, (B, 1), generator=gen)
        bias = torch.randn(H, T, S, generator=gen)
        bias[..., 2:-1].masked_fill_(torch.rand(H, T, S - 3, generator=gen) < 0.4, -torch.inf)
        yield from ((q, k, v, None, None, 0.0), (q, k, v, mask, bias, 0.0))
    yield from ((q, k, v, mask, None, 0.0), (q, k, v, None, bias, 0.0))
    q, k = torch.randn(2, 4, 4, 64, 65, generator=gen)
    v = torch.cat([torch.eye(64), torch.ones(64, 1)], 1)  # shows each weight, and their sum
    yield q, k, v.expand(4, 4, 64, 65), None, None, 0.2


def measure_dropout(ask, *args):
    """Without dropout: call. With dropout: measure what it does to the weights."""
    *args, p = args
    plain, T = ask(*args, 0.0), args[0].size(2)
    if p == 0:
        return plain
    found = ask(*args, p, shapes=[args[2].shape, (*args[2].shape[:3], T)])
    after = found["output"][..., :T] / plain["weights"]  # each is 0 or 1 / (1 - p)
    new = (found["weights"] - plain["weights"]).abs() > 1e-4 * plain["weights"].abs()
    zero, what = after == 0, f"with dropout {p}, the"
    return {
        f"{what} share of weights that become 0": zero.float().mean(),
        f"{what} mean of weight after / before, F.dropout keeps it": after.mean(),
        f"{what} mean square of weight after / before": after.square().mean(),
        f"{what} share of outputs that are 0": (found["output"][..., T] == 0).float().mean(),
        f"{what} share of keys that no query sees": zero.all(-2).float().mean(),
        f"{what} share of queries that see no key": zero.all(-1).float().mean(),
        f"{what} share of returned weights that the dropout changed": new.float().mean(),
    }


TASKS = [Task(attend, attention_cases, "output", "weights", measure=measure_dropout)]
