"""Judge one file of a submission, in a process with limits. course/isolated.py starts it."""

import contextlib
import json
import os
import re
import sys
from pathlib import Path

import torch

from course.judge import judge

NO_MEMORY = r"MemoryError:.*|\w*Error:.*([Cc]an't|[Cc]annot|not enough|[Uu]nable to) .*memory.*"
LARGEST_FILE = 100 * 2**20  # bytes


def work(file, result, seconds, memory):
    """Write {n_right, lines} of a file in the current folder. seconds: for each function;
    memory: in GB, besides what torch takes."""
    sheet = torch.load(Path(__file__).with_name("sheets.pt"), weights_only=True)[file]
    torch.set_num_threads(1)
    limit(seconds * (len(sheet) + 2), int(memory * 2**30))
    verdict = judge(Path(file), sheet, seconds)
    lines = verdict.faults if verdict.message else [verdict.status]
    too_much = f"needs more than {memory:g} GB of memory"
    lines = [re.sub(NO_MEMORY, too_much, line) for line in lines]
    found = {"n_right": verdict.n_right, "lines": lines}
    partial = f"{result}.{os.getpid()}"  # a submission that forks comes here several times
    Path(partial).write_text(json.dumps(found), encoding="utf-8")
    os.replace(partial, result)


def limit(seconds, memory):
    """Limit this process and its children, as far as the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # not on Windows

        used = Path("/proc/self/statm")
        pages = int(used.read_text().split()[0]) if used.exists() else 0
        for limited, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_FSIZE, LARGEST_FILE),
            (resource.RLIMIT_AS, pages * resource.getpagesize() + memory),
        ):
            resource.setrlimit(limited, (most, most))


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
