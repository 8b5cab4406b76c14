"""The surroundings of the training loops: held-out lines, clipping, random states, clocks."""

import re
import types

import pytest
import torch
from helpers import SHORT, assert_complains, call, train

import train_lm
from lab.live import LiveLine
from lab.run import Run


def test_held_out_lines_of_unknown_words_are_refused(tmp_path):
    lines = ["zoo " * 50, *(f"word{i} other{i}" for i in range(40))]  # the first is not held out
    (tmp_path / "my.txt").write_text("\n".join(lines))
    argv = (*SHORT["train_mlm"], "--data", tmp_path / "my.txt", "--vocab-size", "6")
    outcome = call("train_mlm", *argv, "--out", tmp_path / "run")
    assert_complains(outcome, "my.txt", "no word of the held-out lines", "--vocab-size")
    assert not (tmp_path / "run").exists()


def test_each_member_is_clipped_as_if_trained_alone(corpus, tmp_path, monkeypatch):
    norms = []

    def clip(parameters, most):
        gradients = [p.grad for p in parameters]
        norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm().item())

    monkeypatch.setattr(train_lm, "clip_grad_norm_", clip)
    for members in ("1", "3"):
        argv = (*SHORT["train_lm"], "--data", corpus, "--steps", "1", "--members", members)
        assert call("train_lm", *argv, "--out", tmp_path / members).code == 0
    alone, *together = norms
    assert len(together) == 3 and together == pytest.approx([alone] * 3, rel=0.4)  # not a third


def test_only_the_state_of_the_gpu_in_use_is_restored(monkeypatch, tmp_path):
    restored = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *args: restored.append(args))
    run = types.SimpleNamespace(device=torch.device("cuda", 0))
    state = {"rng": torch.get_rng_state(), "cuda_rng": torch.tensor([1])}
    Run.restore_random(run, state, tmp_path)
    assert [(int(kept), str(device)) for kept, device in restored] == [(1, "cuda:0")]


def test_retraining_has_a_clock_of_its_own(corpus, tmp_path, monkeypatch):
    shown, now = [], iter(range(10**9))
    clock = types.SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: 0.0)
    monkeypatch.setattr("lab.run.time", clock)
    monkeypatch.setattr(LiveLine, "show", lambda self, text: shown.append(text))
    monkeypatch.setattr(LiveLine, "clear", lambda self: None)
    monkeypatch.setattr(LiveLine, "is_due", lambda self: True)
    train("train_classifier", "--data", corpus, "--out", tmp_path / "run")
    starts = re.findall(r"^1/(\d+) .* tokens/s  (\d+):(\d+) left$", "\n".join(shown), re.MULTILINE)
    assert len(starts) == 2  # of the search and of retraining
    for total, minutes, seconds in starts:  # one tick of the clock per step
        assert 60 * int(minutes) + int(seconds) <= 3 * int(total)
