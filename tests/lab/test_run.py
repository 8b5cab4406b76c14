"""Run folders: exact resume, damage, and what is refused."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import filelock
import pytest
import torch
from helpers import ROOT, TINY, call, fails, start, succeed

import data.files
from lab.load import read_run

LONG = ["--steps", 60, "--eval-every", 20, "--dropout", 0.1, "--threads", 1]


def train(corpus, out, *argv, **flags):
    return call("train_lm", "--data", corpus, *TINY, *LONG, *argv, out=out, **flags)


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The folder of a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed(train(corpus, folder))
    return folder


def assert_same(folder, whole):
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    states = [torch.load(f / "best.pt", weights_only=True)["model"] for f in (folder, whole)]
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states)))


SLOW = [pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [*SLOW, signal.SIGKILL])
def test_a_killed_run_resumes_exactly(corpus, tmp_path, whole, number):
    folder = tmp_path / "run"
    process = start("train_lm", "--data", corpus, *TINY, *LONG, out=folder)
    while not (folder / "checkpoint.pt").exists() and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(number)
    printed, _ = process.communicate(timeout=60)
    if number != signal.SIGKILL and not (folder / "result.json").exists():
        assert process.returncode == 128 + number
        assert f"--resume --out {folder}" in printed
    succeed(call("train_lm", "--resume", out=folder))
    assert_same(folder, whole)


def test_a_damaged_checkpoint_is_one_message(corpus, tmp_path):
    succeed(train(corpus, tmp_path / "run"))
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"damaged")
    resumed = call("train_lm", "--resume", out=tmp_path / "run")
    fails(resumed, "checkpoint.pt: cannot be read", "train the run again")


def test_nan_ends_the_run_and_keeps_the_checkpoint(corpus, tmp_path):
    fails(train(corpus, tmp_path / "run", lr=1e30, clip=0), "training diverged", "smaller --lr")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert all(weight.isfinite().all() for weight in state["model"].values())


def test_a_full_disk_loses_nothing(corpus, tmp_path, monkeypatch):
    folder, saves, save = tmp_path / "run", [], torch.save

    def fill(state, file):
        saves.append(1)
        if len(saves) == 5:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file)

    monkeypatch.setattr(torch, "save", fill)
    fails(train(corpus, folder), "disk is full")
    assert not list(folder.glob("*.partial"))
    monkeypatch.undo()
    succeed(call("train_lm", "--resume", out=folder))


def test_a_folder_that_holds_a_run_is_replaced_only_with_overwrite(copied, corpus):
    folder = copied("train_lm")
    fails(train(corpus, folder), "already holds a run", "--resume", "--overwrite")
    (folder / "maps").mkdir()
    succeed(train(corpus, folder, overwrite=True))
    assert not (folder / "maps").exists()


def test_a_folder_of_other_files_is_never_emptied(corpus, tmp_path):
    (tmp_path / "thesis.doc").write_text("two years of work")
    fails(train(corpus, tmp_path, overwrite=True), "is not empty and no run")
    assert (tmp_path / "thesis.doc").exists()


def test_two_processes_never_train_in_one_folder(copied, corpus):
    folder = copied("train_lm")
    with filelock.FileLock(folder / ".lock"):
        fails(train(corpus, folder, overwrite=True), "another process is training there")


def test_a_run_is_not_replaced_by_the_one_that_starts_from_it(copied, corpus):
    folder = copied("train_lm")
    fails(train(corpus, folder, overwrite=True, init_from=folder), "the run that --init-from reads")


# ---------------------------------------------------------------------------- what resume refuses


def test_resume_keeps_the_flags_and_refuses_others(copied, tmp_path):
    folder = copied("train_lm")
    fails(call("train_lm", "--resume", n_layer=2, out=folder), "--n-layer 1, not 2")
    fails(call("train_lm", "--resume"), "--out RUN")
    fails(call("train_lm", "--resume", out=tmp_path), "config.json")
    other = call("train_mlm", "--resume", out=folder)
    fails(other, "a run of train_lm, not train_mlm")
    succeed(call("train_lm", "--resume", eval_every=3, threads=1, out=folder))


def test_resume_refuses_changed_data(tmp_path):
    lines = [f"line {i} of a text\n" for i in range(30)]
    (tmp_path / "own.txt").write_text("".join(lines))
    flags = dict(data=tmp_path / "own.txt", out=tmp_path / "run")
    succeed(call("train_lm", *TINY, **flags))
    (tmp_path / "own.txt").write_text("".join(lines[1:] + lines[:1]))
    fails(call("train_lm", "--resume", out=flags["out"]), "has changed since")


def test_a_run_of_other_code_is_said_to_be_so(copied):
    folder = copied("train_lm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"code": "x", "revision": "abc"}))
    assert "made at abc; the code differs" in succeed(call("train_lm", "--resume", out=folder)).out
    model = config["model"] | {"n_embd": 32}
    (folder / "config.json").write_text(json.dumps(config | {"model": model, "code": "x"}))
    with pytest.raises(data.files.UserError, match="code differs: its weights do not fit"):
        read_run(folder)


# ---------------------------------------------------------------------------- where it runs


@pytest.mark.slow
def test_home_terminals_and_notebooks(corpus, tmp_path):
    """~ is the home folder; an ASCII terminal and a notebook's backend are no obstacles."""
    env = {
        "HOME": str(tmp_path),
        "PYTHONIOENCODING": "ascii",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    process = start("train_lm", "--data", corpus, *TINY, "--out=~/run", env=env)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    assert (tmp_path / "run" / "curve.png").stat().st_size > 5000
    for words in (["--help"], ["--pos", "é"]):
        process = start("train_lm", *words, env=env)
        printed, _ = process.communicate(timeout=60)
        assert "Traceback" not in printed and "--pos" in printed


def test_missing_packages_are_named_without_a_traceback(tmp_path):
    empty = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-S", "-E", ROOT / "train_lm.py"],
        env=empty,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "torch" in done.stderr and "pip install" in done.stderr


def test_an_error_in_edited_code_keeps_its_traceback(corpus, tmp_path, monkeypatch):
    def broken(self, idx, *args, **more):
        raise ValueError("my own mistake")

    monkeypatch.setattr("model.Decoder.forward", broken)
    with pytest.raises(ValueError, match="my own mistake"):
        train(corpus, tmp_path / "run")
