"""Position encodings against their formulas, and their effect on a model."""

import math

import pytest
import torch
from helpers import tiny_model
from torch import nn

from model import POSITIONS, ALiBi, Config, Decoder, Encoder, NoPE, alibi_slopes, sinusoids
from nets.cached import CachedReader

FORMS = ("causal", *ALiBi.FORMS)
LOG2_SLOPES = {  # exponents of two, as the authors' code gives them
    1: [-8],
    2: [-4, -8],
    4: [-2, -4, -6, -8],
    6: [-2, -4, -6, -8, -1, -3],
    8: [-1, -2, -3, -4, -5, -6, -7, -8],
    12: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5],
}


def tiny(pos, body=Encoder, **more):
    return tiny_model(body, pos=pos, n_ffn=0, init_std=0.5, n_head=4, **more).body


def alibi(form, n_head, T):
    config = Config(n_head=n_head, n_embd=24, alibi="offset" if form == "causal" else form)
    t = torch.arange(T)
    return ALiBi(config, causal=form == "causal").bias(None, None, t, t)[0]


@pytest.mark.parametrize("C", [2, 6, 16])
def test_every_entry_of_the_sinusoids_is_the_formula(C):
    table = sinusoids(torch.arange(40), C)
    for t in range(40):
        for i in range(0, C, 2):
            angle = t / 10000 ** (i / C)
            assert table[t, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[t, i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_sinusoids_meet_words_scaled_by_the_root_of_the_width():
    model, idx = tiny("sinusoidal"), torch.tensor([[9, 4, 11]])
    _, (x, *_) = model(idx, need_states=True)
    expected = 4.0 * model.embedding.weight[idx] + sinusoids(torch.arange(3), 16)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("n_head", LOG2_SLOPES)
def test_slopes_are_those_of_the_authors(n_head):
    assert alibi_slopes(n_head).log2().tolist() == pytest.approx(LOG2_SLOPES[n_head])


def bias_by_entry(form, h, n_head, i, j):
    """Return what head h adds to the score of query i and key j, without the causal mask."""
    if form == "one-sided":
        sees = j <= i if h < n_head // 2 else j >= i
        m = 2 ** LOG2_SLOPES[n_head // 2][h % (n_head // 2)]
        return -m * abs(i - j) if sees else -math.inf
    m = 2 ** LOG2_SLOPES[n_head][h]
    return -m * (abs(i - j) - (0.5 if form == "offset" and j > i else 0))


@pytest.mark.parametrize("n_head", [2, 4, 8, 12])
@pytest.mark.parametrize("form", FORMS)
def test_every_entry_of_the_bias_is_the_formula(form, n_head):
    T = 6
    expected = [
        [[bias_by_entry(form, h, n_head, i, j) for j in range(T)] for i in range(T)]
        for h in range(n_head)
    ]
    torch.testing.assert_close(alibi(form, n_head, T), torch.tensor(expected))


@pytest.mark.parametrize("form", FORMS)
def test_alibi_enters_every_layer_unscaled_before_the_softmax(form):
    body, T = Decoder if form == "causal" else Encoder, 9
    model = tiny("alibi", body, alibi="offset" if form == "causal" else form)
    for block in model.blocks:  # with q and k zero, the scores are the bias alone
        nn.init.zeros_(block.attention.qkv.weight)
    _, maps = model(torch.randint(5, 30, (1, T)), need_weights=True)
    scores = alibi(form, 4, T)
    if form == "causal":
        scores = scores + torch.full((T, T), -math.inf).triu(1)
    for weights in maps:
        torch.testing.assert_close(weights[0], scores.softmax(-1))


# ---------------------------------------------------------------------------- every encoding


@pytest.mark.parametrize("pos", POSITIONS)
def test_only_nope_ignores_the_order_of_an_encoders_input(pos):
    model, idx = tiny(pos), torch.randperm(25)[None, :9] + 5
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    difference = (model(idx)[:, order] - model(idx[:, order])).abs().max().item()
    assert difference < 1e-5 if pos == "nope" else difference > 1e-2


@pytest.mark.parametrize("pos", POSITIONS)
def test_an_encoding_that_ends_does_so_at_the_block_size(pos):
    model, idx = tiny(pos, Decoder), torch.randint(5, 30, (1, 13))  # one more than block_size
    assert model(idx[:, :12]).shape == (1, 12, 16)
    if POSITIONS[pos].ends:
        with pytest.raises(ValueError, match="block_size=12, got 13"):
            model(idx)
    else:
        assert model(idx).isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_rotary_positions_multiply_pairs_by_complex_numbers(shape):
    """Queries and keys have positions of their own, and a cache has fewer queries than keys."""
    (q, k), (i, j) = torch.randn(2, 3, 2, 5, 16), torch.randint(40, (2, *shape))
    rotary = POSITIONS["rope"](Config(n_embd=32, n_head=2), causal=True)
    pairs = rotary.turn(q, k, i, j), rotary.turn(q[:, :, -1:], k, i[..., -1:], j)
    for n, x, at in (0, q, i), (1, k, j):
        angles = at.view(-1, 1, 5, 1) * 10000 ** (-torch.arange(8) / 8)  # (1 or 3, 1, T, D / 2)
        z = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angles)
        expected = torch.cat([z.real, z.imag], dim=-1)
        for turned in pairs:
            torch.testing.assert_close(turned[n], expected[:, :, -turned[n].size(2) :])


@pytest.mark.parametrize("pos", ["rope", "learned", "alibi"])
@torch.no_grad()
def test_random_positions_are_sorted_in_training_and_spread_in_evaluation(pos):
    model, idx = tiny(pos, Decoder, random_positions=40), torch.randint(5, 30, (2, 9))
    torch.manual_seed(3)
    found = model.train()(idx)
    torch.manual_seed(3)
    torch.testing.assert_close(found, model(idx, at=torch.randperm(40)[:9].sort().values))
    expected = model.eval()(idx, at=torch.tensor([0, 4, 8, 13, 17, 22, 26, 31, 35]))  # 40 t / 9
    torch.testing.assert_close(model(idx), expected)
    padded, mask = torch.cat([idx, idx], dim=1), (torch.arange(18) < 9).expand(2, -1)
    torch.testing.assert_close(model(padded, mask)[:, :9], expected)
    reader = CachedReader(model)
    reader.read(idx[:, :4])
    torch.testing.assert_close(reader.read(idx[:, 4:]), expected[:, 4:])


@pytest.mark.parametrize("pos", POSITIONS)
def test_every_trained_part_of_an_encoding_learns(pos):
    model = tiny_model(Decoder, pos=pos, log_scale=True)
    model.loss(torch.randint(5, 30, (2, 9)), torch.randint(5, 30, (2, 9))).backward()
    trained = [*model.body.positions.parameters(), model.body.blocks[0].attention.log_scale]
    assert all(p.grad is not None and p.grad.any() for p in trained)


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_given_positions_are_those_that_count(pos, body):
    model, idx = tiny(pos, body), torch.randint(5, 30, (2, 9))
    t = torch.arange(9)
    torch.testing.assert_close(model(idx, at=t), model(idx))
    torch.testing.assert_close(model(idx, at=t.expand(2, -1)), model(idx))
    gaps = torch.tensor([0, 1, 2, 3, 5, 6, 8, 10, 11])
    counts_tokens = pos in ("nope", "cope", "forget")
    assert (model(idx, at=gaps) - model(idx)).abs().max() > 1e-3 or counts_tokens


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(pos="rope", n_embd=18, n_head=2), "even"),
        (dict(pos="alibi", alibi="one-sided", n_embd=15, n_head=3), "even"),
        (dict(n_embd=10, n_head=3), "n_head must divide"),
        (dict(pos="rotary"), "pos must be one of"),
    ],
)
def test_a_config_that_an_encoding_cannot_use_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        tiny_model(**wrong)


def test_a_bias_may_read_the_content(monkeypatch):
    class Keys(NoPE):
        reads_content = True

        def bias(self, q, k, i, j, attention):
            return k.sum(-1)[:, :, None].expand(-1, -1, q.size(2), -1)  # (B, H, T, S)

    monkeypatch.setitem(POSITIONS, "keys", Keys)
    model, plain = (tiny_model(Decoder, pos=pos, init_std=0.5).body for pos in ("keys", "nope"))
    idx = torch.randint(5, 30, (2, 9))
    h, maps = model(idx, need_weights=True)
    torch.testing.assert_close(model(idx), h)
    assert (h - plain(idx)).abs().max() > 1e-2 and maps[0].triu(1).abs().max() == 0
