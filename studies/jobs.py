"""Run the scripts many times: several at once, none twice, with an estimate of the time left."""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from data.download import sha256
from lab.errors import UserError, require
from lab.flags import ROOT, flag, spelled
from lab.live import LiveLine, clock
from lab.machine import cores
from lab.records import read_config, read_result
from lab.resume import MAY_CHANGE, can_resume
from lab.signals import SIGNALS, Interrupted, set_handlers


@dataclass
class JobFlags:
    """the runs"""

    jobs: int = flag(0, "runs at a time; 0: one per core, but at most 4 per GPU", at_least=0)
    device: str = flag("auto", "where to compute; auto: CUDA if present", ("auto", "cpu", "cuda"))

    @property
    def at_most_per_gpu(self):
        return 4  # a small model leaves most of a GPU unused


@dataclass
class StudyFlags(JobFlags):
    """the study"""

    data: str = flag("toy", "corpus, as in the training scripts")
    size: str = flag(
        "laptop",
        "models and budget: minutes; about an hour with WikiText-2; a night, or a GPU",
        ("quick", "laptop", "full"),
    )
    seeds: int = flag(3, "seeds of the main models", at_least=1, at_most=1000)

    @property
    def at_most_per_gpu(self):
        return 1 if self.size == "full" else 4


def options(**values):
    """Return flags as they are typed: options(n_layer=4) is ["--n-layer", "4"]."""
    return [word for name, value in values.items() for word in (spelled(name), str(value))]


def run_all(out, stages, flags, cost=lambda module, arguments: 1.0, may_diverge=False):
    """Run all jobs of a stage before the next stage begins.

    A job is (folder, module, arguments) and writes into out/folder. A finished job is skipped, an
    interrupted training is resumed. flags: JobFlags. cost: the cost of a job, in any unit, from
    which the time left is estimated. may_diverge: whether a training that diverges is left out.

    Raises UserError with the last line of a script that fails.
    """
    places = queue.SimpleQueue()
    environments = list_places(flags, torch.cuda.device_count())
    for environment in environments:
        places.put(environment)
    costs = {folder: cost(*job) for stage in stages for folder, *job in stage}
    with Progress(out, costs) as progress:
        set_handlers({number: progress.stop for number in SIGNALS})
        for stage in stages:
            with ThreadPoolExecutor(len(environments)) as pool:
                list(pool.map(lambda job: run_job(out, *job, progress, places, may_diverge), stage))


def list_places(flags, n_gpus):
    """Return the environment variables, such as the GPU, of each of the jobs that run at a time."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(n_gpus)))).split(",")
    if flags.device == "cpu" or not n_gpus:
        require((flags.device != "cuda", "--device cuda: no GPU was found; use --device cpu"))
        return [{"CUDA_VISIBLE_DEVICES": ""}] * (flags.jobs or cores())
    n_jobs = flags.jobs or max(n_gpus, min(cores(), n_gpus * flags.at_most_per_gpu))
    return [{"CUDA_VISIBLE_DEVICES": gpus[i % n_gpus]} for i in range(n_jobs)]


def run_job(out, folder, module, arguments, progress, places, may_diverge=False):
    """Run one job in a process of its own, in a free place, unless it is finished."""
    path, arguments = out / folder, [*map(str, arguments), "--out", str(out / folder)]
    if is_finished(path, arguments):
        progress.end(folder, "finished before")
        return
    resume = ["--resume"] if can_resume(path) else []
    command = [sys.executable, "-m", module, *arguments, *resume]
    own = {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}  # Windows has another
    place = places.get()
    try:
        progress.begin(folder, typed_flags(arguments).get("steps"))
        environment = os.environ | own | place
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        job = subprocess.Popen(command, env=environment, **pipes)
        progress.jobs.append(job)
        stdout, stderr = job.communicate()
    finally:
        places.put(place)
    if job.returncode:
        lines = (stderr or stdout).strip().splitlines() or ["no output"]
        if may_diverge and "training diverged" in lines[-1]:
            progress.end(folder, lines[-1])
            return
        what = f"in the job {path}, exit code {job.returncode}; its command: {shlex.join(command)}"
        raise UserError(f"{lines[-1]} ({what})")
    *lines, last = stdout.strip().splitlines()
    notes = [line.strip() for line in lines if line.lstrip().startswith("note: ")]
    progress.end(folder, "; ".join([last, *notes]))


def is_finished(path, arguments):
    """Return whether a job need not run again. Raises UserError for a run with other flags."""
    if not (path / "result.json").exists():
        # Maps are drawn once. compare.py leaves neither file: it may have more runs now
        return is_up_to_date(path / "maps.json", arguments)
    if (path / "config.json").exists():
        check_flags(path, arguments)
        return True
    # No run, but a look at runs: repeated with other arguments, such as more runs
    same = str(read_result(path).get("command")).endswith(shlex.join(arguments))
    return same and is_up_to_date(path / "result.json", arguments)


def is_up_to_date(file, arguments):
    """Return whether a look has written its file since the runs in its arguments were trained."""
    runs = [os.path.join(word, "result.json") for word in arguments]
    newest = max((os.path.getmtime(run) for run in runs if os.path.exists(run)), default=0)
    return file.exists() and newest <= os.path.getmtime(file)


def check_flags(path, arguments):
    """Raise UserError if the finished run in a folder has different flags from these, or if its
    --encoder has been trained again."""
    config, now = read_config(path), typed_flags(arguments)
    for name in dict.fromkeys([*now, *config.get("given", ())]):
        had, given = config["flags"].get(name), now.get(name, "its default")
        resolved = (name, given) == ("n_ffn", "0")  # into four times the width
        fits = had is None or name in MAY_CHANGE or resolved or is_same(had, given)
        remedy = "choose another --out, or delete or rename that folder"
        require((fits, f"{path}: finished with {spelled(name)} {had}, not {given}; {remedy}"))
    weights, had = Path(now.get("encoder", "")) / "best.pt", config.get("encoder_sha256")
    same = not had or not weights.exists() or sha256(weights) == had
    problem = f"{path}: {weights.parent} was trained again since this was trained on it"
    require((same, f"{problem}; delete or rename {path}"))


def typed_flags(words):
    """Return {field: last value as typed} of a command line; a switch is "True" or "False"."""
    found = {}
    for word, after in zip(words, [*words[1:], "--"]):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if equals:
            found[name] = value
        elif after.startswith("--"):
            found[name.removeprefix("no_")] = str(not name.startswith("no_"))
        else:
            found[name] = after
    return found


def is_same(had, given):
    """Return whether a value of config.json is the one typed: 0.001 is also 1e-3."""
    try:
        return str(had) == given or float(given) == had
    except ValueError:
        return False


class Progress:
    """Print a line for each finished job, and on a terminal a live line with the time left."""

    def __init__(self, out, costs):
        self.out, self.left = out, costs  # {folder: cost} of the jobs that are not finished
        self.running = {}  # {folder: (--steps as typed, the share that was trained before)}
        self.jobs = []  # every process that was started
        self.n_jobs, self.spent = len(costs), 0.0  # spent: the cost of jobs run in this process
        self.started, self.live = time.perf_counter(), LiveLine()
        self.lock, self.over = threading.Lock(), threading.Event()

    def __enter__(self):
        if sys.stderr.isatty():
            threading.Thread(target=self.watch, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()

    def stop(self, number, frame):
        """Handle a signal: end the study and its jobs, which save a checkpoint."""
        if number == signal.SIGTERM:  # `kill` reaches only this process, Ctrl-C the jobs too
            for job in self.jobs:
                job.terminate()
        raise Interrupted(number, "the same command continues")

    def begin(self, folder, steps):
        with self.lock:
            self.running[folder] = steps, self.share(folder, steps)

    def end(self, folder, words):
        with self.lock:
            _, before = self.running.pop(folder, (None, 1.0))
            self.spent += self.left.pop(folder) * (1 - before)
            self.live.say(f"[{self.state()}] {folder}: {words}")

    def state(self):
        """Return "3/8, about 2 min left"; without a time before anything is computed."""
        done, left = self.spent, sum(self.left.values())
        for folder, (steps, before) in self.running.items():
            share = self.share(folder, steps)
            done += self.left[folder] * (share - before)
            left -= self.left[folder] * share
        count = f"{self.n_jobs - len(self.left)}/{self.n_jobs}"
        if not done:
            return count
        return f"{count}, about {clock((time.perf_counter() - self.started) / done * left)} left"

    def share(self, folder, steps):
        """Return the finished share of a training, from the last line of its metrics.jsonl."""
        try:
            lines = (self.out / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            return min(1.0, json.loads(lines[-1])["step"] / int(steps))
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            return 0.0  # not begun, an incomplete line, or not a training

    def watch(self):
        while not self.over.wait(1.0):
            with self.lock:
                self.live.show(f"{self.state()}: {', '.join(self.running)}")
