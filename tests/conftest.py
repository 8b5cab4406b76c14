"""Fixtures of all tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import (
    ROOT,
    Outcome,
    call,
    command_line,
    script_of,
    subprocess_here,
    succeed,
    write_corpus,
    write_pairs,
    write_threads,
)

import attention_maps
from lab import figures
from studies import jobs

torch.set_num_threads(1)  # more threads make tiny tensors slower


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tests without the marker compute on the CPU, also in their fixtures and processes."""
    with pytest.MonkeyPatch.context() as patch:
        if not item.get_closest_marker("gpu"):
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return (yield)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture(autouse=True)
def seeded():
    """Each test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def blank_curves(monkeypatch):
    """The figures of runs are empty, since drawing takes longer than a tiny training. Those of
    whole processes, and in test_figures.py, are drawn."""
    for name in ("curves", "confusion"):
        monkeypatch.setattr(figures, name, lambda *_, **__: figures.make_figure(figsize=(1, 1)))


@pytest.fixture(name="figures")
def kept_figures(monkeypatch):
    """The figures of attention_maps.py, [(file name, figure), ...], without rendering them."""
    kept = []
    monkeypatch.setattr(
        attention_maps, "save", lambda figure, path: kept.append((path.name, figure))
    )
    return kept


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Let studies/jobs.py call its scripts in this process, which saves their start-ups."""
    monkeypatch.setattr(jobs, "subprocess", subprocess_here())


@pytest.fixture(scope="session")
def speeches():
    """The folder of the real speeches. Without it the test is skipped, and says so."""
    folder = Path(os.environ.get("POSLAB_SPEECHES") or ROOT / "data" / "speeches").resolve()
    if not (folder / "train_LM.txt").exists():
        pytest.skip("no speeches data; name its folder in POSLAB_SPEECHES")
    return folder


@pytest.fixture
def shell(tmp_path):
    """shell("train_lm", steps=2) -> Outcome of a process of its own, in the folder tmp_path."""

    def start(name, /, *argv, preexec_fn=None, **flags):
        module = script_of(name).module
        script = ["-m", module] if "." in module else [ROOT / f"{module}.py"]
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        how = dict(cwd=tmp_path, env=env, capture_output=True, preexec_fn=preexec_fn)
        words = [sys.executable, *script, *command_line(argv, flags)]
        done = subprocess.run(words, **how, encoding="utf-8")
        return Outcome(done.returncode, done.stdout, done.stderr)

    return start


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in the assignment's form. Tests that change it use `own_corpus`."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def own_corpus(tmp_path):
    return write_corpus(tmp_path / "own")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A folder of sentence pairs in en and xx."""
    return write_pairs(tmp_path_factory.mktemp("pairs") / "tiny")


@pytest.fixture(scope="session")
def threads(tmp_path_factory):
    """A file of posts with comments."""
    return write_threads(tmp_path_factory.mktemp("threads") / "tiny.jsonl")


@pytest.fixture(scope="session")
def inputs(corpus, pairs, threads, finished):
    """inputs("train_tlm") -> its first words: the data or runs that the table of scripts names."""
    places = {"corpus": corpus, "pairs": pairs, "threads": threads}

    def get(name):
        words = script_of(name).inputs
        runs = {run: finished(run) for run in ("train_lm", "train_mlm") if f"{{{run}}}" in words}
        return [word.format(**places, **runs) for word in words]

    return get


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus, pairs, threads):
    """finished("train_lm") -> the folder of a tiny run, trained once. To change it use `copied`."""
    parent = tmp_path_factory.mktemp("finished")
    places = {"corpus": corpus, "pairs": pairs, "threads": threads}

    def get(name):
        if not (parent / name / "result.json").exists():
            data = [word.format(**places) for word in script_of(name).inputs]
            succeed(call(name, *data, *script_of(name).tiny, out=parent / name))
        return parent / name

    return get


@pytest.fixture
def copied(finished, tmp_path):
    """copied("train_lm") -> a copy of this finished run, in tmp_path / "run"."""
    return lambda name: shutil.copytree(finished(name), tmp_path / "run")
