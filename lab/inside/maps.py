"""Draw heatmaps: attention maps of a text, and what a position encoding does."""

import math
import textwrap
from functools import partial

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm

from data.files import UserError
from lab.figures import new_figure, styled
from model import Transformer
from nets.relative import ContentBias

GREY = "0.88"  # attention not allowed; a color that no map uses
CELLS = dict(aspect="auto", interpolation="nearest")


@styled(grid=False)
def draw_maps(columns, layer=None, head=None, mean=False, numbers=False):
    """Return a figure of one map per layer (row) and head (column).

    columns: for each run a list of (lines of a heading, AttentionView), drawn below each other.
    layer, head: which to draw, counted from 1; None: all. mean: draw the mean of a layer's heads.
    numbers: write weights into the cells. Raises UserError for these with more than 12 tokens."""
    views = [view for column in columns for _, view in column]
    longest = max(len(words) for view in views for words in (view.words, view.keys))
    if numbers and longest > 12:
        raise UserError(f"numbers: fit into maps of 12 tokens, the text has {longest}; shorten it")
    n_map = sum(1 if mean or head else column[0][1].weights.shape[1] for column in columns)
    pitch = min(max(0.13, min(0.3, 2 / longest)), max(3, min(8, 50 / n_map)) / longest)
    pitch = 0.3 if numbers else pitch  # inches a token
    blues, norm = colormaps["Blues"].with_extremes(bad=GREY), PowerNorm(0.5, 0, 1)
    # The figure is 1 x 1 inch, so that positions are inches; saving grows it to its content
    figure, axis = new_figure(figsize=(1, 1))
    axis.remove()
    figure.set_layout_engine("none")
    figure.savefig = partial(figure.savefig, bbox_inches="tight")
    right, bottom = 0.0, -1.6
    for column in columns:
        left, top = right + 0.15 + max(room(view.words) for _, view in column), 0.0
        for n, (heading, view) in enumerate(column):
            weights = view.shown()
            if mean:  # of all heads: a key that a head may not see has the weight 0 there
                hidden = np.isnan(weights).all(1, keepdims=True)
                weights = np.where(hidden, np.nan, np.nan_to_num(weights).mean(1, keepdims=True))
            layers = [layer - 1] if layer else range(len(weights))
            heads = [head - 1] if head and not mean else range(weights.shape[1])
            across = len(heads) if len(heads) <= 6 * len(layers) else 4  # maps in a row
            starts = range(0, len(heads), across)
            rows = [[(i, h) for h in heads[k:][:across]] for i in layers for k in starts]
            height, width = (max(0.8, pitch * len(words)) for words in (view.words, view.keys))
            right = max(right, left + len(rows[0]) * (width + 0.15))
            if n:  # below the names of the keys above
                top -= room(column[n - 1][1].keys) + 0.3
            lines = [textwrap.fill(line, max(24, int(13 * (right - left)))) for line in heading]
            figure.text(left, top - 0.08, "\n".join(lines), va="bottom", fontsize=9)
            for row, below in zip(rows, [*rows[1:], []]):
                top -= height + 0.3
                for k, (i, h) in enumerate(row):
                    axis = figure.add_axes([left + k * (width + 0.15), top, width, height])
                    axis.imshow(weights[i, h], cmap=blues, norm=norm, **CELLS)
                    which = "mean of heads" if mean else f"head {h + 1}"
                    axis.set_title(f"layer {i + 1}, {which}", fontsize=8, pad=3)
                    if "[EOS]" in view.words[:-1]:  # where the second sentence of a pair begins
                        second = view.words.index("[EOS]") + 0.5
                        axis.axhline(second, color="0.4", linewidth=0.8)
                        axis.axvline(second, color="0.4", linewidth=0.8)
                    name_tokens(axis.xaxis, view.keys, pitch, k >= len(below), "key", rotation=90)
                    name_tokens(axis.yaxis, view.words, pitch, k == 0, "query")
                    for (t, s), w in np.ndenumerate(weights[i, h]) if numbers else ():
                        text = "" if np.isnan(w) else f"{w:.2f}".removeprefix("0")
                        style = dict(color="white" if norm(w) > 0.63 else "black", fontsize=5.5)
                        axis.text(s, t, text, ha="center", va="center", **style)
        bottom = min(bottom, top)
    height = min(2.6, -bottom)
    bar = figure.add_axes([right + 0.1, -height, 0.12, height - 0.3])
    figure.colorbar(ScalarMappable(norm, blues), cax=bar, ticks=[0, 0.05, 0.2, 0.5, 1])
    bar.set_ylabel("attention weight (sqrt scale)\ngrey: not allowed, *: unknown word", fontsize=7)
    bar.tick_params(labelsize=7)
    return figure


def room(words):
    """Return the inches that the names of tokens and the label of their axis take."""
    return max(sum(1 + 0.7 * (c > "\u1100") for c in word[:16]) for word in words) / 15 + 0.3


def name_tokens(axis, words, pitch, wanted, label, **style):
    """Name the tokens along an axis, pitch inches apart, and label it, if wanted."""
    every = math.ceil(0.125 / pitch)  # there is no room for more names
    names = [w if len(w) <= 16 else f"{w[:15]}…" for w in words[::every] if wanted]
    size = min(8, 54 * pitch * every)
    axis.set_ticks(range(0, every * len(names), every), names, fontsize=size, **style)
    axis.set_tick_params(length=0, pad=2)
    axis.set_label_text(label * wanted, fontsize=8)


@torch.no_grad()
@styled(grid=False)
def draw_positions(body, title):
    """Return a figure of what the encoding of a Transformer does at its three places, or None.

    Infinite entries are grey, zeros white. Tables whose names begin alike share their colors."""
    config, encoding, w, tables = body.config, body.positions, body.embedding.weight, {}
    T, i = config.block_size, torch.arange(config.block_size, device=w.device)
    vectors = encoding.embed(w.new_zeros(1, T, config.n_embd), i)[0]
    if vectors.any():
        tables = {"vectors": vectors, "their dot products": vectors @ vectors.mT}
    ones = w.new_ones(1, config.n_head, T, config.n_embd // config.n_head)
    q, k = encoding.turn(ones, ones, i, i)
    if (q != q[:, :, :1]).any():
        tables["a vector of ones, turned"] = q[0, 0]
        tables["q · k of two such vectors"] = (q @ k.mT)[0, 0] / q.size(-1)
    hidden = Transformer.bias(body, encoding, i, i, mask=None)  # with the bias of the positions
    if isinstance(encoding, ContentBias):
        biases = hidden + encoding.content_bias(q, k, i, i, body.blocks[0].attention)
        tables |= {f"bias of head {h} for ones": bias for h, bias in enumerate(biases[0], 1)}
    elif hidden.nan_to_num(neginf=0).any():
        tables |= {f"bias of head {h}": bias for h, bias in enumerate(hidden[0], 1)}
    elif config.window or config.attn_block:
        tables["keys that a query may attend to"] = hidden[0, 0]
    if not tables:
        return None
    columns, rows = min(4, len(tables)), math.ceil(len(tables) / 4)
    size = (3 * columns + 0.8, 2.8 * rows + 0.4)
    figure, axes = new_figure(rows, columns, squeeze=False, figsize=size)
    colors = colormaps["RdBu_r"].with_extremes(bad=GREY)
    tables = {name: np.ma.masked_invalid(table.cpu()) for name, table in tables.items()}
    for axis in axes.flat[len(tables) :]:
        axis.set_axis_off()
    for axis, (name, table) in zip(axes.flat, tables.items()):
        alike = [other for text, other in tables.items() if text.split()[0] == name.split()[0]]
        most = max(abs(other).max() for other in alike) or 1
        image = axis.imshow(table, cmap=colors, vmin=-most, vmax=most, **CELLS)
        figure.colorbar(image, ax=axis)
        axis.set_title(name, fontsize=9)
        wide = name.startswith(("vectors", "a vector"))  # a row per position, of channels
        axis.set(ylabel="position" if wide else "query", xlabel="channel" if wide else "key")
    figure.suptitle(title, fontsize=10)
    return figure
