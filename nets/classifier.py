"""Sentences to classes: a body, one pooled vector per sentence, and a small head."""

import math

import torch
import torch.nn as nn

from model import init_weights


class Classifier(nn.Module):
    """A body, its states pooled into one vector per sentence, and a head; all get new weights.

    pool: mean, max, min (over real tokens), first or last (token), or several joined by +.
    layers: "last" pools the body's output, "all" also every state below it; a number pools that
    state alone: "0" the embeddings, "1" the output of the first block.
    n_component: above 0, standardise the features, because the layers of a frozen body differ in
    scale, and project them onto that many principal axes (`fit_projection`).
    Raises ValueError for an unknown pool or layers.
    """

    POOLS = ("mean", "max", "min", "first", "last")

    def __init__(
        self, body, n_class, pool="mean", layers="last", n_hidden=100, dropout=0.0, n_component=0
    ):
        super().__init__()
        n_layer = body.config.n_layer
        known = layers in ("last", "all") or layers.isdecimal() and int(layers) <= n_layer
        if not set(pool.split("+")) <= set(self.POOLS) or not known:
            raise ValueError(
                f"pool={pool}, layers={layers}: cannot pool {n_layer} blocks like this"
            )
        self.body, self.pool, self.layers = body, pool.split("+"), layers
        n_states = n_layer + 1 if layers == "all" else 1
        n_features = body.config.n_embd * len(self.pool) * n_states
        self.n_component = min(n_component, n_features)
        self.head = ClassifierHead(self.n_component or n_features, n_class, n_hidden, dropout)
        if self.n_component:
            self.shift = nn.Buffer(torch.zeros(n_features))
            self.projection = nn.Buffer(torch.eye(n_features, self.n_component))
        init_weights(self, body.config)
        if not n_hidden:  # random weights on many features would make confident guesses
            nn.init.zeros_(self.head.layers[-1].weight)

    def features(self, idx, mask=None):
        """idx, mask (B, T) -> (B, n_features), the pooled states of each sentence."""
        if mask is None:
            mask = torch.ones_like(idx, dtype=torch.bool)
        h, states = self.body(idx, mask, need_states=True)
        states = [*states[:-1], h]  # h: the last state after the final norm
        if self.layers != "all":
            states = [h if self.layers == "last" else states[int(self.layers)]]
        return torch.cat([pool_tokens(h, mask, how) for h in states for how in self.pool], dim=-1)

    def project(self, features):
        """(B, n_features) -> (B, n_component), or the features unchanged if n_component is 0."""
        return (features - self.shift) @ self.projection if self.n_component else features

    def forward(self, idx, mask=None):
        """idx, mask (B, T) -> logits (B, n_class)."""
        return self.head(self.project(self.features(idx, mask)))

    def fit_projection(self, features):
        """Fit the projection to features (N, n_features) of N >= n_component rows.

        Each column gets mean 0 and deviation 1, then the features are projected onto the principal
        axes. N rows differ in fewer than N directions, so few weights suffice.
        """
        self.shift.copy_(features.mean(0))
        scale = 1 / features.std(0).clamp(min=1e-5)
        standard = (features - self.shift) * scale
        _, _, axes = torch.pca_lowrank(standard, self.n_component, center=False)
        self.projection.copy_(scale[:, None] * axes)  # (n_features, n_component)


def pool_tokens(h, mask, how):
    """h (B, T, C), mask (B, T) -> (B, C), without padding."""
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
    raise ValueError(f"no pooling {how!r} yet; add it here")


class ClassifierHead(nn.Module):
    """n_input -> n_hidden with ReLU -> n_class. n_hidden = 0: a linear classifier."""

    def __init__(self, n_input, n_class, n_hidden=100, dropout=0.0):
        super().__init__()
        hidden = [nn.Linear(n_input, n_hidden), nn.ReLU()] if n_hidden else []
        self.layers = nn.Sequential(
            *hidden, nn.Dropout(dropout), nn.Linear(n_hidden or n_input, n_class)
        )

    def forward(self, x):
        """x (..., n_input) -> logits (..., n_class)."""
        return self.layers(x)
