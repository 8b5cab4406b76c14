"""Draw the attention of every head on your own sentences, and check the weights.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/lm-a out/lm-b --layer 1 --head 2      two runs side by side
    python attention_maps.py out/lm-a --positions --html       also the encoding, and a page

Each text becomes one figure, named after its first words (with several runs, or --out, also after
the runs); maps.json describes every figure. The exit code is 1 if a check fails. An encoder-decoder
has three attentions. A run of comment threads takes the texts as one thread: the post, replies, and
last the comment, which attends to one vector per ancestor.
Attention weights show which vectors a head mixed, not why the model answered as it did.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import Positional, UseAppendAction

from data.files import UserError, read_json, write_json
from lab import load_run
from lab.figures import save
from lab.flags import main, require
from lab.inside.attention import PARTS, head_means, record
from lab.inside.maps import Picture, draw_maps
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
    positions: bool = False  # also draw what the position encoding does
    html: bool = False  # also write a page per text or thread to explore heads in a browser
    save_weights: bool = False  # also write words and weights as .npz, one file per attention
    mean: bool = False  # draw the mean of each layer's heads
    bos: bool = True  # draw the row and the column of [BOS]
    numbers: bool = False  # write the weights into the cells (texts of up to 12 tokens)
    scale: Literal["sqrt", "linear"] = "sqrt"  # colors follow the weights or their square roots
    title: str = ""  # title of the figures (default: run, kind and data)
    labels: str = ""  # a name for each run, joined by commas (default: folders)
    format: Literal["png", "pdf", "svg"] = "png"  # file format of the figures
    out: str = ""  # folder of the figures (default: maps/ in the first run's folder)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores


def show(flags):
    sizes = [read_config(folder)["model"] for folder in flags.runs]
    require(sizes, "give the folder of a run, such as out/lm-toy-alibi-0")
    require(not (flags.mean and flags.head), "--mean: is of all heads; leave out --head")
    require(not flags.html or len(sizes) <= 2, "--html: compares at most two runs; give one or two")
    for name in ("layer", "head"):
        most, n = min(size[f"n_{name}"] for size in sizes), getattr(flags, name)
        require(n is None or 1 <= n <= most, f"--{name} {n}: the runs have {name}s 1 to {most}")
    width = max(size["n_embd"] for size in sizes)
    device = set_up_device(flags.device, flags.threads, n_embd=width)
    runs = [load_run(folder, device=device) for folder in flags.runs]
    names = [name.strip() for name in flags.labels.split(",") if name.strip()]
    names = names or [run.folder.resolve().name for run in runs]
    differ = len(set(map(slug, names))) == len(names) == len(runs)
    require(differ, f"--labels {','.join(names)}: give {len(runs)} different names, one per run")
    names, views, drawn = dict(zip(runs, names)), [], {}
    texts = flags.text or example_texts(runs)[: 1 if flags.numbers else None]
    for run in runs:
        print(f"{run.folder}: {run.describe()}")
        found = record(run, texts)
        for part in dict.fromkeys(view.part for view in found):
            report([view for view in found if view.part == part])
        views += found

    folder = Path(flags.out).expanduser() if flags.out else runs[0].folder / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    beside = {run: slug(name) for run, name in names.items() if len(runs) > 1 or flags.out}
    only = [f"{name}-{n}" for name in ("layer", "head") if (n := getattr(flags, name))]
    only += ["mean"] * flags.mean
    for number, text in enumerate(texts):
        columns, shown = {}, [view for view in views if view.number == number]
        for view in shown:  # a column for each run, its attentions stacked
            heading = [flags.title] if flags.title else [names[view.run], view.run.describe()]
            heading = [*heading * (view.run not in columns), *filter(None, [PARTS[view.part]])]
            picture = Picture(heading, view.words, view.keys, view.shown())
            columns.setdefault(view.run, []).append(picture)
        if not shown:  # a thread run leaves out distant ancestors
            continue
        stem = f"{number + 1}-{slug(text)}"
        path = folder / f"{joined('map', stem, *only, *beside.values())}.{flags.format}"
        how = flags.layer, flags.head, flags.bos, flags.mean, flags.scale, flags.numbers
        save(draw_maps(list(columns.values()), *how), path)
        drawn[path.name] = {"text": text, "runs": [entry(view) for view in shown]}
        if flags.html and text == shown[0].title:  # a thread has one page, with its last text
            one, *other = {view.run: view for view in shown}.values()
            path = folder / f"{joined('attention', stem, *beside.values())}.html"
            one.html(path, *other)
            print(f"to explore the heads, open {path} in a browser")
        for view in shown if flags.save_weights else ():
            arrays = dict(queries=view.words, keys=view.keys, weights=view.weights)
            arrays |= {"content": view.content}
            arrays |= {} if view.position is None else {"position": view.position}
            file = joined("map", stem, beside.get(view.run), view.part)
            np.savez_compressed(folder / f"{file}.npz", **arrays)
    for run in runs if flags.positions else ():
        path = folder / f"{joined('positions', beside.get(run))}.{flags.format}"
        try:
            save(run.positions(), path)
            print(f"{path}: the position encoding")
        except UserError as error:  # it has none
            print(error)
    path = folder / "maps.json"
    known = read_json(path) if path.exists() else {}
    known = {name: about for name, about in known.items() if (folder / name).exists()}
    write_json(path, known | drawn)
    print(f"{folder}: {', '.join(drawn)} and maps.json")
    if not all(holds(check) for view in views for check in view.checks):
        raise SystemExit(1)


def entry(view):
    """Return the entry of a view in maps.json, with None for NaN, which JSON does not have."""
    found = dict(run=str(view.run.folder), model=view.run.describe(), attention=view.part)
    found |= dict(queries=view.words, keys=view.keys)
    for name, rows in (("checks", view.checks), ("heads", view.heads)):
        found[name] = [{key: x if x == x else None for key, x in row.items()} for row in rows]
    return found


def report(views):
    """Print the checks of one attention on several texts, and the means of every head."""
    print(f"  {PARTS[views[0].part]}\n" if views[0].part else "", end="")
    for check in views[0].checks:
        worst = f"worst {check['worst']:.1e}, limit {check['limit']:.0e}"
        print(f"  {'ok  ' if holds(check) else 'FAIL'}  {check['check']:<38} {worst}")
    rows, n = head_means(views), sum(len(view.words) for view in views)
    print(f"  means over {n} tokens: distance in tokens, entropy in nats (last row: equal weights)")
    print("  layer  head" + "".join(f"{name:>10}" for name in list(rows[0])[2:]))
    for layer, head, *means in map(dict.values, rows):
        named = zip(list(rows[0])[2:], means)
        cells = [f"{x:10.2f}" if n in ("distance", "entropy") else f"{x:10.1%}" for n, x in named]
        print(f"  {layer:>5}  {head:>4}" + "".join(cells))


def holds(check):
    """Return whether a check is passed; NaN is not."""
    return check["worst"] <= check["limit"]


def example_texts(runs):
    """Return example texts whose words the runs know."""
    if any(run.kind == "thread" or run.first_gap is not None for run in runs):
        return TOY_TEXTS if runs[0].kind == "thread" else TOY_TEXTS[2:]
    toy = all(run.config["flags"].get("data") in ("toy", "toy-pairs") for run in runs)
    return TOY_TEXTS[:2] if toy else TEXTS


def joined(*parts):
    """Return the parts of a file name joined by -, without the empty ones."""
    return "-".join(filter(None, parts))


def slug(text):
    """Return the first words of a text for a file name."""
    words = "-".join(re.findall(r"\w+", text.lower()))
    return words if len(words) <= 40 else words[:41].rpartition("-")[0] or words[:40]


if __name__ == "__main__":
    main(show, Flags)
