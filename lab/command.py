"""The command line of every script: a dataclass of flags becomes a parser, an error becomes one
line on stderr and exit code 2."""

import argparse
import dataclasses
import difflib
import inspect
import io
import math
import operator
import os
import re
import shlex
import sys
from pathlib import Path

import torch

from data import locks
from data.files import DataError, printable
from lab import processes
from lab.errors import UserError, require
from lab.flags import LoopFlags, ModelFlags, RunFlags, script_of, spelled, was_given
from lab.live import LiveLine
from lab.resume import started_with
from lab.signals import Interrupted, own_signals

OTHER_NAMES = {  # of flags, as other codebases call them
    "--learning-rate": "--lr",
    "--epochs": "--steps",
    "--steps": "--epochs",
    "--layers": "--n-layer",
    "--heads": "--n-head",
    "--num-heads": "--n-head",
    "--hidden-size": "--n-embd",
    "--d-model": "--n-embd",
    "--context-length": "--block-size",
    "--encoder": "--init-from",
    "--prompt": "--text",
}


def main(run_script, flags_class, description):
    """Parse the flags and run a script: `run_script(flags)`.

    A UserError or DataError, a full disk and running out of memory end in one line on stderr and
    exit code 2, a signal in exit code 128 + its number.
    """
    flags = None
    prog = Path(sys.modules[flags_class.__module__].__file__).name
    prepare_streams()
    try:
        with own_signals():
            flags = parse(flags_class, description)
            if processes.size() > 1:
                problem = "runs in one process; start it with python instead of torchrun"
                require((hasattr(flags, "timeout"), problem))
                processes.start(flags.timeout)
            if getattr(flags, "resume", False) and was_given(flags, "out"):
                started = processes.from_rank_0(lambda: started_with(flags_class, flags.out))
                flags = parse(flags_class, description, saved=started)
            run_script(flags)
    except (UserError, DataError) as error:
        fail(prog, error)
    except Interrupted as signalled:
        fail(prog, f"interrupted; {signalled.remedy}", 128 + signalled.number)
    except KeyboardInterrupt:
        fail(prog, "interrupted", 130)
    except BrokenPipeError:  # the reader of the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(prog, "stopped: nothing reads the output any more", 1)
    except (OSError, MemoryError, RuntimeError) as error:
        message = explain(error, flags)
        if message:
            fail(prog, message)
        if not processes.is_lost_peer(error):
            raise
        try:
            problem = f"one of the {processes.size()} processes ended or did not answer in time"
            remedy = "continue with --resume, with any number of processes"
            fail(prog, f"--timeout {flags.timeout}: {problem}; {remedy}", 1)
        finally:
            sys.stdout.flush()
            os._exit(1)  # threads that wait for the lost process would keep this one alive
    finally:
        locks.unlock_folders()
        processes.end()


def prepare_streams():
    """Let the script print anywhere: to closed streams, and letters that the encoding lacks."""
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:  # closed, as by 2>&-, or a program without a console
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def explain(error, flags):
    """Return what failed on this machine and the remedy, "" for an error in the code."""
    why = str(error)[:120]
    if isinstance(error, OSError):
        if error.filename is None and error.errno is None:  # not from the system
            return ""
        where = error.filename or getattr(flags, "out", "") or "the run folder"
        place = next((f"--{name}" for name in ("out", "table") if hasattr(flags, name)), "folder")
        remedy = f"check the path, free some space, or choose another {place}"
        return f"{where}: {error.strerror}; {remedy}"
    full = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if full or "allocate memory" in str(error):
        return f"out of memory ({why}); make the model, the batch or the blocks smaller"
    compiles = getattr(flags, "compile", False)
    if compiles and isinstance(error, torch._dynamo.exc.TorchDynamoException):
        return f"--compile: failed ({why}); leave --compile out"
    return ""


def fail(prog, message, code=2):
    """Exit with one line on stderr. Of several processes, only the first to fail prints."""
    if processes.first_to_fail():
        LiveLine().clear()
        print(printable(f"{prog}: {' '.join(str(message).split())}"), file=sys.stderr)
    raise SystemExit(code)


def typed_command(flags):
    """Return the command line of this script, as it was typed."""
    return shlex.join([*processes.launcher(), *script_of(flags).split(), *sys.argv[1:]])


# ---------------------------------------------------------------------------- parsing


FIRST = (RunFlags, ModelFlags, LoopFlags)  # groups in --help before the script's own


def parse(flags_class, description="", argv=None, saved=None):
    """Return the command line as an instance of a flags dataclass, with the set `given`.

    --n-head and --n_head are the same flag. saved: {name: value} that replace defaults.
    Raises UserError.
    """
    has_groups = flags_class.__bases__ != (object,)
    parser = LineParser(
        description=description,
        usage="%(prog)s [flags]" if has_groups else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=f"python {script_of(flags_class)}",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    about = metadata_of(flags_class)
    for group, fields in grouped(flags_class):
        title = "this script" if group is flags_class else group.__doc__
        section = parser.add_argument_group(title) if has_groups else parser
        for field in fields:
            add_argument(section, field, about[field.name])
    words = [
        re.sub(r"^--[\w-]+(?==|\Z)", lambda found: found[0].replace("_", "-"), word)
        for word in (sys.argv[1:] if argv is None else argv)
    ]
    for word in words:
        if any("\udc80" <= c <= "\udcff" for c in word):  # config.json could not hold it
            parser.error(f"{word}: is not UTF-8; rename it, or use a UTF-8 terminal")
        if re.fullmatch(r"--[\w-]+=--", word):  # which argparse reads as an empty list
            parser.error(f"argument {word[:-3]}: expected a value, not --")
    given = vars(parser.parse_args(words))
    flags = flags_class(**(saved or {}) | given)
    flags.given = frozenset(given)
    require(*(check_limits(name, getattr(flags, name), about[name]) for name in about))
    for group in type(flags).__mro__:
        if "check_together" in vars(group):
            group.check_together(flags)  # rules that relate two flags of a group
    return flags


def metadata_of(flags_class):
    """Return {name: metadata of `flag`}. A subclass that sets only another default, as in
    `n_layer: int = 1`, keeps the metadata of the group."""
    groups = [base for base in reversed(flags_class.__mro__) if dataclasses.is_dataclass(base)]
    fields = [field for group in groups for field in dataclasses.fields(group)]
    return {field.name: field.metadata for field in fields if field.metadata}


def grouped(flags_class):
    """Return [(group, fields)] in the order of --help: FIRST, the script's own flags, the rest."""
    ancestors = flags_class.__mro__  # begins with flags_class
    groups = {group: [] for group in (*FIRST, *ancestors)}
    for field in dataclasses.fields(flags_class):  # belongs to the group that defines it first
        owner = next(c for c in reversed(ancestors) if field.name in inspect.get_annotations(c))
        groups[owner].append(field)
    return [(group, fields) for group, fields in groups.items() if fields]


def add_argument(section, field, about):
    """Add one field of a flags dataclass to a section of --help."""
    default = about["shown"] or field.default
    empty = default in ("", None, ()) or default is False  # unlike 0
    if default is True:
        default = f"on; turn off with {spelled(field.name, False)}"
    text = about["help"]
    if not empty and not about["positional"]:
        text += f" (default: {default})"
    options = {"help": text.replace("%", "%%")}
    if field.type == list[str] and about["positional"]:
        any_number = {"nargs": "*", "default": argparse.SUPPRESS}
        options |= any_number if about["shown"] else {"nargs": "+"}
    elif field.type == list[str]:
        options |= {"action": "append", "metavar": "STR"}
    elif field.type is bool:
        off = field.default is False
        options["action"] = "store_true" if off else argparse.BooleanOptionalAction
    else:
        convert = {int: whole_number, float: finite_number, str: str}[field.type]
        options["type"] = str.lower if about["choices"] else convert  # --pos ALiBi
        options["choices"] = about["choices"]
        if not (about["choices"] or about["positional"]):
            options["metavar"] = field.type.__name__.upper()
    if about["positional"]:
        section.add_argument(field.name, **options)
    else:
        section.add_argument(spelled(field.name), dest=field.name, **options)


LIMITS = {
    "above": operator.gt,
    "at_least": operator.ge,
    "below": operator.lt,
    "at_most": operator.le,
}


def check_limits(name, value, about):
    """Return (whether a value is within the limits of its flag, the message otherwise)."""
    limits = about["limits"].items()
    words = " and ".join(f"{kind.replace('_', ' ')} {limit:,}" for kind, limit in limits)
    within = value is None or all(LIMITS[kind](value, limit) for kind, limit in limits)
    return within, f"{spelled(name)} must be {words}, got {value}"


def whole_number(word):
    """Return a whole number that fits into 64 bits. Raises ValueError."""
    if not -(2**63) <= int(word) < 2**63:
        raise ValueError
    return int(word)


def finite_number(word):
    """Return a number that is neither NaN nor infinite. Raises ValueError."""
    if not math.isfinite(float(word)):
        raise ValueError
    return float(word)


class LineParser(argparse.ArgumentParser):
    """argparse, but a mistake raises UserError instead of printing the usage."""

    def error(self, message):
        message = message.replace("ignored explicit argument", "takes no value, got")
        unknown = re.match(r"unrecognized arguments: ([^\s=]+)", message)
        if unknown and unknown[1].lower() in ("true", "false"):
            message += "; a flag that is on or off takes no value: --NAME or --no-NAME"
        elif unknown and not unknown[1].startswith("--"):
            message += "; a flag is --NAME and one value, in quotes if it has spaces"
        elif unknown:
            known = [name for action in self._actions for name in action.option_strings]
            usual = OTHER_NAMES.get(unknown[1])
            near = [usual] if usual in known else difflib.get_close_matches(unknown[1], known, 1)
            message += "".join(f"; did you mean {name}?" for name in near)
        message = message.replace("_number value", " number")  # "invalid whole_number value"
        raise UserError(f"{message}; see --help")
