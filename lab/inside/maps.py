"""Draw the attention weights of texts as heatmaps."""

import math
import textwrap
import unicodedata
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm

from data.files import UserError
from lab.figures import choose_ink, new_figure, styled

GREY = "0.88"  # attention not allowed; a color that no map uses
CELLS = {"aspect": "auto", "interpolation": "nearest"}
BLUES = colormaps["Blues"].with_extremes(bad=GREY)
MOST_NUMBERED = 12  # tokens of a map with numbers in its cells
LONGEST_NAME = 16  # characters of a token that are shown

# Inches
GAP = 0.15  # between maps, and around them
HEADING = 0.3  # of a map
NAMED = 0.1  # between tokens, so that there is room for each name
THUMBNAIL = 0.75  # size of a map, six of which are as wide as a page
MOST_WIDE = 20  # of a figure with all maps large; above, they are thumbnails
MOST_HIGH = 30


@dataclass
class Map:
    """The weights of one head, or the mean of a layer's."""

    title: str
    weights: np.ndarray  # (T, S)


@styled(grid=False)
def draw_maps(columns, layer=None, head=None, mean=False, numbers=False):
    """Return a figure of one map per layer (row) and head (column).

    columns: for each run a list of (lines of a heading, AttentionView), drawn below each other.
    layer, head: which to draw, counted from 1; None: all. mean: draw the mean of a layer's heads.
    numbers: write weights into the cells. Raises UserError for these with more than 12 tokens."""
    check_numbers(columns, layer, head)
    longest = 0  # tokens
    n_map = 0  # side by side in the whole figure, before any row is broken
    for column in columns:
        for _, view in column:
            longest = max(longest, len(view.words), len(view.keys))
        _, first_view = column[0]
        n_shown = 1 if mean or head else first_view.weights.shape[1]
        n_map += n_shown
    if numbers and longest > MOST_NUMBERED:
        remedy = f"the text has {longest}; shorten it"
        raise UserError(f"numbers: fit into maps of {MOST_NUMBERED} tokens, {remedy}")
    pitch = choose_pitch(longest, n_map, numbers)
    n_across = None  # maps in a row, of thumbnails
    asked = layer or head or numbers
    if not asked and is_too_large(columns, n_map, map_size(range(longest), pitch), mean):
        n_across = max(1, 6 // len(columns))
        pitch = THUMBNAIL / longest

    figure = empty_figure()
    right = 0.0  # end of the columns so far, in inches
    bottom = -1.6
    for column in columns:
        left = right + GAP + max(inches_of_names(view.words, pitch) for _, view in column)
        top = 0.0
        for n, (heading, view) in enumerate(column):
            if n > 0:
                _, view_above = column[n - 1]
                top -= inches_of_names(view_above.keys, pitch) + 0.3
            rows = arrange_maps(view, layer, head, mean, n_across)
            width = map_size(view.keys, pitch)
            right = max(right, left + len(rows[0]) * (width + GAP))
            draw_heading(figure, heading, left, top, right - left)
            top = draw_rows(figure, rows, view, left, top, pitch, numbers)
        bottom = min(bottom, top)
    note = "grey: not allowed, *: unknown word"
    if n_across:
        note = f"{note}\nthumbnails; --layer and --head draw large maps"
    draw_color_bar(figure, right, bottom, note)
    return figure


def check_numbers(columns, layer, head):
    """Raise UserError unless all views have the layer and the head."""
    for column in columns:
        for _, view in column:
            n_layer, n_head = view.weights.shape[:2]
            check_number("layer", layer, n_layer)
            check_number("head", head, n_head)


def check_number(name, number, most):
    """Raise UserError unless the number of a layer or head is None, or from 1 to `most`."""
    if number is not None and not 1 <= number <= most:
        raise UserError(f"{name}: 1 to {most}, not {number}")


def empty_figure():
    """Return a figure of 1 x 1 inch, so that positions are inches. Saving grows it to its
    content."""
    figure, axis = new_figure(figsize=(1, 1))
    axis.remove()
    figure.set_layout_engine("none")
    figure.savefig = partial(figure.savefig, bbox_inches="tight")
    return figure


def choose_pitch(longest, n_map, numbers):
    """Return the inches between two tokens of maps with up to `longest` tokens, n_map of them side
    by side."""
    if numbers:
        return 0.3
    readable = max(0.13, min(0.3, 2 / longest))
    widest_map = max(3, min(8, 50 / n_map))  # inches: the fewer maps, the wider
    return min(readable, widest_map / longest)


def map_size(words, pitch):
    """Return the width of a map with these keys, or the height with these queries, in inches."""
    return max(THUMBNAIL, pitch * len(words))


def is_too_large(columns, n_map, size, mean):
    """Return whether maps of a size in inches, n_map of them side by side, make a figure that is
    larger than MOST_WIDE or MOST_HIGH."""
    n_high = 0  # maps below each other
    for column in columns:
        n_high = max(n_high, sum(len(view.weights) for _, view in column))
    return n_map * size > MOST_WIDE or n_high * size > MOST_HIGH


def arrange_maps(view, layer, head, mean, n_across=None):
    """Return rows of Maps of a view: one or several rows for each layer. n_across: of thumbnails,
    maps in a row, of several layers if they are means."""
    weights = view.shown()  # (L, H, T, S)
    if mean:
        weights = mean_of_heads(weights)  # (L, 1, T, S)
    layers = range(len(weights))
    if layer:
        layers = [layer - 1]
    heads = range(weights.shape[1])
    if head and not mean:
        heads = [head - 1]
    if n_across and mean:
        means = [Map(f"layer {i + 1}, mean", weights[i, 0]) for i in layers]
        return [means[start : start + n_across] for start in range(0, len(means), n_across)]
    if not n_across:
        n_across = len(heads)
        if n_across > 6 * len(layers):  # a wide strip of maps
            n_across = 4
    rows = []
    for i in layers:
        for start in range(0, len(heads), n_across):
            row = []
            for h in heads[start : start + n_across]:
                name = "mean of heads" if mean else f"head {h + 1}"
                row.append(Map(f"layer {i + 1}, {name}", weights[i, h]))
            rows.append(row)
    return rows


def mean_of_heads(weights):
    """weights (L, H, T, S) -> (L, 1, T, S). A key that only some heads may see has the weight 0 in
    the others."""
    is_hidden = np.isnan(weights).all(1, keepdims=True)
    means = np.nan_to_num(weights).mean(1, keepdims=True)
    return np.where(is_hidden, np.nan, means)


def draw_heading(figure, heading, left, top, width):
    """Write the lines of a heading above `top`, broken to the width in inches."""
    n_characters = max(24, int(13 * width))
    lines = [textwrap.fill(line, n_characters) for line in heading]
    figure.text(left, top - 0.08, "\n".join(lines), va="bottom", fontsize=9)


def draw_rows(figure, rows, view, left, top, pitch, numbers):
    """Draw rows of Maps of a view below `top`; return where they end."""
    width = map_size(view.keys, pitch)
    height = map_size(view.words, pitch)
    for number, row in enumerate(rows):
        top -= height + HEADING
        n_below = 0  # maps in the next row, under which the keys are named
        if number + 1 < len(rows):
            n_below = len(rows[number + 1])
        for k, shown in enumerate(row):
            axis = figure.add_axes([left + k * (width + GAP), top, width, height])
            draw_map(axis, shown)
            mark_second_sentence(axis, view.words)
            mark_end_of_training(axis, view)
            name_tokens(axis.xaxis, view.keys, pitch, k >= n_below, "key", rotation=90)
            name_tokens(axis.yaxis, view.words, pitch, k == 0, "query")
            if numbers:
                write_numbers(axis, shown.weights)
    return top


def weight_scale():
    """Return how weights become shades: by their square root, so small ones can be told apart."""
    return PowerNorm(0.5, 0, 1)


def draw_map(axis, shown):
    """Draw a Map into an axis."""
    axis.imshow(shown.weights, cmap=BLUES, norm=weight_scale(), **CELLS)
    is_small = axis.get_position().width < 1  # inches
    axis.set_title(shown.title, fontsize=7 if is_small else 8, pad=3)


def mark_second_sentence(axis, words):
    """Draw lines where the second sentence of a pair begins."""
    if "[EOS]" not in words[:-1]:
        return
    place = words.index("[EOS]") + 0.5
    axis.axhline(place, color="0.4", linewidth=0.8)
    axis.axvline(place, color="0.4", linewidth=0.8)


def mark_end_of_training(axis, view):
    """Draw dashed lines where texts of training ended at the latest."""
    trained = view.run.block_size
    if len(view.words) > trained:
        axis.axhline(trained - 0.5, color="0.4", linewidth=0.8, linestyle="--")
    if len(view.keys) > trained:
        axis.axvline(trained - 0.5, color="0.4", linewidth=0.8, linestyle="--")


def name_tokens(axis, words, pitch, wanted, label, **style):
    """Name the tokens along an axis, pitch inches apart, and label it, if wanted."""
    step = math.ceil(NAMED / pitch)  # there is no room for more names
    names = []
    if wanted and has_names(words, pitch):
        names = [shorten(word) for word in words[::step]]
    if names and step > 1:
        label = f"{label} (every {step}th is named)"
    if wanted:
        axis.set_label_text(label, fontsize=8)
    size = min(8, 70 * pitch * step)
    axis.set_ticks(range(0, step * len(names), step), names, fontsize=size, **style)
    axis.set_tick_params(length=0, pad=2)


def shorten(word):
    """Return the name of a token, cut to LONGEST_NAME characters. Invisible ones, such as the
    joiners of emoji, become their numbers: U+200D."""
    name = ""
    for character in word:
        if unicodedata.category(character) == "Cf":
            name += f"U+{ord(character):04X}"
        else:
            name += character
    if len(name) <= LONGEST_NAME:
        return name
    return name[: LONGEST_NAME - 1] + "…"


def has_names(words, pitch):
    """Return whether the tokens of a map are named: all, or in a large map some."""
    return pitch >= NAMED or pitch * len(words) > 2 * THUMBNAIL


def inches_of_names(words, pitch):
    """Return the inches that the names of tokens and the label of their axis take."""
    if not has_names(words, pitch):
        return 0.3
    widths = []
    for word in words:
        shown = shorten(word)
        n_wide = sum(character > "\u1100" for character in shown)  # as in Chinese and Japanese
        widths.append(len(shown) + 0.7 * n_wide)
    return max(widths) / 15 + 0.3


def write_numbers(axis, weights):
    """Write weights (T, S) into the cells of a map, without their leading 0."""
    shade = weight_scale()
    for (t, s), weight in np.ndenumerate(weights):
        if np.isnan(weight):
            continue
        color = choose_ink(BLUES(shade(weight)))
        text = f"{weight:.2f}".removeprefix("0")
        axis.text(s, t, text, ha="center", va="center", color=color, fontsize=5.5)


def draw_color_bar(figure, right, bottom, note):
    """Draw the scale of weights, with a note, to the right of all maps."""
    height = min(2.6, -bottom)
    axis = figure.add_axes([right + 0.1, -height, 0.12, height - HEADING])
    scale = ScalarMappable(weight_scale(), BLUES)
    figure.colorbar(scale, cax=axis, ticks=[0, 0.05, 0.2, 0.5, 1])
    axis.set_ylabel(f"attention weight (sqrt scale)\n{note}", fontsize=7)
    axis.tick_params(labelsize=7)
