"""The table of compare.py: a row per configuration or reference, a column per number."""

METRICS = {  # columns in this order: (heading, the best value of a column, digits)
    "perplexity": ("perplexity", min, 1),
    "accuracy": ("accuracy", max, 1),
    "macro_f1": ("macro-F1", max, 1),
    "exact": ("exact", max, 1),
    "bleu": ("BLEU", max, 1),
    "chrf": ("chrF", max, 1),
    "parameters": ("parameters", None, 0),
}
SHARES = ("accuracy", "macro_f1", "exact")  # metrics from 0 to 1, shown in percent


def make_table(configurations, others, summaries=()):
    """Return (header, rows) for lab.tables: configurations, a line, then what to compare with.

    summaries: the numbers of each row (default: all but those in longer blocks).
    """
    entries = configurations + others
    summaries = summaries or [entry.summary() for entry in entries]
    ours = summaries[: len(configurations)]
    found = dict.fromkeys(name for numbers in ours for name in numbers if "@" not in name)
    names = [name for m in METRICS for name in found if name.partition("/")[0] == m]
    columns = [column(name, entries, summaries) for name in names]
    rows = [[entry.label, entry.seeds or "–", *cells] for entry, *cells in zip(entries, *columns)]
    if others:
        rows.insert(len(configurations), None)
    return ["configuration", "seeds", *map(heading, names)], rows


def heading(name):
    """Return ("accuracy (%)", "test") for accuracy/test, "parameters" for parameters."""
    metric, _, part = name.partition("/")
    unit = " (%)" if metric in SHARES else ""
    return (METRICS[metric][0] + unit, part) if part else metric


def column(name, entries, summaries):
    """Return the cells of a number, in bold every one that reads like the best.

    A column of training data has no best, since a low training loss can be memorisation.
    """
    metric, _, part = name.partition("/")
    factor = 100 if metric in SHARES else 1
    ranked = [s[name][0] for e, s in zip(entries, summaries) if e.ranked and name in s]
    _, choose, digits = METRICS[metric]
    if metric == "perplexity" and min(ranked) < 10:
        digits = 2

    def text(value):
        value *= factor
        return f"{value:.1e}" if value >= 1e7 and metric != "parameters" else f"{value:,.{digits}f}"

    best = text(choose(ranked)) if choose and part != "train" and len(ranked) > 1 else None
    cells = []
    for entry, summary in zip(entries, summaries):
        mean, deviation = summary.get(name, (None, None))
        cell = "–" if mean is None else text(mean)
        cell = f"**{cell}**" if entry.ranked and cell == best else cell
        if deviation is not None and metric != "parameters":
            cell += f" ± {text(deviation)}"
        cells.append(cell)
    return cells
