"""The Corpus that every script reads, and how training text is kept apart from test text."""

import importlib
import pkgutil
import random
import re
import unicodedata
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from data.files import UserError, whole_file

# The named corpora: one module of data/corpora each, imported when it is asked for
MODULES = pkgutil.iter_modules([str(Path(__file__).parent / "corpora")])
NAMES = tuple(module.name.replace("_", "-") for module in MODULES)

PAIR = " [EOS] "  # between the two sentences of a labelled pair


@dataclass
class Corpus:
    """A text for language models, its test sets, and labelled rows; each part may be empty. A row
    is (index in classes, text), with --target score (score, text); a pair's text "a [EOS] b"."""

    name: str
    lines: list[str] = field(default_factory=list)  # training text, a sentence or paragraph each
    tests: dict[str, list[str]] = field(default_factory=dict)  # name of a test set -> its lines
    rows: list[tuple[int, str]] = field(default_factory=list)
    test_rows: list[tuple[int, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    floor: dict[str, float] = field(default_factory=dict)  # best possible metrics, if known
    removed: set[str] = field(default_factory=set)  # by --split, and the texts of the test rows
    valid_rows: list[tuple[int, str]] = field(default_factory=list)  # else --valid of rows
    scored: dict[str, list] = field(default_factory=dict)  # rows, valid_rows, test_rows of scores

    def texts(self, without=()):
        """Return the training text, which makes the vocabulary, but not the texts `without`."""
        left_out = {normalize(text) for text in without}
        texts = sentences_of(self.rows)
        texts = self.lines if self.lines == texts else self.lines + texts  # a file of rows has one
        return [text for text in texts if normalize(text) not in left_out]

    def seen(self):
        """Return for each test row whether its text also appears in a training row."""
        training = {normalize(text) for _, text in self.rows}
        return [normalize(text) in training for _, text in self.test_rows]

    def split(self, how):
        """Return (corpus, for each test row whether it was a training row, what was removed) for a
        --split: full, clean or i/n. Raises UserError for another one, and if no rows are left."""
        if how == "full":
            return self, self.seen(), ""
        whole = self
        if how != "clean":
            i, _, n = how.partition("/")
            if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n) > 1):
                raise UserError(f"--split {how}: expected full, clean, or a part like 1/5")
            whole = self.fold(int(i), int(n))
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
        is_rows = self.lines == sentences_of(self.rows)  # as in a file of rows
        lines = sentences_of(rows) if is_rows else self.lines
        return replace(self, rows=rows, lines=lines, test_rows=distinct[i - 1 :: n], floor={})

    def clean(self):
        """Remove lines, training and validation rows that are the sentence of a test row or contain
        one of at least five words. Case, spaces and punctuation do not count."""
        tests = {tuple(words_of(text)) for _, text in self.test_rows}
        lengths = {len(words) for words in tests if len(words) >= 5}

        def contains_test(text):
            words = tuple(words_of(text))
            parts = (words[i : i + n] for n in lengths for i in range(len(words) - n + 1))
            return words in tests or any(part in tests for part in parts)

        texts = {*self.lines, *(text for _, text in self.rows + self.valid_rows)}
        leaks = {text for text in texts if contains_test(text)}
        parts = self.rows, self.valid_rows
        rows, valid_rows = ([row for row in part if row[1] not in leaks] for part in parts)
        lines = [line for line in self.lines if line not in leaks]
        removed = leaks | {text for _, text in self.test_rows}
        return replace(self, lines=lines, rows=rows, valid_rows=valid_rows, removed=removed)


def sentences_of(rows):
    """Return the sentences of rows in order, of a pair both."""
    return [sentence for _, text in rows for sentence in text.split(PAIR)]


def load(name, flag="--data"):
    """Return the Corpus of a name in NAMES or at a path, see `corpora.read`. Raises UserError."""
    if (named := str(name).replace("_", "-")) in NAMES:
        found = importlib.import_module(f"data.corpora.{named.replace('-', '_')}").load()
    else:
        found = importlib.import_module("data.corpora").read(name, flag)
    for test in found.tests:  # results have perplexity/valid, and perplexity/NAME@64
        if test in ("train", "valid") or "@" in test:
            raise UserError(f"{flag} {name}: no test set may be {test} or have @; rename its file")
    return found


def name_of(path):
    """Return the name of a corpus in folders and titles: its own, or that of the file or folder."""
    path = Path(re.sub("^hf:([^:]+).*", r"\1", str(path))).expanduser().resolve()
    return path.stem if path.suffix.lower() in (".txt", ".tsv", ".csv", ".jsonl") else path.name


def normalize(text):
    """Return the text with one space around each word and sign, so that copies compare equal."""
    return " ".join(re.findall(r"\w+|[^\w\s]", text))


def words_of(text):
    """Return the lower-case words of a text, without punctuation; if it has none, its symbols. In
    scripts without spaces (Thai, Lao, Burmese, Khmer, Japanese, Chinese) each letter is a word."""
    letters = unicodedata.normalize("NFC", text.lower())
    # P and S: punctuation and symbols of any script. \W would also split words at vowel signs
    plain = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in letters)
    letter = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff\U00020000-\U0003ffff]"
    return re.sub(letter, r" \g<0> ", plain).split() or text.split()


def hold_out(items, share, seed=0, key=lambda item: item, name="", kind=lambda item: ""):
    """Split items into (kept, held out), about `share` of the distinct texts of each kind, with all
    copies. key, kind: the text of an item, and its kind (of copies, the last one's). name: the
    value of --data, to raise UserError if a side is empty."""
    keys = [normalize(key(item)) for item in items]
    about = {text: (" ".join(key(item).split()), kind(item)) for text, item in zip(keys, items)}
    texts, groups = sorted(about, key=about.get), {}  # as they are typed
    random.Random(seed).shuffle(texts)
    for text in texts:
        groups.setdefault(about[text][1], []).append(text)
    held, start = set(), 0
    for group in groups.values():
        end = start + len(group)
        held.update(group[: round(share * end) - round(share * start)])
        start = end
    if name and not 0 < len(held) < len(texts):
        raise UserError(f"--data {name}: too little text to hold out --valid {share}; give more")
    kept = [item for text, item in zip(keys, items) if text not in held]
    return kept, [item for text, item in zip(keys, items) if text in held]


def hashes(texts):
    """Return a hash of each text as uint64 (N,), the same for texts that `clean` takes for one."""
    keys = (" ".join(words_of(text)).encode() for text in texts)
    return np.frombuffer(b"".join(blake2b(key, digest_size=8).digest() for key in keys), "<u8")


def write_hashes(folder, found):
    """Write sentences.npy: arrays of the hashes of what a run or prepared folder was made with."""
    with whole_file(Path(folder) / "sentences.npy") as file:
        np.save(file, np.unique(np.concatenate([hashes([]), *found])))


def read_hashes(folder):
    """Return the hashes of sentences.npy (N,)."""
    return np.load(Path(folder).expanduser() / "sentences.npy")
