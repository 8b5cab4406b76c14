"""The kernels for long texts give what the table of biases gives, here uncompiled on a CPU."""

import math

import pytest
import torch
from helpers import tiny_model
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from model import POSITIONS, Attention, Decoder, Encoder
from nets import build, kernels
from nets.build import (
    ALIBI_FORMS,
    Options,
    build_body,
    build_model,
    choose_attention,
    combine,
    name_replacements,
)
from nets.cached import CachedReader
from nets.kernels import LONG, CausalFastAttention, Kernel, alibi_score
from nets.relative import PadValues

OPTIONS = [
    dict(pos="alibi"),
    dict(pos="alibi", window=5),
    dict(pos="alibi", nope_every=2),
    dict(pos="alibi", nope_every=2, window=5),
    dict(pos="alibi", random_positions=40),
    dict(pos="alibi", window=5, global_tokens=1),
    dict(pos="rope", window=5),
    dict(pos="rope", nope_every=2),
    dict(pos="rope", attn_block=4),
    dict(pos="learned"),
    dict(pos="learned", random_positions=40),
    dict(pos="pope"),
    dict(pos="pope", window=5, nope_every=2),
    dict(pos="shaw", nope_every=2),
    dict(pos="t5"),
]
NO_KERNEL = ("random_positions", "attn_block", "global_tokens")  # of these options


def tiny(body, **options):
    """Return a body, long enough for a head of 16 channels. FlexAttention needs these."""
    return tiny_model(body, block_size=16, n_embd=32, n_ffn=0, init_std=0.5, **options).body


@pytest.fixture(autouse=True)
def forget_blocks():
    """What is cached is computed by the functions that a test replaces."""
    kernels.blocks_to_compute.cache_clear()
    yield
    kernels.blocks_to_compute.cache_clear()


@pytest.fixture
def use_kernels(monkeypatch):
    """use_kernels() -> the names of the kernels that are called from then on. Bodies that are
    built later use them, for texts of 8 tokens and more."""

    def patch():
        used = []
        attend_plainly = kernels.attend_plainly

        def flex(*args, **options):
            used.append("flex")
            return flex_attention(*args, **options)

        def plain(*args, **options):
            used.append("plain")
            return attend_plainly(*args, **options)

        monkeypatch.setattr(build, "LONG", 8)
        monkeypatch.setattr(kernels, "LONG", 8)
        monkeypatch.setattr(kernels, "compile_flex", lambda device: (flex, create_block_mask))
        monkeypatch.setattr(kernels, "attend_plainly", plain)
        return used

    return patch


@pytest.mark.filterwarnings("ignore:.*flex_attention")  # that it is not compiled
@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_a_kernel_gives_the_states_of_the_table(options, body, use_kernels):
    idx = torch.randint(5, 30, (2, 14))
    mask = torch.arange(14) < torch.tensor([[14], [6]])
    plain = tiny(body, **options)
    expected = [plain(idx), plain(idx, mask)]
    used = use_kernels()
    model = tiny(body, **options)
    assert "ChooseKernel" in name_replacements(model)
    torch.testing.assert_close(model(idx), expected[0])
    used_without_padding = set(used)
    used.clear()
    torch.testing.assert_close(model(idx, mask), expected[1])
    used_with_padding = set(used)

    has_window = "window" in options
    by_formula = options["pos"] == "alibi" or has_window  # which FlexAttention can compute
    if any(name in options for name in NO_KERNEL) or options["pos"] in ("shaw", "t5"):
        by_formula = False
    assert ("flex" in used_without_padding) == ("flex" in used_with_padding) == by_formula
    if options["pos"] in ("learned", "rope", "pope") and not by_formula:
        may = not any(name in options for name in NO_KERNEL)
        assert used_without_padding == ({"plain"} if may else set())
    assert "plain" not in used_with_padding


@pytest.mark.parametrize("form", ("causal", *ALIBI_FORMS))
def test_the_formula_for_a_gpus_kernel_is_the_bias(form):
    if form == "causal":
        model = tiny_model(Decoder, pos="alibi", n_head=4)
    else:
        model = tiny_model(Encoder, pos="alibi", n_head=4, alibi=form)
    positions = model.body.positions
    t = torch.arange(6)
    score = alibi_score(positions)
    bias = positions.bias(t, t)[0]  # (H, T, T)
    for h in range(4):
        for i in t:
            for j in t:
                torch.testing.assert_close(score(torch.zeros(()), h, i, j), bias[h, i, j])


@pytest.mark.filterwarnings("ignore:.*flex_attention")
@pytest.mark.parametrize("options", OPTIONS)
@torch.no_grad()
def test_a_text_read_in_parts_after_a_kernel_has_the_same_states(options, use_kernels):
    if "random_positions" in options:
        pytest.skip("all positions change with the length of the text")
    idx = torch.randint(5, 30, (2, 14))
    expected = tiny(Decoder, **options)(idx)
    used = use_kernels()
    model = tiny(Decoder, **options)
    model(idx)
    used.clear()
    reader = CachedReader(model)
    parts = []
    for part in idx.split([9, 1, 4], dim=1):
        parts.append(reader.read(part))
    assert not used  # a kernel would take a token's index in the part for its position
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)
    torch.testing.assert_close(model(idx), expected)  # with the kernel again


@pytest.mark.filterwarnings("ignore:.*flex_attention")
@pytest.mark.parametrize("with_padding", [True, False])
@torch.no_grad()
def test_a_memory_is_read_with_kernels_as_without(with_padding, use_kernels):
    idx, source = torch.randint(5, 30, (2, 2, 14))
    source_mask = None
    if with_padding:
        source_mask = torch.arange(14) < torch.tensor([[14], [6]])
    size = dict(vocab_size=30, block_size=16, n_layer=2, n_embd=32, init_std=0.5)
    options = Options(pos="alibi", **size)
    plain = build_model("seq2seq", options).eval()
    expected = plain(idx, source=source, source_mask=source_mask)
    used = use_kernels()
    model = build_model("seq2seq", options).eval()
    model.load_state_dict(plain.state_dict())
    logits = model(idx, source=source, source_mask=source_mask)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    assert used.count("flex") == 4  # the self-attentions of both halves
    n_plain = 0 if with_padding else 2  # the attentions to the memory
    assert used.count("plain") == n_plain


@pytest.mark.filterwarnings("ignore:.*flex_attention")
@torch.no_grad()
def test_with_dropout_of_attention_the_table_is_used(use_kernels):
    used = use_kernels()
    model = tiny(Decoder, pos="alibi", attn_dropout=0.5)
    idx = torch.randint(5, 30, (2, 14))
    model.train()(idx)
    assert not used  # FlexAttention has no dropout
    model.eval()(idx)
    assert used == ["flex"] * 2


@torch.no_grad()
def test_dropout_of_attention_reaches_the_plain_kernel():
    attention = build_attention(Decoder, pos="learned", block_size=LONG + 1, attn_dropout=0.5)
    q, k, v = torch.randn(3, 1, 2, 20, 8)
    kernel = Kernel(lambda q, k, v, dropout: torch.tensor(dropout))
    assert attention.train().attend(q, k, v, kernel) == 0.5
    assert attention.eval().attend(q, k, v, kernel) == 0.0


def build_attention(body, **options):
    options = Options(n_embd=16, n_head=2, **options)
    return choose_attention(options, body.causal, "cpu")(options)


def test_long_causal_rows_computed_in_slices_are_the_same(monkeypatch):
    T = 2 * LONG + 30
    q, k, v = torch.randn(3, 1, 2, T, 8)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    bias = (-0.1 * distance).masked_fill(distance < 0, -math.inf)[None, None]
    attention = build_attention(Decoder, pos="alibi", block_size=T)
    assert isinstance(attention, CausalFastAttention)
    n_scores = []  # of each call
    attend = Attention.attend

    def count(self, q, k, v, bias):
        n_scores.append(q.size(2) * k.size(2))
        return attend(self, q, k, v, bias)

    monkeypatch.setattr(Attention, "attend", count)
    expected = attend(attention, q, k, v, bias)
    torch.testing.assert_close(attention.attend(q, k, v, bias), expected)
    assert sum(n_scores) < 0.75 * T**2  # most of what is hidden is skipped
    with_past = attention.attend(q[:, :, 10:], k, v, bias[:, :, 10:])  # as with a cache
    torch.testing.assert_close(with_past, expected[:, :, 10:])


@pytest.mark.parametrize("pos", POSITIONS)
@torch.no_grad()
def test_a_long_decoder_is_the_one_without_kernels(pos):
    """Block sizes above and below LONG choose different classes; here, on the same long text."""
    size = dict(pos=pos, n_layer=1, init_std=0.3)
    T = LONG + 40
    model = tiny_model(Decoder, block_size=T, **size).body
    short = tiny_model(Decoder, block_size=LONG, **size).body
    assert "ChooseKernel" in name_replacements(model)
    assert "ChooseKernel" not in name_replacements(short)
    short.positions = model.positions  # some have tables as long as the block
    short.load_state_dict(model.state_dict())
    idx = torch.randint(5, 30, (2, T))
    mask = torch.arange(T) < torch.tensor([[T], [T - 30]])
    torch.testing.assert_close(model(idx), short(idx), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(idx, mask), short(idx, mask), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("block_size", [16, LONG + 1])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_pope_attends_with_values_half_as_wide(body, block_size):
    attention = build_attention(body, pos="pope", block_size=block_size)
    assert isinstance(attention, PadValues)
    q, k = torch.randn(2, 1, 2, 9, 16)
    v = torch.randn(1, 2, 9, 8)
    bias = torch.zeros(1, 1, 9, 9)
    bias[..., 5:] = -math.inf
    weights = (q @ k.mT / 4 + bias).softmax(-1)
    torch.testing.assert_close(attention.attend(q, k, v, bias), weights @ v)


def test_a_class_with_options_is_made_once():
    assert combine(Attention, PadValues) is combine(Attention, PadValues)
    assert combine(Attention, PadValues).__mro__[1:3] == (PadValues, Attention)


class EverySecond:
    """Hides the keys at odd distances, as an option of a student's own would."""

    def may_attend(self, i, j, mask):
        distance = i[..., :, None] - j[..., None, :]
        may = super().may_attend(i, j, mask)
        return may & (distance % 2 == 0).view(-1, 1, *distance.shape[-2:])


def test_another_option_that_hides_tokens_does_so_in_long_blocks_too():
    options = Options(vocab_size=30, n_layer=1, n_embd=16, n_ffn=20, block_size=300, pos="nope")
    torch.manual_seed(0)
    body = build_body(options, causal=True, extensions=[EverySecond]).eval()
    idx = torch.randint(5, 30, (1, 300))
    other = idx.clone()
    other[:, 0] = (idx[:, 0] - 5 + 7) % 25 + 5  # replace the first token
    changed = (body(other) - body(idx)).abs().amax(-1)[0] > 1e-6  # (300,)
    assert changed[::2].any() and not changed[1::2].any()
