"""Corpora for language models: what is held out and known to the vocabulary; prepared folders."""

import shutil

import pytest
import torch
from helpers import call, succeed

import data
from data import batching
from data.files import UserError
from data.leaks import hold_out
from data.sentences import read_sentences
from data.text import read_text
from data.tokenizer import BOS, UNK, encode, train_tokenizer


def test_held_out_lines_are_unknown_to_the_vocabulary(tmp_path):
    lines = [f"line with word{i}" for i in range(40)]
    (tmp_path / "mine.txt").write_text("\n".join(lines), encoding="utf-8")
    text = read_text(tmp_path / "mine.txt", valid=0.25)
    kept, held = hold_out(lines[:36], 0.25)
    assert torch.equal(text.streams["train"], batching.stream(text.tokenizer, kept))
    assert torch.equal(text.streams["valid"], batching.stream(text.tokenizer, held))
    assert (text.streams["valid"] == UNK).sum() == len(held) == 9
    assert not (text.streams["train"] == UNK).any()
    assert text.n_bytes["valid"] == sum(len(line) + 1 for line in held)
    masked = read_sentences(tmp_path / "mine.txt", 9, valid=0.25)
    unknown = [(ids == UNK).sum() for ids in masked.train + masked.valid]
    assert unknown == [0] * 27 + [1] * 9
    # The floor of a corpus holds if the vocabulary has all its words
    assert read_text("toy").floor.keys() >= {"perplexity/ada", "accuracy/test"}
    assert read_text("toy", text.tokenizer).floor == read_text("toy", vocab_size=99).floor == {}


def test_sentences_are_the_lines_and_rows_once_each(corpus):
    text = read_sentences(corpus, 99, valid=0.2)
    kept, held = (dict.fromkeys(part) for part in hold_out(data.load(corpus).texts(), 0.2))
    for part, sequences in ((kept, text.train), (held, text.valid)):
        assert [s[1:].tolist() for s in sequences] == encode(text.tokenizer, part)
    assert text.n_tokens == sum(map(len, text.train)) and (text.n_long, text.note) == (0, "")
    short = read_sentences(corpus, 6, valid=0.2)
    assert short.n_long == len(kept) and max(map(len, short.train)) == 6


def test_a_split_removes_test_sentences_whatever_the_vocabulary(corpus):
    clean = read_sentences(corpus, 99, valid=0.1, split="clean")
    assert clean.note.startswith("--split clean: 15 test rows")
    tests = encode(clean.tokenizer, [text for _, text in data.load(corpus).test_rows])
    assert not {tuple(s[1:].tolist()) for s in clean.train + clean.valid} & set(map(tuple, tests))
    for vocab_from in ("toy-pairs", corpus):  # without test rows, and with some of its own
        other = read_text(corpus, vocab_from=vocab_from, split="clean")
        assert other.n_bytes["train"] == read_text(corpus, split="clean").n_bytes["train"]
        assert other.note.count("15 test rows") == 1 + (vocab_from == corpus)


def test_the_hash_tells_when_the_data_has_changed(corpus, tmp_path):
    folder = shutil.copytree(corpus, tmp_path / "mine")
    with open(folder / "train_LM.txt", "a") as file:
        file.write("a new line today .\n")
    for read in read_text, lambda name: read_sentences(name, 32, valid=0.1):
        assert read(corpus).hash == read(corpus).hash != read(folder).hash


LINES = data.load("toy").lines[:550]


def prepare(folder, *more):
    """Write two texts, prepare them as out/ and return it."""
    (folder / "big.txt").write_text("\r\n\n".join(LINES[:500]) + "\n", encoding="utf-8")
    (folder / "end.txt").write_text("\r".join(LINES[500:]), encoding="utf-8")
    texts = folder / "big.txt", folder / "end.txt", "--tokenizer", "word"
    succeed(call("data.prepare", *texts, *more, out=folder / "out"))
    return folder / "out"


def test_a_prepared_text_is_the_text(tmp_path):
    out = prepare(tmp_path, "--valid", "0")
    text = read_text(out)
    assert text.tokenizer.to_str() == train_tokenizer("word", LINES).to_str()
    ids, plain = text.streams["train"], batching.stream(text.tokenizer, LINES)
    assert ids.long().equal(plain) and text.n_bytes["train"] == sum(len(x) + 1 for x in LINES)
    assert (text.name, text.note, text.floor) == ("out", "", {})
    with pytest.raises(UserError, match="has its own vocabulary and sets; leave"):
        read_text(out, split="clean")
    with pytest.raises(UserError, match="not the vocabulary of the run; use --vocab-from"):
        read_text(out, train_tokenizer("word", ["other"]))
    with pytest.raises(UserError, match="no validation set; prepare it with --valid 0.01"):
        read_sentences(out, 16)
    with pytest.raises(UserError, match="holds prepared tokens, for train_lm.py"):
        data.load(out)


def test_held_out_lines_and_full_blocks(tmp_path):
    out = prepare(tmp_path, "--valid", "0.2", "--vocab-size", 50)
    text, sentences = read_text(out), read_sentences(out, 16)
    assert 0.1 < len(text.streams["valid"]) / sum(map(len, text.streams.values())) < 0.3
    joined = text.streams["train"][1:].long()
    assert sentences.train.long().flatten().equal(joined[: len(joined) // 15 * 15])
    batch, n = sentences.batches(8, seed=0), -(-len(sentences.train) // 8)
    read = torch.cat([batch(step)[0] for step in range(n)])
    assert (read[:, 0] == BOS).all()
    assert sorted(read[:, 1:].tolist()) == sorted(sentences.train.tolist())
    held = torch.cat([block[1:] for block in sentences.valid])
    assert held.equal(text.streams["valid"][1:].long()) and sentences.hash == text.hash
    (tmp_path / "b").mkdir()
    two = read_text(prepare(tmp_path / "b", "--vocab-from", out))
    assert two.tokenizer.to_str() == text.tokenizer.to_str() and two.hash != text.hash


def test_mistakes_of_the_command_are_one_line(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"one\ntwo\xff\n")
    for text, message in (("no", "no: no such file"), ("bad.txt", "bad.txt:2: not UTF-8")):
        outcome = call("data.prepare", tmp_path / text, out=tmp_path / "out")
        assert outcome.code == 2 and message in outcome.err and outcome.err.count("\n") == 1
    assert "is not empty" in call("data.prepare", tmp_path / "bad.txt", out=tmp_path).err
    assert not list(tmp_path.glob("*/meta.json"))
