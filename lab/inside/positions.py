"""Draw what a position encoding does at its three places."""

import math

import numpy as np
import torch

from lab.figures import WIDTH, new_figure, styled
from lab.inside.maps import CELLS
from model import Transformer
from nets.relative import ContentBias

BARS = {  # what the colors of tables are, by the first word of their names
    "vectors": "added to the token",
    "their": "dot product",
    "a": "channel of the vector",
    "q": "share of q · k before turning",
    "bias": "added to the score",
    "keys": "0: may attend",
}
HIDDEN = dict(facecolor="white", edgecolor="0.6", hatch="/////", linewidth=0)


def draw_positions(body, title):
    """Return a figure of what the encoding of a Transformer does at its three places, or None.

    Infinite entries are hatched, zeros white. Tables whose names begin alike share a color bar."""
    tables = position_tables(body)
    if not tables:
        return None
    notes = []
    if any(table.isneginf().any() for table in tables.values()):
        notes.append("hatched: hidden keys")
    if isinstance(body.positions, ContentBias):
        notes.append("a bias that reads queries and keys, here for vectors of ones")
    lines = [title]
    if notes:
        lines.append("; ".join(notes))
    return draw_tables(tables, "\n".join(lines))


@torch.no_grad()
def position_tables(body):
    """Return {name: table} of what the encoding of a Transformer does to block_size tokens."""
    config = body.config
    encoding = body.positions
    T = config.block_size
    D = config.n_embd // config.n_head
    w = body.embedding.weight
    i = torch.arange(T, device=w.device)
    tables = {}

    # Place 1: vectors that are added to the tokens
    vectors = encoding.embed(w.new_zeros(1, T, config.n_embd), i)[0]  # (T, C)
    if vectors.any():
        tables["vectors"] = vectors
        tables["their dot products"] = vectors @ vectors.mT

    # Place 2: queries and keys
    ones = w.new_ones(1, config.n_head, T, D)
    q, k = encoding.turn(ones, ones, i, i)
    if (q != q[:, :, :1]).any():
        tables["a vector of ones, turned"] = q[0, 0]  # of the first head
        tables["q · k of two such vectors"] = (q @ k.mT)[0, 0] / q.size(-1)

    # Place 3: biases of the scores, and what is hidden
    bias = Transformer.bias(body, encoding, i, i, mask=None)  # a table, also where kernels run
    if isinstance(encoding, ContentBias):
        of_ones = encoding.content_bias(q, k, i, i, body.blocks[0].attention)
        for head, table in enumerate((bias + of_ones)[0], 1):
            tables[f"bias of head {head}"] = table
    elif bias.nan_to_num(neginf=0).any():
        for head, table in enumerate(bias[0], 1):
            tables[f"bias of head {head}"] = table
    elif config.window or config.attn_block:
        tables["keys that a query may attend to"] = bias[0, 0]
    return tables


@styled(grid=False)
def draw_tables(tables, title):
    """Return a figure of {name: table}."""
    n_columns = min(4, len(tables))
    n_rows = math.ceil(len(tables) / n_columns)
    width = min(WIDTH, 2.5 * n_columns + 1)
    size = (width, n_rows * (width - 0.8) / n_columns + 0.7)
    figure, axes = new_figure(n_rows, n_columns, squeeze=False, figsize=size)
    arrays = {name: np.ma.masked_invalid(table.cpu()) for name, table in tables.items()}
    groups = {}  # first word of the names: their axes
    for axis, name in zip(axes.flat, arrays):
        groups.setdefault(name.split()[0], {})[name] = axis
    for first_word, axis_of in groups.items():
        scale = color_scale([arrays[name] for name in axis_of])
        for name, axis in axis_of.items():
            axis.patch.set(**HIDDEN)  # seen where entries are infinite
            image = axis.imshow(arrays[name], **scale, **CELLS)
            name_axes(axis, name)
        figure.colorbar(image, ax=list(axis_of.values()), label=BARS[first_word], aspect=30)
    for axis in axes.flat[len(arrays) :]:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=8.5)
    return figure


def color_scale(arrays):
    """Return how the entries of tables become colors: one color where all are negative or zero."""
    low = min(array.min() for array in arrays)
    high = max(array.max() for array in arrays)
    if low < 0 and high <= 0:
        return dict(cmap="Blues_r", vmin=low, vmax=0)
    limit = max(-low, high) or 1
    return dict(cmap="RdBu_r", vmin=-limit, vmax=limit)


def name_axes(axis, name):
    """Write the name of a table above it, and at the outer axes what its rows and columns are."""
    axis.set_title(name)
    if name.startswith(("vectors", "a vector")):  # a row per position
        axis.set(ylabel="position", xlabel="channel")
        return
    is_bias = name.startswith("bias")  # one of several
    if axis.get_subplotspec().is_first_col() or not is_bias:
        axis.set_ylabel("query")
    if axis.get_subplotspec().is_last_row() or not is_bias:
        axis.set_xlabel("key")
