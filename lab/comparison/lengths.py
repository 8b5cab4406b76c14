"""Train short, test long: perplexities in blocks of several lengths, as a table with its tests."""

import math

from lab import tables
from lab.comparison import paired
from lab.comparison.configurations import mean_and_deviation
from lab.comparison.table import make_table

NAME = "train-short-test-long"  # of the table and of the figure


def longer_blocks(configurations):
    """Return the lengths, in tokens, at which runs were evaluated beyond that of training."""
    suffixes = {
        name.partition("@")[2] for c in configurations for run in c.runs for name in run.numbers
    }
    return sorted(map(int, suffixes - {""}))


def write_table(configurations, subject, out):
    """Write the table into the folder out, as .md and .tex. Return (its text, the tests at the
    longest length)."""
    lengths = longer_blocks(configurations)
    trained = {c.runs[0].flags.get("block_size", 0) for c in configurations}
    summaries = [summary(c, sorted({*lengths, *trained})) for c in configurations]
    header, rows = make_table(configurations, [], summaries)
    tests, _ = paired.compare_pairs(configurations, lengths[-1])
    caption = (
        f"{subject}: perplexity by the length of the blocks in evaluation (geometric mean over "
        f"the test sets). Trained with {' or '.join(map(str, sorted(trained)))} tokens."
    )
    tested = paired.describe(tests, f"in blocks of {lengths[-1]} tokens")
    return tables.write(out / NAME, header, rows, caption, left=2, label=NAME, more=tested), tests


def summary(configuration, lengths):
    """Return {name: (mean, deviation)} of the perplexities at these lengths, where measured."""
    found = {}
    for length in lengths:
        logs = paired.scores(configuration, length)
        if len(logs) == len(configuration.runs):
            perplexities = [math.exp(log) for log in logs.values()]
            found[f"perplexity/{length} tokens"] = mean_and_deviation(perplexities)
    return found
