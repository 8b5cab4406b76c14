"""Run a script with every combination of some flags, several at once, none twice.

    python -m studies.sweep "train_lm.py --data speeches" pos=alibi,rope lr=1e-3,2e-3 seed=0,1,2
    python -m studies.sweep "train_mlm.py" tie=yes,no seed=0,1 --commands | parallel

At the end it writes compare.py's table, and runs.csv with a line per run; another sweep into the
same folder adds to both. Studies run their own jobs in stages with `run_all`.
"""

import csv
import importlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
from tyro.conf import Positional, arg

from data import find_task, load
from data.files import UserError, hash_of, read_json, sha256, short_name, write_json
from lab.flags import (
    CommonFlags,
    Folder,
    main,
    model_config,
    parse,
    require,
    spelled,
    whole_numbers,
)
from lab.machine import ROOT, code_hash, command_of, module_of, path_of
from lab.rows import read_finished_run
from lab.run import INPUTS
from model import POSITIONS

INPUTS_LINE = "inputs: "  # begins the line of a log with `hash_inputs`

Script = Annotated[str, arg(metavar="COMMAND")]
Axes = Annotated[tuple[str, ...], arg(metavar="FLAG=VALUE,...")]


@dataclass
class SweepFlags:
    jobs: int = 0  # runs at a time; 0: one per core, but at most 4 on a GPU
    overwrite: bool = False  # train again what other flags, data or code made in the same folders
    commands: bool = False  # only print the commands of the next stage, for GNU parallel or Slurm


@dataclass
class Flags(SweepFlags):
    command: Positional[Script] = ""  # the script and the flags that all runs have
    axes: Positional[Axes] = ()  # FLAG=VALUE,VALUE; of switches yes and no
    out: Folder = "out/sweep"  # folder of all runs, the table and runs.csv


class Job(NamedTuple):
    """A command: `python -m module words --out OUT/name`, with its output in OUT/logs/name.log."""

    name: str  # of its folder
    module: str
    words: list  # flags and their values


class Command(NamedTuple):
    """A job that has to run."""

    folder: Path
    words: list  # its module, its flags, and --out with the folder
    inputs: str  # see `hash_inputs`


def sweep(flags):
    out = Path(flags.out).expanduser()
    module, shared = read_command(flags.command)
    axes = [axis.partition("=")[::2] for axis in flags.axes]  # flag, values joined by commas
    problem = 'give a script and values of flags, like "train_lm.py --tie" pos=alibi,rope seed=0,1'
    require(module and axes, problem)
    for flag, values in axes:
        require(flag and values, f"{flag}={values}: {problem}")
    names = [name for name, _ in axes]
    jobs = []
    runs = {}  # name of the folder: {flag: value}
    shortened = []  # names of the runs whose positions end before --eval-block does
    for values in product(*(values.split(",") for _, values in axes)):
        run = dict(zip(names, values))
        words = list(shared)
        for name, value in run.items():
            words += words_of_value(name.replace("_", "-"), value)
        folder = "_".join(f"{name}={value}" for name, value in run.items())
        folder = short_name(re.sub(r"[^\w.=-]+", "-", folder))
        shorter = shorter_blocks(folder, module, words)
        if shorter:
            shortened.append(folder)
        jobs.append(Job(folder, module, words + shorter))
        runs[folder] = run
    if shortened:
        reason = "lengths of --eval-block beyond the last position are left out"
        print(f"note: {reason} for {', '.join(shortened)}")
    failures = run_stage(out, jobs, flags)
    folders = write_csv(out, runs, failures)
    if folders:
        comparison = Job("compare", "compare", folders)
        failures |= run_stage(out, [comparison], flags)
    if "compare" not in failures and folders:
        for name in ("compare.md", "train-short-test-long.md"):
            path = out / "compare" / name
            if path.exists():
                print(f"{path}:\n\n{path.read_text(encoding='utf-8')}")
    require_success(failures)


def read_command(text):
    """Return the module and the flags of a command like "train_lm.py --tie", "./train_lm.py" or
    "python -m beyond.train_seq2seq". Raises UserError if there is no such script."""
    words = shlex.split(text)
    while words and re.fullmatch(r"python[\d.]*|-m", Path(words[0]).name):
        words.pop(0)
    if not words:
        return "", []
    script, *shared = words
    path = (ROOT / script).resolve()
    if not path.is_file():
        path = path_of(script)
    is_script = path.is_file() and ROOT in path.parents
    require(is_script, f"{script}: no script of this folder; give one like train_lm.py")
    return module_of(path), shared


def shorter_blocks(name, module, words):
    """Return the words that leave out lengths of --eval-block beyond the end of learned positions.
    name: of the run."""
    if not any(word.startswith(("--eval-block", "--eval_block")) for word in words):
        return []
    flags = read_flags(name, [module, *words])
    lengths = whole_numbers(flags.eval_block, "--eval-block", least=1)
    longest = flags.random_positions or flags.block_size
    if not POSITIONS[flags.pos].ends or max(lengths, default=0) <= longest:
        return []
    kept = [str(length) for length in lengths if length <= longest]
    return ["--eval-block", ",".join(kept)]  # the last one counts


def words_of_value(flag, value):
    """Return a flag with a value of the command line as typed; yes and no are those of switches."""
    if value == "yes":
        return [f"--{flag}"]
    if value == "no":
        return [f"--no-{flag}"]
    return [f"--{flag}", value]


def write_csv(out, runs, failures):
    """Write runs.csv: the flags and the numbers of the finished runs, those of earlier sweeps into
    the folder first. runs: {folder: {flag: value}}. failures: the names of runs that failed, in
    whose folders an earlier run may stand. Return the folders."""
    path = out / "runs.csv"
    earlier = {}
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                earlier[line["run"]] = {name: value for name, value in line.items() if value}
    lines = []
    columns = {}  # used as an ordered set
    for name, values in (earlier | runs).items():
        if name in failures or not (out / name / "result.json").exists():
            continue
        line = {"run": name} | values | read_finished_run(out / name).result
        lines.append(line)
        columns |= line
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(columns))
        table.writeheader()
        table.writerows(lines)
    return [out / line["run"] for line in lines]


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
    Raises UserError after the first stage in which some fail. With --commands, print those of the
    next stage."""
    for stage in stages:
        require_success(run_stage(out, stage, flags))


def run_stage(out, stage, flags):
    """Run the unfinished jobs of a stage. Return {name of a job that failed: reason}. Raises
    UserError before any runs if one is wrong; exits after --commands."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the jobs too, see `run_jobs`
    (out / "logs").mkdir(parents=True, exist_ok=True)
    commands = find_unfinished(out, stage, flags.overwrite)
    if flags.commands and commands:
        for command in commands:
            write_header(command)
            print(f"python -m {shlex.join(command.words)}")
        sys.exit(0)
    return run_jobs(commands, flags.jobs or number_of_jobs())


def require_success(failures):
    """Raise UserError naming all jobs that failed, {name: reason}."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
    require(not failures, f"{len(failures)} failed: {reasons}")


def find_unfinished(out, stage, overwrite):
    """Return the Commands of the jobs that have to run. Raises UserError for flags that a script
    refuses, and unless `overwrite` for a folder with a run of other flags or data."""
    commands = []
    for job in stage:
        folder = out / job.name
        words = [job.module, *map(str, job.words), "--out", str(folder)]
        flags = read_flags(job.name, words)
        command = Command(folder, words, hash_inputs(flags))
        if not (folder / "config.json").exists():
            if not is_finished_look(command):
                commands.append(command)
            continue
        difference = find_difference(command, flags)
        remedy = "choose another --out, or replace it with --overwrite"
        require(overwrite or not difference, f"{folder}: made with {difference}; {remedy}")
        is_replaced = bool(difference)
        if not difference and made_by_other_code(command):
            print(f"note: {folder} was made by other code; --overwrite repeats it")
            is_replaced = overwrite
        if is_replaced and hasattr(flags, "overwrite"):
            words.insert(-2, "--overwrite")
        if is_replaced or not (folder / "result.json").exists():
            commands.append(command)
    return commands


def read_flags(name, words):
    """Return the flags of a command as its script reads them, without running it. name: of its
    job. Raises UserError with the script's reason for a wrong one."""
    module, *typed_words = words
    script = importlib.import_module(module)
    argv = sys.argv
    printed = io.StringIO()
    try:
        sys.argv = [module, *typed_words]
        with redirect_stdout(printed), redirect_stderr(printed):
            flags = parse(script.Flags, script.__file__, script.__doc__)
        has_source = any(getattr(flags, flag, "") for flag in ("init_from", "encoder", "init"))
        if isinstance(flags, CommonFlags) and not has_source:
            causal = getattr(flags, "causal", module == "train_lm")
            model_config(flags, causal=causal)  # checks that the options fit together
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except SystemExit:  # tyro printed a box: a title, the reason, where to find help
        _, *lines = lines_with_words(printed.getvalue())
        reason, *_ = re.split(" (?:Argument|For full) helptext", " ".join(lines))
        raise UserError(f"{name}: {reason}") from None
    finally:
        sys.argv = argv
    return flags


def hash_inputs(flags):
    """Return a hash of what a job reads: its texts, and the weights of another run."""
    hashes = []
    for flag in INPUTS:
        value = getattr(flags, flag, "")
        if value:
            task = find_task(value, getattr(flags, "length", None))
            hashes.append(task.hash if task else hash_input(flag, value))
    return hash_of(hashes)


def hash_input(flag, value):
    """Return a hash of the file, folder or corpus that a flag names. Raises UserError if there is
    none."""
    path = Path(value).expanduser()
    if path.is_file():
        return sha256(path)
    for file in (path / "meta.json", path / "best.pt"):  # of prepared data, of a run
        if file.exists():
            return sha256(file)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        return hash_of([(file.name, sha256(file)) for file in files])
    if flag in ("data", "vocab_from"):
        return hash_corpus(value, spelled(flag))
    return value  # a name on the hub


@cache
def hash_corpus(name, flag):
    """Return a hash of a named corpus. Raises UserError if there is none."""
    return hash_of(load(name, flag))


def find_difference(command, flags):
    """Return in words how the run in a command's folder differs from the one that the command would
    train with these flags; "" if it does not."""
    config = read_json(command.folder / "config.json", "give an empty folder")
    module = config.get("script", config["kind"])  # baselines have none
    if module != command.words[0]:
        return f"{command_of(module)}, not {command_of(command.words[0])}"
    # As typed: a script sets some flags later, by what it reads
    words = shlex.split(config["command"].removeprefix(command_of(module)))
    made_with = vars(read_flags(command.folder, [module, *words]))
    differences = []
    for name, value in vars(flags).items():
        if name not in ("out", "resume", "overwrite") and made_with[name] != value:
            differences.append(f"{spelled(name)} {made_with[name]!r}, not {value!r}")
    log = log_of(command.folder)
    if log.exists() and not differences:
        _, inputs, *_ = [*log.read_text("utf-8").split("\n", 2), ""]
        if inputs.startswith(INPUTS_LINE) and inputs != f"{INPUTS_LINE}{command.inputs}":
            differences.append("other data (what --data or another flag names has changed)")
    return "; ".join(differences)


def made_by_other_code(command):
    """Return whether a command's folder has a finished run of other code."""
    config = read_json(command.folder / "config.json")
    is_finished = (command.folder / "result.json").exists()
    return is_finished and config["code"] != code_hash(path_of(command.words[0]))


def is_finished_look(command):
    """Return whether a job that is no run, but looks at runs, need not run again: figures and
    measurements are made again after their runs, or of other runs."""
    log = log_of(command.folder)
    if not command.folder.exists() or not log.exists():
        return False
    text = log.read_text(encoding="utf-8")
    if not text.startswith(header(command)) or not text.endswith("exit code 0\n"):
        return False
    # Of the words that are run folders
    results = [Path(word) / "result.json" for word in command.words]
    times = [path.stat().st_mtime for path in results if path.exists()]
    return log.stat().st_mtime > max(times, default=0)


def number_of_jobs():
    """Return how many jobs to run at once: one per core, but at most 4 on a GPU."""
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # on a cluster, those of this process
    return min(cores, 4) if torch.cuda.is_available() else cores


def run_jobs(commands, n_jobs):
    """Run Commands, n_jobs at once. Return {name of one that failed: reason}."""
    n = len(commands)
    waiting = list(commands)
    running = {}  # process: Command
    failures = {}
    scripts = {path_of(command.words[0]) for command in commands}
    code = [code_hash(script) for script in scripts]
    if commands:
        logs = log_of(commands[0].folder).parent
        print(f"{n} to run, {min(n, n_jobs)} at once; what they print is in {logs}", flush=True)
    try:
        while waiting or running:
            while waiting and len(running) < n_jobs:
                command = waiting.pop(0)
                write_header(command)
                running[start(command.folder, command.words)] = command
            ended = [process for process in running if process.poll() is not None]
            for process in ended:
                command = running.pop(process)
                name = command.folder.name
                last_line, reason = finish_job(command, process.returncode)
                if reason:
                    failures[name] = reason
                    last_line = f"failed: {last_line}"
                n_done = n - len(waiting) - len(running)
                print(f"[{n_done}/{n}] {name}: {last_line}", flush=True)
            code_now = [code_hash(script) for script in scripts]
            if code_now != code:
                print("note: the code has changed; runs that start now have other code", flush=True)
                code = code_now
            time.sleep(0.1)
    finally:  # after an error or a signal: runs save a checkpoint
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    return failures


def finish_job(command, code):
    """Note in the log that a job succeeded. Return the last line that it printed, and why it
    failed: "" for exit code 0."""
    log = log_of(command.folder)
    lines = lines_with_words(log.read_text("utf-8"))
    if code:
        where = f"log: {log}; command: python -m {shlex.join(command.words)}"
        return lines[-1], f"{lines[-1]} (exit code {code}; {where})"
    with open(log, "a", encoding="utf-8") as file:
        file.write("exit code 0\n")
    return lines[-1], ""


def lines_with_words(text):
    """Return the lines of a text that have letters or digits, without the frame of a box."""
    return [line.strip("│| ") for line in text.splitlines() if re.search(r"\w", line)]


def log_of(folder):
    """Return the path of a job's log."""
    return folder.parent / "logs" / f"{folder.name}.log"


def header(command):
    """Return the first lines of a log: the flags up to --out, whose folder may be named in other
    ways, and the hash of what the job reads."""
    return f"{shlex.join(command.words[1:-1])}\n{INPUTS_LINE}{command.inputs}\n"


def write_header(command):
    """Begin the log of a command."""
    log_of(command.folder).write_text(header(command), encoding="utf-8")


def start(folder, words):
    """Return the process of a job, which continues an interrupted run, and writes into its log."""
    command = [sys.executable, "-m", *words]
    if (folder / "checkpoint.pt").exists() and "--overwrite" not in words:
        command.append("--resume")
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
