"""What every corpus is to the scripts, and how training text is kept apart from what it is tested on."""

import random
from dataclasses import dataclass, field

from data.files import DataError


@dataclass
class Corpus:
    """A text for language models, its test sets, and labelled rows; each part may be empty.

    Perplexity is measured on each of `tests`; accuracy on `test_rows`. `floor` holds, under the names of
    `result.json`, the best values any model can reach; only a generated corpus knows them.
    """

    name: str
    lines: list[str] = field(default_factory=list)  # training text, a sentence or paragraph each
    tests: dict[str, list[str]] = field(default_factory=dict)  # name of a test set -> its lines
    rows: list[tuple[int, str]] = field(
        default_factory=list
    )  # training rows: index of the class, text
    test_rows: list[tuple[int, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    floor: dict[str, float] = field(default_factory=dict)

    def texts(self):
        """All training text: the lines, then the rows' texts. Vocabularies come from here, never from a test."""
        return self.lines + [text for _, text in self.rows]

    def seen(self):
        """For each test row, whether its text also stands in a training row."""
        known = {normal(text) for _, text in self.rows}
        return [normal(text) in known for _, text in self.test_rows]

    def split(self, how):
        """What --split asks for: (corpus, seen, words).

        full: the corpus as it is. clean: without its test sentences in the training data (see `clean`). i/n: a part of
        a cross-validation: the distinct labelled sentences are dealt into n parts, part i is the test set, and
        nothing in it is trained on. seen: for each test row whether it stood in the training rows before any were
        left out. words: what was left out. Raises DataError.
        """
        if how == "full":
            return self, self.seen(), ""
        corpus, part = self, split_part(how)
        if part:
            i, n = part
            distinct = sorted(
                (
                    {normal(text): (label, text) for label, text in self.rows + self.test_rows}
                ).values(),
                key=lambda row: row[1],
            )
            random.Random(0).shuffle(distinct)
            corpus = Corpus(
                self.name,
                self.lines,
                self.tests,
                [row for j, row in enumerate(distinct) if j % n != i - 1],
                distinct[i - 1 :: n],
                self.classes,
            )
        cleaned, n_rows, n_lines = corpus.clean()
        if not (cleaned.rows and cleaned.test_rows):
            raise DataError(
                f"--split {how}: leaves no rows to {'test' if cleaned.rows else 'train'} on; use --split full"
            )
        return (
            cleaned,
            corpus.seen(),
            (
                f"--split {how}: {len(cleaned.test_rows)} test rows; {n_rows} training rows and "
                f"{n_lines} lines of text with their sentences are left out"
            ),
        )

    def clean(self):
        """The same corpus without its test rows' sentences in the training rows and the training text.

        Returns (corpus, number of rows removed, number of lines removed). A line goes when it is a test
        sentence or holds one of at least five words.
        """
        tests = {normal(text) for _, text in self.test_rows}
        starts = {}
        for text in tests:
            words = text.split()
            if len(words) >= 5:
                starts.setdefault(tuple(words[:5]), []).append(words)

        def holds_test(line):
            words = normal(line).split()
            return " ".join(words) in tests or any(
                words[i : i + len(sentence)] == sentence
                for i in range(len(words) - 4)
                for sentence in starts.get(tuple(words[i : i + 5]), ())
            )

        rows = [(label, text) for label, text in self.rows if normal(text) not in tests]
        lines = [line for line in self.lines if not holds_test(line)]
        cleaned = Corpus(
            self.name, lines, self.tests, rows, self.test_rows, self.classes, self.floor
        )
        return cleaned, len(self.rows) - len(rows), len(self.lines) - len(lines)


def split_part(how):
    """(i, n) of --split i/n; None for full and clean. Raises DataError for anything else."""
    i, _, n = how.partition("/")
    if how in ("full", "clean"):
        return None
    if not (i.isdigit() and n.isdigit() and 1 <= int(i) <= int(n) and int(n) > 1):
        raise DataError(
            f"--split {how}: must be full, clean, or a part of a cross-validation like 1/5"
        )
    return int(i), int(n)


def normal(text):
    """One spelling for comparing sentences: white space folded."""
    return " ".join(text.split())


def hold_out(items, fraction, seed, key=lambda item: item):
    """Split items into (kept, held out), about `fraction` of the distinct texts held out, order preserved.

    All copies of a text go to the same side, so that nothing is validated on a sentence it was trained on.
    """
    texts = sorted({normal(key(item)) for item in items})
    random.Random(seed).shuffle(texts)
    held = set(texts[: round(fraction * len(texts))])
    kept = [item for item in items if normal(key(item)) not in held]
    return kept, [item for item in items if normal(key(item)) in held]
