"""Compare all position encodings: on tasks and on text, also longer than trained on.

    python -m studies.positions --size quick
    python -m studies.positions --data path/to/speeches --long path/to/wikitext-2

Rows are encodings and options of them. Columns are the tasks' accuracy by length, the perplexity of
--data and, also in longer blocks, of --long, a probe of the last layer, masked models, the time.
Beside them: rotary positions stretched, or dropped after training (DroPE, Gelberg et al. 2025).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import compare
from data.files import read_json
from data.tasks import TASKS
from lab import figures, tables
from lab.flags import main
from model import POSITIONS, Config
from studies.sweep import SweepFlags, finish, options, run_all

ROWS = {POSITIONS[pos].label: dict(pos=pos) for pos in POSITIONS} | {
    "learned, random": dict(pos="learned", random_positions=512),
    "rotary, a quarter": dict(pos="rope", rope_share=0.25),
    "rotary and NoPE": dict(pos="rope", nope_every=2),
    "NoPE, log-scaled": dict(pos="nope", log_scale=True),
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
STRETCHED = ("linear", "ntk", "yarn")  # values of --rope-scale, of rotary models after training


@dataclass
class Flags(SweepFlags):
    data: str = "toy"  # corpus of the perplexity and of the masked models
    long: str = ""  # corpus of the perplexity by length and of the probe (default: --data)
    size: Literal["quick", "laptop"] = "laptop"  # ten minutes; two hours
    seeds: int = 3  # seeds of every row
    out: str = "out/study-positions"  # folder of all runs, tables and the figure


def study(flags):
    out, size, jobs, after, probes = Path(flags.out).expanduser(), SIZES[flags.size], [], [], []
    longer = ",".join(str(n * size["long"]["block_size"]) for n in TIMES[1:])
    long = dict(data=flags.long or flags.data) | size["long"]

    def train(jobs, name, script, init_from="", **words):
        for seed in range(flags.seeds):
            more = dict(init_from=f"{out / init_from}-{seed}") if init_from else {}
            jobs.append((f"{name}-{seed}", script, options(threads=1, seed=seed, **words, **more)))

    for label, row in ROWS.items():
        name = slug(label)
        for task, how in size["tasks"].items():
            train(jobs, f"{task}-{name}", "train_lm", data=task, **row, **how)
        train(jobs, f"lm-{name}", "train_lm", data=flags.data, **row, **size["lm"])
        ends = POSITIONS[row["pos"]].ends and "random_positions" not in row
        more = {} if ends else dict(eval_block=longer)
        train(jobs, f"long-{name}", "train_lm", **row, **long, **more)
        if is_for_encoders(row):
            train(jobs, f"masked-{name}", "train_mlm", data=flags.data, **row, **size["masked"])
        runs = [out / f"long-{name}-{seed}" for seed in range(flags.seeds)]
        probe = [*runs, *options(layers=size["long"]["n_layer"], blocks=600, steps=600)]
        probes.append((f"probe-{name}", "studies.probe", probe))
    # What can be done with a trained model, so that it reads longer texts
    same = {key: long[key] for key in ("data", "eval_train", "eval_test") if key in long}
    same |= dict(eval_block=longer, init_from="long-rotary")
    for scale in STRETCHED:
        train(after, f"long-{scale}", "train_lm", **same, steps=0, rope_scale=scale, rope_factor=4)
    train(after, "long-on", "train_lm", **same, **size["on"])
    train(after, "long-dropped", "train_lm", **same, **size["on"], pos="nope")
    jobs.sort(key=lambda job: job[0].rpartition("-")[2])  # the first seed of all rows first
    run_all(out, [jobs, after + probes], flags)
    show(out, collect(out, size, flags.seeds))


def slug(label):
    return re.sub(r"\W+", "-", label)


def is_for_encoders(row):
    try:
        POSITIONS[row["pos"]](Config(**row), causal=False)
    except ValueError:
        return False
    return "log_scale" not in row


def collect(out, size, seeds):
    """Return {group of columns: {heading: {label of a row: [value of each seed]}}}."""
    names = {label: slug(label) for label in ROWS} | {f"stretched, {s}": s for s in STRETCHED}
    names |= {"trained on": "on", "without positions, trained on": "dropped"}

    def column(run, key, factor=1):
        """Return the numbers of that name of all rows whose runs have it."""
        found = {}
        for label, name in names.items():
            folders = [out / f"{run}-{name}-{seed}" for seed in range(seeds)]
            results = [compare.read(each).result for each in folders if each.exists()]
            found[label] = [factor * result[key] for result in results if key in result]
        return {label: values for label, values in found.items() if values}

    groups, T = {}, size["long"]["block_size"]
    for task, how in size["tasks"].items():
        n = how.get("length", TASKS[task].length)
        lengths = [round(n * times) for times in TASKS[task].tests if times >= 1]
        groups[task] = {str(n): column(task, f"accuracy/{n}", 100) for n in lengths}
    groups["longer text"] = {f"{n} ×": column("long", f"joint@{n * T}") for n in TIMES}
    causal = column("lm", f"joint@{size['lm'].get('block_size', 32)}")
    groups["text"] = {"causal": causal, "masked": column("masked", "perplexity/valid")}
    probes = {}
    for label in ROWS:
        found = read_json(out / f"probe-{slug(label)}" / "result.json")["runs"].values()
        probes[label] = [run["probe"]["trained"][-1] for runs in found for run in runs]
    time = column("lm", "cpu_seconds", 1 / np.mean(column("lm", "cpu_seconds")["learned"]))
    sizes = {label: n[:1] for label, n in column("lm", "parameters", 1 / 1000).items()}
    return groups | {"beside": {"probe": probes, "time": time, "parameters (1,000)": sizes}}


def show(out, groups):
    """Write the tables tasks, texts and stretched, and heatmap.png."""
    tasks = {name: columns for name, columns in groups.items() if name in TASKS}
    texts = {name: columns for name, columns in groups.items() if name not in TASKS}
    caption = "Accuracy of the answers (%) by length of the prompt, ± over seeds."
    write(out / "tasks", tasks, ROWS, caption)
    caption = "Perplexity by length of the blocks over that of training; of --data, causal and "
    caption += "masked; error in tokens of the last layer's probe; CPU time over that of learned."
    write(out / "texts", texts, ROWS, caption)
    after = [label for label in groups["longer text"]["1 ×"] if label not in ROWS]
    caption = "Perplexity of rotary models, changed after training, by length of the blocks."
    rows = ["rotary", *after, *(label for label in ("ALiBi", "NoPE") if label in ROWS)]
    write(out / "stretched", {"": groups["longer text"]}, rows, caption)
    del texts["beside"]
    figures.save(draw(tasks | texts), out / "heatmap.png")
    finish(out, {"groups": groups})


def write(stem, groups, rows, caption):
    """Write stem.md and stem.tex, a table of these rows and of groups of columns; print it."""
    columns = [(g, h, column) for g, of_group in groups.items() for h, column in of_group.items()]
    table = [[label] for label in rows]
    for row in table:
        for values in (column.get(row[0]) for *_, column in columns):
            row.append(tables.spread(values, 1 if values[0] > 5 else 2) if values else "–")
    header = ["positions", *(f"{group} {heading}".strip() for group, heading, _ in columns)]
    print(tables.write(stem, header, table, caption))


@figures.styled(grid=False)
def draw(groups):
    """Return a heatmap of all rows. Dark: accuracy, or the column's best perplexity over theirs."""
    columns = [(g, h, column) for g, of_group in groups.items() for h, column in of_group.items()]
    figure, axis = figures.new_figure(figsize=(0.42 * len(columns) + 2, 0.26 * len(ROWS) + 1))
    good = np.full((len(ROWS), len(columns)), np.nan)
    for x, (group, _, column) in enumerate(columns):
        means = {label: np.mean(values) for label, values in column.items() if label in ROWS}
        for y, label in enumerate(ROWS):
            if label in means:
                share = means[label] / 100 if group in TASKS else min(means.values()) / means[label]
                good[y, x] = share if group in TASKS else max(0, 2 * share - 1)
                style = dict(color="white" if good[y, x] > 0.6 else "black", fontsize=7)
                axis.text(x, y, f"{means[label]:.0f}", ha="center", va="center", **style)
    axis.imshow(good, cmap="Blues", vmin=0, vmax=1.1, aspect="auto")
    axis.set_yticks(range(len(ROWS)), ROWS)
    axis.set_xticks(range(len(columns)), [heading for _, heading, _ in columns])
    axis.tick_params(length=0, bottom=False, labelbottom=False, labeltop=True, labelsize=8)
    axis.spines[:].set_visible(False)
    start = 0
    for group, of_group in groups.items():
        axis.axvline(start - 0.5, color="white", linewidth=3)
        middle, start = start + len(of_group) / 2 - 0.5, start + len(of_group)
        axis.annotate(group, (middle, -0.5), (0, 16), textcoords="offset points", ha="center")
    return figure


if __name__ == "__main__":
    main(study, Flags)
