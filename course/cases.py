"""What the check calls each function with. A case is the arguments of one call.

Inputs are as in training: contiguous, several texts in a batch, more tokens than a table of 32 or
64 positions has. Sizes differ from case to case, and each size meets another one twice, so that no
number that is written into an answer, and no cache without all of its arguments, can be right.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from course.measures import (
    measure_block,
    measure_classify,
    measure_dropout,
    measure_generate,
    measure_masking,
    measure_vocabulary,
)


def draw(gen, *shapes):
    """Return a tensor of normal numbers for each of the shapes."""
    return [torch.randn(shape, generator=gen) for shape in shapes]


def draw_mask(gen, B, T):
    """Return a mask (B, T) with 2 to T - 1 real tokens in each row."""
    mask = torch.rand(B, T, generator=gen) < 0.6
    mask[:, :2] = True
    mask[:, -1] = False
    return mask.sort(dim=1, descending=True).values


def draw_bias(gen, *shape):
    """Return a bias (..., T, S) that hides some keys, but never all keys of a query."""
    bias = torch.randn(shape, generator=gen)
    hidden = torch.rand(bias[..., 2:-1].shape, generator=gen) < 0.4
    bias[..., 2:-1].masked_fill_(hidden, -torch.inf)
    return bias


def pad_cases(gen):
    for lengths in ([3, 5, 2], [4, 1], [2, 6, 6, 3], [40, 7]):
        yield ([torch.randint(5, 50, (n,), generator=gen) for n in lengths],)


def attend_cases(gen):
    # The bias is (T, S) as of a decoder, (H, T, S) as of ALiBi, or (B, H, T, S)
    for B, H, T, S, D, n_dim in ((5, 8, 6, 6, 3, 2), (3, 5, 7, 8, 4, 3), (7, 3, 5, 5, 6, 4)):
        q, k, v = draw(gen, (B, H, T, D), (B, H, S, D), (B, H, S, D))
        mask = draw_mask(gen, B, S)
        bias = draw_bias(gen, *(B, H, T, S)[-n_dim:])
        yield q, k, v, None, None, 0.0
        yield q, k, v, mask, bias, 0.0
    yield q, k, v, mask, None, 0.0
    yield q, k, v, None, bias, 0.0
    q, k, v = draw(gen, (2, 4, 70, 6), (2, 4, 70, 6), (2, 4, 70, 6))
    yield q, k, v, draw_mask(gen, 2, 70), draw_bias(gen, 70, 70), 0.0
    yield large_scores(gen)
    q, k = draw(gen, (4, 4, 64, 65), (4, 4, 64, 65))
    q[..., 0] = 16  # a large channel: dropout of queries differs from that of keys
    v = torch.cat([torch.eye(64), torch.ones(64, 1)], 1)  # shows each weight, and their sum
    yield q, k, v.expand(4, 4, 64, 65).contiguous(), None, None, 0.2
    yield *draw_overflowing(gen, 2, 3, 5, 4), None, None, 0.0


def draw_overflowing(gen, B, H, T, D):
    """Return q, k, v (B, H, T, D) with scores of about 120, whose exp is inf in float32."""
    q, k, v = draw(gen, (B, H, T, D), (B, H, T, D), (B, H, T, D))
    q[..., 0] = 120 * D**0.5
    k[..., 0] = 1
    return q, k, v


def large_scores(gen):
    """Return a case with scores of about 40 in the first two heads and -40 in the others."""
    B, H, T, D = 3, 4, 6, 4
    q, k, v = draw(gen, (B, H, T, D), (B, H, T, D), (B, H, T, D))
    q[..., 0] = 40 * D**0.5
    k[:, :2, :, 0] = 1
    k[:, 2:, :, 0] = -1
    return q, k, v, draw_mask(gen, B, T), None, 0.0


def future_cases(gen):
    return [(5, 5), (3, 7), (1, 4), (7, 7), (3, 4), (1, 9), (3, 70)]


def split_cases(gen):
    for B, T, H, D in ((5, 6, 8, 3), (3, 8, 4, 7), (7, 4, 5, 6), (2, 70, 2, 6)):
        qkv = torch.randn(B, T, 3 * H * D, generator=gen)
        yield qkv.chunk(3, dim=-1)[1], H  # part of a larger tensor, as in an attention layer


def join_cases(gen):
    for B, H, T, D in ((5, 8, 6, 3), (3, 4, 8, 7), (7, 5, 4, 6), (2, 2, 70, 6)):
        yield (torch.randn(B, H, T, D, generator=gen),)
    yield (torch.randn(3, 6, 4, 5, generator=gen).transpose(1, 2),)


def sinusoid_cases(gen):
    return [(5, 8), (20, 6), (20, 8), (3, 2), (70, 6)]


def slope_cases(gen):
    return [(n_head,) for n_head in (8, 2, 1, 6, 12, 16, 3)]


def causal_cases(gen):
    return [(2, 5), (4, 7), (4, 5), (8, 4), (3, 70)]


def encoder_cases(gen):
    cases = [(2, 5, False), (4, 6, True), (8, 4, False), (2, 7, True)]
    return [*cases, (4, 6, False), (4, 7, True), (3, 70, True)]


def norm_cases(gen):
    for B, T, C, eps in ((5, 8, 6, 1e-3), (3, 4, 7, 0.5), (2, 70, 4, 0.1), (4, 3, 2, 1e-3)):
        x, gain, bias = draw(gen, (B, T, C), (C,), (C,))
        yield x + 5, gain, bias, eps
    x = 300 + torch.randint(-8, 9, (3, 5, 4), generator=gen) / 4  # x * x is not exact in float32
    yield x, *draw(gen, (4,), (4,)), 1e-3


def block_cases(gen):
    for B, T, C in ((5, 8, 6), (3, 4, 7), (2, 70, 4)):
        shapes = [(B, T, C), (C, C), (C, C), (C, C), (C, C), (C,)]
        yield draw(gen, *shapes)  # x, and weights of functions, see measure_block


def next_cases(gen):
    for n, T in ((11, 4), (14, 4), (8, 4), (3, 4), (14, 5), (90, 40)):  # n tokens to predict
        ids = torch.randint(5, 99, (n + 1,), generator=gen)
        ids[n // 2] = 0  # an id like any other
        yield ids, T


def loss_cases(gen):
    for B, T, V in ((5, 8, 9), (3, 6, 12), (7, 40, 5)):
        yield draw_batch(gen, B, T, V)
    logits, targets = draw_batch(gen, 3, 4, 6)
    yield logits + 100, targets  # whose exp is inf in float32
    logits[-1, -1, 0] += 130  # sure of a wrong word: the others' softmax is 0 in float32
    targets[-1, -1] = 1
    yield logits, targets


def perplexity_cases(gen):
    for V, shapes in ((9, [(5, 8), (3, 6), (7, 4)]), (12, [(5, 8), (2, 40)])):
        yield ([draw_batch(gen, B, T, V) for B, T in shapes],)


def draw_batch(gen, B, T, V):
    """Return logits (B, T, V) and targets (B, T), of which some are -100."""
    targets = torch.randint(V, (B, T), generator=gen)
    targets[0, T // 2 :] = -100
    return 2 * torch.randn(B, T, V, generator=gen), targets


def masking_cases(gen):
    for B, T, vocab_size, rate in ((64, 160, 30, 0.75), (100, 110, 42, 0.85)):  # many random words
        idx = torch.randint(5, 20, (B, T), generator=gen)  # the vocabulary has more words
        idx[:, 0] = 3  # [BOS]
        idx[:, 5:10] = 1  # [UNK]
        idx[::2, T - 20 :] = 0  # [PAD]
        yield idx, vocab_size, rate


def pool_cases(gen):
    for B, T, C in ((3, 5, 2), (2, 4, 6), (4, 7, 4), (3, 70, 5)):
        yield *draw(gen, (B, T, C)), draw_mask(gen, B, T)


def classify_cases(gen):
    for B, C, n_hidden, K in ((4, 6, 20, 3), (6, 4, 12, 2)):
        yield *draw(gen, (B, C), (n_hidden, C), (n_hidden,), (K, n_hidden), (K,)), 0.3, False
    ones = torch.ones(5)
    identity = torch.eye(5)
    yield torch.ones(4000, 5), identity, ones, identity, ones, 0.3, True


def embed_cases(gen):
    for B, T, V, C, mask_id in ((5, 8, 6, 3, 4), (3, 4, 8, 7, 6), (2, 70, 9, 4, 2)):
        idx = torch.randint(V, (B, T), generator=gen)
        idx[:, 1] = mask_id
        idx[:, 2] = V - 1
        yield idx, draw_table(gen, V, C), mask_id


def logit_cases(gen):
    for B, T, V, C, beta in ((5, 8, 6, 3, 3.0), (3, 4, 8, 7, 0.5), (2, 70, 9, 4, 2.0)):
        yield *draw(gen, (B, T, C)), draw_table(gen, V, C), torch.tensor(beta)


def draw_table(gen, V, C):
    """Return word vectors (V, C) of lengths from about 0.3 to 5."""
    vectors = torch.randn(V, C, generator=gen) / C**0.5
    return vectors * torch.linspace(0.3, 5, V)[:, None]


def angle_cases(gen):
    for T, D, start in ((5, 8, 0), (6, 4, 3), (70, 6, 0), (4, 8, 100), (5, 2, 9)):
        yield torch.arange(start, start + T), D


def rotate_cases(gen):
    for B, H, T, D in ((2, 3, 5, 8), (3, 2, 8, 4), (2, 2, 70, 6)):
        yield draw(gen, (B, H, T, D), (T, D // 2))


def score_cases(gen):
    for B, H, T, S, D, i, j in (
        (2, 3, 6, 6, 8, 3, 0),
        (3, 4, 5, 5, 4, 9, 8),
        (2, 3, 4, 7, 6, 3, 0),
    ):
        q, k = draw(gen, (B, H, T, D), (B, H, S, D))
        yield q, k, torch.arange(i, i + T), torch.arange(j, j + S)
    q, k = draw(gen, (2, 2, 40, 6), (2, 2, 40, 6))
    yield q, k, torch.randperm(50, generator=gen)[:40], torch.randperm(50, generator=gen)[:40]


def probability_cases(gen):
    sizes = (4, 9, 0.7, 3), (3, 6, 2.0, 6), (5, 40, 1.0, 1), (2, 12, 0.5, 5)
    for B, V, temperature, top_k in sizes:
        yield *draw(gen, (B, V)), temperature, top_k
    yield torch.randn(3, 7, generator=gen) + 150, 1.5, 4  # whose exp is inf in float32


def cache_cases(gen):
    for B, H, T, P, D in ((2, 3, 5, 0, 4), (3, 2, 1, 6, 5), (2, 4, 4, 3, 6), (2, 2, 3, 40, 7)):
        shape = B, H, T, D
        past = None
        if P:
            past = tuple(draw(gen, (B, H, P, D), (B, H, P, D)))
        yield *draw(gen, shape, shape, shape), past
    yield *draw_overflowing(gen, 3, 2, 4, 5), None


def generate_cases(gen):
    """The first argument, word scores (V, V), stands for the model, see measure_generate."""
    for B, T, V, n in ((3, 4, 7, 6), (2, 1, 9, 12), (4, 6, 5, 3)):
        scores = 40.0 * torch.rand(V, V, generator=gen).argsort(1)  # each draw is certain
        yield scores, torch.randint(V, (B, T), generator=gen), n, 0.5, 3
    for temperature, top_k in ((2.0, 3), (0.5, 4)):
        scores = torch.arange(5.0).expand(5, 5) / 2
        yield scores, torch.randint(5, (9000, 2), generator=gen), 2, temperature, top_k


def vocabulary_cases(gen):
    for n, size in ((40, 30), (90, 25), (50, 9), (60, 7), (70, 12)):
        yield draw_words(gen, n), size


def encode_cases(gen):
    special = ["[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]"]
    for n, n_known, start in ((9, 6, 0), (12, 4, 7), (30, 8, 3)):
        words = draw_words(gen, n)
        known = sorted(set(words))[:n_known]
        order = torch.randperm(len(known), generator=gen).tolist()
        ids = {word: start + i for i, word in enumerate(special + [known[k] for k in order])}
        yield words, ids


def draw_words(gen, n):
    """Return n words of 16, some of them more frequent; two differ in their first letter's case."""
    vocabulary = "We we of the zeal axe run to Run be many few old red ice own".split()
    places = (torch.rand(n, generator=gen) ** 2 * len(vocabulary)).long()
    order = torch.randperm(len(vocabulary), generator=torch.Generator().manual_seed(n)).tolist()
    return [vocabulary[order[place]] for place in places.tolist()]


@dataclass
class Check:
    """How the check calls a function, and what it compares."""

    arguments: str  # their names
    outputs: str  # names of what the function returns; "": no tensors, its measure reads them
    make_cases: Callable  # gen -> the cases; gradients are compared in the first two
    measure: Callable | None = None  # of random results, see course/measures.py

    def cases(self, seed):
        return list(self.make_cases(torch.Generator().manual_seed(seed)))


CHECKS = {
    "pad": Check("sequences", "idx mask", pad_cases),
    "attend": Check("q k v mask bias dropout", "output weights", attend_cases, measure_dropout),
    "hide_future": Check("T S", "bias", future_cases),
    "split_heads": Check("x n_head", "output", split_cases),
    "join_heads": Check("y", "output", join_cases),
    "sinusoids": Check("T n_embd", "table", sinusoid_cases),
    "slopes": Check("n_head", "slopes", slope_cases),
    "causal_bias": Check("n_head T", "bias", causal_cases),
    "encoder_bias": Check("n_head T offset", "bias", encoder_cases),
    "layer_norm": Check("x gain bias eps", "output", norm_cases),
    "block": Check(
        "x norm1 attention norm2 feed_forward dropout", "output", block_cases, measure_block
    ),
    "next_words": Check("ids T", "inputs targets", next_cases),
    "loss": Check("logits targets", "loss", loss_cases),
    "perplexity": Check("batches", "perplexity", perplexity_cases),
    "mask_words": Check("idx vocab_size rate gen", "inputs labels", masking_cases, measure_masking),
    "mean_pool": Check("h mask", "mean", pool_cases),
    "classify": Check("x w1 b1 w2 b2 dropout training", "logits", classify_cases, measure_classify),
    "embed": Check("idx table mask_id", "vectors", embed_cases),
    "logits": Check("h table beta", "logits", logit_cases),
    "angles": Check("positions D", "angles", angle_cases),
    "rotate": Check("x angles", "output", rotate_cases),
    "scores": Check("q k i j", "scores", score_cases),
    "next_probabilities": Check("logits temperature top_k", "p", probability_cases),
    "attend_with_cache": Check("q k v past", "output k v", cache_cases),
    "generate": Check("model ids n temperature top_k gen", "ids", generate_cases, measure_generate),
    "vocabulary": Check("words size", "", vocabulary_cases, measure_vocabulary),
    "encode": Check("words ids", "ids", encode_cases),
}
