"""Compare runs in one table and one figure: means over seeds, with baselines beside them.

    python compare.py out/lm-speeches-* out/baselines-speeches

Runs that differ only in the seed are one row. --out gets compare.md, .tex, .png and .pdf, a table
of longer blocks (train-short-test-long) for runs with --eval-block, and mcnemar.md for classifiers.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tyro
from scipy import stats

import data
from data import name_of
from data.files import write_text
from data.tokenizer import encode
from lab import load_run, tables
from lab.figures import curves, save
from lab.flags import MAY_CHANGE, main, require
from lab.load import read_config, read_metrics, read_result
from lab.predictions import FILE, read_predictions
from model import POSITIONS

# Columns in this order, and their headings. joint: all test sets together, by length of the blocks
METRICS = dict(perplexity="perplexity", joint="perplexity at", accuracy="accuracy (%)")
METRICS |= dict(macro_f1="macro-F1 (%)", exact="exact (%)", bleu="BLEU", chrf="chrF")
METRICS |= dict(pearson="Pearson's r", parameters="parameters")
PERCENT = "accuracy", "macro_f1", "exact"
CAPTION = """Mean ± sample standard deviation over seeds. The best of a column is bold, even if it
may be chance. Perplexities of different vocabularies are not comparable. Classifiers: valid is the
best epoch of the search, the rest the final model; seen rows are also in the training files."""
TESTS = """t-tests over seeds, of the mean log of perplexities or the accuracy on all test rows. A
baseline has no seed and counts as a constant. p is about other seeds, not other test data, and is
not corrected for the number of pairs. Negative: the first is lower. Classifiers: mcnemar.md."""
UNTESTED = "No difference is tested: it needs perplexities or accuracies of several, equal seeds."
INTERVALS = "95% bootstrap intervals of means over seeds, for other test data: no test of rows."
HIT = "accuracy/test", "accuracy/seen", "accuracy/unseen"  # of the rows of predictions.tsv
MCNEMAR = "McNemar's exact test: p is about other test rows, not other seeds, and is not corrected."


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders, also of baselines.py, in table order
    out: str = "out/compare"  # folder of the tables and figures; older ones are replaced
    labels: str = ""  # one name per row, joined by commas; default: flags that differ, or folders
    intervals: bool = False  # also give intervals over test rows or sentences; decoders read again


@dataclass
class Row:
    """Runs that differ in nothing but the seed, or a baseline, drawn as a horizontal line."""

    label: str
    runs: list  # as `read` returns them

    def values(self, name):
        """Return the number of each run, in percent if it is shown so; [] unless all have it."""
        factor = 100 if name.startswith(PERCENT) else 1
        found = [factor * run.result[name] for run in self.runs if name in run.result]
        return found if len(found) == len(self.runs) else []


def compare(flags):
    out = Path(flags.out).expanduser()
    runs = [read(run) for run in {Path(r).expanduser().resolve(): r for r in flags.runs}.values()]
    trained = [run for run in runs if run.config["kind"] != "baselines"]
    require(trained, "give the folder of at least one run of a train_*.py script")
    kind = trained[0].config["kind"]
    alike = trained if kind in ("lm", "classifier") else runs  # others have no baselines
    kinds, data = {run.config["kind"] for run in alike}, {run.settings["data"] for run in runs}
    for name, found in ("kind", kinds), ("data", data):
        problem = f"runs of {name} {' and '.join(sorted(found))} are not comparable"
        require(len(found) == 1, f"{problem}; give runs of one {name}")
    rows, others = group(trained, flags.labels), []
    for run in [run for run in runs if run not in trained]:
        name = f"naive Bayes, split={run.settings['split']}".removesuffix(", split=full")
        others.append(Row(f"{run.settings['order']}-gram" if kind == "lm" else name, [run]))
    out.mkdir(parents=True, exist_ok=True)
    found = dict.fromkeys(n for row in rows for n in row.runs[0].result if row.values(n))
    found = [n for n in found if "@" not in n and n.count("/") < 2]  # without intervals
    names = [n for m in METRICS for n in found if n.partition("/")[0] == m]
    measured = [n for n in names if n.startswith("perplexity/") and n != "perplexity/train"]
    measured = [n for n in measured if n != "perplexity/valid"] or measured or ["accuracy/test"]
    write(out / "compare", names, rows, others, compare_seeds(rows + others, measured))
    draw(out / "compare", names, rows, others)

    for pattern in "train-short-test-long.*", "intervals.*", "mcnemar.md":
        for path in out.glob(pattern):
            path.unlink()  # of an earlier comparison
    if tests := compare_answers(rows + others):
        write_text(out / "mcnemar.md", tabulate(tests, f"{MCNEMAR}\n"))
    if flags.intervals:
        tests = [n for n in names if re.match("(perplexity|accuracy)/(?!(train|valid)$)", n)]
        cells = [[row.label, *(interval(row.runs, n) for n in tests)] for row in rows + others]
        print(tables.write(out / "intervals", ["row", *tests], cells, INTERVALS))
    joint = {n for run in trained for n in run.result if n.startswith("joint@")}
    if len(joint) > 1:
        joint = sorted(joint, key=lambda name: int(name[6:]))
        write(out / "train-short-test-long", joint, rows, [], compare_seeds(rows, joint[-1:]))
    print(f"{len(rows)} rows of {len(trained)} runs in {out}: tables and figures")


def read(folder):
    """Return a finished run: folder, config, settings, seed and the numbers of its result, also
    joint@LENGTH, the perplexity of all test sets together. Raises UserError if not finished."""
    run = SimpleNamespace(folder=Path(folder).expanduser(), config=read_config(folder))
    run.settings, run.seed = configuration(run.config)
    run.result = {n: v for n, v in read_result(folder).items() if isinstance(v, int | float)}
    tests = {n: v for n, v in run.result.items() if re.match("tokens/(?!(train|valid)$)", n)}
    own = run.config["flags"].get("block_size")
    for at in {name.partition("@")[2] for name in run.result} if own and tests else ():
        found = [run.result.get(f"perplexity/{name[7:]}@{at}".strip("@")) for name in tests]
        if all(found):
            mean = np.average(np.log(found), weights=list(tests.values()))
            run.result[f"joint@{at or own}"] = np.exp(mean)
    return run


def configuration(config):
    """Return the settings that make a row, with those of the run it began from, and the seed."""
    flags, seed = config["flags"], str(config["flags"].get("seed", ""))  # "": a baseline
    ignored = {*MAY_CHANGE, "seed", "eval_block"}
    settings = {name: value for name, value in flags.items() if name not in ignored}
    settings["data"] = name_of(flags["data"])
    for name in ("encoder", "init_from"):
        if flags.get(name) and Path(flags[name], "config.json").expanduser().exists():
            source, source_seed = configuration(read_config(flags[name]))
            settings |= {f"{name}-{key}": v for key, v in source.items() if key != "pos"}
            settings[name] = "random" if settings.pop("untrained", False) else "pretrained"
            seed += f" ({name} {source_seed})" if source_seed != seed else ""
    return settings, seed


def group(runs, labels):
    """Return the rows of runs by settings, code and data, a repeated seed in a further row: named
    by --labels or by what differs, settings, then parameters and revision, then folders."""
    found = {}
    for run in runs:
        # With an encoder, the hash of the data has the encoder's, which differs between seeds
        data = "" if run.settings.get("encoder") else run.config.get("data_hash")
        key = str([run.settings, run.result.get("parameters"), run.config.get("code"), data])
        while run.seed in [other.seed for other in found.setdefault(key, [])]:
            key += "+"
        found[key].append(run)
    rows = [sorted(row, key=lambda run: int(run.seed.split()[0])) for row in found.values()]
    first = [row[0] for row in rows]
    names = differences([run.settings for run in first])
    if len(set(names)) < len(names):
        code = [{n: (r.config | r.result)[n] for n in ("parameters", "revision")} for r in first]
        names = differences([run.settings | more for run, more in zip(first, code)])
    if len(set(names)) < len(names) or "" in names or max(map(len, names)) > 60:
        names = [run.folder.resolve().name for run in first]
        cut = [name.removesuffix(f"-{run.seed}") for name, run in zip(names, first)]
        names = cut if len(set(cut)) == len(cut) else names
    chosen = [text.strip() for text in labels.split(",")] if labels else names
    fits = len(set(chosen)) == len(chosen) == len(rows)
    require(fits, f"--labels {labels}: expected a name for each of: {'; '.join(names)}")
    return [Row(label, row) for label, row in zip(chosen, rows)]


def differences(settings):
    """Return for each dictionary the entries that differ from another's: "ALiBi, window=8"."""
    names = dict.fromkeys(name for each in settings for name in each)
    names = [n for n in names if len({str(each[n]) for each in settings if n in each}) > 1]

    def spell(name, value):
        value = "none" if value == "" else value
        known = name == "pos" and value in POSITIONS
        return POSITIONS[value].label if known else f"{name.replace('_', '-')}={value}"

    return [", ".join(spell(n, each[n]) for n in names if n in each) for each in settings]


def compare_seeds(rows, names):
    """Return t-tests of every two rows over seeds: of the mean log of these perplexities, if both
    have the same vocabulary, or of the accuracy."""
    is_share = names == ["accuracy/test"]
    scale, back, unit = (np.array, np.array, " points") if is_share else (np.log, np.expm1, "%")
    means, tests = [], []  # means: of each row {seed: mean}
    for row in rows:
        numbers = {run.seed: [run.result.get(n, np.nan) for n in names] for run in row.runs}
        means.append({seed: scale(found).mean() for seed, found in numbers.items()})
    for (a, first), (b, second) in combinations(zip(rows, means), 2):
        sizes = {row.runs[0].result.get("vocab_size") for row in (a, b)}
        second = dict.fromkeys(first, second[""]) if "" in second else second  # of a baseline
        seeds = [seed for seed in first if seed in second]
        d = np.array([first[seed] - second[seed] for seed in seeds])
        if (is_share or len(sizes) == 1) and len(d) > 1 and np.ptp(d) > 1e-9:  # d varies
            words = f"{100 * back(d.mean()):+.1f} ± {100 * back(d).std(ddof=1):.1f}{unit}"
            test = "one-sample t" if b.runs[0].seed == "" else "paired t"
            p = stats.ttest_1samp(d, 0).pvalue
            tests.append([test, a.label, b.label, ", ".join(seeds), words, p])
    return tests


def compare_answers(rows):
    """Return McNemar's tests of every two rows on the same test rows, seed by seed."""
    kept = [[run for run in row.runs if "accuracy/test" in run.result] for row in rows]
    found, tests = [[run for run in runs if (run.folder / FILE).exists()] for runs in kept], []
    answers = [{run.seed: read_predictions(run.folder)[1:4] for run in runs} for runs in found]
    for (a, first), (b, second) in combinations(zip(rows, answers), 2):
        for s, t in product(first, second):
            (*given, x), (*same, y) = first[s], second[t]  # texts, classes and predictions
            if given == same and (s == t or "" in (s, t)):
                x, y = np.equal(given[1], x), np.equal(given[1], y)
                n, m = (x & ~y).sum(), (y & ~x).sum()  # only one is right
                p = stats.binomtest(n, n + m).pvalue if n + m else 1.0
                tests.append(["McNemar", a.label, b.label, s or t, f"{n} to {m} rows", p])
    return tests


def write(stem, names, rows, others, tests):
    """Write and print the table of rows and, below a line in LaTeX, others; then the tests."""
    seeds = [", ".join(run.seed for run in row.runs) or "–" for row in rows + others]
    columns = [column(name, rows + others) for name in names]
    cells = [[row.label, *each] for row, *each in zip(rows + others, seeds, *columns)]
    cells[len(rows) : len(rows)] = [None] * bool(others)
    parts = [re.split("[/@]", name) for name in names]
    heads = [" ".join([METRICS[metric], *part]) for metric, *part in parts]
    more = tabulate(tests, TESTS) if tests else UNTESTED
    print(tables.write(stem, ["row", "seeds", *heads], cells, CAPTION, 2, more))


def interval(runs, name):
    """Return the interval of a number in words, "–" for one without test rows or sentences."""
    found, rng, means = [hits_or_nats(run, name) for run in runs], np.random.default_rng(0), []
    if any(each is None for each in found):
        return "–"
    n, is_share = len(found[0][0]), name.startswith("accuracy")
    for _ in range(1000):
        times = rng.multinomial(n, np.full(n, 1 / n))  # how often each is drawn
        shares = [(times @ sums) / max(1, times @ counts) for sums, counts in found]
        means.append(100 * np.mean(shares) if is_share else np.mean(np.exp(shares)))
    low, high = np.quantile(means, (0.025, 0.975))
    return f"{low:,.1f} to {high:,.1f}"


def hits_or_nats(run, name):
    """Return for each test row whether it is right and counts, or for each line of a test set the
    nats of its tokens and their number; None if the run has neither."""
    metric, _, part = name.partition("/")
    if name in HIT and (run.folder / FILE).exists():
        _, _, gold, predicted, _, seen = map(np.array, read_predictions(run.folder))
        counts = {"test": np.ones(len(seen)), "seen": seen * 1, "unseen": 1 - seen}[part]
        return (gold == predicted) * counts, counts
    if metric == "perplexity" and run.config["kind"] == "lm":
        opened, flags = load_run(run.folder), run.config["flags"]
        lines = data.load(flags["data"]).tests[part]
        tokens = [len(ids) for ids in encode(opened.tokenizer, [line + "\n" for line in lines])]
        line_of = np.repeat(np.arange(len(lines)), tokens)[: flags["eval_test"] or None]
        with redirect_stdout(None):  # the notes about the text
            nats = [nats for _, nats in opened.losses("\n".join(lines))][: len(line_of)]
        same = abs(np.mean(nats) - np.log(run.result[name])) < 0.01
        require(same, f"--intervals: {run.folder} has another perplexity with the code of today")
        return np.bincount(line_of, nats), np.bincount(line_of)


def tabulate(tests, about):
    """Return a Markdown table of tests, followed by a text about them."""
    lines = [[*test, f"{p:.3f}" if p >= 0.001 else "<0.001"] for *test, p in tests]
    heads = ["test", "first", "second", "seeds", "first against second", "p"]
    return f"{tables.markdown(heads, lines, 5)}\n{about}"


def column(name, rows):
    """Return the cells of a number, in bold every one that reads like the best."""
    lower, counted = name.startswith(("perplexity", "joint")), name == "parameters"
    values = [row.values(name) for row in rows]
    means = [np.mean(v) for v in values if v]
    digits = 2 if lower and min(means, default=0) < 10 else 1
    digits = dict(parameters=0, pearson=3).get(name.partition("/")[0], digits)
    texts = [tables.spread(v[: 1 if counted else None], digits) if v else "–" for v in values]
    if len(means) < 2 or counted or name.endswith("/train"):  # which may be memorised
        return texts
    best = f"{min(means) if lower else max(means):,.{digits}f}"
    return [t.replace(best, f"**{best}**", 1) if t.split()[0] == best else t for t in texts]


def draw(stem, names, rows, others):
    """Draw the numbers that all rows have over steps, as .png and .pdf; others are levels."""
    panels, first = [], rows[0].runs[0]
    for name in names:
        (metric, _, part), lines = name.partition("/"), {}
        factor = 100 if metric in PERCENT else 1
        for row in rows:  # over the steps that all seeds have
            logs = [{m["step"]: m.get(name) for m in read_metrics(r.folder)} for r in row.runs]
            xs = [x for x in logs[0] if None not in [log.get(x) for log in logs]]
            lines[row.label] = xs, [[factor * log[x] for x in xs] for log in logs]
        levels = {row.label: np.mean(row.values(name)) for row in others if row.values(name)}
        if f"floor/{name}" in first.result:
            levels["best possible"] = factor * first.result[f"floor/{name}"]
        if all(xs for xs, _ in lines.values()):
            panels.append((part, METRICS[metric], lines, levels, metric == "perplexity"))
    figure = curves(panels, "epoch of the search" if "epochs" in first.config["flags"] else "step")
    for ending in (".png", ".pdf"):
        save(figure, stem.with_suffix(ending))


if __name__ == "__main__":
    main(compare, Flags)
