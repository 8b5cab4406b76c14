"""Draw the attention of every head on your own sentences, and check the weights.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/lm-a out/lm-b --layer 1 --head 2      two runs side by side
    python attention_maps.py out/lm-a --positions --html       also the encoding, and a page

Each text becomes a figure; texts of a thread end with the comment. The exit code is 1 if a check
fails. Weights show which vectors a head mixed, not why the model answered as it did.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import Positional, UseAppendAction

from data import find_task
from lab import load_run
from lab.figures import save
from lab.flags import main, require
from lab.inside.attention import PARTS, head_means, record
from lab.inside.maps import draw_maps
from lab.load import read_config
from lab.machine import set_up_device

TEXTS = [  # examples, if no --text is given
    "This is a test sentence",
    "When the members of the Senate return to Washington in January, "
    "we will ask them to work with us on schools, jobs and peace.",
]
TOY_TEXTS = [  # of words of the generated corpora; for threads and gaps also the last
    "Stand with the restless teachers.",
    "Members of the council, the clever clerk who counts the streets without a mistake "
    "has proved that ambition is worth more than a cart of gold.",
    "Stand with the [MASK] teachers.",
]


@dataclass
class Flags:
    runs: Positional[list[str]]  # run folders; several are drawn side by side
    text: UseAppendAction[list[str]] = field(default_factory=list)  # to draw; may be repeated
    layer: int | None = None  # draw only this layer, counted from 1
    head: int | None = None  # draw only this head, counted from 1
    mean: bool = False  # draw the mean of each layer's heads
    numbers: bool = False  # write the weights into the cells (texts of up to 12 tokens)
    positions: bool = False  # also draw what the position encoding does
    html: bool = False  # also write a page per text or thread to explore heads in a browser
    save_weights: bool = False  # also write words and weights as .npz, one file per attention
    format: Literal["png", "pdf", "svg"] = "png"  # file format of the figures
    out: str = ""  # folder of the figures (default: maps/ in the first run's folder)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores


def show(flags):
    sizes = [read_config(folder)["model"] for folder in flags.runs]
    require(sizes, "give the folder of a run, such as out/lm-toy-alibi-0")
    require(not flags.html or len(sizes) <= 2, "--html: compares at most two runs; give one or two")
    for name in ("layer", "head"):
        most, n = min(size[f"n_{name}"] for size in sizes), getattr(flags, name)
        require(n is None or 1 <= n <= most, f"--{name} {n}: the runs have {name}s 1 to {most}")
    device = set_up_device(flags.device, flags.threads, n_embd=max(s["n_embd"] for s in sizes))
    runs = [load_run(folder, device=device) for folder in flags.runs]
    names = {run: run.folder.resolve().name for run in runs}
    require(len(set(names.values())) == len(runs), "two runs have the same name; rename a folder")
    toy = all(run.config["flags"].get("data") in ("toy", "toy-pairs") for run in runs)
    examples = TOY_TEXTS[:2] if toy else TEXTS
    if any(run.kind == "thread" or run.first_gap is not None for run in runs):
        examples = TOY_TEXTS if runs[0].kind == "thread" else TOY_TEXTS[2:]
    if task := find_task(runs[0].config["flags"].get("data")):
        examples = [" ".join(task.example(5))]
    texts, views = flags.text or examples[: 1 if flags.numbers else None], []
    for run in runs:
        print(f"{run.folder}: {run.describe()}")
        found = record(run, texts)
        for part in dict.fromkeys(view.part for view in found):
            report([view for view in found if view.part == part])
        views += found

    folder = Path(flags.out).expanduser() if flags.out else runs[0].folder / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    only = [f"{name}-{n}" for name in ("layer", "head") if (n := getattr(flags, name))]
    only, together = only + ["mean"] * flags.mean, "-".join(map(slug, names.values()))[:120]
    for number, text in enumerate(texts):
        columns, shown = {}, [view for view in views if view.number == number]
        for view in shown:  # a column for each run, its attentions stacked
            heading = [names[view.run], view.run.describe()] * (view.run not in columns)
            heading += [PARTS[view.part]] * bool(view.part)
            columns.setdefault(view.run, []).append((heading, view))
        if not shown:  # a thread run leaves out distant ancestors
            continue
        stem = f"{number + 1}-{slug(text)}"
        path = folder / f"map-{'-'.join([stem, *only, together])}.{flags.format}"
        how = list(columns.values()), flags.layer, flags.head, flags.mean, flags.numbers
        save(draw_maps(*how), path)
        print(path)
        if flags.html and text == shown[0].title:  # a thread has one page, with its last text
            path = folder / f"attention-{stem}-{together}.html"
            one, *other = {view.run: view for view in shown}.values()
            one.html(path, *other)
            print(f"to explore the heads, open {path} in a browser")
        for view in shown if flags.save_weights else ():
            arrays = {n: getattr(view, n) for n in ("keys", "weights", "content", "position")}
            arrays = {n: x for n, x in arrays.items() if x is not None}
            of = slug(names[view.run]) + f"-{view.part}" * bool(view.part)
            np.savez_compressed(folder / f"map-{stem}-{of}.npz", queries=view.words, **arrays)
    for run in runs if flags.positions else ():
        path = folder / f"positions-{slug(names[run])}.{flags.format}"
        if figure := run.positions():
            save(figure, path)
        print(path if figure else f"{run.folder}: no position encoding to draw")
    if not all(check["ok"] for view in views for check in view.checks):
        raise SystemExit(1)


def slug(text):
    """Return the first words of a text for a file name."""
    words = "-".join(re.findall(r"\w+", text.lower()))
    return words if len(words) <= 40 else words[:41].rpartition("-")[0] or words[:40]


def report(views):
    """Print the checks of one attention on several texts, and the means of every head."""
    print(f"  {PARTS[views[0].part]}\n" if views[0].part else "", end="")
    for check in views[0].checks:
        worst = f"worst {check['worst']:.1e}, limit {check['limit']:.0e}"
        print(f"  {'ok  ' if check['ok'] else 'FAIL'}  {check['check']:<38} {worst}")
    rows, n = head_means(views), sum(len(view.words) for view in views)
    print(f"  means over {n} tokens: distance in tokens, entropy in nats (last row: equal weights)")
    print("  induction: on random tokens that are repeated\n" * ("induction" in rows[0]), end="")
    print("  layer  head" + "".join(f"{name:>10}" for name in list(rows[0])[2:]))
    for row in rows:
        line = f"  {row.pop('layer'):>5}  {row.pop('head'):>4}"
        for name, x in row.items():
            line += f"{x:10.2f}" if name in ("distance", "entropy") else f"{x:10.1%}"
        print(line)


if __name__ == "__main__":
    main(show, Flags)
