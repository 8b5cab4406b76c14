"""Draw what a position encoding does at its three places."""

import math

import numpy as np
import torch
from matplotlib import colormaps

from lab.figures import new_figure, styled
from lab.inside.maps import CELLS, GREY
from model import Transformer
from nets.relative import ContentBias


def draw_positions(body, title):
    """Return a figure of what the encoding of a Transformer does at its three places, or None.

    Infinite entries are grey, zeros white. Tables whose names begin alike share their colors."""
    tables = position_tables(body)
    if not tables:
        return None
    return draw_tables(tables, title)


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
            tables[f"bias of head {head} for ones"] = table
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
    n_rows = math.ceil(len(tables) / 4)
    size = (3 * n_columns + 0.8, 2.8 * n_rows + 0.4)
    figure, axes = new_figure(n_rows, n_columns, squeeze=False, figsize=size)
    colors = colormaps["RdBu_r"].with_extremes(bad=GREY)
    arrays = {name: np.ma.masked_invalid(table.cpu()) for name, table in tables.items()}
    largest = {}  # first word of the names -> largest absolute entry
    for name, array in arrays.items():
        group = name.split()[0]
        largest[group] = max(largest.get(group, 0), abs(array).max())
    for axis, (name, array) in zip(axes.flat, arrays.items()):
        limit = largest[name.split()[0]] or 1
        image = axis.imshow(array, cmap=colors, vmin=-limit, vmax=limit, **CELLS)
        figure.colorbar(image, ax=axis)
        axis.set_title(name, fontsize=9)
        if name.startswith(("vectors", "a vector")):  # a row per position
            axis.set(ylabel="position", xlabel="channel")
        else:
            axis.set(ylabel="query", xlabel="key")
    for axis in axes.flat[len(arrays) :]:
        axis.set_axis_off()
    figure.suptitle(title, fontsize=10)
    return figure
