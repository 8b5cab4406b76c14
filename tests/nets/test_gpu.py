"""On a GPU: states, gradients and a training like on the CPU, and no table of T x T scores."""

import pytest
import torch
from helpers import NO_ENCODER, call, stopped_at, succeed

from lab.load import read_result
from model import POSITIONS
from nets.build import Options, build_model, name_replacements
from nets.cached import CachedReader

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
T = 300  # from 256 on, other kernels compute
CASES = [(pos, "lm", {}) for pos in POSITIONS]
CASES += [(pos, "mlm", {}) for pos in POSITIONS if pos not in NO_ENCODER]
CASES += [("alibi", kind, dict(window=40)) for kind in ("mlm", "lm")]
CASES += [
    ("alibi", "mlm", dict(alibi="one-sided")),
    ("nope", "lm", dict(log_scale=True)),
    ("learned", "mlm", dict(attn_block=64, global_tokens=2, random_keys=5)),
    ("rope", "lm", dict(nope_every=2)),
    ("alibi", "lm", dict(nope_every=2)),
    ("rope", "mlm", dict(norm_first=False)),
]


def pair(kind, pos, **options):
    """Return a model with large random weights, and the same with the options of a GPU."""
    size = dict(vocab_size=30, n_layer=2, n_head=4, n_embd=64, n_ffn=64, block_size=T)
    options = Options(pos=pos, init_std=0.2, **size | options)
    torch.manual_seed(0)
    here = build_model(kind, options).eval()
    there = build_model(kind, options, DEVICE).eval()
    there.load_state_dict(here.state_dict())
    assert {"ChooseKernel", "FusedLoss"} <= set(name_replacements(there))
    return here, there


@pytest.mark.parametrize("pos, kind, options", CASES)
def test_states_and_gradients_are_those_of_the_cpu(pos, kind, options):
    here, there = pair(kind, pos, **options)
    idx = torch.randint(5, 30, (2, T))
    mask = torch.arange(T) < torch.tensor([[T], [T - 70]])
    targets = idx.masked_fill(~mask | (torch.rand(2, T) < 0.5), -100)
    expected = here.body(idx, mask)
    h = there.body(idx.to(DEVICE), mask.to(DEVICE)).cpu()
    torch.testing.assert_close(h[mask], expected[mask], atol=2e-3, rtol=2e-3)
    unpadded = there.body(idx.to(DEVICE)).cpu()
    torch.testing.assert_close(unpadded, here.body(idx), atol=2e-3, rtol=2e-3)
    for model, device in (here, "cpu"), (there, DEVICE):
        model.loss(idx.to(device), targets, mask.to(device)).backward()
    for (name, a), b in zip(here.named_parameters(), there.parameters()):
        if a.grad is not None:
            scale = a.grad.abs().max().item() + 1e-2  # that of FIRE's last bias is zero
            error = (a.grad - b.grad.cpu()).abs().max().item()
            assert error < 1e-2 * scale, name


@pytest.mark.parametrize("kind", ["seq2seq", "thread"])
@torch.no_grad()
def test_a_memory_is_read_as_on_the_cpu(kind):
    torch.manual_seed(0)
    size = dict(vocab_size=30, n_layer=2, n_head=4, n_embd=64, n_ffn=64, block_size=T)
    options = Options(pos="alibi", init_std=0.2, **size)
    parts = dict(n_ancestors=2) if kind == "thread" else {}
    here = build_model(kind, options, **parts).eval()
    there = build_model(kind, options, DEVICE, **parts).eval()
    there.load_state_dict(here.state_dict())
    idx = torch.randint(5, 30, (2, T))
    mask = torch.arange(T) < torch.tensor([[T], [T - 70]])
    inputs = dict(idx=idx, source=idx.flip(1), source_mask=mask)
    if kind == "thread":
        inputs = dict(idx=idx, texts=idx, texts_mask=mask)
        inputs["ancestors"] = torch.tensor([[0, 1], [1, 0]])
        inputs["ancestors_mask"] = torch.tensor([[True, True], [True, False]])
    expected = here.body(**inputs)
    h = there.body(**{name: x.to(DEVICE) for name, x in inputs.items()})
    torch.testing.assert_close(h.cpu(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("pos", POSITIONS)
@torch.no_grad()
def test_a_text_read_in_parts_has_the_same_states(pos):
    _, model = pair("lm", pos)
    idx = torch.randint(5, 30, (1, T), device=DEVICE)
    reader = CachedReader(model.body)
    parts = []
    for part in idx.split([250, 1, 49], dim=1):
        parts.append(reader.read(part))
    torch.testing.assert_close(torch.cat(parts, 1), model.body(idx), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("pos", ["learned", "alibi", "rope"])
def test_a_training_ends_like_on_the_cpu(pos, tmp_path):
    flags = dict(pos=pos, steps=200, n_layer=2, block_size=32, eval_every=200)
    succeed(call("train_lm", **flags, device="cpu", out=tmp_path / "cpu"))
    succeed(call("train_lm", **flags, device=DEVICE, compile=True, out=tmp_path / "gpu"))
    cpu = read_result(tmp_path / "cpu")["perplexity/ada"]
    gpu = read_result(tmp_path / "gpu")["perplexity/ada"]
    assert gpu == pytest.approx(cpu, rel=0.03)  # bfloat16


@pytest.mark.parametrize("options", [{}, dict(members=2, pos="rope", swap_words=0.1, clip=0)])
def test_a_graph_trains_to_the_same_numbers(options, tmp_path, monkeypatch):
    flags = dict(device=DEVICE, steps=60, eval_every=20, dropout=0.1) | options
    plain, graph = tmp_path / "plain", tmp_path / "graph"
    succeed(call("train_lm", **flags, out=plain))
    stopped_at(45, monkeypatch, "train_lm", "--graph", **flags, out=graph)
    assert "from step 45" in succeed(call("train_lm", "--resume", out=graph)).out
    assert (graph / "metrics.jsonl").read_text() == (plain / "metrics.jsonl").read_text()


@pytest.mark.parametrize("pos, window", [("learned", 0), ("alibi", 0), ("rope", 0), ("alibi", 256)])
@torch.no_grad()
def test_a_long_text_needs_no_table_of_scores(pos, window):
    n = 32_768  # a table of 8 heads would take 17 GB
    size = dict(vocab_size=30, n_layer=2, n_head=8, n_embd=256, n_ffn=256, block_size=n)
    model = build_model("lm", Options(pos=pos, window=window, **size), DEVICE).eval()
    idx = torch.randint(5, 30, (1, n), device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast(DEVICE, torch.bfloat16):
        h = model.body(idx)
    assert h.isfinite().all()
    assert torch.cuda.max_memory_allocated() < 2 * 2**30
