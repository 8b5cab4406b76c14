"""Measure the attention of a run on some texts.

`readings_of` gives one `Reading` for each attention of a run. It holds what was checked, means of
every head, and one `AttentionView` (view.py) for each text. The texts are computed as one padded
batch. Nothing outside this file and checks.py, scores.py and texts.py knows about the batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from lab.inside.checks import allowed, examine, examine_cross, steps_ahead
from lab.inside.scores import take_apart
from lab.inside.texts import Texts, read, read_both
from lab.inside.view import AttentionView
from lab.load import LoadedRun
from nets.device import send_all
from nets.thread_reader import ancestor_inputs


@dataclass
class Reading:
    """One attention of a run, measured on texts."""

    run: LoadedRun
    part: str  # encoder, decoder or cross; "" if the run has only one attention
    checks: list  # {"check": what must hold, "worst": value seen, "limit": largest value allowed}
    n_token: int  # queries of all texts
    means: list  # the `summary` of all texts; last, what it would be if all weights were equal
    views: list  # one AttentionView per text


def readings_of(run, texts):
    """Measure a run's attention on texts: one Reading, or one per part of several.

    A thread reader takes all texts as one thread: the post, replies, and last the comment.
    """
    if run.kind == "seq2seq":
        readings = readings_of_seq2seq(run, texts)
    elif run.kind == "thread":
        readings = readings_of_thread(run, texts)
    else:
        queries = read(run, texts)
        alone = [{"idx": ids} for ids in queries.rows(run.device)]
        readings = [measure(run, "", queries.inputs(run.device), queries, queries, alone)]
    views = [view for reading in readings for view in reading.views]
    thread = run.kind == "thread"  # all of its texts share a page
    for view in views:
        view.together = [other for other in views if thread or other.number == view.number]
        view.title = texts[-1 if thread else view.number]
    return readings


def readings_of_seq2seq(run, texts):
    """Return the readings of encoder, decoder and cross-attention."""
    source, target = read_both(run, texts)
    for_encoder, for_decoder = source.inputs(run.device), target.inputs(run.device)
    memory = run.model.body.encoder(**for_encoder)
    for_decoder |= {"memory": memory, "memory_mask": for_encoder["mask"]}
    rows = zip(target.rows(run.device), source.rows(run.device))
    alone = [{"idx": written, "source": given} for written, given in rows]
    return [
        measure(run, "encoder", for_encoder, source, source, alone),
        measure(run, "decoder", for_decoder, target, target, alone),
        measure(run, "cross", for_decoder, target, source, alone),
    ]


def readings_of_thread(run, texts):
    """Return the readings of the ancestors, the comment, and of its attention to the ancestors.

    With a single text there are no ancestors.
    """
    body, last = run.model.body, len(texts) - 1
    n_above = min(last, run.config["reader"]["n_ancestors"])
    if n_above < last:
        print(f"  note: only the nearest {n_above} of {last} ancestors are read")
    above = read(run, texts[last - n_above : last], last - n_above) if n_above else None
    comment = read(run, texts[last:], last)
    for_decoder = comment.inputs(run.device)
    alone = {"idx": for_decoder["idx"]}
    if not above:
        return [measure(run, "decoder", for_decoder, comment, comment, [alone])]
    thread = send_all(ancestor_inputs(above.idx, above.mask), run.device)
    alone |= thread
    memory = body.read_ancestors(thread["texts"], thread["texts_mask"], thread["ancestors"])
    for_decoder |= {"memory": memory, "memory_mask": thread["ancestors_mask"]}
    names = [f"{i} {' '.join(words[1:])}" for i, words in enumerate(above.words, above.first + 1)]
    ancestors = Texts(None, torch.ones(1, n_above, dtype=torch.bool), [names])
    return [
        measure(run, "encoder", above.inputs(run.device), above, above, [alone] * n_above),
        measure(run, "decoder", for_decoder, comment, comment, [alone]),
        measure(run, "cross", for_decoder, comment, ancestors, [alone]),
    ]


def body_of(run, part):
    """Return the transformer of a run that has this attention."""
    name = "decoder" if part == "cross" else part
    return getattr(run.model.body, name) if name else run.model.body


# ---------------------------------------------------------------------------- the batch


def measure(run, part, inputs, queries, keys, alone):
    """Return the Reading of one attention.

    inputs: the batch that its transformer reads. queries, keys: the Texts in it. alone: for each
    text, what run.model.body reads of it.
    """
    body, cross = body_of(run, part), part == "cross"
    weights, checks = (examine_cross if cross else examine)(body, inputs)  # (L, B, H, T, S)
    H, T = weights.shape[2:4]
    may = keys.mask[:, None, None, :].expand(-1, H, T, -1)  # (B, H, T, S): allowed
    if not cross:
        may = may & allowed(body, T)
    content, position = take_apart(body, inputs, cross, may)
    if cross and run.kind == "thread":  # reads the parent first; the post is shown first
        weights, content = weights.flip(-1), content.flip(-1)
    views = []
    for b, (words, key_words) in enumerate(zip(queries.words, keys.words)):
        here = np.s_[:, b, :, : len(words), : len(key_words)]  # without padding
        view = AttentionView(
            run,
            part,
            number=queries.first + b,
            words=words,
            keys=key_words,
            weights=weights[here].numpy(),
            content=content[here].numpy(),
            position=None if position is None else position[here].numpy(),
            checks=checks,
            heads=summary(weights[:, b : b + 1], queries.mask[b : b + 1], cross),
            inputs=alone[b],
        )
        views.append(view)
    means = [*summary(weights, queries.mask, cross), equal_weights(may, queries.mask, cross)]
    return Reading(run, part, checks, int(queries.mask.sum()), means, views)


def summary(weights, mask, cross=False):
    """Summarize weights (L, B, H, T, S): per head, means over the queries in mask (B, T).

    distance: tokens to the key. first, previous, itself: weight of the first key, of the one before
    the query's own, and of that. entropy: in nats. Cross-attention has only first and entropy.
    """
    values = {}  # each (L, B, H, T)
    if not cross:
        values["distance"] = (weights * steps_ahead(mask.size(1)).abs()).sum(-1)
    values["first"] = weights[..., 0]
    if not cross:
        values["previous"] = F.pad(weights.diagonal(-1, dim1=-2, dim2=-1), (1, 0))
        values["itself"] = weights.diagonal(dim1=-2, dim2=-1)
    values["entropy"] = torch.special.entr(weights).sum(-1)
    means = {}  # each (L, H)
    for name, value in values.items():
        means[name] = (value * mask[:, None, :]).sum((1, 3)) / mask.sum()
    return [
        {"layer": layer + 1, "head": head + 1}
        | {name: round(mean[layer, head].item(), 4) for name, mean in means.items()}
        for layer in range(weights.size(0))
        for head in range(weights.size(2))
    ]


def equal_weights(may, mask, cross):
    """Return the mean `summary` of heads with equal weights where `may` (B, H, T, S) is True."""
    weights = may.float() / may.sum(-1, keepdim=True).clamp(min=1)
    heads = summary(weights[None], mask, cross)
    means = {name: sum(head[name] for head in heads) / len(heads) for name in heads[0]}
    return means | {"layer": "equal", "head": ""}
