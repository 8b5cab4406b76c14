"""The loss in chunks and its gradients against torch's own."""

import functools
from typing import NamedTuple

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from helpers import tiny_model

from data import batching
from lab.machine import compile_blocks
from model import Decoder, Encoder, LanguageModel
from nets import build, loss
from nets.build import Options, build_model, name_replacements
from nets.loss import LinearCrossEntropySum, linear_cross_entropy, pad_words


class Chunks(NamedTuple):
    """What is computed of each chunk."""

    losses: object = loss.chunk_losses
    gradient: object = loss.chunk_gradient


@pytest.fixture(params=["cpu", "gpu", "gpu, to compile"], autouse=True)
def computed_as_on(request, monkeypatch):
    """Compute as on a CPU, or as on a GPU, where words are added to a multiple of 64."""
    if request.param != "cpu":
        monkeypatch.setattr(batching, "GPUS", ("cpu",))
        monkeypatch.setattr(loss, "rows_at_a_time", lambda *_: 64)  # several chunks
        monkeypatch.setattr(loss, "send", lambda tensor, device: tensor)  # there is none to pin for
    return request.param


@pytest.fixture
def chunks(computed_as_on):
    if computed_as_on == "gpu, to compile":
        return Chunks(gradient=loss.chunk_gradient_to_compile)
    return Chunks()


def compute(way, x, weight, bias, targets, smoothing, chunks):
    """Return the sum of the losses."""
    if way == "rows":
        losses = linear_cross_entropy(x, weight, bias, targets, smoothing, chunks.losses)
        return losses.sum()
    if way == "sum":
        return LinearCrossEntropySum.apply(x, weight, bias, targets, smoothing, chunks.gradient)
    logits = F.linear(x, weight, bias)
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)


def tensors(rows, width, words=7, dtype=torch.float32, scale=1.0):
    """Return [x (rows, width), weight (words, width), bias (words,)] and targets (rows,)."""
    gen = torch.Generator().manual_seed(1)
    leaves = []
    for shape in ((rows, width), (words, width), (words,)):
        tensor = torch.randn(*shape, generator=gen, dtype=dtype) * scale
        leaves.append(tensor.requires_grad_())
    return leaves, torch.randint(words, (rows,), generator=gen)


def results(way, leaves, targets, chunks, with_bias=True, smoothing=0.0):
    """Return three times the loss, and the gradients."""
    for leaf in leaves:
        leaf.grad = None
    x, weight, bias = leaves
    if not with_bias:
        bias = None
    loss = 3 * compute(way, x, weight, bias, targets, smoothing, chunks)
    loss.backward()
    gradients = [x.grad, weight.grad]
    if with_bias:
        gradients.append(bias.grad)
    return [loss.detach(), *gradients]


@pytest.mark.parametrize("way", ["rows", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("with_bias", [True, False])
# a chunk has 64 rows, or twice the width
@pytest.mark.parametrize("rows, width", [(1, 4), (64, 4), (65, 4), (200, 4), (0, 4), (200, 70)])
def test_in_chunks_it_is_the_plain_one(rows, width, with_bias, smoothing, way, chunks):
    leaves, targets = tensors(rows, width, dtype=torch.float64)
    expected = results("plain", leaves, targets, chunks, with_bias, smoothing)
    in_chunks = results(way, leaves, targets, chunks, with_bias, smoothing)
    torch.testing.assert_close(in_chunks, expected)


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_an_improbable_word_has_a_finite_loss(way, chunks):
    """With logits hundreds apart, the probability underflows, but not its logarithm."""
    leaves, targets = tensors(50, 4, scale=30.0)
    expected = results("plain", leaves, targets, chunks)
    assert expected[0] / len(targets) > 300
    torch.testing.assert_close(results(way, leaves, targets, chunks), expected)


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_nan_in_the_features_gives_a_nan_loss(way, chunks):
    leaves, targets = tensors(70, 4)
    with torch.no_grad():
        leaves[0][3, 2] = torch.nan
    assert results(way, leaves, targets, chunks)[0].isnan()


@pytest.mark.parametrize("way", ["rows", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_under_autocast_sums_are_exact(smoothing, way, chunks):
    """Products are rounded to bfloat16 (0.4%), the sum over 5,000 words is not."""
    leaves, targets = tensors(200, 64, words=5000, scale=0.3)
    expected = results("plain", leaves, targets, chunks, smoothing=smoothing)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = results(way, leaves, targets, chunks, smoothing=smoothing)
    torch.testing.assert_close(rounded[0], expected[0], rtol=1e-3, atol=0)
    for a, b in zip(rounded[1:], expected[1:], strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.01 * b.norm()


def test_under_autocast_the_gradient_of_the_bias_is_not_rounded(chunks):
    """Each p - q sums to 0 over the words."""
    leaves, targets = tensors(200, 4, words=5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        *_, bias_grad = results("sum", leaves, targets, chunks)
    assert abs(bias_grad.sum()) < 1e-4 * bias_grad.abs().sum()


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_losses_of_bfloat16_logits_are_not_rounded(way, chunks):
    """Autocast on a GPU computes them in bfloat16, that on a CPU does not."""
    leaves, targets = tensors(100, 64, words=50, dtype=torch.bfloat16)
    expected = F.cross_entropy(F.linear(*leaves).float(), targets, reduction="sum")
    torch.testing.assert_close(compute(way, *leaves, targets, 0.0, chunks), expected)


@pytest.mark.parametrize("words", [1, 63, 64, 65])
def test_a_gpu_gets_a_multiple_of_64_words(words, computed_as_on):
    (_, weight, bias), _ = tensors(1, 4, words)
    n_word = {1: 64, 63: 64, 64: 64, 65: 128}[words]
    if computed_as_on == "cpu":
        n_word = words
    padded_weight, padded_bias = pad_words(weight, bias)
    assert len(padded_weight) == len(padded_bias) == n_word


def test_with_compile_a_gpu_compiles_the_loss(computed_as_on, monkeypatch):
    counted = torch._dynamo.testing.CompileCounter()
    counting_compile = functools.partial(torch.compile, backend=counted, fullgraph=True)
    monkeypatch.setattr(torch, "compile", counting_compile)
    model = build_model("lm", Options(vocab_size=9, n_layer=1, n_embd=4))
    compile_blocks(model)
    if computed_as_on == "cpu":
        assert type(model) is LanguageModel
        return
    compiled = Chunks(model.chunk_losses, model.chunk_gradient)
    leaves, targets = tensors(64, 4)
    expected = results("plain", leaves, targets, compiled)
    for way in ("rows", "sum"):
        torch.testing.assert_close(results(way, leaves, targets, compiled), expected)
    assert counted.frame_count == 2


def test_a_second_backward_pass_over_the_same_loss_is_refused(chunks):
    """The gradients are scaled in place: a second pass would scale them twice."""
    (x, weight, bias), targets = tensors(3, 4)
    loss = 2 * compute("sum", x, weight, bias, targets, 0.0, chunks)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_under_autocast_both_ways_round_alike(chunks):
    leaves, targets = tensors(300, 16, words=50, scale=3.0)
    leaves[2].data += 100  # then a sum of rounded means would be far off
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        total = compute("sum", *leaves, targets, 0.05, chunks).item()
        of_rows = compute("rows", *leaves, targets, 0.05, chunks).item()
    assert total == pytest.approx(of_rows, rel=1e-5)


def largest_kept(way, leaves, targets, chunks):
    """Return the size of the largest tensor that autograd keeps for the backward pass."""
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute(way, *leaves, targets, 0.0, chunks)
    return max(sizes)


def test_no_logits_are_kept_for_the_backward_pass(chunks):
    leaves, targets = tensors(1000, 4, words=50)
    assert largest_kept("sum", leaves, targets, chunks) == 1000 * 4
    assert largest_kept("rows", leaves, targets, chunks) >= 64 * 50


# ---------------------------------------------------------------------------- of a language model


def plain_and_fused(monkeypatch, computed_as_on, body=Decoder, **options):
    """Return two models with the same weights: that of model.py, and one with FusedLoss."""
    with monkeypatch.context() as patch:
        patch.setattr(batching, "GPUS", ())
        plain = tiny_model(body, **options)
    monkeypatch.setattr(build, "MANY_WORDS", 10)
    fused = tiny_model(body, **options)
    assert name_replacements(plain) == []
    assert "FusedLoss" in name_replacements(fused)
    if computed_as_on == "gpu, to compile":
        fused.chunk_gradient = loss.chunk_gradient_to_compile
    return plain, fused


def some_targets(idx):
    return torch.where(torch.rand(idx.shape) < 0.6, torch.randint(30, idx.shape), -100)


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("head", ["linear", "roberta", "clap"])
@pytest.mark.parametrize("body", [Encoder, Decoder])
def test_the_fused_loss_is_that_of_model_py(body, head, smoothing, monkeypatch, computed_as_on):
    plain, fused = plain_and_fused(monkeypatch, computed_as_on, body, head=head)
    idx = torch.randint(5, 30, (9, 12))
    mask = torch.arange(12) < torch.tensor([12, 5, 7] * 3)[:, None]
    targets = some_targets(idx)
    with torch.no_grad():
        expected = plain.losses(idx, targets, mask, smoothing)
        assert len(expected) == (targets >= 0).sum()
        torch.testing.assert_close(fused.losses(idx, targets, mask, smoothing), expected)
        torch.testing.assert_close(fused.loss(idx, targets, mask, smoothing), expected.sum())
    for model in (plain, fused):
        total = model.loss(idx, targets, mask, smoothing)
        torch.testing.assert_close(total.detach(), expected.sum())
        total.backward()
    assert fused.body.embedding.weight.grad.any()
    torch.testing.assert_close(gradients_of(fused), gradients_of(plain))


def test_frozen_words_get_no_gradient(monkeypatch, computed_as_on):
    plain, fused = plain_and_fused(monkeypatch, computed_as_on)
    idx = torch.randint(5, 30, (9, 12))
    for model in (plain, fused):
        model.head.words.requires_grad_(False)
        model.loss(idx, idx).backward()
    assert fused.head.words.weight.grad is None
    torch.testing.assert_close(gradients_of(fused), gradients_of(plain))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_in_bfloat16_the_fused_loss_is_nearly_that_of_model_py(
    smoothing, monkeypatch, computed_as_on
):
    plain, fused = plain_and_fused(monkeypatch, computed_as_on)
    idx = torch.randint(5, 30, (9, 12))
    expected = plain.loss(idx, idx, smoothing=smoothing)
    expected.backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = fused.loss(idx, idx, smoothing=smoothing)
    total.backward()
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(expected.item(), rel=0.01)
    a, b = fused.body.embedding.weight.grad, plain.body.embedding.weight.grad
    assert (a - b).norm() < 0.05 * b.norm()
    whole = fused.to(torch.bfloat16).losses(idx, idx, smoothing=smoothing)
    assert whole.dtype == torch.float32
    assert whole.sum().item() == pytest.approx(expected.item(), rel=0.02)


def test_without_targets_the_loss_is_zero(monkeypatch, computed_as_on):
    plain, fused = plain_and_fused(monkeypatch, computed_as_on)
    idx = torch.randint(5, 30, (2, 12))
    nothing = torch.full_like(idx, -100)
    for model in (plain, fused):
        assert len(model.losses(idx, nothing)) == 0
        total = model.loss(idx, nothing)
        assert total == 0
        total.backward()
        assert not model.body.embedding.weight.grad.any()


def test_too_few_targets_are_refused(monkeypatch, computed_as_on):
    _, fused = plain_and_fused(monkeypatch, computed_as_on)
    idx = torch.randint(5, 30, (3, 8))
    with pytest.raises(ValueError, match=r"targets \(3, 7\) for tokens \(3, 8\)"):
        fused.loss(idx, idx[:, 1:])
