"""The Corpus that every script reads, and how training text is kept apart from test text."""

import importlib
import pkgutil
import random
import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path

from data.files import UserError

# The named corpora: one module of data/corpora each, imported when it is asked for
MODULES = pkgutil.iter_modules([str(Path(__file__).parent / "corpora")])
NAMES = tuple(module.name.replace("_", "-") for module in MODULES)


@dataclass
class Corpus:
    """A text for language models, its test sets, and labelled rows; each part may be empty."""

    name: str
    lines: list[str] = field(default_factory=list)  # training text, a sentence or paragraph each
    tests: dict[str, list[str]] = field(default_factory=dict)  # name of a test set -> its lines
    rows: list[tuple[int, str]] = field(default_factory=list)  # (index in classes, text)
    test_rows: list[tuple[int, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    # Best possible values of metrics, named as in result.json; a generated corpus knows them
    floor: dict[str, float] = field(default_factory=dict)

    def is_rows(self):
        """Return whether the lines are the texts of the rows, as those of a file of rows are."""
        return self.lines == [text for _, text in self.rows]

    def texts(self, without=()):
        """Return the training text that makes the vocabulary, but not the texts `without`: the
        lines, and the texts of the rows unless these are the lines."""
        left_out = {normalize(text) for text in without}
        texts = self.lines if self.is_rows() else self.lines + [text for _, text in self.rows]
        return [text for text in texts if normalize(text) not in left_out]

    def seen(self):
        """Return for each test row whether its text also appears in a training row."""
        training = {normalize(text) for _, text in self.rows}
        return [normalize(text) in training for _, text in self.test_rows]

    def split(self, how):
        """Return (corpus, seen, note) for a value of --split: full, clean or i/n (`clean`, `fold`).
        seen: for each test row, whether it was in the training rows before any were removed. note:
        what was removed. Raises UserError for another value, and if no rows are left."""
        if how == "full":
            return self, self.seen(), ""
        i, _, n = how.partition("/")
        is_part = i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n) > 1
        if not (is_part or how == "clean"):
            raise UserError(f"--split {how}: expected full, clean, or a part like 1/5")
        whole = self.fold(int(i), int(n)) if is_part else self
        cleaned = whole.clean()
        if not (cleaned.rows and cleaned.test_rows):
            raise UserError(f"--split {how}: leaves no rows to train or test on; use --split full")
        note = (
            f"--split {how}: {len(cleaned.test_rows)} test rows; removed with their sentences: "
            f"{len(whole.rows) - len(cleaned.rows)} of {len(whole.rows)} training rows and "
            f"{len(whole.lines) - len(cleaned.lines)} of {len(whole.lines)} lines of text"
        )
        return cleaned, whole.seen(), note

    def fold(self, i, n):
        """Deal the distinct labelled sentences into n parts; part i of them is the new test set."""
        distinct = {normalize(text): (label, text) for label, text in self.rows + self.test_rows}
        distinct = sorted(distinct.values(), key=lambda row: row[1])
        random.Random(0).shuffle(distinct)
        rows = [row for j, row in enumerate(distinct) if j % n != i - 1]
        lines = [text for _, text in rows] if self.is_rows() else self.lines
        return replace(self, rows=rows, lines=lines, test_rows=distinct[i - 1 :: n], floor={})

    def clean(self):
        """Remove training rows and lines that are the sentence of a test row or contain one of at
        least five words. Case, spaces and punctuation do not count."""
        tests = {tuple(words_of(text)) for _, text in self.test_rows}
        long_tests = {}  # first five words -> the sentences that begin so
        for words in tests:
            if len(words) >= 5:
                long_tests.setdefault(words[:5], []).append(words)

        def contains_test(text):
            words = tuple(words_of(text))
            return words in tests or any(
                words[i : i + len(sentence)] == sentence
                for i in range(len(words) - 4)
                for sentence in long_tests.get(words[i : i + 5], ())
            )

        rows = [(label, text) for label, text in self.rows if not contains_test(text)]
        return replace(self, rows=rows, lines=[x for x in self.lines if not contains_test(x)])


def load(name, flag="--data"):
    """Return the Corpus of a name in NAMES, or in a file or folder (see `corpora.read`). Raises
    UserError naming the flag or the file, the line and the remedy."""
    if name in NAMES:
        return importlib.import_module(f"data.corpora.{name.replace('-', '_')}").load()
    return importlib.import_module("data.corpora").read(name, flag)


def name_of(path):
    """Return the name of a corpus in folders and titles: its own, or that of the file or folder."""
    path = Path(path).expanduser().resolve()
    return path.stem if path.suffix.lower() in (".txt", ".tsv", ".csv", ".jsonl") else path.name


def normalize(text):
    """Return the text with white space folded, so that equal sentences compare equal."""
    return " ".join(text.split())


def words_of(text):
    """Return the lower-case words of a text, without punctuation; if it has none, its symbols."""
    letters = unicodedata.normalize("NFC", text.lower())
    # P and S: punctuation and symbols of any script. \W would also split words at vowel signs
    plain = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in letters)
    return plain.split() or text.split()


def hold_out(items, share, seed=0, key=lambda item: item):
    """Split items into (kept, held out), about `share` of the distinct texts held out, in order.
    key: the text of an item. All copies of a text go to the same side."""
    texts = sorted({normalize(key(item)) for item in items})
    random.Random(seed).shuffle(texts)
    held = set(texts[: round(share * len(texts))])
    kept = [item for item in items if normalize(key(item)) not in held]
    return kept, [item for item in items if normalize(key(item)) in held]


def hold_out_valid(items, share, name, key=lambda item: item):
    """Hold out --valid SHARE of --data NAME. Raises UserError if a side is empty."""
    parts = hold_out(items, share, key=key)
    if not all(parts):
        problem = f"too little text to hold out --valid {share} of it and train on the rest"
        raise UserError(f"--data {name}: {problem}; give more text, or another --valid")
    return parts
