"""Flags: a given flag is obeyed or refused, never ignored; ranges and defaults are shown."""

import importlib

import pytest
from helpers import assert_complains, call

from lab import command
from lab.flags import script_of

SCRIPTS = (
    "train_lm",
    "train_mlm",
    "train_classifier",
    "beyond.train_seq2seq",
    "beyond.train_tlm",
    "beyond.train_thread",
)


def help_of(module, capsys):
    with pytest.raises(SystemExit):
        command.parse(module.Flags, module.__doc__, ["--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_examples_and_resolved_defaults(name, capsys):
    module = importlib.import_module(name)
    text = help_of(module, capsys)
    assert script_of(module.Flags) in text  # an example
    for nonsense in ("default: ()", "{,", "default: -1", "default: None", "default: )"):
        assert nonsense not in text
    assert text.index("--pos") < text.index("--steps" if "--steps" in text else "--epochs")
    assert text.index("--pos") < text.index("--device")


def test_help_shows_the_defaults_of_both_classifiers(capsys):
    text = help_of(importlib.import_module("train_classifier"), capsys)
    assert "peak learning rate (default: 0.001 jointly, 0.0003 frozen)" in text


def test_given_flags_are_known_even_with_their_default():
    Flags = importlib.import_module("train_lm").Flags
    assert command.parse(Flags, "", ["--pos", "learned"]).given == {"pos"}
    assert command.parse(Flags, "", []).given == set()


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--lr", "0"], "--lr must be above 0, got 0.0"),
        (["--steps", "-1"], "--steps must be at least 0, got -1"),
        (["--decay", "2"], "--decay must be at least 0 and at most 1, got 2.0"),
        (["--label-smoothing", "1"], "--label-smoothing must be at least 0 and below 1, got 1.0"),
        (["--accumulate", "17"], "--accumulate 17: is more than --batch-size 16"),
    ],
)
def test_values_out_of_range_are_named(argv, words, tmp_path):
    assert_complains(call("train_lm", *argv, "--out", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


def test_a_given_default_that_contradicts_the_encoder_is_refused(finished, corpus, tmp_path):
    encoder = finished("train_mlm")  # learned positions, one layer
    argv = ("--encoder", encoder, "--data", corpus, "--out", tmp_path / "run")
    assert_complains(
        call("train_classifier", *argv, "--n-layer", "4"), "--n-layer 4", "has 1", "leave the flag"
    )
    assert_complains(call("train_classifier", *argv, "--tokenizer", "word"), "--tokenizer word")
    assert call("train_classifier", *argv, "--pos", "learned", "--epochs", "1").code == 0


def test_members_of_a_source_cannot_be_changed(finished, corpus, tmp_path):
    argv = ("--init-from", finished("train_lm"), "--data", corpus, "--out", tmp_path / "run")
    assert_complains(call("train_lm", *argv, "--members", "2"), "--members 2", "has 1")


@pytest.mark.parametrize(
    "script, argv",
    [("train_lm", []), ("train_mlm", ["--causal"]), ("train_classifier", ["--causal"])],
)
def test_a_causal_model_refuses_forms_of_alibi(script, argv, corpus, tmp_path):
    given = ("--data", corpus, "--pos", "alibi", "--alibi", "offset", "--out", tmp_path / "run")
    assert_complains(call(script, *argv, *given), "--alibi offset", "causal", "leave the flag out")


def test_a_form_of_alibi_needs_alibi(corpus, tmp_path):
    argv = ("--data", corpus, "--alibi", "symmetric", "--out", tmp_path / "run")
    assert_complains(call("train_mlm", *argv), "--alibi symmetric", "--pos alibi")


def test_underscores_of_a_text_are_kept():
    flags = command.parse(
        importlib.import_module("sample").Flags, "", ["run", "--top_k=7", "--text", "-- a_b"]
    )
    assert flags.top_k == 7 and "a_b" in str(flags.text)
