"""Flags: one dataclass per script, put together from the groups below. tyro makes the command line:
a field is a flag, its comment the help."""

import dataclasses
import errno
import math
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from data.files import UserError, printable, read_json
from data.text import find_task
from lab import dist
from lab.machine import module_of
from model import ACTIVATIONS, HEADS, POSITIONS, ALiBi, Architecture, Config
from nets.positions import Rotary


class Group:
    """The base of all groups: checks the limits of their flags. Numbers are at least 0."""

    AT_LEAST = dict(batch_size=1, eval_every=1, eval_train=1, accumulate=1, block_size=3, n_layer=1)
    AT_LEAST |= dict(members=1, epochs=1, length=1, rope_base=1, rope_factor=1, seed=-math.inf)
    AT_LEAST |= dict(tokens=1, samples=1)
    BELOW_1 = ("dropout", "attn_dropout", "head_dropout", "valid", "label_smoothing")

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, int | float):
                least = self.AT_LEAST.get(name, 0)
                require(value >= least, f"{spelled(name)} {value}: must be at least {least}")
        for name in self.BELOW_1:
            require((getattr(self, name, 0) or 0) < 1, f"{spelled(name)}: must be below 1")


@dataclass
class RunFlags(Group):
    data: str = "toy"  # a named corpus, a .txt, a .tsv or .csv of labelled rows, or a folder
    out: str = ""  # run folder; default: named by kind, data, position encoding and seed
    seed: int = 0  # seed of the initial weights, data order, masks and dropout
    resume: bool = False  # continue the run in --out, with its flags
    overwrite: bool = False  # delete the run in --out and start again


@dataclass
class CommonFlags(Architecture, RunFlags):
    """The flags of every training script: the run, the model, the vocabulary, the machine."""

    pos: Literal[tuple(POSITIONS)] = "learned"  # position encoding; rope: rotary, nope: none
    n_ffn: int = 100  # width of the feed-forward layer; 0: four times --n-embd
    activation: Literal[tuple(ACTIVATIONS)] = "relu"  # of the feed-forward layer
    alibi: Literal[ALiBi.FORMS] = "offset"  # form of ALiBi in an encoder
    rope_scale: Literal[Rotary.SCALES] = "none"  # adapt rotary positions to longer texts, which are

    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: CUDA if present
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores
    compile: bool = False  # compile the blocks: takes half a minute, speeds up steps on a GPU
    accumulate: int = 1  # parts into which a batch is split, to save memory

    def __post_init__(self):
        require(not (self.resume and not self.out), "--resume: name the run with --out RUN")
        require(not (self.resume and self.overwrite), "--resume and --overwrite: give one of them")
        both = (self.rope_scale == "none") == (self.rope_factor == 1)
        require(both, "--rope-scale, --rope-factor: give both, like yarn and 4")
        local, n = self.window or self.attn_block, self.random_positions
        added = self.global_tokens or self.random_keys
        require(local or not added, "--global-tokens, --random-keys: need --window or --attn-block")
        problem = f"--random-positions {n}: at least --block-size, without --window or --attn-block"
        require(not n or n >= self.block_size and not local, problem)
        super().__post_init__()


@dataclass
class LoopFlags(Group):
    """The flags of scripts that count steps."""

    steps: int = 500  # number of updates
    batch_size: int = 16  # sequences per update
    lr: float = 1e-3  # peak learning rate
    warmup: int = 0  # steps over which the learning rate rises
    decay: float = 0.5  # the learning rate falls to zero over this last share of the steps
    weight_decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # clip the gradient norm to this; 0: no limit
    eval_every: int = 100  # steps between evaluations
    keep: str = ""  # also keep the weights of these steps, as step-N.pt: 0,100

    def __post_init__(self):
        for step in whole_numbers(self.keep, "--keep"):
            require(0 <= step <= self.steps, f"--keep {step}: must be a step up to {self.steps}")
        super().__post_init__()


@dataclass
class TrainFlags(LoopFlags, CommonFlags):
    """The flags of scripts that train on one text after another."""

    vocab_from: str = ""  # corpus to take the vocabulary from, instead of --data
    init_from: str = ""  # run folder to start from: its weights, architecture and vocabulary


@dataclass
class MaskFlags(Group):
    head: Literal[HEADS] = "linear"  # output head, from hidden states to words
    mask_rate: float = 0.3  # share of tokens to predict
    mask_unit: Literal["token", "word", "span"] = "token"  # what is masked together

    def __post_init__(self):
        require(0 < self.mask_rate < 1, "--mask-rate: must be above 0 and below 1")
        super().__post_init__()


# Flags that may change on --resume: they do not change what is trained
MAY_CHANGE = "resume overwrite out eval_every keep device threads compile graph accumulate".split()


def require(holds, message):
    """Raise UserError with the message unless the condition holds."""
    if not holds:
        raise UserError(message)


def whole_numbers(text, flag):
    """Return the numbers of a flag like --keep 0,100 in order. Raises UserError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    require(all(map(str.isdecimal, parts)), f"{flag} {text}: give whole numbers, like 32,64,128")
    return sorted(set(map(int, parts)))


def spelled(name):
    """Return a field's name as it is typed: "--n-head"."""
    return "--" + name.replace("_", "-")


def model_config(flags, source=None, causal=False, **more):
    """Return the Config of the flags and of `more`; what no flag sets is that of `source`, a run to
    start from. causal: of decoders alone. Raises UserError for values that do not fit."""
    values = dict(vars(source.model.body.config if source else Config()))
    if source and getattr(flags, "tie", False) and not values["tie"]:
        raise UserError(f"--tie: {flags.init_from} is not tied; give --no-tie")
    values |= {name: value for name, value in vars(flags).items() if name in values} | more
    try:
        config = Config(**values)
        with torch.device("meta"):
            POSITIONS[config.pos](config, causal)  # raises if it cannot use this config
        if config.log_scale and not causal:
            raise ValueError("log_scale: counts the keys before a query, so it needs a decoder")
    except ValueError as error:
        raise UserError(f"{error}; see --help") from None
    return config


def parse(flags_class, script, **how):
    """Return the flags on the command line. With --resume the defaults are those of the run, which
    must be of this script; with --init-from or --encoder its architecture and `INHERITED`. A
    task, of scripts with a --length, has defaults too."""
    types, typed = {field.name: field.type for field in dataclasses.fields(flags_class)}, {}
    for word, after in zip(sys.argv[1:], [*sys.argv[2:], ""]):  # before the flags can be checked
        require(word.encode("utf-8", "ignore").decode() == word, f"{word!a}: not UTF-8; rename it")
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            name = name.replace("-", "_")
            typed[name] = value if has_value else after
            is_flag = after[:1] == "-" and after.lstrip("-")[:1].isalpha()  # to tyro
            fits = has_value or not is_flag or types.get(name, bool) is bool
            require(fits, f"{word} {after}: give a value, or write {word}={shlex.quote(after)}")
    task = find_task(typed.get("data"), typed.get("length")) if "length" in types else None
    same = task.defaults() if task else {}
    source, remedy = typed.get("init_from") or typed.get("encoder"), "give the folder of a run"
    if "resume" in typed.keys() & types.keys() and "out" in typed:
        saved = read_json(Path(typed["out"]).expanduser() / "config.json", remedy)
        own = saved.get("script")
        other = f"--resume: {typed['out']} is a run of {own}, not {module_of(script)}"
        require(own == module_of(script), other)
        kept = types.keys() & saved["flags"].keys() - {"overwrite"}
        same = {name: saved["flags"][name] for name in kept}
    elif source:
        saved = read_json(Path(source).expanduser() / "config.json", remedy)
        same |= {name: saved["model"][name] for name in types.keys() & saved["model"].keys()}
        kept = {"tokenizer", *getattr(flags_class, "INHERITED", ())} & saved["flags"].keys()
        same |= {name: saved["flags"][name] for name in kept}
        same.pop("vocab_size", None)  # the flag is an upper limit
    how |= {"default": flags_class(**same)} if same else {}
    return tyro.cli(flags_class, **how)


def main(script, flags_class):
    """Parse the command line and run a script: `script(flags)`. A mistake of the user's, a full
    disk and Ctrl-C end in one line on stderr; other errors keep their traceback."""
    path = Path(script.__code__.co_filename)
    for stream in (sys.stdout, sys.stderr):  # letters that the terminal lacks
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            dist.start()
            doc = script.__globals__["__doc__"]
            script(parse(flags_class, path, prog=path.name, description=doc))
        finally:
            dist.end()
    except UserError as error:
        fail(path, error)
    except torch.OutOfMemoryError as error:
        fail(path, f"out of memory ({str(error)[:80]}); use a smaller model, batch or block size")
    except BrokenPipeError:  # the reader of the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        fail(path, f"{error.filename or 'the run folder'}: the disk is full; free some space")
    except KeyboardInterrupt:
        fail(path, "interrupted", 130)


def fail(path, message, code=2):
    """Exit with one line on stderr, of the first process."""
    if dist.rank() == 0:
        print(f"{path.name}: {printable(str(message))}", file=sys.stderr)
    raise SystemExit(code)
