"""Draw where every attention head looks, and check that its weights are what attention promises.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/a out/b --positions

Several runs are drawn side by side. Layers and heads are counted from 1. The exit code is 1 when a check fails.
Of an encoder-decoder its three attentions are drawn: the encoder's to the source, the decoder's to what it has
written, and that from the decoder to the source. What it reads, and what it is to have written, see `read_both` in readings.py.
Attention weights show which vectors a head mixed; they do not explain why the model answered as it did.
"""

import math
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.colors import PowerNorm
from matplotlib.patches import Patch

from data.files import write_json
from lab.attention import describe, holds, readings_of, slope, summary
from lab.command import main
from lab.errors import require
from lab.figures import plt, save
from lab.flags import flag
from lab.load import load_run
from lab.machine import prepare

TEXTS = (
    "This is a test sentence",
    (
        "When the members of the Senate return to Washington in January, "
        "we will ask them to work with us on schools, jobs and peace."
    ),
)
TOY_TEXTS = (
    "Stand with the restless teachers.",  # in the words of the generated corpus
    (
        "Members of the council, the clever clerk who counts the streets without a mistake "
        "has proved that ambition is worth more than a cart of gold."
    ),
)
GREY = "0.88"  # where a word may not look; no colour of the maps


@dataclass
class Flags:
    runs: list[str] = flag((), "run folders; several are drawn side by side", positional=True)
    text: list[str] = flag(
        (),
        "a sentence to look at; may be given several times "
        "(default: a short and a long one; others for runs on toy)",
    )
    layer: int = flag(0, "draw only this layer, counted from 1; 0: all")
    head: int = flag(0, "draw only this head, counted from 1; 0: all")
    positions: bool = flag(
        False,
        "also draw what the model is told of positions: "
        "ALiBi's bias, the table, or the rotary angles",
    )
    format: str = flag("png", "of the figures", ("png", "pdf", "svg"))
    out: str = flag("", "folder for the figures; empty: maps/ in the first run's folder")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def show(flags):
    device = prepare(flags)
    loaded = [load_run(folder, device=device) for folder in flags.runs]
    for run in loaded:
        L, H = run.model.body.config.n_layer, run.model.body.config.n_head
        require(
            (0 <= flags.layer <= L, f"--layer {flags.layer}: {run.folder} has layers 1 to {L}"),
            (0 <= flags.head <= H, f"--head {flags.head}: {run.folder} has heads 1 to {H}"),
        )

    all_toy = all(run.config.get("flags", {}).get("data") in ("toy", "toy-pairs") for run in loaded)
    readings, texts = [], flags.text or (TOY_TEXTS if all_toy else TEXTS)
    for run in loaded:
        print(f"{run.folder}: {describe(run)}")
        for reading in readings_of(run, texts, device):
            readings.append(reading)
            report(reading)

    folder = Path(flags.out) if flags.out else loaded[0].folder / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    of_runs = "".join(f"-{short_name(run, loaded)}" for run in loaded) if len(loaded) > 1 else ""
    part = (f"-layer-{flags.layer}" if flags.layer else "") + (
        f"-head-{flags.head}" if flags.head else ""
    )
    for number in range(len(texts)):
        draw_maps(
            folder / f"map-{number + 1}{part}{of_runs}.{flags.format}",
            readings,
            number,
            flags.layer,
            flags.head,
        )
    for reading in readings if flags.positions else ():
        if reading.part != "cross":
            name = "".join(
                f"-{part}"
                for part in (reading.part, short_name(reading.run, loaded) if of_runs else "")
                if part
            )
            draw_positions(folder / f"positions{name}.{flags.format}", reading)
    write_json(
        folder / f"maps{of_runs}.json", {"runs": [reading.as_json() for reading in readings]}
    )
    print(f"figures and maps{of_runs}.json are in {folder}")
    if not all(holds(check) for reading in readings for check in reading.checks):
        raise SystemExit(1)


def short_name(run, loaded):
    """The name of a run's folder, with that of the folder above where two runs share it."""
    parts = run.folder.resolve().parts
    shared = sum(other.folder.resolve().name == parts[-1] for other in loaded) > 1
    return "-".join(parts[-2:]) if shared else parts[-1]


def report(reading):
    """Print the checks, then the table of heads and what equal weights would give."""
    if reading.part:
        print(f"  {reading.title().partition(': ')[2]}")
    for check in reading.checks:
        print(
            f"  {'ok  ' if holds(check) else 'FAIL'}  {check['check']:<38} "
            f"worst {check['worst']:.1e}, limit {check['limit']:.0e}"
        )
    _, seen_mask = reading.seen()
    even = (
        reading.may(reading.mask.size(1), seen_mask.size(1)) & seen_mask[:, None, None, :]
    ).float()  # (B, H, T, S)
    even = summary(
        (even / even.sum(-1, keepdim=True).clamp(min=1))[None],
        reading.mask,
        own=reading.part != "cross",
    )
    even = {name: sum(head[name] for head in even) / len(even) for name in even[0]} | {
        "layer": "equal",
        "head": "",
    }
    what = "how many tokens away, how much at the first and at themselves,\n  and how evenly"
    if reading.part == "cross":
        what = "how much at the source's first token, and how evenly"
    print(
        f"  where the {int(reading.mask.sum())} tokens ([BOS] is the first) look, on average: {what} (entropy in nats); "
        "last row: if all weights were equal"
    )
    columns = {
        "distance": ("distance", "8.2f"),
        "first": (" first", "6.1%"),
        "itself": ("itself", "6.1%"),
        "entropy": ("entropy", "7.2f"),
    }
    columns = {name: column for name, column in columns.items() if name in even}
    print("  layer  head  " + "  ".join(title for title, _ in columns.values()))
    for row in [*reading.heads(), even]:
        print(
            f"  {row['layer']:>5}  {row['head']:>4}  "
            + "  ".join(f"{row[name]:{form}}" for name, (_, form) in columns.items())
        )


# ---------------------------------------------------------------------------- drawing


def draw_maps(path, readings, number, layer, head):
    """Text `number` of every reading: a group of columns a run, in it a row a layer and a column a head; 0 means all.

    The three attentions of an encoder-decoder stand one below the other.
    The figure is 1 x 1 inch, so that places are in inches, and grows to its contents when it is saved.
    """
    longest = max(
        len(words[number]) for reading in readings for words in (reading.words, reading.seen()[0])
    )
    pitch = (
        max(0.13, min(0.3, 2.0 / longest)) if longest <= 64 else 8.0 / longest
    )  # height of a token's row
    every = math.ceil(longest / 64)  # beyond that not every token can be named
    size = min(8.0, 54 * pitch * every)
    colours = plt.get_cmap("Blues").with_extremes(bad=GREY)
    figure, right, top, bottom, greyed = plt.figure(figsize=(1, 1)), -0.15, 0.0, 0.0, False
    above = []  # the words along the lower edge of the part before
    loaded = [reading.run for reading in readings if reading.part in ("", "encoder")]

    def room(words):  # for the names of tokens
        return min(14, max(map(len, words))) * size * 0.6 / 72 + 0.3

    for reading in readings:
        begins = reading.part in ("", "encoder")
        words, seen = (
            [word if len(word) <= 14 else word[:13] + "…" for word in text[number]]
            for text in (reading.words, reading.seen()[0])
        )
        T, S = len(words), len(seen)
        weights = reading.weights[:, number, :, :T, :S]
        forbidden = ~reading.may(T, S) & (weights == 0)  # what leaks there must be seen
        weights, greyed = weights.masked_fill(forbidden, math.nan), greyed or forbidden.any()
        layers, heads = (
            [chosen - 1] if chosen else range(n)
            for chosen, n in zip((layer, head), (weights.size(0), weights.size(1)))
        )
        height, breadth = (
            max(0.5 if reading.part else 1.0, pitch * T),
            max(1.0, pitch * S),
        )  # what is written in a gap is short
        if begins:
            left, top = (
                right + 0.15 + max(room(r.words[number]) for r in readings if r.run is reading.run),
                0.0,
            )
        else:
            top -= room(above) + 0.45  # and a heading
        for row, i in enumerate(layers):
            for column, j in enumerate(heads):
                axis = figure.add_axes(
                    [
                        left + column * (breadth + 0.15),
                        top - (row + 1) * (height + 0.3),
                        breadth,
                        height,
                    ]
                )
                image = axis.imshow(
                    weights[i, j].numpy(),
                    cmap=colours,
                    norm=PowerNorm(0.5, 0, 1),
                    interpolation="nearest",
                    aspect="auto",
                )
                axis.set_title(f"layer {i + 1}, head {j + 1}", fontsize=8, pad=3)
                axis.grid(False)
                axis.tick_params(length=0, pad=2)
                below, beside = row == len(layers) - 1, column == 0
                axis.set_xticks(
                    range(0, S, every),
                    [word if below else "" for word in seen[::every]],
                    fontsize=size,
                    rotation=90,
                    parse_math=False,
                )
                axis.set_yticks(
                    range(0, T, every),
                    [word if beside else "" for word in words[::every]],
                    fontsize=size,
                    parse_math=False,
                )
                axis.set_xlabel("looks at" if below else "", fontsize=8)
                axis.set_ylabel("this word" if beside else "", fontsize=8)
        width = len(heads) * (breadth + 0.15) - 0.15
        heading = (
            [short_name(reading.run, loaded), reading.title()]
            if begins
            else [reading.title().partition(": ")[2]]
        )
        figure.text(
            left + width / 2,
            top - 0.08,
            "\n".join(textwrap.fill(line, max(16, int(width / 0.075))) for line in heading),
            ha="center",
            va="bottom",
            fontsize=9,
            parse_math=False,
        )
        top -= len(layers) * (height + 0.3)
        right, bottom, above = max(left + width, right), min(bottom, top), seen
    bottom = min(max(bottom, -2.6), -1.5)  # long enough for what is written beside it
    bar = figure.add_axes([right + 0.25, bottom, 0.12, -bottom - 0.3])
    figure.colorbar(image, cax=bar, ticks=[0, 0.05, 0.2, 0.5, 1]).set_label(
        "attention weight\n(square-root scale)", fontsize=8
    )
    bar.tick_params(labelsize=7)
    starred = any(
        word.endswith("*")
        for reading in readings
        for word in reading.words[number] + reading.seen()[0][number]
    )
    key = [Patch(color=GREY, label="not allowed")] * bool(greyed) + [
        Patch(alpha=0, label="* unknown word")
    ] * starred
    if key:
        figure.legend(
            handles=key,
            loc="upper left",
            fontsize=7,
            handlelength=1,
            borderpad=0,
            bbox_to_anchor=(right + 0.15, bottom - 0.05),
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph"
        )  # a letter the font lacks is drawn as a box, which says enough
        save(figure, path)


def draw_positions(path, reading):
    """What the model is told of the positions it was trained with; for NoPE a line of text instead of a figure."""
    run, body = reading.run, reading.body()
    config, T = body.config, body.config.block_size
    if config.pos == "nope":
        print(
            f"{run.folder}: pos=nope tells the model nothing of positions, so there is nothing to draw"
        )
        return
    if config.pos == "alibi":
        bias = body.attention_bias(T)[0].cpu()
        lowest = bias[bias.isfinite()].min().item()
        panels = [
            (
                f"bias of head {h + 1}, slope {slope(body, h):.3g}",
                table,
                "looks at position",
                (lowest, 0),
            )
            for h, table in enumerate(bias)
        ]
    else:
        if config.pos == "rope":
            angles = body.angles(T).cpu()  # (T, D / 2)
            vectors = torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(
                angles.size(1)
            )  # of length 1
            first, second = (
                ("cosine of the rotary angle", angles.cos(), "pair of channels"),
                "q · k of equal vectors, turned",
            )
        else:
            vectors = body.position_vectors(T).detach().cpu()  # (T, C)
            first, second = (
                (f"{config.pos} table", vectors, "channel"),
                "dot product of two positions",
            )
        largest, alike = first[1].abs().max().item(), vectors @ vectors.T
        panels = [
            (*first, (-largest, largest)),
            (second, alike, "position", (alike.min().item(), alike.max().item())),
        ]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        squeeze=False,
        layout="constrained",
        figsize=(3 * columns + 0.8, 2.8 * rows + 0.4),
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, table, xlabel, (low, high)) in zip(axes.flat, panels):
        colours = plt.get_cmap("RdBu_r" if low == -high else "viridis").with_extremes(
            bad=GREY
        )  # white is zero
        image = axis.imshow(
            table.masked_fill(table.isinf(), math.nan).numpy(),
            cmap=colours,
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, table.size(1) + 0.5, T + 0.5, 0.5),
        )  # counted from 1
        axis.set_title(title, fontsize=9)
        axis.set(xlabel=xlabel, ylabel="position")
        axis.grid(False)
        figure.colorbar(image, ax=axis)
    note = "; grey: not allowed" if any(table.isinf().any() for _, table, *_ in panels) else ""
    figure.suptitle(
        f"{run.folder.resolve().name}: {describe(run)}{', ' + reading.part if reading.part else ''}{note}",
        fontsize=10,
        parse_math=False,
    )
    save(figure, path)


if __name__ == "__main__":
    main(show, Flags, __doc__.split("\n")[0])
