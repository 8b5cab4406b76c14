"""Corpora for language models: what is held out, known to the vocabulary, and read per step."""

from types import SimpleNamespace

import pytest
import torch

import data
from data import batching
from data.corpus import hold_out
from data.files import DataError
from data.noise import count_tokens
from data.streams import read_sentences, read_text
from data.tokenizer import UNK, encode, train_tokenizer


def asked(data, **more):
    """Flags as the scripts have them."""
    flags = dict(tokenizer="word", vocab_size=0, vocab_from="", valid=0.0, split="full")
    return SimpleNamespace(**{"data": data, "block_size": 99} | flags | more)


def test_held_out_lines_are_unknown_to_the_vocabulary(tmp_path):
    lines = [f"line with word{i}" for i in range(40)]
    (tmp_path / "mine.txt").write_text("\n".join(lines), encoding="utf-8")
    text = read_text(asked(tmp_path / "mine.txt", valid=0.25))
    kept, held = hold_out(lines[:36], 0.25, seed=0)
    assert torch.equal(text.streams["train"], batching.stream(text.tokenizer, kept))
    assert torch.equal(text.streams["valid"], batching.stream(text.tokenizer, held))
    assert (text.streams["valid"] == UNK).sum() == len(held) == 9
    assert not (text.streams["train"] == UNK).any()


def test_with_another_vocabulary_the_floor_is_unknown():
    given = train_tokenizer("word", ["a few words"])
    text = read_text(asked("toy"), given)
    assert text.tokenizer is given and text.floor == {}
    text = read_text(asked("toy", vocab_from="pydocs"))
    assert text.tokenizer.token_to_id("Python") and text.name == "toy" and text.floor == {}
    for more in ({"tokenizer": "bpe"}, {"vocab_size": 99}):
        assert read_text(asked("toy", **more)).floor == {}


def test_sentences_are_the_lines_and_rows_once_each(own_corpus):
    text, corpus = read_sentences(asked(own_corpus, valid=0.2)), data.load(own_corpus)
    kept, held = (dict.fromkeys(part) for part in hold_out(corpus.texts(), 0.2, seed=0))
    for part, sequences in ((kept, text.train), (held, text.valid)):
        assert [s[1:].tolist() for s in sequences] == encode(text.tokenizer, part)
    assert text.n_tokens == sum(map(len, text.train)) and (text.n_long, text.note) == (0, "")
    short = read_sentences(asked(own_corpus, block_size=6, valid=0.2))
    assert short.n_long == len(kept) and max(map(len, short.train)) == 6


def test_a_split_removes_test_sentences_from_the_text(own_corpus):
    text = read_sentences(asked(own_corpus, valid=0.05, split="clean"))
    assert text.note.startswith("--split clean: 15 test rows; 6 of 60 training rows and 1 of 61")
    read = {tuple(s.tolist()) for s in text.train + text.valid}
    test = encode(text.tokenizer, [row for _, row in data.load(own_corpus).test_rows])
    assert not read & {(3, *ids) for ids in test}


@pytest.mark.parametrize("vocab_from", ["pydocs", "own"])
def test_a_split_removes_test_sentences_whatever_the_vocabulary(vocab_from, own_corpus):
    """The vocabulary may come from a corpus without test rows, or be of test rows of its own."""
    vocab_from = vocab_from if vocab_from == "pydocs" else own_corpus
    more = {"vocab_from": vocab_from, "split": "clean"}
    text, alone = (read_text(asked(own_corpus, **how)) for how in (more, {"split": "clean"}))
    assert text.sizes["train"] == alone.sizes["train"]
    assert text.note.count("15 test rows") == 1 + (vocab_from == own_corpus)
    assert read_text(asked("pydocs", vocab_from=own_corpus, split="clean")).note
    assert read_text(asked(own_corpus, vocab_from=vocab_from)).note == ""
    with pytest.raises(DataError, match="--split clean: leaves no rows"):
        read_text(asked("pydocs", split="clean"))
    with pytest.raises(DataError, match="--vocab-from nowhere: no such corpus"):
        read_text(asked(own_corpus, vocab_from="nowhere"))


def test_every_step_has_its_batch_wherever_training_begins():
    text = read_sentences(asked("toy", valid=0.05, block_size=32))
    n = -(-len(text.train) // 64)
    batch, again = (text.batches(64, seed=1) for _ in range(2))
    epoch = [batch(step) for step in range(n)]
    rows = [tuple(ids[real].tolist()) for batch in epoch for ids, real in zip(*batch)]
    assert sorted(rows) == sorted(tuple(s.tolist()) for s in text.train)
    for step in (3, n - 1, n + 5):
        order = batching.generator(1, "epoch", step // n)
        rows = batching.length_batches(text.lengths, 64, order)[step % n]
        idx, mask = again(step)
        assert torch.equal(idx, batching.pad([text.train[i] for i in rows])[0])
        assert torch.equal(mask, batch(step)[1])


def test_tokens_are_counted_only_for_noise_that_needs_it():
    ids = torch.tensor([3, 5, 5, 6])
    assert count_tokens(ids, 8, swap=0.1, rare=0).tolist() == [0, 0, 0, 1, 0, 2, 1, 0]
    assert count_tokens(ids, 8, swap=0, rare=0.1)[5] == 2
    assert not count_tokens(ids, 8, swap=0, rare=0).any()
