"""Read a corpus for language models: token streams for train_lm.py, sentences for train_mlm.py.

`data` is the value of --data: a text (see corpus.load) or a folder of `python -m data.prepare`. The
other arguments are flags too: kind is --tokenizer.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from data import batching, corpus
from data.corpus import hold_out
from data.files import UserError, read_json, sha256
from data.tokenizer import frame, load_tokenizer, train_tokenizer


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


def read_text(
    data, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0.0, split="full"
):
    """Return the Text of --data. tokenizer: one to use instead of training one, on the training
    lines alone. Raises UserError as `corpus.load` and `read_prepared`, and without running text."""
    if prepared := read_prepared(data, tokenizer, vocab_size, vocab_from, valid, split != "full"):
        return prepared
    found, vocabulary, note = load_parts(data, vocab_from, split)
    if not found.lines:
        raise UserError(f"--data {data}: no running text; give a .txt or one in train_LM.txt")
    lines, held_out = hold_out(found.lines, valid, name=data) if valid else (found.lines, [])
    # The floor is per word: it holds if the vocabulary has every word of this corpus
    all_words = kind == "word" and not (vocab_size or vocab_from or tokenizer)
    tokenizer = tokenizer or train_tokenizer(kind, vocabulary.texts(held_out), vocab_size)
    sets = {"train": lines} | ({"valid": held_out} if held_out else {}) | found.tests
    streams = {name: batching.stream(tokenizer, part) for name, part in sets.items()}
    sizes = {name: sum(len(line.encode()) + 1 for line in part) for name, part in sets.items()}
    floor = found.floor if all_words else {}
    return Text(found.name, tokenizer, streams, sizes, floor, note, hash_ids(streams.values()))


def load_parts(data, vocab_from, split):
    """Return (the corpus to train on, the one of the vocabulary, what --split removed)."""
    corpora, notes = [corpus.load(data)], []
    if vocab_from:
        corpora.append(corpus.load(vocab_from, "--vocab-from"))
    # If none has test rows, split the first one: it raises UserError unless --split is full
    for i in [i for i, each in enumerate(corpora) if each.test_rows] or [0]:
        corpora[i], _, note = corpora[i].split(split)
        notes += [note] if note else []
    return corpora[0], corpora[-1], "; ".join(notes)


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
    return Text(folder.resolve().name, own, streams, meta["bytes"], {}, "", digest)


@dataclass
class Sentences:
    """Sentences as tensors of ids that begin with [BOS]; or, on disk, full blocks (n, T) of running
    text without it (RoBERTa's full sentences, Liu et al. 2019, section 4.2)."""

    name: str
    tokenizer: Tokenizer
    train: list[torch.Tensor] | torch.Tensor
    valid: list[torch.Tensor]
    n_tokens: int  # of train
    n_long: int  # lines longer than a block, which were split
    note: str  # what --split removed
    hash: str  # as in Text

    def batches(self, batch_size, seed):
        """Return a function of step -> idx, mask (B, T): of similar length, each once per epoch."""
        on_disk = torch.is_tensor(self.train)  # all of one length
        lengths = [0] * len(self.train) if on_disk else [len(ids) for ids in self.train]
        make = partial(batching.length_batches, lengths)
        rows_of = batching.by_epoch(len(self.train), batch_size, seed, make)

        def batch(step):
            found = [self.train[i] for i in rows_of(step)]
            if on_disk:
                found = [torch.tensor(frame(self.tokenizer, ids.tolist())) for ids in found]
            return batching.pad(found)

        return batch


def read_sentences(
    data, T, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0, split="full"
):
    """Return --data as Sentences of at most T tokens, or a prepared folder as full blocks of T,
    with its own validation set. Raises UserError as `read_text` does, and for too few lines."""
    if text := read_prepared(data, tokenizer, vocab_size, vocab_from, split != "full"):
        if "valid" not in text.streams:
            raise UserError(f"--data {data}: no validation set; prepare it with --valid 0.01")
        own, room = text.tokenizer, T - len(frame(text.tokenizer, []))
        train = text.streams["train"][1:].unfold(0, room, room)  # (n, T), without the rest
        held = text.streams["valid"][1:].split(room)
        held = [torch.tensor(frame(own, ids.tolist())) for ids in held]
        return Sentences(text.name, own, train, held, train.numel(), 0, "", text.hash)
    found, vocabulary, note = load_parts(data, vocab_from, split)
    texts = list(dict.fromkeys(found.texts()))  # a line of both files is read once per epoch
    kept, held_out = hold_out(texts, valid, name=data)
    tokenizer = tokenizer or train_tokenizer(kind, vocabulary.texts(), vocab_size)
    train, n_long = batching.sentences(tokenizer, kept, T, split=True)
    held, _ = batching.sentences(tokenizer, held_out, T, split=True)
    n_tokens, digest = sum(map(len, train)), hash_ids(train + held)
    return Sentences(found.name, tokenizer, train, held, n_tokens, n_long, note, digest)
