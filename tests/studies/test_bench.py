"""bench.py: the rivals do the work they claim, and a table is written. Speed is not tested."""

import math

import pytest
import torch

import bench

SIZE = bench.Size(1, 16, 2, 64, "gelu", 50, 2, 8)


def test_batches_have_the_announced_targets():
    for idx, targets in bench.make_batches(SIZE, "causal"):
        assert torch.equal(targets[:, :-1], idx[:, 1:]) and (targets >= 5).all()
    for idx, targets in bench.make_batches(SIZE._replace(block_size=20), "masked"):
        hidden = targets != -100
        assert hidden.sum() == 6 and (idx[hidden] == 2).all() and (idx[~hidden] >= 5).all()


@pytest.mark.parametrize(
    "name, task",
    [
        ("build_plain_gpt", "causal"),
        ("build_hugging_face", "causal"),
        ("build_hugging_face", "masked"),
    ],
)
def test_rivals_have_the_same_size_and_starting_loss_and_no_dropout(name, task):
    if name == "build_hugging_face":
        pytest.importorskip("transformers")
    theirs, loss_of = getattr(bench, name)(SIZE, task, "cpu")
    ours, _ = bench.build_poslab(SIZE, task, "cpu")
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.12)
    batch = bench.make_batches(SIZE, task)[0]
    loss = loss_of(*batch)
    assert loss.item() == pytest.approx(math.log(SIZE.vocab_size), rel=0.15)
    assert loss_of(*batch).item() == loss.item()
    loss.backward()
    assert all(p.grad is not None for n, p in theirs.named_parameters() if "bias" not in n)


def test_the_plain_gpt_is_causal():
    _, loss_of = bench.build_plain_gpt(SIZE, "causal", "cpu")
    idx, targets = bench.make_batches(SIZE, "causal")[0]
    targets[:, 4:] = -100
    before = loss_of(idx, targets).item()
    idx[:, 4:] = 4
    assert loss_of(idx, targets).item() == pytest.approx(before, abs=1e-6)


@pytest.mark.slow
def test_a_table_over_length(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SIZES", {"tiny": SIZE})
    monkeypatch.setattr(bench, "TURNS", 1)
    monkeypatch.setattr(bench, "POSITIONS", ["alibi"])
    bench.bench(bench.Flags(sizes=("tiny",), lengths=(4, 8)))
    out = capsys.readouterr().out
    assert "tiny, causal LM: 4 x 4 tokens" in out and "tiny, masked LM: 2 x 8 tokens" in out
    assert out.count("poslab alibi") == 4 and out.count("plain GPT") == 2
