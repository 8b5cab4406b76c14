"""Judge students' files in a process of their own, which they can crash or keep busy for ever."""

import faulthandler
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import torch

from course.exercises import read_tasks
from course.judge import Verdict, explain

ROOT = Path(__file__).parents[1]


def judge(files, seed=0, seconds=20, folder=None):
    """Yield exercise, function and Verdict for each function of each file, {exercise: path}.

    seconds: for each function; after a crash another process goes on. folder: where it works.
    """
    left = [(name, task.name) for name in files for task in read_tasks(name)]
    files = {name: str(path) for name, path in files.items()}
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    how = dict(cwd=folder, env=os.environ | {"PYTHONPATH": paths}, text=True)
    how |= dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while left:
        job = json.dumps([files, left, seed, seconds])
        process = subprocess.Popen([sys.executable, "-m", "course.process", job], **how)
        ready = process.stdout.readline()
        for line in process.stdout:
            yield *left.pop(0), Verdict(*json.loads(line))
        said, code = process.stderr.read(), process.wait()
        if not ready:
            raise RuntimeError(f"the check does not work here:\n{said}")
        if left:  # the process ended during the first of them
            name, function = left.pop(0)
            place = re.search(rf'File "{re.escape(files[name])}", (line \d+ in \S+)', said)
            problem = f"ends Python (exit code {code}) before its results can be compared"
            if "Timeout (" in said:
                problem = f"not finished after {seconds} seconds. Does a loop never end?"
            yield name, function, Verdict("error", f"{place[1]}: {problem}" if place else problem)


def work(files, left, seed, seconds):
    """Print a line for each function that is left; what students' code prints is not shown."""
    torch.set_num_threads(1)  # for tiny tensors
    tasks = {(name, task.name): task for name in files for task in read_tasks(name)}
    for name in left:
        tasks[tuple(name)].prepare(seed)
    if (ROOT / "pyproject.toml").exists():  # a checkout: its solutions cannot be imported
        own = {path.stem for path in ROOT.iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.path = [folder for folder in sys.path if Path(folder).resolve() != ROOT]
    results, trace = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    faulthandler.enable(trace)
    results.write("ready\n")
    loaded = {}
    for name, function in left:
        faulthandler.dump_traceback_later(seconds, exit=True, file=trace)
        if name not in loaded:
            loaded[name] = load(Path(files[name]))
        answers, verdict = loaded[name]
        verdict = verdict or tasks[name, function].judge(answers, files[name])
        faulthandler.cancel_dump_traceback_later()
        results.write(json.dumps(verdict) + "\n")


def load(path):
    """Run a student's file. Return its module and None, or None and a Verdict."""
    # Dataclasses look their module up; under this name, no other file can import it
    module = sys.modules[str(path)] = types.ModuleType(str(path))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        return module, None
    except BaseException as error:
        return None, explain(error, path)


if __name__ == "__main__":
    work(*json.loads(sys.argv[1]))
