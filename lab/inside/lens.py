"""Read a model's answers at each word of a text: after each layer, and without each head.

A causal model is asked for the next word after each word, a masked LM for each word, masked in
turn, and a classifier for the class. A layer's answers are read from its states by the final norm
and the head, as if no layer followed: the logit lens (nostalgebraist 2020). A head is switched off
by zeros in place of its output, before the output projection mixes the heads (Michel et al. 2019).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from data.tokenizer import BOS, EOS, MASK, UNK
from nets.classifier import pool_tokens
from nets.ensemble import members_of

MOST_WORK = 6 * 10**11  # multiplications, about half a minute of a CPU


@dataclass
class Questions:
    """The M places idx[rows, places] where a run is asked for a word, or for the class."""

    inputs: dict  # what the body reads, without padding: idx (N, T), and source or ancestors
    rows: torch.Tensor  # (M,)
    places: torch.Tensor  # (M,) positions in the text; -1: the text as a whole
    targets: torch.Tensor  # (M,) the true words, -100 where unknown


def attentions(body):
    """Return all attentions of a body, [(part, layer counted from 1, Attention)]."""
    if not hasattr(body, "decoder"):
        return [("", i, block.attention) for i, block in enumerate(body.blocks, 1)]
    found = [("encoder", i, block.attention) for i, block in enumerate(body.encoder.blocks, 1)]
    decoder = list(enumerate(body.decoder.blocks, 1))
    found += [("decoder", i, block.attention) for i, block in decoder]
    return found + [("cross", i, block.cross_attention) for i, block in decoder]


def switch_off(attention, head):
    """Switch off one head, counted from 0, of an Attention in a `with` block."""
    D = attention.out.in_features // attention.n_head

    def zero(module, args):
        y = args[0].clone()  # (B, T, C), the heads side by side
        y[..., head * D : (head + 1) * D] = 0
        return (y,)

    return attention.out.register_forward_pre_hook(zero)


def ask(run, inputs):
    """Return the Questions about a text. inputs: what the run's body reads of it.

    A masked LM's words are masked in turn, even if some are [MASK] already. If that would be too
    much work for `switch_off_each`, only some are, evenly spread.
    """
    (ids,) = inputs["idx"]
    words = ids.masked_fill((ids == MASK) | (ids == UNK), -100)  # they stand for unknown words
    if run.kind == "classifier":  # one question, about the text as a whole
        return Questions(inputs, *(ids.new_tensor([i]) for i in (0, -1, -100)))
    if run.kind in ("lm", "seq2seq"):
        places = torch.arange(len(ids), device=ids.device)
        return Questions(inputs, 0 * ids, places, F.pad(words[1:], (0, 1), value=-100))
    places, body = ((ids != BOS) & (ids != EOS)).nonzero()[:, 0], run.model.body
    n_weight = sum(weight.numel() for weight in body.parameters()) - body.embedding.weight.numel()
    n_pass = 1 + sum(attention.n_head for *_, attention in attentions(body))
    n = min(len(places), max(4, MOST_WORK // (len(ids) * n_weight * n_pass)))
    places = places[torch.linspace(0, len(places) - 1, n).round().long()]
    rows, idx = torch.arange(n, device=ids.device), ids.repeat(n, 1)
    idx[rows, places] = MASK
    more = {name: x if name.startswith("texts") else x.expand(n, -1) for name, x in inputs.items()}
    return Questions(more | {"idx": idx}, rows, places, words[places])


@torch.no_grad()
def answer(run, model, asked):
    """Return the answers of a model, not of an ensemble, as logits (M, V)."""
    if run.kind == "classifier":
        return model(asked.inputs["idx"])
    picked = asked.rows * asked.inputs["idx"].size(1) + asked.places
    return model.head(model.body(**asked.inputs, picked=picked))


@torch.no_grad()
def read_layers(run, asked):
    """Return the answers after each of L layers: their names "layers", the likeliest "words" and
    their "probabilities" (L, M, k), and of the true word "true", its probability (L, M), and
    "ranks", counted from 1. Where that is unknown, they are NaN and 0.

    An ensemble has the layers of its first member, then the answers of all members. A classifier
    has layers if it reads the states of the last one.
    """
    model = members_of(run.model)[0]
    names, logits = ["answer"], [answer(run, model, asked)]
    if run.kind != "classifier" or model.layers == "last":
        _, states = model.body(**asked.inputs, need_states=True)  # n_layer + 1 of (N, T, C)
        names = ["embedding", *(f"layer {i}" for i in range(1, len(states)))]
        states = [run.half.norm(h) for h in states]
        if run.kind == "classifier":
            mask = torch.ones_like(asked.inputs["idx"], dtype=torch.bool)  # (1, T)
            pooled = [torch.cat([pool_tokens(h, mask, p) for p in model.pool], 1) for h in states]
            logits = [model.head(model.project(x)) for x in pooled]
        else:
            logits = [model.head(h[asked.rows, asked.places]) for h in states]
    if model is not run.model:
        names.append(f"all {len(run.model.members)} members")
        logits.append(run.model(asked.inputs["idx"])[0])
    p = torch.stack(logits).softmax(-1).cpu()  # (L, M, V)
    best, words = p.topk(min(5, p.size(-1)))
    targets = asked.targets.cpu()
    true = p.gather(-1, targets.clamp(min=0)[:, None].expand(len(p), -1, 1))  # (L, M, 1)
    ranks = (1 + (p > true).sum(-1)).masked_fill(targets < 0, 0)
    true = true[..., 0].masked_fill(targets < 0, torch.nan)
    return dict(layers=names, words=words, probabilities=best, true=true, ranks=ranks)


@torch.no_grad()
def switch_off_each(run, asked):
    """Return "heads", N of (part, layer, head) counted from 1, and of the whole model, then without
    each head, "losses" in nats and likeliest "words" (1 + N, M).

    Losses are those of the true words, or where unknown, of the whole model's own answers. Of an
    ensemble, only the first member is measured.
    """
    model, heads = members_of(run.model)[0], []
    logits = [answer(run, model, asked)]
    for part, layer, attention in attentions(model.body):
        if run.kind == "thread" and "texts" not in asked.inputs and part != "decoder":
            continue  # no ancestors to read
        for head in range(attention.n_head):
            with switch_off(attention, head):
                logits.append(answer(run, model, asked))
            heads.append((part, layer, head + 1))
    words = torch.stack([x.argmax(-1) for x in logits])
    targets = torch.where(asked.targets >= 0, asked.targets, words[0])
    losses = torch.stack([F.cross_entropy(x, targets, reduction="none") for x in logits])
    return dict(heads=heads, losses=losses.cpu(), words=words.cpu())
