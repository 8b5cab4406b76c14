"""The command line of every script."""

import argparse
import dataclasses
import difflib
import math
import os
import re
import sys
from pathlib import Path

import torch

from data import locks
from data.files import DataError, printable
from lab import processes
from lab.errors import UserError, require
from lab.load import started_with
from lab.signals import Interrupted, own_signals


def parse(flags_class, description, argv=None, started_with=None):
    """The command line as an instance of a flags dataclass; `--n-head` and `--n_head` are the same flag. --help groups the
    flags by the dataclasses they are inherited from, under the first lines of their docstrings. started_with:
    {name: value} of flags that are not given, instead of their defaults.

    An unknown flag or a malformed value gives one line on stderr and exit code 2.
    """
    owners = [
        owner for owner in flags_class.__mro__ if dataclasses.is_dataclass(owner)
    ]  # its own flags come first
    parser, groups = (
        LineParser(
            description=description,
            allow_abbrev=False,
            usage="%(prog)s [flags]" if len(owners) > 1 else None,
        ),
        {},
    )
    for owner in owners:
        groups[owner] = (
            parser
            if owner is flags_class
            else parser.add_argument_group(owner.__doc__.split("\n")[0])
        )
    for field in dataclasses.fields(flags_class):
        names = ["--" + field.name.replace("_", "-")]
        default = (
            ""
            if field.default in ("", None, dataclasses.MISSING) or field.metadata["positional"]
            else f" (default: {field.default})"
        )
        options = dict(
            default=field.default,
            help=(field.metadata["help"] + default).replace("%", "%%"),
            dest=field.name,
        )
        positional = field.metadata.get("positional")
        if positional:
            names = [field.name]
            options.pop("dest")
        if (
            field.type == list[str]
        ):  # argparse would append to a default, so an absent flag is left to the dataclass
            options.update(
                {"nargs": "+"}
                if positional
                else {"action": "append", "default": argparse.SUPPRESS, "metavar": "STR"}
            )
        elif field.type is bool:
            options["action"] = (
                "store_true" if field.default is False else argparse.BooleanOptionalAction
            )
        else:
            choices = field.metadata["choices"]
            convert = (
                str.lower if choices else {int: integer, float: number, str: str}[field.type]
            )  # --pos ALiBi
            options.update(
                type=convert,
                choices=choices,
                metavar=None if choices or positional else field.type.__name__.upper(),
            )
        # The first to have it, whoever gave it another default
        owner = [owner for owner in groups if field.name in owner.__annotations__][-1]
        groups[owner].add_argument(*names, **options)
    argv = [
        re.sub("^--[^=]+", lambda found: found[0].replace("_", "-"), word)
        for word in (sys.argv[1:] if argv is None else argv)
    ]
    # Bytes that are no UTF-8, which config.json could not hold
    if any("\udc80" <= c <= "\udcff" for word in argv for c in word):
        parser.error("the command line is not UTF-8")
    values = vars(parser.parse_args(argv, argparse.Namespace(**(started_with or {}))))
    for field in dataclasses.fields(flags_class):
        if field.type != list[str] and isinstance(
            values.get(field.name), list
        ):  # what argparse makes of --data=--
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
                unknown[1], [name for action in self._actions for name in action.option_strings], 1
            )
            message += "".join(f"; did you mean {name}?" for name in near)
        if processes.first_to_fail():
            print(
                printable(f"{self.prog}: {' '.join(message.split())}; see --help"), file=sys.stderr
            )
        raise SystemExit(2)


def main(train, flags_class, description, argv=None):
    """Parse the flags and run a script; mistakes of the user end in one line on stderr and exit code 2."""
    flags = parse(flags_class, description, argv)
    try:
        with own_signals():
            if processes.size() > 1:
                require(
                    (
                        hasattr(flags, "timeout"),
                        "runs in one process; start it with python instead of torchrun",
                    ),
                    (
                        getattr(flags, "timeout", 1) > 0,
                        f"--timeout must be at least 1, got {getattr(flags, 'timeout', 1)}",
                    ),
                )
                processes.start(flags.timeout)
            if getattr(flags, "resume", False) and flags.out:
                flags = parse(
                    flags_class,
                    description,
                    argv,
                    processes.from_first(lambda: started_with(flags_class, flags.out)),
                )
            train(flags)
    except (UserError, DataError) as error:
        stop(error)
    except Interrupted as signalled:
        if processes.first_to_fail():
            print(f"\ninterrupted; {signalled.remedy}", file=sys.stderr)
        raise SystemExit(128 + signalled.number) from None
    except KeyboardInterrupt:
        again = (
            "; the same command with --resume goes on from the last checkpoint, if there is one"
            if hasattr(flags, "resume")
            else ""
        )
        print(f"\ninterrupted{again}", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        stop(
            f"{error.filename or getattr(flags, 'out', '') or 'the run folder'}: {error.strerror}; "
            "check the path, make room, or choose another --out"
        )
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            stop(
                f"does not fit into memory ({str(error)[:120]}); make the model, the batch or the blocks smaller"
            )
        if not processes.has_lost_another(error):
            raise
        try:
            stop(
                f"another of the {processes.size()} processes has gone, "
                f"or has not answered for {flags.timeout} s (--timeout); the same command with --resume "
                "goes on from the last checkpoint, with as many processes as you like",
                1,
            )
        finally:
            sys.stdout.flush()
            os._exit(1)  # threads that still wait for the other would keep this process from ending
    finally:
        locks.unlock_folders()
        processes.end()


def stop(message, code=2):
    if processes.first_to_fail():
        print(
            printable(f"{Path(sys.argv[0]).name}: {' '.join(str(message).split())}"),
            file=sys.stderr,
        )
    raise SystemExit(code)
