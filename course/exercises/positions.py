"""Exercises 4 and 5: sinusoids, and ALiBi in decoders and encoders."""

import math

import torch

from model import alibi_bias, alibi_slopes, sinusoids


def waves(T, n_embd, double=2):
    angles = torch.arange(T)[:, None] * 10000.0 ** (-double * torch.arange(n_embd // 2) / n_embd)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def causal_bias(n_head, T):
    return alibi_bias(n_head, T, "causal")


def encoder_bias(n_head, T, offset):
    return alibi_bias(n_head, T, "offset" if offset else "symmetric")


def distance(T):
    """Return i - j (T, T): positive towards the past."""
    return torch.arange(T)[:, None] - torch.arange(T)


def bias(n_head, penalty, m=None):
    return -(alibi_slopes(n_head) if m is None else m)[:, None, None] * penalty


def hide(bias, first=1):
    """Hide the keys that are `first` or more tokens after the query."""
    return bias.masked_fill(distance(bias.size(-1)) <= -first, -math.inf)


def half(T, offset, where):
    return 0.5 * where(distance(T)) if offset else 0.0


def further_slopes(n, which):
    """Return the slopes of the power of two below n, then some of the next power."""
    power = 2 ** int(math.log2(n))
    return torch.cat([alibi_slopes(power), alibi_slopes(2 * power)[which][: n - power]])


WAVES = (
    "the sines come first and then the cosines. They alternate: sin, cos, sin, cos, ...",
    lambda T, C: torch.cat([waves(T, C)[:, 0::2], waves(T, C)[:, 1::2]], 1),
    "sines and cosines are exchanged: channel 0 is sin(t).",
    lambda T, C: waves(T, C).unflatten(1, (-1, 2)).flip(2).flatten(1),
    "the exponent is i / C. With i counting pairs of channels it is 2i / C.",
    lambda T, C: waves(T, C, double=1),
    "the exponent is 4i / C. If i is counted in steps of two, it is the 2i of the formula.",
    lambda T, C: waves(T, C, double=4),
    "the sign of the exponent is wrong: t is divided by 10000^(2i / C).",
    lambda T, C: waves(T, C, double=-2),
    "the cosines and sines differ in frequency. A pair shares one: the exponent is 2i / C.",
    lambda T, C: torch.where(torch.arange(C) % 2 == 0, waves(T, C), waves(T, 2 * C)[:, 1::2]),
    "the positions are counted from 1. The first row is t = 0: sin 0 = 0, cos 0 = 1.",
    lambda T, C: waves(T + 1, C)[1:],
)
SLOPES = (
    "the first slope is 1. The exponents are counted from k = 1, so it is 2^(-8/n).",
    lambda n: alibi_slopes(n) * 2 ** (8 / 2 ** int(math.log2(n))),
    "if n is not a power of two, the further slopes are the second, fourth, ... of the next "
    "power, which are those you have already. Take its first, third, ...",
    lambda n: further_slopes(n, slice(1, None, 2)),
    "if n is not a power of two, the further slopes are the first ones of the next power. Take "
    "every second one: its first, third, ...",
    lambda n: further_slopes(n, slice(None)),
    "if n is not a power of two, the slopes are the first n of the next power. Take all of the "
    "power below, then every second one of the next.",
    lambda n: alibi_slopes(1 << (n - 1).bit_length())[:n],
    "the slopes grow: the exponents need a minus, 2^(-8k/n).",
    lambda n: 1 / alibi_slopes(n),
    "this is right only if n is a power of two. Else take the slopes of the power below, then "
    "every second slope of the next power.",
    lambda n: 2 ** (-8 * torch.arange(1, n + 1) / n),
    "the slopes are 2^-k for every n. The exponents are -8k/n, so that the last slope is 2^-8.",
    lambda n: 2.0 ** -torch.arange(1, n + 1),
)
CAUSAL = (
    "your bias grows with distance: the sign is flipped. Nearby words should be penalised least.",
    lambda n, T: hide(bias(n, -distance(T))),
    "the future is visible, and even rewarded: j > i needs -inf.",
    lambda n, T: bias(n, distance(T)),
    "the future is visible: its bias is 0 (torch.tril?), which hides nothing. j > i needs -inf.",
    lambda n, T: bias(n, distance(T)).tril(),
    "0 * -inf is NaN. Fill the future with masked_fill(j > i, -inf) instead of multiplying.",
    lambda n, T: bias(n, distance(T)) + torch.ones(T, T).triu(1) * -math.inf,
    "the future is visible at a penalty: j > i needs -inf, not -m |i - j|.",
    lambda n, T: bias(n, distance(T).abs()),
    "the next word is visible: an off-by-one hides the future only from j = i + 2 on.",
    lambda n, T: hide(bias(n, distance(T)), 2),
    "no word sees itself, and the first row is all -inf. Hide j > i, not j >= i.",
    lambda n, T: hide(bias(n, distance(T)), 0),
    "the past is hidden instead of the future: the row i is the query, the column j the key.",
    lambda n, T: hide(bias(n, distance(T))).mT,
    "the bias is m * j. The softmax ignores what is constant in a row, so a model would work, but "
    "the exercise asks for -m (i - j), which is 0 on the diagonal.",
    lambda n, T: hide(bias(n, -torch.arange(T).expand(T, T))),
    "all heads have the same slope. Head h has slopes(n_head)[h].",
    lambda n, T: hide(bias(n, distance(T), alibi_slopes(n)[:1].expand(n))),
)
ENCODER = (
    "the distance is signed, so words on one side are rewarded. An encoder needs |i - j|.",
    lambda n, T, offset: bias(n, distance(T) - half(T, offset, lambda d: d < 0)),
    "your bias grows with distance: the sign is flipped. Nearby words should be penalised least.",
    lambda n, T, offset: -encoder_bias(n, T, offset),
    "the future is hidden as in a decoder. An encoder sees both sides.",
    lambda n, T, offset: hide(encoder_bias(n, T, offset)),
    "the offset is missing: if asked for, the distance of j > i is |i - j| - 0.5.",
    lambda n, T, offset: encoder_bias(n, T, False),
    "the offset is on the wrong side: keys after the query (j > i) are half a step nearer.",
    lambda n, T, offset: bias(n, distance(T).abs() - half(T, offset, lambda d: d > 0)),
    "the offset is added. Keys after the query are nearer: the distance is |i - j| - 0.5.",
    lambda n, T, offset: bias(n, distance(T).abs() + half(T, offset, lambda d: d < 0)),
    "the offset is on both sides, so left and right are alike again. It is for j > i only.",
    lambda n, T, offset: bias(n, distance(T).abs() - half(T, offset, lambda d: d != 0)),
    "the offset is everywhere, which the softmax ignores. It is for j > i only.",
    lambda n, T, offset: bias(n, distance(T).abs() - half(T, offset, lambda d: d == d)),
    "the offset is there when it is not asked for.",
    lambda n, T, offset: encoder_bias(n, T, True),
    "all heads have the same slope. Head h has slopes(n_head)[h].",
    lambda n, T, offset: encoder_bias(n, T, offset)[:1].expand(n, T, T),
    "the offset of 0.5 is not multiplied by the slope: it is -m (|i - j| - 0.5).",
    lambda n, T, offset: encoder_bias(n, T, False) + half(T, offset, lambda d: d < 0),
)
SINUSOIDS = {"sinusoids": (sinusoids, lambda gen: [(5, 8), (20, 6), (3, 2)], ("table",), WAVES)}
LENGTHS = [(2, 5, False), (4, 6, True), (8, 4, False), (2, 7, True)]
ALIBI = {
    "slopes": (alibi_slopes, lambda gen: [(n,) for n in (8, 2, 1, 6, 12)], ("slopes",), SLOPES),
    "causal_bias": (causal_bias, lambda gen: [(2, 5), (4, 7), (8, 4)], ("bias",), CAUSAL),
    "encoder_bias": (encoder_bias, lambda gen: LENGTHS, ("bias",), ENCODER),
}
