"""Compare runs in one table and one figure: means over seeds, with baselines beside them.

    python compare.py out/lm-speeches-* out/baselines-speeches

Runs that differ only in the seed are one row. --out gets compare.md, .tex, .png and .pdf, a table
of longer blocks (train-short-test-long) for runs with --eval-block, and mcnemar.md for classifiers.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from data.files import write_text
from lab import tables
from lab.figures import Panel, curves, save
from lab.flags import main, require
from lab.load import read_metrics
from lab.rows import Row, group_runs, read_finished_run, shown_factor
from lab.significance import compare_answers, compare_seeds, interval

METRICS = {  # columns in this order, and their headings
    "perplexity": "perplexity",
    "joint": "perplexity at",  # of all test sets together, by length of the blocks
    "accuracy": "accuracy (%)",
    "macro_f1": "macro-F1 (%)",
    "exact": "exact (%)",
    "bleu": "BLEU",
    "chrf": "chrF",
    "pearson": "Pearson's r",
    "parameters": "parameters",
}
CAPTION = """Mean ± sample standard deviation over seeds. The best of a column is bold, even if it
may be chance. Perplexities of different vocabularies are not comparable. Classifiers: valid is the
best epoch of the search, the rest the final model; seen rows are also in the training files."""
TESTS = """t-tests over seeds, of the mean log of perplexities or the accuracy on all test rows. A
baseline has no seed and counts as a constant. p is about other seeds, not other test data, and is
not corrected for the number of pairs. Negative: the first is lower. Classifiers: mcnemar.md."""
UNTESTED = "No difference is tested: it needs perplexities or accuracies of several, equal seeds."
INTERVALS = "95% bootstrap intervals of means over seeds, for other test data: no test of rows."
MCNEMAR = "McNemar's exact test: p is about other test rows, not other seeds, and is not corrected."


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders, also of baselines.py, in table order
    out: str = "out/compare"  # folder of the tables and figures; older ones are replaced
    labels: str = ""  # one name per row, joined by commas; default: flags that differ, or folders
    intervals: bool = False  # also give intervals over test rows or sentences; decoders read again


def compare(flags):
    runs = read_runs(flags.runs)
    trained = [run for run in runs if run.config["kind"] != "baselines"]
    require(trained, "give the folder of at least one run of a train_*.py script")
    kind = trained[0].config["kind"]
    require_comparable(runs, trained)
    rows = group_runs(trained, flags.labels)
    baselines = [baseline_row(run, kind) for run in runs if run.config["kind"] == "baselines"]

    out = Path(flags.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("train-short-test-long.*", "intervals.*", "mcnemar.md"):
        for path in out.glob(pattern):
            path.unlink()  # of an earlier comparison

    names = names_of_columns(rows)
    tests = compare_seeds(rows + baselines, names_to_test(names))
    write_table(out / "compare", names, rows, baselines, tests)
    draw(out / "compare", names, rows, baselines)

    tests = compare_answers(rows + baselines)
    if tests:
        write_text(out / "mcnemar.md", tabulate(tests, f"{MCNEMAR}\n"))
    if flags.intervals:
        write_intervals(out / "intervals", names, rows + baselines)
    names = names_of_lengths(trained)
    if len(names) > 1:
        tests = compare_seeds(rows, names[-1:])
        write_table(out / "train-short-test-long", names, rows, [], tests)
    print(f"{len(rows)} rows of {len(trained)} runs in {out}: tables and figures")


# ------------------------------------------------------------------------------ 1. Rows and columns
def read_runs(folders):
    """Return the FinishedRuns of folders, each folder once, however it is typed."""
    distinct = {Path(folder).expanduser().resolve(): folder for folder in folders}
    return [read_finished_run(folder) for folder in distinct.values()]


def require_comparable(runs, trained):
    """Raise UserError for runs of different kinds or data. Only decoders and classifiers have
    baselines."""
    has_baselines = trained[0].config["kind"] in ("lm", "classifier")
    same_kind = trained if has_baselines else runs
    kinds = {run.config["kind"] for run in same_kind}
    corpora = {run.settings["data"] for run in runs}
    for name, values in ("kind", kinds), ("data", corpora):
        problem = f"runs of {name} {' and '.join(sorted(values))} are not comparable"
        require(len(values) == 1, f"{problem}; give runs of one {name}")


def baseline_row(run, kind):
    """Return the Row of a run of baselines.py. kind: of the runs that it is compared with."""
    label = "naive Bayes"
    if kind == "lm":
        label = f"{run.settings['order']}-gram"
    elif run.settings["split"] != "full":
        label = f"naive Bayes, split={run.settings['split']}"
    return Row(label, [run])


def names_of_columns(rows):
    """Return the names of the numbers that all runs of some row have, in the order of METRICS."""
    names = {}  # used as an ordered set
    for row in rows:
        for name in row.runs[0].result:
            is_interval = "@" in name or name.count("/") > 1  # or of longer blocks
            if metric_of(name) in METRICS and not is_interval and row.values(name):
                names[name] = True
    order = list(METRICS)
    return sorted(names, key=lambda name: order.index(metric_of(name)))


def metric_of(name):
    """Return the metric of a number: "perplexity" of "perplexity/obama", "joint" of "joint@64"."""
    return re.split("[/@]", name)[0]


def names_of_lengths(runs):
    """Return the names joint@LENGTH of the runs, by length."""
    names = set()
    for run in runs:
        names.update(name for name in run.result if metric_of(name) == "joint")
    return sorted(names, key=lambda name: int(name.removeprefix("joint@")))


def names_to_test(names):
    """Return the names of the numbers to test over seeds: perplexities of the test sets, else of
    the held-out text, else the accuracy."""
    perplexities = [name for name in names if metric_of(name) == "perplexity"]
    held_out = [name for name in perplexities if name != "perplexity/train"]
    of_tests = [name for name in held_out if name != "perplexity/valid"]
    return of_tests or held_out or ["accuracy/test"]


# ---------------------------------------------------------------------------------------- 2. Tables
def write_table(stem, names, rows, baselines, tests):
    """Write and print the table of rows and, below a line in LaTeX, baselines; then the tests."""
    columns = [cells_of_column(name, rows + baselines) for name in names]
    table = []
    for i, row in enumerate(rows + baselines):
        if i == len(rows):
            table.append(None)  # the line in LaTeX
        seeds = ", ".join(run.seed for run in row.runs) or "–"
        table.append([row.label, seeds, *(column[i] for column in columns)])
    header = ["row", "seeds"]
    for name in names:
        metric, *parts = re.split("[/@]", name)
        header.append(" ".join([METRICS[metric], *parts]))
    note = tabulate(tests, TESTS) if tests else UNTESTED
    print(tables.write(stem, header, table, CAPTION, left=2, note=note))


def cells_of_column(name, rows):
    """Return the cells of a number, in bold every one that reads like the best."""
    metric = metric_of(name)
    is_count = metric == "parameters"
    lower_is_better = metric in ("perplexity", "joint")
    values = [row.values(name) for row in rows]
    means = [np.mean(numbers) for numbers in values if numbers]
    digits = 1
    if lower_is_better and means and min(means) < 10:
        digits = 2
    if metric == "pearson":
        digits = 3
    if is_count:
        digits = 0
    cells = []
    for numbers in values:
        if not numbers:
            cells.append("–")
        elif is_count:
            cells.append(tables.spread(numbers[:1], digits))  # the same for all seeds
        else:
            cells.append(tables.spread(numbers, digits))
    if len(means) < 2 or is_count or name.endswith("/train"):  # which may be memorised
        return cells
    best = min(means) if lower_is_better else max(means)
    best = f"{best:,.{digits}f}"
    for i, cell in enumerate(cells):
        if cell.split()[0] == best:
            cells[i] = cell.replace(best, f"**{best}**", 1)
    return cells


def tabulate(tests, text):
    """Return a Markdown table of Comparisons, followed by a text about them."""
    table = []
    for test in tests:
        p = f"{test.p:.3f}" if test.p >= 0.001 else "<0.001"
        table.append([test.test, test.first, test.second, test.seeds, test.difference, p])
    header = ["test", "first", "second", "seeds", "first against second", "p"]
    return f"{tables.to_markdown(header, table, left=5)}\n{text}"


def write_intervals(stem, names, rows):
    """Write and print the table of intervals of the numbers of test rows and lines."""
    tested = []
    for name in names:
        if re.match("(perplexity|accuracy)/(?!(train|valid)$)", name):
            tested.append(name)
    table = []
    for row in rows:
        intervals = [interval(row.runs, name) for name in tested]
        table.append([row.label, *intervals])
    print(tables.write(stem, ["row", *tested], table, INTERVALS))


# ---------------------------------------------------------------------------------------- 3. Figure
def draw(stem, names, rows, baselines):
    """Draw the numbers that all rows have over steps, as .png and .pdf."""
    panels = []
    for name in names:
        panel = panel_of(name, rows, baselines)
        if all(steps for steps, _ in panel.lines.values()):
            panels.append(panel)
    is_classifier = "epochs" in rows[0].runs[0].config["flags"]
    xlabel = "epoch of the search" if is_classifier else "step"
    figure = curves(panels, xlabel)
    for ending in (".png", ".pdf"):
        save(figure, stem.with_suffix(ending))


def panel_of(name, rows, baselines):
    """Return the Panel of a number: a line per row, over the steps that all its seeds have; dashed
    lines for baselines and for the best possible value, if it is known."""
    factor = shown_factor(name)
    lines = {}
    for row in rows:
        logs = [read_logged(run.folder, name) for run in row.runs]  # a {step: value} per seed
        shared = set(logs[0]).intersection(*logs)
        steps = [step for step in logs[0] if step in shared]
        of_seeds = []
        for log in logs:
            of_seeds.append([factor * log[step] for step in steps])
        lines[row.label] = (steps, of_seeds)
    levels = {}
    for row in baselines:
        values = row.values(name)
        if values:
            levels[row.label] = np.mean(values)
    result = rows[0].runs[0].result
    if f"floor/{name}" in result:
        levels["best possible"] = factor * result[f"floor/{name}"]
    metric, _, part = name.partition("/")
    return Panel(part, METRICS[metric], lines, levels, log=metric == "perplexity")


def read_logged(folder, name):
    """Return {step: value} of a number that a run logged in its evaluations."""
    return {line["step"]: line[name] for line in read_metrics(folder) if name in line}


if __name__ == "__main__":
    main(compare, Flags)
