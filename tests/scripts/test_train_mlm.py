"""train_mlm.py: perplexities counted by hand, --causal, and training on from another run."""

import math
import shutil

import pytest
import torch
from helpers import SHORT, assert_complains, call, result_of, same, succeed, train, weights

import data
import train_mlm
from data.corpus import hold_out
from data.tokenizer import BOS, encode, load_tokenizer
from lab import figures
from lab.load import read_run
from lab.records import read_metrics

OPTIONS = ("", "--head clap", "--head clap --zero-mask", "--head clap --omit-mask", "--head linear")
OPTIONS += ("--mask-unit span", "--mask-unit word --tokenizer bpe", "--no-norm-first")
OPTIONS += ("--alibi one-sided --pos alibi", "--window 3", "--split clean")


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_of_pretraining_learns(options, corpus, tmp_path):
    learn = "--steps 30 --eval-every 15 --lr 0.01 --warmup 5"
    flags = (*SHORT["train_mlm"], *options.split(), *learn.split())
    succeed(call("train_mlm", *flags, data=corpus, out=tmp_path / "run"))
    first, middle, last = read_metrics(tmp_path / "run")
    assert last["loss/valid"] < first["loss/valid"]
    assert last["tokens"] > middle["tokens"] > first["tokens"] == 0
    unit_embd = read_run(tmp_path / "run").model.body.config.unit_embd
    assert ("beta" in last) == ("clap" in options) == unit_embd
    result = result_of(tmp_path / "run")
    assert result["perplexity/valid"] == pytest.approx(math.exp(result["loss/valid"]))
    assert 0 <= result["accuracy/valid"] <= 1


def test_a_vocabulary_of_another_language_is_noted(finished, tmp_path):
    text, out = tmp_path / "other.txt", tmp_path / "run"
    text.write_text("".join(f"we qb{n} we qc\n" for n in range(60)), encoding="utf-8")
    source = finished("train_mlm")
    done = succeed(call("train_mlm", data=text, init_from=source, steps=0, out=out))
    assert f"50% of the held-out words are unknown to {source}; pretrain it on" in done.out


def test_the_figure_names_the_run_once(corpus, tmp_path, monkeypatch):
    drawn = []
    blank = figures.make_figure(figsize=(1, 1))
    monkeypatch.setattr(figures, "curves", lambda panels, _: drawn.extend(panels) or blank)
    train("train_mlm", data=corpus, pos="rope", out=tmp_path / "run")
    title = f"run\nMasked LM on {corpus.name}, rotary positions"
    assert [heading for heading, *_ in drawn] == [title, ""]
    assert [(y, list(lines)) for _, y, lines, *_ in drawn] == [
        ("perplexity (log scale)", ["held-out lines"]),
        ("accuracy", ["held-out lines"]),
    ]


def test_masks_of_the_validation_set_are_always_the_same():
    sequences = [torch.tensor([BOS, *range(5, 5 + n)]) for n in range(3, 20)]
    one, two = (
        train_mlm.fixed_batches(sequences, train_mlm.Flags(seed=seed), 90, None) for seed in (0, 1)
    )
    assert all(torch.equal(a, b) for x, y in zip(one, two) for a, b in zip(x[:3], y))


def test_training_on_keeps_the_kind_of_the_tokenizer(corpus, tmp_path):
    begun, on = tmp_path / "begun", tmp_path / "on"
    train("train_lm", data=corpus, tokenizer="bpe", out=begun)
    succeed(call("train_lm", init_from=begun, data=corpus, steps=0, out=on))
    assert read_run(on).config["flags"]["tokenizer"] == "bpe"
    succeed(call("compare", begun, on, out=tmp_path / "compared"))


@pytest.mark.parametrize("script", ["train_lm", "train_mlm"])
def test_training_on_from_a_run_with_another_text(script, corpus, own_corpus, tmp_path):
    lines = "another text of other words and freedom matter\n" * 9 + "and more of it\n" * 3
    (own_corpus / "train_LM.txt").write_text(lines + "hope and light\n", encoding="utf-8")
    given = dict(data=own_corpus, vocab_from=corpus, out=tmp_path / "begun")
    train(script, **given)
    vocabulary = load_tokenizer(tmp_path / "begun" / "tokenizer.json").get_vocab()
    assert "Zanzibar" not in vocabulary and "another" not in vocabulary and "ranch" in vocabulary
    given = dict(init_from=tmp_path / "begun", data=corpus)
    succeed(call(script, *SHORT[script][-4:], **given, steps=0, out=tmp_path / "on"))
    a, b = (read_run(tmp_path / name) for name in ("begun", "on"))
    assert a.tokenizer.to_str() == b.tokenizer.to_str()
    assert a.model.body.config == b.model.body.config
    assert all(torch.equal(p, q) for p, q in zip(a.model.parameters(), b.model.parameters()))
    assert call(script, **given, vocab_from=corpus, out=tmp_path / "no").code == 2
    refused = call(script, **given, n_embd=48, out=tmp_path / "no")
    assert_complains(refused, "--n-embd 48", "--init-from")


def test_held_out_lines_of_unknown_words_are_refused(tmp_path):
    lines = ["zoo " * 50, *(f"word{i} other{i}" for i in range(40))]  # the first is not held out
    (tmp_path / "my.txt").write_text("\n".join(lines))
    argv = (*SHORT["train_mlm"], "--data", tmp_path / "my.txt", "--vocab-size", "6")
    outcome = call("train_mlm", *argv, "--out", tmp_path / "run")
    assert_complains(outcome, "my.txt", "no word of the held-out lines", "--vocab-size")
    assert not (tmp_path / "run").exists()


# ----------------------------------------------------------------------------------------- --causal


def test_a_causal_run_predicts_every_next_word(corpus, tmp_path):
    flags = dict(causal=True, pos="alibi", lr=0.02)
    done = train("train_mlm", **flags, data=corpus, out=tmp_path / "run")
    assert "next-word perplexity" in done.out
    loaded = read_run(tmp_path / "run", ("lm",))
    assert loaded.model.body.causal
    held = list(dict.fromkeys(hold_out(data.load(corpus).texts(), 0.2, seed=0)[1]))
    nats = count = 0
    for ids in encode(loaded.tokenizer, held):
        for begin in range(0, len(ids), 11):  # [BOS] and 11 words fill a block
            piece = [BOS, *ids[begin : begin + 11]]
            for t in range(1, len(piece)):
                logits = loaded.model(torch.tensor([piece[:t]]))[0, -1]
                nats -= logits.log_softmax(-1)[piece[t]].item()
                count += 1
    found = result_of(tmp_path / "run")["perplexity/valid"]
    assert found == pytest.approx(math.exp(nats / count), rel=1e-4)


def test_a_causal_run_is_a_language_model_for_other_scripts(corpus, finished, tmp_path):
    argv = (*SHORT["train_mlm"], "--causal", "--data", corpus)
    succeed(call("train_mlm", *argv, out=tmp_path / "clm"))
    given = dict(init_from=tmp_path / "clm", steps=0, out=tmp_path / "lm")
    outcome = call("train_lm", **given, data=corpus)
    assert_complains(outcome, "train_mlm.py trained it on the labelled rows", "the test sets")
    succeed(call("train_lm", **given, data=shutil.copy(corpus / "train_LM.txt", tmp_path)))
    given = dict(causal=True, init_from=tmp_path / "lm", data=corpus, out=tmp_path / "again")
    succeed(call("train_mlm", **given, steps=0, valid=0.2))
    assert same(*(weights(tmp_path / name / "best.pt") for name in ("clm", "again")))
    given = dict(causal=True, data=corpus, out=tmp_path / "x")
    wrong = call("train_mlm", **given, init_from=finished("train_mlm"))
    assert_complains(wrong, "of kind 'mlm'", "written by train_lm.py")
    outcome = call("train_mlm", *argv, mask_rate=0.2, out=tmp_path / "x")
    assert_complains(outcome, "--causal masks no words", "--mask-rate")
    two = tmp_path / "two"
    train("train_lm", members=2, steps=1, data=corpus, out=two)
    assert_complains(call("train_mlm", **given, init_from=two), "is an ensemble")
