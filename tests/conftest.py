"""Fixtures of all tests."""

import importlib
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from helpers import ROOT, SHORT, Outcome, call, call_main, script_module, write_corpus

torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way


@pytest.fixture(autouse=True)
def seeded():
    """Each test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Lets jobs.py call the scripts in this process, one after the other: a study of many tiny runs costs no start-ups."""
    from studies import jobs

    def run(command, **_):
        module = importlib.import_module(command[2])
        main = next(
            getattr(module, name) for name in ("train", "compare", "probe") if hasattr(module, name)
        )
        done = call_main(module, main, *command[3:])
        return subprocess.CompletedProcess(command, done.code, done.out, done.err)

    monkeypatch.setattr(jobs, "subprocess", types.SimpleNamespace(run=run))


@pytest.fixture(scope="session")
def cli():
    """cli("train_lm", "--steps", 2) -> Outcome."""
    return call


@pytest.fixture(scope="session")
def speeches():
    """Folder of the real speeches; without it the test is skipped, and says so."""
    folder = Path(os.environ.get("POSLAB_SPEECHES") or ROOT / "data" / "speeches").resolve()
    if not (folder / "train_LM.txt").exists():
        pytest.skip("no speeches data; name its folder in POSLAB_SPEECHES")
    return folder


@pytest.fixture
def shell(tmp_path):
    """The same in a process of its own, as a user starts it, in the folder tmp_path."""

    def start(script, *argv, **more):
        done = subprocess.run(
            [sys.executable, script_module(script).__file__, *map(str, argv)],
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
            **more,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return start


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in the assignment's form. Shared: tests that change it use `own_corpus`."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def own_corpus(tmp_path):
    return write_corpus(tmp_path / "own")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus):
    """finished("train_lm") -> the folder of a tiny finished run, trained once. Tests that change it copy it first."""
    folder, made = tmp_path_factory.mktemp("finished"), {}

    def get(script):
        if script not in made:
            outcome = call(script, *SHORT[script], "--data", corpus, "--out", folder / script)
            assert outcome.code == 0, outcome.err
            made[script] = folder / script
        return made[script]

    return get
