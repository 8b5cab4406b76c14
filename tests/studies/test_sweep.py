"""sweep.py: jobs run once, resume, stop at the first failure."""

import csv
import json
import os
import shlex
import shutil
import signal
import threading
import time

import pytest
from helpers import TINY

from data.files import UserError
from studies import sweep
from studies.sweep import Job, SweepFlags, options, run_all


def jobs(corpus, *names, **more):
    words = [*TINY, *options(data=corpus, threads=1, **more)]
    return [[Job(name, "train_lm", words) for name in names]]


def test_a_finished_run_is_skipped_and_told_if_the_code_differs(corpus, tmp_path, capsys):
    run_all(tmp_path, jobs(corpus, "run"), SweepFlags(jobs=1))
    assert "run: perplexity at step 8" in capsys.readouterr().out
    made = (tmp_path / "run" / "result.json").stat().st_mtime_ns
    run_all(tmp_path, jobs(corpus, "run"), SweepFlags(jobs=1))
    assert capsys.readouterr().out == ""
    run_all(tmp_path / "run" / "..", jobs(corpus, "run"), SweepFlags(jobs=1))  # named differently
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"code": "other"}), "utf-8")
    run_all(tmp_path, jobs(corpus, "run"), SweepFlags(jobs=1))
    assert "made by other code" in capsys.readouterr().out
    assert made == (tmp_path / "run" / "result.json").stat().st_mtime_ns
    with pytest.raises(UserError, match="run: made by another command.*delete that folder"):
        run_all(tmp_path, jobs(corpus, "run", lr=1.0), SweepFlags(jobs=1))
    shutil.rmtree(tmp_path / "run")
    run_all(tmp_path, jobs(corpus, "run", lr=1.0), SweepFlags(jobs=1))
    shutil.rmtree(tmp_path / "run")  # a deleted run is made again, though its log remains
    run_all(tmp_path, jobs(corpus, "run", lr=1.0), SweepFlags(jobs=1))
    assert (tmp_path / "run" / "result.json").exists()


def test_every_combination_runs_once_and_stands_in_the_tables(corpus, tmp_path, jobs_here, capsys):
    command = shlex.join(["train_lm.py", *map(str, TINY), "--data", str(corpus)])
    flags = dict(command=command, axes=("pos=alibi,nope", "tie=yes,no", "seed=3,4"), jobs=1)
    started = jobs_here({})
    for _ in range(2):  # the second time, nothing runs
        sweep.sweep(sweep.Flags(**flags, out=str(tmp_path)))
        assert len(started) == 8 + 1
    table = capsys.readouterr().out
    assert all(f"| {pos}, tie={tie}" in table for pos in ("ALiBi", "NoPE") for tie in (True, False))
    with open(tmp_path / "runs.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(x["pos"], x["tie"], x["seed"]) for x in lines[:3]] == [
        ("alibi", "yes", "3"), ("alibi", "yes", "4"), ("alibi", "no", "3")
    ]  # fmt: skip
    for line in lines:
        result = json.loads((tmp_path / line["run"] / "result.json").read_text("utf-8"))
        assert float(line["perplexity/one"]) == result["perplexity/one"]
    with pytest.raises(UserError, match="pos=alibi,rope seed=0,1"):
        sweep.sweep(sweep.Flags(command="train_lm.py", axes=("pos",)))
    with pytest.raises(SystemExit):
        sweep.sweep(sweep.Flags(**flags, commands=True, out=str(tmp_path / "other")))
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 8 and all(x.startswith("python -m train_lm ") for x in printed)


def test_runs_that_cannot_be_compared_are_still_in_the_table(corpus, tmp_path, jobs_here):
    jobs_here({})
    flags = dict(command=f"baselines.py --data {corpus}", axes=("order=1,2",), jobs=1)
    with pytest.raises(UserError, match="at least one run of a train_"):
        sweep.sweep(sweep.Flags(**flags, out=str(tmp_path)))
    assert (tmp_path / "runs.csv").read_text("utf-8").count("\norder=") == 2


def test_the_first_failure_ends_the_sweep_and_names_its_command(corpus, tmp_path):
    """The other job, which would take minutes, saves a checkpoint, and no further one starts."""
    stage = jobs(corpus, "long", steps=10**6)[0]
    bad = Job("bad", "train_lm", ["--data", "nowhere", "--pos", "nope"])
    stage += [bad, *jobs(corpus, "next")[0]]
    with pytest.raises(UserError, match="nowhere.*command: python -m train_lm --data nowhere"):
        run_all(tmp_path, [stage], SweepFlags(jobs=2))
    assert not (tmp_path / "next").exists()
    assert not (tmp_path / "long" / "result.json").exists()


@pytest.mark.slow
def test_a_signal_ends_the_jobs_which_then_resume(corpus, tmp_path):
    def stop():
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    stages = jobs(corpus, "run", "next", steps=10**6)
    threading.Thread(target=stop, daemon=True).start()
    try:
        with pytest.raises(SystemExit) as stopped:
            run_all(tmp_path, stages, SweepFlags(jobs=1))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stopped.value.code == 143
    assert (tmp_path / "run" / "checkpoint.pt").exists() and not (tmp_path / "next").exists()
    path = tmp_path / "run"
    before = (path / "metrics.jsonl").read_text("utf-8")
    process = sweep.start(path, ["train_lm", *stages[0][0][2], "--out", str(path)])
    while len(now := (path / "metrics.jsonl").read_text("utf-8")) <= len(before):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    assert now.startswith(before)


@pytest.mark.slow
def test_a_look_is_repeated_after_its_runs(finished, tmp_path, jobs_here):
    started, run = jobs_here({}), finished("train_lm")

    def look(*words):
        run_all(tmp_path, [[Job("look", "compare", [run, *words])]], SweepFlags(jobs=1))
        return len(started)

    assert look() == 1 and look() == 1
    assert look("--labels", "x") == 2
    os.utime(sweep.log_of(tmp_path / "look"), (0, 0))  # as if the run had been trained since
    assert look("--labels", "x") == 3
