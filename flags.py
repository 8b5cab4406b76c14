"""The command line of every script: its flags, one dataclass a script, and what a mistake costs: one line and exit code 2."""

import argparse
import dataclasses
import difflib
import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import distributed
import model as models
from data import NAMES, files
from data.files import DataError, printable
from stopping import Interrupted, own_signals


class UserError(Exception):
    """A mistake of whoever started the script; the message names the flag or file and the remedy."""


# ---------------------------------------------------------------------------- flags


def flag(default, help, choices=None, positional=False):
    """A dataclass field with what the command line needs to know about it. A list[str] field may be given several times."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "positional": positional})


@dataclass
class RunFlags:
    """the run: its text, folder and machine"""

    data: str = flag("toy", f"corpus: {', '.join(NAMES)}, a folder in the assignment's or in WikiText's form or of prepare.py, "
                            "a .txt, or a .tsv of label<TAB>text")
    out: str = flag("", "run folder (default: out/KIND-DATA-POS-SEED, and the split if it is not full)")
    seed: int = flag(0, "seed of the initial weights, the data order, the masks and the dropout")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))
    dtype: str = flag("auto", "bfloat16 autocast or plain float32; auto: bfloat16 on CUDA", ("auto", "float32", "bfloat16"))
    threads: int = flag(0, "CPU threads; 0: one for models up to 128 wide, which gain little from more and leave them to "
                           "other runs, else all cores")
    compile: bool = flag(False, "compile the blocks, half a minute; worth it on a GPU")
    resume: bool = flag(False, "continue the run; with --out RUN, what is not given is as the run was started")
    overwrite: bool = flag(False, "delete the run in --out and start anew")


@dataclass
class ModelFlags:
    """the model: the assignment's base setting, unless you say otherwise"""

    pos: str = flag("learned", "how the model knows where a token is", models.POSITIONS)
    alibi: str = flag("offset", "form of ALiBi in an encoder; a decoder has the causal form", models.ALIBI_VARIANTS)
    window: int = flag(0, "attend only to tokens less than this far away; 0: to all")
    n_layer: int = flag(4, "number of blocks")
    n_head: int = flag(2, "attention heads a block")
    n_embd: int = flag(64, "width")
    n_ffn: int = flag(100, "width of the feed-forward layer; 0: four times the width")
    block_size: int = flag(32, "longest sequence, in tokens")
    norm_first: bool = flag(True, "layer norm before each sublayer (GPT-2); --no-norm-first: after it (RoBERTa)")
    activation: str = flag("relu", "of the feed-forward layer", ("relu", "gelu"))
    dropout: float = flag(0.0, "of embeddings and sublayer outputs")
    attn_dropout: float = flag(0.0, "of attention weights")
    init_std: float = flag(0.05, "standard deviation of the initial weights")


@dataclass
class TokenizerFlags:
    """the vocabulary"""

    tokenizer: str = flag("word", "word level, or byte-level BPE", ("word", "bpe"))
    vocab_size: int = flag(0, "size of the vocabulary; 0: every word of the training text, or 4000 BPE pieces")


@dataclass
class SpreadFlags:
    """several processes (torchrun), and a batch in several parts"""

    accumulate: int = flag(1, "parts that a process computes its share of a batch in, one after the other: "
                              "less memory, the same result")
    timeout: int = flag(60, "seconds to wait for another process before it counts as gone; "
                            "more where writing a checkpoint takes longer")


@dataclass
class ContinueFlags:
    """pretraining on one text, then going on with another"""

    vocab_from: str = flag("", "corpus that gives the vocabulary instead of --data: the one to continue on with --init-from")
    init_from: str = flag("", "run folder of the same script to continue from: its weights, architecture and vocabulary")


def parse(flags_class, description, argv=None, started_with=None):
    """The command line as an instance of a flags dataclass; `--n-head` and `--n_head` are the same flag. --help groups the
    flags by the dataclasses they are inherited from, under the first lines of their docstrings. started_with:
    {name: value} of flags that are not given, instead of their defaults.

    An unknown flag or a malformed value gives one line on stderr and exit code 2.
    """
    owners = [owner for owner in flags_class.__mro__ if dataclasses.is_dataclass(owner)]  # its own flags come first
    parser, groups = LineParser(description=description, allow_abbrev=False,
                                usage="%(prog)s [flags]" if len(owners) > 1 else None), {}
    for owner in owners:
        groups[owner] = parser if owner is flags_class else parser.add_argument_group(owner.__doc__.split("\n")[0])
    for field in dataclasses.fields(flags_class):
        names = ["--" + field.name.replace("_", "-")]
        default = ("" if field.default in ("", None, dataclasses.MISSING) or field.metadata["positional"]
                   else f" (default: {field.default})")
        options = dict(default=field.default, help=(field.metadata["help"] + default).replace("%", "%%"), dest=field.name)
        positional = field.metadata.get("positional")
        if positional:
            names = [field.name]
            options.pop("dest")
        if field.type == list[str]:  # argparse would append to a default, so an absent flag is left to the dataclass
            options.update({"nargs": "+"} if positional
                           else {"action": "append", "default": argparse.SUPPRESS, "metavar": "STR"})
        elif field.type is bool:
            options["action"] = "store_true" if field.default is False else argparse.BooleanOptionalAction
        else:
            choices = field.metadata["choices"]
            convert = str.lower if choices else {int: integer, float: number, str: str}[field.type]  # --pos ALiBi
            options.update(type=convert, choices=choices,
                           metavar=None if choices or positional else field.type.__name__.upper())
        # The first to have it, whoever gave it another default
        owner = [owner for owner in groups if field.name in owner.__annotations__][-1]
        groups[owner].add_argument(*names, **options)
    argv = [re.sub("^--[^=]+", lambda found: found[0].replace("_", "-"), word)
            for word in (sys.argv[1:] if argv is None else argv)]
    # Bytes that are no UTF-8, which config.json could not hold
    if any("\udc80" <= c <= "\udcff" for word in argv for c in word):
        parser.error("the command line is not UTF-8")
    values = vars(parser.parse_args(argv, argparse.Namespace(**(started_with or {}))))
    for field in dataclasses.fields(flags_class):
        if field.type != list[str] and isinstance(values.get(field.name), list):  # what argparse makes of --data=--
            parser.error(f"argument --{field.name.replace('_', '-')}: expected a value, not --")
    return flags_class(**values)


def integer(word):
    """A whole number of the command line that 64 bits hold."""
    if not -(2**63) <= int(word) < 2**63:
        raise ValueError
    return int(word)


def number(word):
    """A number of the command line, neither infinite nor none."""
    if not math.isfinite(float(word)):
        raise ValueError
    return float(word)


class LineParser(argparse.ArgumentParser):
    """argparse, but a mistake costs one line instead of a page."""

    def error(self, message):
        unknown = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        if unknown:
            near = difflib.get_close_matches(
                unknown[1], [name for action in self._actions for name in action.option_strings], 1)
            message += "".join(f"; did you mean {name}?" for name in near)
        if distributed.first_to_fail():
            print(printable(f"{self.prog}: {' '.join(message.split())}; see --help"), file=sys.stderr)
        raise SystemExit(2)


def main(train, flags_class, description, argv=None):
    """Parse the flags and run a script; mistakes of the user end in one line on stderr and exit code 2."""
    flags = parse(flags_class, description, argv)
    try:
        with own_signals():
            if distributed.size() > 1:
                require((hasattr(flags, "timeout"), "runs in one process; start it with python instead of torchrun"),
                        (getattr(flags, "timeout", 1) > 0, f"--timeout must be at least 1, got {getattr(flags, 'timeout', 1)}"))
                distributed.start(flags.timeout)
            if getattr(flags, "resume", False) and flags.out:
                from opened import started_with  # here, because it is built on this file

                flags = parse(flags_class, description, argv,
                              distributed.from_first(lambda: started_with(flags_class, flags.out)))
            train(flags)
    except (UserError, DataError) as error:
        stop(error)
    except Interrupted as signalled:
        if distributed.first_to_fail():
            print(f"\ninterrupted; {signalled.remedy}", file=sys.stderr)
        raise SystemExit(128 + signalled.number) from None
    except KeyboardInterrupt:
        again = ("; the same command with --resume goes on from the last checkpoint, if there is one"
                 if hasattr(flags, "resume") else "")
        print(f"\ninterrupted{again}", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        stop(f"{error.filename or getattr(flags, 'out', '') or 'the run folder'}: {error.strerror}; "
             "check the path, make room, or choose another --out")
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            stop(f"does not fit into memory ({str(error)[:120]}); make the model, the batch or the blocks smaller")
        if not distributed.has_lost_another(error):
            raise
        try:
            stop(f"another of the {distributed.size()} processes has gone, "
                 f"or has not answered for {flags.timeout} s (--timeout); the same command with --resume "
                 "goes on from the last checkpoint, with as many processes as you like", 1)
        finally:
            sys.stdout.flush()
            os._exit(1)  # threads that still wait for the other would keep this process from ending
    finally:
        files.let_go()
        distributed.end()


def stop(message, code=2):
    if distributed.first_to_fail():
        print(printable(f"{Path(sys.argv[0]).name}: {' '.join(str(message).split())}"), file=sys.stderr)
    raise SystemExit(code)


def require(*checks):
    """Each check is (holds, message); UserError with every message whose condition does not hold."""
    wrong = [message for holds, message in checks if not holds]
    if wrong:
        raise UserError("; ".join(wrong))


def step_checks(flags):
    """What `require` is to check of the flags of a training that counts steps."""
    return (
        (flags.steps >= 0, f"--steps must not be negative, got {flags.steps}"),
        (0 < flags.batch_size <= models.LARGEST,
         f"--batch-size must be at least 1 and at most {models.LARGEST:,}, got {flags.batch_size}"),
        (0 < getattr(flags, "accumulate", 1) <= max(1, flags.batch_size),
         f"--accumulate must be at least 1 and at most --batch-size {flags.batch_size}, "
         f"got {getattr(flags, 'accumulate', 1)}"),
        (flags.eval_every > 0, f"--eval-every must be at least 1, got {flags.eval_every}"),
        (flags.lr > 0, f"--lr must be above 0, got {flags.lr}"),
        (flags.weight_decay >= 0, f"--weight-decay must not be negative, got {flags.weight_decay}"),
        (flags.warmup >= 0, f"--warmup must not be negative, got {flags.warmup}"),
        (flags.clip >= 0, f"--clip must not be negative, got {flags.clip}"),
        (0 <= flags.decay <= 1, f"--decay must be from 0 to 1, got {flags.decay}"))


def model_config(flags, **more):
    """The model's Config from the flags of the same names; its complaints become complaints about flags.

    What the Config makes of a flag (`--n-ffn 0` is four times the width) is written back, so that config.json holds it.
    """
    names = {field.name for field in dataclasses.fields(models.Config)}
    values = {name: value for name, value in vars(flags).items() if name in names} | more
    try:
        config = models.Config(**values)
        adopt(flags, config)
        return config
    except ValueError as error:
        fields = re.compile(rf"\b({'|'.join(names)})(?= must|=)|\b(n_head|n_embd|block_size)\b")
        raise UserError(fields.sub(lambda found: "--" + found[0].replace("_", "-"), str(error))) from None


def adopt(flags, config, source=""):
    """Give the flags the values of the model that is really used.

    With a source, the flag and run folder the model comes from: UserError for a flag that asks for something else.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}
    for field in dataclasses.fields(config):
        if hasattr(flags, field.name) and field.name != "vocab_size":  # as a flag, that is a limit
            given, used = getattr(flags, field.name), getattr(config, field.name)
            if source and given not in (defaults[field.name], used):
                raise UserError(f"--{field.name.replace('_', '-')} {given}: {source} has {used}, which cannot be changed; "
                                "leave the flag out")
            setattr(flags, field.name, used)
