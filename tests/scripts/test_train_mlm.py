"""train_mlm.py: perplexities counted by hand, and training on from a run, RoBERTa or a folder."""

import math

import pytest
import torch
from helpers import TINY, call, fails, stopped_at, succeed

import data
import train_mlm
from data.leaks import hold_out
from data.sentences import pair_up, read_in_order
from data.tokenizer import BOS, EOS, UNK, encode, load_tokenizer
from lab.load import read_config, read_metrics, read_result, read_run

VALID = ("--valid", 0.2)


def run(corpus, out, *argv, **flags):
    succeed(call("train_mlm", "--data", corpus, *TINY, *VALID, *argv, out=out, **flags))
    return read_result(out)


def weights(folder):
    return torch.load(folder / "best.pt", weights_only=True)["model"]


def same_weights(one, two):
    return all(torch.equal(a, b) for a, b in zip(weights(one).values(), weights(two).values()))


def same_runs(one, two):
    a, b = ((run / "metrics.jsonl").read_bytes() for run in (one, two))
    return a == b and same_weights(one, two)


def held_out(corpus, tokenizer):
    texts = list(dict.fromkeys(data.load(corpus).texts()))
    return encode(tokenizer, hold_out(texts, 0.2)[1])


OPTIONS = ("--head clap --zero-mask --omit-mask", "--head linear --split clean")
OPTIONS += ("--mask-unit span", "--mask-unit word --tokenizer bpe --vocab-size 300")
OPTIONS += ("--pos alibi --alibi one-sided --no-norm-first",)
OPTIONS += ("--pos sinusoidal --no-scale-words --head plain-clap --no-norm-first",)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_of_pretraining_learns(options, corpus, tmp_path):
    learn = "--steps 30 --eval-every 15 --lr 0.01 --warmup 5 --dropout 0".split()
    result = run(corpus, tmp_path / "run", *options.split(), *learn)
    first, _, last = read_metrics(tmp_path / "run")
    assert last["loss/valid"] < first["loss/valid"]
    assert ("beta" in last) == ("clap" in options)
    assert result["perplexity/valid"] == pytest.approx(math.exp(result["loss/valid"]))


def test_the_perplexity_is_that_of_the_masked_words_one_by_one(finished, corpus):
    folder = finished("train_mlm", "--pos", "alibi")
    flags = read_config(folder)["flags"] | {"seed": 7}  # all seeds are measured on the same masks
    loaded, flags = read_run(folder), train_mlm.Flags(**flags)
    held = [torch.tensor([BOS, *ids]) for ids in held_out(corpus, loaded.tokenizer)]
    nats = hits = count = 0
    for inputs, real, labels, _ in train_mlm.fixed_batches(held, loaded.tokenizer, flags):
        for row, mask, label in zip(inputs, real, labels):
            logits = loaded.model(row[mask][None])[0]  # without others and without padding
            for t in (label != -100).nonzero().flatten().tolist():
                nats -= logits[t].log_softmax(-1)[label[t]].item()
                hits += (logits[t].argmax() == label[t]).item()
                count += 1
    expected = {"perplexity": math.exp(nats / count), "accuracy": hits / count}
    for name, value in expected.items():
        assert read_result(folder)[f"{name}/valid"] == pytest.approx(value, rel=1e-4)


def test_held_out_lines_that_overlap_training_lines_are_counted(tmp_path):
    words = " ".join(f"word{i}" for i in range(12))
    path = tmp_path / "mine.txt"
    for text, n_lines in (words, 8), ("too short", 0):
        path.write_text("".join(f"{text} {i}\n" for i in range(44)), "utf-8")
        argv = ("train_mlm", *TINY, "--data", path, "--overwrite", "--out", tmp_path / "run")
        out = succeed(call(*argv, *VALID, steps=0)).out
        assert ("100.0% of the held-out lines share 12" in out) == (n_lines > 0)


def test_an_interrupted_run_resumes_exactly(corpus, tmp_path, monkeypatch):
    how = (*TINY, *VALID, "--dropout", 0.1, "--head", "clap", "--mask-unit", "span")
    run(corpus, tmp_path / "whole", *how)
    how = ("train_mlm", "--data", corpus, *how)
    assert "step 6 is saved" in stopped_at(6, monkeypatch, *how, out=tmp_path / "parts").err
    succeed(call("train_mlm", "--resume", out=tmp_path / "parts"))
    assert same_runs(tmp_path / "whole", tmp_path / "parts")


def test_training_on_from_a_run_with_another_text(corpus, finished, tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("".join(f"we qb{n} we qc\n" for n in range(60)))
    run(own, tmp_path / "begun", vocab_from=corpus, dropout=0)
    assert "qb1" not in load_tokenizer(tmp_path / "begun" / "tokenizer.json").get_vocab()
    argv = ("--data", corpus, *VALID, "--steps", 0, "--init-from", tmp_path / "begun")
    succeed(call("train_mlm", *argv, out=tmp_path / "on"))
    assert same_weights(tmp_path / "begun", tmp_path / "on")
    done = succeed(call("train_mlm", *argv, data=own, dropout=0.3, out=tmp_path / "other"))
    assert "of the held-out words are unknown" in done.out
    assert read_config(tmp_path / "other")["model"]["dropout"] == 0.3
    fails(call("train_mlm", *argv, vocab_from=corpus, out=tmp_path / "no"), "brings its vocab")
    fails(call("train_mlm", *argv, n_embd=48, out=tmp_path / "no"), "weights do not fit")
    argv = (*argv, "--init-from", finished("train_lm"))
    fails(call("train_mlm", *argv, out=tmp_path / "no"), "a run of kind lm")


def test_a_prepared_text_is_read_in_full_blocks(corpus, tmp_path):
    argv = ("--vocab-size", 300, "--valid", 0.1, "--out", tmp_path / "prepared")
    succeed(call("data.prepare", corpus / "train_LM.txt", *argv))
    done = succeed(call("train_mlm", *TINY, data=tmp_path / "prepared", out=tmp_path / "run"))
    assert "prepared: " in done.out and len(read_metrics(tmp_path / "run")) == 3
    argv = ("train_mlm", *TINY, "--data", tmp_path / "prepared", "--out", tmp_path / "no")
    fails(call(*argv, block_size=5000), "--block-size 5000: the training text is shorter")


def test_it_starts_from_roberta(corpus, finished, tmp_path):
    pytest.importorskip("transformers", reason="the extra beyond is not installed")
    ours = finished("train_mlm", "--no-norm-first", "--tokenizer", "bpe", "--vocab-size", 300)
    succeed(call("beyond.export", ours, out=tmp_path / "roberta"))
    argv = ("--data", corpus, *VALID, "--init", tmp_path / "roberta")
    succeed(call("train_mlm", *argv, steps=0, out=tmp_path / "on"))
    a, b = (read_result(folder)["perplexity/valid"] for folder in (ours, tmp_path / "on"))
    assert a == pytest.approx(b, rel=1e-3)
    assert read_config(tmp_path / "on")["flags"]["n_embd"] == 16
    fails(call("train_mlm", *argv, n_layer=3, out=tmp_path / "no"), "--n-layer 3", "has 1")
    tuned = ("--tune", "all", "--epochs", 1, "--no-refit", "--lr", 1e-9, "--out", tmp_path / "cls")
    succeed(call("train_classifier", *argv, *tuned))
    a, b = (read_run(tmp_path / name).model.body.state_dict() for name in ("on", "cls"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("flags, words", [
    (dict(init="roberta", vocab_from="toy"), "brings an encoder"),
    (dict(vocab_size=6), "no word of the held-out lines"),
    (dict(head="clap", n_head=3), "n_head must divide n_embd"),
    (dict(pos="cope"), "pos=cope: counts the tokens before a query, so it needs a decoder"),
    (dict(log_scale=True), "log_scale: counts the keys before a query, so it needs a decoder"),
    (dict(valid=1.5), "--valid"),
])  # fmt: skip
def test_a_wrong_flag_is_one_message(tmp_path, flags, words):
    lines = ["zoo " * 50, *(f"word{i % 5} other{i}" for i in range(40))]  # the first is kept
    (tmp_path / "my.txt").write_text("\n".join(lines))
    argv = ("--data", tmp_path / "my.txt", *TINY, "--out", tmp_path / "a")
    fails(call("train_mlm", *argv, **flags), words)
    assert not (tmp_path / "a").exists()


def test_next_sentences_follow_or_are_random():
    texts = [torch.tensor([BOS, *range(10 * i, 10 * i + 1 + i % 9)]) for i in range(1, 400)]
    pairs, follows = pair_up(texts, 12, torch.Generator().manual_seed(0))
    assert len(pairs) == len(follows) == 398 and 0.4 < follows.float().mean() < 0.6
    for a, b, pair, follow in zip(texts, texts[1:], pairs, follows):
        first, second = (a[:6].tolist(), EOS), b[1:6].tolist()
        assert pair[: len(first[0]) + 1].tolist() == [*first[0], EOS]
        found = pair[len(first[0]) + 1 :].tolist()
        assert found == second if follow else found not in (second, first[0][1:])
    assert max(map(len, pairs)) <= 12
    texts = [torch.tensor([BOS, 10 + i % 5]) for i in range(400)]  # a random one may be a copy
    pairs, follows = pair_up(texts, 12, torch.Generator().manual_seed(0))
    assert all(f == (p[3] == b[1]) for p, f, b in zip(pairs, follows, texts[1:]))


def test_lines_that_repeat_keep_their_neighbours(tmp_path):
    lines = [word for i in range(20) for word in ("so", f"line{i}")]
    (tmp_path / "my.txt").write_text("\n".join(lines), "utf-8")
    found = read_in_order(tmp_path / "my.txt", 8, valid=0.1)
    ids = [int(text[1]) for text in found.train]
    assert len(ids) > 20 and all(
        (one == ids[0]) != (two == ids[0]) for one, two in zip(ids, ids[1:])
    )
    assert 0 < len(found.valid) and all(text[1] == UNK for text in found.valid)  # none is "so"


@pytest.mark.slow
def test_next_sentence_is_learned_and_its_encoder_reads_pairs(tmp_path):
    """One in four random sentences fits, so 87% are the most that can be told."""
    phrases = "we want you", "they need us", "you fear them", "us love it"
    lines = [f"{phrases[i % 4]} {i} times ." for i in range(600)]
    (tmp_path / "mine.txt").write_text("\n".join(lines), "utf-8")
    how = dict(data=tmp_path / "mine.txt", steps=400, lr=0.003, valid=0.2, block_size=16)
    flags = dict(n_layer=2, n_head=2, n_embd=32, n_ffn=64, eval_every=400, init_std=0.05)
    how |= dict(dropout=0, mask_rate=0.15)
    succeed(call("train_mlm", "--next-sentence", out=tmp_path / "run", **how, **flags))
    assert read_result(tmp_path / "run")["accuracy/next"] > 0.7
    rows = "".join(f"{i % 2},{a},{b}\n" for i, (a, b) in enumerate(zip(lines, lines[7:60])))
    (tmp_path / "rows.csv").write_text(f"label,text,text2\n{rows}", "utf-8")
    argv = ("train_classifier", "--encoder", tmp_path / "run", "--data", tmp_path / "rows.csv")
    for tune in (), ("--tune", "all"):
        succeed(call(*argv, *tune, "--epochs", 1, "--overwrite", out=tmp_path / "tuned"))
        assert read_config(tmp_path / "tuned")["model"]["n_segment"] == 2
