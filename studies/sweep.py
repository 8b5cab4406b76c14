"""Run a script with every combination of some flags, several at once, none twice.

    python -m studies.sweep "train_lm.py --data speeches" pos=alibi,rope lr=1e-3,2e-3 seed=0,1,2
    python -m studies.sweep "train_mlm.py" tie=yes,no seed=0,1 --commands | parallel

At the end it writes compare.py's table, and runs.csv with a line per run. Studies run their own
jobs in stages with `run_all`.
"""

import csv
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
import tyro

from data.files import UserError, read_json, write_json
from lab.flags import main, require
from lab.machine import ROOT, code_hash
from lab.rows import read_finished_run


@dataclass
class SweepFlags:
    jobs: int = 0  # runs at a time; 0: one per core, but at most 4 on a GPU
    commands: bool = False  # only print the commands of the next stage, for GNU parallel or Slurm


@dataclass
class Flags(SweepFlags):
    command: tyro.conf.Positional[str] = ""  # the script and the flags that all runs have
    axes: tyro.conf.Positional[tuple[str, ...]] = ()  # FLAG=VALUE,VALUE; of switches yes and no
    out: str = "out/sweep"  # folder of all runs, the table and runs.csv


class Job(NamedTuple):
    """A command: `python -m module words --out OUT/name`, with its output in OUT/logs/name.log."""

    name: str  # of its folder
    module: str
    words: list  # flags and their values


def sweep(flags):
    out = Path(flags.out).expanduser()
    script, *shared = shlex.split(flags.command) or [""]
    axes = [axis.partition("=")[::2] for axis in flags.axes]  # flag, values joined by commas
    problem = 'give a script and values of flags, like "train_lm.py --tie" pos=alibi,rope seed=0,1'
    require(script and axes and all(flag and values for flag, values in axes), problem)
    module = script.removesuffix(".py").replace("/", ".")
    names = [name for name, _ in axes]
    jobs = []
    runs = {}  # name of the folder: {flag: value}
    for values in product(*(values.split(",") for _, values in axes)):
        run = dict(zip(names, values))
        words = list(shared)
        for name, value in run.items():
            words += words_of_value(name.replace("_", "-"), value)
        folder = "_".join(f"{name}={value}" for name, value in run.items())
        folder = re.sub(r"[^\w.=-]+", "-", folder)
        jobs.append(Job(folder, module, words))
        runs[folder] = run
    run_all(out, [jobs], flags)
    write_csv(out, runs)
    comparison = Job("compare", "compare", [out / folder for folder in runs])
    run_all(out, [[comparison]], flags)
    print((out / "compare" / "compare.md").read_text(encoding="utf-8"))


def words_of_value(flag, value):
    """Return a flag with a value of the command line as typed; yes and no are those of switches."""
    if value == "yes":
        return [f"--{flag}"]
    if value == "no":
        return [f"--no-{flag}"]
    return [f"--{flag}", value]


def write_csv(out, runs):
    """Write runs.csv: the flags and the numbers of each run, {folder: {flag: value}}."""
    lines = []
    columns = {}  # used as an ordered set
    for folder, values in runs.items():
        line = {"run": folder} | values | read_finished_run(out / folder).result
        lines.append(line)
        columns |= line
    with open(out / "runs.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(columns))
        table.writeheader()
        table.writerows(lines)


def options(**values):
    """Return flags as they are typed: options(n_layer=4, tie=True) is "--n-layer 4 --tie"."""
    words = []
    for name, value in values.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return words


# ------------------------------------------------------------------------------------- running jobs
def run_all(out, stages, flags):
    """Run the unfinished jobs of each stage after those of the stage before, several at once.
    Raises UserError at the first that fails. With --commands, print those of the next stage."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the jobs too, see `run_jobs`
    (out / "logs").mkdir(parents=True, exist_ok=True)
    for stage in stages:
        waiting = []  # (folder, words of the command)
        for job in stage:
            folder = out / job.name
            words = [job.module, *map(str, job.words), "--out", str(folder)]
            if not is_finished(folder, words):
                waiting.append((folder, words))
        if flags.commands and waiting:
            for _, words in waiting:
                print(f"python -m {shlex.join(words)}")
            sys.exit(0)
        run_jobs(waiting, flags.jobs or number_of_jobs())


def number_of_jobs():
    """Return how many jobs to run at once: one per core, but at most 4 on a GPU."""
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # on a cluster, those of this process
    return min(cores, 4) if torch.cuda.is_available() else cores


def run_jobs(waiting, n_jobs):
    """Run jobs (folder, words), n_jobs at once. Raises UserError at the first that fails."""
    n = len(waiting)
    waiting = list(waiting)
    running = {}  # process: (folder, words)
    try:
        while waiting or running:
            while waiting and len(running) < n_jobs:
                folder, words = waiting.pop(0)
                running[start(folder, words)] = (folder, words)
            ended = [process for process in running if process.poll() is not None]
            for process in ended:
                folder, words = running.pop(process)
                last_line = finish_job(folder, words, process.returncode)
                n_done = n - len(waiting) - len(running)
                print(f"[{n_done}/{n}] {folder.name}: {last_line}", flush=True)
            time.sleep(0.05)
    finally:  # after an error or a signal: runs save a checkpoint
        for process in running:
            process.terminate()
        for process in running:
            process.wait()


def finish_job(folder, words, code):
    """Note in the log that a job succeeded; return the last line that it printed. Raises UserError
    for another exit code than 0."""
    log = log_of(folder)
    last_line = log.read_text("utf-8").strip().splitlines()[-1]
    if code:
        where = f"log: {log}; command: python -m {shlex.join(words)}"
        raise UserError(f"{last_line} (exit code {code}; {where})")
    with open(log, "a") as file:
        file.write("exit code 0\n")
    return last_line


def is_finished(folder, words):
    """Return whether a job need not run again. Raises UserError for a run of another command."""
    if (folder / "config.json").exists():
        return is_finished_run(folder, words)
    # Figures and measurements are made again after their runs, or of other runs
    log = log_of(folder)
    if not folder.exists() or not log.exists():
        return False
    text = log.read_text(encoding="utf-8")
    if not text.startswith(f"{typed(words)}\n") or not text.endswith("exit code 0\n"):
        return False
    results = [Path(word) / "result.json" for word in words]  # of the words that are run folders
    times = [path.stat().st_mtime for path in results if path.exists()]
    return log.stat().st_mtime > max(times, default=0)


def is_finished_run(folder, words):
    """Return whether a run has ended. Raises UserError if another command made it. Print a note if
    other code did."""
    config = read_json(folder / "config.json")
    problem = f"{folder}: made by another command, {config['command']}; delete that folder"
    require(typed(words) in config["command"], problem)
    if not (folder / "result.json").exists():
        return False
    script = ROOT / f"{words[0].replace('.', '/')}.py"
    if config["code"] != code_hash(script):
        print(f"note: {folder} was made by other code; delete it to repeat")
    return True


def typed(words):
    """Return the flags of a job up to --out, whose folder may be named in other ways."""
    return shlex.join(words[1:-1])


def log_of(folder):
    """Return the path of a job's log."""
    return folder.parent / "logs" / f"{folder.name}.log"


def start(folder, words):
    """Return the process of a job, which continues an interrupted run, and writes into its log."""
    command = [sys.executable, "-m", *words]
    if (folder / "checkpoint.pt").exists():
        command.append("--resume")
    log_of(folder).write_text(f"{typed(words)}\n", encoding="utf-8")
    with open(log_of(folder), "a") as log:
        return subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches only the sweep, which then ends its jobs
        )


def finish(out, result):
    """Write the result.json of a study, with its command."""
    command = f"python -m studies.{Path(sys.argv[0]).stem} {shlex.join(sys.argv[1:])}"
    write_json(out / "result.json", {"command": command} | result)
    print(f"{out}: tables (.md, .tex), figures and result.json")


if __name__ == "__main__":
    main(sweep, Flags)
