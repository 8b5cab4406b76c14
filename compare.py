"""Compare runs in one figure and one table: means over seeds, with baselines.

    python compare.py out/lm-speeches-*

Runs that differ only in the seed are one configuration, named by the flags that differ from the
others. In --out: a figure over training and a table (compare.png, .pdf, .md, .tex), for runs with
--eval-block also over lengths (train-short-test-long), and all numbers as compare.json. McNemar's
test on the same test rows (classifiers) and a paired t-test over seeds (perplexities) say which
differences could be chance.
"""

from dataclasses import dataclass
from pathlib import Path

from data.files import printable, write_json
from lab import tables
from lab.command import main
from lab.comparison import lengths, mcnemar, paired, panels
from lab.comparison.captions import caption, spread_and_best, subject
from lab.comparison.comparable import check_comparable
from lab.comparison.configurations import make_configurations, references
from lab.comparison.finished import KINDS, read_finished
from lab.comparison.labels import set_labels
from lab.comparison.panels import Panel
from lab.comparison.table import SHARES, heading, make_table
from lab.comparison.together import answer_together
from lab.errors import UserError, require
from lab.figures import save
from lab.flags import flag
from lab.folder import figures_folder
from lab.predictions import label_of_seen

SETS = {"train": "training data", "valid": "held-out lines", "unseen": "test, unseen"}


@dataclass
class Flags:
    runs: list[str] = flag(
        None,
        "run folders of one kind, in the order of the table; also of baselines.py",
        positional=True,
    )
    out: str = flag("out/compare", "folder of the figures and tables; older ones are replaced")
    labels: str = flag(
        "", "one name per configuration, joined by commas (default: flags that differ, or folders)"
    )
    together: bool = flag(
        False, "also evaluate the classifiers as one, by the mean of their log-probabilities"
    )


def compare(flags):
    out = figures_folder(flags.out)
    runs = [read_finished(folder) for folder in dict.fromkeys(map(Path, flags.runs))]
    trained = [run for run in runs if run.kind != "baselines"]
    check_comparable(trained, [run for run in runs if run.kind == "baselines"])

    configurations = make_configurations(trained)
    set_labels(configurations, flags.labels)
    others = references(runs)
    is_classifier = trained[0].kind == "classifier"
    problem = f"--together: {KINDS[trained[0].kind].name} runs give no answers to average"
    require((is_classifier or not flags.together, f"{problem}; leave it out"))
    if flags.together:
        others.insert(0, answer_together(configurations, out))
    tests, notes = mcnemar.compare_pairs(configurations + others) if is_classifier else ([], [])
    orders, more_notes = paired.compare_pairs(configurations)
    tested = mcnemar.describe(tests) or paired.describe(orders)

    older_exists = (out / "compare.json").exists()
    out.mkdir(parents=True, exist_ok=True)
    has_lengths = bool(trained[0].tokens) and bool(lengths.other_lengths(configurations))
    draw(out, configurations, others, has_lengths)
    if not has_lengths:
        lengths.remove(out)  # those of an earlier comparison
    header, rows = make_table(configurations, others)
    words = caption(configurations, others)
    text = tables.write(out / "compare", header, rows, words, left=2, label=out.name, more=tested)
    longest = []
    if has_lengths:
        about = spread_and_best(configurations, configurations)
        below, longest = lengths.write_table(configurations, out, subject(configurations), about)
        text += "\n" + below
    numbers = {
        "kind": trained[0].kind,
        "data": trained[0].data,
        "configurations": [configuration.described() for configuration in configurations],
        "others": {reference.label: reference.numbers for reference in others},
        "mcnemar": tests,
        "paired": orders,
        "paired at the longest": longest,
    }
    write_json(out / "compare.json", numbers)
    print(text, *(printable(f"note: {note}") + "\n" for note in notes + more_notes), sep="\n")
    names = " and ".join(["compare", lengths.NAME][: 1 + has_lengths])
    files = f"{names} (.png, .pdf, .md, .tex), compare.json"
    older = "; replaced an older comparison (--out NAME keeps both)" if older_exists else ""
    print(f"configurations: {len(configurations)}, runs: {len(trained)}; {out}: {files}{older}")


def draw(out, configurations, others, has_lengths):
    """Draw the figure over training and, with several evaluation lengths, that over lengths."""
    first, title = configurations[0].runs[0], subject(configurations)
    names = [
        name
        for name in configurations[0].summary()
        if all(name in c.summary() and c.curve(name)[0] for c in configurations)
    ]
    if first.kind == "classifier" and len(names) > 1:
        names = [name for name in names if name != "accuracy/valid"]  # it chose the epoch
    if not names:
        raise UserError(
            f"{first.folder}: metrics.jsonl has no number in common with the other runs; restore it"
        )
    in_epochs = [c.runs[0] for c in configurations if "epochs" in c.runs[0].flags]
    over_steps = [panel(name, configurations, others, bool(in_epochs)) for name in names]
    xlabel, lines_are = "step", ""
    if in_epochs:
        valid = {run.flags.get("valid") for run in in_epochs}
        share = f"{min(valid):.0%} of" if len(valid) == 1 and None not in valid else "some"
        xlabel, lines_are = "epoch", f"search, {share} rows held out"
    finals_are = "final model, all training rows"
    figures = {"compare": panels.draw_over_steps(title, over_steps, xlabel, lines_are, finals_are)}

    over_lengths = [
        Panel(p.title, p.ylabel, {c.legend: c.by_length(name) for c in configurations})
        for name, p in zip(names, over_steps)
    ]
    if has_lengths:
        trained = {c.runs[0].flags.get("block_size", 0) for c in configurations}
        undefined = [c.legend for c in configurations if c.runs[0].flags.get("pos") == "learned"]
        figures[lengths.NAME] = panels.draw_over_lengths(title, over_lengths, trained, undefined)
    for ending in (".png", ".pdf"):
        for name, figure in figures.items():
            save(figure, out / (name + ending))


def panel(name, configurations, others, in_epochs):
    """Return the Panel of a number over training.

    in_epochs: the axis counts epochs. Runs that count steps have no line then, only a point.
    """
    metric, _, part = name.partition("/")
    kind, factor = configurations[0].runs[0].kind, 100 if metric in SHARES else 1
    ylabel = "perplexity (log scale)" if metric == "perplexity" else heading(name)[0]
    note = ", all training rows" if kind == "classifier" else ""
    lines, levels, finals = {}, {}, {}
    for reference in others:
        if name in reference.numbers:
            label = reference.label + note * reference.ranked
            levels[label] = factor * reference.numbers[name], reference.style
    for c in configurations:
        has_line = ("epochs" in c.runs[0].flags) == in_epochs
        lines[c.legend] = c.curve(name, factor) if has_line else ([], [], [])
        if not has_line or all(run.flags.get("refit") is True for run in c.runs):
            mean, deviation = c.summary()[name]
            finals[c.legend] = factor * mean, factor * (deviation or 0.0)
    title = SETS.get(part, part)
    if part == "seen":
        clean = all(c.runs[0].flags.get("split") == "clean" for c in configurations)
        title = f"test, {label_of_seen(clean)}"
    return Panel(title, ylabel, lines, levels, finals, metric == "perplexity")


if __name__ == "__main__":
    main(compare, Flags, __doc__)
