"""Helpers of all tests: the scripts in this process, a tiny corpus, tiny runs, and what an error looks like."""

import contextlib
import importlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from data.files import write_json
from data.tokenizer import train_tokenizer
from lab import command
from model import Config, Decoder, Encoder, LanguageModel
from nets.classifier import Classifier
from nets.thread_reader import ThreadReader

ROOT = Path(__file__).resolve().parents[1]


# Flags that make any script's model and schedule tiny; a flag given later on the command line wins.
TINY = (
    "--n-layer",
    "1",
    "--n-head",
    "2",
    "--n-embd",
    "16",
    "--n-ffn",
    "20",
    "--block-size",
    "12",
    "--batch-size",
    "4",
)


SHORT = {
    "train_lm": (*TINY, "--steps", "8", "--eval-every", "4"),
    "train_mlm": (*TINY, "--steps", "8", "--eval-every", "4", "--valid", "0.2"),
    "train_classifier": (*TINY, "--epochs", "4", "--valid", "0.2"),
    "train_seq2seq": (*TINY, "--steps", "8", "--eval-every", "4", "--valid", "0.2"),
}


SCRIPTS = tuple(SHORT)


@dataclass
class Outcome:
    code: int
    out: str
    err: str


def script_module(script):
    """The module of a script, in whichever room it is."""
    rooms = ("beyond", "studies", "bench")
    return importlib.import_module(
        next(
            (f"{room}.{script}" for room in rooms if (ROOT / room / f"{script}.py").exists()),
            script,
        )
    )


def call(script, *argv):
    """A training script's command line in this process, where it costs no start-up. A traceback fails the test that calls."""
    module = script_module(script)
    return call_main(module, module.train, *argv)


def call_main(module, main, *argv):
    """The same for any script with a function `main` of its Flags."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, [module.__name__.split(".")[-1] + ".py", *map(str, argv)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command.main(main, module.Flags, module.__doc__.split("\n")[0])
        code = 0
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


SAID = {
    "obama": ("hope", "change", "folks", "health"),
    "wbush": ("terror", "freedom", "texas", "ranch"),
    "hbush": ("points", "light", "prudent", "gulf"),
}


def sentence(speaker, number):
    """One of many sentences; which words it has tells who speaks."""
    words = SAID[speaker]
    return (
        f"{words[number % 4]} and {words[number // 4 % 4]} matter , my friends of number {number} , "
        f"{'so let us' if number % 3 else 'and we must'} work{' harder today' * (number % 2)} ."
    )


def write_corpus(folder):
    """60 training rows, 15 test rows of which 6 also stand among the training rows, and text with three test sets."""
    folder.mkdir(parents=True)
    row = "{}\t{}\n".format
    train = [
        (str(label), sentence(speaker, number))
        for number in range(20)
        for label, speaker in enumerate(SAID)
    ]
    test = train[:6] + [
        (str(label), sentence(speaker, number))
        for number in range(30, 33)
        for label, speaker in enumerate(SAID)
    ]
    lines = [sentence(speaker, number) for number in range(40, 60) for speaker in SAID] + [
        "So I said : " + test[0][1]
    ]
    (folder / "train_CLS.tsv").write_text("".join(row(*pair) for pair in train), encoding="utf-8")
    (folder / "test_CLS.tsv").write_text("".join(row(*pair) for pair in test), encoding="utf-8")
    (folder / "train_LM.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for speaker in SAID:
        unheard = [sentence(speaker, number) for number in range(70, 75)] + [
            f"Zanzibar is unheard of by {speaker} ."
        ]
        (folder / f"test_LM_{speaker}.txt").write_text("\n".join(unheard) + "\n", encoding="utf-8")
    return folder


def contents(folder):
    """{relative path: bytes} of all files below a folder, to see that nothing changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def same(a, b):
    """Whether two nested values are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


# With dropout, so that the random state counts.
DROPOUT = ("--dropout", "0.2", "--attn-dropout", "0.1")


def numbers(folder):
    """result.json without what depends on the machine and the moment."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {
        name: value
        for name, value in result.items()
        if name not in ("seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb", "command")
    }


def assert_complains(outcome, *parts):
    """One line on stderr that holds all of the parts, and exit code 2. (A traceback fails the test inside `cli`.)"""
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1 and outcome.err.endswith("\n"), outcome.err
    for part in parts:
        assert str(part) in outcome.err, outcome.err


WORDS = "this is a small sentence and we will work with the people of the world today . , ?"


def make_run(folder, kind="lm", tokenizer="word", **config):
    """A run folder like those of the train_*.py scripts, with random weights large enough to look somewhere."""
    tokenizer = train_tokenizer(tokenizer, [WORDS])
    reader = {"n_ancestors": 8, "ancestor_positions": "learned"}
    reader = {name: config.pop(name, value) for name, value in reader.items()}
    torch.manual_seed(0)
    config = Config(
        **{
            "vocab_size": tokenizer.get_vocab_size(),
            "n_layer": 2,
            "n_head": 2,
            "n_embd": 16,
            "init_std": 0.3,
        }
        | config
    )
    if kind == "thread":
        body = ThreadReader(config, **reader)
    else:
        body = (Decoder if kind == "lm" else Encoder)(config)
    model = Classifier(body, n_class=2) if kind == "classifier" else LanguageModel(body)
    folder.mkdir(parents=True)
    write_json(
        folder / "config.json",
        {
            "kind": kind,
            "model": vars(config),
            "classifier": {"n_class": 2},
            "classes": ["a", "b"],
            "reader": reader,
        },
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.save({"model": model.state_dict()}, folder / "best.pt")
    write_json(folder / "result.json", {})
    return folder
