"""Many runs of the scripts: several at a time, none twice, with a word on how long the rest will take."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.errors import UserError
from lab.live import clock
from lab.records import can_resume

ROOT = Path(__file__).parents[1]
# The file that shows a run is finished; a comparison is made anew, since its runs may be more than before.
FINISHED = {"attention_maps": "maps.json", "compare": ""}


def run_all(out, stages, at_a_time=0, cost=lambda arguments: 1.0):
    """Run every job of a stage before the next stage begins. A job is (name, script, arguments) and writes into out/name.

    What is finished is not run again; what was interrupted goes on. at_a_time: 0 means one a core. cost: of a job by its
    arguments, in any unit; the time left is foretold from it. Raises UserError with a script's own last line if it fails.
    """
    progress = Progress(
        Path(out),
        {name: cost(list(map(str, arguments))) for stage in stages for name, _, arguments in stage},
    )
    with progress:
        for stage in stages:
            with ThreadPoolExecutor(at_a_time or os.cpu_count()) as pool:
                list(pool.map(lambda job: launch(Path(out), *job, progress), stage))


def launch(out, name, script, arguments, progress):
    folder, arguments = out / name, list(map(str, arguments))
    finished = FINISHED.get(script, "result.json")
    if finished and (folder / finished).exists():
        progress.end(name, "finished before", new=False)
        return
    again = ["--resume"] if script.startswith("train") and can_resume(folder) else []
    command = [sys.executable, "-m", script, *arguments, *again, "--out", str(folder)]
    progress.begin(
        name, int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else 0
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(f"{shlex.join(command)} failed: {lines[-1] if lines else done.returncode}")
    progress.end(name, done.stdout.strip().splitlines()[-1])


class Progress:
    """A line for each finished run; on a terminal also a live one with the time that is left for all of them."""

    def __init__(self, out, costs):
        self.out, self.costs, self.started, self.lock = (
            out,
            costs,
            time.perf_counter(),
            threading.Lock(),
        )
        self.running, self.ended, self.spent = (
            {},
            0,
            0.0,
        )  # name -> steps; jobs; cost of what was computed in this sitting
        self.over = threading.Event()

    def __enter__(self):
        if sys.stderr.isatty():
            threading.Thread(target=self.watch, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()

    def begin(self, name, steps):
        with self.lock:
            self.running[name] = steps

    def end(self, name, words, new=True):
        with self.lock:
            self.running.pop(name, None)
            self.ended += 1
            cost = self.costs.pop(name)
            self.spent += cost if new else 0
            self.clear()
            print(
                f"[{self.ended}/{self.ended + len(self.costs)}{self.time_left()}] {name}: {words}",
                flush=True,
            )

    def time_left(self):
        """In words, from the cost of what is done and of what is not; nothing before anything is done."""
        partly = sum(
            self.costs[name] * self.share(name, steps) for name, steps in self.running.items()
        )
        done, left = self.spent + partly, sum(self.costs.values()) - partly
        return (
            f", about {clock((time.perf_counter() - self.started) / done * left)} left"
            if done
            else ""
        )

    def share(self, name, steps):
        """How much of a training is done, from the last line of its metrics.jsonl."""
        try:
            *_, last = (self.out / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            return min(1.0, json.loads(last)["step"] / steps)
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            # Not begun, in the middle of a line, or no training
            return 0.0

    def watch(self):
        while not self.over.wait(1.0):
            with self.lock:
                self.clear()
                names = ", ".join(self.running)
                print(
                    f"{self.ended}/{self.ended + len(self.costs)}{self.time_left()}: {names}"[:100],
                    end="",
                    file=sys.stderr,
                    flush=True,
                )

    def clear(self):
        if sys.stderr.isatty():
            print("\r" + " " * 100 + "\r", end="", file=sys.stderr, flush=True)
