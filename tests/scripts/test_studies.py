"""The two studies, tiny: every run is there, the tables show its numbers, nothing runs twice."""

import json
import math
import os
import queue
import signal
import sys
import threading
import time

import pytest
from helpers import SHORT, assert_complains, call, result_of, succeed

from data.download import sha256
from data.files import write_json, write_text
from lab.errors import UserError
from lab.records import read_record
from lab.resume import can_resume
from lab.signals import Interrupted, own_signals
from studies import clap, nope
from studies.jobs import JobFlags, Progress, StudyFlags, is_finished, list_places, run_all, run_job


def test_study_nope(corpus, tmp_path, monkeypatch, jobs_in_process):
    tiny = dict(depths=(2, 1), n_embd=16, n_head=2, lengths=(8, 4), tokens=32, steps=8, lr=1e-3)
    tiny |= dict(vocab_size=0, eval_test=0, keep=(0, 4, 8), probe=dict(blocks=8, steps=5))
    tiny |= dict(mlm=dict(steps=8, batch_size=4, lr=1e-3))
    monkeypatch.setattr(nope, "SIZES", {"quick": tiny})
    monkeypatch.setattr(nope, "COMPARED", ("nope", "learned"))
    study = tmp_path / "study"
    argv = ("--data", corpus, *"--size quick --seeds 1 --jobs 1".split(), "--out", study)
    done = succeed(call("nope", *argv))
    result, one = result_of(study), result_of(study / "lm-nope-1-8-anchor-0")
    tokens = {name: one[f"tokens/{name}"] for name in result["tests"]}
    nats = sum(n * math.log(one[f"perplexity/{name}"]) for name, n in tokens.items())
    expected = [math.exp(nats / sum(tokens.values()))]
    assert result["perplexity/lm-nope-1-8-anchor-SEED"] == pytest.approx(expected)
    masked = result_of(study / "mlm-learned-0")["perplexity/valid"]
    assert result["masked perplexity/learned"] == [masked]
    # train short, test long
    assert {f"perplexity/obama@{length}" for length in (16, 32, 64)} < set(one)
    assert not any("@" in name for name in result_of(study / "lm-learned-1-8-0"))
    report = (study / "report.md").read_text(encoding="utf-8")
    looks = ("compare", "probe", "order", "emergence", "anchor", "averages")
    for figure in (*(f"{name}/{name}.png" for name in looks), "compare/train-short-test-long.png"):
        assert figure in report and (study / figure).stat().st_size > 5000
    assert (study / "encodings.tex").exists() and "| learned" in done.out
    for table, row, *models in (
        ("encodings", "learned", "learned-1-8", "learned-1-8-anchor"),
        ("depths", "2 layers", "nope-2-8", "nope-2-8-anchor"),
        ("lengths", "NoPE", "nope-1-8-anchor", "nope-1-4-anchor"),
    ):
        first, second = (f"{result[f'perplexity/lm-{model}-SEED'][0]:.2f}" for model in models)
        rows = (study / f"{table}.md").read_text(encoding="utf-8").splitlines()
        expected = f"| {row} | {first} | {second} |".split()
        assert expected in [line.split() for line in rows], table
    emerged = result_of(study / "emergence")["runs"]["NoPE + anchor"]
    assert emerged["kept"] == [[0, 4, 8]] and len(emerged["median"][0][2]) == 2
    assert emerged["loss"][0][2] < emerged["loss"][0][0]
    assert "report.html, report.md, its tables and result.json; " in done.out
    again = succeed(call("nope", *argv))
    assert again.out.count("finished before") == 16  # all but the comparison


def test_study_clap(corpus, tmp_path, monkeypatch, jobs_in_process):
    tiny = dict(vocab_size=300, n_layer=1, n_embd=16, n_head=2, n_ffn=20, block_size=12)
    monkeypatch.setattr(clap, "SIZES", {"quick": tiny | dict(batch_size=4, lr=1e-3, steps=10)})
    variants = [name for name in clap.VARIANTS if "scaled" in name or "plain" in name]
    kept = {"CONFIGURATIONS": ("baseline", "zero-clap"), "CONTROLS": ("alibi, no dropout",)}
    for table, names in (kept | {"VARIANTS": variants}).items():
        monkeypatch.setattr(clap, table, {name: getattr(clap, table)[name] for name in names})
    study = tmp_path / "study"
    succeed(call("clap", data=corpus, size="quick", seeds=2, jobs=1, out=study))
    result = result_of(study)
    assert result["zero-clap"]["perplexity"] == [
        result_of(study / f"zero-clap-{seed}")["perplexity/valid"] for seed in (0, 1)
    ]
    expected = {
        "baseline": ("roberta", False, False, False, False),
        "zero-clap": ("clap", True, False, True, False),
        "zero-clap-plain-embeddings": ("plain-clap", False, False, True, False),
        "zero-clap-scaled-embeddings": ("clap", True, True, True, False),
    }
    for name, values in expected.items():
        model = read_record(study / f"{name}-0" / "config.json")["model"]
        options = ("head", "unit_embd", "scale_embd", "zero_mask", "norm_first")
        assert tuple(model[option] for option in options) == values
    assert (study / "clap.png").stat().st_size > 10_000
    assert "zero-clap, scaled embeddings" in (study / "clap.tex").read_text(encoding="utf-8")
    assert "| zero-CLAP (ALiBi) " in (study / "compare" / "compare.md").read_text(encoding="utf-8")

    assert not (study / "alibi-no-dropout-1").exists()

    argv = ("--data", corpus, "--size", "quick", "--seeds", 2, "--jobs", 1)
    longer, name = tmp_path / "longer", "alibi-no-dropout"
    monkeypatch.setattr(clap, "FACTORS", (0.5, 1, 1e30))  # the last diverges
    more = ("--only", name, "--choose-lr", "--steps", 15, "--out", longer)
    assert "clap.tex and result.json" in succeed(call("clap", *argv, *more)).out  # no comparison
    tried = {lr: result_of(longer / f"lr-{lr / 1e-3:g}-{name}-0") for lr in (5e-4, 1e-3)}
    assert {found["step"] for found in tried.values()} == {10}
    best = min(tried, key=lambda lr: tried[lr]["perplexity/valid"])
    for seed in (0, 1):  # a configuration that --only names has all seeds
        assert read_record(longer / f"{name}-{seed}" / "config.json")["flags"]["lr"] == best
        assert result_of(longer / f"{name}-{seed}")["step"] == 15
    assert list(result_of(longer)["alibi, no dropout"].items())[1] == ("lr", best)
    wrong = call("clap", *argv, "--only", "alibis", "--out", longer)
    assert_complains(wrong, "--only alibis", "alibi-no-dropout")


def test_an_interrupted_job_is_resumed(corpus, tmp_path, jobs_in_process):
    argv = [*SHORT["train_seq2seq"], "--data", corpus, "--n-ffn", 0, "--no-norm-first"]
    jobs = [[("run", "beyond.train_seq2seq", argv)]]
    run_all(tmp_path, jobs, JobFlags(jobs=1))
    (tmp_path / "run" / "result.json").unlink()  # as if it had been stopped before its end
    run_all(tmp_path, jobs, JobFlags(jobs=1))
    assert (tmp_path / "run" / "result.json").exists()
    # Finished with the same flags, though --n-ffn was resolved and --out is named differently
    run_all(tmp_path / "run" / "..", jobs, JobFlags(jobs=1))


def test_notes_of_a_job_follow_its_last_line(corpus, tmp_path, jobs_in_process, capsys):
    argv = [*SHORT["train_classifier"], "--data", corpus, "--vocab-size", 15]
    run_all(tmp_path, [[("run", "train_classifier", argv)]], JobFlags(jobs=1))
    assert capsys.readouterr().out.count("% of the test words are unknown to the vocabulary") == 1


def test_a_training_that_diverges_ends_a_study(corpus, tmp_path, jobs_in_process):
    argv = [*SHORT["train_lm"], "--data", corpus, "--lr", 1e30]
    with pytest.raises(UserError, match="training diverged"):
        run_all(tmp_path, [[("run", "train_lm", argv)]], JobFlags(jobs=1))


def test_a_job_that_cannot_start_frees_its_place(tmp_path):
    places = queue.SimpleQueue()
    places.put({})
    with pytest.raises(AttributeError):
        run_job(tmp_path, "run", "train_lm", [], progress=None, places=places)
    assert not places.empty()  # else the next job would wait forever


def test_ctrl_c_says_how_to_continue(corpus, tmp_path, monkeypatch):
    def stop(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("studies.jobs.run_job", stop)
    stopped = call("assignment", "--data", corpus, "--out", tmp_path / "stopped")
    assert stopped.code == 130 and "the same command continues" in stopped.err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without a signal")
def test_kill_ends_the_jobs_too(corpus, tmp_path):
    def kill():
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    argv = [*SHORT["train_lm"], "--data", corpus, "--steps", 100_000, "--threads", 1]
    jobs = [[("run", "train_lm", argv), ("next", "train_lm", argv)]]
    threading.Thread(target=kill, daemon=True).start()
    with own_signals(), pytest.raises(Interrupted, match="the same command continues") as stopped:
        run_all(tmp_path, jobs, JobFlags(jobs=1))
    assert stopped.value.number == signal.SIGTERM
    assert can_resume(tmp_path / "run") and not (tmp_path / "next").exists()


def test_a_look_at_other_or_newer_runs_is_made_again(tmp_path, copied, jobs_in_process, capsys):
    def look(*argv):
        with own_signals():
            run_all(tmp_path, [[("look", "studies.averages", argv)]], JobFlags(jobs=1))
        return capsys.readouterr().out

    run = copied("train_lm")
    assert "finished before" not in look(run, "--blocks", 20)
    assert "finished before" in look(run, "--blocks", 20)
    assert "finished before" not in look(run, "--blocks", 30)
    os.utime(tmp_path / "look" / "result.json", (0, 0))  # as if the run had been trained since
    assert "finished before" not in look(run, "--blocks", 30)
    assert "finished before" in look(run, "--blocks", 30)

    write_json(tmp_path / "maps.json", {})
    assert is_finished(tmp_path, [str(run)])
    os.utime(tmp_path / "maps.json", (0, 0))
    assert not is_finished(tmp_path, [str(run)])


def test_a_classifier_whose_encoder_was_trained_again_is_refused(tmp_path, finished):
    def is_done(encoder, known):
        config = {"flags": {"encoder": str(encoder)}, "encoder_sha256": known}
        write_json(tmp_path / "config.json", config)
        return is_finished(tmp_path, ["--encoder", str(encoder)])

    encoder = finished("train_mlm")
    write_json(tmp_path / "result.json", {})
    assert is_done(encoder, sha256(encoder / "best.pt")) and is_done("deleted", "of its weights")
    assert is_done(encoder, "")  # with --untrained
    with pytest.raises(UserError, match=f"{encoder} was trained again"):
        is_done(encoder, "of earlier weights")


def test_the_time_left_counts_unfinished_trainings(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 4}\n', encoding="utf-8")
    progress = Progress(tmp_path, {"": 1.0})
    assert [progress.share("", steps) for steps in ("8", "2", "0", None)] == [0.5, 1, 0, 0]
    assert progress.share("not begun", "8") == 0


def test_the_time_left_is_estimated_from_the_steps_of_this_call(tmp_path, monkeypatch):
    def train_to(step):
        write_text(tmp_path / "resumed" / "metrics.jsonl", json.dumps({"step": step}))

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    (tmp_path / "resumed").mkdir()
    train_to(50)
    progress = Progress(tmp_path, {"finished": 9.0, "resumed": 1.0, "next": 1.0})
    progress.end("finished", "finished before")
    progress.begin("resumed", "100")
    now[0] = 60.0
    assert progress.state() == "1/3"
    train_to(75)
    assert progress.state() == "1/3, about 5:00 left"  # a quarter of a training takes a minute
    progress.end("resumed", "")
    assert progress.state() == "2/3, about 2:00 left"


def test_jobs_share_the_gpus_or_leave_them_alone(monkeypatch):
    def gpus(n, visible=None, kind=JobFlags, **flags):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        return [place["CUDA_VISIBLE_DEVICES"] for place in list_places(kind(**flags), n)]

    monkeypatch.setattr("studies.jobs.cores", lambda: 6)
    assert gpus(1) == ["0"] * 4 and gpus(2) == ["0", "1"] * 3 and gpus(8) == [*"01234567"]
    assert gpus(2, kind=StudyFlags, size="full") == ["0", "1"] and gpus(2, jobs=3) == [*"010"]
    assert gpus(1, kind=StudyFlags) == ["0"] * 4
    assert gpus(2, "5,7", jobs=2) == ["5", "7"] and gpus(1, jobs=2, device="cuda") == ["0", "0"]
    assert gpus(2, jobs=2, device="cpu") == gpus(0, jobs=2) == ["", ""]
    with pytest.raises(UserError, match="--device cuda: no GPU was found"):
        gpus(0, device="cuda")
