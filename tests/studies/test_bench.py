"""bench.py: the rivals do the work they claim, and a table is written. Speed is not tested."""

import json
import math

import pytest
import torch
from helpers import call, succeed

import bench

SIZE = bench.SIZES["tiny"]


@pytest.mark.parametrize("task", ["masked", "causal"])
def test_batches_have_the_announced_targets(task):
    first, second, *_ = bench.make_batches(SIZE._replace(block_size=20), task)
    assert not torch.equal(first[0], second[0])
    for idx, targets in (first, second):
        if task == "masked":
            hidden = targets != -100
            assert hidden.sum() == 6 and (idx[hidden] == 2).all() and (idx[~hidden] >= 5).all()
        else:
            assert torch.equal(targets[:, :-1], idx[:, 1:]) and (targets >= 5).all()


@pytest.mark.parametrize("name", ["plain_gpt", "hugging_face"])
@pytest.mark.parametrize("task", ["masked", "causal"])
def test_rivals_have_the_same_size_and_starting_loss_and_no_dropout(name, task):
    if (name, task) == ("plain_gpt", "masked"):
        return
    pytest.importorskip("transformers")
    ours, _ = bench.poslab(SIZE, task, "learned")
    theirs, loss_of = getattr(bench, name)(SIZE, task)
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.12)
    batch = bench.make_batches(SIZE, task)[0]
    theirs.train()
    loss = loss_of(*batch)
    assert (
        loss.item() == pytest.approx(math.log(SIZE.vocab_size), rel=0.15) == loss_of(*batch).item()
    )
    loss.backward()
    weights = [(n, p) for n, p in theirs.named_parameters() if "bias" not in n]
    assert all(p.grad is not None for _, p in weights)


def test_the_plain_gpt_is_causal():
    _, loss_of = bench.plain_gpt(SIZE, "causal")
    idx, targets = bench.make_batches(SIZE, "causal")[0]
    targets[:, 4:] = -100
    other = idx.clone()
    other[:, 4:] = 7
    assert loss_of(idx, targets).item() == pytest.approx(loss_of(other, targets).item(), abs=1e-6)
    other[:, 2] = 8
    assert loss_of(idx, targets).item() != pytest.approx(loss_of(other, targets).item(), abs=1e-6)


def test_a_table_over_length_and_its_json(tmp_path):
    argv = "--sizes tiny --lengths 4 8 --tasks causal --positions alibi rope --repeats 1".split()
    done = succeed(call("bench", *argv, "--no-rivals", out=tmp_path / "bench.json"))
    rows = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert [(row["length"], row["model"]) for row in rows] == [
        (T, f"poslab {pos}") for T in (4, 8) for pos in ("alibi", "rope")
    ]
    assert all(row["train"] > 0 and row["eval_ratio"] > 0 for row in rows)
    assert "tiny, causal LM: 4 x 4 tokens" in done.out and "poslab rope" in done.out
