"""Compare runs in one table and one figure: means over seeds, with baselines beside them.

    python compare.py out/lm-speeches-* out/baselines-speeches

Runs that differ only in the seed are one row, and a folder of runs stands for all of them. --out
gets compare.md, .tex, .png and .pdf and compare-tests.tex; of runs with --eval-block and of tasks
the numbers by length (train-short-test-long.*); of classifiers mcnemar.md and .tex.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tyro.conf import Positional

from data.files import write_text
from data.readers import TASK_NAMES
from lab import tables
from lab.figures import WIDTH, Panel, curves, save, set_lengths
from lab.flags import Folder, RunFolders, main, require
from lab.load import read_metrics
from lab.rows import Row, group_runs, name_labels, read_finished_run, shown_factor
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
KINDS = {  # the models of a caption
    "lm": "Causal language models",
    "mlm": "Masked language models",
    "classifier": "Classifiers",
    "seq2seq": "Encoder-decoders",
    "thread": "Readers of comments",
    "tlm": "Translation language models",
}
CLASSIFIERS = """Valid is the best epoch of the search, the rest the final model; seen rows are also
in the training files."""
TASKS = """Accuracy is of single symbols of the answers, each after the right ones before it; whole
answers are right less often."""
OTHER_BLOCKS = """Rows of other block sizes have read other blocks and other numbers of tokens, and
are measured in blocks as long as in training unless a length is given."""
TESTS = """p is about other seeds, not other test data, and is not corrected for the number of
tests. Negative: the first is lower."""
OTHER_SHAPES = """Rows with other numbers of parameters share the batches of a seed, but not its
initial weights."""
TESTS_HEADER = ["test", "first", "second", "seeds", "first against second", "p"]
LEAST_WIDTH = 2.5  # inches; text of 7 points does not fit into less
UNTESTED = "No difference is tested: it needs numbers that two rows have, of several, equal seeds."
INTERVALS = "95% bootstrap intervals of means over seeds, for other test data: no test of rows."
MCNEMAR = "McNemar's exact test: p is about other test rows, not other seeds, and is not corrected."


@dataclass
class Flags:
    runs: Positional[RunFolders]  # run folders, also of baselines.py, in table order
    out: Folder = "out/compare"  # folder of the tables and figures; older ones are replaced
    labels: str = ""  # one name per row, joined by commas; '': flags that differ, or folders
    prefix: str = ""  # of the names of all files, for a report with several comparisons
    width: float = WIDTH  # inches of the figures
    intervals: bool = False  # also give intervals over test rows or sentences; decoders read again


def compare(flags):
    require(flags.width >= LEAST_WIDTH, f"--width {flags.width:g}: at least {LEAST_WIDTH} inches")
    runs = read_runs(flags.runs)
    trained = [run for run in runs if run.config["kind"] != "baselines"]
    require(trained, "give the folder of at least one run of a train_*.py script")
    kind = trained[0].config["kind"]
    require_comparable(runs, trained)
    rows = group_runs(trained, flags.labels)
    baselines = [baseline_row(run, kind) for run in runs if run.config["kind"] == "baselines"]

    out = Path(flags.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    for pattern in ("train-short-test-long*", "intervals.*", "mcnemar.*", "compare-tests.tex"):
        for path in out.glob(flags.prefix + pattern):
            path.unlink()  # of an earlier comparison

    names = names_of_columns(rows)
    stem = out / f"{flags.prefix}compare"
    write_table(stem, names, rows, baselines, names_to_test(names, is_task(rows)))
    draw(stem, names, rows, baselines, flags.width)

    tests_of_answers = compare_answers(rows + baselines)
    if tests_of_answers:
        stem = out / f"{flags.prefix}mcnemar"
        text = write_tests(stem, tests_of_answers, MCNEMAR)
        write_text(f"{stem}.md", f"{text}\n")
    if flags.intervals:
        write_intervals(out / f"{flags.prefix}intervals", names, rows, baselines)
    lengths = names_of_lengths(trained)
    stem = out / f"{flags.prefix}train-short-test-long"
    if is_task(rows):
        draw_lengths(stem, names_to_test(names, True), rows, flags.width)
    elif len(lengths) > 1:
        write_table(stem, lengths, rows, [], lengths)
        draw_lengths(stem, lengths, rows, flags.width)
    print(f"{len(rows)} rows of {len(trained)} runs in {out}: tables and figures")


# ------------------------------------------------------------------------------ 1. Rows and columns
def read_runs(folders):
    """Return the FinishedRuns of folders, each folder once, however it is typed. A folder of runs
    stands for those that have ended; a note names what is neither."""
    distinct = {}  # path: folder as typed
    for name in folders:
        folder = Path(name).expanduser()
        inside = [folder]
        if folder.exists() and not (folder / "config.json").exists():
            inside = sorted(path.parent for path in folder.glob("*/config.json"))
            if not inside:
                print(f"note: {folder}: no run; skipped")
        for path in inside:
            if path != folder and not (path / "result.json").exists():
                print(f"note: {path}: has not ended; skipped")
                continue
            distinct[path.resolve()] = path
    return [read_finished_run(path) for path in distinct.values()]


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
            is_extra = "@" in name or name.count("/") > 1  # of longer blocks, an interval's end
            if metric_of(name) in METRICS and not is_extra and row.values(name):
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


def is_task(rows):
    """Return whether rows are of a task, whose test sets have the length of the prompts as name."""
    return rows[0].runs[0].settings["data"] in TASK_NAMES


def names_to_test(names, of_task):
    """Return the names of the numbers to test over seeds: perplexities of the test sets, else of
    the held-out text, else the accuracy; of a task the accuracies."""
    if of_task:
        return [name for name in names if metric_of(name) == "accuracy"]
    perplexities = [name for name in names if metric_of(name) == "perplexity"]
    held_out = [name for name in perplexities if name != "perplexity/train"]
    of_tests = [name for name in held_out if name != "perplexity/valid"]
    return of_tests or held_out or ["accuracy/test"]


# ---------------------------------------------------------------------------------------- 2. Tables
def write_table(stem, names, rows, baselines, tested):
    """Write and print the table of rows and, below a line in LaTeX, baselines; then the tests of
    the numbers `tested`."""
    columns = [cells_of_column(name, rows + baselines) for name in names]
    table = []
    for i, row in enumerate(rows + baselines):
        if i == len(rows):
            table.append(None)  # the line in LaTeX
        seeds = ", ".join(run.seed for run in row.runs) or "–"
        table.append([row.label, seeds, *(column[i] for column in columns)])
    header = [name_labels(rows), "seeds"]
    for name in names:
        metric, *parts = re.split("[/@]", name)
        if is_task(rows) and parts:
            parts.insert(0, "length")
        header.append(" ".join([METRICS[metric], *parts]))
    tests = []
    if is_task(rows) or metric_of(names[0]) == "joint":  # a test for each length
        for name in tested:
            for test in compare_seeds(rows, [name]):
                length = re.split("[/@]", name)[1]
                tests.append(replace(test, test=f"{test.test}, length {length}"))
    else:
        tests = compare_seeds(rows + baselines, tested)
    note = UNTESTED
    if tests:
        text = describe_tests(rows, tested, any(test.test == "one-sample t" for test in tests))
        note = write_tests(Path(f"{stem}-tests"), tests, text)
    print(tables.write(stem, header, table, describe(names, rows, baselines), left=2, note=note))


def describe(names, rows, baselines):
    """Return the caption of a table: models, data, numbers and seeds."""
    run = rows[0].runs[0]
    models = KINDS.get(run.config["kind"], "Models")
    sentences = [f"{models} on {run.settings['data']}: {describe_numbers(names, rows)}."]
    n_seeds = sorted({len(row.runs) for row in rows})
    if n_seeds[-1] == 1:
        sentences.append("One seed.")
    else:
        counts = " or ".join(map(str, n_seeds))
        sentences.append(f"Mean ± sample standard deviation over {counts} seeds.")
    if len(rows + baselines) > 1:
        sentences.append("The best of a column is bold, even if it may be chance.")
    vocabularies = {row.runs[0].result.get("vocab_size") for row in rows + baselines}
    if len(vocabularies) > 1 and run.config["kind"] != "classifier":
        sentences.append("Perplexities of different vocabularies are not comparable.")
    if run.config["kind"] == "classifier":
        sentences.append(CLASSIFIERS)
    if is_task(rows):
        sentences.append(TASKS)
    if metric_of(names[0]) == "joint":
        has_gaps = any(not set(names) <= set(row.runs[0].result) for row in rows)
        if has_gaps:
            sentences.append("–: not measured at this length.")
    if values_differ(rows, "block_size"):
        sentences.append(OTHER_BLOCKS)
    return textwrap.fill(" ".join(sentences), 100)


def describe_numbers(names, rows):
    """Return what the columns of a table hold: "perplexity of ada, bruno; accuracy (%) of test"."""
    if metric_of(names[0]) == "joint":
        tokens = f"all tokens of {joint_sets(rows)} together"
        trained = f"trained in blocks of {training_blocks(rows)}"
        return f"perplexity of {tokens}, by length of the blocks; {trained}"
    parts_of = {}  # heading: test sets
    for name in names:
        metric, _, part = name.partition("/")
        if part:
            parts_of.setdefault(METRICS[metric], []).append(part)
    of = "at prompt lengths" if is_task(rows) else "of"
    return "; ".join(f"{heading} {of} {', '.join(parts)}" for heading, parts in parts_of.items())


def joint_sets(rows):
    """Return in words the test sets that joint@LENGTH counts together."""
    names = []
    for name in rows[0].runs[0].result:
        kind, _, part = name.partition("/")
        if kind == "tokens" and part not in ("train", "valid"):
            names.append(part)
    return ", ".join(names)


def training_blocks(rows):
    """Return the lengths of the blocks of training: "32 or 64"."""
    sizes = {row.runs[0].config["flags"]["block_size"] for row in rows}
    return " or ".join(map(str, sorted(sizes)))


def values_differ(rows, flag):
    """Return whether rows differ in a flag."""
    return len({row.runs[0].config["flags"].get(flag) for row in rows}) > 1


def describe_tests(rows, names, has_baseline):
    """Return the text about t-tests of numbers over seeds. has_baseline: some are of a baseline."""
    metric = metric_of(names[0])
    parts = ", ".join(re.split("[/@]", name, maxsplit=1)[1] for name in names)
    of_metric = {
        "perplexity": f"the mean log of the perplexities of {parts}",
        "joint": f"the log of the perplexity of {joint_sets(rows)} together, "
        "at each length that both rows have",
        "accuracy": f"the accuracy of {parts}",
    }
    if is_task(rows):
        of_metric["accuracy"] = "the accuracy at each prompt length"
    sentences = [f"t-tests over seeds, of {of_metric[metric]}.", TESTS]
    if has_baseline:
        sentences.append("A baseline has no seed and counts as a constant.")
    if len({row.runs[0].result["parameters"] for row in rows}) > 1:
        sentences.append(OTHER_SHAPES)
    if values_differ(rows, "block_size") or values_differ(rows, "batch_size"):
        sentences.append("Rows of other block or batch sizes do not share batches.")
    return textwrap.fill(" ".join(sentences), 100)


def write_tests(stem, tests, text):
    """Write stem.tex, a table of Comparisons with a text; return both as Markdown."""
    table = []
    for test in tests:
        p = f"{test.p:.3f}" if test.p >= 0.001 else "<0.001"
        table.append([test.test, test.first, test.second, test.seeds, test.difference, p])
    write_text(f"{stem}.tex", tables.to_latex(TESTS_HEADER, table, text, stem.name, left=5))
    return f"{tables.to_markdown(TESTS_HEADER, table, left=5)}\n{text}"


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


def write_intervals(stem, names, rows, baselines):
    """Write and print the table of intervals of the numbers of test rows and lines."""
    tested = []
    for name in names:
        if re.match("(perplexity|accuracy)/(?!(train|valid)$)", name):
            tested.append(name)
    table = []
    for row in rows + baselines:
        intervals = [interval(row.runs, name) for name in tested]
        table.append([row.label, *intervals])
    print(tables.write(stem, [name_labels(rows), *tested], table, INTERVALS))


# ---------------------------------------------------------------------------------------- 3. Figure
def draw(stem, names, rows, baselines, width):
    """Draw the numbers that all rows have over steps, as .png and .pdf. width: in inches."""
    panels = []
    for name in names:
        panel = panel_of(name, rows, baselines)
        if all(steps for steps, _ in panel.lines.values()):
            panels.append(panel)
    is_classifier = "epochs" in rows[0].runs[0].config["flags"]
    xlabel = "epoch of the search" if is_classifier else "step"
    save_figure(curves(panels, xlabel, width), stem)


def save_figure(figure, stem):
    """Write a figure as stem.png and stem.pdf."""
    for ending in (".png", ".pdf"):
        save(figure, stem.with_suffix(ending))


def draw_lengths(stem, names, rows, width):
    """Draw numbers over length, as .png and .pdf. names: joint@LENGTH or accuracy/LENGTH. width: in
    inches."""
    lines = {}
    ticks = set()
    for row in rows:
        lengths = []
        of_lengths = []  # [values of the seeds]
        for name in names:
            values = row.values(name)
            if values:
                lengths.append(int(re.split("[/@]", name)[1]))
                of_lengths.append(values)
        if lengths:
            lines[row.label] = (lengths, np.transpose(of_lengths))
            ticks.update(lengths)
    run = rows[0].runs[0]
    flags = run.config["flags"]
    if is_task(rows):
        panel = Panel(run.settings["data"], "accuracy of symbols (%)", lines, limits=(0, 100))
        xlabel = f"length of the prompts; in training up to {flags['length']}"
    else:
        title = f"{run.settings['data']}: {joint_sets(rows)}"
        panel = Panel(title, "perplexity", lines, log=True)
        xlabel = f"tokens per block; in training {training_blocks(rows)}"
    figure = curves([panel], xlabel, width)
    (axis,) = figure.axes
    set_lengths(axis, ticks)
    save_figure(figure, stem)


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
    title = f"prompt length {part}" if is_task(rows) else part
    panel = Panel(title, METRICS[metric], lines, levels, log=metric == "perplexity")
    if factor == 100:
        panel.limits = (0, 100)
    return panel


def read_logged(folder, name):
    """Return {step: value} of a number that a run logged in its evaluations."""
    return {line["step"]: line[name] for line in read_metrics(folder) if name in line}


if __name__ == "__main__":
    main(compare, Flags)
