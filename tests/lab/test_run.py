"""What all scripts share: the schedule, the flags, the run folder, and that a run can be repeated and continued exactly."""

import json
import math
import random
from dataclasses import dataclass

import pytest
import torch
from helpers import DROPOUT, SCRIPTS, SHORT, contents, numbers, same

import train_classifier
from lab.command import parse
from lab.flags import flag
from lab.load import load_run
from lab.optim import learning_rate, make_optimizer, perplexity
from lab.records import read_metrics
from lab.run import Run
from model import Config, Encoder, LanguageModel
from nets.classifier import Classifier

# ---------------------------------------------------------------------------- schedule and optimizer


@pytest.mark.parametrize(
    "warmup, decay, expected",
    [
        (0, 0.0, [1] * 10),
        (2, 0.0, [0.5] + [1] * 9),
        (2, 0.5, [0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        (0, 1.0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]),
        (4, 1.0, [0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (20, 0.5, [k / 20 for k in range(1, 11)]),
    ],
)
def test_the_schedule_goes_up_stays_and_goes_down_in_straight_lines(warmup, decay, expected):
    got = [learning_rate(step, 10, 3e-4, warmup, decay) for step in range(10)]
    assert got == pytest.approx([3e-4 * share for share in expected])


@pytest.mark.parametrize("head", ["linear", "roberta", "clap"])
def test_weight_decay_is_for_matrices_and_each_parameter_is_in_one_group(head):
    model = LanguageModel(Encoder(Config(vocab_size=30, n_embd=16, head=head)))
    groups = make_optimizer(model, 1e-3, 0.1).param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert (
        sum(len(group["params"]) for group in groups) == len(decay) == len(list(model.parameters()))
    )
    for name, p in model.named_parameters():
        spared = name.endswith(("bias", "beta")) or "norm" in name or ".transform.2." in name
        assert decay[id(p)] == (0.0 if spared else 0.1), name


def test_frozen_parameters_are_left_out_of_the_optimizer():
    model = Classifier(Encoder(Config(vocab_size=30, n_embd=16)), 3)
    model.body.requires_grad_(False)
    trained = [
        p for group in make_optimizer(model, 1e-3, 0.1).param_groups for p in group["params"]
    ]
    assert {id(p) for p in trained} == {id(p) for p in model.head.parameters()}


def test_perplexity_is_the_exponential_of_the_mean_over_tokens():
    assert perplexity(10 * math.log(7), 10) == pytest.approx(7)
    assert perplexity(0.0, 5) == 1 and perplexity(1e9, 2) > 1e300  # no OverflowError


# ---------------------------------------------------------------------------- flags


@dataclass
class Some:
    n_head: int = flag(2, "heads")
    pos: str = flag("learned", "positions", ("learned", "nope"))
    lr: float = flag(1e-3, "rate")
    tie: bool = flag(True, "share")


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], Some()),
        (["--n-head", "4"], Some(n_head=4)),
        (["--n_head", "4"], Some(n_head=4)),
        (["--pos", "nope", "--lr", "2e-4"], Some(pos="nope", lr=2e-4)),
        (["--no-tie"], Some(tie=False)),
        (["--n-head=3"], Some(n_head=3)),
        (["--pos", "NoPE"], Some(pos="nope")),
    ],
)
def test_flags_are_the_fields_with_hyphens_or_underscores(argv, expected):
    assert parse(Some, "", argv) == expected


@pytest.mark.parametrize(
    "argv",
    [
        ["--n-heads", "4"],
        ["--pos", "rope"],
        ["--lr", "fast"],
        ["--n-head"],
        ["--n-head", "2.5"],
        ["--n-he", "4"],
        ["stray"],
    ],
)
def test_a_flag_that_is_not_understood_costs_one_line_and_code_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(Some, "", argv)
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and argv[0] in err and "--help" in err


# ---------------------------------------------------------------------------- repeating


def weights(path):
    return torch.load(path, weights_only=True)["model"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_seed_gives_the_same_run_to_the_last_bit_and_another_seed_another(
    script, cli, corpus, tmp_path
):
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        torch.rand(5)  # whatever happened before must not matter
        assert (
            cli(
                script,
                *SHORT[script],
                *DROPOUT,
                "--data",
                corpus,
                "--seed",
                seed,
                "--out",
                tmp_path / name,
            ).code
            == 0
        )
    one, two, other = (
        (tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "two", "other")
    )
    assert one == two and one != other
    assert same(
        weights(tmp_path / "one" / "checkpoint.pt"), weights(tmp_path / "two" / "checkpoint.pt")
    )


@pytest.mark.parametrize("script", ["train_lm", "train_mlm", "train_seq2seq"])
def test_how_often_is_evaluated_does_not_change_the_training(script, cli, corpus, tmp_path):
    for every in (5, 10):
        argv = (
            *SHORT[script],
            *DROPOUT,
            "--data",
            corpus,
            "--steps",
            10,
            "--eval-every",
            every,
            "--out",
            tmp_path / str(every),
        )
        assert cli(script, *argv).code == 0
    assert same(
        weights(tmp_path / "5" / "checkpoint.pt"), weights(tmp_path / "10" / "checkpoint.pt")
    )


@pytest.mark.parametrize("script", ["train_lm", "train_mlm"])
@pytest.mark.parametrize("steps", [1, 8, 9])
def test_n_steps_are_n_updates(script, steps, cli, corpus, tmp_path):
    assert (
        cli(
            script, *SHORT[script], "--data", corpus, "--steps", steps, "--out", tmp_path / "run"
        ).code
        == 0
    )
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert checkpoint["step"] == steps and {
        state["step"].item() for state in checkpoint["optimizer"]["state"].values()
    } == {steps}
    assert [line["step"] for line in read_metrics(tmp_path / "run")] == sorted(
        {0, 4, 8, steps} & set(range(steps + 1))
    )


def test_an_epoch_updates_once_a_batch(cli, corpus, tmp_path):
    assert (
        cli(
            "train_classifier",
            *SHORT["train_classifier"],
            "--data",
            corpus,
            "--out",
            tmp_path / "run",
        ).code
        == 0
    )
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    # 4 epochs of 48 rows, 4 a batch
    assert {state["step"].item() for state in checkpoint["optimizer"]["state"].values()} == {4 * 12}


# ---------------------------------------------------------------------------- continuing


def interrupt(monkeypatch, at, saved):
    """Press Ctrl-C at checkpoint number `at`: when it has just been saved, or when its metrics are logged and it is not."""
    save, count = Run.save_checkpoint, iter(range(1, 100))

    def pressed(self, *args, **more):
        last = next(count) == at
        if saved or not last:
            save(self, *args, **more)
        if last:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save_checkpoint", pressed)


# At such a learning rate the best step is the first: what is best so far must be remembered too.
WAYS = {
    "lm": ("train_lm",),
    "lm, ensemble with noise": (
        "train_lm",
        "--members",
        "2",
        "--drop-words",
        "0.2",
        "--swap-words",
        "0.2",
        "--rare-unknown",
        "0.5",
    ),
    "lm, best by validation": ("train_lm", "--valid", "0.2", "--lr", "1", "--decay", "0"),
    "mlm": ("train_mlm",),
    "mlm, clap": ("train_mlm", "--head", "clap"),
    "seq2seq": ("train_seq2seq",),
    "classifier": ("train_classifier",),
    "classifier, frozen": ("train_classifier", "--head-dropout", "0.2", "--encoder"),
    "classifier, fine-tuned": ("train_classifier", "--tune", "all", "--encoder"),
}


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(
    way, saved, cli, corpus, finished, tmp_path, monkeypatch
):
    script, *argv = WAYS[way]
    if argv[-1:] == ["--encoder"]:
        argv.append(finished("train_mlm"))
    argv = (
        *SHORT[script],
        *(() if "--encoder" in argv else DROPOUT),
        *argv,
        "--data",
        corpus,
    )  # an encoder brings its own
    assert cli(script, *argv, "--out", tmp_path / "whole").code == 0

    with monkeypatch.context() as patch:
        interrupt(patch, at=2, saved=saved)
        stopped = cli(script, *argv, "--out", tmp_path / "parts")
    assert (
        stopped.code == 130
        and "--resume" in stopped.err
        and not (tmp_path / "parts" / "result.json").exists()
    )
    torch.rand(11)
    resumed = cli(script, *argv, "--out", tmp_path / "parts", "--resume")
    assert resumed.code == 0, resumed.err

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert (whole / "metrics.jsonl").read_text() == (parts / "metrics.jsonl").read_text()
    for name in ("checkpoint.pt", "best.pt"):
        a, b = (torch.load(folder / name, weights_only=True) for folder in (whole, parts))
        a.pop("seconds", None), b.pop("seconds", None)
        assert same(a, b), name
    assert numbers(whole) == numbers(parts)


def test_a_refit_that_was_interrupted_is_made_again(cli, corpus, tmp_path, monkeypatch):
    argv, train_epoch, count = (
        (*SHORT["train_classifier"], "--data", corpus),
        train_classifier.train_epoch,
        iter(range(1, 100)),
    )
    assert cli("train_classifier", *argv, "--out", tmp_path / "whole").code == 0

    def pressed(*args):
        if next(count) > 4:  # the epochs are over
            raise KeyboardInterrupt
        train_epoch(*args)

    with monkeypatch.context() as patch:
        patch.setattr(train_classifier, "train_epoch", pressed)
        assert cli("train_classifier", *argv, "--out", tmp_path / "parts").code == 130
    assert cli("train_classifier", *argv, "--out", tmp_path / "parts", "--resume").code == 0
    assert same(
        weights(tmp_path / "whole" / "best.pt"), weights(tmp_path / "parts" / "best.pt")
    ) and numbers(tmp_path / "whole") == numbers(tmp_path / "parts")


@pytest.mark.parametrize("script", SCRIPTS)
def test_resuming_a_finished_run_changes_no_number(script, cli, corpus, tmp_path):
    argv = (*SHORT[script], "--data", corpus, "--out", tmp_path / "run")
    assert cli(script, *argv).code == 0
    log, before = (tmp_path / "run" / "metrics.jsonl").read_text(), numbers(tmp_path / "run")
    assert cli(script, *argv, "--resume").code == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == log and numbers(
        tmp_path / "run"
    ) == before


# ---------------------------------------------------------------------------- the folder


@pytest.mark.parametrize(
    "script, kind",
    [
        ("train_lm", "lm"),
        ("train_mlm", "mlm"),
        ("train_classifier", "classifier"),
        ("train_seq2seq", "seq2seq"),
    ],
)
def test_config_json_holds_every_flag_and_what_is_needed_to_repeat_the_run(
    script, kind, finished, corpus
):
    described = json.loads((finished(script) / "config.json").read_text(encoding="utf-8"))
    assert (
        described["kind"] == kind
        and described["seed"] == 0
        and described["device"] in ("cpu", "cuda")
    )
    assert {"revision", "versions", "model", "flags"} <= described.keys() and {
        "python",
        "torch",
        "tokenizers",
    } <= described["versions"].keys()
    assert (
        described["flags"]["n_embd"] == 16
        and described["flags"]["data"] == str(corpus)
        and "weight_decay" in described["flags"]
    )
    assert described["model"]["n_ffn"] == 20 and described["model"]["vocab_size"] > 50


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_run_opens_with_its_best_weights_in_evaluation_mode(script, finished):
    loaded = load_run(finished(script))
    assert not any(module.training for module in loaded.model.modules())
    assert same(dict(loaded.model.state_dict()), dict(weights(finished(script) / "best.pt")))
    assert loaded.tokenizer.get_vocab_size() == loaded.config["model"]["vocab_size"]


def test_overwrite_replaces_a_run(cli, corpus, tmp_path):
    argv = (*SHORT["train_lm"], "--data", corpus, "--out", tmp_path / "run")
    assert cli("train_lm", *argv, "--seed", 1).code == 0
    assert cli("train_lm", *argv, "--seed", 2, "--overwrite").code == 0
    described = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))
    assert described["seed"] == 2 and len(read_metrics(tmp_path / "run")) == 3


def test_a_run_that_stopped_before_its_first_checkpoint_can_simply_be_started_again(
    cli, corpus, tmp_path, monkeypatch
):
    argv = (*SHORT["train_classifier"], "--data", corpus, "--out", tmp_path / "run")

    def pressed(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "log", pressed)
        assert cli("train_classifier", *argv).code == 130
    assert cli("train_classifier", *argv).code == 0


def test_a_checkpoint_is_replaced_only_by_a_whole_one(cli, corpus, tmp_path, monkeypatch):
    argv = (*SHORT["train_lm"], "--data", corpus, "--out", tmp_path / "run")
    assert cli("train_lm", *argv).code == 0
    before = contents(tmp_path / "run")

    def full_disk(state, file):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    run = load_run(tmp_path / "run")
    writer = object.__new__(Run)
    writer.folder = tmp_path / "run"
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError):
        writer.save("best.pt", model=run.model.state_dict(), step=1)
    after = contents(tmp_path / "run")
    assert {name: after[name] for name in before} == before


# ---------------------------------------------------------------------------- which checkpoint is the best


def test_the_best_step_is_chosen_by_the_validation_lines(cli, corpus, tmp_path):
    # A learning rate that rises until it is far too high: perplexity falls, then rises, and the best is not simply the last.
    argv = (
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--steps",
        40,
        "--eval-every",
        5,
        "--lr",
        1,
        "--warmup",
        40,
        "--decay",
        0,
        "--seed",
        1,
    )
    assert cli("train_lm", *argv, "--valid", 0.2, "--out", tmp_path / "run").code == 0
    lines, result = (
        read_metrics(tmp_path / "run"),
        json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8")),
    )
    best = min(lines, key=lambda line: line["perplexity/valid"])
    assert result["step"] == best["step"] < 40
    for name in ("perplexity/valid", "perplexity/obama"):
        assert result[name] == pytest.approx(best[name])


def test_the_best_epoch_is_chosen_by_the_validation_rows(cli, own_corpus, tmp_path):
    # Labels by chance: training rows are learned by heart, and each set has its best epoch at another time.
    dice, path = random.Random(0), own_corpus / "train_CLS.tsv"
    path.write_text(
        "".join(
            f"{dice.randrange(3)}\t{line.split(chr(9))[1]}\n"
            for line in path.read_text(encoding="utf-8").splitlines()
        ),
        encoding="utf-8",
    )
    argv = (
        *SHORT["train_classifier"],
        "--data",
        own_corpus,
        "--n-embd",
        32,
        "--lr",
        0.005,
        "--head-dropout",
        0,
        "--epochs",
        8,
        "--no-refit",
    )
    assert cli("train_classifier", *argv, "--out", tmp_path / "run").code == 0
    lines, result = (
        read_metrics(tmp_path / "run"),
        json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8")),
    )
    best = max(lines, key=lambda line: line["accuracy/valid"])  # the first of equals
    assert result["epoch"] == best["step"]
    assert all(
        result[name] == pytest.approx(best[name]) for name in best if name.startswith("accuracy/")
    )
