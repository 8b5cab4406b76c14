"""Compare all position encodings: on tasks and on text, also longer than trained on.

    python -m studies.positions --size quick
    python -m studies.positions --data path/to/speeches --long path/to/wikitext-2
    python -m studies.positions --stored docs/figures/positions.json --out docs/figures

Rows are encodings and options of them. Columns are the tasks' accuracy by length (of symbols, each
after the right ones; exact/LENGTH in a run's result.json is of whole answers), the perplexity of
--data and, also in longer blocks, of --long, a probe of the last layer, masked models, the time.
Beside them: rotary positions stretched, or dropped after training (DroPE, Gelberg et al. 2025).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.patches import Rectangle

from data.files import read_json
from data.tasks import TASKS
from lab import figures, tables
from lab.flags import Data, Folder, main
from lab.rows import read_finished_run
from model import POSITIONS
from nets.build import Options, check_options
from studies.sweep import Job, SweepFlags, finish, options, run_all

ROWS = {POSITIONS[pos].label: dict(pos=pos) for pos in POSITIONS} | {
    "learned, random": dict(pos="learned", random_positions=512),
    "rotary, a quarter": dict(pos="rope", rope_share=0.25),
    "rotary and NoPE": dict(pos="rope", nope_every=2),
    "NoPE, log-scaled": dict(pos="nope", log_scale=True),
    "LSTM": dict(body="lstm", n_layer=2, n_embd=128, lr=3e-3),
    # On tasks that say which symbols belong together
    "rotary, coupled": dict(pos="rope", couple=True),
    "sinusoidal, coupled": dict(pos="sinusoidal", couple=True),
    "learned, coupled": dict(pos="learned", couple=True),
}
# tasks, lm, long, masked: flags of their runs; those of tasks are their own. on: of the second
# training of the table of stretched and dropped positions
SHAPE = dict(n_layer=2, n_head=4, n_embd=64, n_ffn=256, activation="gelu")
# fmt: off
SIZES = {
    "quick": dict(
        tasks=dict(copy=dict(length=8, steps=300)),
        lm=SHAPE | dict(steps=200), masked=SHAPE | dict(steps=200, batch_size=32, lr=2e-3),
        long=SHAPE | dict(block_size=32, lr=2e-3, steps=200), on=dict(steps=50, lr=2e-3)),
    "laptop": dict(
        tasks=dict(copy={}, reverse={}, recall={}, flipflop={}),
        lm=SHAPE | dict(steps=500), masked=SHAPE | dict(steps=1000, batch_size=32, lr=2e-3),
        long=SHAPE | dict(tokenizer="bpe", vocab_size=2000, block_size=64, lr=3e-3, warmup=50,
                          steps=1000, eval_every=1000, eval_train=20_000, eval_test=40_000),
        on=dict(steps=200, lr=3e-3)),
}
# fmt: on
TIMES = 1, 2, 4, 8  # lengths of evaluation over that of training
CHANCE = dict(copy=100 / 26, reverse=100 / 26, recall=10, flipflop=50)  # % right by guessing
BRIEF_ROWS = ("learned", "sinusoidal", "ALiBi", "NoPE", "rotary", "KERPLE")
BRIEF_GROUPS = ("copy", "flipflop", "longer text")
NOTE = """Tasks: accuracy (%) by length of the prompts; the first is the longest in training.
Texts: perplexity by length over that of training. Hatched: not possible."""
NOT_POSSIBLE = dict(facecolor="white", edgecolor="0.6", hatch="////", linewidth=0)
STRETCHED = ("linear", "ntk", "yarn")  # values of --rope-scale, of rotary models after training


@dataclass
class Flags(SweepFlags):
    data: Data = "toy"  # corpus of the perplexity and of the masked models
    long: Data = ""  # corpus of the perplexity by length and of the probe; '': --data
    size: Literal["quick", "laptop"] = "laptop"  # ten minutes; two hours
    seeds: int = 3  # seeds of every row
    out: Folder = "out/study-positions"  # folder of all runs, tables and figures
    stored: str = ""  # only draw the figures, from this file with numbers of an earlier study


def study(flags):
    out = Path(flags.out).expanduser()
    if flags.stored:
        write_figures(out, read_json(Path(flags.stored).expanduser())["groups"])
        return
    size = SIZES[flags.size]
    first, second = make_jobs(flags, size, out)
    run_all(out, [first, second], flags)
    groups = collect(out, size, flags.seeds)
    write_results(out, groups)
    finish(out, {"groups": groups})


def make_jobs(flags, size, out):
    """Return the jobs of all rows, and the jobs that need their models."""
    longer = ",".join(str(times * size["long"]["block_size"]) for times in TIMES[1:])
    long = dict(data=flags.long or flags.data) | size["long"]
    first = []
    second = []
    for label, row in ROWS.items():
        name = slug(label)
        for task, task_flags in size["tasks"].items():
            if "couple" in row and not TASKS[task].restarts:
                continue
            words = options(data=task, **(task_flags | row))
            first += of_all_seeds(f"{task}-{name}", "train_lm", words, flags.seeds)
        if "couple" in row:
            continue
        words = options(data=flags.data, **(size["lm"] | row))
        first += of_all_seeds(f"lm-{name}", "train_lm", words, flags.seeds)
        words = options(**(long | row))
        if "pos" not in row or not POSITIONS[row["pos"]].ends or "random_positions" in row:
            words += options(eval_block=longer)
        first += of_all_seeds(f"long-{name}", "train_lm", words, flags.seeds)
        if "body" in row:
            continue  # there is no encoder, and no blocks to probe
        if is_for_encoders(row):
            words = options(data=flags.data, **(size["masked"] | row))
            first += of_all_seeds(f"masked-{name}", "train_mlm", words, flags.seeds)
        runs = [out / f"long-{name}-{seed}" for seed in range(flags.seeds)]
        words = [*runs, *options(layers=size["long"]["n_layer"], blocks=600, steps=600)]
        second.append(Job(f"probe-{name}", "studies.probe", words))
    first.sort(key=lambda job: job.name.rpartition("-")[2])  # the first seed of all rows first
    changes = jobs_after_training(flags, size, out, long, longer)
    return first, changes + second


def jobs_after_training(flags, size, out, long, longer):
    """Return the jobs that change trained rotary models, so that they read longer texts."""
    same = {name: long[name] for name in ("data", "eval_train", "eval_test") if name in long}
    words = options(**same, eval_block=longer)
    trained = out / "long-rotary"
    jobs = []
    for scale in STRETCHED:
        stretched = words + options(steps=0, rope_scale=scale, rope_factor=4)
        jobs += of_all_seeds(f"long-{scale}", "train_lm", stretched, flags.seeds, trained)
    trained_on = words + options(**size["on"])
    jobs += of_all_seeds("long-on", "train_lm", trained_on, flags.seeds, trained)
    dropped = trained_on + options(pos="nope")
    jobs += of_all_seeds("long-dropped", "train_lm", dropped, flags.seeds, trained)
    return jobs


def of_all_seeds(name, module, words, seeds, init_from=None):
    """Return a job for each seed. init_from: the run to start from, without -SEED."""
    jobs = []
    for seed in range(seeds):
        words_of_seed = options(threads=1, seed=seed) + words
        if init_from:
            words_of_seed += options(init_from=f"{init_from}-{seed}")
        jobs.append(Job(f"{name}-{seed}", module, words_of_seed))
    return jobs


def slug(label):
    """Return a label as part of a folder's name."""
    return re.sub(r"\W+", "-", label)


def is_for_encoders(row):
    """Return whether an encoder can have the options of a row."""
    try:
        check_options(Options(**row), causal=False)
    except ValueError:
        return False
    return True


def collect(out, size, seeds):
    """Return {group of columns: {heading: {label of a row: [value of each seed]}}}; instead of the
    values None where a row is not possible."""
    groups = {}
    for task, flags in size["tasks"].items():
        length = flags.get("length", TASKS[task].length)
        groups[task] = {}
        for times in TASKS[task].tests:
            n = round(length * times)
            if times >= 1:
                groups[task][str(n)] = read_column(out, seeds, task, f"accuracy/{n}", 100)
    T = size["long"]["block_size"]
    groups["longer text"] = {}
    for times in TIMES:
        column = read_column(out, seeds, "long", f"joint@{times * T}")
        groups["longer text"][f"{times} ×"] = column
    T = size["lm"].get("block_size", 32)
    groups["text"] = {
        "causal": read_column(out, seeds, "lm", f"joint@{T}"),
        "masked": read_column(out, seeds, "masked", "perplexity/valid"),
    }
    seconds = read_column(out, seeds, "lm", "cpu_seconds")
    factor = 1 / np.mean(seconds["learned"])
    parameters = read_column(out, seeds, "lm", "parameters", 1 / 1000)
    groups["beside"] = {
        "probe": read_probes(out),
        "time": read_column(out, seeds, "lm", "cpu_seconds", factor),
        "parameters (1,000)": {label: parameters[label][:1] for label in ROWS if parameters[label]},
    }
    return groups


def read_column(out, seeds, kind, number, factor=1):
    """Return {label: [factor * number of each seed]}, with None if runs lack the number. kind: that
    of the runs, a task, lm, long or masked."""
    names = {label: slug(label) for label in ROWS}  # label: as in names of folders
    for scale in STRETCHED:
        names[f"stretched, {scale}"] = scale
    names["trained on"] = "on"
    names["without positions, trained on"] = "dropped"
    column = {}
    for label, name in names.items():
        values = []
        for seed in range(seeds):
            folder = out / f"{kind}-{name}-{seed}"
            if not folder.exists():
                continue
            result = read_finished_run(folder).result
            if number in result:
                values.append(factor * result[number])
        if values:
            column[label] = values
        elif label in ROWS:
            column[label] = None
    return column


def read_probes(out):
    """Return {label of a row: errors of its probes of the last layer, one per seed}."""
    errors = {}
    for label in ROWS:
        path = out / f"probe-{slug(label)}" / "result.json"
        if path.exists():
            errors[label] = []
            for runs in read_json(path)["runs"].values():
                errors[label] += [run["probe"]["trained"][-1] for run in runs]
    return errors


def write_results(out, groups):
    """Write and print the tables tasks, texts and stretched; write the figures."""
    tasks = {name: columns for name, columns in groups.items() if name in TASKS}
    texts = {name: columns for name, columns in groups.items() if name not in TASKS}
    caption = "Accuracy (%) of single symbols of the answers, each predicted after the right ones, "
    caption += "by length of the prompt, ± over seeds."
    write_table(out / "tasks", tasks, ROWS, caption)
    caption = "Perplexity by length of the blocks over that of training; of --data, causal and "
    caption += "masked; error in tokens of the last layer's probe; CPU time over that of learned."
    write_table(out / "texts", texts, ROWS, caption)
    changed = [label for label in groups["longer text"]["1 ×"] if label not in ROWS]
    others = [label for label in ("ALiBi", "NoPE") if label in ROWS]
    caption = "Perplexity of rotary models, changed after training, by length of the blocks."
    longer = {"": groups["longer text"]}
    write_table(out / "stretched", longer, ["rotary", *changed, *others], caption)
    write_figures(out, groups)


def write_figures(out, groups):
    """Write positions-heatmap.png, of all rows and columns, and positions-brief.png, of few."""
    groups = {name: columns for name, columns in groups.items() if name != "beside"}
    measured = set()  # labels of the rows with a number
    for _, _, column in columns_of(groups):
        measured.update(column)
    rows = [label for label in ROWS if label in measured]
    figures.save(draw(groups, rows, size=7), out / "positions-heatmap.png")
    brief = {}
    for name in BRIEF_GROUPS:
        if name in groups:
            headings = list(groups[name])
            brief[name] = {
                heading: groups[name][heading] for heading in (headings[0], headings[-1])
            }
    rows = [label for label in BRIEF_ROWS if label in rows]
    figures.save(draw(brief, rows, size=10), out / "positions-brief.png")


def columns_of(groups):
    """Return the columns of all groups in order: [(group, heading, {label: values}), ...]."""
    columns = []
    for group, of_group in groups.items():
        for heading, column in of_group.items():
            columns.append((group, heading, column))
    return columns


def write_table(stem, groups, rows, caption):
    """Write stem.md and stem.tex, a table of these rows and of groups of columns; print it."""
    columns = columns_of(groups)
    table = []
    for label in rows:
        cells = [label]
        for _, _, column in columns:
            values = column.get(label)
            if not values:
                cells.append("–")
            else:
                digits = 1 if values[0] > 5 else 2
                cells.append(tables.spread(values, digits))
        table.append(cells)
    header = ["positions"]
    for group, heading, _ in columns:
        header.append(f"{group} {heading}".strip())
    print(tables.write(stem, header, table, caption))


@figures.styled(grid=False)
def draw(groups, rows, size):
    """Return a heatmap of rows, with text of a size in points. Dark is good: accuracies above
    chance, and the column's best perplexity over theirs. Hatched: not possible."""
    columns = columns_of(groups)
    height = (len(rows) + 4.5) * size / 36  # inches; a row is two lines high
    figure, axis = figures.new_figure(figsize=(figures.WIDTH, height))
    darkness = np.full((len(rows), len(columns)), np.nan)
    means = {}  # (row, column): mean over seeds
    for x, (group, _, column) in enumerate(columns):
        of_column = {label: np.mean(values) for label, values in column.items() if values}
        for y, label in enumerate(rows):
            if label in of_column:
                means[y, x] = of_column[label]
                darkness[y, x] = darkness_of(of_column[label], group, min(of_column.values()))
            elif label in column:
                axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **NOT_POSSIBLE))
    image = axis.imshow(darkness, cmap="Blues", vmin=0, vmax=1.1, aspect="auto")
    for (y, x), mean in means.items():
        color = figures.choose_ink(image.to_rgba(darkness[y, x]))
        axis.text(x, y, f"{mean:.0f}", ha="center", va="center", color=color, fontsize=size)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_xticks(range(len(columns)), [heading for _, heading, _ in columns])
    axis.tick_params(length=0, bottom=False, labelbottom=False, labeltop=True, labelsize=size)
    above = 1.8 * size  # points between the cells and the name of a group
    for heading in axis.get_xticklabels():
        if len(heading.get_text()) > 4:  # wider than a column
            heading.set_rotation(90)
            above = 5 * size
    axis.spines[:].set_visible(False)
    start = 0  # of the group
    for group, of_group in groups.items():
        axis.axvline(start - 0.5, color="white", linewidth=3)
        place = start + len(of_group) / 2 - 0.5, 1
        words = dict(textcoords="offset points", ha="center", fontsize=size + 1)
        axis.annotate(group, place, (0, above), ("data", "axes fraction"), **words)
        start += len(of_group)
    axis.set_xlabel(NOTE, fontsize=size)
    return figure


def darkness_of(mean, group, best):
    """Return 0 for an accuracy (%) that is chance or a perplexity twice the best one, 1 for 100% or
    the best perplexity."""
    if group in TASKS:
        chance = CHANCE.get(group, 0)
        return max(0, (mean - chance) / (100 - chance))
    return max(0, 2 * best / mean - 1)


if __name__ == "__main__":
    main(study, Flags)
