"""Flags: a given flag is obeyed or refused, never ignored."""

from helpers import assert_complains, call

import sample
import train_lm
from lab import command


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


def test_underscores_equal_signs_and_capitals_are_allowed():
    argv = ["--n_head", "4", "--pos", "NoPE", "--lr=2e-4", "--no-norm-first"]
    flags = command.parse(train_lm.Flags, "", argv)
    assert (flags.n_head, flags.pos, flags.lr, flags.norm_first) == (4, "nope", 2e-4, False)


def test_underscores_of_a_text_are_kept():
    flags = command.parse(sample.Flags, "", ["run", "--top_k=7", "--text", "-- a_b"])
    assert flags.top_k == 7 and "a_b" in str(flags.text)
