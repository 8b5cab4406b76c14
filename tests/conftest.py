"""Fixtures of all tests."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from helpers import SIZE, TINY, call, succeed, write_corpus, write_pairs, write_threads

torch.set_num_threads(1)  # more threads make tiny tensors slower
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: nothing asks a network


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.fixture(autouse=True)
def seeded():
    """Each test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def draw_once():
    """Drawing takes most of a tiny run, so a run in this process copies what its script drew."""
    from matplotlib.figure import Figure

    savefig, drawn = Figure.savefig, {}

    def save(figure, path, **more):
        key = sys.argv[0], getattr(path, "name", "")
        if key in drawn:
            return path.write_bytes(drawn[key])
        savefig(figure, path, **more)
        if key[1] in ("curve.png", "confusion.png"):
            drawn[key] = path.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield


@pytest.fixture(scope="session")
def speeches():
    """The folder of the real speeches. Without it the test is skipped, and says so."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("POSLAB_SPEECHES") or root / "data" / "speeches").resolve()
    if not (folder / "train_LM.txt").exists():
        pytest.skip("no speeches: `python train_lm.py --data speeches`, or set POSLAB_SPEECHES")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A tiny folder in the assignment's form. To change it, use write_corpus."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A folder of sentence pairs in en and xx."""
    return write_pairs(tmp_path_factory.mktemp("pairs") / "tiny")


@pytest.fixture(scope="session")
def threads(tmp_path_factory):
    """A file of posts with comments."""
    return write_threads(tmp_path_factory.mktemp("threads") / "tiny.jsonl")


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus, pairs, threads):
    """finished("train_lm", ...) -> the folder of a tiny run, trained once per command. Do not
    change it: use `copied`."""
    parent, made = tmp_path_factory.mktemp("finished"), {}

    def get(module, *argv):
        if (module, argv) not in made:
            folder = parent / f"{module}-{len(made)}"
            data, tiny = corpus, TINY
            if module == "train_classifier":
                tiny = [*SIZE, "--epochs", "3", "--valid", "0.2"]
            if module == "train_mlm":
                tiny = [*TINY, "--valid", "0.2"]
            if module == "beyond.train_context":
                data = threads if "threads" in argv else pairs
            if "translate" in argv:
                data = pairs
            succeed(call(module, "--data", data, *tiny, *argv, out=folder))
            made[module, argv] = folder
        return made[module, argv]

    return get


@pytest.fixture
def copied(finished, tmp_path):
    """copied("train_lm") -> a copy of this finished run, in tmp_path / "run"."""
    return lambda *command: shutil.copytree(finished(*command), tmp_path / "run")
