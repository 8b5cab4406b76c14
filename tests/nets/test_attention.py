"""Attention against its formula, and which tokens a token may attend to."""

import math
from itertools import product

import pytest
import torch
from helpers import tiny_model
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from model import POSITIONS, ALiBi, Config, Decoder, Encoder
from nets import attention
from nets.attention import LONG, attend, fused, hash_pairs, may_attend

MASKS = [dict(attn_block=4), dict(window=3, attn_block=8)]
MASKS += [dict(window=3, global_tokens=2, random_keys=4), dict(attn_block=4, global_tokens=1)]
ENCODERS = [(pos, "offset") for pos in POSITIONS] + [("alibi", "symmetric"), ("alibi", "one-sided")]


def tiny(body, pos, **more):
    return tiny_model(body, pos=pos, block_size=16, n_ffn=0, init_std=0.5, **more).body


def test_attend_is_the_formula():
    q, k, v = torch.randn(2, 3, 4, 6), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 5, 6)
    bias = torch.randn(2, 3, 4, 5)
    bias[:, :, :, 3] = -math.inf
    e = (torch.einsum("bhid, bhjd -> bhij", q, k) / math.sqrt(6) + bias).exp()
    expected = e / e.sum(-1, keepdim=True)
    y, weights = attend(q, k, v, bias)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(y, torch.einsum("bhij, bhjd -> bhid", expected, v))


@pytest.mark.parametrize("more", [{}, dict(window=3), *MASKS[2:], dict(nope_every=2)])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_fused_and_explicit_attention_agree(pos, body, more):
    model, idx = tiny(body, pos, **more), torch.randint(5, 30, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    for m in (None, mask):
        torch.testing.assert_close(model(idx, m), model(idx, m, need_weights=True)[0])


def test_long_causal_rows_computed_in_slices_are_the_same():
    T = 2 * LONG + 30
    q, k, v = torch.randn(3, 1, 2, T, 8)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    bias = (-0.1 * distance).masked_fill(distance < 0, -math.inf)[None, None]
    expected, _ = attend(q, k, v, bias)
    torch.testing.assert_close(fused(q, k, v, bias, 0.0, causal=True), expected)


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_a_whole_model_in_bfloat16_attends(pos, alibi, body):
    model, idx = tiny(body, pos, alibi=alibi), torch.randint(5, 30, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    expected = model(idx, mask)
    model = model.to(torch.bfloat16)
    for h in (model(idx, mask), model(idx, mask, need_weights=True)[0]):
        assert h.dtype == torch.bfloat16
        assert (h.float() - expected).norm() < 0.05 * expected.norm()


# ---------------------------------------------------------------------------- visible tokens


def test_may_attend_by_hand():
    t = torch.arange(4)
    causal = may_attend(t, t, Config(window=2), causal=True)[0, 0]
    assert causal.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    mask = torch.tensor([[True, True, False, False]])
    padded = may_attend(t, t, Config(), mask=mask)[0, 0]  # padding sees itself: no empty softmax
    assert padded.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    last = may_attend(t[2:], t, Config(), causal=True)[0, 0]  # as a reader with a cache asks
    assert last.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("more", MASKS)
def test_local_attention_is_that_of_a_loop(more, causal):
    config, t = Config(block_size=20, **more), torch.arange(20)
    dice = hash_pairs(t[:, None], t) % 20 < config.random_keys
    assert abs(dice.float().mean() - config.random_keys / 20) < 0.05
    for i, j in product(range(20), range(20)):
        seen = abs(i - j) < (config.window or 20)
        seen &= not config.attn_block or i // config.attn_block == j // config.attn_block
        seen |= i < config.global_tokens or j < config.global_tokens or bool(dice[i, j])
        seen &= j <= i or not causal
        assert may_attend(t, t, config, causal)[0, 0, i, j] == seen, (i, j)


def test_log_scale_multiplies_scores_by_s_log_t():
    plain, scaled = (tiny(Decoder, "nope", n_layer=1, log_scale=on) for on in (False, True))
    s = scaled.blocks[0].attention.log_scale
    torch.testing.assert_close(s * math.log(16), torch.ones(2))  # block_size
    s.data = torch.tensor([0.5, 2.0])
    idx = torch.randint(5, 30, (1, 9))
    (expected, found) = (model(idx, need_weights=True)[1][0][0] for model in (plain, scaled))
    for h, t in product(range(2), range(1, 10)):
        scores = s[h].item() * math.log(t) * expected[h, t - 1, :t].log()
        torch.testing.assert_close(found[h, t - 1, :t], scores.softmax(-1))


def test_every_nth_block_attends_without_positions():
    model = tiny(Decoder, "alibi", n_layer=3, nope_every=2)
    for block in model.blocks:  # with q and k zero, the scores are the bias alone
        torch.nn.init.zeros_(block.attention.qkv.weight)
    _, (first, second, third) = model(torch.randint(5, 30, (1, 9)), need_weights=True)
    torch.testing.assert_close(first, third)
    equal = torch.ones(9, 9).tril() / torch.arange(1, 10)[:, None]
    torch.testing.assert_close(second, equal.expand(1, 2, -1, -1))
    assert (first - second).abs().max() > 0.01


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
    if alibi == "one-sided" and body is Encoder:  # one head sees the past, the other the future
        one, two = one.tril(), two.triu()
    for weights in maps:
        assert torch.equal(weights[0, 0] > 0, one) and torch.equal(weights[0, 1] > 0, two)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_padding_changes_nothing_and_gives_no_nan(pos, alibi, body, window, norm_first):
    model = tiny(body, pos, alibi=alibi, window=window, norm_first=norm_first)
    idx = torch.randint(5, 30, (3, 5))
    alone = model(idx)
    for more in (1, 11):
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


# ---------------------------------------------------------------------------- GPU kernels, dropout


@pytest.mark.parametrize("form", ("causal", *ALiBi.FORMS))
def test_the_formula_for_a_gpus_kernel_is_the_bias(form):
    body = Decoder if form == "causal" else Encoder
    positions = tiny(body, "alibi", n_head=4, alibi=form if body is Encoder else "offset").positions
    t, score = torch.arange(6), positions.flex()
    bias = positions.bias(None, None, t, t)[0]  # (H, T, T)
    for h in range(4):
        got = torch.stack([torch.stack([score(torch.zeros(()), 0, h, i, j) for j in t]) for i in t])
        torch.testing.assert_close(got, bias[h])


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, window", [("alibi", 0), ("alibi", 5), ("rope", 5), ("learned", 0)])
@torch.no_grad()
def test_a_gpus_kernel_gives_the_states_of_the_table(pos, window, body, monkeypatch):
    model = tiny(body, pos, window=window, n_embd=32)
    idx, mask = torch.randint(5, 30, (2, 14)), torch.arange(14) < torch.tensor([[14], [6]])
    expected = [model(idx), model(idx, mask)]
    used = []
    kernels = (
        (lambda *args, **more: used.append(1) or flex_attention(*args, **more)),
        create_block_mask,
    )
    monkeypatch.setattr(attention, "compiled", lambda device: kernels)
    monkeypatch.setattr(attention, "LONG", 8)
    attention.blocks_to_compute.cache_clear()
    torch.testing.assert_close([model(idx), model(idx, mask)], expected)
    assert bool(used) == (pos == "alibi" or window > 0)
    attention.blocks_to_compute.cache_clear()


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
