"""What the tests share: a tiny corpus in the assignment's form, the scripts' command line, and tiny finished runs."""

import contextlib
import importlib
import io
import os
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that `pytest` finds the modules without an installation

import run as runs  # noqa: E402  (needs the path)

torch.set_num_threads(1)  # tiny tensors: more threads only get in each other's way

# Flags that make any script's model and schedule tiny; a flag given later on the command line wins.
TINY = ("--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--n-ffn", "20", "--block-size", "12", "--batch-size", "4")
SHORT = {"train_lm": (*TINY, "--steps", "8", "--eval-every", "4"),
         "train_mlm": (*TINY, "--steps", "8", "--eval-every", "4", "--valid", "0.2"),
         "train_classifier": (*TINY, "--epochs", "4", "--valid", "0.2"),
         "train_seq2seq": (*TINY, "--steps", "8", "--eval-every", "4", "--valid", "0.2")}
SCRIPTS = tuple(SHORT)


@pytest.fixture(autouse=True)
def seeded():
    """Each test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def call(script, *argv):
    """A training script's command line in this process, where it costs no start-up. A traceback fails the test that calls."""
    module = importlib.import_module(script)
    return call_main(module, module.train, *argv)


def call_main(module, main, *argv):
    """The same for any script with a function `main` of its Flags."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, [module.__name__ + ".py", *map(str, argv)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runs.main(main, module.Flags, module.__doc__.split("\n")[0])
        code = 0
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture
def jobs_in_process(monkeypatch):
    """Lets jobs.py call the scripts in this process, one after the other: a study of many tiny runs costs no start-ups."""
    import jobs

    def run(command, **_):
        module = importlib.import_module(Path(command[1]).stem)
        main = next(getattr(module, name) for name in ("train", "compare", "probe") if hasattr(module, name))
        done = call_main(module, main, *command[2:])
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
        done = subprocess.run([sys.executable, ROOT / f"{script}.py", *map(str, argv)], cwd=tmp_path, capture_output=True,
                              encoding="utf-8", env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}, **more)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return start


# ---------------------------------------------------------------------------- a corpus

SAID = {"obama": ("hope", "change", "folks", "health"), "wbush": ("terror", "freedom", "texas", "ranch"),
        "hbush": ("points", "light", "prudent", "gulf")}


def sentence(speaker, number):
    """One of many sentences; which words it has tells who speaks."""
    words = SAID[speaker]
    return (f"{words[number % 4]} and {words[number // 4 % 4]} matter , my friends of number {number} , "
            f"{'so let us' if number % 3 else 'and we must'} work{' harder today' * (number % 2)} .")


def write_corpus(folder):
    """60 training rows, 15 test rows of which 6 also stand among the training rows, and text with three test sets."""
    folder.mkdir(parents=True)
    row = "{}\t{}\n".format
    train = [(str(label), sentence(speaker, number)) for number in range(20) for label, speaker in enumerate(SAID)]
    test = train[:6] + [(str(label), sentence(speaker, number))
                        for number in range(30, 33) for label, speaker in enumerate(SAID)]
    lines = [sentence(speaker, number) for number in range(40, 60) for speaker in SAID] + ["So I said : " + test[0][1]]
    (folder / "train_CLS.tsv").write_text("".join(row(*pair) for pair in train), encoding="utf-8")
    (folder / "test_CLS.tsv").write_text("".join(row(*pair) for pair in test), encoding="utf-8")
    (folder / "train_LM.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for speaker in SAID:
        unheard = [sentence(speaker, number) for number in range(70, 75)] + [f"Zanzibar is unheard of by {speaker} ."]
        (folder / f"test_LM_{speaker}.txt").write_text("\n".join(unheard) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder in the assignment's form. Shared: tests that change it use `own_corpus`."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny")


@pytest.fixture
def own_corpus(tmp_path):
    return write_corpus(tmp_path / "own")


# ---------------------------------------------------------------------------- runs


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


def contents(folder):
    """{relative path: bytes} of all files below a folder, to see that nothing changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}
