"""Repeat a run that was handed in, and say which of its numbers moved by more than 1%.

    python -m studies.repeat submissions/ada/out/lm-alibi
    python -m studies.repeat submissions/ada/out/lm-alibi --code submissions/ada/poslab

The run's command is started again, with the code here or the student's (--code). Perplexities
should agree within 1%; accuracies may move as between seeds. Student code can do whatever you can:
use a container for a stranger's. The exit code is 1 if a number moved.
"""

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from lab import tables
from lab.flags import RunFolder, main, require
from lab.load import read_result

COSTS = ("seconds", "cpu_seconds", "tokens_per_second", "processes", "peak_memory")
REPLACED = ("--out", "--device", "--threads")  # flags of the command that do not belong to it here


@dataclass
class Flags:
    run: Positional[RunFolder]  # to repeat
    code: str = ""  # folder with the student's code; '': this one
    out: str = "out/repeat"  # folder of the new run
    limit: float = 0.01  # change of a number that is reported


def repeat(flags):
    old = read_result(flags.run)
    code = Path(flags.code).expanduser().resolve()
    out = Path(flags.out).expanduser().resolve()
    command = new_command(old["command"], out)
    require((code / command[1]).exists() or command[1] == "-m", f"{code}: has no {command[1]}")
    print(shlex.join(command), flush=True)
    paths = f"{code}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(command, cwd=code, env=os.environ | {"PYTHONPATH": paths})
    require(done.returncode == 0, f"{flags.run}: its command failed with code {done.returncode}")
    rows, moved = compare(old, read_result(out), flags.limit)
    print(tables.to_markdown(["number", "handed in", "repeated", "change"], rows))
    if moved:
        print(f"\nmoved by more than {flags.limit:.0%}: {', '.join(moved)}")
        raise SystemExit(1)
    print(f"\nno number moved by more than {flags.limit:.0%}")


def new_command(text, out):
    """Return the words of a run's command, to run it anew into the folder `out`."""
    program, *words = shlex.split(text)
    require(program == "python", f"{text}: is not a command of one process that can be repeated")
    kept = []
    skip = False  # the value of a flag that is replaced
    for word in words:
        name = word.partition("=")[0]
        if skip:
            skip = False
        elif name in REPLACED:
            skip = "=" not in word
        elif name not in ("--overwrite", "--resume"):
            kept.append(word)
    return [sys.executable, *kept, "--out", str(out), "--overwrite"]


def compare(old, new, limit):
    """Return rows of a table of all measured numbers, and the names of those that moved."""
    rows = []
    moved = []
    for name, before in old.items():
        if isinstance(before, bool) or not isinstance(before, (int, float)) or name in COSTS:
            continue
        after = new.get(name)
        if not isinstance(after, (int, float)):
            moved.append(name)
            rows.append([name, f"{before:.6g}", "missing", ""])
            continue
        change = (after - before) / max(abs(before), 1e-12)
        if abs(change) > limit:
            moved.append(name)
        rows.append([name, f"{before:.6g}", f"{after:.6g}", f"{change:+.2%}"])
    return rows, moved


if __name__ == "__main__":
    main(repeat, Flags)
