"""Record what the attentions of a run do on texts: weights, scores, checks, answers, effects.

`record` reads texts as one padded batch and returns an `AttentionView` for each text and attention.
Whatever looks inside a run (Python, heatmaps, the page) reads these views.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from data.files import write_text
from lab.inside.lens import Questions
from lab.inside.maps import draw_maps
from lab.inside.measure import Record, measure
from lab.inside.page import PARTS, page
from lab.inside.reading import read_batch


@dataclass(repr=False, eq=False)
class AttentionView:
    """One attention of a run on one text. The arrays have the shape (n_layer, n_head, T, S); the
    weights are softmax(content + position) over the keys."""

    run: object  # an OpenRun
    part: str  # encoder, decoder or cross; "" if the run has only one attention
    number: int  # which of the texts given, counted from 0
    title: str  # the text, or the comment of a thread
    inputs: dict  # what run.model.body reads: this text, or its whole thread
    words: list  # queries as they are shown: * after unknown ones, … at the end of a cut text
    n_typed: int  # tokens of the queries' text before it was cut
    keys: list  # others than the words only in cross-attention
    checks: list  # of all texts of a call: {"check", "worst", "limit", "ok"}
    weights: np.ndarray
    content: np.ndarray  # q k^T / sqrt(D), without positions; -inf if not allowed
    position: np.ndarray | None  # what positions add to it: ALiBi's bias, what a rotation changes
    turned: np.ndarray | None  # what of this comes from turning or scaling q and k
    q: np.ndarray  # (n_layer, n_head, T, D), before positions enter
    k: np.ndarray  # (n_layer, n_head, S, D)
    lengths: np.ndarray  # of the value vectors, (n_layer, n_head, S)
    together: list = ()  # the views that share a page: of a text, or of all texts of a thread

    def __repr__(self):
        n_layer, n_head, T, S = self.weights.shape
        return f"<{self.name}: {n_layer} layers, {n_head} heads, {T} x {S} tokens>"

    @property
    def name(self):
        if self.part:
            return f"{self.run.describe()}, {PARTS[self.part]}"
        return self.run.describe()

    @property
    def length_note(self):
        """Say that a text was longer than in training, or "": that it was cut, or read on."""
        trained = self.run.block_size
        n_read = len(self.words)
        if n_read < self.n_typed:
            note = f"cut to the first {n_read} of {self.n_typed} tokens"
            if self.run.half.positions.ends:
                note += ", where learned positions end"
            return note
        if n_read > trained:
            return f"{n_read} tokens; in training, texts had up to {trained}"
        return ""

    @cached_property
    def asked(self):
        """`Questions` (lab/inside/lens.py) about the text: asked.layers, the answers after each
        layer, and asked.heads, the losses without each head."""
        return Questions(self.run, self.inputs)

    def shown(self):
        """Return the weights, NaN where attention is not allowed and there is none."""
        is_hidden = (self.content == -math.inf) & (self.weights == 0)
        return np.where(is_hidden, np.nan, self.weights)

    def plot(self, layer=None, head=None, beside=None, title="", mean=False, numbers=False):
        """Return a matplotlib figure, see `draw_maps`. beside: another AttentionView to draw to the
        right. title: instead of the run's description."""
        views = [self]
        if beside is not None:
            views.append(beside)
        columns = []
        for view in views:
            heading = [title or view.name]
            if view.length_note:
                heading.append(view.length_note)
            columns.append([(heading, view)])
        return draw_maps(columns, layer, head, mean, numbers)

    def html(self, path=None, beside=None):
        """Return the page of this text with all attentions of the run, which a notebook shows;
        path: a file to write it to. beside: a view of another run to compare with."""
        views = [self]
        if beside is not None:
            views.append(beside)
        text = page(views)
        if path:
            write_text(path, text)
        return text


@torch.no_grad()
def record(run, texts):
    """Return the AttentionViews of a run on texts, part by part, from one padded batch. A thread
    reader takes all texts as one thread: the post, replies, and last the comment."""
    body = run.model.body
    batch = read_batch(run, texts)
    h, records = measure(body, batch.inputs)
    errors = body(**batch.inputs) - h  # (B, T, C), of the output without the recorded weights
    errors = errors[batch.inputs["mask"]].cpu()
    views = []
    for part, tokens in batch.parts.items():
        arrays = stack_layers(records[part])
        if run.kind == "thread" and part == "cross":
            # The model reads the parent first; the post is shown first
            arrays = flip_keys(arrays)
        causal = False
        is_hidden = arrays.content == -math.inf  # by what the model adds to the scores
        if part != "cross":
            half = getattr(body, part, body)  # body.decoder, or the body
            causal = half.causal
            is_hidden = is_hidden | ~visible_keys(half, part, batch.inputs)
        checks = check_weights(arrays.weights, is_hidden, tokens, causal, body.config.sinks)
        checks.append(make_check("the weights give the same output", errors, limit=1e-4))
        for b, (words, keys) in enumerate(zip(tokens.queries, tokens.keys)):
            number = tokens.first + b
            title = texts[number]
            if run.kind == "thread":
                title = texts[-1]
            views.append(
                AttentionView(
                    run=run,
                    part=part,
                    number=number,
                    title=title,
                    inputs=batch.alone[number],
                    words=words,
                    n_typed=tokens.typed[b],
                    keys=keys,
                    checks=checks,
                    **arrays_of_text(arrays, b, len(words), len(keys)),
                )
            )
    for view in views:
        view.together = views
        if run.kind != "thread":
            view.together = [other for other in views if other.number == view.number]
    return views


def stack_layers(records):
    """Return the Records of all layers as one, whose arrays are (L, B, H, T, S)."""
    return Record(*[torch.stack(arrays).cpu() for arrays in zip(*records)])


def flip_keys(arrays):
    """Return a Record with its keys in the opposite order."""
    return arrays._replace(
        weights=arrays.weights.flip(-1),
        content=arrays.content.flip(-1),
        position=arrays.position.flip(-1),
        turned=arrays.turned.flip(-1),
        k=arrays.k.flip(-2),
        lengths=arrays.lengths.flip(-1),
    )


def arrays_of_text(arrays, b, T, S):
    """Return the arrays of an AttentionView: those of text b in a Record, without its padding."""
    cells = np.s_[:, b, :, :T, :S]
    return {
        "weights": arrays.weights[cells].numpy(),  # (L, H, T, S)
        "content": arrays.content[cells].numpy(),
        "position": none_if_zero(arrays.position[cells].numpy()),
        "turned": none_if_zero(arrays.turned[cells].numpy()),
        "q": arrays.q[:, b, :, :T].numpy(),  # (L, H, T, D)
        "k": arrays.k[:, b, :, :S].numpy(),  # (L, H, S, D)
        "lengths": arrays.lengths[:, b, :, :S].numpy(),  # (L, H, S)
    }


def none_if_zero(position):
    """Return scores of positions, or None if they are 0 wherever attention is allowed."""
    if np.nan_to_num(position, neginf=0).any():
        return position
    return None


def visible_keys(half, part, inputs):
    """Return which keys a query may attend to by the `may_attend` of a half, (1 or B, 1, T, S).
    part: encoder, decoder or ""; inputs: of the body."""
    name = "idx"
    name_of_mask = "mask"
    if part == "encoder":
        name = "source" if "source" in inputs else "texts"
        name_of_mask = f"{name}_mask"
    mask = inputs[name_of_mask]
    _, where = half.start(inputs[name], mask)  # an option may choose other positions than 0, 1, ...
    return half.may_attend(where.i, where.j, mask).cpu()


def check_weights(weights, is_hidden, tokens, causal, sinks):
    """Return checks of what must hold of weights (L, B, H, T, S). is_hidden, the same shape: keys
    that the model hides from a query. tokens: a Tokens. sinks: whether the rest of a row's weight
    is that of a sink (nets/sinks.py)."""
    T, S = weights.shape[3:]
    n_queries = torch.tensor([len(words) for words in tokens.queries])  # (B,)
    n_keys = torch.tensor([len(words) for words in tokens.keys])
    is_query = (torch.arange(T) < n_queries[:, None])[:, None, :, None]  # (B, 1, T, 1)
    is_padding = (torch.arange(S) >= n_keys[:, None])[:, None, None, :]  # (B, 1, 1, S)
    excess = (weights.sum(-1, keepdim=True) - 1) * is_query
    name = "rows sum to 1"
    if sinks:
        name = "rows sum to at most 1"
        excess = excess.clamp(min=0)
    checks = [make_check(name, excess, limit=1e-5)]
    if is_padding.any():
        on_padding = weights.where(is_query & is_padding, 0)
        checks.append(make_check("no weight on padding", on_padding, limit=0.0))
    is_hidden = is_hidden & is_query & ~is_padding
    if causal:
        on_later = weights.where(is_query, 0).triu(1)
        checks.append(make_check("nothing above the diagonal", on_later, limit=0.0))
        is_hidden = is_hidden.tril()
    if is_hidden.any():  # by a window, a block, one-sided heads, ...
        on_hidden = weights.where(is_hidden, 0)
        checks.append(make_check("no weight on tokens that options hide", on_hidden, limit=0.0))
    return checks


def make_check(name, errors, limit):
    """Return whether errors, which should be 0, stay within a limit. NaN does not."""
    worst = errors.abs().max().item()
    return {"check": name, "worst": worst, "limit": limit, "ok": worst <= limit}
