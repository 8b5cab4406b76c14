"""Refuse runs whose numbers do not measure the same thing."""

from lab.comparison.finished import KINDS
from lab.errors import UserError


def test_rows(run):
    """Return in words which test rows a classifier was measured on."""
    split = run.flags.get("split", "full")
    return f"--split {split}" if "/" in split else "the test rows of the corpus"


def check_comparable(trained, baselines):
    """Raise UserError naming two runs whose numbers do not measure the same thing."""
    if not trained:
        remedy = "add at least one run of a train_*.py script"
        raise UserError(f"{baselines[0].folder}: is a baseline; {remedy}")
    kind, runs = trained[0].kind, trained + baselines
    problem = "numbers of different kinds are not comparable, since each predicts something else"
    agree(trained, lambda run: KINDS[run.kind].name, f"{problem}; compare each kind on its own")
    if baselines and kind in ("mlm", "seq2seq"):
        sees = "the source" if kind == "seq2seq" else "the words on both sides"
        problem = f"not comparable, since n-grams do not see {sees}"
        raise UserError(f"{baselines[0].folder}: {problem}; leave the baselines out")
    problem = "the test sentences differ; give runs on the same data"
    agree(runs, lambda run: f"--data {run.data}", problem)
    for run in baselines:
        if not any(name in trained[0].numbers for name in run.numbers if "/" in name):
            problem = f"has no number in common with {trained[0].folder}"
            raise UserError(f"{run.folder}: {problem}; leave it out")
    if kind == "lm":
        problem = "perplexities of different texts are not comparable"
        remedy = "give runs of one script on the same text"
        agree(trained, test_sets, f"{problem} (train_mlm.py --causal has no test sets); {remedy}")
    if kind != "lm" or not measured_sets(trained[0]):
        problem = "these flags decide what is predicted, so the numbers are not comparable"

        def values(run):
            return ", ".join(f"{name}={run.flags.get(name)}" for name in KINDS[kind].decide)

        agree(trained, values, f"{problem}; give runs with the same")
    if kind == "classifier":
        problem = "accuracies on different test rows are not comparable; give runs on one part"
        agree(runs, test_rows, problem)
    else:
        problem = "perplexities of different vocabularies are not comparable"
        remedy = "give runs with the same --valid and tokenizer, or compare their bits_per_byte"
        agree(runs, lambda run: run.vocabulary, f"{problem}; {remedy}")
        problem = "the data or --eval-test differs; train them again with the same"
        agree(runs, test_sizes, problem)


def measured_sets(run):
    """Return the names of the test sets of a language model."""
    return sorted(run.tokens.keys() - {"train", "valid"})


def test_sets(run):
    return f"test sets {', '.join(measured_sets(run))}" if run.tokens else "held-out sentences"


def test_sizes(run):
    sizes = (f"{run.tokens[name]:,}" for name in measured_sets(run))
    return f"test sets of {', '.join(sizes)} tokens"


def agree(runs, value, problem):
    """Raise UserError naming the first run and the first one with another value."""
    expected = value(runs[0])
    for other in runs[1:]:
        if value(other) != expected:
            raise UserError(
                f"{runs[0].folder} ({expected}) and {other.folder} ({value(other)}): {problem}"
            )
