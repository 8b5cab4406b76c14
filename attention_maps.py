"""Draw the attention of every head on your own sentences, and check the weights.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/lm-a --text "One sentence" "Another one"
    python attention_maps.py out/lm-a out/lm-b --layer 1 --head 2      two runs side by side
    python attention_maps.py out/lm-a --positions --html       also the encoding, and a page
    python attention_maps.py out/lm-a out/lm-b --live          the page reads what you type

Each text becomes a figure; texts of a thread end with the comment. The exit code is 1 if a check
fails. Weights show which vectors a head mixed, not why the model answered as it did.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import re
import signal
import time
import webbrowser
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from tyro.conf import Positional, UseAppendAction

from data import find_task
from data.files import short_name
from lab import load_run
from lab.figures import save
from lab.flags import Folder, RunFolders, Texts, main, require
from lab.inside.attention import record
from lab.inside.live import LivePage
from lab.inside.maps import check_number, draw_maps
from lab.inside.means import head_means
from lab.inside.page import PARTS
from lab.load import read_config
from lab.machine import set_up_device

TEXTS = [  # examples, if no --text is given
    "This is a test sentence",
    "When the members of the Senate return to Washington in January, "
    "we will ask them to work with us on schools, jobs and peace.",
]
TOY_TEXTS = [  # of words of the generated corpora
    "Stand with the restless teachers.",
    "Members of the council, the clever clerk who counts the streets without a mistake "
    "has proved that ambition is worth more than a cart of gold.",
]
GAP_TEXT = "Stand with the [MASK] teachers."  # for threads and gaps


@dataclass
class Flags:
    runs: Positional[RunFolders]  # run folders; several are drawn side by side
    text: UseAppendAction[Texts] = field(default_factory=list)  # one or more to draw
    layer: int | None = None  # draw only this layer, counted from 1
    head: int | None = None  # draw only this head, counted from 1
    mean: bool = False  # draw the mean of each layer's heads
    numbers: bool = False  # write the weights into the cells (texts of up to 12 tokens)
    positions: bool = False  # also draw what the position encoding does
    html: bool = False  # also write a page per text or thread to explore heads in a browser
    live: bool = False  # only open the page, which reads what you type, until Ctrl-C
    save_weights: bool = False  # also write words and weights as .npz, one file per attention
    format: Literal["png", "pdf", "svg"] = "png"  # file format of the figures
    out: Folder = ""  # folder of the figures; '': maps/ in the first run's folder
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    threads: int = 0  # CPU threads; 0: 1 for models up to 128 wide, else all cores


def show(flags):
    """Draw the attention of runs on texts, and print checks and means."""
    check_flags(flags)
    runs = open_runs(flags)
    texts = list(chain(*flags.text)) or choose_examples(runs, flags.numbers)
    if flags.live:
        serve(runs, texts)
        return
    views = []
    for run in runs:
        print(f"{run.folder}: {run.describe()}")
        views_of_run = record(run, texts)
        report_parts(views_of_run)
        views += views_of_run

    folder = runs[0].folder / "maps"
    if flags.out:
        folder = Path(flags.out).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        views_of_text = [view for view in views if view.number == number]
        if views_of_text:  # else a thread run leaves out this distant ancestor
            stem = f"{number + 1}-{slug(text)}"
            write_text_files(folder, stem, text, views_of_text, runs, flags)
    if flags.positions:
        for run in runs:
            write_positions(run, folder / f"positions-{slug(name_run(run))}.{flags.format}")
    if not all(holds(view) for view in views):
        raise SystemExit(1)


def serve(runs, texts):
    """Open the live page of one or two runs in the browser, until Ctrl-C."""
    text = texts[0]
    if any(run.kind == "thread" for run in runs):
        text = "\n".join(texts)
    page = LivePage(runs, text)
    print(f"open {page.address} in a browser of this machine; Ctrl-C ends it", flush=True)
    webbrowser.open(page.address)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        page.stop()
        print("ended")


def holds(view):
    """Return whether all checks of an AttentionView hold."""
    return all(check["ok"] for check in view.checks)


def check_flags(flags):
    """Raise UserError for flags that do not fit together or the runs."""
    require(flags.runs, "give the folder of a run before --text, such as out/lm-toy-alibi-0")
    sizes = [read_config(folder)["model"] for folder in flags.runs]
    for name in ("html", "live"):
        too_many = getattr(flags, name) and len(sizes) > 2
        require(not too_many, f"--{name}: compares at most two runs; give one or two")
    files = ("layer", "head", "mean", "numbers", "positions", "html", "save_weights", "out")
    for name in files:
        unused = flags.live and getattr(flags, name)
        dashed = name.replace("_", "-")
        require(not unused, f"--{dashed}: --live shows all heads and writes no file; leave it out")
    for name in ("layer", "head"):
        number = getattr(flags, name)
        if number is not None:
            most = min(size[f"n_{name}"] for size in sizes)
            check_number(f"--{name}", number, most)


def open_runs(flags):
    """Return the runs on the device. Raises UserError for two with one name."""
    width = max(read_config(folder)["model"]["n_embd"] for folder in flags.runs)
    device = set_up_device(flags.device, flags.threads, n_embd=width)
    runs = [load_run(folder, device=device) for folder in flags.runs]
    names = {name_run(run) for run in runs}
    require(len(names) == len(runs), "two runs have the same name; rename a folder")
    return runs


def name_run(run):
    return run.folder.resolve().name


def choose_examples(runs, numbers):
    """Return texts that the runs can read. numbers: only one, which is short."""
    texts = examples_for(runs)
    if numbers:
        return texts[:1]
    return texts


def examples_for(runs):
    """Return texts of the kind and words that the runs were trained on."""
    data_names = [run.config["flags"].get("data") for run in runs]
    task = find_task(data_names[0])
    if task:
        return [" ".join(task.example(5))]
    if runs[0].kind == "thread":
        return [*TOY_TEXTS, GAP_TEXT]
    if any(run.kind == "thread" or run.first_gap is not None for run in runs):
        return [GAP_TEXT]
    if all(name in ("toy", "toy-pairs") for name in data_names):
        return TOY_TEXTS
    return TEXTS


def write_text_files(folder, stem, text, views, runs, flags):
    """Write the figure of a text, and what --html and --save-weights ask for. stem: number and
    first words of the text."""
    all_names = "-".join(slug(name_run(run)) for run in runs)
    name = "-".join(["map", stem, *name_choice(flags), all_names])
    path = folder / f"{short_name(name)}.{flags.format}"
    save(draw_text(views, flags), path)
    print(path)
    if flags.html and text == views[0].title:  # a thread's page has its last text
        path = folder / f"{short_name(f'attention-{stem}-{all_names}')}.html"
        write_page(views, path)
        print(f"to explore the heads, open {path} in a browser")
    if flags.save_weights:
        for view in views:
            name = slug(name_run(view.run))
            if view.part:
                name += f"-{view.part}"
            write_weights(view, folder / f"{short_name(f'map-{stem}-{name}')}.npz")


def name_choice(flags):
    """Return what --layer, --head and --mean choose, as parts of a file name."""
    parts = []
    if flags.layer:
        parts.append(f"layer-{flags.layer}")
    if flags.head:
        parts.append(f"head-{flags.head}")
    if flags.mean:
        parts.append("mean")
    return parts


def draw_text(views, flags):
    """Return a figure with a column for each run, its attentions below each other."""
    columns = {}
    for view in views:
        heading = []
        if view.run not in columns:
            heading = [name_run(view.run), view.run.describe()]
        if view.part:
            heading.append(PARTS[view.part])
        if view.length_note:
            heading.append(view.length_note)
        columns.setdefault(view.run, []).append((heading, view))
    return draw_maps(list(columns.values()), flags.layer, flags.head, flags.mean, flags.numbers)


def write_page(views, path):
    """Write the page of one or two runs. It shows all attentions of the run of a view."""
    view_of_run = {view.run: view for view in views}
    first, *others = view_of_run.values()
    first.html(path, *others)


def write_weights(view, path):
    """Write the words, weights and scores of an attention as arrays."""
    arrays = {"queries": view.words, "keys": view.keys}
    arrays |= {"weights": view.weights, "content": view.content}
    if view.position is not None:
        arrays["position"] = view.position
    np.savez_compressed(path, **arrays)


def write_positions(run, path):
    """Write the figure of what the position encoding of a run does, if it has one."""
    figure = run.positions()
    if figure is None:
        print(f"{run.folder}: no position encoding to draw")
        return
    save(figure, path)
    print(path)


def slug(text):
    """Return the first words of a text for a file name, up to 40 characters."""
    words = "-".join(re.findall(r"\w+", text.lower()))
    if len(words) <= 40:
        return words
    whole_words = words[:41].rpartition("-")[0]
    return whole_words or words[:40]  # the first word alone may be longer


def report_parts(views):
    """Report each attention of a run."""
    parts = dict.fromkeys(view.part for view in views)  # each once, in order
    for part in parts:
        report([view for view in views if view.part == part])


def report(views):
    """Print the checks of one attention on several texts, and the means of every head."""
    if views[0].part:
        print(f"  {PARTS[views[0].part]}")
    for outcome in views[0].checks:
        verdict = "ok  " if outcome["ok"] else "FAIL"
        worst = f"worst {outcome['worst']:.1e}, limit {outcome['limit']:.0e}"
        print(f"  {verdict}  {outcome['check']:<38} {worst}")
    rows = head_means(views)
    n_tokens = sum(len(view.words) for view in views)
    units = "distance in tokens, entropy in nats (last row: equal weights)"
    print(f"  means over {n_tokens} tokens: {units}")
    names = [name for name in rows[0] if name not in ("layer", "head")]
    if "induction" in names:
        print("  induction: on random tokens that are repeated")
    print("  layer  head" + "".join(f"{name:>10}" for name in names))
    for row in rows:
        cells = [f"  {row['layer']:>5}  {row['head']:>4}"]
        for name in names:
            unit = ".2f" if name in ("distance", "entropy") else ".1%"
            cells.append(f"{row[name]:10{unit}}")
        print("".join(cells))


if __name__ == "__main__":
    main(show, Flags)
