"""Ask a model at each word of a text, and after each of its layers.

A causal model is asked for the next word after each word, a masked LM for each word, masked in
turn, and a classifier for the class. The answers of a layer are read from its hidden states by the
final norm and the head, as if the later layers did not exist: the logit lens (nostalgebraist 2020).
"""

from dataclasses import dataclass

import torch

from data.tokenizer import BOS, EOS, MASK
from model import LanguageModel
from nets.classifier import pool_tokens
from nets.ensemble import members_of

MOST_WORK = 6 * 10**11  # multiplications, about half a minute of a CPU
GPU = 100  # times as fast, at least
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

    Words are masked in turn, also if some are [MASK] already. If all would be too much work, only
    some are, evenly spread.
    """
    inputs, kind = view.inputs, view.run.kind
    (ids,) = inputs["idx"]
    if kind in ("lm", "seq2seq"):
        places = torch.arange(len(ids), device=ids.device)
        targets = torch.cat([ids[1:], ids.new_full((1,), -100)])
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
    return Questions(inputs, rows, places, ids[places].masked_fill(ids[places] == MASK, -100))


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
    names = ["embedding", *(f"layer {i + 1}" for i in range(len(writer(model.body).blocks)))]
    if run.kind == "classifier" and model.layers != "last":
        names, logits = ["answer"], [final_logits(model, questions)]
    elif run.kind == "classifier":
        logits = class_logits(model, states_of(model.body, questions, whole=True))
    else:
        logits = map(model.head, states_of(model.body, questions))
    if model is not run.model:
        names = [*names, f"all {len(run.model.members)} members"]
        logits = [*logits, run.model(questions.inputs["idx"])[0]]
    layers = [rank(layer, questions.targets, 5) for layer in logits]
    return Answers(names, *(torch.stack(values).cpu() for values in zip(*layers)))


def states_of(body, questions, whole=False):
    """Return the hidden states before, between and after the blocks, all through the final norm.

    (n_layer + 1, M, C), or with whole those of all tokens, (n_layer + 1, N, T, C).
    """
    _, states = body(**questions.inputs, need_states=True)
    if not whole:
        states = [x[questions.rows, questions.places] for x in states]
    return writer(body).norm(torch.stack(states))


def class_logits(model, states):
    """Return logits (n_layer + 1, 1 + T, n_class) of states (n_layer + 1, 1, T, C).

    First those of the text, with the states pooled, then those of each word's state alone.
    """
    mask = torch.ones_like(states[0, :, :, 0], dtype=torch.bool)  # (1, T)
    texts = [torch.cat([pool_tokens(h, mask, how) for how in model.pool], -1) for h in states]
    words = states[:, 0].repeat(1, 1, len(model.pool))  # (n_layer + 1, T, n_features)
    features = torch.cat([torch.stack(texts), words], dim=1)
    return model.head(model.project(features))


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
