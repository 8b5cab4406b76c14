"""Read a corpus for language models as token streams.

`data` is the value of --data: a text (see corpus.load) or a folder of `python -m data.prepare`. The
other arguments are flags too: kind is --tokenizer.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from data import batching, corpus
from data.corpus import Corpus, hold_out
from data.files import UserError, read_json, sha256
from data.tokenizer import load_tokenizer, train_tokenizer


@dataclass
class Text:
    """Running text as streams of ids that begin with [BOS]."""

    name: str
    tokenizer: Tokenizer
    streams: dict[str, torch.Tensor]  # "train", "valid" if held out, each test set -> ids (N + 1,)
    sizes: dict[str, int]  # the same -> bytes of its text in UTF-8
    floor: dict[str, float]  # the best possible values of metrics, if they are known
    note: str  # what --split removed
    hash: str  # sha256 of all ids, or of the description of a prepared folder
    read: dict[str, Corpus]  # what --data and --vocab-from give, unless prepared, by their names

    metric = "perplexity"  # what is drawn and printed of it

    def describe(self, block_size):
        """Return in words what is trained on. Raises UserError if it is shorter than a block."""
        n = len(self.streams["train"]) - 1
        if n < block_size:
            problem = f"the training text has only {n} tokens; use a smaller block"
            raise UserError(f"--block-size {block_size}: {problem}")
        return f"{self.name}: {n:,} training tokens"

    def batch(self, block_size, n, gen):
        """Draw n blocks from anywhere in the training text: inputs and targets (n, T)."""
        return batching.random_blocks(self.streams["train"], block_size, n, gen)

    def blocks(self, name, block_size, most, stride, anchor):
        """Return the first `most` tokens of a set (0: all) as consecutive blocks: inputs and
        targets (n, T)."""
        ids = self.streams[name][: most + 1 if most else None]
        return batching.consecutive_blocks(ids, block_size, min(stride, block_size), anchor)


@cache
def find_task(data, length=None):
    """Return the `data.tasks.Task` that --data names, or None. length: also as it is typed."""
    from data.tasks import TASKS  # which needs this module

    length = int(length) if str(length).isdecimal() else None
    return TASKS[data](length) if data in TASKS else None


def read_text(
    data, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0.0, split="full"
):
    """Return the Text of --data. tokenizer: one to use instead of training one, on the training
    lines alone. Raises UserError as `corpus.load` and `read_prepared`, and without running text."""
    if prepared := read_prepared(data, tokenizer, vocab_size, vocab_from, valid, split != "full"):
        return prepared
    found, vocabulary, read, note = load_parts(data, vocab_from, split)
    if not found.lines:
        raise UserError(f"--data {data}: no running text; give a .txt or one in train_LM.txt")
    lines, held_out = hold_out(found.lines, valid, name=data) if valid else (found.lines, [])
    # The floor is per word: it holds if the vocabulary has every word of this corpus
    all_words = kind == "word" and not (vocab_size or vocab_from or tokenizer)
    tokenizer = tokenizer or train_tokenizer(kind, vocabulary.texts(held_out), vocab_size)
    sets = {"train": lines} | ({"valid": held_out} if held_out else {}) | found.tests
    streams = {name: batching.stream(tokenizer, part) for name, part in sets.items()}
    sizes = {name: sum(len(line.encode()) + 1 for line in part) for name, part in sets.items()}
    floor, digest = found.floor if all_words else {}, hash_ids(streams.values())
    return Text(found.name, tokenizer, streams, sizes, floor, note, digest, read)


def load_parts(data, vocab_from="", split="full"):
    """Return the Corpus to train on, that of the vocabulary, both by flag, what --split removed."""
    read, notes = {"data": corpus.load(data)}, []
    if vocab_from:
        read["vocab_from"] = corpus.load(vocab_from, "--vocab-from")
    # If none has test rows, split the first one: it raises UserError unless --split is full
    for flag in [flag for flag, each in read.items() if each.test_rows] or ["data"]:
        read[flag], _, note = read[flag].split(split)
        notes += [note] if note else []
    return read["data"], read.get("vocab_from", read["data"]), read, "; ".join(notes)


def hash_ids(parts):
    """Return the sha256 of tensors of ids and of their lengths, in hexadecimal."""
    digest = hashlib.sha256()
    for ids in parts:
        digest.update(len(ids).to_bytes(8, "little") + ids.numpy().tobytes())
    return digest.hexdigest()


def read_prepared(data, tokenizer, *others):
    """Return a folder of data/prepare.py as Text with streams on disk; None for other data. Raises
    UserError for `others`, flags that must be empty, and another tokenizer."""
    folder = Path(data).expanduser()
    if not (folder / "meta.json").is_file():
        return None
    if any(others):
        remedy = "leave --vocab-size, --vocab-from, --valid and --split out"
        raise UserError(f"--data {data}: has its own vocabulary and sets; {remedy}")
    meta, own = read_json(folder / "meta.json"), load_tokenizer(folder / "tokenizer.json")
    if tokenizer and tokenizer.to_str() != own.to_str():
        raise UserError(f"--data {data}: not the vocabulary of the run; use --vocab-from RUN")
    streams = {}
    for name, count in meta["tokens"].items():
        path = folder / f"{name}.bin"
        # Mode c, copy on write: torch warns about arrays that cannot be written
        streams[name] = torch.from_numpy(np.memmap(path, meta["dtype"], "c", shape=(count,)))
    digest = sha256(folder / "meta.json")
    return Text(folder.resolve().name, own, streams, meta["bytes"], {}, "", digest, {})
