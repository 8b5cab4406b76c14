"""The data type that every reader returns and every script reads: a Corpus."""

import re
from dataclasses import dataclass, field
from pathlib import Path

PAIR = " [EOS] "  # between the two sentences of a labelled pair
ENDINGS = (".txt", ".tsv", ".csv", ".jsonl")  # of files that are a corpus


@dataclass
class Corpus:
    """A text for language models, its test sets, and labelled rows. Each part may be empty.

    A row is (index in classes, text) or, in `scored`, (score, text). The text of two sentences, a
    pair, is "a [EOS] b".
    """

    name: str
    lines: list[str] = field(default_factory=list)  # training text, a sentence or paragraph each
    tests: dict[str, list[str]] = field(default_factory=dict)  # name of a test set -> its lines
    rows: list[tuple[int, str]] = field(default_factory=list)  # to train a classifier on
    test_rows: list[tuple[int, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    floor: dict[str, float] = field(default_factory=dict)  # best possible metrics, if known
    removed: set[str] = field(default_factory=set)  # by --split, and the texts of the test rows
    valid_rows: list[tuple[int, str]] = field(default_factory=list)  # else --valid of rows
    scored: dict[str, list] = field(default_factory=dict)  # rows, valid_rows, test_rows of scores

    def lines_are_rows(self):
        """Return whether the text is that of the rows, as in a table."""
        return self.lines == sentences_of(self.rows)

    def texts(self, without=()):
        """Return the training text, which makes the vocabulary, but not the texts `without`."""
        if self.lines_are_rows():
            texts = self.lines  # each once
        else:
            texts = self.lines + sentences_of(self.rows)
        left_out = {copy_key(text) for text in without}
        return [text for text in texts if copy_key(text) not in left_out]

    def seen(self):
        """Return for each test row whether its text also appears in a training row."""
        training = {copy_key(text) for _, text in self.rows}
        return [copy_key(text) in training for _, text in self.test_rows]


def sentences_of(rows):
    """Return the sentences of rows in order, both sentences of a pair."""
    sentences = []
    for _, text in rows:
        sentences += text.split(PAIR)
    return sentences


def copy_key(text):
    """Return the text with one space around each word and mark, so that copies compare equal."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text))


def name_of(path):
    """Return the name of a corpus in folders and titles: its own, or that of the file or folder."""
    place = re.sub("^hf:([^:]+).*", r"\1", str(path))  # hf:NAME:label=COLUMN
    place = Path(place).expanduser().resolve()
    if place.suffix.lower() in ENDINGS:
        return place.stem
    return place.name
