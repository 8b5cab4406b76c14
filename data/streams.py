"""Read a corpus for language models: token streams for train_lm.py, sentences for train_mlm.py.

Each function reads one value of --data, holds out validation lines, and makes the vocabulary. For
token streams, the vocabulary leaves the held-out lines out, as it does every test set.
"""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

import data
from data import batching
from data.corpus import hold_out_valid
from data.files import DataError
from data.shards import Blocks
from data.tokenizer import train_tokenizer


@dataclass
class Text:
    """Running text as streams of ids that begin with [BOS]. shards.Prepared has the same fields."""

    name: str
    tokenizer: Tokenizer
    # "train", "valid" if lines are held out, and each test set -> its ids (N + 1,)
    streams: dict[str, torch.Tensor]
    # The same -> bytes of its text in UTF-8
    sizes: dict[str, int]
    # The best possible values of metrics, if they are known
    floor: dict[str, float]
    note: str  # what --split removed


def read_text(flags, tokenizer=None):
    """Read the corpus of --data as a Text. tokenizer: one to use instead of training one.

    Obeys --tokenizer, --vocab-size, --vocab-from, --valid and --split. Raises DataError as
    `data.load` does, and if there is no running text.
    """
    corpus, vocabulary, note = load_parts(flags)
    if not corpus.lines:
        raise DataError(
            f"--data {flags.data}: holds no running text to model; "
            "give a corpus with train_LM.txt or a .txt"
        )
    lines, held_out = corpus.lines, []
    if flags.valid:
        lines, held_out = hold_out_valid(lines, flags)
    # The floor is per word: it holds if the vocabulary has every word of this corpus
    other_words = flags.vocab_size or flags.vocab_from or tokenizer
    floor = corpus.floor if flags.tokenizer == "word" and not other_words else {}
    if tokenizer is None:
        tokenizer = train_tokenizer(flags.tokenizer, vocabulary.texts(held_out), flags.vocab_size)
    sets = {"train": lines} | ({"valid": held_out} if held_out else {}) | corpus.tests
    return Text(
        corpus.name,
        tokenizer,
        {name: batching.stream(tokenizer, part) for name, part in sets.items()},
        {name: sum(len(line.encode()) + 1 for line in part) for name, part in sets.items()},
        floor,
        note,
    )


def load_parts(flags):
    """Return (the corpus to train on, the one to make the vocabulary from, what --split removed).

    Without --vocab-from, the two are the same. --split is applied to each that has test rows.
    """
    corpora = [data.load(flags.data)]
    if flags.vocab_from:
        corpora.append(data.load(flags.vocab_from, "--vocab-from"))
    notes = []
    # If none has test rows, split the first one: it raises DataError unless --split is full
    for i in [i for i, corpus in enumerate(corpora) if corpus.test_rows] or [0]:
        corpora[i], _, note = corpora[i].split(flags.split)
        notes.append(note)
    return corpora[0], corpora[-1], "; ".join(filter(None, notes))


@dataclass
class Sentences:
    """Sentences as tensors of ids that begin with [BOS], or blocks of a prepared folder on disk."""

    name: str
    tokenizer: Tokenizer
    train: list[torch.Tensor] | Blocks
    valid: list[torch.Tensor]
    n_long: int = 0  # lines longer than a block, which were split
    note: str = ""  # what --split removed

    def __post_init__(self):
        on_disk = isinstance(self.train, Blocks)
        self.lengths = None if on_disk else [len(sequence) for sequence in self.train]
        self.n_tokens = self.train.tokens if on_disk else sum(self.lengths)

    def batches(self, batch_size, seed):
        """Return a function of the step that returns idx, mask (B, T): sentences of similar length,
        each once per epoch."""

        def shuffled(batch_size, gen):
            if self.lengths is None:
                return torch.randperm(len(self.train), generator=gen).split(batch_size)
            return batching.length_batches(self.lengths, batch_size, gen)

        rows = batching.by_epoch(len(self.train), batch_size, seed, shuffled)
        return lambda step: batching.pad([self.train[i] for i in rows(step)])


def read_sentences(flags, tokenizer=None):
    """Read the corpus of --data as Sentences of at most --block-size tokens.

    Obeys the flags that `read_text` does. Raises DataError as `data.load` does, and for too few
    lines. The validation lines depend on the corpus alone, so all runs are measured on the same.
    """
    corpus, vocabulary, note = load_parts(flags)
    texts = list(dict.fromkeys(corpus.texts()))  # a line of both files is read once per epoch
    kept, held_out = hold_out_valid(texts, flags)
    if tokenizer is None:
        tokenizer = train_tokenizer(flags.tokenizer, vocabulary.texts(), flags.vocab_size)
    train, n_long = batching.sentences(tokenizer, kept, flags.block_size, split=True)
    held, _ = batching.sentences(tokenizer, held_out, flags.block_size, split=True)
    return Sentences(corpus.name, tokenizer, train, held, n_long, note)


def read_blocks(prepared, block_size):
    """Return a prepared folder as Sentences: full blocks, in which lines follow one another."""
    valid = prepared.streams.get("valid") or prepared.streams.get("wiki-valid")
    if not valid:
        raise DataError(
            f"--data {prepared.folder}: was prepared without a validation set, which chooses the "
            "best checkpoint; prepare it with --valid 0.01"
        )
    tokenizer = prepared.tokenizer
    train = Blocks(prepared.streams["train"], tokenizer, block_size)
    return Sentences(prepared.name, tokenizer, train, list(Blocks(valid, tokenizer, block_size)))
