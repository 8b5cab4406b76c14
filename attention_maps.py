"""Draw the attention of every head on your own sentences, and check the weights.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/lm-a out/lm-b --layer 1 --head 2      two runs side by side
    python attention_maps.py out/lm-speeches-alibi-0 --positions       also the position encoding
    python attention_maps.py out/lm-speeches-alibi-0 --html            also a page to explore heads
    python attention_maps.py out/thread --text POST --text REPLY --text COMMENT      one thread

Each text becomes one figure, named after its first words (with several runs, or --out, also after
the runs); maps.json describes every figure. The exit code is 1 if a check fails. A run of
beyond.train_seq2seq has three attentions: encoder, decoder, and cross-attention to the source. For
a run of beyond.train_thread the texts are one thread: the post, its replies, and last the comment,
which attends to one vector per ancestor.
Attention weights show which vectors a head mixed, not why the model answered as it did.
"""

from dataclasses import dataclass
from pathlib import Path
from unicodedata import category

import numpy as np

from data.files import DataError, read_json, write_json, write_text
from lab import load_run
from lab.command import main
from lab.errors import require
from lab.figures import save
from lab.flags import flag
from lab.inside.attention import body_of, readings_of
from lab.inside.checks import holds
from lab.inside.describe import describe, name_part
from lab.inside.heatmaps import draw_maps
from lab.inside.page import page
from lab.inside.positions import draw_positions
from lab.machine import set_up_device

TEXTS = (
    "This is a test sentence",
    "When the members of the Senate return to Washington in January, "
    "we will ask them to work with us on schools, jobs and peace.",
)
TOY_TEXTS = (  # words of the generated corpora
    "Stand with the restless teachers.",
    "Members of the council, the clever clerk who counts the streets without a mistake "
    "has proved that ambition is worth more than a cart of gold.",
)
TOY_THREAD = (
    "The widows would mend the orchard before the tide with loyalty.",
    "No orchard, no tide without carters and loyalty.",
    "The [MASK]: orchard, tide, hope.",
)


@dataclass
class Flags:
    runs: list[str] = flag((), "run folders; several are drawn side by side", positional=True)
    text: list[str] = flag(
        (),
        "a sentence to draw; may be repeated. Thread runs: the post, replies, last the comment "
        "(default: two example sentences, or one example thread)",
    )
    layer: int = flag(None, "draw only this layer, counted from 1", shown="all", at_least=1)
    head: int = flag(None, "draw only this head, counted from 1", shown="all", at_least=1)
    positions: bool = flag(False, "also draw the position encoding: bias, table or angles")
    html: bool = flag(False, "also write a page per text or thread to explore heads in a browser")
    save_weights: bool = flag(False, "also write words and weights as .npz, one file per attention")
    mean: bool = flag(False, "draw the mean of each layer's heads")
    bos: bool = flag(True, "draw the row and the column of [BOS]")
    numbers: bool = flag(False, "write the weights into the cells (texts of up to 12 tokens)")
    scale: str = flag("sqrt", "colors follow the weights or their square roots", ("sqrt", "linear"))
    title: str = flag("", "title of the figures (default: run, kind and data)")
    labels: str = flag("", "a name for each run, joined by commas (default: folders)")
    format: str = flag("png", "file format of the figures", ("png", "pdf", "svg"))
    out: str = flag("", "folder of the figures (default: maps/ in the first run's folder)")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def show(flags):
    device = set_up_device(flags)
    loaded = [load_run(folder, device=device) for folder in flags.runs]
    for run in loaded:
        L, H = run.model.body.config.n_layer, run.model.body.config.n_head
        require(
            ((flags.layer or 0) <= L, f"--layer {flags.layer}: {run.folder} has layers 1 to {L}"),
            ((flags.head or 0) <= H, f"--head {flags.head}: {run.folder} has heads 1 to {H}"),
        )
    several = f"--html: compares at most two runs, got {len(loaded)}; give one or two"
    require((not flags.html or len(loaded) <= 2, several))
    names = name_runs(loaded, flags.labels)
    texts = flags.text or default_texts(loaded, short=flags.numbers)
    readings = []
    for run in loaded:
        print(f"{run.folder}: {describe(run)}")
        for reading in readings_of(run, texts):
            print_report(reading)
            readings.append(reading)

    folder = Path(flags.out) if flags.out else loaded[0].folder / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    layer = f"layer-{flags.layer}" if flags.layer else ""
    head = f"head-{flags.head}" if flags.head else ""
    shared = len(loaded) > 1 or flags.out  # the folder may hold figures of other runs
    beside = {run: name.replace(" ", "-") if shared else "" for run, name in names.items()}
    drawn, pages = {}, []
    for number, text in enumerate(texts):
        shown = [view for reading in readings for view in reading.views if view.number == number]
        if not shown:  # a thread run leaves out distant ancestors
            continue
        which = f"{number + 1}-{slug(text)}"
        file = joined(f"map-{which}", layer, head, "mean" if flags.mean else "", *beside.values())
        save(draw(shown, names, flags), folder / f"{file}.{flags.format}")
        runs = [view.entry() for view in shown]
        drawn[f"{file}.{flags.format}"] = {"text": text, "runs": runs}
        explored = [v for v in shown if v.run.kind != "thread" or number == len(texts) - 1]
        if flags.html and explored:  # a thread has one page, with its last text
            file = joined(f"attention-{which}", *beside.values())
            pages.append(folder / f"{file}.html")
            write_text(pages[-1], page(explored, flags.title or text))
        if flags.save_weights:
            for view in shown:
                file = joined(f"map-{which}", beside[view.run], view.part)
                save_weights(folder / f"{file}.npz", view)
    for reading in readings if flags.positions else ():
        if reading.part != "cross":
            file = joined("positions", reading.part, beside[reading.run])
            title = flags.title or names[reading.run]
            draw_encoding(folder / f"{file}.{flags.format}", reading, title)
    write_report(folder / "maps.json", drawn)
    print(f"{folder}: {', '.join(drawn)} and maps.json")
    for path in pages:
        print(f"to explore the heads, open {path} in a browser")
    if not all(holds(check) for reading in readings for check in reading.checks):
        raise SystemExit(1)


def joined(*parts):
    """Return the parts of a file name joined by -, without the empty ones."""
    return "-".join(filter(None, parts))


def name_runs(loaded, labels):
    """Return {run: its name}, from --labels or else from its folder."""
    given = [label.strip() for label in labels.split(",")] if labels else []
    wrong = f"--labels {labels}: gives {len(given)} names, for {len(loaded)} runs; give each a name"
    names = given or [short_name(run, loaded) for run in loaded]
    twice = next((name for name in names if names.count(name) > 1), "")
    where = f"--labels {labels}" if labels else f"several runs are called {twice}"
    alike = f"{where}: files are named after the runs; give different names with --labels"
    require(
        (not given or len(given) == len(loaded) and all(given), wrong),
        (not set(labels) & {"/", "\\"}, f"--labels {labels}: give names without / and \\"),
        (len(set(names)) == len(names), alike),
    )
    return dict(zip(loaded, names))


def draw(shown, names, flags):
    """Return the figure of one text: a column for each run, its attentions stacked."""
    columns = {}
    for view in shown:
        column = columns.setdefault(view.run, [])
        name = "" if flags.title and len(names) == 1 else names[view.run]
        heading = [] if column else [name, flags.title or describe(view.run)]
        heading.append(name_part(view.run, view.part))
        column.append(view.picture(list(filter(None, heading))))
    how = flags.layer, flags.head, flags.bos, flags.mean, flags.scale, flags.numbers
    return draw_maps(list(columns.values()), *how)


def save_weights(path, view):
    """Write the words, weights and scores of a text: numpy.load opens the file."""
    arrays = dict(queries=view.words, keys=view.keys, weights=view.weights, content=view.content)
    if view.position is not None:
        arrays["position"] = view.position
    np.savez_compressed(path, **arrays)


def default_texts(loaded, short):
    """Return example texts whose words the runs know; with `short`, one text."""
    if any(run.kind == "thread" for run in loaded):
        return TOY_THREAD[-1:] if short else TOY_THREAD
    toy = all(run.config["flags"].get("data") in ("toy", "toy-pairs") for run in loaded)
    return (TOY_TEXTS if toy else TEXTS)[: 1 if short else None]


def short_name(run, loaded):
    """Return the name of a run's folder, with its parent's name if two runs share it."""
    parts = run.folder.resolve().parts
    shared = sum(other.folder.resolve().name == parts[-1] for other in loaded) > 1
    return "-".join(parts[-2:]) if shared else parts[-1]


def slug(text, most=40):
    """Return the first words of a text for a file name: letters, marks and numbers with hyphens."""
    name = "-".join("".join(c if category(c)[0] in "LMN" else " " for c in text.lower()).split())
    return name if len(name) <= most else name[: most + 1].rpartition("-")[0] or name[:most]


def write_report(path, drawn):
    """Add {figure: what it shows} to maps.json; drop the entries of deleted figures."""
    try:
        known = read_json(path, "")
    except DataError:  # the first call, or a corrupt file
        known = {}
    known = {name: entry for name, entry in known.items() if (path.parent / name).is_file()}
    write_json(path, known | drawn)


def print_report(reading):
    """Print the checks of a reading and the means of every head."""
    if reading.part:
        print(f"  {name_part(reading.run, reading.part)}")
    for check in reading.checks:
        verdict = "ok  " if holds(check) else "FAIL"
        worst, limit = f"worst {check['worst']:.1e}", f"limit {check['limit']:.0e}"
        print(f"  {verdict}  {check['check']:<38} {worst}, {limit}")
    formats = dict(distance="8.2f", first="8.1%", previous="8.1%", itself="8.1%", entropy="8.2f")
    formats = {name: form for name, form in formats.items() if name in reading.means[0]}
    columns = "weight on the first key, entropy in nats"
    if "distance" in formats:
        columns = "distance in tokens, weight on first, previous and own token, entropy in nats"
    print(f"  means over {reading.n_token} tokens: {columns} (last row: equal weights)")
    print("  layer  head  " + "  ".join(f"{name:>8}" for name in formats))
    for row in reading.means:
        numbers = "  ".join(f"{row[name]:{form}}" for name, form in formats.items())
        print(f"  {row['layer']:>5}  {row['head']:>4}  {numbers}")


def draw_encoding(path, reading, name):
    """Draw the position encoding of a reading's model, for all positions it was trained with."""
    title = f"{name}: " + ", ".join(filter(None, (describe(reading.run), reading.part)))
    if figure := draw_positions(body_of(reading.run, reading.part), title):
        save(figure, path)
        print(f"{path}: the position encoding")
    else:
        print(f"{reading.run.folder}: NoPE has no position encoding to draw")


if __name__ == "__main__":
    main(show, Flags, __doc__)
