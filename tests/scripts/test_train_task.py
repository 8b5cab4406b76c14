"""train_lm.py on a task, and what looks at such a run."""

import json
import re

import pytest
import torch
from helpers import call, fails, stopped_at, succeed

from lab.load import read_metrics, read_result, read_run
from train_lm import Flags, find_task

SMALL = "--data copy --length 2 --n-layer 1 --n-embd 16 --batch-size 8 --threads 1".split()
SMALL += "--pos alibi --steps 6 --eval-every 2".split()


@pytest.fixture(scope="module")
def copying(tmp_path_factory):
    """The folder of a tiny run of copy, and what it printed."""
    folder = tmp_path_factory.mktemp("task") / "run"
    return folder, succeed(call("train_lm", *SMALL, out=folder)).out


def test_a_task_measures_its_answers_by_length(copying):
    folder, printed = copying
    result, lines = read_result(folder), read_metrics(folder)
    for n in (2, 3, 4, 8):
        assert 0 <= result[f"accuracy/{n}"] == lines[-1][f"accuracy/{n}"] < 0.9
        assert 0 <= result[f"exact/{n}"] <= result[f"accuracy/{n}"]
        assert result[f"perplexity/{n}"] > 1 == result[f"floor/accuracy/{n}"]
        assert result[f"tokens/{n}"] == 400 * n
    shares = {}
    for metric in ("accuracy", "exact"):
        shares[metric] = ", ".join(f"{n}: {result[f'{metric}/{n}']:.1%}" for n in (2, 3, 4, 8))
    *_, symbols, wholes = printed.splitlines()
    assert symbols == f"symbols, each after the right ones: {shares['accuracy']}"
    assert wholes.startswith(f"whole answers, written by the model: {shares['exact']}; ")
    flags = json.loads((folder / "config.json").read_text())["flags"]
    assert (flags["n_layer"], flags["batch_size"]) == (1, 8)  # given; the task's own defaults:
    assert (flags["n_head"], flags["block_size"], flags["length"]) == (4, 17, 2)


@pytest.mark.slow
def test_a_task_learns_in_parts_of_a_batch(tmp_path):
    flags = dict(steps=150, lr=0.01, batch_size=32, eval_every=150, accumulate=2, members=2)
    succeed(call("train_lm", *SMALL, out=tmp_path / "a", **flags))
    result = read_result(tmp_path / "a")
    assert result["accuracy/2"] > 0.4 > result["accuracy/8"]
    assert result["exact/2"] == share_written_right(tmp_path / "a", 2)
    assert 0.05 < result["exact/2"] < result["accuracy/2"] - 0.05


@torch.no_grad()
def share_written_right(folder, n):
    """Return the share of copy's test lines of length n whose answer a model writes by itself."""
    model = read_run(folder).model
    inputs, targets = find_task("copy", 2).streams[str(n)]
    prompt = n + 2  # with [BOS] and the =
    idx = inputs[:, :prompt]
    for _ in range(n):
        idx = torch.cat([idx, model(idx)[:, -1:].argmax(-1)], dim=1)
    is_right = (idx[:, prompt:] == targets[:, prompt - 1 :]).all(dim=1)
    return int(is_right.sum()) / len(idx)


def test_a_task_resumes_exactly(copying, tmp_path, monkeypatch):
    stopped_at(4, monkeypatch, "train_lm", *SMALL, out=tmp_path / "a")
    done = succeed(call("train_lm", "--resume", out=tmp_path / "a"))
    assert "resuming from step 4" in done.out
    found, whole = (folder / "metrics.jsonl" for folder in (tmp_path / "a", copying[0]))
    assert found.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("flags, words", [
    (dict(valid=0.1), "--valid: --data copy is a task; leave it out"),
    (dict(block_size=8), "--block-size 8: a test line of copy has 17 tokens"),
    (dict(length=0), "--length 0: must be at least 1"),
    (dict(data="toy"), "--length: --data toy is a text"),
])  # fmt: skip
def test_what_a_task_has_no_use_for_is_one_message(tmp_path, flags, words):
    assert all(hasattr(Flags, name) for name in find_task("copy").text_flags)
    fails(call("train_lm", *SMALL, out=tmp_path / "a", **flags), words)
    fails(call("train_mlm", data="copy", out=tmp_path / "a"), "a task, which only train_lm.py")


def test_sample_answers_and_attention_maps_draw_a_line(copying):
    out = succeed(call("sample", copying[0], text=["a b c =", "z ="])).out
    answers = re.findall(r"^--- answer, (.*)\n(.*)$", out, re.M)
    for (verdict, line), prompt in zip(answers, ("a b c", "z"), strict=True):
        assert line.startswith(f"{prompt} = ") and len(line) == 2 * len(prompt) + 3
        assert verdict == ("right" if line.endswith(f"= {prompt}") else f"wrong: {prompt} is right")
    fails(call("sample", copying[0], text="a b"), "no prompt of copy; give one like")
    out = succeed(call("attention_maps", copying[0])).out
    assert "FAIL" not in out and "unknown" not in out and " induction " in out
