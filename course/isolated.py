"""Judge a file in a process of its own, so that it can harm only its own result.

course/grade.py calls judge_isolated. The process calls `work` in a copy of this file, beside one of
the judge and without the rest of this codebase.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from course.judge import judge

COMMAND = "import sys; from course.isolated import work; work(*sys.argv[1:])"
START = 60  # seconds for a process to start; importing torch can take long on a busy machine
ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "SYSTEMROOT")  # what a process gets to see


def judge_isolated(path, n_functions, tools, flags):
    """Judge a copy of a file in a process of its own; return (n_right, sentences).

    tools: folder with course/, see course/tools.py.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        work, result = Path(room, "work"), Path(room, "result.json")
        work.mkdir()
        shutil.copyfile(path, work / path.name)
        told = (path.name, result, flags.seconds, flags.memory)
        ended = run(told, tools, work, START + flags.seconds * (n_functions + 2))
        try:
            found = json.loads(result.read_text(encoding="utf-8"))
            lines = [str(line) for line in found["lines"]]
            return min(max(int(found["n_right"]), 0), n_functions), lines
        except (OSError, ValueError, KeyError, TypeError):  # none, or a forged one
            return 0, [ended]


def run(told, tools, folder, most):
    """Run `work` in a folder for at most `most` seconds. Return a sentence on how it ended."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # where a cluster may have torch
    paths = [str(tools), *(path for path in more if path.endswith("-packages"))]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, told)],
        cwd=folder,
        env=kept | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return describe(process.wait(most))
    except subprocess.TimeoutExpired:
        return f"not finished after {most} seconds. Does a loop never end?"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # what it started, too
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        process.wait()


def describe(code):
    """Return a sentence on a process that ended without a result."""
    if code >= 0:
        return f"ends the program with exit code {code} before its answers can be compared"
    if -code == signal.SIGKILL:
        return "was stopped by the system: it takes too much memory"
    return f"crashes Python ({signal.Signals(-code).name})"


def work(file, result, seconds, memory):
    """Write {n_right, lines} of a file in the current folder. seconds: for each function;
    memory: in GB, besides what torch takes. All are words of a command line."""
    sheet = torch.load(Path(__file__).with_name("sheets.pt"), weights_only=True)[file]
    torch.set_num_threads(1)
    limit_memory(float(memory))
    verdict = judge(Path(file), sheet, int(seconds))
    lines = verdict.faults if verdict.message else [verdict.status]
    found = {"n_right": verdict.n_right, "lines": lines}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def limit_memory(gigabytes):
    """Limit what this process takes from now on, where the system can: on Linux."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
