"""Run a script with every combination of some flags, several at once, none twice.

    python -m studies.sweep "train_lm.py --data speeches" pos=alibi,rope lr=1e-3,2e-3 seed=0,1,2
    python -m studies.sweep "train_mlm.py" tie=yes,no seed=0,1 --commands | parallel

compare.py's table and runs.csv, a line per run, end it. Studies run jobs of their own in stages: a
job (folder, module, arguments) is `python -m module arguments --out OUT/folder` in a process, with
its output in OUT/logs/folder.log.
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

import torch
import tyro

import compare
from data.files import UserError, read_json, write_json
from lab.flags import main, require
from lab.machine import ROOT, code_hash


@dataclass
class SweepFlags:
    jobs: int = 0  # runs at a time; 0: one per core, but at most 4 on a GPU
    commands: bool = False  # only print the commands of the next stage, for GNU parallel or Slurm


@dataclass
class Flags(SweepFlags):
    command: tyro.conf.Positional[str] = ""  # the script and the flags that all runs have
    axes: tyro.conf.Positional[tuple[str, ...]] = ()  # FLAG=VALUE,VALUE; of switches yes and no
    out: str = "out/sweep"  # folder of all runs, the table and runs.csv


def sweep(flags):
    out, (script, *shared) = Path(flags.out).expanduser(), shlex.split(flags.command) or [""]
    axes = [axis.partition("=")[::2] for axis in flags.axes]
    problem = 'give a script and values of flags, like "train_lm.py --tie" pos=alibi,rope seed=0,1'
    require(script and axes and all(map(all, axes)), problem)
    jobs, runs = [], {}
    for values in product(*(values.split(",") for _, values in axes)):
        row, words = dict(zip((name for name, _ in axes), values)), [*shared]
        for flag, value in ((name.replace("_", "-"), value) for name, value in row.items()):
            switch = {"yes": [f"--{flag}"], "no": [f"--no-{flag}"]}
            words += switch.get(value, [f"--{flag}", value])
        name = re.sub(r"[^\w.=-]+", "-", "_".join(map("=".join, row.items())))
        jobs.append((name, script.removesuffix(".py").replace("/", "."), words))
        runs[name] = row
    run_all(out, [jobs], flags)
    lines = [{"run": name} | row | compare.read(out / name).result for name, row in runs.items()]
    with open(out / "runs.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, dict.fromkeys(name for line in lines for name in line))
        table.writeheader()
        table.writerows(lines)
    run_all(out, [[("compare", "compare", [out / name for name in runs])]], flags)
    print((out / "compare" / "compare.md").read_text(encoding="utf-8"))


def options(**values):
    """Return flags as they are typed: options(n_layer=4, tie=True) is "--n-layer 4 --tie"."""
    flags = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    return [word for flag, v in flags for word in ([flag] if v is True else [flag, str(v)])]


def run_all(out, stages, flags):
    """Run all jobs that are not finished. Raises UserError at the first that fails."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the jobs too, see below
    (out / "logs").mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    n_jobs = flags.jobs or (min(cores, 4) if torch.cuda.is_available() else cores)
    for stage in stages:
        jobs = [(out / name, [m, *map(str, w), "--out", f"{out / name}"]) for name, m, w in stage]
        waiting = [job for job in jobs if not is_finished(*job)]
        if flags.commands and waiting:
            print("\n".join(f"python -m {shlex.join(words)}" for _, words in waiting))
            sys.exit(0)
        running, n = {}, len(waiting)  # running: {process: (folder, words)}
        try:
            while waiting or running:
                while waiting and len(running) < n_jobs:
                    job = waiting.pop(0)
                    running[start(*job)] = job
                for process in [process for process in running if process.poll() is not None]:
                    path, words = running.pop(process)
                    last = log_of(path).read_text("utf-8").strip().splitlines()[-1]
                    if code := process.returncode:
                        where = f"log: {log_of(path)}; command: python -m {shlex.join(words)}"
                        raise UserError(f"{last} (exit code {code}; {where})")
                    with open(log_of(path), "a") as log:
                        log.write("exit code 0\n")
                    n_done = n - len(waiting) - len(running)
                    print(f"[{n_done}/{n}] {path.name}: {last}", flush=True)
                time.sleep(0.05)
        finally:  # after an error or a signal: runs save a checkpoint
            for process in running:
                process.terminate()
            for process in running:
                process.wait()


def is_finished(path, words):
    """Return whether a job need not run again. Raises UserError for a run of another command."""
    if (path / "config.json").exists():
        config = read_json(path / "config.json")
        problem = f"{path}: made by another command, {config['command']}; "
        require(typed(words) in config["command"], problem + "delete that folder")
        finished = (path / "result.json").exists()
        if finished and config["code"] != code_hash(ROOT / f"{words[0].replace('.', '/')}.py"):
            print(f"note: {path} was made by other code; delete it to repeat")
        return finished
    # Figures and measurements are made again after their runs, or of other runs
    log, runs = log_of(path), [Path(word) / "result.json" for word in words]
    newest = max((run.stat().st_mtime for run in runs if run.exists()), default=0)
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    made = text.startswith(f"{typed(words)}\n") and text.endswith("exit code 0\n")
    return path.exists() and made and log.stat().st_mtime > newest


def typed(words):
    """Return the flags of a job up to --out, whose folder may be named in other ways."""
    return shlex.join(words[1:-1])


def log_of(path):
    return path.parent / "logs" / f"{path.name}.log"


def start(path, words):
    """Return the process of a job, which continues an interrupted run, and writes into its log."""
    resume = ["--resume"] if (path / "checkpoint.pt").exists() else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    log_of(path).write_text(f"{typed(words)}\n", encoding="utf-8")
    with open(log_of(path), "a") as log:
        # In a session of its own: Ctrl-C reaches only the sweep, which then ends its jobs
        how = dict(env=environment, stdout=log, stderr=log, start_new_session=True)
        return subprocess.Popen([sys.executable, "-m", *words, *resume], **how)


def finish(out, result):
    """Write the result.json of a study, with its command."""
    command = f"python -m studies.{Path(sys.argv[0]).stem} {shlex.join(sys.argv[1:])}"
    write_json(out / "result.json", {"command": command} | result)
    print(f"{out}: tables (.md, .tex), figures and result.json")


if __name__ == "__main__":
    main(sweep, Flags)
