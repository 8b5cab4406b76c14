"""Draw matrices: attention maps of a text, and the tables of position encodings."""

import math
import textwrap
from typing import NamedTuple
from unicodedata import east_asian_width

import torch

from lab.errors import require
from lab.figures import make_figure, new_figure, styled

GREY = "0.88"  # attention not allowed; a color that no map uses
GAP, TITLE = 0.15, 0.3  # inches between two maps side by side, and above each
WIDEST = 50.0  # inches of a figure, if maps of 3 inches fit
ACROSS = 4  # heads per row, if the figure would be over six times as wide as high
MOST_NUMBERS = 12  # tokens of a map whose weights can be written into its cells
LONGEST_WORD = 16  # letters; the rest of a longer token is not shown


class Picture(NamedTuple):
    """One attention on one text, as it is drawn."""

    heading: list  # lines
    queries: list  # T words
    keys: list  # S words
    weights: torch.Tensor  # (L, H, T, S), NaN where attention is not allowed: grey

    def adapted(self, bos, mean):
        """Return a picture without the row and column of [BOS], or with the mean of the heads."""
        heading, queries, keys, weights = self
        if mean:  # of all heads: a key that a head may not see has the weight 0 there
            nowhere = weights.isnan().all(1, keepdim=True)  # (L, 1, T, S)
            weights = weights.nan_to_num().mean(1, keepdim=True).masked_fill(nowhere, math.nan)
        if not bos:
            i, j = (int(words[0] == "[BOS]" and len(words) > 1) for words in (queries, keys))
            queries, keys, weights = queries[i:], keys[j:], weights[:, :, i:, j:]
        return Picture(heading, queries, keys, weights)


class Look(NamedTuple):
    """Settings shared by all maps of a figure."""

    pitch: float  # inches a token
    every: int  # name one of this many tokens; there is no room for more
    size: float  # of these names, in points
    colors: object  # a colormap
    norm: object  # from weights to the range of the colormap
    linear: bool  # colors follow the weights, not their square roots
    numbers: bool  # write each weight into its cell
    mean: bool  # the maps are means of heads

    def room(self, words):
        """Return the inches that the names of tokens and the label of their axis take."""
        return max(map(width_of, map(shorten, words))) * self.size * 0.6 / 72 + 0.3


@styled(grid=False)
def draw_maps(columns, layer=None, head=None, bos=True, mean=False, scale="sqrt", numbers=False):
    """Return a figure of one map per layer (row) and head (column), see `grid_of`.

    columns: for each run a list of Pictures, drawn below each other. layer, head: which to draw,
    counted from 1; None: all. bos: keep the row and column of [BOS]. mean: draw the mean of a
    layer's heads. scale: colors follow the weights (linear) or their square roots (sqrt). numbers:
    write each weight into its cell. Raises UserError for numbers in maps of more than MOST_NUMBERS
    tokens.
    The figure is 1 x 1 inch, so that positions on it are inches; saving grows it to its content.
    """
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    columns = [[picture.adapted(bos, mean) for picture in column] for column in columns]
    axes = [words for column in columns for p in column for words in (p.queries, p.keys)]
    longest = max(map(len, axes))
    many = f"numbers: the text has {longest} tokens; numbers fit into maps of {MOST_NUMBERS}"
    require(
        (longest <= MOST_NUMBERS or not numbers, f"{many}; give a shorter text"),
        (scale in ("sqrt", "linear"), f"scale {scale!r}: must be sqrt or linear"),
        (not (mean and head), f"mean and head {head}: give one of them"),
    )
    side = WIDEST / sum(len(grid_of(column[0].weights, layer, head)[0]) for column in columns)
    pitch = max(0.13, min(0.3, 2.0 / longest))
    pitch = 0.3 if numbers else min(pitch, max(3.0, min(8.0, side)) / longest)
    every = math.ceil(0.125 / pitch)
    size = min(8.0, 54 * pitch * every)
    colors = colormaps["Blues"].with_extremes(bad=GREY)
    linear = scale == "linear"
    norm = PowerNorm(1.0 if linear else 0.5, 0, 1)
    look = Look(pitch, every, size, colors, norm, linear, numbers, mean)

    figure, right, bottom = make_figure(figsize=(1, 1)), 0.0, 0.0
    for column in columns:
        left, top = right + GAP + max(look.room(picture.queries) for picture in column), 0.0
        for above, picture in zip([None, *column], column):
            least = 0.5 if len(column) > 1 else 1.0  # inches of a map's height
            rows = grid_of(picture.weights, layer, head)
            top, width = draw_picture(figure, left, top, picture, above, rows, least, look)
            right = max(right, left + width)
        bottom = min(bottom, top)
    bottom = max(-2.6, min(bottom, -1.6))  # long enough for the label of the color bar
    draw_scale(figure, right + 0.25, bottom, look)
    grey = any(picture.weights.isnan().any() for column in columns for picture in column)
    explain_signs(figure, (right + 0.15, bottom - 0.05), grey, [w for words in axes for w in words])
    return figure


def draw_picture(figure, left, top, picture, above, rows, least, look):
    """Draw the maps of one attention below its heading; return the lowest place and the width.

    left, top: the corner of the first map, or where the picture above it ends, if it is not None.
    least: height of the smallest map. All are in inches. rows: of `grid_of`.
    """
    heading, queries, keys, weights = picture
    height, breadth = max(least, look.pitch * len(queries)), max(1.0, look.pitch * len(keys))
    width = len(rows[0]) * (breadth + GAP) - GAP
    letters = max(24, int(width / 0.075))  # in a line
    text = "\n".join(textwrap.fill(line, letters) for line in heading)
    if above:  # leave room for the names of its keys, and for the lines of the heading
        top -= look.room(above.keys) + 0.3 + 0.15 * text.count("\n")
    style = dict(ha="center", va="bottom", fontsize=9, parse_math=False)
    figure.text(left + width / 2, top - 0.08, text, **style)
    for row, row_below in zip(rows, [*rows[1:], []]):
        top -= height + TITLE
        for j, (i, h) in enumerate(row):
            axis = figure.add_axes([left + j * (breadth + GAP), top, breadth, height])
            style = dict(cmap=look.colors, norm=look.norm, interpolation="nearest", aspect="auto")
            axis.imshow(weights[i, h].numpy(), **style)
            which = "mean of heads" if look.mean else f"head {h + 1}"
            axis.set_title(f"layer {i + 1}, {which}", fontsize=8, pad=3)
            if look.numbers:
                write_numbers(axis, weights[i, h], look.norm)
            name_tokens(axis.xaxis, keys, look, j >= len(row_below), "key", rotation=90)
            name_tokens(axis.yaxis, queries, look, j == 0, "query")
            axis.tick_params(length=0, pad=2)
    return top, width


def draw_scale(figure, left, bottom, look):
    """Draw the color bar, from `bottom` to the first row of maps."""
    from matplotlib.cm import ScalarMappable

    bar = figure.add_axes([left, bottom, 0.12, -bottom - TITLE])
    ticks = [0, 0.5, 1] if look.linear else [0, 0.05, 0.2, 0.5, 1]
    figure.colorbar(ScalarMappable(look.norm, look.colors), cax=bar, ticks=ticks)
    bar.set_ylabel("attention weight" + "\n(square-root scale)" * (not look.linear), fontsize=8)
    bar.tick_params(labelsize=7)


def explain_signs(figure, corner, grey, tokens):
    """Say in a legend what grey, a star and … mean, where they occur."""
    from matplotlib.patches import Patch

    starred = any(word.removesuffix(" …").endswith("*") for word in tokens)
    truncated = any(word.endswith(" …") for word in tokens)
    key = [Patch(color=GREY, label="not allowed")] * grey
    key += [Patch(alpha=0, label="* unknown word")] * starred
    key += [Patch(alpha=0, label="… text truncated")] * truncated
    if key:
        style = dict(loc="upper left", fontsize=7, handlelength=1)
        figure.legend(handles=key, bbox_to_anchor=corner, **style)


def grid_of(weights, layer, head):
    """Return the maps to draw of weights (L, H, T, S) as rows of (layer, head), counted from 0.

    A row holds the heads of a layer, or ACROSS of them. layer, head: as in `draw_maps`.
    """
    layers = [layer - 1] if layer else range(weights.size(0))
    heads = [head - 1] if head else range(weights.size(1))
    n = len(heads) if len(heads) <= 6 * len(layers) else ACROSS
    return [[(i, h) for h in heads[k : k + n]] for i in layers for k in range(0, len(heads), n)]


def write_numbers(axis, weights, norm):
    """Write the weights (T, S) into the cells of their map, those below 0.005 as 0."""
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            if not math.isnan(weight):
                color = "white" if norm(weight) > 0.63 else "black"  # on dark blue
                text = f"{weight:.2f}".removeprefix("0") if weight >= 0.005 else "0"
                axis.text(j, i, text, ha="center", va="center", fontsize=5.5, color=color)


def shorten(word):
    """Return a token cut to LONGEST_WORD letters; an unknown word keeps its star."""
    star = "*" * word.removesuffix(" …").endswith("*")
    return word if len(word) <= LONGEST_WORD else word[: LONGEST_WORD - 1 - len(star)] + "…" + star


def width_of(word):
    """Return the width of a word in Latin letters; a Chinese one is nearly twice as wide."""
    return sum(1.7 if east_asian_width(letter) in "WF" else 1 for letter in word)


def name_tokens(axis, words, look, wanted, label, **more):
    """Name the tokens along an axis, and label it, if wanted."""
    names = [shorten(word) if wanted else "" for word in words[:: look.every]]
    style = dict(fontsize=look.size, parse_math=False, **more)
    axis.set_ticks(range(0, len(words), look.every), names, **style)
    axis.set_label_text(label if wanted else "", fontsize=8)


@styled(grid=False)
def draw_tables(panels, title, common=""):
    """Return a figure of a position encoding's tables side by side, counted from 1.

    panels: [(title, table (rows, columns), row label, column label), ...]. Infinite entries are
    drawn grey. Colors are symmetric around white for zero if a table has both signs. common: what
    all tables show, such as "bias"; they then share one labelled scale of colors.
    """
    from matplotlib import colormaps

    columns = min(4, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (3 * columns + 0.8, 2.8 * rows + 0.4)
    figure, axes = new_figure(rows, columns, squeeze=False, figsize=size)
    finite = [table[table.isfinite()] for _, table, *_ in panels]
    finite = [torch.cat(finite)] * len(finite) if common else finite
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (heading, table, ylabel, xlabel), values in zip(axes.flat, panels, finite):
        low, high = values.min().item(), values.max().item()
        if low < 0 < high:
            high = max(high, -low)
            low = -high
        colors = colormaps["RdBu_r" if low == -high else "viridis"].with_extremes(bad=GREY)
        image = axis.imshow(
            table.masked_fill(table.isinf(), math.nan).numpy(),
            cmap=colors,
            vmin=low,
            vmax=high,
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, table.size(1) + 0.5, table.size(0) + 0.5, 0.5),
        )
        axis.set_title(heading, fontsize=9)
        axis.set(xlabel=xlabel, ylabel=ylabel)
        if not common:
            figure.colorbar(image, ax=axis)
    if common:
        figure.colorbar(image, ax=axes, label=common)
    grey = any(table.isinf().any() for _, table, *_ in panels)
    figure.suptitle(title + "; grey: not allowed" * grey, fontsize=10, parse_math=False)
    return figure
