"""Position encodings against their formulas, and their effect on a model."""

import math
from itertools import product

import pytest
import torch
from helpers import NO_ENCODER, read_weights, tiny_model
from torch import nn

from lab.optim import make_adamw
from model import POSITIONS, Decoder, Encoder, alibi_slopes, sinusoids
from nets.build import ALIBI_FORMS, Options, build_body, check_options, choose_positions
from nets.cached import CachedReader
from nets.relative import ContentBias

FORMS = ("causal", *ALIBI_FORMS)
LOG2_SLOPES = {  # exponents of two, as the authors' code gives them
    1: [-8],
    2: [-4, -8],
    4: [-2, -4, -6, -8],
    6: [-2, -4, -6, -8, -1, -3],
    8: [-1, -2, -3, -4, -5, -6, -7, -8],
    12: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5],
}


def tiny(pos, body=Encoder, **options):
    return tiny_model(body, pos=pos, n_ffn=0, init_std=0.5, n_head=4, **options).body


def make_positions(causal, **options):
    options = Options(**options)
    return choose_positions(options, causal)(options, causal)


def alibi_bias(form, n_head, T):
    """Return ALiBi's bias (H, T, T), without the causal mask."""
    options = dict(pos="alibi", n_head=n_head, n_embd=24)
    if form == "causal":
        positions = make_positions(True, **options)
    else:
        positions = make_positions(False, alibi=form, **options)
    t = torch.arange(T)
    return positions.bias(t, t)[0]


@pytest.mark.parametrize("C", [2, 6, 16])
def test_every_entry_of_the_sinusoids_is_the_formula(C):
    table = sinusoids(torch.arange(40), C)
    for t in range(40):
        for i in range(0, C, 2):
            angle = t / 10000 ** (i / C)
            assert table[t, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[t, i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("scale_words, factor", [(True, 4.0), (False, 1.0)])
def test_sinusoids_meet_words_scaled_by_the_root_of_the_width(scale_words, factor):
    model = tiny("sinusoidal", scale_words=scale_words)
    idx = torch.tensor([[9, 4, 11]])
    x, _ = model.start(idx)
    expected = factor * model.embedding.weight[idx] + sinusoids(torch.arange(3), 16)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("n_head", LOG2_SLOPES)
def test_slopes_are_those_of_the_authors(n_head):
    assert alibi_slopes(n_head).log2().tolist() == pytest.approx(LOG2_SLOPES[n_head])


def bias_by_entry(form, h, n_head, i, j):
    """Return what head h adds to the score of query i and key j, without the causal mask."""
    if form == "one-sided":
        is_first_half = h < n_head // 2
        sees = j <= i if is_first_half else j >= i
        if not sees:
            return -math.inf
        m = 2 ** LOG2_SLOPES[n_head // 2][h % (n_head // 2)]
        return -m * abs(i - j)
    m = 2 ** LOG2_SLOPES[n_head][h]
    if form == "offset" and j > i:
        return -m * (abs(i - j) - 0.5)
    return -m * abs(i - j)


@pytest.mark.parametrize("n_head", [2, 4, 8, 12])
@pytest.mark.parametrize("form", FORMS)
def test_every_entry_of_the_bias_is_the_formula(form, n_head):
    T = 6
    expected = torch.empty(n_head, T, T)
    for h, i, j in product(range(n_head), range(T), range(T)):
        expected[h, i, j] = bias_by_entry(form, h, n_head, i, j)
    torch.testing.assert_close(alibi_bias(form, n_head, T), expected)


@pytest.mark.parametrize("form", FORMS)
def test_alibi_enters_every_layer_unscaled_before_the_softmax(form):
    T = 9
    scores = alibi_bias(form, 4, T)
    if form == "causal":
        model = tiny("alibi", Decoder)
        scores = scores + torch.full((T, T), -math.inf).triu(1)
    else:
        model = tiny("alibi", Encoder, alibi=form)
    for block in model.blocks:  # with q and k zero, the scores are the bias alone
        nn.init.zeros_(block.attention.qkv.weight)
    _, maps = read_weights(model, torch.randint(5, 30, (1, T)))
    for weights in maps:
        torch.testing.assert_close(weights[0], scores.softmax(-1))


# ---------------------------------------------------------------------------- every encoding


@pytest.mark.parametrize("pos", POSITIONS)
def test_only_nope_ignores_the_order_of_an_encoders_input(pos):
    model = tiny(pos)
    idx = torch.randperm(25)[None, :9] + 5
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    difference = (model(idx)[:, order] - model(idx[:, order])).abs().max().item()
    if pos == "nope":
        assert difference < 1e-5
    else:
        assert difference > 1e-2


@pytest.mark.parametrize("pos", POSITIONS)
def test_an_encoding_that_ends_does_so_at_the_block_size(pos):
    model = tiny(pos, Decoder)
    idx = torch.randint(5, 30, (1, 13))  # one more than block_size
    assert model(idx[:, :12]).shape == (1, 12, 16)
    if POSITIONS[pos].ends:
        with pytest.raises(ValueError, match="block_size=12, got 13"):
            model(idx)
    else:
        assert model(idx).isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_rotary_positions_multiply_pairs_by_complex_numbers(shape):
    """Queries and keys have positions of their own, and a cache has fewer queries than keys."""
    q, k = torch.randn(2, 3, 2, 5, 16)
    i, j = torch.randint(40, (2, *shape))
    rotary = make_positions(True, pos="rope", n_embd=32, n_head=2)

    def by_complex_numbers(x, at):
        angles = at.view(-1, 1, 5, 1) * 10000 ** (-torch.arange(8) / 8)  # (1 or 3, 1, T, D / 2)
        z = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angles)
        return torch.cat([z.real, z.imag], dim=-1)

    turned_q, turned_k = by_complex_numbers(q, i), by_complex_numbers(k, j)
    torch.testing.assert_close(rotary.turn(q, k, i, j), (turned_q, turned_k))
    last = rotary.turn(q[:, :, -1:], k, i[..., -1:], j)
    torch.testing.assert_close(last, (turned_q[:, :, -1:], turned_k))


@pytest.mark.parametrize("pos", ["rope", "learned", "alibi"])
@torch.no_grad()
def test_random_positions_are_sorted_in_training_and_spread_in_evaluation(pos):
    model = tiny(pos, Decoder, random_positions=40)
    idx = torch.randint(5, 30, (2, 9))
    torch.manual_seed(3)
    h = model.train()(idx)
    torch.manual_seed(3)
    torch.testing.assert_close(h, model(idx, at=torch.randperm(40)[:9].sort().values))
    expected = model.eval()(idx, at=torch.tensor([0, 4, 8, 13, 17, 22, 26, 31, 35]))  # 40 t / 9
    torch.testing.assert_close(model(idx), expected)
    padded = torch.cat([idx, idx], dim=1)
    mask = (torch.arange(18) < 9).expand(2, -1)
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


@pytest.mark.parametrize("pos", POSITIONS)
def test_weight_decay_leaves_what_an_encoding_trains_but_vectors(pos):
    model = tiny_model(Decoder, pos=pos)
    decayed, others = make_adamw(model, lr=0.1, weight_decay=0.01).param_groups
    assert decayed["weight_decay"] == 0.01 and others["weight_decay"] == 0
    n_layer = len(model.body.blocks)
    n_tables = int(hasattr(model.body.positions, "vectors"))
    # token vectors, qkv, out, up and down
    assert len(decayed["params"]) == 1 + 4 * n_layer + n_tables
    assert len(decayed["params"] + others["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("pos", POSITIONS)
def test_given_positions_are_those_that_count(pos, body):
    model = tiny(pos, body)
    idx = torch.randint(5, 30, (2, 9))
    t = torch.arange(9)
    torch.testing.assert_close(model(idx, at=t), model(idx))
    torch.testing.assert_close(model(idx, at=t.expand(2, -1)), model(idx))
    gaps = torch.tensor([0, 1, 2, 3, 5, 6, 8, 10, 11])
    difference = (model(idx, at=gaps) - model(idx)).abs().max()
    if pos in ("nope", "cope", "forget"):  # they count tokens
        assert difference == 0
    else:
        assert difference > 1e-3


@pytest.mark.parametrize("pos", NO_ENCODER)
def test_an_encoding_for_decoders_is_refused_in_an_encoder(pos):
    for refuse in (check_options, build_body):
        with pytest.raises(ValueError, match=f"pos={pos}: .* needs a decoder"):
            refuse(Options(pos=pos), causal=False)


def test_a_bias_may_read_the_content(monkeypatch):
    class Keys(ContentBias):
        def content_bias(self, q, k, i, j, attention):
            return k.sum(-1)[:, :, None].expand(-1, -1, q.size(2), -1)  # (B, H, T, S)

    monkeypatch.setitem(POSITIONS, "keys", Keys)
    model = tiny_model(Decoder, pos="keys", init_std=0.5).body
    plain = tiny_model(Decoder, pos="nope", init_std=0.5).body
    idx = torch.randint(5, 30, (2, 9))
    h, maps = read_weights(model, idx)
    torch.testing.assert_close(model(idx), h)
    assert (h - plain(idx)).abs().max() > 1e-2
    assert maps[0].triu(1).abs().max() == 0
