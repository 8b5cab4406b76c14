"""Read running text for language models, as token streams."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from data.batching import consecutive_blocks, hash_ids, random_blocks, stream
from data.corpus import Corpus
from data.files import UserError, read_json, sha256
from data.leaks import hold_out, split_corpus
from data.readers import load
from data.tokenizer import load_tokenizer, train_tokenizer


@dataclass
class Text:
    """Running text as streams of ids that begin with [BOS]."""

    name: str
    tokenizer: Tokenizer
    streams: dict[str, torch.Tensor]  # "train", "valid" if held out, each test set -> ids (N + 1,)
    n_bytes: dict[str, int]  # the same -> bytes of its text in UTF-8
    floor: dict[str, float]  # the best possible values of metrics, if they are known
    note: str  # what --split removed
    hash: str  # sha256 of all ids, or of the description of a prepared folder
    corpora: dict[str, Corpus]  # flag -> what --data and --vocab-from give; empty if prepared

    def describe(self, block_size):
        """Return in words what is trained on. Raises UserError if it is shorter than a block."""
        n = len(self.streams["train"]) - 1
        if n < block_size:
            problem = f"the training text has only {n} tokens; use a smaller block"
            raise UserError(f"--block-size {block_size}: {problem}")
        return f"{self.name}: {n:,} training tokens"

    def batch(self, block_size, n, gen):
        """Draw n blocks from anywhere in the training text: inputs and targets (n, T)."""
        return random_blocks(self.streams["train"], block_size, n, gen)

    def blocks(self, name, block_size, most, stride, anchor):
        """Return the first `most` tokens of a set (0: all) as consecutive blocks: inputs and
        targets (n, T). stride, anchor: see `batching.consecutive_blocks`."""
        ids = self.streams[name]
        if most:
            ids = ids[: most + 1]  # and [BOS]
        return consecutive_blocks(ids, block_size, min(stride, block_size), anchor)


def read_text(
    data, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0.0, split="full"
):
    """Return the Text of --data, a text (see `readers.load`) or a folder of `python -m
    data.prepare`. tokenizer: a Tokenizer to use instead of training one. kind: --tokenizer, what to
    train, on training text alone. The other arguments are the flags of these names. Raises
    UserError as `load` and `read_prepared`, and without running text."""
    if is_prepared(data):
        refuse_flags(data, vocab_size, vocab_from, valid, split != "full")
        return read_prepared(data, tokenizer)
    corpus, vocabulary, corpora, note = load_parts(data, vocab_from, split)
    if not corpus.lines:
        raise UserError(f"--data {data}: no running text; give a .txt or one in train_LM.txt")
    lines = corpus.lines
    held_out = []
    if valid:
        lines, held_out = hold_out(lines, valid, name=data)
    floor = {}
    if kind == "word" and not (vocab_size or vocab_from or tokenizer):
        floor = corpus.floor  # it is per word, so the vocabulary must have every word of the corpus
    if not tokenizer:
        tokenizer = train_tokenizer(kind, vocabulary.texts(without=held_out), vocab_size)

    sets = {"train": lines}
    if held_out:
        sets["valid"] = held_out
    sets |= corpus.tests
    streams = {}
    n_bytes = {}
    for name, set_lines in sets.items():
        streams[name] = stream(tokenizer, set_lines)
        n_bytes[name] = sum(len(line.encode()) + 1 for line in set_lines)  # and the line end
    digest = hash_ids(streams.values())
    return Text(corpus.name, tokenizer, streams, n_bytes, floor, note, digest, corpora)


def load_parts(data, vocab_from="", split="full"):
    """Return the Corpus to train on, that of the vocabulary, {flag: both of them}, and a note on
    what --split removed."""
    corpora = {"data": load(data)}
    if vocab_from:
        corpora["vocab_from"] = load(vocab_from, "--vocab-from")
    to_split = [flag for flag, corpus in corpora.items() if corpus.test_rows]
    if split != "full" and not to_split:
        to_split = ["data"]  # for its UserError: split_corpus refuses a corpus without test rows
    notes = []
    for flag in to_split:
        corpora[flag], _, note = split_corpus(corpora[flag], split)
        if note:
            notes.append(note)
    vocabulary = corpora.get("vocab_from", corpora["data"])
    return corpora["data"], vocabulary, corpora, "; ".join(notes)


def is_prepared(data):
    """Return whether --data is a folder of `python -m data.prepare`, which is complete."""
    return (Path(data).expanduser() / "meta.json").is_file()


def refuse_flags(data, *values):
    """Raise UserError if one of the flags that a prepared folder has no use for is set."""
    if any(values):
        remedy = "leave --vocab-size, --vocab-from, --valid and --split out"
        raise UserError(f"--data {data}: has its own vocabulary and sets; {remedy}")


def read_prepared(data, tokenizer):
    """Return a prepared folder as Text, with streams that stay on disk. Raises UserError if a
    tokenizer is given and is not the folder's own."""
    folder = Path(data).expanduser()
    meta = read_json(folder / "meta.json")
    prepared_with = load_tokenizer(folder / "tokenizer.json")
    if tokenizer and tokenizer.to_str() != prepared_with.to_str():
        raise UserError(f"--data {data}: not the vocabulary of the run; use --vocab-from RUN")
    streams = {}
    for name, count in meta["tokens"].items():
        path = folder / f"{name}.bin"
        # Mode c, copy on write: torch warns about arrays that cannot be written
        streams[name] = torch.from_numpy(np.memmap(path, meta["dtype"], "c", shape=(count,)))
    return Text(
        name=folder.resolve().name,
        tokenizer=prepared_with,
        streams=streams,
        n_bytes=meta["bytes"],
        floor={},
        note="",
        hash=sha256(folder / "meta.json"),
        corpora={},
    )
