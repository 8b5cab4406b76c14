"""Helpers of all tests: run a script, write tiny data, compare models."""

import contextlib
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from lab.inside.attention import measure
from lab.run import Run
from model import Encoder
from nets.build import Options, build_body, build_lm

ROOT = Path(__file__).resolve().parents[1]
SIZE = "--n-layer 1 --n-head 2 --n-embd 16 --n-ffn 20 --block-size 12 --batch-size 4".split()
NO_ENCODER = ("fire", "cope", "forget")  # encodings that need a decoder
TINY = [*SIZE, *"--steps 8 --eval-every 4".split()]


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def words_of(argv, flags):
    """Return the words of a command: n_embd=16 is --n-embd 16, resume=True is --resume, and a list
    repeats its flag."""
    words = [str(word) for word in argv]
    for name, value in flags.items():
        for each in value if isinstance(value, list) else [value]:
            words.append("--" + name.replace("_", "-"))
            words += [] if each is True else [str(each)]
    return words


def call(module, /, *argv, **flags):
    """Run a script in this process, which saves the start-up: call("train_lm", "--resume",
    n_embd=16) is `python -m train_lm --resume --n-embd 16`. A traceback fails the test."""
    out, err = io.StringIO(), io.StringIO()
    path = str(ROOT / f"{module.replace('.', '/')}.py")
    before, sys.argv = sys.argv, [path, *words_of(argv, flags)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # runpy: already imported
                runpy.run_path(path, run_name="__main__")
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


def stopped_at(n, monkeypatch, *command, **flags):
    """Return the Outcome of a script that gets a SIGINT, as of Ctrl-C, after its n-th step."""
    progress, steps = Run.progress, []

    def pressed(*args):
        steps.append(1)
        progress(*args)
        if len(steps) == n:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "progress", pressed)
        return call(*command, **flags)


def succeed(outcome):
    """Return the outcome of a command that must not have failed."""
    assert outcome.code == 0, outcome.out[-1000:] + outcome.err[-2000:]
    return outcome


def fails(outcome, *words):
    """Check that a command ended with exit code 2 and these words, without a traceback."""
    assert outcome.code == 2, outcome
    text = " ".join((outcome.out + outcome.err).replace("│", " ").split())
    assert "Traceback" not in text, text
    for word in words:
        assert word in text, text
    return text


def start(module, /, *argv, env=(), **flags):
    """Start a script as a process of its own, with its output in a pipe."""
    words = [sys.executable, *(["-m", module] if "." in module else [ROOT / f"{module}.py"])]
    settings = os.environ | {"OMP_NUM_THREADS": "1"} | dict(env)
    how = dict(cwd=ROOT, env=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return subprocess.Popen([*words, *words_of(argv, flags)], **how)


# ------------------------------------------------------------------------------------- tiny data


def sentences(n, seed=0):
    """Return n short sentences of a small vocabulary, with some structure to learn."""
    gen = torch.Generator().manual_seed(seed)
    subjects, verbs = "we they you people".split(), "want need love fear".split()
    things = "peace work hope war freedom jobs schools taxes".split()

    def pick(words):
        return words[torch.randint(len(words), (), generator=gen)]

    return [
        f"{pick(subjects)} {pick(verbs)} {pick(things)} and {pick(things)} today ."
        for _ in range(n)
    ]


def write_corpus(folder):
    """Write a folder in the assignment's form: two classes, two test sets."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = sentences(60)
    (folder / "train_LM.txt").write_text("\n".join(lines) + "\n", "utf-8")
    for i, name in enumerate(("one", "two")):
        (folder / f"test_LM_{name}.txt").write_text("\n".join(sentences(12, 5 + i)) + "\n", "utf-8")
    labelled = [("0" if "peace" in text or "hope" in text else "1", text) for text in lines[:40]]
    test = [
        ("0" if "peace" in t or "hope" in t else "1", t) for t in lines[35:40] + sentences(10, 9)
    ]
    for name, rows in (("train", labelled), ("test", test)):
        text = "".join(f"{label}\t{sentence}\n" for label, sentence in rows)
        (folder / f"{name}_CLS.tsv").write_text(text, "utf-8")
    return folder


def write_pairs(folder):
    """Write a folder of sentence pairs in en and xx: train, val and test."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, n, seed in (("train", 60, 0), ("val", 12, 1), ("test", 12, 2)):
        english = sentences(n, seed)
        other = [" ".join(word[::-1] for word in line.split()) for line in english]
        (folder / f"{name}.en").write_text("\n".join(english) + "\n", "utf-8")
        (folder / f"{name}.xx").write_text("\n".join(other) + "\n", "utf-8")
    return folder


def write_threads(path):
    """Write 25 posts with one to five comments each, some of them answers; return the path."""
    lines, texts = [], sentences(150, 3)
    for n in range(25):
        comments = []
        for k in range(1, 2 + n % 5):
            parent = f"t1_c{k - 1}" if k % 2 == 0 else f"t3_p{n}"
            comments.append({"id": f"c{k}", "parent_id": parent, "body": texts[(5 * n + k) % 150]})
        post = {"id": f"p{n}", "title": texts[5 * n], "selftext": "", "comments": comments}
        lines.append(json.dumps(post))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


# ---------------------------------------------------------------------------------------- models


def tiny_model(body=Encoder, **options):
    """Return a LanguageModel with large weights, so that attention is not nearly uniform. body:
    Encoder or Decoder. Skips the test of an encoding that needs a decoder."""
    if not body.causal and options.get("pos") in NO_ENCODER:
        pytest.skip("this encoding needs a decoder")
    size = {"vocab_size": 30, "block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 16}
    options = Options(**size | {"n_ffn": 20} | options)
    torch.manual_seed(0)
    return build_lm(build_body(options, causal=body.causal)).eval()


def read_weights(body, idx, mask=None, **inputs):
    """Return the states h (B, T, C) of a Transformer, and each layer's weights (B, H, T, S)."""
    h, records = measure(body, {"idx": idx, "mask": mask} | inputs)
    return h, [record.weights for record in records[""]]
