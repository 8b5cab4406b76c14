"""The Corpus that every script reads, and how training text is kept apart from test text."""

import random
import unicodedata
from dataclasses import dataclass, field, replace

from data.files import DataError


@dataclass
class Corpus:
    """A text for language models, its test sets, and labelled rows; each part may be empty.

    Perplexity is measured on each of `tests`, accuracy on `test_rows`. `floor` holds the best
    values any model can reach, named as in `result.json`. Only a generated corpus knows them.
    """

    name: str
    # Training text, a sentence or paragraph per line
    lines: list[str] = field(default_factory=list)
    # Name of a test set -> its lines
    tests: dict[str, list[str]] = field(default_factory=dict)
    # Labelled sentences: (index in `classes`, text)
    rows: list[tuple[int, str]] = field(default_factory=list)
    test_rows: list[tuple[int, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    floor: dict[str, float] = field(default_factory=dict)

    def texts(self, without=()):
        """Return all training text, the lines and then the rows' texts, but none of `without`. It
        makes the vocabulary. The lines of a file of rows are these rows, which count once."""
        left_out = {normalize(text) for text in without}
        texts = self.lines if self.is_rows() else self.lines + [text for _, text in self.rows]
        return [text for text in texts if normalize(text) not in left_out]

    def is_rows(self):
        """Return whether the lines are the texts of the rows, as those of a file of rows are."""
        return self.lines == [text for _, text in self.rows]

    def seen(self):
        """Return for each test row whether its text also appears in a training row."""
        training = {normalize(text) for _, text in self.rows}
        return [normalize(text) in training for _, text in self.test_rows]

    def split(self, how):
        """Return (corpus, seen, note) for a value of --split.

        full: the corpus as it is. clean: its test sentences removed from the training data (see
        `clean`). i/n: part i of a cross-validation (see `fold`), also clean. seen: for each test
        row, whether it was in the training rows before any were removed. note: what was removed.
        Raises DataError for another value, and if no rows are left to train or test on.
        """
        if how == "full":
            return self, self.seen(), ""
        part = parse_fold(how)
        corpus = self.fold(*part) if part else self
        cleaned = corpus.clean()
        if not (cleaned.rows and cleaned.test_rows):
            raise DataError(
                f"--split {how}: leaves no rows to {'test' if cleaned.rows else 'train'} on; "
                "use --split full"
            )
        rows = f"{len(corpus.rows) - len(cleaned.rows)} of {len(corpus.rows)} training rows"
        lines = f"{len(corpus.lines) - len(cleaned.lines)} of {len(corpus.lines)} lines of text"
        note = f"--split {how}: {len(cleaned.test_rows)} test rows; "
        note += f"{rows} and {lines} with their sentences are removed"
        return cleaned, corpus.seen(), note

    def fold(self, i, n):
        """Deal the distinct labelled sentences into n parts; part i of them is the new test set."""
        distinct = {normalize(text): (label, text) for label, text in self.rows + self.test_rows}
        distinct = sorted(distinct.values(), key=lambda row: row[1])
        random.Random(0).shuffle(distinct)
        rows = [row for j, row in enumerate(distinct) if j % n != i - 1]
        lines = [text for _, text in rows] if self.is_rows() else self.lines
        return replace(self, rows=rows, lines=lines, test_rows=distinct[i - 1 :: n], floor={})

    def clean(self):
        """Return the corpus with the test rows' sentences removed from its training rows and text.

        A row or line is removed if it is a test sentence, or contains one of at least five words.
        Case, spaces and punctuation do not count.
        """
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
        lines = [line for line in self.lines if not contains_test(line)]
        return replace(self, rows=rows, lines=lines)


def parse_fold(how):
    """Return (i, n) of --split i/n, None for full and clean. Raises DataError for anything else."""
    i, _, n = how.partition("/")
    if how in ("full", "clean"):
        return None
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n) and int(n) > 1):
        raise DataError(
            f"--split {how}: expected full, clean, or a part of a cross-validation like 1/5"
        )
    return int(i), int(n)


def normalize(text):
    """Return the text with white space folded, so that equal sentences compare equal."""
    return " ".join(text.split())


def words_of(text):
    """Return the lower-case words of a text, without punctuation; if it has none, its symbols."""
    letters = unicodedata.normalize("NFC", text.lower())
    # P and S: punctuation and symbols of any script. \W would also split words at vowel signs
    plain = "".join(" " if unicodedata.category(c)[0] in "PS" else c for c in letters)
    return plain.split() or text.split()


def hold_out(items, fraction, seed, key=lambda item: item):
    """Split items into (kept, held out), about `fraction` of the distinct texts held out.

    key: the text of an item. All copies of a text go to the same side. The order is preserved.
    """
    texts = sorted({normalize(key(item)) for item in items})
    random.Random(seed).shuffle(texts)
    held = set(texts[: round(fraction * len(texts))])
    kept = [item for item in items if normalize(key(item)) not in held]
    return kept, [item for item in items if normalize(key(item)) in held]


def hold_out_valid(items, flags, key=lambda item: item):
    """Hold out the share --valid, the same items in every run. Raises DataError if one side is
    empty."""
    kept, held_out = hold_out(items, flags.valid, 0, key)
    if not (kept and held_out):
        problem = f"too little text to hold out --valid {flags.valid} of it, and train on the rest"
        raise DataError(f"--data {flags.data}: {problem}; give more text, or another --valid")
    return kept, held_out


def check_set_name(name, path):
    """Raise DataError if a test set's name is that of another set, or contains @: results name the
    perplexity in blocks of 64 tokens perplexity/NAME@64."""
    if name in ("train", "valid"):
        raise DataError(f"{path}: {name} is the name of another set; rename the file")
    if "@" in name:
        raise DataError(f"{path}: the name of a set must not contain @; rename the file")
