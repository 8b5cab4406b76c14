"""The attention of a run on one text, as arrays, a figure or a web page."""

from html import escape

from data.files import write_text
from lab.errors import require
from lab.inside.describe import describe
from lab.inside.heatmaps import Picture, draw_maps
from lab.inside.page import page


class AttentionView:
    """One attention of a run on one text.

    words, keys: the tokens of queries and keys, as they are shown: a star marks unknown words, …
    the end of a truncated text. They differ only in cross-attention. weights: numpy array
    (n_layer, n_head, T, S), weight [i, j] of query i on key j. checks: what was checked, {"check",
    "worst", "limit"} each.
    """

    def __init__(self, reading, number, text, readings=()):
        """number: which of the texts; text: as it was typed. readings: all attentions of the run on
        its texts, for `html`."""
        self.reading, self.number, self.text, self.readings = reading, number, text, readings
        self.run, self.checks = reading.run, reading.checks
        self.words, self.keys, _ = reading.picture(number)
        self.weights = reading.cut(number, reading.weights).numpy()

    def __repr__(self):
        L, H, T, S = self.weights.shape
        return f"<{self.name()}: {L} layers, {H} heads, {T} x {S} tokens>"

    @property
    def content(self):
        """q k^T / sqrt(D), without positions: (n_layer, n_head, T, S), -inf if not allowed.

        The weights are softmax(content + position) over the last dimension.
        """
        return self.reading.cut(self.number, self.reading.scores[0]).numpy()

    @property
    def position(self):
        """The part of the scores that positions add: (n_layer, n_head, T, S), or None.

        ALiBi's bias, or what the rotation of rotary positions changes. Learned and sinusoidal
        positions are part of the content.
        """
        position = self.reading.scores[1]
        return None if position is None else self.reading.cut(self.number, position).numpy()

    def name(self):
        part = self.reading.part_name()
        return describe(self.run) + f", {part}" * bool(part)

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
        columns = []
        for view in self.with_other(beside):
            (L, H), has = view.weights.shape[:2], f"{view.run.folder} has"
            require(
                (layer in (None, *range(1, L + 1)), f"layer {layer}: {has} layers 1 to {L}"),
                (head in (None, *range(1, H + 1)), f"head {head}: {has} heads 1 to {H}"),
            )
            shown = view.reading.picture(view.number)
            columns.append([Picture([title or view.name()], *shown)])
        return draw_maps(columns, layer, head, **how)

    def html(self, path=None, beside=None):
        """Return the attention page, which a notebook shows; with a path, also write it to a file.

        The page shows this text with all attentions of the run, what each layer answers, and what
        changes without each head. beside: the AttentionView of another run to compare with.
        """
        views = self.with_other(beside)
        same = beside is not None and beside.run is self.run
        require((not same, "beside: is of the same run; give a view of another run"))
        readings = [reading for view in views for reading in view.readings]
        text = page(readings, title=self.text)
        if path:
            write_text(path, text)
        return Page(text)


class Page:
    """An HTML page that a notebook shows in a frame of its own."""

    def __init__(self, text):
        self.text = text

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self.text)}" style="{style}"></iframe>'
