"""Helpers of all tests: one table of scripts, calls of them, tiny inputs, and comparisons."""

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import types
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch.distributed import TCPStore

from data.files import write_json
from data.tokenizer import train_tokenizer
from lab import command
from model import Config, Decoder, Encoder, LanguageModel
from nets.classifier import Classifier
from nets.thread_reader import ThreadReader

ROOT = Path(__file__).resolve().parents[1]

# ----------------------------------------------------------------------------- the table of scripts

# Flags that make any model and schedule tiny. A flag given later on the command line wins.
SIZE = "--n-layer 1 --n-head 2 --n-embd 16 --n-ffn 20 --block-size 12 --batch-size 4"
LENGTH = f"{SIZE} --steps 8 --eval-every 4"
TINY, STEPS = tuple(SIZE.split()), tuple(LENGTH.split())
DROPOUT = ("--dropout", "0.2", "--attn-dropout", "0.1")  # makes the random state count


class Script(NamedTuple):
    """A script, and the command that runs it in a second.

    Names in braces stand for inputs: {corpus}, {pairs} and {threads} are data, {train_lm} is a
    finished run. Without `tiny`, only the script's own tests run it, with smaller sizes.
    """

    module: str  # as after `python -m`
    main: str  # the function that gets the flags
    inputs: list
    tiny: tuple | None
    writes: list  # patterns of the files in --out
    kind: str  # of the runs of a training script
    falls: str  # a metric that falls in training

    @property
    def name(self):
        return self.module.split(".")[-1]

    @property
    def flags(self):
        """{name: field} of all flags, with the metadata that `flag` gave to the flag."""
        flags_class = script_module(self.module).Flags
        about = command.metadata_of(flags_class)
        return {
            field.name: SimpleNamespace(
                type=field.type, default=field.default, metadata=about[field.name]
            )
            for field in fields(flags_class)
        }


def script(module, main, inputs="", tiny=None, writes="", kind="", falls=""):
    """Make a Script of strings of words."""
    tiny = None if tiny is None else tuple(tiny.split())
    return Script(module, main, inputs.split(), tiny, writes.split(), kind, falls)


CORPUS, PAIRS, POSTS = "--data {corpus}", "--data {pairs}", "--data {threads}"
LM, MLM = "{train_lm}", "{train_mlm}"
HELD_OUT = f"{LENGTH} --valid 0.2"
THREAD = f"{LENGTH} --ancestors 3 --max-tree-size 5 --valid 0.2 --test 0.2"
CLASSIFIER = f"{SIZE} --epochs 4 --valid 0.2"
GENERATIVE = f"{SIZE} --eval-every 4 --steps 4 --class-steps 4"
RUN = "config.json tokenizer.json metrics.jsonl result.json curve.png"
RUN += " checkpoint.pt previous.pt best.pt"
ANSWERS = f"{RUN} confusion.png predictions.tsv"
NO_CURVE = ANSWERS.replace(" curve.png", "")
DEPTH, TOKENS = f"{RUN} depth.png", "tokenizer.json *.bin"
PROBE, FOLDS = "--steps 2 --blocks 4", "--folds 2 --recipes bayes --jobs 1"
TABLE = (
    script("train_lm", "train", CORPUS, LENGTH, RUN, "lm", "perplexity/train"),
    script("train_mlm", "train", CORPUS, HELD_OUT, RUN, "mlm", "perplexity/valid"),
    script("train_classifier", "train", CORPUS, CLASSIFIER, ANSWERS, "classifier"),
    script("beyond.train_seq2seq", "train", CORPUS, HELD_OUT, RUN, "seq2seq", "perplexity/valid"),
    script("beyond.train_tlm", "train", PAIRS, LENGTH, RUN, "tlm", "loss/valid"),
    script("beyond.train_thread", "train", POSTS, THREAD, DEPTH, "thread", "loss/valid"),
    script("beyond.train_generative", "train", CORPUS, GENERATIVE, NO_CURVE, "generative"),
    script("baselines", "count", CORPUS, "--order 3", "result.json"),
    script("attention_maps", "show", LM, "--text hope", "maps*.json *.png"),
    script("sample", "sample", LM, "--text hope --tokens 3"),
    script("compare", "compare", LM, "", "*.png *.md *.tex"),
    script("beyond.prepare", "prepare", "{corpus}/train_LM.txt", "--tokenizer word", TOKENS),
    script("beyond.export", "export", MLM),
    script("studies.assignment", "assignment", CORPUS),
    script("studies.clap", "study", CORPUS),
    script("studies.nope", "study", CORPUS),
    script("studies.check_numbers", "check_all", CORPUS),
    script("studies.crossvalidate", "crossvalidate", CORPUS, FOLDS, "*.json"),
    script("studies.emergence", "study", LM),
    script("studies.anchor_head", "study", LM, PROBE, "*.json anchor.*"),
    script("studies.averages", "study", LM, "--blocks 20", "*.json averages.*"),
    script("studies.probe_layers", "probe", MLM),
    script("studies.probe_order", "probe", LM, "--blocks 30", "*.json"),
    script("studies.probe_position", "probe", LM, PROBE, "*.json"),
    script("studies.ancestor_words", "study"),
    script("studies.without_unknown", "study", LM, "", "*.json unknown.*"),
    script("course.start", "start"),
    script("course.check", "check"),
    script("course.train", "train"),
    script("course.handout", "handout"),
    script("course.grade", "grade"),
    script("bench.assignment", "bench", CORPUS),
    script("bench.per_head", "train"),
    script("bench.length", "measure_lengths"),
    script("bench.speed", "bench"),
)
TRAINING = tuple(script.name for script in TABLE if script.kind)
SHORT = {script.name: script.tiny for script in TABLE if script.kind}


def script_of(name):
    """The row of the table for "train_tlm" or "beyond.train_tlm"."""
    return next(script for script in TABLE if name in (script.module, script.name))


def script_module(name):
    """The module of a script, in whichever folder it is."""
    return importlib.import_module(script_of(name).module)


# --------------------------------------------------------------------------------- calling a script


class Outcome(NamedTuple):
    """How a command ended: code, out, err = call("sample", run)."""

    code: int
    out: str
    err: str


def call(name, /, *argv, **flags):
    """Run a script's command line in this process, which saves the start-up.

    call("train_lm", "--resume", n_embd=16) is `train_lm.py --resume --n-embd 16`. A traceback
    fails the test.
    """
    return call_main(
        script_module(name), getattr(script_module(name), script_of(name).main), *argv, **flags
    )


def call_main(module, main, /, *argv, **flags):
    """The same with the module and its main function."""
    out, err = io.StringIO(), io.StringIO()
    words = command_line(argv, flags)
    before, sys.argv = sys.argv, [module.__name__.split(".")[-1] + ".py", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            command.main(main, module.Flags, module.__doc__.split("\n")[0])
        code = 0
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    return Outcome(code, out.getvalue(), err.getvalue())


def command_line(argv, flags):
    """The words of a command: n_embd=16 is --n-embd 16, resume=True is --resume, and a list
    repeats its flag."""
    words = [str(word) for word in argv]
    for name, value in flags.items():
        for each in value if isinstance(value, list) else [value]:
            words.append("--" + name.replace("_", "-"))
            words += [] if each is True else [str(each)]
    return words


def start(script, *argv, **how):
    """Start a script of the top level in a process of its own. how: arguments of Popen."""
    words, env = [sys.executable, ROOT / f"{script}.py", *map(str, argv)], {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, text=True, env=os.environ | env, **how)


def output_of(program):
    """What a program prints in a process whose sets have another order."""
    env = os.environ | {"PYTHONHASHSEED": "1", "PYTHONUTF8": "1"}
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True)
    return told.stdout.decode()


stores = []  # kept until the tests end


def open_store():
    """Start a key-value store, as torchrun does, and return its port."""
    stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    return stores[-1].port


def start_two(folder, *words, port=0):
    """Start python with these words as the two processes of a training. Their stderr goes into
    err-0.txt and err-1.txt."""
    processes, argv = [], [sys.executable, *map(str, words)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    for rank in ("0", "1"):
        given = dict(cwd=folder, env=env | {"RANK": rank, "LOCAL_RANK": rank})
        with open(folder / f"err-{rank}.txt", "w") as err:
            started = subprocess.Popen(argv, **given, stdout=subprocess.DEVNULL, stderr=err)
            processes.append(started)
    return processes


# -------------------------------------------------------------------------------------- tiny inputs

SAID = {
    "obama": ("hope", "change", "folks", "health"),
    "wbush": ("terror", "freedom", "texas", "ranch"),
    "hbush": ("points", "light", "prudent", "gulf"),
}


def sentence(speaker, number):
    """One of many sentences, whose words tell who speaks."""
    words = SAID[speaker]
    return (
        f"{words[number % 4]} and {words[number // 4 % 4]} matter , "
        f"my friends of number {number} , "
        f"{'so let us' if number % 3 else 'and we must'} work{' harder today' * (number % 2)} ."
    )


def write_corpus(folder):
    """Write a folder in the assignment's form, and return it.

    It has 60 training rows, 15 test rows, and text with three test sets. Six of the test rows are
    training rows too.
    """
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
    lines = [sentence(speaker, number) for number in range(40, 60) for speaker in SAID]
    lines.append("So I said : " + test[0][1])
    (folder / "train_CLS.tsv").write_text("".join(row(*pair) for pair in train), encoding="utf-8")
    (folder / "test_CLS.tsv").write_text("".join(row(*pair) for pair in test), encoding="utf-8")
    (folder / "train_LM.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for speaker in SAID:
        unheard = [sentence(speaker, number) for number in range(70, 75)]
        unheard.append(f"Zanzibar is unheard of by {speaker} .")
        (folder / f"test_LM_{speaker}.txt").write_text("\n".join(unheard) + "\n", encoding="utf-8")
    return folder


def write_pairs(folder):
    """Write sentence pairs as parallel files (train, val and test in en and xx); return folder."""
    folder.mkdir(parents=True)
    for name, count in (("train", 30), ("val", 6), ("test", 6)):
        for ending, word in (("en", "word"), ("xx", "mot")):
            lines = [f"{word} {n % 5} {word}{n}\n" for n in range(count)]
            (folder / f"{name}.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder


FIVE = ("one", "two", "three", "four", "five")


def write_posts(path, posts):
    """Write posts, each a title and its comments (id, id of the comment it answers, body).

    The id None is that of the post. Returns the path.
    """
    lines = []
    for n, (title, *comments) in enumerate(posts):
        said = [
            {"id": name, "parent_id": f"t1_{above}" if above else f"t3_{n}", "body": body}
            for name, above, body in comments
        ]
        lines.append(json.dumps({"id": str(n), "title": title, "comments": said}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_threads(path):
    """Write 25 posts with one to five comments each, some of them answers; return the path."""

    def comment(n, k):
        body = " ".join(FIVE[(n + k * j) % 5] for j in range(2 + k))
        return f"c{k}", f"c{k - 1 - k % 2}" if k > 1 else None, body

    posts = (
        (f"{FIVE[n % 5]} {FIVE[n // 5]}", *(comment(n, k) for k in range(1 + n % 5)))
        for n in range(25)
    )
    return write_posts(path, posts)


WORDS = "this is a small sentence and we will work with the people of the world today . , ?"


def make_run(folder, kind="lm", tokenizer="word", **config):
    """Make a run folder as the training scripts do, with random weights; return it.

    The weights are large, so that attention is not nearly uniform.
    """
    tokenizer = train_tokenizer(tokenizer, [WORDS])
    reader = {"n_ancestors": 8, "ancestor_positions": "learned"}
    reader = {name: config.pop(name, value) for name, value in reader.items()}
    torch.manual_seed(0)
    size = {"vocab_size": tokenizer.get_vocab_size(), "n_layer": 2, "n_head": 2, "n_embd": 16}
    config = Config(**size | {"init_std": 0.3} | config)
    if kind == "thread":
        body = ThreadReader(config, **reader)
    else:
        body = (Decoder if kind == "lm" else Encoder)(config)
    model = Classifier(body, n_class=2) if kind == "classifier" else LanguageModel(body)
    folder.mkdir(parents=True)
    described = {"kind": kind, "model": vars(config), "reader": reader}
    described |= {"classifier": {"n_class": 2}, "classes": ["a", "b"]}
    write_json(folder / "config.json", described)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.save({"model": model.state_dict()}, folder / "best.pt")
    write_json(folder / "result.json", {})
    return folder


def tiny_model(body=Encoder, **more):
    """A language model of a few thousand weights, large ones, so that every part matters."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=30, block_size=12, n_layer=2, n_head=2, n_embd=16, n_ffn=20)
    return LanguageModel(body(Config(**sizes | {"init_std": 0.3} | more))).eval()


# ----------------------------------------------------------------------------------- damaging files


def edit(path, how):
    """Change the content of a file by a function of bytes, or delete it if that is None."""
    content = path.read_bytes()
    path.unlink()
    if how:
        path.write_bytes(how(content))


def half(content):
    return content[: len(content) // 2]


def swap(old, new):
    return lambda content: content.replace(old, new)


def entry(**changes):
    """Set entries of a JSON file; model__n_head=3 sets an entry of an entry."""

    def apply(content):
        value = json.loads(content)
        for name, new in changes.items():
            *above, last = name.split("__")
            inside = value
            for step in above:
                inside = inside[step]
            inside[last] = new
        return json.dumps(value).encode()

    return apply


# ---------------------------------------------------------------------------------------- comparing


def contents(folder):
    """{relative path: bytes} of all files below a folder, to check that nothing changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def unchanged(folder):
    """Assert that a `with` block changes no file below a folder."""
    before = contents(folder)
    yield
    assert contents(folder) == before


def same(a, b):
    """Whether two nested values are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def maps_of(figure):
    """{title: array} of the maps of a figure."""
    return {axis.get_title(): axis.images[0].get_array() for axis in figure.axes if axis.images}


def result_of(folder):
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


COST = ("seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb", "command")


def numbers(folder):
    """result.json without what depends on the machine and the moment."""
    return {name: value for name, value in result_of(folder).items() if name not in COST}


def weights(path):
    """The weights in a checkpoint file."""
    return torch.load(path, weights_only=True)["model"]


def assert_same_run(folder, other, names=("checkpoint.pt", "best.pt")):
    """Assert that two runs have the same log, results and checkpoints, bit for bit."""
    assert (folder / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert numbers(folder) == numbers(other) and not list(folder.glob("*.partial"))
    for name in names:
        a, b = (torch.load(path / name, weights_only=True) for path in (folder, other))
        assert same(a | {"seconds": 0}, b | {"seconds": 0}), name


def subprocess_here(more=lambda script, *argv: ()):
    """Return what studies/jobs.py needs of the module subprocess: jobs run in this process.

    more: takes the words of a job, from its script on, and returns words to add.
    """

    def start(words, **_):
        script, *argv = words[2:]  # python -m SCRIPT ...
        done = call(script, *argv, *more(script, *argv))
        outputs = done.out, done.err
        return types.SimpleNamespace(returncode=done.code, communicate=lambda: outputs)

    return types.SimpleNamespace(Popen=start, PIPE=None)


def succeed(outcome):
    """Assert that a command ended with exit code 0 and an empty stderr; return its Outcome."""
    assert (outcome.code, outcome.err) == (0, ""), outcome.err
    return outcome


def train(name, /, *argv, **flags):
    """Run a training script with its tiny sizes, a flag given here wins; return its Outcome."""
    return succeed(call(name, *SHORT[name], *argv, **flags))


def assert_complains(outcome, *parts):
    """Assert that a command ended with exit code 2 and one line on stderr with all these parts."""
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1 and outcome.err.endswith("\n"), outcome.err
    for part in parts:
        assert str(part) in outcome.err, outcome.err
