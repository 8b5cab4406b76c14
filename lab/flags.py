"""Flags: tyro makes the command line of a script from its dataclass `Flags`. A field is a flag, the
comment behind it the help, and a comment on a line of its own begins a group of --help. What all
training scripts share is here; the rest is in the scripts."""

import contextlib
import dataclasses
import errno
import inspect
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro

import lab.dist as dist
from data.files import UserError, printable, read_json
from lab.machine import command_of, module_of
from model import ACTIVATIONS, HEADS, POSITIONS, ConfigError
from nets.build import ALIBI_FORMS, BODIES, NORMS, ROPE_SCALES, ROPE_SPEEDS, Options, check_options

# Types of flags that choose by name
Position = Literal[tuple(POSITIONS)]
Activation = Literal[tuple(ACTIVATIONS)]
Head = Literal[tuple(HEADS)]
AlibiForm = Literal[ALIBI_FORMS]
RopeScale = Literal[ROPE_SCALES]
RopeSpeeds = Literal[ROPE_SPEEDS]
Norm = Literal[NORMS]
Body = Literal[BODIES]

# Types of flags that --help shows by what they take
Data = Annotated[str, tyro.conf.arg(metavar="DATA")]
Folder = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
RunFolder = Annotated[str, tyro.conf.arg(metavar="RUN")]
RunFolders = Annotated[list[str], tyro.conf.arg(metavar="RUN [RUN ...]")]
Texts = Annotated[list[tuple[str, ...]], tyro.conf.arg(metavar="TEXT [TEXT ...]")]
Numbers = Annotated[str, tyro.conf.arg(metavar="N,N,...")]
Split = Annotated[str, tyro.conf.arg(metavar="full|clean|I/N")]
METAVARS = {  # of other flags, by type
    int: "N",
    float: "NUMBER",
    str: "TEXT",
    int | None: "N",
    float | None: "NUMBER",
    str | None: "TEXT",
    tuple[int, ...]: "N [N ...]",
    tyro.conf.Positional[list[str]]: "TEXT [TEXT ...]",
    tyro.conf.Positional[tuple[str, ...]]: "TEXT [TEXT ...]",
}

# Limits of flags by name; other numbers are at least 0
AT_LEAST = {
    "batch_size": 1,
    "eval_every": 1,
    "eval_train": 1,
    "accumulate": 1,
    "block_size": 3,
    "n_layer": 1,
    "members": 1,
    "epochs": 1,
    "length": 1,
    "tokens": 1,
    "samples": 1,
    "rope_base": 1,
    "rope_factor": 1,
    "seed": -math.inf,
}
BELOW_1 = ("dropout", "attn_dropout", "head_dropout", "valid", "label_smoothing")

# Flags that may change on --resume: they do not change what is trained
MAY_CHANGE = (
    "resume",
    "overwrite",
    "out",
    "eval_every",
    "keep",
    "device",
    "threads",
    "compile",
    "graph",
    "accumulate",
)


# Errors of a write, which name no path
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

# What a script undoes when it ends, also in a notebook: last in, first out
AT_END = contextlib.ExitStack()


class Group:
    """The base of all flags: checks their limits."""

    def __post_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, int | float):
                least = AT_LEAST.get(name, 0)
                require(value >= least, f"{spelled(name)} {value}: must be at least {least}")
                below = name not in BELOW_1 or value < 1
                require(below, f"{spelled(name)}: must be below 1")


@dataclass
class CommonFlags(Group):
    """The flags that are the same in every training script."""

    # Run folder
    out: Folder = ""  # run folder; '': named by kind, data, position encoding and seed
    seed: int = 0  # seed of the initial weights, data order, masks and dropout
    resume: bool = False  # continue the run in --out, with its flags
    overwrite: bool = False  # delete the run in --out and start again

    # Machine
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # auto: CUDA if present
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on GPUs
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores
    kernels: bool = True  # faster attention and loss for a GPU, long blocks and many words
    compile: bool = False  # compile the blocks: takes half a minute, speeds up steps on a GPU
    accumulate: int = 1  # parts into which a batch is split, to save memory

    # Positions and attention: variants
    alibi: AlibiForm = "offset"  # form of ALiBi in an encoder
    scale_words: bool = True  # sinusoidal positions: multiply token vectors by sqrt(n_embd) first
    alibi_heads: int = 0  # ALiBi on so many heads, the others without positions; 0: on all
    hard_alibi: bool = False  # head h of --alibi-heads sees the last h tokens, without a penalty
    rope_share: float = 1.0  # share of each head's channels that rotary positions turn
    rope_speeds: RopeSpeeds = "all"  # of these channels; fastest: the slow ones stay (p-RoPE)
    rope_base: float = 10000.0  # base of the rotary angles; a larger one turns more slowly
    rope_scale: RopeScale = "none"  # how rotary positions are adapted to longer texts
    rope_factor: float = 1.0  # how many times --block-size the texts of --rope-scale are long
    nope_every: int = 0  # every n-th block attends without rotations and biases; 0: none
    random_positions: int = 0  # train on sorted random positions below this; 0: on 0, 1, 2, ...
    log_scale: bool = False  # scale queries by s log t, s trained per head (scalable softmax)
    window: int = 0  # attend only to tokens fewer than this many positions away; 0: all
    attn_block: int = 0  # attend only within blocks of this many positions; 0: everywhere
    global_tokens: int = 0  # with --window or --attn-block: these first tokens see and are seen
    random_keys: int = 0  # with --window or --attn-block: about this many random keys per block
    sinks: bool = False  # a trained number per head takes part in the softmax's sum, without value

    # Ablations: what makes training work, taken away
    residual: bool = True  # add the output of each sublayer to its input
    norm: Norm = "layer"  # none: without layer norms
    scale: bool = True  # divide scores by the square root of the head's width

    def __post_init__(self):
        require(not self.resume or self.out, "--resume: name the run with --out RUN")
        both = self.resume and self.overwrite
        require(not both, "--resume and --overwrite: give one of them")
        scaled = self.rope_scale != "none"
        longer = self.rope_factor != 1
        require(scaled == longer, "--rope-scale, --rope-factor: give both, like yarn and 4")
        is_alibi = self.pos == "alibi"
        require(is_alibi or not self.alibi_heads, "--alibi-heads: needs --pos alibi")
        problem = "--hard-alibi: needs --pos alibi --alibi-heads N"
        require(self.alibi_heads or not self.hard_alibi, problem)
        is_local = self.window > 0 or self.attn_block > 0
        if self.global_tokens or self.random_keys:
            problem = "--global-tokens, --random-keys: need --window or --attn-block"
            require(is_local, problem)
        if self.random_positions:
            fits = self.random_positions >= self.block_size and not is_local
            remedy = "at least --block-size, without --window or --attn-block"
            require(fits, f"--random-positions {self.random_positions}: {remedy}")
        super().__post_init__()

    @classmethod
    def other_defaults(cls, typed):
        """Return {field: default} that hold for the flags `typed`, {field: text}."""
        return {}


def require(holds, message):
    """Raise UserError with the message unless the condition holds."""
    if not holds:
        raise UserError(message)


def whole_numbers(text, flag, least=0, most=math.inf):
    """Return the numbers of a flag like --keep 0,100 in order. Raises UserError unless they are
    whole numbers from `least` to `most`."""
    numbers = set()
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part:
            continue
        require(part.isdecimal(), f"{flag} {text}: give whole numbers, like 32,64,128")
        number = int(part)
        require(number >= least, f"{flag} {number}: must be at least {least}")
        require(number <= most, f"{flag} {number}: must be at most {most}")
        numbers.add(number)
    return sorted(numbers)


def spelled(name):
    """Return a field's name as it is typed: "--n-head"."""
    return "--" + name.replace("_", "-")


def model_config(flags, source=None, causal=False, **values):
    """Return the Options of the flags and of other values; what neither sets is that of `source`, a
    run to start from. causal: whether the model is a decoder. Raises UserError for values that do
    not fit."""
    if source:
        options = dict(vars(source.model.body.config))
        if getattr(flags, "tie", False) and not options["tie"]:
            raise UserError(f"--tie: {flags.init_from} is not tied; give --no-tie")
    else:
        options = dict(vars(Options()))
    for name, value in vars(flags).items():
        if name in options:
            options[name] = value
    try:
        config = Options(**(options | values))
        check_options(config, causal)
    except ConfigError as error:
        raise UserError(f"{error}; see --help") from None
    return config


# --------------------------------------------------------------------------------- the command line


def parse(flags_class, script, description):
    """Return the flags on the command line of a script, a path. Raises UserError."""
    typed = read_typed(flags_class)
    defaults = {}
    if issubclass(flags_class, CommonFlags):
        defaults = find_defaults(flags_class, typed, module_of(script))
    options = {"prog": command_of(module_of(script)), "description": ""}
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(wrap(description))  # tyro would join its lines
        flags_class = in_groups(flags_class, defaults)
    elif defaults:
        options["default"] = flags_class(**defaults)
    return tyro.cli(flags_class, **options)


def in_groups(flags_class, defaults):
    """Return a dataclass of the same flags for --help: a group of flags is a dataclass in it, as
    tyro wants it, named by the first word of the comment above. defaults: see `find_defaults`."""
    fields = {field.name: field for field in dataclasses.fields(flags_class)}
    groups = {"": []}  # name: [(name, type, field)]; "" for flags without a group
    for part in flags_class.__mro__[:-1]:  # the script's own flags first
        group = ""
        for line in inspect.getsource(part).splitlines():
            heading = re.match(r"    # (\w+)", line)
            flag = re.fullmatch(r"    (\w+): .+?(?:  # (.+))?", line)
            if heading:
                group = heading[1].lower()
            elif flag and flag[1] in fields:
                field = fields.pop(flag[1])
                shown = tyro.conf.arg(
                    help=flag[2], prefix_name=False, metavar=METAVARS.get(field.type)
                )
                default = dataclasses.field(
                    default=defaults.get(field.name, field.default),
                    default_factory=field.default_factory,
                )
                members = groups.setdefault(group, [])
                members.append((field.name, Annotated[field.type, shown], default))
    members = groups.pop("")
    for name, flags in groups.items():
        kind = dataclasses.make_dataclass(name, flags, kw_only=True)
        default = dataclasses.field(default_factory=kind)
        members.append((f"group_{name}", Annotated[kind, tyro.conf.arg(name=name)], default))
    return dataclasses.make_dataclass("Flags", members, kw_only=True)


def wrap(text):
    """Return a text with its paragraphs as wide as the terminal, and its commands as they are."""
    width = min(100, shutil.get_terminal_size().columns)
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith(" "):
            paragraphs.append(paragraph)
        else:
            paragraphs.append(textwrap.fill(paragraph, width))
    return "\n\n".join(paragraphs) + "\n"


def read_typed(flags_class):
    """Return {field: text} of the flags that are typed, "" for switches, before tyro reads them.
    Raises UserError for a word that is not UTF-8 and for a missing value."""
    types = {field.name: field.type for field in dataclasses.fields(flags_class)}
    words = sys.argv[1:]
    for word in words:
        is_utf8 = word.encode("utf-8", "ignore").decode() == word
        require(is_utf8, f"{word!a}: not UTF-8; rename it")
    typed = {}
    for word, next_word in zip(words, [*words[1:], ""]):
        if not word.startswith("--"):
            continue
        name, has_value, value = word[2:].partition("=")
        name = name.replace("-", "_")
        is_switch = types.get(name, bool) is bool
        if not has_value and not is_switch:
            value = next_word
            # tyro takes a value that begins with - and a letter for a flag
            is_flag = value.startswith("-") and value.lstrip("-")[:1].isalpha()
            remedy = f"give a value, or write {word}={shlex.quote(value)}"
            require(not is_flag, f"{word} {value}: {remedy}")
        typed[name] = value
    return typed


def find_defaults(flags_class, typed, module):
    """Return {field: default} that hold for the flags `typed` of a training script, where they
    differ from those of its class."""
    fields = {field.name for field in dataclasses.fields(flags_class)}
    if "resume" in typed and "out" in typed:
        return resumed_flags(fields, typed["out"], module)
    defaults = flags_class.other_defaults(typed)
    source = typed.get("init_from") or typed.get("encoder")
    if source:
        inherited = ("tokenizer", *getattr(flags_class, "INHERITED", ()))
        defaults = defaults | source_flags(fields, source, inherited)
    return defaults


def resumed_flags(fields, folder, module):
    """Return the flags of the run to resume, which must be one of the same script."""
    saved = read_json(Path(folder).expanduser() / "config.json", "give the folder of a run")
    script = saved.get("script")
    require(script == module, f"--resume: {folder} is a run of {script}, not {module}")
    kept = fields - {"overwrite"}
    return {name: value for name, value in saved["flags"].items() if name in kept}


def source_flags(fields, folder, inherited):
    """Return the flags that a new run takes over from a run that it starts from: its architecture
    and the inherited ones."""
    saved = read_json(Path(folder).expanduser() / "config.json", "give the folder of a run")
    kept = fields - {"vocab_size"}  # as a flag, it is an upper limit
    defaults = {name: value for name, value in saved["model"].items() if name in kept}
    for name in inherited:
        if name in fields and name in saved["flags"]:
            defaults[name] = saved["flags"][name]
    return defaults


def main(script, flags_class):
    """Parse the command line and run a script: `script(flags)`. A mistake of the user's, a file
    that cannot be read or written and Ctrl-C end in one line on stderr; other errors keep their
    traceback."""
    path = Path(script.__code__.co_filename)
    set_up_streams()
    flags = None
    try:
        with AT_END:
            AT_END.callback(dist.end)
            dist.start()
            flags = parse(flags_class, path, script.__globals__["__doc__"])
            script(flags)
    except UserError as error:
        fail(path, error)
    except torch.OutOfMemoryError as error:
        fail(path, f"out of memory ({str(error)[:80]}); use a smaller model, batch or block size")
    except BrokenPipeError:  # the reader of the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None and error.errno not in WRITE_ERRORS:
            raise
        fail(path, explain(error, flags))
    except KeyboardInterrupt:
        fail(path, "interrupted", 130)


def set_up_streams():
    """Give the process an output and an error stream that can print any letter."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by 2>&-, or a program without a terminal
            setattr(sys, name, open(os.devnull, "w"))
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # letters that the terminal lacks


def explain(error, flags):
    """Return the message for an OSError: the path, the reason, and the flag that may help."""
    place = str(error.filename or "the run folder").removesuffix(".partial")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{place}: the disk is full; free some space"
    reason = error.strerror
    if isinstance(error, FileExistsError):
        reason = "exists and is not a folder"
    remedy = "check the path and its permissions"
    if flags is not None:  # the command line has been read
        flag = find_flag(place, flags)
        if flag:
            remedy += f", or give another {flag}"
    return f"{place}: {reason}; {remedy}"


def find_flag(place, flags):
    """Return the flag whose value is a path or a folder above it, else --out, or "" without one."""
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        is_positional = field.default is dataclasses.MISSING
        if isinstance(value, str) and value and not is_positional:
            if place.startswith(os.path.expanduser(value)):
                return spelled(field.name)
    return "--out" if hasattr(flags, "out") else ""


def fail(path, message, code=2):
    """Exit with one line on stderr, of the first process."""
    if dist.rank() == 0:
        print(f"{path.name}: {printable(str(message))}", file=sys.stderr)
    raise SystemExit(code)
