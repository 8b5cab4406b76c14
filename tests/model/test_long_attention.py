"""Kernels for long sequences against plain attention. FlexAttention runs uncompiled on the CPU."""

from itertools import product

import pytest
import torch

from model import POSITIONS, Config, Decoder, Encoder, Transformer, alibi_bias, attend, score_bias
from nets import device, long_attention

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
LONG = 260
plain = Transformer.choose_kernel
CASES = [
    ("alibi", {"window": 7}),
    ("alibi", {"alibi": "one-sided"}),
    ("alibi", {"alibi": "offset"}),
    ("rope", {"window": 7, "alibi": "one-sided"}),  # which is for ALiBi alone
    ("learned", {"window": 200, "block_size": LONG}),
]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(Transformer, "choose_kernel", long_attention.choose_kernel)


def tiny(body, pos, **more):
    torch.manual_seed(0)
    config = dict(vocab_size=30, n_layer=2, n_head=1, n_embd=16, init_std=0.3, pos=pos) | more
    return body(Config(**config))


# ---------------------------------------------------------------------------- FlexAttention


@pytest.mark.parametrize("variant", ["causal", "offset", "symmetric", "one-sided"])
def test_flex_attends_as_with_the_table(variant):
    q, k, v = torch.randn(3, 2, 6, 40, 8)
    kernel = long_attention.flex_kernel(6, 40, True, variant, 0, torch.device("cpu"))
    torch.testing.assert_close(kernel(q, k, v), attend(q, k, v, alibi_bias(6, 40, variant))[0])


@pytest.mark.parametrize("body", [Encoder, Decoder])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("pos, more", CASES)
@torch.no_grad()  # on the CPU, FlexAttention has no backward pass
def test_flex_gives_the_states_of_the_table(body, padded, pos, more, monkeypatch):
    model = tiny(body, pos, n_head=2, n_embd=32, **more)
    idx = torch.randint(5, 30, (2, LONG))
    mask = torch.arange(LONG) < torch.tensor([[LONG], [150]]) if padded else None
    with_table = model(idx, mask)
    monkeypatch.setattr(long_attention, "has_flex", lambda device: True)
    monkeypatch.setattr(body, "attention_bias", None)  # a call would fail: no table is made
    without = model(idx, mask)
    if padded:
        with_table, without = with_table[mask], without[mask]
    torch.testing.assert_close(without, with_table, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pos", POSITIONS)
@torch.no_grad()
def test_no_position_encoding_is_lost(pos, monkeypatch):
    # A bias that FlexAttention does not compute must be left to the table
    model, idx = tiny(Encoder, pos, window=7, block_size=LONG), torch.randint(5, 30, (2, LONG))
    with_table = model(idx)
    monkeypatch.setattr(long_attention, "has_flex", lambda device: True)
    lost = "FlexAttention lacks this encoding: exclude it in choose_kernel"
    torch.testing.assert_close(model(idx), with_table, rtol=1e-4, atol=1e-5, msg=lost)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, rtol", [(torch.float32, 1e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("pos, more", [*CASES, ("nope", {}), ("rope", {})])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_kernels_on_a_gpu_forward_and_backward(body, pos, more, padded, dtype, rtol, monkeypatch):
    model = tiny(body, pos, n_head=2, n_embd=32, **more).cuda()
    idx = torch.randint(5, 30, (2, LONG), device="cuda")
    mask = (torch.arange(LONG) < torch.tensor([[LONG], [150]])).cuda() if padded else None
    real, direction = mask if padded else ..., torch.randn(2, LONG, 32, device="cuda")
    results = []
    for choose in (long_attention.choose_kernel, plain):
        monkeypatch.setattr(Transformer, "choose_kernel", choose)
        model.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            h = model(idx, mask)
        (h.float() * direction)[real].sum().backward()
        results.append([h.detach()[real], *(p.grad.clone() for p in model.parameters())])
    for got, expected in zip(*results, strict=True):
        assert (got - expected).norm() < rtol * expected.norm() + 1e-3


@pytest.mark.parametrize("variant, window", [("causal", 0), ("one-sided", 0), ("symmetric", 99)])
def test_only_blocks_of_hidden_scores_are_skipped(variant, window):
    """Uncompiled, FlexAttention computes all blocks, so look at the plan."""
    _, plan = long_attention.prepare(2, 384, variant, window, torch.device("cpu"))
    bias = score_bias(384, "alibi", 2, variant, window)
    seen = (bias[0] > -torch.inf).view(2, 3, 128, 3, 128)
    computed = plan.to_dense().bool().expand(1, 2, 3, 3)[0]  # 3 x 3 blocks for each head
    assert torch.equal(computed, seen.any(4).any(2)) and not computed.all()


@pytest.mark.parametrize(
    "pos, n_head, chosen", [("alibi", 4, True), ("alibi", 8, False), ("rope", 4, False)]
)
def test_flex_is_chosen_for_tables_and_heads_of_16_or_wider(pos, n_head, chosen, monkeypatch):
    monkeypatch.setattr(long_attention, "has_flex", lambda device: True)
    model = tiny(Encoder, pos, n_head=n_head, n_embd=64)
    kernel, _ = long_attention.choose_kernel(model, LONG, None, False)
    assert (kernel is not None) == chosen
    assert model.choose_kernel(255, None, False)[0] is None


def test_no_kernel_replaces_attention_with_weights_or_dropout(monkeypatch):
    monkeypatch.setattr(long_attention, "has_flex", lambda device: True)
    model = tiny(Decoder, "alibi", attn_dropout=0.1)
    for train, need_weights in [(False, False), (False, True), (True, False)]:
        kernel, _ = long_attention.choose_kernel(model.train(train), LONG, None, need_weights)
        assert (kernel is None) == (train or need_weights)


# ---------------------------------------------------------------------------- cuDNN


@pytest.mark.parametrize("body", [Encoder, Decoder])
@torch.no_grad()
def test_cudnn_attends_without_bias_dropout_and_weights_on_a_gpu(body, monkeypatch):
    """On the CPU, the next kernel takes its place."""

    def chosen(model, T=LONG, mask=None, need_weights=False):
        kernel, _ = model.choose_kernel(T, mask, need_weights)
        return kernel is long_attention.attend_with_cudnn

    model, idx = tiny(body, "rope", attn_dropout=0.1).eval(), torch.randint(5, 30, (2, LONG))
    assert not chosen(model)
    expected = model(idx)
    monkeypatch.setattr(device, "GPUS", ("cpu",))
    assert chosen(model) and not chosen(model, T=255)
    torch.testing.assert_close(model(idx), expected)
    assert not chosen(model, mask=idx > 5) and not chosen(model, need_weights=True)
    assert not chosen(model.train()) and not chosen(tiny(body, "alibi"))
    assert not chosen(tiny(body, "rope", window=7))


# ---------------------------------------------------------------------------- slices of rows


@pytest.mark.parametrize(
    "pos, window, padded",
    [*product(("alibi", "rope"), (0, 100), (False, True)), ("nope", 300, False)],
)
def test_attention_in_rows_has_the_same_states_and_gradients(pos, window, padded):
    """600 tokens are not a multiple of the 256 rows computed at a time."""
    idx = torch.randint(5, 30, (2, 600))
    mask = torch.arange(600) < torch.tensor([[600], [290]]) if padded else None
    kernel, _ = long_attention.choose_kernel(tiny(Decoder, pos, window=window), 600, mask, False)
    assert (kernel is None) == (pos == "rope" and not window and not padded)  # is_causal suffices
    assert tiny(Decoder, pos, window=window).choose_kernel(256, None, False)[0] is None
    results, direction = [], torch.randn(2, 600, 16)
    for need_weights in (False, True):
        model = tiny(Decoder, pos, window=window)
        h = model(idx, mask, need_weights=need_weights)
        h = h[0] if need_weights else h
        (h * direction).sum().backward()
        results.append([h.detach(), *(p.grad for p in model.parameters())])
    for got, expected in zip(*results, strict=True):
        assert (got - expected).norm() < 1e-4 * expected.norm()
