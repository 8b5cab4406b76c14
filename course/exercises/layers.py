"""Exercises 6, 9 and 10: a block, a classifier, and CLAP's head."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.func import functional_call

from course.exercises.sizes import sizes
from model import Block, Config, Encoder, LMHead
from nets.classifier import ClassifierHead, pool_tokens


def block(x, norm1, attention, norm2, feed_forward, dropout):
    parts = dict(norm1=norm1, norm2=norm2, feed_forward=feed_forward, dropout=dropout)
    layer = SimpleNamespace(norm_first=True, attention=lambda x: (attention(x), None), **parts)
    return Block.forward(layer, x)[0]


def block_cases(gen):
    for B, T, C in ((2, 3, 4), (1, 5, 6)):
        shapes = (B, T, C), (4, C, C), (C,)
        yield tuple(torch.randn(shape, generator=gen) for shape in shapes)


def mean_pool(h, mask):
    return pool_tokens(h, mask, "mean")


def pool_cases(gen):
    for B, T, C in ((3, 5, 2), (2, 4, 6), (4, 7, 4)):
        lengths = torch.randint(2, T, (B, 1), generator=gen)
        yield torch.randn(B, T, C, generator=gen), torch.arange(T) < lengths


def classify(x, w1, b1, w2, b2, dropout, training):
    head = ClassifierHead(x.size(-1), len(w2), len(w1), dropout).train(training)
    names = "layers.0.weight", "layers.0.bias", "layers.3.weight", "layers.3.bias"
    return functional_call(head, dict(zip(names, (w1, b1, w2, b2))), x)


def classifier_cases(gen):
    for N, C, K in ((4, 6, 3), (6, 4, 2)):
        shapes = (N, C), (20, C), (20,), (K, 20), (K,)
        yield *(torch.randn(shape, generator=gen) for shape in shapes), 0.3, False
    one, eye = torch.ones(20), torch.eye(20)
    yield torch.ones(500, 20), eye, one, eye, one, 0.3, True


def layers(x, w1, b1, w2, b2, p, training, act=torch.relu):
    return F.linear(F.dropout(act(F.linear(x, w1, b1)), p, training), w2, b2)


def embed(idx, table, mask_id):
    config = Config(n_embd=table.size(1), unit_embd=True, zero_mask=True, mask_id=mask_id, n_head=1)
    body = SimpleNamespace(config=config, embedding=lambda idx: table[idx])
    return Encoder.token_vectors(body, idx)


def logits(h, table, beta):
    head = SimpleNamespace(words=SimpleNamespace(weight=table), unit=True, beta=beta, bias=None)
    return F.linear(*LMHead.project(head, h))


def clap_cases(gen):
    for _ in range(2):
        B, T, V, C = sizes(gen, 4)
        table = 3 * torch.randn(V, C, generator=gen)
        idx = torch.randint(V, (B, T), generator=gen)
        idx[:, 1] = V - 1
        yield idx, table, V - 1


def logit_cases(gen):
    for idx, table, _ in clap_cases(gen):
        yield torch.randn(*idx.shape, table.size(1), generator=gen), table, torch.tensor(3.0)


unit = F.normalize
BLOCKS = (
    "the norm is after the residual sum (post-norm). Pre-norm is x + attention(norm1(x)).",
    lambda x, n1, a, n2, f, d: n2((y := n1(x + d(a(x)))) + d(f(y))),
    "the norm is on the residual path too. Add to x itself, not to norm(x).",
    lambda x, n1, a, n2, f, d: n2(y := n1(x) + d(a(n1(x)))) + d(f(n2(y))),
    "norm1(x) replaces x, so the residual path is normalised. Add to x itself: x + attention(...).",
    lambda x, n1, a, n2, f, d: (y := n1(x) + d(a(n1(x)))) + d(f(n2(y))),
    "the norm is applied to what a sublayer returns. Apply it to what the sublayer gets.",
    lambda x, n1, a, n2, f, d: (y := x + d(n1(a(x)))) + d(n2(f(y))),
    "norm1 is used twice. The feed-forward layer has its own norm2.",
    lambda x, n1, a, n2, f, d: (y := x + d(a(n1(x)))) + d(f(n1(y))),
    "there is no residual around the attention. Add its output to x.",
    lambda x, n1, a, n2, f, d: (y := d(a(n1(x)))) + d(f(n2(y))),
    "there is no residual around the feed-forward layer. Add its output to x.",
    lambda x, n1, a, n2, f, d: d(f(n2(x + d(a(n1(x)))))),
    "the second sum begins with the old x, so the attention's output is lost from it. Begin with "
    "the new x.",
    lambda x, n1, a, n2, f, d: x + d(f(n2(x + d(a(n1(x)))))),
    "the feed-forward layer gets the old x. It gets x after the attention's output is added.",
    lambda x, n1, a, n2, f, d: x + d(a(n1(x))) + d(f(n2(x))),
    "there is no norm before the feed-forward layer.",
    lambda x, n1, a, n2, f, d: (y := x + d(a(n1(x)))) + d(f(y)),
    "dropout is missing on the outputs of the sublayers.",
    lambda x, n1, a, n2, f, d: (y := x + a(n1(x))) + f(n2(y)),
    "dropout is applied to the sum, so it also drops the residual. Apply it to the output alone.",
    lambda x, n1, a, n2, f, d: d((y := d(x + a(n1(x)))) + f(n2(y))),
)
POOL = (
    "padding is averaged into the mean. Sum the real tokens and divide by their number.",
    lambda h, mask: h.mean(1),
    "padding is zeroed, but the sum is divided by T. Divide by the number of real tokens.",
    lambda h, mask: (h * mask[..., None]).mean(1),
    "the mean is over the padding: the mask is read the wrong way round. True marks real tokens.",
    lambda h, mask: mean_pool(h, ~mask),
    "the real tokens are summed and not divided by their number.",
    lambda h, mask: (h * mask[..., None]).sum(1),
    "the sum is divided by the real tokens of the whole batch. Divide by those of each text.",
    lambda h, mask: (h * mask[..., None]).sum(1) / mask.sum(),
    "padding is summed, though not counted. Set it to zero before the sum.",
    lambda h, mask: h.sum(1) / mask.sum(1, keepdim=True),
)
CLASSIFY = (
    "the ReLU is missing, and two linear layers in a row are only one.",
    lambda *args: layers(*args, act=lambda x: x),
    "the logits go through a softmax. Return them raw: the loss applies its own softmax.",
    lambda *args: layers(*args).softmax(-1),
    "the logits go through a ReLU, so none can be negative. It belongs after the first layer.",
    lambda *args: layers(*args).relu(),
    "two calls in evaluation differ. Dropout needs F.dropout(x, p, training); layers of your own "
    "have random weights, so use w1, b1, w2, b2.",
    lambda *args: layers(*args[:-1], True),
    "dropout is never active, not even in training.",
    lambda *args: layers(*args[:-1], False),
)
EMBED = (
    "the mask is not the zero vector. Multiply its vectors by 0.",
    lambda idx, table, mask_id: unit(table[idx], dim=-1),
    "the vectors are not normalised to length 1.",
    lambda idx, table, mask_id: table[idx] * (idx != mask_id)[..., None],
    "the norm is over the positions (dim=1, the default of F.normalize). Give it dim=-1.",
    lambda idx, table, mask_id: unit(table[idx]) * (idx != mask_id)[..., None],
    "each column is normalised. Normalise each word's vector (dim=-1).",
    lambda idx, table, mask_id: unit(table, dim=0)[idx] * (idx != mask_id)[..., None],
)
LOGITS = (
    "beta has no effect: it is missing, or multiplied before the normalisation, which removes it.",
    lambda h, table, beta: h @ unit(beta * table, dim=-1).T,
    "h is normalised too (cosine similarity). Only the word vectors are.",
    lambda h, table, beta: beta * unit(h, dim=-1) @ unit(table, dim=-1).T,
    "the word vectors are not normalised.",
    lambda h, table, beta: beta * h @ table.T,
)
BLOCK = {"block": (block, block_cases, ("output",), BLOCKS, "block")}
CLASSIFIER = {
    "mean_pool": (mean_pool, pool_cases, ("mean",), POOL),
    "classify": (classify, classifier_cases, ("logits",), CLASSIFY, "classifier"),
}
CLAP = {
    "embed": (embed, clap_cases, ("vectors",), EMBED),
    "logits": (logits, logit_cases, ("logits",), LOGITS),
}
