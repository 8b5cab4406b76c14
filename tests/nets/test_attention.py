"""Attention against its formula, and which tokens a token may attend to."""

import inspect
import math
from itertools import product

import pytest
import torch
from helpers import read_weights, tiny_model

from model import POSITIONS, Attention, Decoder, Encoder
from nets.build import Options
from nets.sparse import hash_pairs

MASKS = [
    dict(attn_block=4),
    dict(window=3, attn_block=8),
    dict(window=3, global_tokens=2, random_keys=4),
    dict(attn_block=4, global_tokens=1),
]
ENCODERS = [(pos, "offset") for pos in POSITIONS]
ENCODERS += [("alibi", "symmetric"), ("alibi", "one-sided")]


def tiny(body, pos, **options):
    size = dict(block_size=16, n_ffn=0, init_std=0.5)
    return tiny_model(body, pos=pos, **size | options).body


def padded_batch():
    """Return idx and mask (2, 9) of a long text and a shorter one."""
    idx = torch.randint(5, 30, (2, 9))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    return idx, mask


def random_inputs():
    """Return q (2, 3, 4, 6), k and v (2, 3, 5, 6), and a bias that hides one key of five."""
    q = torch.randn(2, 3, 4, 6)
    k, v = torch.randn(2, 2, 3, 5, 6)
    bias = torch.randn(2, 3, 4, 5)
    bias[:, :, :, 3] = -math.inf
    return q, k, v, bias


def attend_of_docstring():
    """Return the method that the docstring of Attention.attend tells a reader to write."""
    lines = inspect.getdoc(Attention.attend).splitlines()
    code = [line for line in lines if line.startswith("    ")]
    head = ["def attend(self, q, k, v, bias):", "    dropout = 0.0"]
    names = vars(inspect.getmodule(Attention)).copy()
    exec("\n".join(head + code), names)
    return names["attend"]


def test_attend_is_the_formula():
    q, k, v, bias = random_inputs()
    e = (torch.einsum("bhid, bhjd -> bhij", q, k) / math.sqrt(6) + bias).exp()
    weights = e / e.sum(-1, keepdim=True)
    expected = torch.einsum("bhij, bhjd -> bhid", weights, v)
    torch.testing.assert_close(Attention(Options()).attend(q, k, v, bias), expected)


def test_attend_is_the_formula_of_its_docstring():
    q, k, v, bias = random_inputs()
    expected = Attention(Options()).attend(q, k, v, bias)
    torch.testing.assert_close(attend_of_docstring()(None, q, k, v, bias), expected)


@pytest.mark.parametrize("options", [{}, dict(window=3), *MASKS[2:], dict(nope_every=2)])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_the_kernel_the_formula_and_the_weights_give_the_same(pos, body, options, monkeypatch):
    model = tiny(body, pos, **options)
    idx, mask = padded_batch()
    expected = [model(idx), model(idx, mask)]
    measured = [read_weights(model, idx)[0], read_weights(model, idx, mask)[0]]
    torch.testing.assert_close(measured, expected, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(Attention, "attend", attend_of_docstring())
    written_out = [model(idx), model(idx, mask)]
    torch.testing.assert_close(written_out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_a_whole_model_in_bfloat16_attends(pos, alibi, body):
    model = tiny(body, pos, alibi=alibi)
    idx, mask = padded_batch()
    expected = model(idx, mask)
    model = model.to(torch.bfloat16)
    for h in (model(idx, mask), read_weights(model, idx, mask)[0]):
        assert h.dtype == torch.bfloat16
        assert (h.float() - expected).norm() < 0.05 * expected.norm()


# ---------------------------------------------------------------------------- visible tokens


def test_may_attend_by_hand():
    t = torch.arange(4)
    causal = tiny(Decoder, "nope", window=2).may_attend(t, t, None)[0, 0]
    assert causal.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    mask = torch.tensor([[True, True, False, False]])
    padded = tiny(Encoder, "nope").may_attend(t, t, mask)[0, 0]
    # Padding sees itself: no softmax is empty
    assert padded.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    last = tiny(Decoder, "nope").may_attend(t[2:], t, None)[0, 0]  # as a reader with a cache asks
    assert last.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("options", MASKS)
def test_local_attention_is_that_of_a_loop(options, body):
    model = tiny(body, "nope", block_size=20, **options)
    config = model.config
    t = torch.arange(20)
    may_attend = model.may_attend(t, t, None)[0, 0]
    is_random = hash_pairs(t[:, None], t) % 20 < config.random_keys
    assert abs(is_random.float().mean() - config.random_keys / 20) < 0.05
    for i, j in product(range(20), range(20)):
        seen = abs(i - j) < (config.window or 20)
        seen &= not config.attn_block or i // config.attn_block == j // config.attn_block
        seen |= i < config.global_tokens or j < config.global_tokens or bool(is_random[i, j])
        seen &= j <= i or not body.causal
        assert may_attend[i, j] == seen, (i, j)


def test_log_scale_multiplies_scores_by_s_log_t():
    plain = tiny(Decoder, "nope", n_layer=1)
    scaled = tiny(Decoder, "nope", n_layer=1, log_scale=True)
    s = scaled.blocks[0].attention.log_scale
    torch.testing.assert_close(s * math.log(16), torch.ones(2))  # block_size
    s.data = torch.tensor([0.5, 2.0])
    idx = torch.randint(5, 30, (1, 9))
    _, (plain_weights,) = read_weights(plain, idx)
    _, (scaled_weights,) = read_weights(scaled, idx)
    for h, t in product(range(2), range(1, 10)):
        scores = s[h].item() * math.log(t) * plain_weights[0, h, t - 1, :t].log()
        torch.testing.assert_close(scaled_weights[0, h, t - 1, :t], scores.softmax(-1))


def test_every_nth_block_attends_without_positions():
    model = tiny(Decoder, "alibi", n_layer=3, nope_every=2)
    for block in model.blocks:  # with q and k zero, the scores are the bias alone
        torch.nn.init.zeros_(block.attention.qkv.weight)
    _, (first, second, third) = read_weights(model, torch.randint(5, 30, (1, 9)))
    torch.testing.assert_close(first, third)
    equal = torch.ones(9, 9).tril() / torch.arange(1, 10)[:, None]
    torch.testing.assert_close(second, equal.expand(1, 2, -1, -1))
    assert (first - second).abs().max() > 0.01


def read(body, idx):
    return body(idx)


def read_by_weights(body, idx):
    return read_weights(body, idx)[0]


@pytest.mark.parametrize("read", [read, read_by_weights])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("pos", POSITIONS)
def test_a_decoder_does_not_see_the_future(pos, window, read):
    model = tiny(Decoder, pos, window=window)
    idx = torch.randint(5, 30, (1, 10))
    h = read(model, idx)
    for cut in (1, 4, 9):
        other = idx.clone()
        other[:, cut:] = (idx[:, cut:] - 5 + 7) % 25 + 5  # replace every later token
        other_h = read(model, other)
        torch.testing.assert_close(other_h[:, :cut], h[:, :cut], atol=1e-6, rtol=0)
        assert (other_h[:, cut] - h[:, cut]).abs().max() > 1e-3  # a token sees itself


@pytest.mark.parametrize("at", [[0] * 10, [0, 1, 2, 3, 0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2] * 2])
@pytest.mark.parametrize("pos", POSITIONS)
def test_what_is_later_in_a_text_is_hidden_also_where_positions_repeat(pos, at):
    model = tiny(Decoder, pos)
    at = torch.tensor(at)
    idx = torch.randint(5, 30, (1, 10))
    other = idx.clone()
    other[:, 5:] = (idx[:, 5:] - 5 + 7) % 25 + 5
    h, weights = read_weights(model, idx, at=at)
    torch.testing.assert_close(model(idx, at=at), h)
    torch.testing.assert_close(model(other, at=at)[:, :5], h[:, :5], atol=1e-5, rtol=0)
    for layer in weights:
        assert torch.equal(layer[0, 0] > 0, torch.ones(10, 10).tril() > 0)


@pytest.mark.parametrize("body, window", [(Decoder, 0), (Decoder, 3), (Encoder, 3)])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_a_window_hides_exactly_the_tokens_farther_away(pos, alibi, body, window):
    model = tiny(body, pos, window=window, alibi=alibi)
    _, maps = read_weights(model, torch.randint(5, 30, (1, 8)))
    back = torch.arange(8)[:, None] - torch.arange(8)  # how far the key is before the query
    first = second = torch.ones(8, 8, dtype=torch.bool)  # what each head sees
    if window:
        first = second = back.abs() < window
    if body.causal:
        first = second = first & (back >= 0)
    elif alibi == "one-sided":  # one head sees the past, the other the future
        first, second = first.tril(), first.triu()
    for weights in maps:
        assert torch.equal(weights[0, 0] > 0, first)
        assert torch.equal(weights[0, 1] > 0, second)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos, alibi", ENCODERS)
def test_padding_changes_nothing_and_gives_no_nan(pos, alibi, body, window, norm_first):
    model = tiny(body, pos, alibi=alibi, window=window, norm_first=norm_first)
    idx = torch.randint(5, 30, (3, 5))
    alone = model(idx)
    for n_padding in (1, 11):
        padding = torch.zeros(3, n_padding, dtype=torch.long)
        padded = torch.cat([idx, padding], dim=1)
        mask = (torch.arange(5 + n_padding) < 5).expand(3, -1)
        h, maps = read_weights(model, padded, mask)
        for states in (h, model(padded, mask)):
            assert states.isfinite().all()
            torch.testing.assert_close(states[:, :5], alone, atol=1e-5, rtol=1e-5)
        assert all(weights.isfinite().all() for weights in maps)


def test_gradients_stay_finite_with_padding_and_one_sided_heads():
    model = tiny(Encoder, "alibi", alibi="one-sided", window=2)
    mask = torch.arange(7) < torch.tensor([[7], [1]])
    model(torch.randint(5, 30, (2, 7)), mask)[mask].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# ---------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("kind", ["dropout", "attn_dropout"])
def test_dropout_is_on_in_training_and_off_in_evaluation(kind):
    model = tiny(Encoder, "learned", **{kind: 0.5})
    idx = torch.randint(5, 30, (2, 9))
    plain = tiny(Encoder, "learned")(idx)
    torch.testing.assert_close(model(idx), plain)
    assert (model.train()(idx) - plain).abs().max() > 1e-2
