"""sweep.py: jobs are checked, run once, resume; the others finish if one fails."""

import csv
import json
import os
import shlex
import shutil
import signal
import threading
import time

import pytest
from helpers import TINY, write_corpus

from data.files import UserError
from studies import sweep
from studies.sweep import Job, SweepFlags, options, run_all


def jobs(corpus, *names, **more):
    words = [*TINY, *options(data=corpus, threads=1, **more)]
    return [[Job(name, "train_lm", words) for name in names]]


def run(out, stage, **flags):
    run_all(out, [stage], SweepFlags(jobs=1, **flags))


@pytest.mark.slow
def test_a_finished_run_is_skipped_and_told_if_the_code_differs(corpus, tmp_path, capsys):
    (stage,) = jobs(corpus, "run")
    path = tmp_path / "run" / "result.json"
    run(tmp_path, stage)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"1 to run, 1 at once; what they print is in {tmp_path / 'logs'}"
    assert printed[1].startswith("[1/1] run: perplexity at step 8")
    made = path.stat().st_mtime_ns
    run(tmp_path, stage)
    run(tmp_path / "run" / "..", stage)  # named differently
    assert capsys.readouterr().out == ""
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"code": "other"}), "utf-8")
    run(tmp_path, stage)
    assert "made by other code; --overwrite repeats it" in capsys.readouterr().out
    assert made == path.stat().st_mtime_ns
    run(tmp_path, stage, overwrite=True)
    assert made < path.stat().st_mtime_ns and "1 to run" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "run")  # a deleted run is made again, though its log remains
    run(tmp_path, stage)
    assert path.exists()


def test_a_run_of_other_flags_data_or_script_is_not_taken_for_finished(tmp_path, jobs_here):
    started = jobs_here({})
    corpus = write_corpus(tmp_path / "corpus")
    (stage,) = jobs(corpus, "run", lr=0.5, dropout=0.1)
    run(tmp_path, stage)
    (fewer,) = jobs(corpus, "run", lr=0.5)
    masked = [Job("run", "train_mlm", stage[0].words)]
    baselines = [Job("run", "baselines", options(data=corpus))]
    for other, difference in (
        (fewer, "--dropout 0.1, not 0.0"),
        (jobs(corpus, "run", lr=0.5, dropout=0.2)[0], "--dropout 0.1, not 0.2"),
        (masked, "python train_lm.py, not python train_mlm.py"),
        (baselines, "python train_lm.py, not python baselines.py"),
    ):
        with pytest.raises(UserError, match=f"run: made with {difference}; .*--overwrite"):
            run(tmp_path, other)
    with open(corpus / "test_LM_one.txt", "a") as file:
        file.write("one more line .\n")
    with pytest.raises(UserError, match="run: made with other data"):
        run(tmp_path, stage)
    assert len(started) == 1
    for other in (stage, fewer):  # of other data, of other flags
        run(tmp_path, other, overwrite=True)
        run(tmp_path, other)
    assert len(started) == 3
    config = json.loads((tmp_path / "run" / "config.json").read_text("utf-8"))
    assert config["flags"]["dropout"] == 0


def test_a_run_whose_source_has_changed_is_made_again(corpus, tmp_path, jobs_here):
    started = jobs_here({})

    def stages(**more):
        first = jobs(corpus, "first", **more)
        return first + jobs(corpus, "second", init_from=tmp_path / "first")

    run_all(tmp_path, stages(), SweepFlags(jobs=1))
    run(tmp_path, stages(lr=0.5)[0], overwrite=True)
    with pytest.raises(UserError, match="second: made with other data"):
        run(tmp_path, stages()[1])
    assert len(started) == 3


@pytest.mark.parametrize(
    "command, axis, reason",
    [
        ("train_lm.py", "pos=alibi,leaned", "pos=leaned: invalid choice 'leaned' .*'pope'\\).$"),
        ("train_lm.py", "lr=", "^lr=: give .*seed=0,1"),
        ("train_lm.py", "poss=alibi", "Unrecognized options: --poss"),
        ("train_lm.py --n-embd 64", "n-head=2,3", "n-head=3: n_head must divide"),
        ("train_lm.py --drop-words 0.6", "swap_words=0.1,0.5", "swap_words=0.5: .*sum below 1"),
        ("train_mlm.py", "pos=alibi,fire", "pos=fire: .*decoder"),
        ("train_lm.py", "data=toy,nowhere", "--data nowhere: no folder"),
        ("nothing.py", "pos=alibi", "nothing.py: no script"),
    ],
)
def test_all_combinations_are_checked_before_the_first_run(
    command, axis, reason, tmp_path, jobs_here
):
    started = jobs_here({})
    with pytest.raises(UserError, match=reason):
        sweep.sweep(sweep.Flags(command=command, axes=(axis,), out=str(tmp_path)))
    assert not started


def test_a_script_is_given_in_any_form():
    for form in ("train_lm.py", "./train_lm.py", "python train_lm.py", "python3 -m train_lm"):
        assert sweep.read_command(f"{form} --tie") == ("train_lm", ["--tie"])
    path = shlex.quote(str(sweep.ROOT / "beyond" / "train_seq2seq.py"))
    for form in (f".venv/bin/python {path}", "-m beyond.train_seq2seq"):
        assert sweep.read_command(form) == ("beyond.train_seq2seq", [])


def test_learned_positions_are_not_evaluated_beyond_their_end(corpus, tmp_path, jobs_here, capsys):
    jobs_here({})
    words = [*TINY, "--data", corpus, "--eval-block", "6,24"]
    command = shlex.join(["train_lm.py", *map(str, words)])
    flags = sweep.Flags(command=command, axes=("pos=alibi,learned",), jobs=1, out=str(tmp_path))
    sweep.sweep(flags)
    printed = capsys.readouterr().out
    assert "beyond the last position are left out for pos=learned\n" in printed
    with open(tmp_path / "runs.csv", encoding="utf-8") as file:
        alibi, learned = csv.DictReader(file)
    assert alibi["perplexity/one@24"] and learned["perplexity/one@6"]
    assert not learned["perplexity/one@24"]
    table = (tmp_path / "compare" / "train-short-test-long.md").read_text("utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith("| learned")]
    assert row.split("|")[-2].strip() == "–"
    assert table in printed and str(tmp_path / "compare" / "train-short-test-long.md") in printed


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


def test_what_fails_is_named_at_the_end_and_the_others_finish(corpus, tmp_path, jobs_here, capsys):
    jobs_here({})
    command = shlex.join(["train_lm.py", *map(str, TINY), "--data", str(corpus)])
    flags = dict(command=command, jobs=1, out=str(tmp_path))
    with pytest.raises(UserError, match="1 failed: lr=1e30_seed=0: .*diverged.*exit code 2.*log: "):
        sweep.sweep(sweep.Flags(**flags, axes=("lr=1e30,1e-3", "seed=0")))
    assert "| learned" in capsys.readouterr().out
    assert (tmp_path / "runs.csv").read_text("utf-8").count("\nlr=") == 1
    later = Job("later", "baselines", options(data=corpus))
    stages = [jobs(corpus, "bad", lr="1e30")[0] + jobs(corpus, "good")[0], [later]]
    with pytest.raises(UserError, match="1 failed: bad"):
        run_all(tmp_path, stages, SweepFlags(jobs=1))
    assert (tmp_path / "good" / "result.json").exists() and not (tmp_path / "later").exists()


@pytest.mark.slow
def test_another_sweep_into_the_folder_adds_to_its_tables(corpus, tmp_path, jobs_here):
    started = jobs_here({})
    command = shlex.join(["train_lm.py", *map(str, TINY), "--data", str(corpus)])
    flags = dict(command=command, jobs=1, out=str(tmp_path))
    sweep.sweep(sweep.Flags(**flags, axes=("pos=nope", "seed=0")))
    assert "| NoPE " in (tmp_path / "compare" / "compare.md").read_text("utf-8")
    sweep.sweep(sweep.Flags(**flags, axes=("pos=alibi", "seed=0,1", "dropout=0.1")))
    with open(tmp_path / "runs.csv", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(line["pos"], line["seed"], line["dropout"]) for line in lines] == [
        ("nope", "0", ""), ("alibi", "0", "0.1"), ("alibi", "1", "0.1")
    ]  # fmt: skip
    table = (tmp_path / "compare" / "compare.md").read_text("utf-8")
    assert "| NoPE, dropout=0.0 " in table and "| ALiBi, dropout=0.1 " in table
    assert len(started) == 3 + 2


def test_code_that_changes_meanwhile_is_told(corpus, tmp_path, jobs_here, monkeypatch, capsys):
    jobs_here({})
    hashes = iter(["before", "after"])
    monkeypatch.setattr(sweep, "code_hash", lambda script: next(hashes, "after"))
    run(tmp_path, jobs(corpus, "run", "next")[0])
    assert capsys.readouterr().out.count("the code has changed") == 1


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
    process = sweep.start(path, ["train_lm", *stages[0][0].words, "--out", str(path)])
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


def test_the_earlier_run_of_a_failed_one_is_not_in_the_table(finished, tmp_path):
    for name in ("lr=1", "lr=2"):
        shutil.copytree(finished("train_lm"), tmp_path / name)
    runs = {"lr=1": {"lr": "1"}, "lr=2": {"lr": "2"}}
    folders = sweep.write_csv(tmp_path, runs, {"lr=2": "out of memory"})
    assert folders == [tmp_path / "lr=1"]
    assert "lr=2" not in (tmp_path / "runs.csv").read_text("utf-8")
