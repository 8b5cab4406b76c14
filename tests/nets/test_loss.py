"""The loss in chunks and its gradients against torch's own."""

import functools

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F

from data import batching
from lab.machine import compile_blocks
from model import Config, Decoder, LanguageModel
from nets import loss
from nets.loss import LinearCrossEntropySum, linear_cross_entropy, pad_words

WAYS = {
    "rows": lambda *args: linear_cross_entropy(*args).sum(),
    "sum": LinearCrossEntropySum.apply,
    "plain": lambda x, weight, bias, targets, smoothing: F.cross_entropy(
        F.linear(x, weight, bias), targets, reduction="sum", label_smoothing=smoothing
    ),
}


@pytest.fixture(params=["cpu", "gpu", "gpu, to compile"], autouse=True)
def computed_as_on(request, monkeypatch):
    """Compute as on a CPU, or as on a GPU, where words are added to a multiple of 64."""
    if request.param != "cpu":
        monkeypatch.setattr(batching, "GPUS", ("cpu",))
        monkeypatch.setattr(loss, "rows_at_a_time", lambda *_: 64)  # several chunks
    if request.param == "gpu, to compile":
        to_compile = loss.chunk_gradient_to_compile
        monkeypatch.setattr(loss, "chunk_gradient", to_compile)
    return request.param


def tensors(rows, width, words=7, dtype=torch.float32, scale=1.0):
    gen = torch.Generator().manual_seed(1)
    x, weight, bias = (
        torch.randn(*shape, generator=gen, dtype=dtype) * scale
        for shape in ((rows, width), (words, width), (words,))
    )
    return [tensor.requires_grad_() for tensor in (x, weight, bias)], torch.randint(
        words, (rows,), generator=gen
    )


def results(way, leaves, targets, with_bias=True, smoothing=0.0):
    """Return three times the loss, and the gradients."""
    for leaf in leaves:
        leaf.grad = None
    x, weight, bias = leaves
    loss = 3 * WAYS[way](x, weight, bias if with_bias else None, targets, smoothing)
    loss.backward()
    return [loss.detach(), *(leaf.grad for leaf in (leaves if with_bias else leaves[:2]))]


@pytest.mark.parametrize("way", ["rows", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("with_bias", [True, False])
# a chunk has 64 rows, or twice the width
@pytest.mark.parametrize("rows, width", [(1, 4), (64, 4), (65, 4), (200, 4), (0, 4), (200, 70)])
def test_in_chunks_it_is_the_plain_one_with_its_gradients(rows, width, with_bias, smoothing, way):
    leaves, targets = tensors(rows, width, dtype=torch.float64)
    expected = results("plain", leaves, targets, with_bias, smoothing)
    for got, want in zip(
        results(way, leaves, targets, with_bias, smoothing), expected, strict=True
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_an_improbable_word_has_a_finite_loss(way):
    """With logits hundreds apart, the probability underflows, but not its logarithm."""
    leaves, targets = tensors(50, 4, scale=30.0)
    expected = results("plain", leaves, targets)
    assert expected[0] / len(targets) > 300
    for got, want in zip(results(way, leaves, targets), expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_nan_in_the_features_gives_a_nan_loss(way):
    leaves, targets = tensors(70, 4)
    with torch.no_grad():
        leaves[0][3, 2] = torch.nan
    assert results(way, leaves, targets)[0].isnan()


@pytest.mark.parametrize("way", ["rows", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_under_autocast_sums_are_exact(smoothing, way):
    """Products are rounded to bfloat16 (0.4%), the sum over 5,000 words is not."""
    leaves, targets = tensors(200, 64, words=5000, scale=0.3)
    expected = results("plain", leaves, targets, smoothing=smoothing)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results(way, leaves, targets, smoothing=smoothing)
    torch.testing.assert_close(got[0], expected[0], rtol=1e-3, atol=0)
    for a, b in zip(got[1:], expected[1:], strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() < 0.01 * b.norm()


def test_under_autocast_the_gradient_of_the_bias_is_not_rounded():
    """Each p - q sums to 0 over the words."""
    leaves, targets = tensors(200, 4, words=5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        *_, bias_grad = results("sum", leaves, targets)
    assert abs(bias_grad.sum()) < 1e-4 * bias_grad.abs().sum()


@pytest.mark.parametrize("way", ["rows", "sum"])
def test_losses_of_bfloat16_logits_are_not_rounded(way):
    """Autocast on a GPU computes them in bfloat16, that on a CPU does not."""
    leaves, targets = tensors(100, 64, words=50, dtype=torch.bfloat16)
    expected = F.cross_entropy(F.linear(*leaves).float(), targets, reduction="sum")
    torch.testing.assert_close(WAYS[way](*leaves, targets, 0.0), expected)


@pytest.mark.parametrize("words", [1, 63, 64, 65])
def test_a_gpu_gets_a_multiple_of_64_words(words, computed_as_on):
    (_, weight, bias), _ = tensors(1, 4, words)
    for got in pad_words(weight, bias):
        assert len(got) == (words if computed_as_on == "cpu" else 128 if words > 64 else 64)


def test_with_compile_a_gpu_compiles_the_loss(computed_as_on, monkeypatch):
    counted = torch._dynamo.testing.CompileCounter()
    how = functools.partial(torch.compile, backend=counted, fullgraph=True)
    monkeypatch.setattr(torch, "compile", how)
    for name in ("chunk_losses", "chunk_gradient"):  # restored after the test
        monkeypatch.setattr(loss, name, getattr(loss, name))
    compile_blocks(LanguageModel(Decoder(Config(vocab_size=9, n_layer=1, n_embd=4))))
    leaves, targets = tensors(64, 4)
    for way in ("rows", "sum"):
        torch.testing.assert_close(results(way, leaves, targets), results("plain", leaves, targets))
    assert counted.frame_count == (0 if computed_as_on == "cpu" else 2)


def test_a_second_backward_pass_over_the_same_loss_is_refused():
    """The gradients are scaled in place: a second pass would scale them twice."""
    (x, weight, bias), targets = tensors(3, 4)
    loss = 2 * LinearCrossEntropySum.apply(x, weight, bias, targets, 0.0)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError):
        loss.backward()


def test_under_autocast_both_ways_round_alike():
    leaves, targets = tensors(300, 16, words=50, scale=3.0)
    leaves[2].data += 100  # then a sum of rounded means would be far off
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert WAYS["sum"](*leaves, targets, 0.05).item() == pytest.approx(
            WAYS["rows"](*leaves, targets, 0.05).item(), rel=1e-5
        )


def largest_kept(compute):
    """Return the size of the largest tensor that autograd keeps for the backward pass."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
    ):
        compute()
    return max(kept)


def test_no_logits_are_kept_for_the_backward_pass():
    leaves, targets = tensors(1000, 4, words=50)
    largest = {
        way: largest_kept(functools.partial(WAYS[way], *leaves, targets, 0.0))
        for way in ("sum", "rows")
    }
    assert largest["sum"] == 1000 * 4 and largest["rows"] >= 64 * 50
