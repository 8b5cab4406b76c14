"""Judge a file in a process of its own, so that it can harm only its own result."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

START = 60  # seconds for a process to start; importing torch can take long on a busy machine
ENVIRONMENT = ("PATH", "HOME", "LD_LIBRARY_PATH", "SYSTEMROOT")  # which a process gets to see


def judge_isolated(path, n_functions, tools, flags):
    """Judge a copy of a file in a process of its own; return (n_right, sentences)."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        room = Path(room)
        (room / "work").mkdir()
        shutil.copyfile(path, room / "work" / path.name)
        shutil.copytree(tools, room / "tools")
        ended = run(room, path.name, flags, START + flags.seconds * (n_functions + 2))
        try:
            found = json.loads((room / "result.json").read_text(encoding="utf-8"))
            lines = [str(line) for line in found["lines"][:n_functions]]
            return min(max(int(found["n_right"]), 0), n_functions), lines
        except (OSError, ValueError, KeyError, TypeError):
            return 0, [ended]


def run(room, file, flags, most):
    """Run course/worker.py for at most `most` seconds. Return a sentence on how it ended."""
    told = (file, room / "result.json", flags.seconds, flags.memory)
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # where a cluster may have torch
    paths = [str(room / "tools"), *(path for path in more if path.endswith("-packages"))]
    process = subprocess.Popen(
        [sys.executable, "-m", "course.worker", *map(str, told)],
        cwd=room / "work",
        env=kept | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(room / "work")},
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
        stop(process)


def describe(code):
    """Return a sentence on a process that ended without a result."""
    if code >= 0:
        return f"ends the program with exit code {code} before its answers can be compared"
    if -code in (signal.SIGKILL, signal.SIGXCPU):
        return "was stopped by the system: it takes too much time or memory"
    return f"crashes Python ({signal.Signals(-code).name})"


def stop(process):
    """End a process and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()
