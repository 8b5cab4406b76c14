"""Train short, test long: perplexities in blocks of several lengths, as a table with its tests."""

import math

from lab import tables
from lab.comparison import paired
from lab.comparison.comparable import measured_sets
from lab.comparison.configurations import mean_and_deviation
from lab.comparison.table import make_table

NAME = "train-short-test-long"  # of the table and of the figure


def joint_perplexity(result, tests, at=""):
    """Return the perplexity of all test sets together. at: "@64" for that of longer blocks."""
    nats = sum(
        result[f"tokens/{name}"] * math.log(result[f"perplexity/{name}{at}"]) for name in tests
    )
    return math.exp(nats / sum(result[f"tokens/{name}"] for name in tests))


def longer_blocks(configurations):
    """Return the lengths, in tokens, at which runs were evaluated beyond that of training."""
    suffixes = {
        name.partition("@")[2] for c in configurations for run in c.runs for name in run.numbers
    }
    return sorted(map(int, suffixes - {""}))


def write_table(configurations, out, subject, about):
    """Write the table into the folder out, as .md and .tex. about: what the caption says of its
    numbers. Return (its text, the tests at the longest length)."""
    lengths = longer_blocks(configurations)
    trained = {c.runs[0].flags.get("block_size", 0) for c in configurations}
    summaries = [summary(c, sorted({*lengths, *trained})) for c in configurations]
    header, rows = make_table(configurations, [], summaries)
    absent = " –: not measured." if any("–" in row[2:] for row in rows) else ""
    caption = (
        f"{subject}, perplexity of all test sets together by the length of the blocks in "
        f"evaluation: {about} Lower is better. Trained with "
        f"{' or '.join(map(str, sorted(trained)))} tokens.{absent}"
    )
    tests, _ = paired.compare_pairs(configurations, lengths[-1])
    intro = f"Paired t-test as in compare.md, in blocks of {lengths[-1]} tokens:"
    more, label = paired.describe(tests, intro), f"{out.name}-lengths"
    return tables.write(out / NAME, header, rows, caption, 2, label, more), tests


def summary(configuration, lengths):
    """Return {name: (mean, deviation)} of the perplexities at these lengths, where measured."""
    found = {}
    for length in lengths:
        perplexities = [at_length(run, length) for run in configuration.runs]
        if None not in perplexities:
            found[f"perplexity/{length} tokens"] = mean_and_deviation(perplexities)
    return found


def at_length(run, length):
    """Return the perplexity of a run's test sets together, None if not measured at this length."""
    at = "" if length == run.flags.get("block_size") else f"@{length}"
    result = run.numbers | {f"tokens/{name}": n for name, n in run.tokens.items()}
    tests = measured_sets(run)
    known = tests and all(f"perplexity/{name}{at}" in result for name in tests)
    return joint_perplexity(result, tests, at) if known else None
