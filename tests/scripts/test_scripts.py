"""Every script of the table in helpers.py: help, a tiny run, resume, overwrite and bad flags."""

import json
import os
import random
import signal
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from helpers import (
    COST,
    DROPOUT,
    ROOT,
    SHORT,
    TABLE,
    TRAINING,
    assert_complains,
    assert_same_run,
    call,
    call_main,
    contents,
    numbers,
    result_of,
    same,
    script_module,
    script_of,
    succeed,
    train,
    unchanged,
    weights,
)
from one_of_two import stop_at

from data.files import write_json
from lab.flags import ContinueFlags
from lab.load import read_run
from lab.machine import git_revision
from lab.records import read_metrics, read_record
from lab.run import Run
from model import POSITIONS, Config

MODULES = [script.module for script in TABLE]
TINY_RUNS = [script.name for script in TABLE if script.tiny is not None and not script.kind]


def test_every_script_is_in_the_table():
    folders = ("", "beyond/", "studies/", "course/", "bench/")
    scripts = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for folder in folders
        for path in ROOT.glob(f"{folder}*.py")
        if "\n    main(" in path.read_text(encoding="utf-8")
    }
    assert scripts == set(MODULES)


# --------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("name", MODULES)
def test_help_shows_usage_and_every_flag(name):
    told = call(name, "--help")
    assert told.code == 0 and told.err == "" and told.out.startswith("usage: ")
    example = f"python -m {name} " if "." in name else f"python {name}.py "
    assert example in script_module(name).__doc__
    text = " ".join(told.out.split()).replace("- ", "-")  # argparse breaks lines anywhere
    for nonsense in ("default: ()", "{,", "default: -1", "default: None", "default: )"):
        assert nonsense not in text
    for flag, field in script_of(name).flags.items():
        positional = field.metadata["positional"]
        assert (flag if positional else f"--{flag.replace('_', '-')}") in text, flag
        shown = field.metadata["shown"] or field.default
        if not positional and field.type in (int, float) and shown is not None:
            assert f"(default: {shown})" in text, flag


def test_help_has_the_flags_in_groups():
    text = call("train_lm", "--help").out
    titles = ["the run:", "the model:", "the training:", "this script:"]
    places = [text.index(title) for title in [*titles, "the vocabulary:", "the machine:"]]
    assert places == sorted(places)
    assert places[0] < text.index("--seed ") < places[1] < text.index("--pos {") < places[2]


# --------------------------------------------------------------------------------------- a tiny run


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_as_a_user_starts_it(name, inputs, shell, tmp_path, monkeypatch):
    script, words = script_of(name), inputs(name)
    monkeypatch.undo()  # the curves are drawn
    monkeypatch.chdir(tmp_path)
    start = shell if name in ("train_lm", "train_tlm") else call  # other processes start alike
    # no live line without a terminal, and no warnings
    done = succeed(start(name, *script.tiny, *words, pos="alibi", seed=5))
    (folder,) = (tmp_path / "out").iterdir()  # the default place
    assert folder.name == f"{script.kind}-{Path(words[1]).stem}-alibi-5"
    assert {path.name for path in folder.iterdir()} == set(script.writes)
    steps = [1, 2, 3, 4] if script.kind == "classifier" else [0, 4, 8]
    assert [line["step"] for line in read_metrics(folder)] == steps
    for figure in folder.glob("*.png"):
        assert figure.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"

    result, last = result_of(folder), done.out.splitlines()[-1]
    assert {*COST, "parameters"} <= result.keys()
    assert name in result["command"] and "--n-layer 1" in result["command"]
    assert f"out/{folder.name}" in last
    model = read_run(folder).model
    assert result["parameters"]["total"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", TINY_RUNS)
def test_a_tiny_run_writes_its_files(name, inputs, tmp_path, monkeypatch, jobs_in_process):
    script, argv = script_of(name), [*inputs(name), *script_of(name).tiny]
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    done = succeed(call(name, *argv, **({"out": "out"} if "out" in script.flags else {})))
    assert done.out.strip()
    out = tmp_path / "out"
    for pattern in script.writes:
        found = list(out.glob(pattern))
        assert found and all(path.stat().st_size for path in found), pattern
    if not script.writes:
        assert contents(tmp_path) == before
    for path in out.glob("*.json"):  # without NaN and infinite numbers
        json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    for path in out.glob("*.png"):
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("pos", POSITIONS)
@pytest.mark.parametrize("name", TRAINING)
def test_every_position_trains(name, pos, inputs, tmp_path):
    train(name, *inputs(name), pos=pos, lr=0.01, out=tmp_path / "run")
    first, *_, last = read_metrics(tmp_path / "run")
    metric = script_of(name).falls
    assert not metric or last[metric] < first[metric]
    assert last["loss/train"] < 10  # of one token or row, not of a batch


@pytest.mark.parametrize("name", ["train_mlm", "train_tlm", "train_thread"])
def test_clap_has_embeddings_of_length_1(name, inputs, tmp_path):
    train(name, *inputs(name), head="clap", steps=0, out=tmp_path / "run")
    assert read_record(tmp_path / "run" / "config.json")["model"]["unit_embd"]


@pytest.mark.parametrize("name", TRAINING)
def test_bfloat16_and_byte_level_pieces_run(name, inputs, tmp_path):
    flags = dict(tokenizer="bpe", vocab_size=300, dtype="bfloat16", pos="rope")
    train(name, *inputs(name), **flags, out=tmp_path / "run")
    n_sentinels = 1 if name == "train_seq2seq" else 0
    model = read_record(tmp_path / "run" / "config.json")["model"]
    assert 260 < model["vocab_size"] <= 300 + n_sentinels


@pytest.mark.parametrize("name", TRAINING)
def test_config_json_holds_all_that_repeats_the_run(name, finished, inputs):
    described = read_record(finished(name) / "config.json")
    kind = script_of(name).kind
    kind = {"tlm": "mlm", "generative": "classifier"}.get(kind, kind)
    assert described["kind"] == kind and described["seed"] == 0
    assert described["device"] in ("cpu", "cuda")
    assert {"revision", "versions", "model", "flags"} <= described.keys()
    assert {"python", "torch", "tokenizers"} <= described["versions"].keys()
    assert described["flags"].keys() == script_of(name).flags.keys()
    assert described["flags"]["n_embd"] == 16 and described["flags"]["data"] == inputs(name)[1]
    assert described["model"]["n_ffn"] == 20 and described["model"]["vocab_size"] > 8


def test_the_revision_is_known_where_another_user_has_installed_the_code(monkeypatch):
    known = git_revision()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_revision() == known


# ---------------------------------------------------------------------------------------- repeating


@pytest.mark.parametrize("name", TRAINING)
def test_a_seed_gives_the_same_run_bit_for_bit(name, inputs, tmp_path):
    for run, seed in (("one", 3), ("two", 3), ("other", 4)):
        torch.rand(5)  # what the process did before must not matter
        train(name, *DROPOUT, *inputs(name), seed=seed, out=tmp_path / run)
    one, two, other = (
        (tmp_path / run / "metrics.jsonl").read_bytes() for run in ("one", "two", "other")
    )
    assert one == two and one != other
    a, b = (weights(tmp_path / run / "checkpoint.pt") for run in ("one", "two"))
    assert same(a, b)


@pytest.mark.parametrize("name", [name for name in TRAINING if name != "train_classifier"])
def test_evaluating_more_often_does_not_change_training(name, inputs, tmp_path):
    for every in (5, 10):
        train(name, *DROPOUT, *inputs(name), steps=10, eval_every=every, out=tmp_path / str(every))
    a, b = (weights(tmp_path / every / "checkpoint.pt") for every in ("5", "10"))
    assert same(a, b)


@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("name", [n for n in TRAINING if script_of(n).falls])  # not in two stages
def test_n_steps_are_n_updates(name, steps, inputs, tmp_path):
    # a step without ancestors updates only a part of the reader of threads
    more = {"alone_rate": 0} if name == "train_thread" else {}
    train(name, *inputs(name), **more, steps=steps, out=tmp_path / "run")
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    states = checkpoint["optimizer"]["state"].values()
    assert checkpoint["step"] == steps and {state["step"].item() for state in states} == {steps}
    logged = [line["step"] for line in read_metrics(tmp_path / "run")]
    assert logged == sorted({0, 4, 8, steps} & set(range(steps + 1)))


def test_an_epoch_updates_once_per_batch(finished):
    checkpoint = torch.load(finished("train_classifier") / "checkpoint.pt", weights_only=True)
    states = checkpoint["optimizer"]["state"].values()
    # 4 epochs of 48 rows in batches of 4
    assert {state["step"].item() for state in states} == {4 * 12}


# ----------------------------------------------------------------------------------------- resuming


NOISE = tuple("--members 2 --drop-words 0.2 --swap-words 0.2 --rare-unknown 0.5".split())
WAYS = {  # other than those of tests/hardening/test_exact_resume.py
    "lm, ensemble with noise": ("train_lm", *DROPOUT, *NOISE),
    "mlm, clap": ("train_mlm", *DROPOUT, "--head", "clap"),
    "thread, partly alone": ("train_thread", *DROPOUT, "--alone-rate", "0.5"),
    "classifier, generative": ("train_generative", *DROPOUT, "--members", "2"),
    "classifier, generative, frozen": ("train_generative", "--members", "2", "--init-from"),
    "classifier, fine-tuned": ("train_classifier", "--tune", "all", "--encoder"),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_run_resumes_bit_for_bit(way, inputs, finished, tmp_path, monkeypatch):
    name, *argv = WAYS[way]
    if argv[-1] in ("--encoder", "--init-from"):
        argv.append(finished("train_mlm"))
    argv = (*SHORT[name], *argv, *inputs(name))
    succeed(call(name, *argv, out=tmp_path / "whole"))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        assert call(name, *argv, out=tmp_path / "parts").code == 130
    assert not (tmp_path / "parts" / "result.json").exists()
    torch.rand(11)  # what the process did before must not matter
    succeed(call(name, *argv, out=tmp_path / "parts", resume=True))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_an_interrupted_refit_is_repeated(corpus, tmp_path, monkeypatch):
    argv = (*SHORT["train_classifier"], "--data", corpus)
    retrain = Run.retrain
    succeed(call("train_classifier", *argv, out=tmp_path / "whole"))

    def pressed(*args):
        for step in retrain(*args):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)
            yield step

    with monkeypatch.context() as patch:
        patch.setattr(Run, "retrain", pressed)
        stopped = call("train_classifier", *argv, out=tmp_path / "parts")
    assert stopped.code == 130
    assert "epoch 4 is saved; the final training is not, and starts again" in stopped.err
    succeed(call("train_classifier", *argv, out=tmp_path / "parts", resume=True))
    whole, parts = (weights(tmp_path / run / "best.pt") for run in ("whole", "parts"))
    assert same(whole, parts)
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "parts")


@pytest.mark.parametrize("name", TRAINING)
def test_resuming_a_finished_run_changes_no_number(name, inputs, finished, copied):
    folder = copied(name)
    train(name, *inputs(name), out=folder, resume=True)
    assert_same_run(folder, finished(name))


def test_a_flag_newer_than_the_run_had_its_default(inputs, finished, copied):
    folder = copied("train_lm")
    config = read_record(folder / "config.json")
    del config["flags"]["window"]  # as if --window had been added after the run
    write_json(folder / "config.json", config)
    train("train_lm", out=folder, resume=True)
    outcome = call("train_lm", "--resume", "--out", folder, window=4)
    assert_complains(outcome, folder, "--window 0, not 4")


@pytest.mark.parametrize("name", TRAINING)
def test_resume_with_other_flags_names_them(name, inputs, finished):
    folder = finished(name)
    with unchanged(folder):
        argv = (*SHORT[name], *inputs(name), "--resume", "--out", folder)
        outcome = call(name, *argv, n_embd=32, seed=9)
        assert_complains(outcome, folder, "--n-embd 16", "32", "--seed 0", "9", "--out")
        copied = f"to start from its weights: --init-from {folder}, without --resume"
        assert (copied in outcome.err) == issubclass(script_module(name).Flags, ContinueFlags)


# -------------------------------------------------------------------------------------- overwriting


@pytest.mark.parametrize("name", TRAINING)
def test_an_existing_run_is_kept(name, inputs, finished):
    folder = finished(name)
    with unchanged(folder):
        outcome = call(name, *SHORT[name], *inputs(name), out=folder)
        assert_complains(outcome, folder, "already holds a run", "--resume", "--overwrite")
        other = call(name, *SHORT[name], *inputs(name), out=folder, n_embd=32)
        assert_complains(other, "run with --n-embd 16, not 32; choose another", "--overwrite")
        assert "--resume" not in other.err
        both = call(name, *SHORT[name], *inputs(name), "--resume", "--overwrite", out=folder)
        assert_complains(both, "--resume and --overwrite", "give one of them")


def test_an_existing_run_of_another_script_is_named(corpus, finished):
    for name, kept in (("train_mlm", "train_lm"), ("baselines", "train_mlm")):
        outcome = call(name, data=corpus, out=finished(kept))
        assert_complains(outcome, f"holds a run with {kept}.py, not {name}.py; choose another")
        assert "--resume" not in outcome.err
    again = call("baselines", data=corpus, order=3, out=finished("baselines"))
    assert_complains(again, "already holds a run; choose another folder or replace it")


@pytest.mark.parametrize("name", TRAINING)
def test_overwrite_replaces_a_run(name, inputs, copied):
    folder = copied(name)
    first = read_metrics(folder)
    train(name, *inputs(name), out=folder, seed=2, overwrite=True)
    second = read_metrics(folder)
    assert read_run(folder).config["seed"] == 2
    assert second != first and len(second) == len(first)


def test_an_interrupted_overwrite_can_be_repeated(corpus, copied, monkeypatch):
    folder, unlink = copied("train_lm"), Path.unlink

    def stopped(path, **more):
        if len(list(folder.iterdir())) == 1:
            raise KeyboardInterrupt
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stopped)
        assert call("train_lm", data=corpus, out=folder, overwrite=True).code == 130
    train("train_lm", data=corpus, out=folder, overwrite=True)
    succeed(call("train_lm", resume=True, out=folder))  # which does not repeat --overwrite


# ---------------------------------------------------------------------------------------- bad flags


@pytest.mark.parametrize("name", MODULES)
def test_a_malformed_flag_is_named(name):
    def run(flags):
        pytest.fail(f"accepts {flags}")

    # argparse reports a missing positional argument first
    about = [field.metadata for field in script_of(name).flags.values()]
    given = [(each["choices"] or ["run"])[0] for each in about if each["positional"]]
    bad = [["--no-such-flag"]]
    for flag, field in script_of(name).flags.items():
        option = "--" + flag.replace("_", "-")
        if field.metadata["positional"]:
            continue
        if field.type in (int, float):
            bad += [[option, "two"], [option, "nan"], [option, "9" * 400], [option]]
            bad += [[option, "2.5"]] if field.type is int else []
        elif field.metadata["choices"]:
            bad += [[option, "nonsense"], [option]]
        elif field.type is bool:
            bad += [[f"{option}=yes"], [option[:-1]]]
        else:
            bad += [[option], [f"{option}=--"]]
    for argv in bad:
        outcome = call_main(script_module(name), run, *given, *argv)
        assert_complains(outcome, argv[0].split("=")[0], "--help")


BEYOND = {"above": 0, "at_least": -1, "below": 0, "at_most": 1}  # a limit plus this is refused
WITHOUT = {"seed", "max_tree_size"} | {field.name for field in fields(Config)}  # tested elsewhere


@pytest.mark.parametrize("name", MODULES)
def test_a_number_beyond_the_limits_of_its_flag_is_refused(name):
    module = script_module(name)
    about = [field.metadata for field in script_of(name).flags.values()]
    given = [(each["choices"] or ["run"])[0] for each in about if each["positional"]]
    for flag, field in script_of(name).flags.items():
        limits = field.metadata["limits"]
        assert limits or field.type not in (int, float) or flag in WITHOUT, flag
        for kind, limit in limits.items():
            option, beyond = "--" + flag.replace("_", "-"), limit + BEYOND[kind]
            outcome = call_main(module, pytest.fail, *given, option, beyond)
            assert_complains(outcome, f"{option} must be ", f"{limit:,}", f"got {beyond}")


# For every training script: flags, and what the message names.
EVERY = [
    ("--n-head 3", "--n-head", "--n-embd", "16"),
    ("--seed 999999999999999999999999999999", "--seed"),
    ("--n-embd 2000000000", "--n-embd", "at most 16,777,216"),
    ("--vocab-size 3", "--vocab-size 3", "at least 6"),
    ("--tokenizer bpe --vocab-size 100", "--vocab-size 100", "at least 261"),
    ("--data nowhere", "--data nowhere", "no such"),
]
SINUSOIDAL = "--ancestor-positions sinusoidal"
SOME = [  # the same with the script
    ("train_lm --n-head 3 --window -1 --dropout 2", "--n-head", "window", "dropout"),  # at once
    ("train_lm --out a\udcff", r"a\udcff: is not UTF-8", "rename it, or use a UTF-8 terminal"),
    ("train_lm --position alibi", "--position alibi; did you mean --pos?"),
    ("train_lm --heads 1", "--heads 1; did you mean --n-head?"),
    ("train_lm pos alibi", "pos alibi; a flag is --NAME and one value, in quotes"),
    ("train_lm --seed 0 1", "arguments: 1; a flag is --NAME and one value"),
    ("train_lm --tie False", "False; a flag that is on or off takes no value"),
    ("train_lm --compile=False", "argument --compile: takes no value, got 'False'"),
    ("train_lm --data speach", "--data speach", "did you mean speeches?"),
    ("train_lm --accumulate 17", "--accumulate 17: is more than --batch-size 4"),
    ("train_lm --eval-block 8,x", "--eval-block 8,x", "32,64,128"),
    ("train_lm --eval-block 40", "--eval-block 40", "--block-size 12", "another --pos"),
    ("train_lm --device cuda", "--device cuda", "use --device cpu"),
    ("train_lm --keep 0,x", "--keep", "whole numbers joined by commas"),
    ("train_lm --keep 0,99", "--keep 99: must be a step from 0"),
    ("train_lm --pos alibi --alibi offset", "--alibi offset", "causal"),
    ("train_mlm --causal --pos alibi --alibi offset", "--alibi offset"),
    ("train_classifier --causal --pos alibi --alibi offset", "--alibi offset"),
    ("train_mlm --alibi symmetric", "--alibi symmetric", "--pos alibi"),
    ("train_classifier --untrained", "--untrained", "--encoder or --init"),
    ("train_mlm --unscaled", "--unscaled", "--pos sinusoidal"),
    ("train_classifier --pool mean+median", "--pool mean+median", "mean", "last"),
    ("train_classifier --tune all", "--tune all", "--encoder"),
    ("train_classifier --layers 2", "--layers 2", "one of last, all, 0, 1"),
    ("train_seq2seq --mask-rate 0.5 --mean-span 1", "--mask-rate 0.5", "size 12", "--mean-span"),
    ("train_seq2seq --task translate --mask-rate 0.3", "has no gaps; leave --mask-rate 0.3 out"),
    ("train_seq2seq --languages en-fr", "--languages en-fr", "--task translate"),
    ("train_generative --valid 0.9999", "--valid 0.9999", "leave no training rows of"),
    ("train_tlm --languages en", "--languages en", "hyphen"),
    ("train_tlm --languages en-de", "train.de: no such file"),
    ("train_thread --max-tree-size 3", "--max-tree-size", "--ancestors 3"),
    (f"train_thread {SINUSOIDAL} --n-embd 15 --n-head 1", SINUSOIDAL, "--n-embd"),
    ("train_thread --valid 0.01", "too few trees (25)"),
    ("train_thread --data speeches", "--data speeches"),
    ("crossvalidate --recipes bayes,magic", "--recipes", "magic"),
    ("crossvalidate --mlm '5", "--mlm '5: No closing quotation"),
    ("crossvalidate --folds 70", "--folds 70", "only 69 distinct labelled rows; give fewer"),
]


@pytest.mark.parametrize(
    "row",
    [(f"{n} {flags}", *told) for n in TRAINING for flags, *told in EVERY] + SOME,
    ids=lambda row: row[0],
)
def test_a_flag_or_value_that_cannot_work(row, inputs, tmp_path):
    (name, *argv), *parts = row[0].split(), *row[1:]
    tiny = SHORT.get(name, ())
    outcome = call(name, *tiny, *inputs(name), "--out", tmp_path / "run", *argv)
    assert_complains(outcome, *parts)
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------- the best weights


@pytest.mark.parametrize("name", [n for n in TRAINING if script_of(n).falls])  # not in epochs
def test_the_results_are_those_of_the_best_step(name, inputs, tmp_path):
    # The learning rate is so high that the loss falls and then rises.
    how, metric = dict(steps=16, eval_every=2, lr=0.5, warmup=0, clip=0), script_of(name).falls
    if name == "train_lm":  # without a validation set, its last step is the best
        metric, how = "perplexity/valid", dict(steps=40, eval_every=5, lr=1, warmup=40, valid=0.2)
    train(name, *inputs(name), **how, decay=0, seed=1, out=tmp_path / "run")
    best = min(read_metrics(tmp_path / "run"), key=lambda line: line[metric])
    result = result_of(tmp_path / "run")
    assert result["step"] == best["step"] < how["steps"]
    for entry in best.keys() & result.keys():
        if entry.startswith("perplexity"):
            assert result[entry] == pytest.approx(best[entry])


def test_the_best_epoch_is_chosen_by_the_validation_rows(own_corpus, tmp_path):
    # Random labels are memorised, and each set has its best epoch at another time.
    dice, path = random.Random(0), own_corpus / "train_CLS.tsv"
    rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "".join(f"{dice.randrange(3)}\t{row.split(chr(9))[1]}\n" for row in rows), encoding="utf-8"
    )
    argv = "--n-embd 32 --lr 0.005 --head-dropout 0 --epochs 8 --no-refit".split()
    argv = (*SHORT["train_classifier"], "--data", own_corpus, *argv)
    succeed(call("train_classifier", *argv, out=tmp_path / "run"))
    lines, result = read_metrics(tmp_path / "run"), result_of(tmp_path / "run")
    best = max(lines, key=lambda line: line["accuracy/valid"])  # the first of equals
    assert result["epoch"] == best["step"]
    for name in best:
        if name.startswith("accuracy/"):
            assert result[name] == pytest.approx(best[name])
