"""Measure the attention of a run on some texts, and check its weights.

`readings_of` gives one `Reading` per attention of a run: the weights of every layer and head, and
checks. The checks follow the definitions and do not use model.py's own tables, so they can find
errors in model.py. attention_maps.py draws the readings.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from data import batching
from lab.figures import POSITION_NAMES
from lab.inside.texts import read, read_both
from lab.load import LoadedRun
from nets.thread_reader import ancestor_inputs

KINDS = {
    "lm": "causal LM",
    "mlm": "masked LM",
    "classifier": "classifier",
    "seq2seq": "encoder-decoder",
    "thread": "thread reader",
}
PARTS = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention from decoder to source",
}
THREAD_PARTS = {
    "encoder": "encoder self-attention of the ancestors",
    "decoder": "self-attention of the comment",
    "cross": "cross-attention from comment to ancestors",
}


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
    part: str = ""  # encoder, decoder or cross, if the run has several attentions
    source: list = None  # keys of cross-attention, like words
    source_mask: torch.Tensor = None  # (B, S)
    first: int = 0  # which of the texts given is the first of these B

    def body(self):
        """Return the transformer that has this attention."""
        name = "decoder" if self.part == "cross" else self.part
        return getattr(self.run.model.body, name) if name else self.run.model.body

    def keys(self):
        """Return words and mask of the keys."""
        return (self.source, self.source_mask) if self.part == "cross" else (self.words, self.mask)

    def allowed(self):
        """Return (H, T, S) bool, True where query i may attend to key j."""
        H, T, S = self.weights.shape[2:]
        return torch.ones(H, T, S).bool() if self.part == "cross" else allowed(self.body(), T)

    def part_name(self):
        """Return the name of this attention, "" if the run has only one."""
        return (THREAD_PARTS if self.run.kind == "thread" else PARTS).get(self.part, "")

    def has(self, number):
        """Return whether text `number` of those given is one of these B."""
        return 0 <= number - self.first < len(self.words)

    def picture(self, number):
        """Return queries, keys and weights (L, H, T, S) of a text without padding.

        A weight is NaN where attention is not allowed; a positive weight there remains visible.
        """
        b = number - self.first
        queries, keys = self.words[b], self.keys()[0][b]
        weights = self.weights[:, b, :, : len(queries), : len(keys)]
        forbidden = ~self.allowed()[:, : len(queries), : len(keys)] & (weights == 0)
        return queries, keys, weights.masked_fill(forbidden, math.nan)

    def heads(self):
        """Return the `summary` of all texts, one dictionary per head."""
        return summary(self.weights, self.mask, own=self.part != "cross")

    def uniform(self):
        """Return what `heads` would give if all allowed weights were equal, as one dictionary."""
        even = (self.allowed() & self.keys()[1][:, None, None, :]).float()  # (B, H, T, S)
        even = even / even.sum(-1, keepdim=True).clamp(min=1)
        heads = summary(even[None], self.mask, own=self.part != "cross")
        return {name: sum(head[name] for head in heads) / len(heads) for name in heads[0]}

    def as_json(self, number):
        """Return what the figure of a text shows. The checks are those of all texts of the call."""
        b = number - self.first
        queries, keys, _ = self.picture(number)
        heads = summary(self.weights[:, b : b + 1], self.mask[b : b + 1], own=self.part != "cross")
        return {
            "run": str(self.run.folder),
            "model": describe(self.run),
            **({"attention": self.part} if self.part else {}),
            "queries": queries,
            "keys": keys,
            "checks": finite(self.checks),
            "heads": finite(heads),
        }


def describe(run):
    """Return a run's model and data in a few words, for headings."""
    config, flags = run.model.body.config, run.config.get("flags", {})
    causal = getattr(run.model.body, "causal", False)
    words = KINDS[run.kind] + " on a decoder" * (run.kind == "classifier" and causal)
    words += f", {POSITION_NAMES[config.pos]}"
    if config.pos == "alibi":
        words += "" if causal else f" ({config.alibi})"
    elif config.pos != "nope":
        words += " positions"
    words += f", window {config.window}" if config.window else ""
    words += f", trained on {Path(flags['data']).name}" if "data" in flags else ""
    return words + (f", unfinished: {run.unfinished}" if run.unfinished else "")


# ---------------------------------------------------------------------------- readings


def readings_of(run, texts, device):
    """Measure a run's attention on texts: one Reading, or one per part of several.

    A thread reader takes all texts as one thread: the post, replies, and last the comment.
    """
    if run.kind == "seq2seq":
        return readings_of_seq2seq(run, texts, device)
    if run.kind == "thread":
        return readings_of_thread(run, texts, device)
    idx, mask, words = read(run, texts)
    weights, checks = examine(run.model.body, idx.to(device), mask.to(device))
    return [Reading(run, words, mask, weights, checks)]


def readings_of_seq2seq(run, texts, device):
    """Return the readings of encoder, decoder and cross-attention."""
    body = run.model.body
    (source, source_mask, words), (idx, mask, written) = read_both(run, texts)
    on_device = source.to(device), source_mask.to(device)
    with torch.no_grad():
        memory = body.encoder(*on_device)
    of_encoder = examine(body.encoder, *on_device)
    of_decoder = examine(body.decoder, idx.to(device), mask.to(device), memory, on_device[1])
    return [
        Reading(run, words, source_mask, *of_encoder, "encoder"),
        Reading(run, written, mask, *of_decoder[:2], "decoder"),
        Reading(run, written, mask, *of_decoder[2:], "cross", words, source_mask),
    ]


def readings_of_thread(run, texts, device):
    """Return the readings of the ancestors, the comment, and of its attention to the ancestors.

    Ancestors are shown in the order given, the post first. With a single text there are none.
    """
    body, n_text = run.model.body, len(texts)
    n_above = min(n_text - 1, run.config["reader"]["n_ancestors"])
    if n_above < n_text - 1:
        print(f"  note: only the nearest {n_above} of {n_text - 1} ancestors are read")
    first = n_text - 1 - n_above
    above = read(run, texts[first:-1], first) if n_above else None
    idx, mask, words = read(run, texts[-1:], n_text - 1)
    comment = idx.to(device), mask.to(device)
    if not above:
        checked = examine(body.decoder, *comment)
        return [Reading(run, words, mask, *checked, "decoder", first=n_text - 1)]
    inputs = batching.to(device, ancestor_inputs(*above[:2]))
    with torch.no_grad():
        memory = body.read_ancestors(inputs["texts"], inputs["texts_mask"], inputs["ancestors"])
    of_encoder = examine(body.encoder, inputs["texts"], inputs["texts_mask"])
    of_decoder = examine(body.decoder, *comment, memory, inputs["ancestors_mask"])
    cross_weights, cross_checks = of_decoder[2].flip(-1), of_decoder[3]  # the post first
    names = [f"{i} {' '.join(words[1:])}" for i, words in enumerate(above[2], first + 1)]
    source_mask = torch.ones(1, n_above, dtype=torch.bool)
    more = {"first": n_text - 1}
    return [
        Reading(run, above[2], above[1], *of_encoder, "encoder", first=first),
        Reading(run, words, mask, *of_decoder[:2], "decoder", **more),
        Reading(
            run, words, mask, cross_weights, cross_checks, "cross", [names], source_mask, **more
        ),
    ]


# ---------------------------------------------------------------------------- weights and checks


def steps_ahead(T):
    """Return (T, T): how many tokens key j is ahead of query i, negative towards the past."""
    return torch.arange(T)[None, :] - torch.arange(T)[:, None]


def allowed(body, T):
    """Return (H, T, T) bool, True where query i may attend to key j.

    Derived from the definitions, since model.py's tables are what is checked.
    """
    config, ahead = body.config, steps_ahead(T)
    may = (ahead <= 0 if body.causal else ahead <= T).repeat(config.n_head, 1, 1)
    if config.window:
        may &= ahead.abs() < config.window
    if config.pos == "alibi" and config.alibi == "one-sided" and not body.causal:
        may[: config.n_head // 2] &= ahead <= 0
        may[config.n_head // 2 :] &= ahead >= 0
    return may


def slope(body, head):
    """Return ALiBi's slope of a head counted from 0 (Press et al. 2022).

    With n heads, n a power of two, it is 2^(-8 (head + 1) / n). Otherwise the remaining heads take
    every second slope of the next power of two.
    """
    n = body.config.n_head
    if body.config.alibi == "one-sided" and not body.causal:
        n, head = n // 2, head % (n // 2)
    power = 2 ** (n.bit_length() - 1)
    return 2.0 ** (
        -8 * (head + 1) / power if head < power else -4 * (2 * (head - power) + 1) / power
    )


@torch.no_grad()
def examine(body, idx, mask, memory=None, memory_mask=None):
    """Compute the weights (L, B, H, T, T), on the CPU, and the checks of idx, mask (B, T).

    With a memory (B, S, C) and its mask (B, S), also return the weights (L, B, H, T, S) of the
    cross-attention and their checks.
    """
    inputs = []  # of the attention of each layer, (B, T, C)
    hooks = [
        block.attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        for block in body.blocks
    ]
    cross = {} if memory is None else dict(memory=memory, memory_mask=memory_mask)
    h, maps = body(idx, mask, need_weights=True, **cross)
    for hook in hooks:
        hook.remove()
    fused = body(idx, mask, **cross)
    alone = [
        body(
            idx[b : b + 1, :n],
            **{"memory": memory[b : b + 1, : memory_mask[b].sum()]} if cross else {},
        )[0]
        - h[b, :n]
        for b, n in enumerate(mask.sum(1).tolist())
    ]
    maps, cross_maps = map(list, zip(*maps)) if cross else (maps, None)
    weights, ahead, may = (
        torch.stack(maps),
        steps_ahead(idx.size(1)).to(idx.device),
        allowed(body, idx.size(1)).to(idx.device),
    )
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)

    checks, cross_checks = [], []

    def check(what, values, where, limit=0.0, checks=checks):
        checks.append(
            {
                "check": what,
                "worst": torch.where(where, values, 0).abs().max().item(),
                "limit": limit,
            }
        )

    check("rows sum to 1", weights.sum(-1, keepdim=True) - 1, real, 1e-5)
    if not mask.all():
        check("no weight on padding", weights, real & ~mask[:, None, None, :])
    if body.causal:
        check("nothing above the diagonal", weights, real & (ahead > 0))
    if body.config.window:
        check(
            f"nothing {body.config.window} or more tokens away",
            weights,
            real & (ahead.abs() >= body.config.window),
        )
    if (may != may[0]).any():
        check("each half of the heads looks one way", weights, real & ~may)
    check("fused attention gives the same output", fused - h, mask[:, :, None], 1e-4)
    check(
        "each text alone gives the same output",
        torch.cat(alone),
        torch.tensor(True, device=idx.device),
        1e-4,
    )
    if body.config.pos == "alibi":
        nearer = 0.5 if body.config.alibi == "offset" and not body.causal else 0.0
        bias = torch.stack(
            [-slope(body, head) * (ahead.abs() - nearer * (ahead > 0)) for head in range(len(may))]
        )  # (H, T, T)
        added = torch.stack(
            [
                added_to_scores(block.attention, x, w)
                for block, x, w in zip(body.blocks, inputs, weights)
            ]
        )
        most = weights.argmax(-1, keepdim=True)
        wrong = added - added.gather(-1, most) - (bias - bias.expand_as(weights).gather(-1, most))
        # The logarithm of a smaller weight is too inexact. ~(<) instead of >= keeps NaN as wrong.
        check(
            "the weights hold -slope * distance",
            wrong,
            real & mask[:, None, None, :] & may & ~(weights < 1e-30),
            1e-3,
        )
    if not cross:
        return weights.float().cpu(), checks
    cross_weights = torch.stack(cross_maps)
    check("rows sum to 1", cross_weights.sum(-1, keepdim=True) - 1, real, 1e-5, cross_checks)
    if not memory_mask.all():
        check(
            "no weight on padding",
            cross_weights,
            real & ~memory_mask[:, None, None, :],
            checks=cross_checks,
        )
    return weights.float().cpu(), checks, cross_weights.float().cpu(), cross_checks


def added_to_scores(attention, x, weights):
    """Recover what was added to q k^T / sqrt(D), from the input x (B, T, C) and the weights.

    Returns (B, H, T, T) like the weights, each row up to a constant, which a softmax removes.
    """
    B, T, C = x.shape
    D = C // attention.n_head
    q, k, _ = (
        attention.qkv(x).view(B, T, 3, attention.n_head, D).permute(2, 0, 3, 1, 4)
    )  # 3 of (B, H, T, D)
    return weights.log() - q @ k.transpose(-2, -1) / math.sqrt(D)


def summary(weights, mask, own=True):
    """Summarize weights (L, B, H, T, S): per head, means over the queries in mask (B, T).

    distance: tokens to the key. first, itself: weight of the first key and of the query's own.
    entropy: in nats. own: keys are the queries' tokens; else there is no distance and no itself.
    """
    values = {"distance": (weights * steps_ahead(mask.size(1)).abs()).sum(-1)} if own else {}
    values |= {"first": weights[..., 0]} | (
        {"itself": weights.diagonal(dim1=-2, dim2=-1)} if own else {}
    )
    values |= {"entropy": torch.special.entr(weights).sum(-1)}  # each (L, B, H, T)
    means = {
        name: (value * mask[:, None, :]).sum((1, 3)) / mask.sum() for name, value in values.items()
    }  # each (L, H)
    return [
        {"layer": layer + 1, "head": head + 1}
        | {name: round(mean[layer, head].item(), 4) for name, mean in means.items()}
        for layer in range(weights.size(0))
        for head in range(weights.size(2))
    ]


def holds(check):
    """Return whether a check is passed; NaN is not."""
    return check["worst"] <= check["limit"]


def finite(rows):
    """Return the dictionaries with None for NaN and infinity, which JSON does not have."""
    return [
        {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]
