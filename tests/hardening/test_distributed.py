"""Two processes (gloo, on this machine) give the result of one, for every distributed script."""

import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import (
    FIVE,
    ROOT,
    TINY,
    call,
    contents,
    open_store,
    result_of,
    script_of,
    start_two,
    succeed,
)
from one_of_two import stop_at

from lab.records import read_metrics

STEPS = tuple("--valid 0.2 --steps 20 --eval-every 1 --dropout 0 --attn-dropout 0".split())
# The script, the batch size and --accumulate. The batches cannot be divided evenly: of one row
# the second process gets none, and of three rows in two times two parts the last part is empty.
WAYS = {
    "lm": ("train_lm", 4, 1),
    "lm, two members": ("train_lm", 5, 2, *"--members 2 --drop-words 0.2".split()),
    "mlm": ("train_mlm", 1, 1, "--head", "clap"),
    "mlm, spans": ("train_mlm", 5, 1, "--mask-unit", "span"),
    "infill": ("train_seq2seq", 5, 1),
    "translate": ("train_seq2seq", 3, 2, "--task", "translate"),
    "thread": ("train_thread", 3, 1, "--alone-rate", "0.4"),
}


@dataclass
class Session:
    folder: Path
    done: list[dict]  # {job: Outcome} of each process
    code: int
    err: str


def command(way, data, out, accumulate=None):
    """The script of a way to train, and its flags."""
    script, batch_size, parts, *more = WAYS[way]
    argv = [*TINY, *STEPS, "--batch-size", batch_size, "--accumulate", accumulate or parts]
    return script, [*argv, *more, "--data", data[way if way in data else "text"], "--out", out]


@pytest.fixture(scope="session")
def data(corpus, threads, tmp_path_factory):
    pairs = tmp_path_factory.mktemp("pairs") / "tiny.tsv"
    turned = (f"{a} {b} {c} .\t{c} {b} {a} .\n" for a in FIVE for b in FIVE for c in FIVE)
    pairs.write_text("".join(turned), encoding="utf-8")
    return {"text": corpus, "thread": threads, "translate": pairs}


@pytest.fixture(scope="session")
def alone(tmp_path_factory, data):
    """alone("lm") -> the folder of this run in one process without --accumulate, trained once."""
    folder, made = tmp_path_factory.mktemp("alone"), {}

    def get(way):
        if way not in made:
            script, argv = command(way, data, folder / way, accumulate=1)
            succeed(call(script, *argv))
            made[way] = folder / way
        return made[way]

    return get


@pytest.fixture(scope="session")
def together(tmp_path_factory, data):
    """The Session of two processes that do all jobs of this file."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("not a run")
    jobs = []
    for way in WAYS:
        script, argv = command(way, data, folder / way)
        jobs.append(dict(name=way, script=script, argv=argv))
    # One run is stopped with two processes and resumed with one, another the other way round.
    out = folder / "two then one"
    jobs += [dict(jobs[0], name=out.name, argv=[*jobs[0]["argv"], "--out", out], stop_at=10)]
    out = folder / "one then two"
    script, argv = command("mlm, spans", data, out)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 10)
        assert call(script, *argv).code == 130
    jobs += [dict(name=out.name, script=script, argv=["--resume", "--out", out])]
    lm = [*TINY, "--data", data["text"]]
    endless = [*"--steps 1000000 --eval-every 1000".split(), "--out", folder / "endless"]
    jobs += [
        dict(name="taken", script="train_lm", argv=[*lm, "--out", folder / "taken"]),
        dict(name="bad flag", script="train_lm", argv=[*lm, "--lr", "-1"]),
        dict(name="unknown flag", script="train_lm", argv=[*lm, "--speed", "9"]),
        dict(name="not shared", script="train_classifier", argv=[*lm, "--out", folder / "never"]),
        dict(name="draws"),
        dict(name="endless", script="train_lm", argv=[*lm, *endless]),
    ]
    for job in jobs:
        job |= {
            "port": open_store(),
            "stop_at": job.get("stop_at", 0),
            "argv": list(map(str, job.get("argv", ()))),
        }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")

    processes = start_two(folder, ROOT / "tests" / "one_of_two.py", folder / "jobs.json")
    try:
        wait_for(lambda: len(read_metrics(folder / "endless")) > 0, processes)
        processes[1].send_signal(signal.SIGKILL)
        code = processes[0].wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    done = [json.loads((folder / f"jobs-{rank}.json").read_text()) for rank in (0, 1)]
    return Session(folder, done, code, (folder / "err-0.txt").read_text(encoding="utf-8"))


def wait_for(happened, processes):
    end = time.monotonic() + 400
    while not happened():
        assert time.monotonic() < end and all(process.poll() is None for process in processes)
        time.sleep(0.1)


def assert_same(folder, reference):
    """Assert that metrics.jsonl has the numbers of the reference.

    Losses agree to 1e-5, and perplexities of the same weights to a relative 1e-6.
    """
    found, expected = read_metrics(folder), read_metrics(reference)
    for lines in (found, expected):
        assert [line["step"] for line in lines] == list(range(21))
    assert "loss/train" in found[-1]
    for line, other in zip(found, expected):
        rel = 1e-4 if line["step"] else 1e-6
        assert line.keys() == other.keys() and line["tokens"] == other["tokens"]
        for name, value in other.items():
            close = dict(rel=rel, abs=1e-5 if name.startswith("loss") else 0)
            assert line[name] == pytest.approx(value, **close), name


# ---------------------------------------------------------------------------------- the same result


@pytest.mark.parametrize("way", WAYS)
def test_two_processes_have_the_losses_of_one(way, together, alone):
    first, second = (done[way] for done in together.done)
    assert first["code"] == second["code"] == 0, first["err"]
    assert_same(together.folder / way, alone(way))
    result, expected = result_of(together.folder / way), result_of(alone(way))
    module = script_of(WAYS[way][0]).module
    script = f"-m {module} " if "." in module else f"{module}.py "
    assert result["processes"] == 2 and expected["processes"] == 1
    assert result["command"].startswith(f"torchrun --nproc_per_node=2 {script}")
    kinds = ("perplexity", "loss", "accuracy", "bits", "tokens/", "bleu", "chrf")
    measured = {name: value for name, value in expected.items() if name.startswith(kinds)}
    assert len(measured) > 2
    assert {name: result[name] for name in measured} == pytest.approx(measured, rel=1e-4)


@pytest.mark.parametrize("way", ["lm, two members", "mlm, spans", "translate", "thread"])
def test_a_batch_in_parts_has_the_losses_of_a_whole_one(way, data, alone, tmp_path):
    script, argv = command(way, data, tmp_path / "parts", accumulate=3)
    succeed(call(script, *argv))
    assert_same(tmp_path / "parts", alone(way))


@pytest.mark.parametrize("name, way", [("two then one", "lm"), ("one then two", "mlm, spans")])
def test_a_run_resumes_with_another_number_of_processes(name, way, together, alone, data):
    if name == "two then one":
        assert {done[name]["code"] for done in together.done} == {130}
        assert len(read_metrics(together.folder / name)) == 10
        script, argv = command(way, data, together.folder / name)
        succeed(call(script, *argv, resume=True))
    assert_same(together.folder / name, alone(way))


def test_dropout_is_drawn_from_seed_step_and_process(together):
    one, two = (done["draws"] for done in together.done)
    assert one["7"] == one["7 again"] and two["7"] == two["7 again"]
    drawn = [tuple(part) for found in (one, two) for part in found["7"] + found["8"]]
    assert len(drawn) == 8 == len(set(drawn))  # two parts of two steps in two processes


# ------------------------------------------------------------------------------- only rank 0 prints


def test_only_the_first_process_prints_and_writes(together, alone):
    for way in WAYS:
        first, second = (done[way] for done in together.done)
        assert first["out"] and (second["out"], second["err"]) == ("", "")
        assert contents(together.folder / way).keys() == contents(alone(way)).keys()


@pytest.mark.parametrize(
    "name, part",
    [("taken", "taken: is not empty"), ("bad flag", "--lr"), ("unknown flag", "--speed")]
    + [("not shared", "one process")],
)
def test_a_bad_flag_ends_all_processes_with_one_line(name, part, together):
    assert [done[name]["code"] for done in together.done] == [2, 2]
    err = "".join(done[name]["err"] for done in together.done)
    assert err.count("\n") == 1 and part in err, err
    assert contents(together.folder / "taken") == {"mine.txt": b"not a run"}
    assert not (together.folder / "never").exists()


def test_when_a_process_is_killed_the_other_says_how_to_resume(together):
    lines = [line for line in together.err.splitlines() if line.startswith("train_lm.py:")]
    assert together.code == 1
    assert len(lines) == 1 and "ended or did not answer" in lines[0] and "--resume" in lines[0]
    assert "Traceback" not in together.err
    checkpoint = torch.load(together.folder / "endless" / "checkpoint.pt", weights_only=True)
    assert checkpoint["step"] == 0


def test_a_process_that_no_longer_answers_ends_the_other(data, tmp_path):
    endless = "--steps 1000000 --eval-every 1000 --timeout 5".split()
    argv = [*TINY, "--data", data["text"], *endless, "--out", tmp_path / "run"]
    processes = start_two(tmp_path, ROOT / "train_lm.py", *argv, port=open_store())
    try:
        wait_for(lambda: len(read_metrics(tmp_path / "run")) > 0, processes)
        processes[1].send_signal(signal.SIGSTOP)
        code = processes[0].wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    err = (tmp_path / "err-0.txt").read_text(encoding="utf-8")
    (line,) = [line for line in err.splitlines() if line.startswith("train_lm.py:")]
    assert code == 1 and "Traceback" not in err
    assert "--timeout 5" in line and "did not answer in time" in line and "--resume" in line
