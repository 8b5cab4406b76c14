"""Tables of positions against their formulas, and the effect of each encoding on a model."""

import math

import pytest
import torch
from helpers import tiny_model

from model import POSITIONS, Decoder, Encoder, alibi_bias, alibi_slopes, rotate, sinusoids

VARIANTS = ("causal", "offset", "symmetric", "one-sided")

# Exponents of two, as the authors' code gives them.
LOG2_SLOPES = {
    1: [-8],
    2: [-4, -8],
    4: [-2, -4, -6, -8],
    6: [-2, -4, -6, -8, -1, -3],
    8: [-1, -2, -3, -4, -5, -6, -7, -8],
    12: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5],
}


def tiny(pos, body=Encoder, **more):
    return tiny_model(body, pos=pos, n_ffn=0, init_std=0.5, n_head=4, **more).body


# ---------------------------------------------------------------------------- sinusoids


@pytest.mark.parametrize("C", [2, 6, 16])
def test_every_entry_of_the_sinusoids_is_the_formula(C):
    table = sinusoids(40, C)
    for t in range(40):
        for i in range(0, C, 2):
            angle = t / 10000 ** (i / C)
            assert table[t, i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[t, i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


# ---------------------------------------------------------------------------- ALiBi


@pytest.mark.parametrize("n_head", LOG2_SLOPES)
def test_slopes_are_those_of_the_authors(n_head):
    assert alibi_slopes(n_head).log2().tolist() == pytest.approx(LOG2_SLOPES[n_head])


def bias_by_entry(variant, h, n_head, i, j):
    """Return what head h adds to the score of query i and key j."""
    if variant == "one-sided":
        sees = j <= i if h < n_head // 2 else j >= i
        m = 2 ** LOG2_SLOPES[n_head // 2][h % (n_head // 2)]
        return -m * abs(i - j) if sees else -math.inf
    m = 2 ** LOG2_SLOPES[n_head][h]
    if variant == "causal":
        return -m * (i - j) if j <= i else -math.inf
    return -m * (abs(i - j) - (0.5 if variant == "offset" and j > i else 0))


@pytest.mark.parametrize("n_head", [2, 4, 8, 12])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_entry_of_the_bias_is_the_formula(variant, n_head):
    T = 6
    expected = [
        [[bias_by_entry(variant, h, n_head, i, j) for j in range(T)] for i in range(T)]
        for h in range(n_head)
    ]
    torch.testing.assert_close(alibi_bias(n_head, T, variant), torch.tensor(expected))


@pytest.mark.parametrize(
    "body, variant",
    [(Decoder, "causal"), (Encoder, "offset"), (Encoder, "symmetric"), (Encoder, "one-sided")],
)
def test_alibi_enters_every_layer_unscaled_before_the_softmax(body, variant):
    # With q and k zero, the scores are the bias alone.
    model = tiny("alibi", body, alibi="offset" if variant == "causal" else variant)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attention.qkv.weight)
    _, maps = model(torch.randint(5, 30, (1, 9)), need_weights=True)
    for weights in maps:
        torch.testing.assert_close(weights[0], alibi_bias(4, 9, variant).softmax(-1))


# ---------------------------------------------------------------------------- rotary


def angles(T, D):
    return torch.tensor([[t * 10000 ** (-2 * i / D) for i in range(D // 2)] for t in range(T)])


def test_rotary_multiplies_by_complex_numbers_of_length_one():
    x, phi = torch.randn(2, 3, 5, 8), angles(5, 8)
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(phi), phi)
    torch.testing.assert_close(rotate(x, phi), torch.cat([turned.real, turned.imag], -1))


def test_the_model_rotates_q_and_k_by_these_angles():
    model, idx = tiny("rope", n_layer=1), torch.randint(5, 30, (1, 7))
    _, (weights,) = model(idx, need_weights=True)
    block = model.blocks[0]
    qkv = block.attention.qkv(block.norm1(model.embedding(idx)))
    q, k, _ = qkv.view(7, 3, 4, 4).permute(1, 2, 0, 3)  # (H, T, D)
    scores = rotate(q, angles(7, 4)) @ rotate(k, angles(7, 4)).transpose(1, 2) / 2  # sqrt(D) = 2
    torch.testing.assert_close(weights[0], scores.softmax(-1))


# ---------------------------------------------------------------------------- in a model


@pytest.mark.parametrize("pos", POSITIONS)
def test_only_nope_ignores_the_order_of_an_encoders_input(pos):
    model, idx = tiny(pos), torch.randperm(25)[None, :9] + 5
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    difference = (model(idx)[:, order] - model(idx[:, order])).abs().max().item()
    assert difference < 1e-5 if pos == "nope" else difference > 1e-2


@pytest.mark.parametrize("pos", POSITIONS)
def test_only_learned_positions_end_at_the_block_size(pos):
    model, idx = tiny(pos), torch.randint(5, 30, (1, 13))  # one more than block_size
    assert model(idx[:, :12]).shape == (1, 12, 16)
    if pos == "learned":
        with pytest.raises(ValueError, match="block_size=12, got 13"):
            model(idx)
    else:
        assert model(idx).isfinite().all()


# ---------------------------------------------------------------------------- cached tables


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize(
    "pos, alibi",
    [(pos, "offset") for pos in POSITIONS] + [("alibi", variant) for variant in VARIANTS[2:]],
)
def test_one_table_per_name_serves_all_lengths(pos, alibi, body, window):
    model, idx = tiny(pos, body, alibi=alibi, window=window), torch.randint(5, 30, (2, 9))
    fresh = {T: tiny(pos, body, alibi=alibi, window=window)(idx[:, :T]) for T in (3, 9, 5)}
    for T, expected in fresh.items():
        assert torch.equal(model(idx[:, :T]), expected)
    lengths = [table.size(-2) for table in model.tables.values()]
    assert lengths == [9] * len(lengths)


@pytest.mark.parametrize("change", [{"window": 2}, {"alibi": "symmetric"}])
def test_a_changed_config_counts_after_the_first_use(change):
    model, idx = tiny("alibi"), torch.randint(5, 30, (2, 9))
    before = model(idx)
    vars(model.config).update(change)
    assert torch.equal(model(idx), tiny("alibi", **change)(idx)) and not model(idx).equal(before)


def test_an_unknown_variant_has_no_bias():
    with pytest.raises(KeyError, match="one_sided"):
        alibi_bias(2, 3, "one_sided")


@pytest.mark.parametrize("pos", POSITIONS)
def test_a_model_can_be_trained_after_its_first_use_in_inference_mode(pos):
    model, idx = tiny_model(Decoder, pos=pos, window=3), torch.randint(5, 30, (2, 8))
    with torch.inference_mode():
        model(idx)
    model.loss(idx, idx).backward()
