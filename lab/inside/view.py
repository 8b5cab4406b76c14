"""The attention of a run on one text, as arrays, a figure or a web page."""

import math
from dataclasses import dataclass
from html import escape

import numpy as np
import torch

from data.files import write_text
from lab.errors import require
from lab.inside.describe import describe, name_part
from lab.inside.heatmaps import Picture, draw_maps
from lab.inside.page import page
from lab.load import LoadedRun


@dataclass(repr=False, eq=False)
class AttentionView:
    """One attention of a run on one text.

    words, keys: the tokens of queries and keys, as they are shown: a star marks unknown words, …
    the end of a truncated text. They differ only in cross-attention. The arrays have the shape
    (n_layer, n_head, T, S); their entry [i, j] is that of query i and key j. The weights are
    softmax(content + position) over the last dimension.
    """

    run: LoadedRun
    part: str  # encoder, decoder or cross; "" if the run has only one attention
    number: int  # which of the texts given, counted from 0
    words: list
    keys: list
    checks: list  # of all texts of a call: {"check", "worst", "limit"}
    heads: list  # of each head: distance, entropy, ... (`summary` in lab/inside/attention.py)
    inputs: dict  # what run.model.body reads: this text, or its whole thread
    weights: np.ndarray
    content: np.ndarray  # q k^T / sqrt(D), without positions; -inf if not allowed
    # What positions add to the scores: ALiBi's bias, or what a rotation changes. None if nothing:
    # learned and sinusoidal positions are part of the content.
    position: np.ndarray | None = None
    together: list = ()  # the views that share a page: of a text, or of all texts of a thread
    title: str = ""  # of this page

    def __repr__(self):
        L, H, T, S = self.weights.shape
        return f"<{self.name()}: {L} layers, {H} heads, {T} x {S} tokens>"

    def name(self):
        part = name_part(self.run, self.part)
        return describe(self.run) + f", {part}" * bool(part)

    def shown(self):
        """Return the weights as a tensor, NaN where attention is not allowed.

        A positive weight there remains visible.
        """
        weights, content = torch.from_numpy(self.weights), torch.from_numpy(self.content)
        return weights.masked_fill((content == -math.inf) & (weights == 0), math.nan)

    def picture(self, heading):
        """Return what `draw_maps` draws. heading: a list of lines."""
        return Picture(heading, self.words, self.keys, self.shown())

    def entry(self):
        """Return the entry of this view in maps.json."""
        return {
            "run": str(self.run.folder),
            "model": describe(self.run),
            **({"attention": self.part} if self.part else {}),
            "queries": self.words,
            "keys": self.keys,
            "checks": finite(self.checks),
            "heads": finite(self.heads),
        }

    def with_other(self, beside):
        """Return this view and, unless it is None, the one beside it. Raises UserError."""
        other = "beside: is not the attention of a text; give run.attention(text)"
        require((beside is None or isinstance(beside, AttentionView), other))
        return [self] if beside is None else [self, beside]

    def plot(self, layer=None, head=None, beside=None, title="", **how):
        """Return a matplotlib figure of heatmaps. Layers and heads count from 1; None: all.

        beside: another AttentionView to draw to the right. title: instead of the run's description.
        how: bos, mean, scale and numbers of `draw_maps`. Raises UserError for a layer or head that
        does not exist, and for numbers in large maps.
        """
        views = self.with_other(beside)
        for view in views:
            (L, H), has = view.weights.shape[:2], f"{view.run.folder} has"
            require(
                (layer in (None, *range(1, L + 1)), f"layer {layer}: {has} layers 1 to {L}"),
                (head in (None, *range(1, H + 1)), f"head {head}: {has} heads 1 to {H}"),
            )
        columns = [[view.picture([title or view.name()])] for view in views]
        return draw_maps(columns, layer, head, **how)

    def html(self, path=None, beside=None):
        """Return the attention page, which a notebook shows; with a path, also write it to a file.

        The page shows this text with all attentions of the run, what each layer answers, and what
        changes without each head. beside: the AttentionView of another run to compare with.
        """
        views = self.with_other(beside)
        same = beside is not None and beside.run is self.run
        require((not same, "beside: is of the same run; give a view of another run"))
        text = page(views, self.title)
        if path:
            write_text(path, text)
        return Page(text)


def finite(rows):
    """Return the dictionaries with None for NaN and infinity, which JSON does not have."""

    def known(value):
        return value if isinstance(value, str) or math.isfinite(value) else None

    return [{name: known(value) for name, value in row.items()} for row in rows]


class Page:
    """An HTML page that a notebook shows in a frame of its own."""

    def __init__(self, text):
        self.text = text

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self.text)}" style="{style}"></iframe>'
