"""Attention against its formula, and which tokens a token may attend to."""

import math

import pytest
import torch
from helpers import tiny_model

from model import POSITIONS, Decoder, Encoder, attend

ENCODERS = [(pos, "offset") for pos in POSITIONS] + [("alibi", "symmetric"), ("alibi", "one-sided")]


def tiny(body, pos, **more):
    return tiny_model(body, pos=pos, block_size=16, n_ffn=0, init_std=0.5, **more).body


# ---------------------------------------------------------------------------- the formula


def test_attend_is_the_formula():
    q, k, v = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6)
    bias = torch.randn(2, 3, 4, 5)
    bias[:, :, :, 3] = -math.inf
    e = (torch.einsum("bhid, bhjd -> bhij", q, k) / math.sqrt(6) + bias).exp()
    expected = e / e.sum(-1, keepdim=True)
    y, weights = attend(q, k, v, bias)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(y, torch.einsum("bhij, bhjd -> bhid", expected, v))


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_fused_and_explicit_attention_agree(pos, body, window):
    model, idx = tiny(body, pos, window=window), torch.randint(5, 30, (2, 9))
    mask = None if body is Decoder else torch.arange(9) < torch.tensor([[9], [6]])
    torch.testing.assert_close(model(idx, mask), model(idx, mask, need_weights=True)[0])


@pytest.mark.parametrize("mask", [None, torch.arange(9) < torch.tensor([[9], [6]])])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_a_whole_model_in_bfloat16_attends(pos, alibi, body, mask):
    model, idx = tiny(body, pos, alibi=alibi), torch.randint(5, 30, (2, 9))
    expected = model(idx, mask)
    model = model.to(torch.bfloat16)
    fused, (written_out, _) = model(idx, mask), model(idx, mask, need_weights=True)
    for h in (fused, written_out):
        assert h.dtype == torch.bfloat16
        assert (h.float() - expected).norm() < 0.05 * expected.norm()


# ---------------------------------------------------------------------------- visible tokens


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pos", POSITIONS)
def test_a_decoder_does_not_see_the_future(pos, window, need_weights):
    model, idx = tiny(Decoder, pos, window=window), torch.randint(5, 30, (1, 10))

    def states(idx):
        return model(idx, need_weights=True)[0] if need_weights else model(idx)

    for cut in (1, 4, 9):
        other = idx.clone()
        other[:, cut:] = (idx[:, cut:] - 5 + 7) % 25 + 5  # replace every later token
        torch.testing.assert_close(states(other)[:, :cut], states(idx)[:, :cut], atol=1e-6, rtol=0)
        changed = (states(other)[:, cut] - states(idx)[:, cut]).abs().max()
        assert changed > 1e-3  # a token sees itself


@pytest.mark.parametrize("body, window", [(Decoder, 0), (Decoder, 3), (Encoder, 3)])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_a_window_hides_exactly_the_tokens_farther_away(pos, alibi, body, window):
    model = tiny(body, pos, window=window, alibi=alibi)
    _, maps = model(torch.randint(5, 30, (1, 8)), need_weights=True)
    away = torch.arange(8)[:, None] - torch.arange(8)  # how far the key is behind the query
    one = two = (away.abs() < (window or 8)) & (away >= (0 if body is Decoder else -8))
    if alibi == "one-sided":  # the first head sees the past, the second the future
        one, two = one.tril(), two if body is Decoder else two.triu()
    for weights in maps:
        assert torch.equal(weights[0, 0] > 0, one) and torch.equal(weights[0, 1] > 0, two)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_padding_changes_nothing_and_gives_no_nan(pos, alibi, window, norm_first):
    model = tiny(Encoder, pos, alibi=alibi, window=window, norm_first=norm_first)
    idx = torch.randint(5, 30, (3, 5))
    alone = model(idx)
    for more in (1, 4, 11):
        padded = torch.cat([idx, torch.zeros(3, more, dtype=torch.long)], dim=1)
        mask = (torch.arange(5 + more) < 5).expand(3, -1)
        h, maps = model(padded, mask, need_weights=True)
        for got in (h, model(padded, mask)):
            assert got.isfinite().all()
            torch.testing.assert_close(got[:, :5], alone, atol=1e-5, rtol=1e-5)
        assert all(weights.isfinite().all() for weights in maps)


def test_gradients_stay_finite_with_padding_and_one_sided_heads():
    model = tiny(Encoder, "alibi", alibi="one-sided", window=2)
    mask = torch.arange(7) < torch.tensor([[7], [1]])
    model(torch.randint(5, 30, (2, 7)), mask)[mask].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# ---------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("which", ["dropout", "attn_dropout"])
def test_dropout_is_on_in_training_and_off_in_evaluation(which):
    model, idx = tiny(Encoder, "learned", **{which: 0.5}), torch.randint(5, 30, (2, 9))
    plain = tiny(Encoder, "learned")(idx)
    torch.testing.assert_close(model(idx), plain)
    assert (model.train()(idx) - plain).abs().max() > 1e-2


def test_attention_weights_are_shown_before_dropout():
    model = tiny(Encoder, "learned", attn_dropout=0.5).train()
    _, maps = model(torch.randint(5, 30, (1, 9)), need_weights=True)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(1, 2, 9))
