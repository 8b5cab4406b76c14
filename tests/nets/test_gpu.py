"""On a GPU: states, gradients and a training like on the CPU, and no table of T x T scores."""

import copy

import pytest
import torch
from helpers import NO_ENCODER, call, stopped_at, succeed, tiny_model

from lab.load import read_result
from model import POSITIONS, Decoder, Encoder
from nets.cached import CachedReader

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
T = 300  # from 256 on, other kernels compute
CASES = [(pos, body, {}) for pos in POSITIONS for body in (Encoder, Decoder)]
CASES = [case for case in CASES if case[0] not in NO_ENCODER or case[1] is Decoder]
CASES += [("alibi", body, dict(window=40)) for body in (Encoder, Decoder)]
CASES += [("alibi", Encoder, dict(alibi="one-sided")), ("nope", Decoder, dict(log_scale=True))]
CASES += [("learned", Encoder, dict(attn_block=64, global_tokens=2, random_keys=5))]
CASES += [("rope", Decoder, dict(nope_every=2)), ("rope", Encoder, dict(norm_first=False))]


def pair(pos, body, **more):
    """Return a model with large random weights, and its copy on the GPU."""
    how = dict(n_layer=2, n_head=4, n_embd=64, n_ffn=64, block_size=T, init_std=0.2)
    model = tiny_model(body, pos=pos, **how | more)
    return model, copy.deepcopy(model).to(DEVICE)


@pytest.mark.parametrize("pos, body, more", CASES)
def test_states_and_gradients_are_those_of_the_cpu(pos, body, more):
    here, there = pair(pos, body, **more)
    idx, mask = torch.randint(5, 30, (2, T)), torch.arange(T) < torch.tensor([[T], [T - 70]])
    targets = idx.masked_fill(~mask | (torch.rand(2, T) < 0.5), -100)
    expected = here.body(idx, mask)
    found = there.body(idx.to(DEVICE), mask.to(DEVICE)).cpu()
    torch.testing.assert_close(found[mask], expected[mask], atol=2e-3, rtol=2e-3)
    for model, device in (here, "cpu"), (there, DEVICE):
        model.loss(idx.to(device), targets, mask.to(device)).backward()
    for (name, one), two in zip(here.named_parameters(), there.parameters()):
        if one.grad is not None:
            scale = one.grad.abs().max().item() + 1e-2  # that of FIRE's last bias is zero
            error = (one.grad - two.grad.cpu()).abs().max().item()
            assert error < 1e-2 * scale, name


@pytest.mark.parametrize("pos", POSITIONS)
@torch.no_grad()
def test_a_text_read_in_parts_has_the_same_states(pos):
    _, model = pair(pos, Decoder)
    idx = torch.randint(5, 30, (1, T), device=DEVICE)
    reader = CachedReader(model.body)
    parts = [reader.read(part) for part in idx.split([250, 1, 49], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model.body(idx), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("pos", ["learned", "alibi", "rope"])
def test_a_training_ends_like_on_the_cpu(pos, tmp_path):
    how = dict(pos=pos, steps=200, n_layer=2, block_size=32, eval_every=200)
    for name, more in dict(cpu=dict(device="cpu"), gpu=dict(device=DEVICE, compile=True)).items():
        succeed(call("train_lm", **how, **more, out=tmp_path / name))
    cpu, gpu = (read_result(tmp_path / name)["perplexity/ada"] for name in ("cpu", "gpu"))
    assert gpu == pytest.approx(cpu, rel=0.03)  # bfloat16


@pytest.mark.parametrize("more", [{}, dict(members=2, pos="rope", swap_words=0.1, clip=0)])
def test_a_graph_trains_to_the_same_numbers(more, tmp_path, monkeypatch):
    how = dict(device=DEVICE, steps=60, eval_every=20, dropout=0.1) | more
    plain, graph = (tmp_path / name / "metrics.jsonl" for name in ("plain", "graph"))
    succeed(call("train_lm", **how, out=plain.parent))
    stopped_at(45, monkeypatch, "train_lm", "--graph", **how, out=graph.parent)
    assert "from step 45" in succeed(call("train_lm", "--resume", out=graph.parent)).out
    assert graph.read_text() == plain.read_text()


@pytest.mark.parametrize("pos, window", [("learned", 0), ("alibi", 0), ("rope", 0), ("alibi", 256)])
@torch.no_grad()
def test_a_long_text_needs_no_table_of_scores(pos, window):
    n = 32_768  # a table of 8 heads would take 17 GB
    how = dict(n_layer=2, n_head=8, n_embd=256, n_ffn=256, block_size=n, window=window)
    model = tiny_model(Decoder, pos=pos, **how).to(DEVICE)
    idx = torch.randint(5, 30, (1, n), device=DEVICE)
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast(DEVICE, torch.bfloat16):
        h = model.body(idx)
    assert h.isfinite().all() and torch.cuda.max_memory_allocated() < 2 * 2**30
