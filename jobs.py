"""Many runs of the scripts: several at a time, none twice, with a word on how long the rest will take."""

import os
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import run as runs

HERE = Path(__file__).parent
# The file that shows a run is finished; a comparison is made anew, since its runs may be more than before.
FINISHED = {"attention_maps.py": "maps.json", "compare.py": ""}


def run_all(out, stages, at_a_time=0):
    """Run every job of a stage before the next stage begins. A job is (name, script, arguments) and writes into out/name.

    What is finished is not run again; what was interrupted goes on. at_a_time: 0 means one a core. Raises UserError
    with a script's own last line if it fails.
    """
    say = Progress(sum(map(len, stages)))
    for stage in stages:
        with ThreadPoolExecutor(at_a_time or os.cpu_count()) as pool:
            list(pool.map(lambda job: launch(Path(out), *job, say), stage))


def launch(out, name, script, arguments, say):
    folder = out / name
    finished = FINISHED.get(script, "result.json")
    if finished and (folder / finished).exists():
        say(name, "finished before")
        return
    again = ["--resume"] if script.startswith("train") and (folder / "checkpoint.pt").exists() else []
    command = [sys.executable, str(HERE / script), *map(str, arguments), *again, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise runs.UserError(f"{shlex.join(command)} failed: {lines[-1] if lines else done.returncode}")
    say(name, done.stdout.strip().splitlines()[-1])


class Progress:
    """A line for each finished run, with how many are left and a guess at the time they take."""

    def __init__(self, total):
        self.total, self.done, self.started, self.lock = total, 0, time.perf_counter(), threading.Lock()

    def __call__(self, name, words):
        with self.lock:
            self.done += 1
            left = (time.perf_counter() - self.started) / self.done * (self.total - self.done)
            print(f"[{self.done}/{self.total}, about {runs.clock(left)} left] {name}: {words}", flush=True)
