"""The learning-rate schedule, the optimizer's groups, and what a run keeps."""

import math
import sys
import time

import pytest
import torch

import train_lm
from data.tokenizer import train_tokenizer
from lab import processes
from lab.command import fail
from lab.live import LiveLine
from lab.optim import learning_rate, make_adamw, perplexity
from lab.resume import restore_random, script_of_run
from lab.run import Run
from lab.signals import own_signals
from model import Config, Encoder, LanguageModel

# --------------------------------------------------------------------------- schedule and optimizer


@pytest.mark.parametrize(
    "warmup, decay, expected",
    [
        (0, 0.0, [1] * 10),
        (2, 0.0, [0.5] + [1] * 9),
        (2, 0.5, [0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        (0, 1.0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        (4, 1.0, [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (20, 0.5, [k / 20 for k in range(1, 11)]),
    ],
)
def test_the_schedule_rises_stays_and_falls_linearly(warmup, decay, expected):
    got = [learning_rate(step, 10, 3e-4, warmup, decay) for step in range(10)]
    assert got == pytest.approx([3e-4 * share for share in expected])


@pytest.mark.parametrize("head", ["linear", "roberta", "clap"])
def test_only_matrices_decay_and_each_parameter_has_one_group(head):
    model = LanguageModel(Encoder(Config(vocab_size=30, n_embd=16, head=head)))
    groups = make_adamw(model, 1e-3, 0.1).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(decay)
    assert len(decay) == len(list(model.parameters()))
    for name, p in model.named_parameters():
        spared = name.endswith(("bias", "beta")) or "norm" in name or ".transform.2." in name
        assert decay[id(p)] == (0.0 if spared else 0.1), name


def test_frozen_parameters_are_left_out_of_the_optimizer():
    model = LanguageModel(Encoder(Config(vocab_size=30, n_embd=16)))
    model.body.requires_grad_(False)
    trained = [p for group in make_adamw(model, 1e-3, 0.1).param_groups for p in group["params"]]
    assert [id(p) for p in trained] == [id(model.head.bias)]


def test_perplexity_is_the_exponential_of_the_mean_over_tokens():
    assert perplexity(10 * math.log(7), 10) == pytest.approx(7)
    assert perplexity(0.0, 5) == 1 and perplexity(1e9, 2) > 1e300  # no OverflowError


# ----------------------------------------------------------------------------------- the run folder


def test_the_script_of_a_run_can_be_started_again():
    for script in ("train_lm.py", "-m beyond.train_tlm", "-m beyond.train_new"):
        assert script_of_run({"script": script}) == script
    for config in ({"command": "train_lm.py --steps 3"}, {"script": "rm -r out"}):
        assert script_of_run(config) == ""


def test_only_the_state_of_the_gpu_in_use_is_restored(monkeypatch, tmp_path):
    restored = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *args: restored.append(args))
    state = {"rng": torch.get_rng_state(), "cuda_rng": torch.tensor([1])}
    restore_random(tmp_path, state, torch.device("cuda", 0))
    assert [(int(kept), str(device)) for kept, device in restored] == [(1, "cuda:0")]


def test_the_live_line_is_gone_before_a_plain_line_and_before_an_error(monkeypatch, capsys):
    live, blank = LiveLine(), "\r" + " " * 9 + "\r"
    live.show("no terminal")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "10")  # the last column stays free, so that no line wraps
    live.show("first")
    live.show("too soon")
    live.say("plain")
    assert capsys.readouterr() == ("plain\n", f"\rfirst    {blank}")
    live.shown = 0.0
    live.show("second, but too long")
    with pytest.raises(SystemExit):
        fail("train_lm.py", "wrong")
    assert capsys.readouterr() == ("", f"\rsecond, b{blank}train_lm.py: wrong\n")


def test_the_time_left_is_estimated_without_the_first_evaluation(tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def measure():
        now[0] += 1000
        return {"perplexity/train": 8.0}, "perplexity"

    flags = train_lm.Flags(out=str(tmp_path / "run"), steps=200)
    tokenizer, model = train_tokenizer("word", ["a few words"]), torch.nn.Linear(2, 2)
    with own_signals():
        run = Run("lm", flags, Config(vocab_size=8), tokenizer, torch.device("cpu"))
        run.first_step = 100  # as after --resume
        step = next(run.steps(model, torch.optim.SGD(model.parameters()), measure))
        now[0] += 1
        run.record_step(step, torch.tensor(1.0), tokens=16)
    assert "16 tokens/s  1:39 left" in capsys.readouterr().err
    run.live.clear()  # all lines share a terminal, also those of later tests


def test_the_command_to_resume_starts_as_many_processes(monkeypatch):
    starts = {1: "python", 4: "torchrun --nproc_per_node=4"}
    for size, expected in (starts | {8: "torchrun --nnodes=2 --nproc_per_node=4"}).items():
        monkeypatch.setenv("WORLD_SIZE", str(size))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(min(size, 4)))  # four on each machine
        assert processes.launcher() == expected.split()
