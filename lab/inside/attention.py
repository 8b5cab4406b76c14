"""Record what the attentions of a run do on texts: weights, scores, checks, answers, effects.

`record` reads texts as one padded batch and returns an `AttentionView` for each text and attention.
Whatever looks inside a run (Python, heatmaps, the page) reads these views.
"""

import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F

from data.batching import generator, pad, send_all
from data.files import write_text
from data.tokenizer import BOS, MASK, SPECIAL, token_strings
from lab.inside.lens import Questions, attentions, halves
from lab.inside.maps import draw_maps
from lab.inside.page import PARTS, page
from model import Transformer
from nets.seq2seq import ancestor_inputs


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
    keys: list  # others than the words only in cross-attention
    checks: list  # of all texts of a call: {"check", "worst", "limit", "ok"}
    weights: np.ndarray
    content: np.ndarray  # q k^T / sqrt(D), without positions; -inf if not allowed
    position: np.ndarray | None  # what positions add to it: ALiBi's bias, what a rotation changes
    together: list = ()  # the views that share a page: of a text, or of all texts of a thread

    def __repr__(self):
        L, H, T, S = self.weights.shape
        return f"<{self.name}: {L} layers, {H} heads, {T} x {S} tokens>"

    @property
    def name(self):
        return self.run.describe() + (f", {PARTS[self.part]}" if self.part else "")

    @cached_property
    def asked(self):
        """`Questions` (lab/inside/lens.py) about the text: asked.layers, the answers after each
        layer, and asked.heads, the losses without each head."""
        return Questions(self.run, self.inputs)

    def shown(self):
        """Return the weights, NaN where attention is not allowed and there is none."""
        return np.where((self.content == -math.inf) & (self.weights == 0), np.nan, self.weights)

    def plot(self, layer=None, head=None, beside=None, title="", **how):
        """Return a matplotlib figure, see `draw_maps`. beside: another AttentionView to draw to the
        right. title: instead of the run's description."""
        views = filter(None, [self, beside])
        return draw_maps([[([title or view.name], view)] for view in views], layer, head, **how)

    def html(self, path=None, beside=None):
        """Return the page of this text with all attentions of the run, which a notebook shows;
        path: a file to write it to. beside: a view of another run to compare with."""
        shown = page([*filter(None, [self, beside])])
        if path:
            write_text(path, shown)
        return shown


def head_means(views):
    """Return means over all queries of some views: for each head, and last if weights were equal.

    distance: tokens to the key. first, previous, itself: weight of the first key, of the one before
    the query's own, and of that. entropy: in nats. Cross-attention has only first and entropy.
    induction: of causal models, see `induction`. across, match: of pairs, weight on the other
    sentence, and on the same word there."""

    def means(arrays):  # each (L, H, T, S) -> (5 or 7, L, H)
        found = []  # each (5 or 7, L, H, T)
        for w, view in zip(arrays, views):
            back = np.subtract.outer(*map(np.arange, w.shape[2:]))  # (T, S): i - j
            parts = w * abs(back), w * (back == 1), w * (back == 0), -w * np.log(w + (w == 0))
            distance, previous, itself, entropy = (part.sum(-1) for part in parts)
            found.append(np.stack([distance, w[..., 0], previous, itself, entropy]))
            if is_pair:
                second = np.arange(len(view.words)) > view.words.index("[EOS]")
                across, words = w * np.not_equal.outer(second, second), np.array(view.words)
                pair = across, across * np.equal.outer(words, words) * (words != "[EOS]")
                found[-1] = np.concatenate([found[-1], np.stack(pair).sum(-1)])
        return np.concatenate(found, -1).mean(-1).round(4)

    def row(values):
        named = dict(zip(names, values.tolist()))
        cross = views[0].part == "cross"
        return {name: named[name] for name in ("first", "entropy")} if cross else named

    is_pair = all("[EOS]" in view.words[:-1] for view in views) and not views[0].part
    names = ["distance", "first", "previous", "itself", "entropy", *["across", "match"] * is_pair]
    of_heads = means([view.weights for view in views])
    may = [np.isfinite(view.content).astype(float) for view in views]
    equal = means([m / m.sum(-1, keepdims=True).clip(min=1) for m in may]).mean((1, 2))
    if not views[0].part and views[0].run.model.body.causal:
        names.insert(4, "induction")
        shares = induction(views[0].run)
        of_heads, equal = (np.insert(x, 4, share, 0) for x, share in zip((of_heads, equal), shares))
    places = np.ndindex(of_heads.shape[1:])
    rows = [{"layer": i + 1, "head": h + 1} | row(of_heads[:, i, h]) for i, h in places]
    return [*rows, {"layer": "equal", "head": ""} | row(equal)]


@torch.no_grad()
def induction(run):
    """Return the mean weights (n_layer, n_head) on the token after the previous occurrence of the
    query's own, and the mean if weights were equal: in [BOS], up to 16 random tokens of the
    vocabulary, and the same again. Induction heads have large ones (Olsson et al. 2022)."""
    n_words = run.model.body.config.vocab_size - len(SPECIAL)
    n = min(16, n_words, (run.block_size - 1) // 2)
    drawn = [torch.randperm(n_words, generator=generator("induction", i))[:n] for i in range(16)]
    idx = F.pad((len(SPECIAL) + torch.stack(drawn)).repeat(1, 2), (1, 0), value=BOS)  # (16, 1 + 2n)
    _, layers = measure(run.model.body, {"idx": idx.to(run.device)})
    weights = torch.stack([weights for weights, _, _ in layers[""]]).cpu()  # (L, 16, H, T, T)
    equal, found = (weights > 0) / (weights > 0).sum(-1, keepdim=True), []
    for w in weights, equal:  # of queries n + 1 to 2n, the weight of the key n - 1 tokens before
        found.append(w.diagonal(1 - n, -2, -1)[..., 2:].mean((1, 3)).numpy())  # (L, H)
    return found[0].round(4), found[1].mean().round(4)


@torch.no_grad()
def record(run, texts):
    """Return the AttentionViews of a run on texts, part by part, from one padded batch. A thread
    reader takes all texts as one thread: the post, replies, and last the comment."""
    body, thread, views = run.model.body, run.kind == "thread", []
    inputs, alone, parts = read_batch(run, texts)
    h, found = measure(body, inputs)
    differs = (body(**inputs) - h)[inputs["mask"]].cpu()  # from the kernel that training uses
    for part, (queries, keys, first) in parts.items():
        arrays = [torch.stack(layers).cpu() for layers in zip(*found[part])]  # (L, B, H, T, S)
        if thread and part == "cross":  # the model reads the parent first; the post is shown first
            arrays = [x.flip(-1) for x in arrays]
        causal = part != "cross" and getattr(body, part, body).causal  # body.decoder or the body
        checks = check(arrays[0], queries, keys, causal, differs)
        for b, (words, of_keys) in enumerate(zip(queries, keys)):
            here = np.s_[:, b, :, : len(words), : len(of_keys)]  # without padding
            weights, content, position = (x[here].numpy() for x in arrays)
            position = position if np.nan_to_num(position, neginf=0).any() else None
            about = run, part, first + b, texts[-1 if thread else b], alone[first + b]
            views.append(AttentionView(*about, words, of_keys, checks, weights, content, position))
    for view in views:
        view.together = [other for other in views if thread or other.number == view.number]
    return views


def measure(body, inputs):
    """Return h (B, T, C), and {part: [(weights, content, position), ...]} with arrays (B, H, T, S)
    of each layer. Both scores are -inf where attention is not allowed."""
    layers = {}
    with ExitStack() as stack:
        for half in halves(body):
            stack.enter_context(with_table(half))
        for part, _, attention in attentions(body):
            records = layers.setdefault(part, [])
            stack.enter_context(recorded(attention, records))
        h = body(**inputs)
    return h, layers


@contextmanager
def with_table(half):
    """Within this context, a Transformer makes its table of biases also where a kernel could do
    without it (nets/kernels.py)."""
    half.bias = partial(Transformer.bias, half)  # hides the method
    try:
        yield
    finally:
        del half.bias


@contextmanager
def recorded(attention, records):
    """Within this context, an Attention appends the (weights, content, position) of each call to
    records, and takes its output from these weights.

    Its own `attend` computes the weights, whatever it does: of values that are the rows of an
    identity matrix, the weighted sum is the weights."""
    mix, attend = attention.mix, attention.attend
    before = []  # q and k of a call as they are before positions enter

    def keep_content(q, k, v, where):
        scaled_q = q
        if hasattr(attention, "scale"):  # a LogScale
            scaled_q = attention.scale(q, k)
        before.append((scaled_q, k))
        return mix(q, k, v, where)

    def keep_weights(q, k, v, bias):
        S = k.size(2)
        identity = torch.eye(S, device=v.device, dtype=v.dtype).expand(*v.shape[:2], S, S)
        weights = attend(q, k, identity, bias)  # (B, H, T, S)
        content = scores(q, k)  # (B, H, T, S), of cross-attention, which has no positions
        if before:
            content = scores(*before.pop())
        position = scores(q, k) - content
        if bias is not None:
            position = position + bias
        content = content.masked_fill(position == -math.inf, -math.inf)
        records.append((weights, content, position))
        return weights @ v

    attention.mix, attention.attend = keep_content, keep_weights  # hide the methods
    try:
        yield
    finally:
        del attention.mix, attention.attend


def scores(q, k):
    """q (B, H, T, D), k (B, H, S, D) -> q k^T / sqrt(D), (B, H, T, S)."""
    return q @ k.mT / math.sqrt(q.size(-1))


def check(weights, queries, keys, causal, differs):
    """Return what must hold of weights (L, B, H, T, S), and the worst value seen; NaN is not ok.
    differs: the output minus that of the weights times the values."""
    T, S = weights.shape[3:]
    real = (torch.arange(T) < torch.tensor([[len(words)] for words in queries]))[:, None, :, None]
    padding = (torch.arange(S) >= torch.tensor([[len(words)] for words in keys]))[:, None, None]
    found = [("rows sum to 1", (weights.sum(-1, keepdim=True) - 1) * real, 1e-5)]
    if padding.any():
        found.append(("no weight on padding", weights.where(real & padding, 0), 0.0))
    if causal:
        found.append(("nothing above the diagonal", weights.where(real, 0).triu(1), 0.0))
    found.append(("the weights give the same output", differs, 1e-4))
    found = [(name, x.abs().max().item(), limit) for name, x, limit in found]
    return [dict(check=name, worst=x, limit=limit, ok=x <= limit) for name, x, limit in found]


def read_batch(run, texts):
    """Return what the body reads of a batch of texts, what it reads of each text alone, and {part:
    (words of its queries, words of its keys, number of its first text)}."""
    if run.kind == "thread":
        *above, comment = texts
        last, first = len(above), max(0, len(above) - run.config["build"]["n_ancestors"])
        (idx,), words = run.read(comment, cut=True)
        inputs = dict(idx=idx[None], mask=torch.ones_like(idx[None], dtype=torch.bool))
        parts = {"decoder": (words, words, last)}
        if above:
            ids, shown = run.read(*above[first:], cut=True)
            inputs |= send_all(ancestor_inputs(*pad(ids)), run.device)
            names = [f"{i} {' '.join(of_text[1:])}" for i, of_text in enumerate(shown, first + 1)]
            parts = {"encoder": (shown, shown, first), **parts, "cross": (words, [names], last)}
        return inputs, [inputs] * len(texts), parts
    if run.kind != "seq2seq":
        ids, words = run.read(*texts, cut=True)
        alone, parts = [{"idx": one[None]} for one in ids], {"": (words, words, 0)}
        return send_all(dict(zip(("idx", "mask"), pad(ids))), run.device), alone, parts
    # An encoder-decoder: the target is what the run writes, the likeliest filling or translation
    sources, words = run.read(*texts, cut=True, masked=run.first_gap is not None)
    for n, ids in enumerate(sources):
        sources[n] = run.number_gaps(ids)
        gaps = zip(words[n], token_strings(run.tokenizer, sources[n]), ids == MASK)
        words[n] = [name if gap else word for word, name, gap in gaps]
    targets = [[BOS, *run.rewrite(source, run.block_size - 1)] for source in sources]
    targets = [torch.tensor(target, device=run.device) for target in targets]
    written = [token_strings(run.tokenizer, target) for target in targets]
    alone = [{"idx": t[None], "source": s[None]} for t, s in zip(targets, sources)]
    inputs = dict(zip(("idx", "mask", "source", "source_mask"), (*pad(targets), *pad(sources))))
    parts = {"encoder": (words, words, 0), "decoder": (written, written, 0)}
    return send_all(inputs, run.device), alone, parts | {"cross": (written, words, 0)}
