"""The encodings of nets/relative.py and the options of rotary positions: each score by itself."""

import math

import pytest
import torch
from helpers import read_weights, tiny_model
from torch import nn

from model import POSITIONS, Config, Decoder, Encoder
from nets.build import ROPE_SCALES, Options
from nets.rotary import ScaledRotary

T, BLOCK, H, D = 24, 12, 2, 8  # texts are longer than block_size, and than 16
ROOT_D = math.sqrt(D)


def clip(x, low, high):
    return max(low, min(high, x))


def shaw(p, q, k, i, j, h, layer):
    a = p.vectors.weight.view(33, H, D)[16 + clip(i - j, -16, 16), h]
    return q[i] @ (k[j] + a) / ROOT_D


def t5_bucket(d, causal):
    """Return the bucket in whole numbers: n/2 * (128 / (n/2))^(m / (n/2)) begins bucket n/2 + m."""
    half = 16 if causal else 8
    far = max(d, 0) if causal else abs(d)
    begun = [m for m in range(half) if far**half >= half**half * (128 // half) ** m]
    return (half + begun[-1] if begun else far) + (16 if d < 0 and not causal else 0)


def t5(p, q, k, i, j, h, layer):
    return q[i] @ k[j] / ROOT_D + p.table.weight[t5_bucket(i - j, p.causal), h]


def deberta(p, q, k, i, j, h, layer):
    r, at = p.norm(p.vectors.weight), slice(h * D, (h + 1) * D)
    (w_q, w_k, _), (b_q, b_k, _) = layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3)
    to_key, to_query = (r[BLOCK + clip(d, -BLOCK, BLOCK - 1)] for d in (i - j, j - i))
    key, query = w_k[at] @ to_key + b_k[at], w_q[at] @ to_query + b_q[at]
    return (q[i] @ k[j] + q[i] @ key + k[j] @ query) / math.sqrt(3 * D)


def kerple(p, q, k, i, j, h, layer):
    r1, r2 = abs(p.r1[h]), abs(p.r2[h])
    return q[i] @ k[j] / ROOT_D - r1 * (1 + r2 * abs(i - j)).log()


def fire(p, q, k, i, j, h, layer):
    c, longest = abs(p.c), max(i, abs(p.stretch.item()) * BLOCK / 4)
    share = (1 + c * (i - j)).log() / (1 + c * longest).log()
    first, _, last = p.net
    hidden = (first.weight[:, 0] * share + first.bias).clamp(min=0)
    return q[i] @ k[j] / ROOT_D + last.weight[h] @ hidden + last.bias[h]


def cope(p, q, k, i, j, h, layer):
    count = (q[i] @ k[j : i + 1].T / ROOT_D).sigmoid().sum().clamp(max=BLOCK - 1).item()
    low, high = p.vectors.weight[math.floor(count)], p.vectors.weight[math.ceil(count)]
    part = count - math.floor(count)
    return q[i] @ (k[j] + (1 - part) * low + part * high) / ROOT_D


def forget(p, q, k, i, j, h, layer):
    gates = [torch.sigmoid(p.w[h] @ k[t] + p.b[h]).log() for t in range(j + 1, i + 1)]
    return q[i] @ k[j] / ROOT_D + sum(gates)


def pope(p, q, k, i, j, h, layer):
    sizes = (1 + q[i].exp()).log() * (1 + k[j].exp()).log()
    delta = p.delta[h].tolist()
    turns = [math.cos((i - j) / 10000 ** (c / D) - delta[c]) for c in range(D)]
    return sizes @ torch.tensor(turns) / ROOT_D


FORMULAS = dict(shaw=shaw, t5=t5, deberta=deberta, kerple=kerple)
FORMULAS |= dict(fire=fire, cope=cope, forget=forget, pope=pope)


def one_layer(body, pos, **options):
    """Return a body that reads a text, its q and k (H, T, D), and its weights (H, T, T)."""
    size = dict(n_layer=1, n_head=H, n_embd=H * D, block_size=BLOCK, init_std=0.5)
    body = tiny_model(body, pos=pos, **size | options).body
    for parameter in body.positions.parameters():
        low = -7 if pos == "pope" else -1
        nn.init.uniform_(parameter, low, 1)
    idx = torch.randint(5, 30, (1, T))
    _, (weights,) = read_weights(body, idx)
    (block,) = body.blocks
    q, k, _ = block.attention.heads(block.norm1(body.embedding(idx)))
    return body, q[0], k[0], weights[0]


@pytest.mark.parametrize("body", [Decoder, Encoder])
@pytest.mark.parametrize("pos", FORMULAS)
@torch.no_grad()
def test_every_score_is_the_formula(pos, body):
    body, q, k, weights = one_layer(body, pos)
    layer = body.blocks[0].attention
    scores = torch.full((H, T, T), -math.inf)
    for h in range(H):
        for i in range(T):
            last = i if body.causal else T - 1
            for j in range(last + 1):
                scores[h, i, j] = FORMULAS[pos](body.positions, q[h], k[h], i, j, h, layer)
    torch.testing.assert_close(weights, scores.softmax(-1), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_every_bucket_of_t5_is_that_of_whole_numbers(causal):
    p = POSITIONS["t5"](Config(), causal)
    expected = [t5_bucket(d, causal) for d in range(-300, 301)]
    assert p.buckets(torch.arange(-300, 301)).tolist() == expected


def angle(config, i, c):
    """Return the angle of pair c at position i."""
    n = round(config.rope_share * D)
    base, s = config.rope_base, config.rope_factor
    if config.rope_scale == "ntk":
        base *= s ** (n / (n - 2))
    speed = base ** (-2 * c / n)
    if config.rope_scale == "linear":
        speed /= s
    if config.rope_scale == "yarn":
        numbers = range(100)
        turns = [config.block_size * base ** (-2 * number / n) / 2 / math.pi for number in numbers]
        first = max([0] + [number for number in numbers if turns[number] >= 32])
        last = min([n - 1] + [number for number in numbers if turns[number] <= 1])
        kept = 1 - clip((c - first) / (last - first), 0, 1)
        speed = kept * speed + (1 - kept) * speed / s
    return i * speed


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("scale", ROPE_SCALES)
@torch.no_grad()
def test_every_angle_is_that_of_the_options(scale, share):
    options = dict(rope_scale=scale, rope_share=share, rope_factor=4.0)
    if share < 1:
        options["rope_base"] = 500.0
    options["block_size"] = 256  # 41 turns and less
    body, q, k, weights = one_layer(Decoder, "rope", **options)
    n = round(share * D)  # channels c and c + n / 2 are the parts of a complex number
    scores = q[..., n:] @ k[..., n:].mT  # (H, T, T)
    q, k = (torch.complex(x[..., : n // 2], x[..., n // 2 : n]) for x in (q, k))
    for i in range(T):
        for j in range(T):
            turns = torch.tensor([angle(body.config, i - j, c) for c in range(n // 2)])
            turned = q[:, i] * torch.polar(torch.ones(n // 2), turns)
            scores[:, i, j] += (turned * k[:, j].conj()).real.sum(-1)
    scores /= ROOT_D
    if scale == "yarn":
        scores *= (0.1 * math.log(4) + 1) ** 2
    expected = (scores + torch.full((T, T), -math.inf).triu(1)).softmax(-1)
    torch.testing.assert_close(weights, expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("block_size, base, share, factor", [
    (64, 10000.0, 1.0, 4.0),  # all pairs turn fewer than 32 times
    (2048, 10000.0, 1.0, 2.0),
    (256, 500.0, 0.5, 8.0),
    (4, 10000.0, 1.0, 4.0),  # none turns once
])  # fmt: skip
def test_yarn_is_that_of_transformers(block_size, base, share, factor):
    transformers = pytest.importorskip("transformers", reason="the extra beyond is not installed")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = dict(rope_type="yarn", factor=factor, rope_theta=base, partial_rotary_factor=share)
    scaling["original_max_position_embeddings"] = block_size
    theirs = transformers.LlamaConfig(head_dim=32, rope_parameters=scaling)
    speeds, growth = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    options = dict(rope_base=base, rope_share=share, rope_scale="yarn", rope_factor=factor)
    shape = dict(n_head=2, n_embd=64, block_size=block_size)
    rotary = ScaledRotary(Options(pos="rope", **options, **shape), causal=True)
    torch.testing.assert_close(rotary.angles(torch.tensor(7)), 7 * speeds)
    q = torch.ones(1, 2, 1, 32)
    turned, _ = rotary.turn(q, q, torch.tensor([0]), torch.tensor([0]))
    torch.testing.assert_close(turned, growth**2 * q)  # they let q and k both grow
