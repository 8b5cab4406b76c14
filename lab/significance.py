"""Tests of differences between rows of runs, and intervals of their numbers.

Two questions need different tests (Dror et al. 2018). Would other seeds give the same order? The
t-tests compare seeds. Would other test data? McNemar's test and the bootstrap draw test rows.
Rows are those of lab/rows.py. p-values are not corrected for the number of tests.
"""

from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from scipy import stats

import data
from data.tokenizer import encode
from lab import load_run
from lab.flags import require
from lab.predictions import FILE, read_predictions

OF_ROWS = ("accuracy/test", "accuracy/seen", "accuracy/unseen")  # from the rows of predictions.tsv
N_RESAMPLES = 1000  # of the bootstrap


@dataclass
class Comparison:
    """A test of the difference between two rows."""

    test: str
    first: str  # labels of the rows
    second: str
    seeds: str
    difference: str  # in words; negative: the first is lower
    p: float


def compare_seeds(rows, names):
    """Return the t-tests of every two rows over seeds, as Comparisons.

    names: perplexities, whose mean logarithm is compared, or accuracies. The differences of
    the seeds that both rows have are tested against 0 (Student 1908: the paired t-test). A baseline
    has no seed and counts as a constant (one-sample t-test). Two rows are left out if they have one
    seed in common, the same difference for each seed, or perplexities of different vocabularies.
    """
    is_accuracy = names[0].startswith("accuracy")
    means = []  # of each row {seed: mean}
    for row in rows:
        means.append({run.seed: mean_number(run, names, is_accuracy) for run in row.runs})
    comparisons = []
    for (a, first), (b, others) in combinations(zip(rows, means), 2):
        vocabularies = {row.runs[0].result.get("vocab_size") for row in (a, b)}
        if len(vocabularies) > 1 and not is_accuracy:
            continue
        if "" in others:  # a baseline; these are the last rows
            test = "one-sample t"
            second = dict.fromkeys(first, others[""])
        else:
            test = "paired t"
            second = others
        seeds = [seed for seed in first if seed in second]
        d = np.array([first[seed] - second[seed] for seed in seeds])
        is_testable = len(d) > 1 and np.ptp(d) > 1e-9  # t divides by the deviation of d
        if is_testable:
            words = describe_difference(d, is_accuracy)
            p = stats.ttest_1samp(d, 0).pvalue
            comparisons.append(Comparison(test, a.label, b.label, ", ".join(seeds), words, p))
    return comparisons


def mean_number(run, names, is_accuracy):
    """Return the mean of a run's numbers, of perplexities the mean of their logarithms."""
    numbers = np.array([run.result.get(name, np.nan) for name in names])
    return numbers.mean() if is_accuracy else np.log(numbers).mean()


def describe_difference(d, is_accuracy):
    """Return differences of each seed (N,) in words: of accuracies "+3.0 ± 3.6 points", of the
    logarithms of perplexities "-0.7 ± 0.2%"."""
    if is_accuracy:
        return f"{100 * d.mean():+.1f} ± {100 * d.std(ddof=1):.1f} points"
    mean = np.expm1(d.mean())  # exp(a - b) - 1 is the relative difference
    deviation = np.expm1(d).std(ddof=1)
    return f"{100 * mean:+.1f} ± {100 * deviation:.1f}%"


def compare_answers(rows):
    """Return McNemar's tests of every two rows of classifiers on the same test rows, as
    Comparisons: one for each seed that both have, or for each seed against a baseline."""
    answers = [read_answers(row.runs) for row in rows]
    comparisons = []
    for (a, first), (b, second) in combinations(zip(rows, answers), 2):
        for seed, other_seed in product(first, second):
            is_pair = seed == other_seed or "" in (seed, other_seed)  # "": a baseline
            texts, gold, predicted = first[seed]
            other_texts, other_gold, other_predicted = second[other_seed]
            if is_pair and texts == other_texts and gold == other_gold:
                n, m, p = mcnemar(np.equal(gold, predicted), np.equal(gold, other_predicted))
                words = f"{n} to {m} rows"
                shown_seed = seed or other_seed
                comparisons.append(Comparison("McNemar", a.label, b.label, shown_seed, words, p))
    return comparisons


def read_answers(runs):
    """Return {seed: (texts, gold, predicted)} of the runs with answers to test rows."""
    answers = {}
    for run in runs:
        if "accuracy/test" in run.result and (run.folder / FILE).exists():
            _, texts, gold, predicted, *_ = read_predictions(run.folder)
            answers[run.seed] = (texts, gold, predicted)
    return answers


def mcnemar(right, other_right):
    """Return how many rows only the first has right, how many only the other, and the two-sided p
    of McNemar's exact test (McNemar 1947): if both are equally good, each is as likely in a row
    where only one is right, so these numbers are binomial. right, other_right: (N,) bool."""
    n = (right & ~other_right).sum()
    m = (other_right & ~right).sum()
    if n + m == 0:
        return n, m, 1.0
    return n, m, stats.binomtest(n, n + m).pvalue


def interval(runs, name):
    """Return the 95% interval of a number, the mean over runs, in words: "71.2 to 80.0".

    Percentile bootstrap (Efron & Tibshirani 1993, section 13.3; of a test set's lines, Koehn 2004):
    as many test rows or lines are drawn with replacement, the same ones for all runs, 1000 times.
    "–": a run has neither rows nor lines of this number.
    """
    parts = [sums_and_counts(run, name) for run in runs]
    if any(part is None for part in parts):
        return "–"
    is_accuracy = name in OF_ROWS
    n = len(parts[0][0])
    rng = np.random.default_rng(0)
    means = []
    for _ in range(N_RESAMPLES):
        times = rng.multinomial(n, np.full(n, 1 / n))  # (n,), how often each is drawn
        ratios = [(times @ sums) / max(1, times @ counts) for sums, counts in parts]
        mean = 100 * np.mean(ratios) if is_accuracy else np.mean(np.exp(ratios))
        means.append(mean)
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{low:,.1f} to {high:,.1f}"


def sums_and_counts(run, name):
    """Return two arrays (N,) for the N test rows or lines of a number, or None without them. The
    sum of one over that of the other is the accuracy, or the loss per token in nats."""
    metric, _, part = name.partition("/")
    if name in OF_ROWS and (run.folder / FILE).exists():
        return hits_of_rows(run, part)
    if metric == "perplexity" and run.config["kind"] == "lm":
        return nats_of_lines(run, part)
    return None


def hits_of_rows(run, part):
    """Return for each test row 1 if it is right, and 1 if it belongs to a part of the rows: test
    (all), seen or unseen. Both are 0 for rows of the other part."""
    _, _, gold, predicted, _, seen = read_predictions(run.folder)
    seen = np.array(seen)
    counts = dict(test=np.ones(len(seen)), seen=seen * 1, unseen=1 - seen)[part]
    return np.equal(gold, predicted) * counts, counts


def nats_of_lines(run, part):
    """Return for each line of a test set the nats and the number of its tokens. Raises UserError if
    the run does not have its perplexity any more."""
    opened = load_run(run.folder)
    flags = run.config["flags"]
    lines = data.load(flags["data"]).tests[part]
    with_ends = [line + "\n" for line in lines]
    lengths = [len(ids) for ids in encode(opened.tokenizer, with_ends)]
    line_of = np.repeat(np.arange(len(lines)), lengths)  # of each token
    if flags["eval_test"]:
        line_of = line_of[: flags["eval_test"]]
    with redirect_stdout(None):  # the notes about the text
        losses = opened.losses("\n".join(lines))
    nats = [loss for _, loss in losses[: len(line_of)]]
    same = abs(np.mean(nats) - np.log(run.result[f"perplexity/{part}"])) < 0.01
    require(same, f"--intervals: {run.folder} has another perplexity with the code of today")
    return np.bincount(line_of, nats), np.bincount(line_of)
