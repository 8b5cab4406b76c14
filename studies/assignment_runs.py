"""The finished runs of the assignment, and how its report puts their numbers."""

import math
import operator
import statistics
from dataclasses import dataclass
from pathlib import Path

from data.corpus import Corpus
from lab import tables
from lab.comparison.lengths import joint_perplexity
from lab.records import read_config, read_result
from model import POSITIONS
from studies.report import literal

COMPARED = POSITIONS
LENGTHS = (32, 64, 128, 256)  # of evaluation: 1, 2, 4 and 8 times the blocks of training
FORMS = ("offset", "symmetric", "one-sided", "nope")  # of ALiBi in an encoder, and without it


@dataclass
class Runs:
    """The finished runs of an assignment. A run is named without its seed, like "lm-alibi"."""

    out: Path
    corpus: Corpus  # without the training rows that --split removes
    seen: list  # for each test row, whether it was in the training rows before that
    split: str
    seeds: int
    parts: list  # of classifier, frozen, lm: those that the corpus allows

    def __post_init__(self):
        self.name = self.corpus.name  # for LaTeX
        self.data = literal(self.name)  # the same for Markdown
        seeds = f"seeds {', '.join(map(str, range(self.seeds)))}"
        # What a caption says of the numbers of a table and of the lines of a figure
        self.numbers = f"Mean ± sample standard deviation over {seeds}."
        self.lines = f"Means over {seeds}; bands and bars: ± sample standard deviation."
        if self.seeds == 1:
            self.numbers = self.lines = "One run each, with seed 0."

    def results(self, name):
        """Return result.json of every seed of a run."""
        return [read_result(self.out / f"{name}-{seed}") for seed in range(self.seeds)]

    def values(self, name, entry):
        """Return an entry of result.json of every seed of a run."""
        return [result[entry] for result in self.results(name)]

    def settings(self, name):
        """Return the flags of a run."""
        return read_config(self.out / f"{name}-0")["flags"]

    def baselines(self):
        return read_result(self.out / "baselines")

    def rows_that_count(self):
        """Return the part of the test rows on which models are compared. Rows that also appear in
        the training data may be memory, so the others count."""
        some_seen = "accuracy/unseen" in self.baselines()
        return "unseen" if some_seen and self.split == "full" else "test"

    def perplexities(self, pos, at=""):
        """Return the perplexity of all test sets together, for every seed of a decoder."""
        return [
            joint_perplexity(result, self.corpus.tests, at) for result in self.results(f"lm-{pos}")
        ]


# ---------------------------------------------------------------------------- tables and words


def write_table(runs, name, header, rows, caption):
    """Write tables/NAME.md and .tex; return the Markdown.

    header, rows, caption: plain text, without the marks of Markdown.
    """
    folder = runs.out / "tables"
    folder.mkdir(exist_ok=True)
    tables.write(folder / name, header, rows, caption)
    link = f"LaTeX: [tables/{name}.tex](tables/{name}.tex)"
    heads, *cells = [row and list(map(literal, row)) for row in (tables.flat(header), *rows)]
    return f"{tables.markdown(heads, cells)}\n*{literal(caption, 1000)} {link}*"


def conclude(values, best, what, unit=""):
    """Say which label of {label: a value for each seed} has the best mean, and which others have no
    seed as good as any of its seeds. best: min or max."""
    means = {label: statistics.fmean(each) for label, each in values.items()}
    if best is min:
        worst, better, extreme, other = max, operator.lt, "lowest", "highest"
    else:
        worst, better, extreme, other = min, operator.gt, "highest", "lowest"
    first, last = best(means, key=means.get), worst(means, key=means.get)
    if len(values[first]) == 1:
        ends = [[label for label in means if means[label] == means[end]] for end in (first, last)]
        of_first, of_last = map(join, ends)
        if of_first == of_last:
            return f"The {what} is {means[first]:,.1f}{unit} for all: {of_first}."
        return (
            f"The {extreme} {what} is {means[first]:,.1f}{unit} ({of_first}), the {other} "
            f"{means[last]:,.1f}{unit} ({of_last}). One seed cannot tell how much of this "
            "difference comes from the seed: repeat it with `--seeds 3` (make: `SEEDS=3`)."
        )
    edge, others = worst(values[first]), [label for label in values if label != first]
    apart = [label for label in others if better(edge, best(values[label]))]
    near = [label for label in others if label not in apart]
    text = f"The {extreme} {what} is {tables.spread(values[first])}{unit} ({first})."
    if apart:
        n = len(values[first])
        text += (
            f" Each seed of {first} is better than every seed of {join(apart)}. With two equal "
            "encodings, chosen beforehand, the seeds would separate like this in 1 of "
            f"{math.comb(2 * n, n) // 2} cases; for the best of several, more often."
        )
    if near:
        text += f" The seeds of {first} overlap with those of {join(near)}: no difference is shown."
    return text


def percent(shares):
    """Return "87.6" or "87.6 ± 0.4" for shares of 1."""
    return tables.spread([100 * share for share in shares])


def signed(values):
    """Return "+1.2" or "−1.2 ± 0.4"."""
    mean = f"{round(statistics.fmean(values), 1) or 0:+,.1f}".replace("-", "−")
    return f"{mean} ± {statistics.stdev(values):,.1f}" if len(values) > 1 else mean


def join(words, conjunction="and"):
    """Return "a, b and c"."""
    *first, last = words or [""]
    return f"{', '.join(first)} {conjunction} {last}" if first else last
