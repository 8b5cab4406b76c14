"""Compare runs in one table and one figure: means over seeds, with baselines beside them.

    python compare.py out/lm-speeches-* out/baselines-speeches

Runs that differ only in the seed are one row. --out gets compare.md, .tex, .png and .pdf, and the
same over longer blocks (train-short-test-long) for runs with --eval-block.
"""

import json
import math
import re
import warnings
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tyro
from scipy import stats

from data import name_of
from data.files import UserError
from lab import tables
from lab.figures import curves, save
from lab.flags import MAY_CHANGE, main
from lab.load import read_config, read_metrics, read_result
from lab.predictions import FILE, average_predictions, read_predictions
from model import POSITIONS

# Columns in this order, and their headings. joint: all test sets together, by length of the blocks
METRICS = dict(perplexity="perplexity", joint="perplexity at", accuracy="accuracy (%)")
METRICS |= dict(macro_f1="macro-F1 (%)", exact="exact (%)", bleu="BLEU", chrf="chrF")
METRICS |= dict(parameters="parameters")
# Flags that decide what is predicted, where that is not the test sets or all test rows
DECIDE = "task languages mask_rate mask_unit mean_span split valid block_size".split()
CAPTION = """Mean ± sample standard deviation over seeds. The best of a column is bold, even if it
may be chance. Perplexities of masked and causal LMs are not comparable. Classifiers: valid is the
best epoch of the search, the rest the final model; seen rows are also in the training files."""
TESTS = """p < 0.05 is significant, without a correction for the number of pairs. Perplexities:
paired t-test over seeds on the mean log perplexity of the test sets. Classifiers: McNemar's exact
test on the test rows that only one of the two gets right."""


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders, also of baselines.py, in table order
    out: str = "out/compare"  # folder of the tables and figures; older ones are replaced
    labels: str = ""  # one name per row, joined by commas; default: flags that differ, or folders
    together: bool = False  # also evaluate the classifiers as one, by their mean log-probability


@dataclass
class Row:
    """Runs that differ in nothing but the seed; or a reference, drawn as a horizontal line."""

    label: str
    runs: list  # with folder, result, seed, config, settings: see `read`
    ranked: bool = True  # can be the best of a column

    def values(self, name):
        """Return {seed: number}, in percent if it is shown so, {} unless all seeds have it."""
        found = {r.seed: factor(name) * r.result[name] for r in self.runs if name in r.result}
        return found if len(found) == len(self.runs) else {}


def compare(flags):
    out = Path(flags.out).expanduser()
    runs = [read(folder) for folder in dict.fromkeys(flags.runs)]
    trained = [run for run in runs if run.config["kind"] != "baselines"]
    if not trained:
        raise UserError("give the folder of at least one run of a train_*.py script")
    if (out / "config.json").exists():
        raise UserError(f"--out {out}: is a run; choose another folder")
    for run in runs:
        check_comparable(trained[0], run)
    rows = group(trained, flags.labels)
    others = references(runs, trained[0].config)
    out.mkdir(parents=True, exist_ok=True)
    if flags.together:
        others.insert(0, answer_together(rows, out))
    found = dict.fromkeys(n for row in rows for n in row.runs[0].result if row.values(n))
    names = [n for m in METRICS for n in found if n.partition("/")[0] == m and "@" not in n]
    perplexities = [n for n in names if n.startswith("perplexity/") and n != "perplexity/train"]
    measured = [n for n in perplexities if n != "perplexity/valid"] or perplexities
    tests = compare_seeds(rows, measured) + compare_answers(rows + others)
    write(out / "compare", names, rows, others, tests)
    draw(out / "compare", names, rows, others)

    stem = out / "train-short-test-long"
    for path in out.glob(f"{stem.name}.*"):  # of an earlier comparison
        path.unlink()
    lengths = [{int(n[6:]) for n in run.result if n.startswith("joint@")} for run in trained]
    if max(map(len, lengths)) > 1:
        lengths = sorted(set.union(*lengths))
        joint = [f"joint@{n}" for n in lengths]
        write(stem, joint, rows, [], compare_seeds(rows, joint[-1:]))
        draw(stem, perplexities, rows, [], lengths)
    print(f"{len(rows)} rows of {len(trained)} runs in {out}: tables and figures")


def read(folder):
    """Return a finished run, with perplexities named NAME@LENGTH also for its own block size, and
    joint@LENGTH of all test sets together. Raises UserError if it is not finished."""
    config, result = read_config(folder), read_result(folder)
    settings, seed = configuration(config)
    result = {name: value for name, value in result.items() if isinstance(value, int | float)}
    if size := config["flags"].get("block_size"):
        own = [name for name in result if re.fullmatch("perplexity/[^@]+", name)]
        result |= {f"{name}@{size}": result[name] for name in own}
        sizes = test_sizes(result)
        for at in {name.partition("@")[2] for name in result if "@" in name}:
            found = [result.get(f"perplexity/{name[7:]}@{at}") for name in sizes]
            if found and all(found):
                mean = np.average(np.log(found), weights=list(sizes.values()))
                result[f"joint@{at}"] = math.exp(mean)
    about = dict(folder=Path(folder).expanduser(), config=config, settings=settings)
    return SimpleNamespace(**about, result=result, seed=seed)


def test_sizes(result):
    """Return the entries of a result that count the tokens of its test sets."""
    valid = "tokens/train", "tokens/valid"
    return {n: v for n, v in result.items() if n.startswith("tokens/") and n not in valid}


def configuration(config):
    """Return the settings that make a row, and the seed as text. A run of --encoder or --init-from
    counts by its own settings, so that pretraining with several seeds is one row."""
    flags, seed = config["flags"], str(config["flags"].get("seed", 0))
    ignored = MAY_CHANGE - {"dtype"} | {"seed", "eval_block"}
    settings = {name: value for name, value in flags.items() if name not in ignored}
    settings["data"] = name_of(flags["data"])
    for name in ("encoder", "init_from"):
        if flags.get(name) and Path(flags[name], "config.json").exists():
            source, source_seed = configuration(read_config(flags[name]))
            settings |= {f"{name}-{key}": v for key, v in source.items() if key != "pos"}
            settings[name] = "pretrained"
            seed += f" ({name} {source_seed})" if source_seed != seed else ""
    return settings, seed


def check_comparable(first, run):
    """Raise UserError if two runs measure different things."""
    kind, own = first.config["kind"], run.config["kind"]
    counted = kind in ("lm", "classifier")  # by baselines.py
    pairs = {"kind": (kind, kind if counted and own == "baselines" else own)}
    flags = ["data"] if counted else ["data", *DECIDE]
    pairs |= {n: (first.settings.get(n), run.settings.get(n)) for n in flags}
    numbers = [] if kind == "classifier" else ["vocab_size", *test_sizes(first.result)]
    pairs |= {n: (first.result.get(n), run.result.get(n)) for n in numbers}
    for name, (a, b) in pairs.items():
        if a != b:
            both = f"{first.folder} ({name} {a}) and {run.folder} ({name} {b})"
            raise UserError(f"{both}: not comparable; give runs that agree in it")


def group(runs, labels):
    """Return the rows of runs by settings and code, a repeated seed in a further row. They are
    named by --labels, by the settings that differ, else also by parameters and revision, or by
    folders."""
    found = {}
    for run in runs:
        key = json.dumps([run.settings, run.result.get("parameters"), run.config.get("code")])
        while run.seed in [other.seed for other in found.setdefault(key, [])]:
            key += "+"
        found[key].append(run)
    rows = [sorted(row, key=lambda run: int(run.seed.split()[0])) for row in found.values()]
    first = [row[0] for row in rows]
    code = [{n: (r.config | r.result).get(n) for n in ("parameters", "revision")} for r in first]
    for more in [{}] * len(first), code:
        names = differences([run.settings | each for run, each in zip(first, more)])
        if len(set(names)) == len(names):
            break
    if len(set(names)) < len(names) or "" in names or max(map(len, names)) > 60:
        names = [run.folder.resolve().name.removesuffix(f"-{run.seed}") for run in first]
    chosen = [text.strip() for text in labels.split(",")] if labels else names
    if not len(set(chosen)) == len(chosen) == len(rows):
        raise UserError(f"--labels {labels}: expected a name for each of: {'; '.join(names)}")
    for label, name in zip(chosen, names) if labels else ():
        print(f"label {label}: {name}")
    return [Row(label, row) for label, row in zip(chosen, rows)]


def differences(settings):
    """Return for each dictionary the entries that differ from another's: "ALiBi, window=8"."""
    names = dict.fromkeys(name for each in settings for name in each)
    names = [n for n in names if len({str(each[n]) for each in settings if n in each}) > 1]

    def spell(name, value):
        value = "none" if value == "" else value
        return POSITIONS[value].label if name == "pos" else f"{name.replace('_', '-')}={value}"

    return [", ".join(spell(n, each[n]) for n in names if n in each) for each in settings]


def references(runs, config):
    """Return a Row for each baseline, and for the best possible if the corpus knows it."""
    found, floor = {}, {}
    for run in runs:
        floor |= {n[6:]: value for n, value in run.result.items() if n.startswith("floor/")}
        if run.config["kind"] == "baselines":
            flags = run.config["flags"]
            name = f"{flags['order']}-gram" if config["kind"] == "lm" else "naive Bayes"
            if config["kind"] != "lm" and flags.get("split") != config["flags"].get("split"):
                name += f", split={flags['split']}"
            name += f", {run.folder.name}" * (name in found)
            found[name] = Row(name, [SimpleNamespace(**vars(run) | {"seed": ""})])
    best = SimpleNamespace(folder=None, result=floor, seed="")
    return [*found.values(), *([Row("best possible", [best], ranked=False)] if floor else [])]


def answer_together(rows, out):
    """Return a Row of what all rows answer together with each seed, or a single row with all its
    seeds. The answers are written to OUT/together-SEED/predictions.tsv."""
    members, runs = {}, []  # {seed: folders}
    for run in [run for row in rows for run in row.runs]:
        members.setdefault(run.seed if len(rows) > 1 else "", []).append(run.folder)
    for seed, folders in members.items():
        if len(folders) >= max(2, len(rows)):
            folder = out / re.sub(r"\W+", "-", f"together-{seed}").strip("-")
            folder.mkdir(parents=True, exist_ok=True)
            answers = average_predictions(folders)
            answers.write(folder)
            scores = answers.scores() | answers.accuracies()
            runs.append(SimpleNamespace(folder=folder, result=scores, seed=seed))
    if not runs:
        raise UserError("--together: give runs with the same seeds, or several seeds of one")
    return Row("together", runs)


def compare_seeds(rows, names):
    """Test every two rows on the mean log of the perplexities of these names, over the seeds that
    both have."""
    tests = []
    for a, b in combinations(rows, 2):
        found = [[row.values(name) for name in names] for row in (a, b)]
        seeds = [seed for seed in found[0][0] if seed in found[1][0]] if names else []
        if len(seeds) > 1 and all(map(all, found)):
            logs = [np.mean([[math.log(n[s]) for s in seeds] for n in of], axis=0) for of in found]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of differences that are all alike
                p = np.nan_to_num(stats.ttest_rel(*logs).pvalue, nan=1.0)
            mean, each = (
                100 * np.expm1(d) for d in (np.mean(logs[0] - logs[1]), logs[0] - logs[1])
            )
            words = f"{mean:+.1f} ± {each.std(ddof=1):.1f}%"
            tests.append(["paired t", a.label, b.label, ", ".join(seeds), words, p])
    return tests


def compare_answers(rows):
    """Test every two rows on their answers to the same test rows, seed by seed."""
    answers = {}  # {label: {seed: (texts and classes, whether right)}}
    for row in rows:
        for run in row.runs:
            if run.folder and (run.folder / FILE).exists():
                texts, gold, predicted, *_ = zip(*read_predictions(run.folder))
                found = (texts, gold), np.equal(gold, predicted)
                answers.setdefault(row.label, {})[run.seed] = found
    tests = []
    for a, b in combinations(answers, 2):
        for s, t in product(answers[a], answers[b]):
            (rows, first), (same, second) = answers[a][s], answers[b][t]
            if (s == t or "" in (s, t)) and rows == same:
                n, m = (first & ~second).sum(), (second & ~first).sum()  # only one is right
                p = stats.binomtest(n, n + m).pvalue if n + m else 1.0
                tests.append(["McNemar", a, b, s or t, f"{n} to {m} rows", p])
    return tests


def factor(name):
    """Return what a number is multiplied with to be shown: 100 for percent."""
    return 100 if "%" in METRICS.get(re.split("[/@]", name)[0], "") else 1


def write(stem, names, rows, others, tests):
    """Write and print the table of rows, a line, and others; the tests follow in Markdown."""
    seeds = [", ".join(run.seed for run in row.runs) or "–" for row in rows + others]
    columns = [column(name, rows + others) for name in names]
    cells = [[row.label, *each] for row, *each in zip(rows + others, seeds, *columns)]
    cells[len(rows) : len(rows)] = [None] * bool(others)
    parts = [re.split("[/@]", name) for name in names]
    heads = [" ".join([METRICS[metric], *part]) for metric, *part in parts]
    lines = [[*test, f"{p:.3f}" if p >= 0.001 else "<0.001"] for *test, p in tests]
    more = ["test", "first", "second", "seeds", "first against second", "p"]
    more = f"{tables.markdown(more, lines, 5)}\n{TESTS}" if tests else ""
    print(tables.write(stem, ["row", "seeds", *heads], cells, CAPTION, 2, more))


def column(name, rows):
    """Return the cells of a number, in bold every one that reads like the best. Training data has
    no best, since a low training loss can be memorisation."""
    lower, counted = name.startswith(("perplexity", "joint")), name == "parameters"
    values = [list(row.values(name).values()) for row in rows]
    means = [np.mean(v) for v, row in zip(values, rows) if v and row.ranked]
    digits = 0 if counted else 2 if lower and min(means, default=0) < 10 else 1
    texts = [tables.spread(v[: 1 if counted else None], digits) if v else "–" for v in values]
    if len(means) < 2 or counted or name.endswith("/train"):
        return texts
    best = f"{min(means) if lower else max(means):,.{digits}f}"
    is_best = [row.ranked and text.split()[0] == best for row, text in zip(rows, texts)]
    return [t.replace(best, f"**{best}**", 1) if bold else t for t, bold in zip(texts, is_best)]


def draw(stem, names, rows, others, lengths=()):
    """Draw the numbers that all rows have, over steps or over lengths, as .png and .pdf."""
    panels = []
    for name in names:
        metric, _, part = name.partition("/")
        lines = {row.label: points(row, name, lengths) for row in rows}
        found = {row.label: list(row.values(name).values()) for row in others}
        levels = {label: np.mean(values) for label, values in found.items() if values}
        if all(xs for xs, _ in lines.values()):
            panels.append((part, METRICS[metric], lines, levels, metric == "perplexity"))
    epochs = "epochs" in rows[0].runs[0].config["flags"]
    figure = curves(panels, "tokens" if lengths else "epoch" if epochs else "step")
    for axis in figure.axes if lengths else ():
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, lengths)
    for ending in (".png", ".pdf"):
        save(figure, stem.with_suffix(ending))


def points(row, name, lengths):
    """Return (xs, [ys of each seed]) of a number, over the steps or the lengths all seeds have."""
    logs = [{m["step"]: m.get(name) for m in read_metrics(run.folder)} for run in row.runs]
    if lengths:
        logs = [{n: run.result.get(f"{name}@{n}") for n in lengths} for run in row.runs]
    xs = [x for x in logs[0] if all(log.get(x) is not None for log in logs)]
    return xs, [[factor(name) * log[x] for x in xs] for log in logs]


if __name__ == "__main__":
    main(compare, Flags)
