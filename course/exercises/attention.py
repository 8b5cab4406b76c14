"""Exercises 2 and 3: attention, and the heads that it works in."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F

import model
from course.exercises.sizes import sizes
from model import Attention


def attend(q, k, v, mask, bias, dropout):
    if mask is not None:
        hidden = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)[:, None, None]
        bias = hidden if bias is None else bias + hidden
    return model.attend(q, k, v, bias, dropout)


def attention_cases(gen):
    for n_more in (0, 1, 0):  # keys than queries
        B, H, T, D = sizes(gen, 4)
        S = T + n_more
        q, k, v = (torch.randn(B, H, n, D, generator=gen) for n in (T, S, S))
        mask = torch.arange(S) < torch.randint(2, S, (B, 1), generator=gen)
        bias = torch.randn(H, T, S, generator=gen)
        bias[..., 2:-1].masked_fill_(torch.rand(H, T, S - 3, generator=gen) < 0.4, -math.inf)
        yield from ((q, k, v, None, None, 0.0), (q, k, v, mask, bias, 0.0))
    yield from ((q, k, v, mask, None, 0.0), (q, k, v, None, bias, 0.0))
    yield (64, 0.2)  # with dropout, see course/watch.py


def raw(q, k, mask, bias, hidden=-math.inf):
    scores = q @ k.mT / q.size(-1) ** 0.5 + (0 if bias is None else bias)
    return scores if mask is None else scores.masked_fill(~mask[:, None, None], hidden)


def hide_queries(q, k, mask, bias, hidden):
    """Return the scores with the mask on the queries, where there are as many as keys."""
    if mask is None or q.size(2) != k.size(2):
        return raw(q, k, mask, bias)
    return raw(q, k, None, bias).masked_fill(~mask[:, None, :, None], hidden)


def scaled(bias, factor):
    return None if bias is None else torch.where(bias.isinf(), bias, bias * factor)


def soft(scores, v, p=0.0, change=lambda weights: weights, dim=-1):
    """Return the output, and the weights after a change."""
    weights = change(scores.softmax(dim))
    return F.dropout(weights, p) @ v, weights


ATTEND = (
    "the scores are divided by sqrt(n_embd). Divide by sqrt(D), the root of one head's size.",
    lambda q, k, v, mask, bias, p: attend(q / q.size(1) ** 0.5, k, v, mask, bias, p),
    "the scores are divided by D, which makes the weights too even. Divide by sqrt(D).",
    lambda q, k, v, mask, bias, p: attend(q / q.size(-1) ** 0.5, k, v, mask, bias, p),
    "the scores are not divided by sqrt(D). They grow with D, and the softmax becomes too sharp.",
    lambda q, k, v, mask, bias, p: attend(q * q.size(-1) ** 0.5, k, v, mask, bias, p),
    "the softmax is over the queries (dim=-2). Each query's weights over the keys must sum to 1: "
    "dim=-1.",
    lambda q, k, v, mask, bias, p: soft(raw(q, k, mask, bias), v, p, dim=-2),
    "padding has a score of 0 or nearly 0, which is an ordinary score. Give it -inf, or -1e9.",
    lambda q, k, v, mask, bias, p: soft(raw(q, k, mask, bias, 1e-9), v, p),
    "the mask is on the queries (the rows), whose scores all become -inf, and the softmax NaN. It "
    "is about the keys, the last dimension: mask[:, None, None, :].",
    lambda q, k, v, mask, bias, p: soft(hide_queries(q, k, mask, bias, -math.inf), v, p),
    "the mask is on the queries (the rows). It is about the keys, the last dimension: "
    "mask[:, None, None, :].",
    lambda q, k, v, mask, bias, p: soft(hide_queries(q, k, mask, bias, -1e9), v, p),
    "the bias is divided by sqrt(D) together with the scores. Add it after the division.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, mask, scaled(bias, q.size(-1) ** -0.5), p),
    "mask and bias are ignored. Add the bias to the scores, and give padding a score of -inf.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, None, None, p),
    "padding is attended to. Keys where the mask is False need a score of -inf. masked_fill "
    "returns a new tensor.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, None, bias, p),
    "the mask is read the wrong way round. True marks real tokens, which may be seen.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, None if mask is None else ~mask, bias, p),
    "the weights of padding are set to 0 after the softmax, so the others do not sum to 1.",
    lambda q, k, v, mask, bias, p: soft(
        raw(q, k, None, bias), v, p, lambda w: w if mask is None else w * mask[:, None, None]
    ),
    "the mask is added to the scores as 0 and 1, which hides nothing. Give padding -inf.",
    lambda q, k, v, mask, bias, p: soft(
        raw(q, k, None, bias) + (0 if mask is None else mask[:, None, None]), v, p
    ),
    "the mask is on the values. Padding still takes its share of the weights: hide its scores.",
    lambda q, k, v, mask, bias, p: (
        attend(q, k, v if mask is None else v * mask[:, None, :, None], None, bias, p)[0],
        attend(q, k, v, None, bias, 0.0)[1],
    ),
    "the bias is ignored. Add it to the scores.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, mask, None, p),
    "the softmax is over the heads (dim=1, or F.softmax without dim). Each query's weights over "
    "the keys must sum to 1: dim=-1.",
    lambda q, k, v, mask, bias, p: soft(raw(q, k, mask, bias), v, p, dim=1),
    "the scores are divided by the root of the number of tokens. Divide by sqrt(D).",
    lambda q, k, v, mask, bias, p: attend(
        q * (q.size(-1) / q.size(-2)) ** 0.5, k, v, mask, bias, p
    ),
    "output and weights are returned in the wrong order.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, mask, bias, p)[:: 1 if q.size(2) > 8 else -1],
    "the weights that stay are not made larger. They grow by 1 / (1 - p), as in F.dropout.",
    lambda q, k, v, mask, bias, p: soft(raw(q, k, mask, bias), v * (1 - p), p),
    "dropout is never applied. Apply it to the weights, after the softmax.",
    lambda q, k, v, mask, bias, p: attend(q, k, v, mask, bias, 0.0),
    "dropout is applied to the scores, where a 0 still gets weight. Apply it to the weights.",
    lambda q, k, v, mask, bias, p: soft(F.dropout(raw(q, k, mask, bias), p), v),
    "dropout is applied to the output. Apply it to the weights, before they meet the values.",
    lambda q, k, v, mask, bias, p: (
        F.dropout(attend(q, k, v, mask, bias, 0.0)[0], p),
        attend(q, k, v, mask, bias, 0.0)[1],
    ),
    "the returned weights have dropout in them. Return the weights from before the dropout.",
    lambda q, k, v, mask, bias, p: soft(raw(q, k, mask, bias), v, 0.0, lambda w: F.dropout(w, p)),
)


def passed_through(x, n_head, kernel):
    """Return what Attention makes of x (B, T, C) if its layers copy and `kernel` attends."""
    layer = SimpleNamespace(n_head=n_head, training=False, causal=False)
    layer.qkv, layer.out = lambda x: x.repeat(1, 1, 3), lambda y: y
    return Attention.forward(layer, x, kernel=kernel)[0]


def split_heads(x, n_head):
    found = []
    passed_through(x, n_head, lambda q, *_, **__: found.append(q) or q)
    return found[0]


def join_heads(y):
    B, H, T, D = y.shape
    return passed_through(torch.zeros(B, T, H * D), H, lambda *_, **__: y)


def split_cases(gen):
    for _ in range(3):
        B, H, T, D = sizes(gen, 4)
        yield torch.randn(B, T, H * D, generator=gen), H


def join_cases(gen):
    for _ in range(3):
        yield (torch.randn(sizes(gen, 4), generator=gen),)


SPLIT = (
    "view(B, H, T, D) mixes positions and channels. Make it (B, T, H, D), then transpose.",
    lambda x, H: x.reshape(len(x), H, x.size(1), -1),
    "transpose(1, 2) before the split mixes the heads. Make it (B, T, H, D), then transpose.",
    lambda x, H: x.mT.reshape(len(x), H, x.size(1), -1),
    "a head gets every H-th channel. Head h has D neighbours: h * D, ..., h * D + D - 1.",
    lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2),
    "the result is (B, T, H, D). Attention works on the last two, so transpose to (B, H, T, D).",
    lambda x, H: x.unflatten(-1, (H, -1)),
)
JOIN = (
    "the heads are joined without transposing back, which mixes positions and channels.",
    lambda y: y.reshape(len(y), y.size(2), -1),
    "the channels of the heads alternate. Those of head 1 come first, then those of head 2.",
    lambda y: y.permute(0, 2, 3, 1).flatten(2),
)
ATTENTION = {"attend": (attend, attention_cases, ("output", "weights"), ATTEND, "dropout")}
HEADS = {
    "split_heads": (split_heads, split_cases, ("output",), SPLIT),
    "join_heads": (join_heads, join_cases, ("output",), JOIN),
}
