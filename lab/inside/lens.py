"""Read a model's predictions at each word of a text, after each of its layers.

A causal model is asked for the next word after each word, a masked LM for each word, masked in
turn, and a classifier for the class. The answers of a layer are read from its hidden states by the
final norm and the head, as if the later layers did not exist: the logit lens (nostalgebraist 2020).
"""

from dataclasses import dataclass

import torch

from data.tokenizer import BOS, EOS, MASK, UNK
from model import LanguageModel
from nets.classifier import pool_tokens
from nets.ensemble import members_of

MOST_WORK = 6 * 10**11  # multiplications, about half a minute of a CPU
GPU = 100  # a GPU is at least this many times as fast
FEWEST_WORDS = 4  # that are masked in turn, whatever that costs


@dataclass
class Questions:
    """The M places where a run is asked for a word or a class.

    Answers are read at idx[rows, places]: all places of one row, or one place in each of M rows.
    """

    inputs: dict  # what the body reads, without padding: idx (N, T), and source or ancestors
    rows: torch.Tensor  # (M,)
    places: torch.Tensor  # (M,) positions in the text; -1: the text as a whole
    targets: torch.Tensor  # (M,) the true words, -100 where unknown


@dataclass
class Answers:
    """The k likeliest answers at M places after each of L layers, the embedding first."""

    layers: list  # L names
    words: torch.Tensor  # (L, M, k) ids of words or classes
    probabilities: torch.Tensor  # (L, M, k)
    true: torch.Tensor  # (L, M) probability of the target, NaN where unknown
    ranks: torch.Tensor  # (L, M) rank of the target counted from 1, 0 where unknown


def ask(view, n_pass=1):
    """Return the Questions of the text of an AttentionView, for n_pass passes through the model.

    Words are masked in turn, even if some are [MASK] already. If all would be too much work, only
    some are, evenly spread.
    """
    inputs, kind = view.inputs, view.run.kind
    (ids,) = inputs["idx"]
    if kind in ("lm", "seq2seq"):
        places = torch.arange(len(ids), device=ids.device)
        targets = torch.cat([true_words(ids[1:]), ids.new_full((1,), -100)])
        return Questions(inputs, torch.zeros_like(ids), places, targets)
    if kind == "classifier":
        # One question, in row 0, about the text as a whole, whose class is unknown
        row, place, target = (ids.new_tensor([i]) for i in (0, -1, -100))
        return Questions(inputs, row, place, target)
    places = ((ids != BOS) & (ids != EOS)).nonzero().squeeze(1)
    body = view.run.model.body
    n_weight = sum(weight.numel() for weight in body.parameters()) - body.embedding.weight.numel()
    work = len(ids) * n_weight * n_pass  # for one masked word
    most = MOST_WORK * (1 if ids.device.type == "cpu" else GPU) // work
    n = min(len(places), max(FEWEST_WORDS, most))
    places = places[torch.linspace(0, len(places) - 1, n).round().long()]
    inputs = {
        name: value if name.startswith("texts") else value.expand(n, -1).clone()
        for name, value in inputs.items()
    }
    rows = torch.arange(n, device=ids.device)
    inputs["idx"][rows, places] = MASK
    return Questions(inputs, rows, places, true_words(ids[places]))


def true_words(ids):
    """Return ids with -100 for [MASK] and [UNK], which stand for words that are not known."""
    return ids.masked_fill((ids == MASK) | (ids == UNK), -100)


def writer(body):
    """Return the transformer whose states become answers."""
    return getattr(body, "decoder", body)


# ---------------------------------------------------------------------------- answers


@torch.no_grad()
def final_logits(model, questions):
    """Return the answers of a model, not of an ensemble, as logits (M, V)."""
    if not isinstance(model, LanguageModel):  # a classifier
        return model(questions.inputs["idx"])
    picked = questions.rows * questions.inputs["idx"].size(1) + questions.places
    return model.head(model.body(**questions.inputs, picked=picked))


@torch.no_grad()
def read_layers(run, questions):
    """Return the Answers after each layer. The last ones are those of the run.

    For an ensemble the layers are those of the first member, and the answers of all members follow.
    A classifier that reads anything but the last layer's states has only its own answers.
    """
    model = members_of(run.model)[0]
    if run.kind == "classifier" and model.layers != "last":
        names, logits = ["answer"], [final_logits(model, questions)]
    else:
        _, states = model.body(**questions.inputs, need_states=True)  # n_layer + 1 of (N, T, C)
        names = ["embedding", *(f"layer {i}" for i in range(1, len(states)))]
        norm, asked = writer(model.body).norm, (questions.rows, questions.places)
        if run.kind == "classifier":
            logits = [class_logits(model, norm(h)) for h in states]
        else:
            logits = [model.head(norm(h[asked])) for h in states]
    if model is not run.model:
        names = [*names, f"all {len(run.model.members)} members"]
        logits = [*logits, run.model(questions.inputs["idx"])[0]]
    layers = [rank(layer, questions.targets, 5) for layer in logits]
    return Answers(names, *(torch.stack(values).cpu() for values in zip(*layers)))


def class_logits(model, h):
    """h (1, T, C) -> logits (1 + T, n_class) of the text, its states pooled, and of each word."""
    mask = torch.ones_like(h[..., 0], dtype=torch.bool)  # (1, T)
    text = torch.cat([pool_tokens(h, mask, how) for how in model.pool], -1)  # (1, n_features)
    words = h[0].repeat(1, len(model.pool))  # (T, n_features)
    return model.head(model.project(torch.cat([text, words])))


def rank(logits, targets, k):
    """Return the k best words (M, k), their probabilities, and those and the ranks of the targets.

    logits (M, V); targets are (M,), or (1,) for a text and its words, none of which has one.
    """
    probabilities = logits.softmax(-1)
    best, words = probabilities.topk(min(k, logits.size(-1)))
    targets = targets.expand(len(logits))
    known = targets >= 0
    true = probabilities.gather(1, targets.clamp(min=0)[:, None])  # (M, 1)
    ranks = 1 + (probabilities > true).sum(1)
    return words, best, true[:, 0].masked_fill(~known, torch.nan), ranks * known
