"""Sentences to classes: a body, one pooled vector per sentence, and a small head."""

import math

import torch
import torch.nn as nn

from data.batching import send
from model import init_weights


class Classifier(nn.Module):
    """A body, its states pooled into one vector per sentence, and a head; all get new weights.

    n_hidden: units of the head's hidden layer with ReLU; 0: a linear classifier.
    pool: mean, max, min (over real tokens), first or last (token), or several joined by +.
    layers: "last" pools the body's output, "all" also every state below it; a number pools that
    state alone: "0" the embeddings, "1" the output of the first block.
    n_component: above 0, project the features onto that many principal axes (`fit_projection`).
    """

    def __init__(
        self, body, n_class, pool="mean", layers="last", n_hidden=100, dropout=0.0, n_component=0
    ):
        super().__init__()
        self.body = body
        self.pool = pool.split("+")
        self.layers = layers
        n_features = body.config.n_embd * len(self.pool)
        if layers == "all":
            n_features = n_features * (body.config.n_layer + 1)
        self.n_component = min(n_component, n_features)
        width = self.n_component or n_features  # of what the head reads
        hidden = []
        if n_hidden:
            hidden = [nn.Linear(width, n_hidden), nn.ReLU()]
            width = n_hidden
        last = nn.Linear(width, n_class)
        self.head = nn.Sequential(*hidden, nn.Dropout(dropout), last)
        if self.n_component:
            self.shift = nn.Buffer(torch.zeros(n_features))
            self.projection = nn.Buffer(torch.eye(n_features, self.n_component))
        init_weights(self, body.config)
        if not n_hidden:  # random weights on many features would make confident guesses
            nn.init.zeros_(last.weight)

    def features(self, idx, mask=None):
        """idx, mask (B, T) -> (B, n_features), the pooled states of each sentence."""
        if mask is None:
            mask = torch.ones_like(idx, dtype=torch.bool)
        if self.layers == "last":
            states = [self.body(idx, mask)]
        else:
            states = read_states(self.body, idx, mask)
            states[-1] = self.body.norm(states[-1])
        if self.layers not in ("last", "all"):
            states = [states[int(self.layers)]]
        vectors = []
        for h in states:
            vectors += [pool_tokens(h, mask, how) for how in self.pool]  # each (B, C)
        return torch.cat(vectors, dim=-1)

    def project(self, features):
        """(B, n_features) -> (B, n_component); unchanged if n_component is 0."""
        if self.n_component == 0:
            return features
        return (features - self.shift) @ self.projection

    def forward(self, idx, mask=None):
        """idx, mask (B, T) -> logits (B, n_class)."""
        return self.head(self.project(self.features(idx, mask)))

    def fit_projection(self, features):
        """Fit the projection to features (N, n_features) of N >= n_component rows, with deviation
        1 of each column, because the layers of a frozen body differ in scale."""
        self.shift.copy_(features.mean(0))
        scale = 1 / features.std(0).clamp(min=1e-5)
        standard = (features - self.shift) * scale
        _, _, axes = torch.pca_lowrank(standard, self.n_component, center=False)
        self.projection.copy_(scale[:, None] * axes)  # (n_features, n_component)


def read_states(body, idx, mask=None, **inputs):
    """Return the n_layer + 1 states (B, T, C) before, between and after the blocks of a
    Transformer. inputs: others of the body."""
    x, where = body.start(idx, mask, **inputs)
    states = [x]
    for block in body.blocks:
        states.append(block(states[-1], where))
    return states


def pool_tokens(h, mask, how):
    """h (B, T, C), mask (B, T) -> (B, C), without padding. Raises ValueError for an unknown how."""
    real = mask[:, :, None]  # (B, T, 1)
    if how == "mean":
        return (h * real).sum(1) / real.sum(1)
    if how == "max":
        return h.masked_fill(~real, -math.inf).amax(1)
    if how == "min":
        return h.masked_fill(~real, math.inf).amin(1)
    if how == "first":
        return h[:, 0]
    if how == "last":
        return h[torch.arange(len(h), device=h.device), mask.sum(1) - 1]
    raise ValueError(f"pool must be mean, max, min, first or last, not {how!r}")


@torch.no_grad()
def compute_logits(model, rows, device, features=None):
    """Return the logits (N, n_class) of `data.labelled.Rows` on the CPU, in order. features (N,
    n_component or n_features): their projected features, if they are known."""
    model.eval()
    if features is None:
        logits = over_rows(model, rows, device)
    else:
        logits = model.head(features)
    model.train()
    return logits.cpu()


@torch.no_grad()
def compute_features(model, rows, device):
    """Return the pooled states (N, n_features) of all rows, in order, on the device."""
    model.eval()
    features = over_rows(model.features, rows, device)
    model.train()
    return features


def over_rows(compute, rows, device):
    """Return compute(idx, mask) of all rows. Each batch has rows of similar length."""
    batches = rows.batches(256)  # the numbers of the rows in each
    parts = []
    for numbers in batches:
        idx, mask = rows.batch(numbers)  # (B, T)
        parts.append(compute(send(idx, device), send(mask, device)))
    in_order = torch.cat(batches).argsort()
    return torch.cat(parts)[in_order]
