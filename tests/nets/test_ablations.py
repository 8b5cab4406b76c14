"""Blocks without residuals, norms or scaling, and heads with a sink, against their formulas."""

import pytest
import torch
from helpers import call, read_weights, succeed, tiny_model
from torch import nn

from model import Decoder, Encoder
from nets.build import Options, build_body, build_model

IDX = torch.tensor([[3, 11, 12, 13, 9, 11], [3, 7, 9, 11, 14, 12]])


@pytest.mark.parametrize("norm_first", [True, False])
def test_without_residuals_a_sublayer_replaces_its_input(norm_first):
    body = tiny_model(Decoder, residual=False, norm_first=norm_first).body
    block = body.blocks[0]
    x, where = body.start(IDX)
    if norm_first:
        y = block.attention(block.norm1(x), where)
        expected = block.feed_forward(block.norm2(y))
    else:
        y = block.norm1(block.attention(x, where))
        expected = block.norm2(block.feed_forward(y))
    torch.testing.assert_close(block(x, where), expected)


@pytest.mark.parametrize("norm_first", [True, False])
def test_without_norms_no_layer_normalises(norm_first):
    model = tiny_model(Encoder, norm="none", norm_first=norm_first)
    assert not [m for m in model.body.modules() if isinstance(m, nn.LayerNorm)]
    x, where = model.body.start(IDX)
    block = model.body.blocks[0]
    y = x + block.attention(x, where)
    torch.testing.assert_close(block(x, where), y + block.feed_forward(y))


@pytest.mark.parametrize("pos", ["learned", "alibi", "rope"])
def test_without_scale_scores_are_the_products_themselves(pos):
    body = tiny_model(Decoder, pos=pos, scale=False).body
    _, layers = read_weights(body, IDX)
    attention = body.blocks[0].attention
    x, where = body.start(IDX)
    q, k, _ = attention.heads(body.blocks[0].norm1(x))
    q, k = where.positions.turn(q, k, where.i, where.j)
    expected = (q @ k.mT + where.bias).softmax(-1)
    torch.testing.assert_close(layers[0], expected, atol=1e-5, rtol=1e-4)


def test_a_sink_takes_part_in_the_sum_of_the_softmax():
    body = tiny_model(Decoder, pos="alibi", sinks=True).body
    attention = body.blocks[0].attention
    attention.sink.data = torch.tensor([0.7, -1.2])
    _, layers = read_weights(body, IDX)
    x, where = body.start(IDX)
    q, k, v = attention.heads(body.blocks[0].norm1(x))
    scores = q @ k.mT / q.size(-1) ** 0.5 + where.bias  # (B, H, T, S)
    powers = scores.exp()
    rest = attention.sink.exp().view(1, 2, 1, 1)
    expected = powers / (powers.sum(-1, keepdim=True) + rest)
    torch.testing.assert_close(layers[0], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(attention.attend(q, k, v, where.bias), expected @ v)


def test_a_gpu_and_long_blocks_keep_the_table_that_sinks_need():
    options = Options(sinks=True, block_size=600, pos="nope", vocab_size=30)
    body = build_body(options, causal=True)
    assert torch.is_tensor(body.start(IDX)[1].bias)


def test_all_parts_taken_away_train_and_pass_the_checks(tmp_path):
    words = "--sinks --no-residual --norm none --no-scale --data copy --length 3 --steps 4"
    succeed(call("train_lm", *words.split(), n_embd=16, out=tmp_path / "run"))
    outcome = succeed(call("attention_maps", tmp_path / "run", text="a b ="))
    assert "at most 1" in outcome.out


def test_each_kind_of_model_takes_the_options():
    options = Options(residual=False, norm="none", scale=False, sinks=True, vocab_size=30)
    for kind in ("lm", "mlm", "seq2seq"):
        model = build_model(kind, options).eval()
        extra = {"source": IDX} if kind == "seq2seq" else {}
        assert model(IDX, **extra).isfinite().all()
