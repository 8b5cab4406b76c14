"""Observe answers in a process of its own, which holds no solution: python -m course.worker JOB.

The process cannot import poslab, and has limits of time and memory. It writes a file per function:
an answer that prints, deletes files, crashes or never ends costs no other function its verdict.
"""

import contextlib
import faulthandler
import importlib.abc
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import torch

from course.cases import CHECKS
from course.observe import (
    GIGABYTES,
    Observation,
    Verdict,
    observe_answer,
    open_answer,
    settings_kept,
)

try:
    import pwd
    import resource
except ImportError:  # Windows
    pwd = None
    resource = None

ROOT = Path(__file__).parents[1]
OURS = ("course", "data", "lab", "model", "nets")  # the scripts and other folders import these
START_SECONDS = 100  # to import torch
CASES = "cases.pt"
RECURSION = 20  # frames of a function in one stack, of which faulthandler shows 100 at most


# --------------------------------------------------------------------- the process of the check


def observe_in_process(tasks, cases, seconds, folder=None, user=""):
    """Return {function: Observation} of tasks [(path, function)]; cases: {function: its cases};
    folder: where they run; user: see judge. Raises RuntimeError if no process can start."""
    observations = {}
    while len(observations) < len(tasks):
        remaining = tasks[len(observations) :]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as results:
            torch.save(cases, Path(results, CASES))
            end = run_worker(remaining, seconds, Path(results), folder, user)
            for _, function in remaining:
                file = Path(results, f"{function}.pt")
                if not file.exists():
                    break
                observations[function] = read_observation(file)
        if len(observations) < len(tasks):
            # The process ended during this function; another one does those after it
            path, function = tasks[len(observations)]
            failure = Verdict("error", explain_end(path, seconds, *end))
            observations[function] = Observation({}, [], failure)
    return observations


def run_worker(tasks, seconds, results, folder, user):
    """Let a process observe functions, until it ends. Return its exit code, None if it had to be
    killed, and what it wrote to stderr."""
    job = [[(str(path), function) for path, function in tasks], seconds, str(results)]
    command = [sys.executable, "-m", "course.worker", json.dumps(job)]
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    identity = {}
    if user:
        identity = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        for path in (results, results / CASES, Path(folder), *Path(folder).iterdir()):
            shutil.chown(path, user)
    with open(results / "stderr", "w+", encoding="utf-8", errors="replace") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            **identity,
            start_new_session=True,  # so that what it starts can be killed with it
        )
        try:
            # It ends in time by itself, unless an answer prevents that
            code = process.wait(START_SECONDS + 2 * seconds * len(tasks))
        except subprocess.TimeoutExpired:
            code = None
        finally:  # also after Ctrl-C
            kill(process)
        stderr.seek(0)
        text = stderr.read()
    if not (results / "ready").exists():
        raise RuntimeError(f"the check does not work here:\n{text}")
    return code, text


def try_user(user):
    """Start a process of this user, without answers. Raises RuntimeError if it cannot work."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as results:
            torch.save({}, Path(results, CASES))
            run_worker([], 1, Path(results), results, user)
    except (OSError, KeyError) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def kill(process):
    """End a process, and all that it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
    else:  # Windows
        process.kill()
    process.wait()


def read_observation(file):
    """Return the Observation in a file, of which an answer might have written anything."""
    saved = torch.load(file, weights_only=True)
    failure = None
    if saved["failure"]:
        failure = Verdict(*saved["failure"])
    return Observation(saved["results"], saved["gradients"], failure)


def explain_end(path, seconds, code, text):
    """Return why a process ended during a function of a file, from its exit code and its stderr."""
    frames = re.findall(rf'File "{re.escape(str(path))}", (line \d+ in (\S+))', text)
    functions = [function for _, function in frames]
    if "Timeout (" in text or code is None:
        message = f"not finished after {seconds} seconds. Does a loop never end?"
    else:
        message = f"ends Python (exit code {code}) before its results can be compared"
    for function in functions:
        if functions.count(function) >= RECURSION:
            message = f"{function} calls itself again and again. Does the recursion never end?"
    if frames:
        place = frames[0][0]
        return f"{place}: {message}"
    return message


# ------------------------------------------------------------------------ the process of answers


class Hidden(importlib.abc.MetaPathFinder):
    """Refuses to import poslab, before any other finder is asked: the solutions are in it."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] in OURS:
            message = f"No module named {fullname!r} for answers, which cannot import poslab"
            raise ModuleNotFoundError(message, name=fullname)
        return None


def hide_ours():
    """Make poslab's modules unavailable to answers. What is running keeps its references."""
    for name in list(sys.modules):
        if name.partition(".")[0] in OURS:
            del sys.modules[name]
    sys.meta_path.insert(0, Hidden())


def limit_memory():
    """Allow this process GIGABYTES more than it has now, on Linux."""
    if sys.platform == "linux":
        n_page = int(Path("/proc/self/statm").read_text().split()[0])
        limit = n_page * resource.getpagesize() + GIGABYTES * 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def work(tasks, seconds, results):
    """Write a file results/FUNCTION.pt for each of the tasks [(path, function)]."""
    cases = torch.load(Path(results, CASES), weights_only=True)
    torch.set_num_threads(1)  # for tiny tensors
    process = os.getpid()
    hide_ours()
    limit_memory()
    trace = os.fdopen(os.dup(2), "w")
    for number in (1, 2):  # what answers print is not shown
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    faulthandler.enable(trace)

    def restart():
        faulthandler.dump_traceback_later(seconds, exit=True, file=trace)

    Path(results, "ready").touch()
    for path, group in itertools.groupby(tasks, key=lambda task: task[0]):
        with settings_kept():
            restart()
            answer, failure = open_answer(path)
            for _, function in group:
                restart()
                observation = Observation({}, [], failure)
                if answer:
                    check = CHECKS[function]
                    inputs = cases[function]
                    observation = observe_answer(answer, function, check, inputs, restart)
                if os.getpid() != process:
                    os._exit(0)  # a copy that an answer made with os.fork
                faulthandler.cancel_dump_traceback_later()
                write_observation(observation, Path(results, f"{function}.pt"))


def write_observation(observation, file):
    """Write an Observation in one step, as plain tensors without their graphs."""
    saved = {
        "results": {i: plain(tensors) for i, tensors in observation.results.items()},
        "gradients": [plain(tensors) for tensors in observation.gradients],
        "failure": list(observation.failure or ()),
    }
    partial = file.with_suffix(".partial")
    torch.save(saved, partial)
    partial.replace(file)


def plain(tensors):
    """Return {name: tensor} without gradients, and without storage that is not the tensor's."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


if __name__ == "__main__":
    try:
        work(*json.loads(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # threads and atexit handlers of answers do not keep the process
