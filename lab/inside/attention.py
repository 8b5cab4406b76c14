"""Measure the attention of a run on some texts.

`readings_of` gives one `Reading` per attention of a run: the weights of every layer and head on a
batch of texts, and what was checked. `AttentionView` (view.py) shows a Reading for one text.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from lab.inside.checks import allowed, examine, examine_cross, steps_ahead
from lab.inside.describe import describe, name_part
from lab.inside.scores import take_apart
from lab.inside.texts import read, read_both
from lab.load import LoadedRun
from nets.device import send_all
from nets.thread_reader import ancestor_inputs


@dataclass
class Reading:
    """One attention of a run on B texts, padded to T tokens, which are the queries.

    The keys are the same tokens (S = T), or for cross-attention the S entries of a source.
    """

    run: LoadedRun
    words: list  # the tokens of each text as they are shown, without padding
    mask: torch.Tensor  # (B, T) bool, True for real tokens
    weights: torch.Tensor  # (L, B, H, T, S)
    checks: list  # {"check": what must hold, "worst": value seen, "limit": largest value allowed}
    inputs: dict  # what run.model.body reads, by the names of its arguments
    part: str = ""  # encoder, decoder or cross, if the run has several attentions
    keys: list = None  # like words: those of the source for cross-attention, else the words
    key_mask: torch.Tensor = None  # (B, S)
    first: int = 0  # which of the texts given is the first of these B
    newest_first: bool = False  # whether the model reads the source from its end: ancestors

    def __post_init__(self):
        if self.keys is None:
            self.keys, self.key_mask = self.words, self.mask

    @cached_property
    def scores(self):
        """Content and position of the scores, computed once for all texts: see `take_apart`."""
        return take_apart(self)

    def body(self):
        """Return the transformer that has this attention."""
        name = "decoder" if self.part == "cross" else self.part
        return getattr(self.run.model.body, name) if name else self.run.model.body

    def allowed(self):
        """Return (H, T, S) bool, True where query i may attend to key j."""
        H, T, S = self.weights.shape[2:]
        return torch.ones(H, T, S).bool() if self.part == "cross" else allowed(self.body(), T)

    def part_name(self):
        """Return the name of this attention, "" if the run has only one."""
        return name_part(self.run, self.part)

    def has(self, number):
        """Return whether text `number` of those given is one of these B."""
        return 0 <= number - self.first < len(self.words)

    def cut(self, number, values):
        """Return values (L, B, H, T, S) of one text without padding, (L, H, T, S)."""
        b = number - self.first
        return values[:, b, :, : len(self.words[b]), : len(self.keys[b])]

    def picture(self, number):
        """Return queries, keys and weights (L, H, T, S) of a text without padding.

        A weight is NaN where attention is not allowed; a positive weight there remains visible.
        """
        b, weights = number - self.first, self.cut(number, self.weights)
        T, S = weights.shape[2:]
        forbidden = ~self.allowed()[:, :T, :S] & (weights == 0)
        return self.words[b], self.keys[b], weights.masked_fill(forbidden, math.nan)

    def heads(self):
        """Return the `summary` of all texts, one dictionary per head."""
        return summary(self.weights, self.mask, own=self.part != "cross")

    def uniform(self):
        """Return what `heads` would give if all allowed weights were equal, as one dictionary."""
        even = (self.allowed() & self.key_mask[:, None, None, :]).float()  # (B, H, T, S)
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        heads = summary(even[None], self.mask, own=self.part != "cross")
        return {name: sum(head[name] for head in heads) / len(heads) for name in heads[0]}

    def as_json(self, number):
        """Return what the figure of a text shows. The checks are those of all texts of the call."""
        b = number - self.first
        heads = summary(self.weights[:, b : b + 1], self.mask[b : b + 1], own=self.part != "cross")
        return {
            "run": str(self.run.folder),
            "model": describe(self.run),
            **({"attention": self.part} if self.part else {}),
            "queries": self.words[b],
            "keys": self.keys[b],
            "checks": finite(self.checks),
            "heads": finite(heads),
        }


# ---------------------------------------------------------------------------- readings


def readings_of(run, texts):
    """Measure a run's attention on texts: one Reading, or one per part of several.

    A thread reader takes all texts as one thread: the post, replies, and last the comment.
    """
    if run.kind == "seq2seq":
        return readings_of_seq2seq(run, texts)
    if run.kind == "thread":
        return readings_of_thread(run, texts)
    idx, mask, words = read(run, texts)
    inputs = send_all({"idx": idx, "mask": mask}, run.device)
    weights, checks = examine(run.model.body, inputs)
    return [Reading(run, words, mask, weights, checks, inputs)]


def readings_of_seq2seq(run, texts):
    """Return the readings of encoder, decoder and cross-attention."""
    body = run.model.body
    (source, source_mask, words), (idx, mask, written) = read_both(run, texts)
    inputs = send_all(dict(idx=idx, mask=mask, source=source, source_mask=source_mask), run.device)
    for_encoder = {"idx": inputs["source"], "mask": inputs["source_mask"]}
    memory = {"memory": body.encoder(**for_encoder), "memory_mask": inputs["source_mask"]}
    for_decoder = {"idx": inputs["idx"], "mask": inputs["mask"]} | memory
    of_encoder = examine(body.encoder, for_encoder)
    of_decoder, of_cross = (
        examine(body.decoder, for_decoder),
        examine_cross(body.decoder, for_decoder),
    )
    return [
        Reading(run, words, source_mask, *of_encoder, inputs, "encoder"),
        Reading(run, written, mask, *of_decoder, inputs, "decoder"),
        Reading(run, written, mask, *of_cross, inputs, "cross", words, source_mask),
    ]


def readings_of_thread(run, texts):
    """Return the readings of the ancestors, the comment, and of its attention to the ancestors.

    Ancestors are shown in the order given, the post first. With a single text there are none.
    """
    body, last = run.model.body, len(texts) - 1
    n_above = min(last, run.config["reader"]["n_ancestors"])
    if n_above < last:
        print(f"  note: only the nearest {n_above} of {last} ancestors are read")
    first = last - n_above
    above = read(run, texts[first:last], first) if n_above else None
    idx, mask, words = read(run, texts[last:], last)
    comment = send_all({"idx": idx, "mask": mask}, run.device)
    if not above:
        checked = examine(body.decoder, comment)
        return [Reading(run, words, mask, *checked, comment, "decoder", first=last)]
    inputs = send_all(ancestor_inputs(*above[:2]), run.device)
    memory = body.read_ancestors(inputs["texts"], inputs["texts_mask"], inputs["ancestors"])
    of_encoder = examine(body.encoder, {"idx": inputs["texts"], "mask": inputs["texts_mask"]})
    for_decoder = comment | {"memory": memory, "memory_mask": inputs["ancestors_mask"]}
    of_decoder = examine(body.decoder, for_decoder)
    weights, checks = examine_cross(body.decoder, for_decoder)
    of_cross = weights.flip(-1), checks  # the post first
    names = [f"{i} {' '.join(text[1:])}" for i, text in enumerate(above[2], first + 1)]
    source = [names], torch.ones(1, n_above, dtype=torch.bool)
    inputs |= comment
    return [
        Reading(run, above[2], above[1], *of_encoder, inputs, "encoder", first=first),
        Reading(run, words, mask, *of_decoder, inputs, "decoder", first=last),
        Reading(run, words, mask, *of_cross, inputs, "cross", *source, last, newest_first=True),
    ]


# ---------------------------------------------------------------------------- summaries


def summary(weights, mask, own=True):
    """Summarize weights (L, B, H, T, S): per head, means over the queries in mask (B, T).

    distance: tokens to the key. first, itself: weight of the first key and of the query's own.
    entropy: in nats. own: keys are the queries' tokens; else there is no distance and no itself.
    """
    values = {}  # each (L, B, H, T)
    if own:
        values["distance"] = (weights * steps_ahead(mask.size(1)).abs()).sum(-1)
    values["first"] = weights[..., 0]
    if own:
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


def finite(rows):
    """Return the dictionaries with None for NaN and infinity, which JSON does not have."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]
