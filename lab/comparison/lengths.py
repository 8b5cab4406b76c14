"""Train short, test long: perplexities in blocks of several lengths, as a table with its tests."""

import math

from lab import tables
from lab.comparison import paired
from lab.comparison.comparable import measured_sets
from lab.comparison.configurations import mean_and_deviation
from lab.comparison.mcnemar import LEVEL
from lab.comparison.table import make_table

NAME = "train-short-test-long"  # of the table and of the figure


def joint_perplexity(result, tests, at=""):
    """Return the perplexity of all test sets together. at: "@64" for that of longer blocks."""
    nats = sum(
        result[f"tokens/{name}"] * math.log(result[f"perplexity/{name}{at}"]) for name in tests
    )
    return math.exp(nats / sum(result[f"tokens/{name}"] for name in tests))


def other_lengths(configurations):
    """Return the lengths, in tokens, at which runs were evaluated, other than that of training."""
    suffixes = {
        name.partition("@")[2] for c in configurations for run in c.runs for name in run.numbers
    }
    return sorted(map(int, suffixes - {""}))


def remove(out):
    """Remove figure and table from the folder out."""
    for ending in (".png", ".pdf", ".md", ".tex"):
        (out / (NAME + ending)).unlink(missing_ok=True)


def write_table(configurations, out, subject, about):
    """Write the table into the folder out, as .md and .tex. about: what the caption says of its
    numbers. Return (its text, the tests at the longest length that two configurations have)."""
    trained = {c.runs[0].flags.get("block_size", 0) for c in configurations}
    lengths = sorted({*other_lengths(configurations), *trained})
    found = {n: {c.label: at_length(c, n) for c in configurations} for n in lengths}
    summaries = [
        {
            f"perplexity/{n} tokens": mean_and_deviation(list(found[n][c.label].values()))
            for n in lengths
            if found[n][c.label]
        }
        for c in configurations
    ]
    header, rows = make_table(configurations, [], summaries)
    every = " with every seed" * any(len(c.runs) > 1 for c in configurations)
    absent = f" –: not measured{every}." if any("–" in row[2:] for row in rows) else ""
    caption = (
        f"{subject}, perplexity of all test sets together by the length of the blocks in "
        f"evaluation: {about} Lower is better. Trained with "
        f"{' or '.join(map(str, sorted(trained)))} tokens.{absent}"
    )
    shared = [n for n in lengths if sum(map(bool, found[n].values())) > 1]
    longest = shared[-1] if shared else lengths[-1]

    def logs(configuration):
        return {seed: math.log(p) for seed, p in found[longest][configuration.label].items()}

    tests, _ = paired.compare_pairs(configurations, logs)
    intro = (
        f"Paired t-test over seeds on the perplexities at {longest} tokens. p < {LEVEL} is "
        "significant, without a correction for the number of pairs."
    )
    more, label = paired.describe(tests, intro), f"{out.name or 'compare'}-lengths"
    tests = [test | {"tokens": longest} for test in tests]
    return tables.write(out / NAME, header, rows, caption, 2, label, more), tests


def at_length(configuration, length):
    """Return {seed: perplexity of the test sets together}, {} unless all seeds have it."""
    found = {}
    for run in configuration.runs:
        at = "" if length == run.flags.get("block_size") else f"@{length}"
        result = run.numbers | {f"tokens/{name}": n for name, n in run.tokens.items()}
        tests = measured_sets(run)
        if not all(f"perplexity/{name}{at}" in result for name in tests):
            return {}
        found[run.seed] = joint_perplexity(result, tests, at)
    return found
