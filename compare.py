"""Many runs in one figure and one table: means over seeds, baselines and the best possible beside them.

    python compare.py out/lm-* --out out/compare

Runs that differ in nothing but the seed are one configuration, named by the flags in which it differs from the others.
In --out: compare.png over training, train-short-test-long.png over lengths, the table as compare.md and compare.tex,
all numbers as compare.json; the figures also as .pdf.
"""

from dataclasses import dataclass
from pathlib import Path

from data.files import write_json, write_text
from lab.command import main
from lab.comparable import KINDS, check_comparable, counted, group, label, read
from lab.errors import UserError
from lab.flags import flag
from lab.folder import figures_folder
from lab.tables import escaped

SHARES = ("accuracy", "exact")  # metrics from 0 to 1, shown in percent
LONG = "train-short-test-long"
COLUMNS = (
    "perplexity",
    "accuracy",
    "exact",
    "bleu",
    "chrf",
    "parameters",
    "seconds",
)  # in this order


@dataclass
class Flags:
    runs: list[str] = flag(
        None,
        "folders of finished runs of one kind; folders of baselines.py may be among them",
        positional=True,
    )
    out: str = flag(
        "out/compare",
        "folder of the figures and tables; those of an earlier comparison there are replaced",
    )
    labels: str = flag(
        "",
        "names of the configurations in the order of their first run, joined by commas; "
        "without it, the flags that differ",
    )


def compare(flags):
    out = figures_folder(flags.out)
    given = [read(folder) for folder in dict.fromkeys(map(Path, flags.runs))]
    trained, baselines = (
        [run for run in given if (run.kind == "baselines") == wanted] for wanted in (False, True)
    )
    check_comparable(trained, baselines)

    configurations = group(trained)
    label(configurations, flags.labels)
    others = baseline_rows(baselines, trained[0].kind) + floor_row(given, trained[0].kind)
    rows = [
        Row(c.label, c.summary(), ", ".join(run.seed for run in c.runs)) for c in configurations
    ] + others

    out.mkdir(parents=True, exist_ok=True)
    drawn = draw(out, configurations, others)
    cells, words = format_table(rows), caption(configurations)
    text = f"{markdown(rows, cells)}\n{words}\n"
    write_text(out / "compare.md", text)
    write_text(out / "compare.tex", latex(rows, cells, words))
    write_json(
        out / "compare.json",
        {
            "kind": trained[0].kind,
            "data": trained[0].data,
            "configurations": [c.described() for c in configurations],
            "others": {
                row.label: {key: mean for key, (mean, _) in row.numbers.items()} for row in others
            },
        },
    )
    print(text)
    print(
        f"{counted(len(configurations), 'configuration')}, {counted(len(trained), 'run')}: "
        f"{', '.join(drawn)}, compare.md, compare.tex and compare.json in {out}"
    )


# ---------------------------------------------------------------------------- the table


@dataclass
class Row:
    """A configuration, or what stands beside them: a baseline, or the best possible."""

    label: str
    numbers: dict  # {name: (mean, deviation or None)}
    seeds: str = ""
    style: object = "-"  # of its line in the figure
    ranked: bool = True  # can be the best of a column


def baseline_rows(baselines, kind):
    rows = {}
    for run in baselines:
        name, apart = (
            (f"{run.flags.get('order', 'n')}-gram", "rare_unknown")
            if kind == "lm"
            else ("naive Bayes", "split")
        )
        if run.flags.get(apart, 0) not in (0, "full"):
            name += f", {apart.replace('_', '-')}={run.flags[apart]}"
        name = str(run.folder) if name in rows else name
        rows[name] = Row(name, alone(run.numbers), style=("--", "-.", (0, (6, 2)))[len(rows) % 3])
    return list(rows.values())


def floor_row(given, kind):
    """What no model can beat, computed from the grammar of a generated corpus; [] for other corpora."""
    floor = {key: value for run in given for key, value in run.floor.items()}
    return (
        [
            Row(
                "floor (best possible)" if kind == "lm" else "best possible",
                alone(floor),
                style=":",
                ranked=False,
            )
        ]
        if floor
        else []
    )


def alone(numbers):
    return {key: (value, None) for key, value in numbers.items()}


def format_table(rows):
    """{column: [(mean, deviation, whether it is the best of the column) for each row]}, the numbers in words."""
    keys = [
        key
        for key in dict.fromkeys(key for row in rows if row.seeds for key in row.numbers)
        if "@" not in key
    ]
    columns = {}
    for key in sorted(keys, key=lambda key: COLUMNS.index(key.partition("/")[0])):
        metric = key.partition("/")[0]
        ranked = [row.numbers[key][0] for row in rows if row.ranked and key in row.numbers]
        digits = (
            2
            if metric == "perplexity" and min(ranked) < 10
            else 0
            if metric in ("parameters", "seconds")
            else 1
        )

        def write(x):
            x = 100 * x if metric in SHARES else x
            return f"{x:,.{digits}f}" if x < 1e7 or metric == "parameters" else f"{x:.1e}"

        better = {"perplexity": min, "parameters": None, "seconds": None}.get(metric, max)
        best = write(better(ranked)) if better and len(ranked) > 1 else None
        columns[key] = []
        for row in rows:
            mean, deviation = row.numbers.get(key, (None, None))
            text = "–" if mean is None else write(mean)
            # What reads the same is equally good.
            columns[key].append(
                (
                    text,
                    "" if deviation is None or metric == "parameters" else write(deviation),
                    row.ranked and text == best,
                )
            )
    return columns


def caption(configurations):
    first = configurations[0].runs[0]
    spread = (
        "mean ± sample standard deviation over the seeds named"
        if any(len(c.runs) > 1 for c in configurations)
        else "single runs, so differences may be those of seeds"
    )
    notes = {
        "lm": "Perplexity per token, the lower the better.",
        "mlm": "Masked-LM perplexity, with the words on both sides visible: not comparable with a causal LM's.",
        "seq2seq": "Perplexity of what the decoder writes, given the source: comparable with no other kind's.",
        "classifier": "Seen test sentences also stand in the training data, so accuracy on them is partly memory. "
        "Curves are of the search for the best epoch, with rows held out, and so is its best, `valid`; "
        "all else in the table is of the final model.",
    }
    lengths = {
        name: sorted(
            {str(c.runs[0].flags.get(name, 0)) for c in configurations}, key=lambda n: (len(n), n)
        )
        for name in ("steps", "epochs", "batch_size", "block_size")
    }
    unequal = "".join(
        f" Not trained alike: {name.replace('_', ' ')} {', '.join(values)}."
        for name, values in lengths.items()
        if len(values) > 1
    )
    return f"{KINDS[first.kind]} on {first.data}: {spread}. {notes[first.kind]} The best of each column is bold.{unequal}"


def markdown(rows, columns):
    """A Markdown table that is also aligned as plain text."""
    lines = [
        [
            "configuration",
            "seeds",
            *(key.replace("/", " ") + " (%)" * key.startswith(SHARES) for key in columns),
        ]
    ]
    for row, *cells in zip(rows, *columns.values()):
        lines.append(
            [
                row.label.replace("|", r"\|"),
                row.seeds or "–",
                *(
                    (f"**{mean}**" if best else mean) + (f" ± {deviation}" if deviation else "")
                    for mean, deviation, best in cells
                ),
            ]
        )
    widths = [max(map(len, texts)) for texts in zip(*lines)]
    lines = [
        [
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths))
        ]
        for line in lines
    ]
    lines.insert(
        1, ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(rows, columns, words):
    """The same for LaTeX; the columns of a metric stand under its name."""
    heads, rules, start = [], [], 3
    for metric, title in (
        ("perplexity", "perplexity"),
        ("accuracy", r"accuracy (\%)"),
        ("exact", r"exact (\%)"),
        ("bleu", "BLEU"),
        ("chrf", "chrF"),
    ):
        n = sum(key.startswith(metric + "/") for key in columns)
        if n:
            heads.append(rf"\multicolumn{{{n}}}{{c}}{{{title}}}")
            rules.append(rf"\cmidrule(lr){{{start}-{start + n - 1}}}")
            start += n
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering",
        rf"\caption{{{escaped(words)}}}",
        r"\label{tab:compare}",
        rf"\begin{{tabular}}{{ll{'r' * len(columns)}}}",
        r"\toprule",
        f"& & {' & '.join(heads)} {'& ' * (len(columns) + 3 - start)}" r"\\",
        " ".join(rules),
        " & ".join(
            ["configuration", "seeds", *(escaped(key.rpartition("/")[2]) for key in columns)]
        )
        + r" \\",
        r"\midrule",
    ]
    for before, row, *cells in zip([None, *rows], rows, *columns.values()):
        if before and before.seeds and not row.seeds:
            lines.append(r"\midrule")
        cells = [
            (rf"\textbf{{{mean}}}" if best else mean.replace("–", "--"))
            + (rf" $\pm$ {deviation}" if deviation else "")
            for mean, deviation, best in cells
        ]
        lines.append(" & ".join([escaped(row.label), row.seeds or "--", *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}"]) + "\n"


# ---------------------------------------------------------------------------- the figures


def draw(out, configurations, others):
    """compare.png: every metric that all runs logged, over training. train-short-test-long.png: perplexity against
    length, where train_lm.py --eval-block measured it. Returns their names."""
    from lab import figures

    kind = configurations[0].runs[0].kind
    keys = [
        key
        for key in configurations[0].summary()
        if "/" in key and all(c.curve(key)[0] for c in configurations)
    ]
    if kind == "classifier" and len(keys) > 1:
        keys = [key for key in keys if key != "accuracy/valid"]  # it chose the epoch
    if not keys:
        raise UserError(
            f"{configurations[0].runs[0].folder}: its metrics.jsonl lacks what the other runs logged; "
            "restore it or train the run again"
        )
    panels = []
    for key in keys:
        factor = 100 if key.startswith(SHARES) else 1
        lines = {c.legend(): c.curve(key, factor) for c in configurations}
        levels = {
            row.label: (factor * row.numbers[key][0], row.style)
            for row in others
            if key in row.numbers
        }
        panels.append((*titles(kind, key), lines, levels, factor == 1))
    figures.compared(out / "compare.png", panels, "epoch" if kind == "classifier" else "step")

    for ending in (".png", ".pdf"):
        (out / (LONG + ending)).unlink(missing_ok=True)  # of an earlier comparison
    panels = [
        (
            *titles(kind, key),
            {c.legend(): c.by_length(key) for c in configurations if key in c.summary()},
            {},
            True,
        )
        for key in keys
    ]
    if kind != "lm" or all(len(xs) == 1 for _, _, lines, *_ in panels for xs, *_ in lines.values()):
        return ["compare.png"]
    figures.compared(
        out / f"{LONG}.png",
        panels,
        "evaluation length (tokens)",
        trained={c.runs[0].flags.get("block_size", 0) for c in configurations},
        ending=[c.legend() for c in configurations if c.runs[0].flags.get("pos") == "learned"],
    )
    return ["compare.png", f"{LONG}.png"]


def titles(kind, key):
    """(title, y label) of a panel."""
    metric, _, part = key.partition("/")
    title = {
        "train": "training data",
        "valid": "held-out lines",
        "seen": "test, seen in training",
        "unseen": "test, not seen",
    }.get(part, part)
    ylabel = (
        "perplexity (log scale)"
        if metric == "perplexity"
        else "words found (%)"
        if kind == "mlm"
        else "accuracy (%)"
    )
    return "masked LM, " * (kind == "mlm") + title, ylabel


if __name__ == "__main__":
    main(compare, Flags, __doc__.split("\n")[0])
