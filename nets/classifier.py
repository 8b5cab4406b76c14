"""Sentences to classes: a body's states pooled into one vector a sentence, and a small head."""

import math

import torch
import torch.nn as nn

from model import init_weights


class Classifier(nn.Module):
    """A body, its states pooled into one vector a sentence, and a head.

    pool: parts joined by +, of mean, max, min (over the real tokens), first and last (token). layers: "last" pools the
    body's output, "all" also every state below it, a number that state alone: "0" the embeddings, "1" what the first
    block makes of them. With n_component > 0, features are standardised, because a frozen body's layers differ in scale,
    and turned onto that many principal axes (see `fit_projection`). Raises ValueError for another pool or layers.
    """

    POOLS = ("mean", "max", "min", "first", "last")

    def __init__(
        self, body, n_class, pool="mean", layers="last", n_hidden=100, dropout=0.0, n_component=0
    ):
        super().__init__()
        self.body, self.pool, self.layers = body, pool.split("+"), layers
        if not set(self.pool) <= set(self.POOLS) or not (
            layers in ("last", "all") or layers.isdecimal() and int(layers) <= body.config.n_layer
        ):
            raise ValueError(
                f"pool={pool}, layers={layers}: there is no such pooling of {body.config.n_layer} blocks"
            )
        n_layers = body.config.n_layer + 1 if layers == "all" else 1
        n_features = body.config.n_embd * len(self.pool) * n_layers
        self.n_component = min(n_component, n_features)
        self.head = ClassifierHead(
            body.config, n_class, self.n_component or n_features, n_hidden, dropout
        )
        if self.n_component:
            self.register_buffer("shift", torch.zeros(n_features))
            self.register_buffer("projection", torch.eye(n_features, self.n_component))
        init_weights(self, body.config)
        if not n_hidden:
            nn.init.zeros_(
                self.head.layers[-1].weight
            )  # random weights of so many features would start with confident guesses

    def features(self, idx, mask=None):
        """idx, mask (B, T) -> (B, n_features)."""
        if mask is None:
            mask = torch.ones_like(idx, dtype=torch.bool)
        if self.layers == "last":
            states = [self.body(idx, mask)]
        else:
            h, states = self.body(idx, mask, need_states=True)
            states = [*states[:-1], h]
            states = states if self.layers == "all" else [states[int(self.layers)]]
        return torch.cat([pool_tokens(h, mask, how) for h in states for how in self.pool], dim=-1)

    def project(self, features):
        """(B, n_features) -> (B, n_component), or the features themselves when n_component is 0."""
        return (features - self.shift) @ self.projection if self.n_component else features

    def forward(self, idx, mask=None):
        """idx, mask (B, T) -> logits (B, n_class)."""
        return self.head(self.project(self.features(idx, mask)))

    def fit_projection(self, features):
        """From features (N, n_features) of N >= n_component rows: bring each column to mean 0 and deviation 1,
        then turn onto the principal axes. N rows differ in fewer than N directions, so a classifier of far fewer
        weights can see what they hold."""
        self.shift.copy_(features.mean(0))
        scale = 1 / features.std(0).clamp(min=1e-5)
        _, _, axes = torch.pca_lowrank(
            (features - self.shift) * scale, self.n_component, center=False
        )  # (n_features, n_component)
        self.projection.copy_(scale[:, None] * axes)


def pool_tokens(h, mask, how):
    """h (B, T, C), mask (B, T) -> (B, C); padding takes no part."""
    real = mask[:, :, None]  # (B, T, 1)
    if how == "mean":
        return (h * real).sum(1) / real.sum(1)
    if how == "max":
        return h.masked_fill(~real, -math.inf).amax(1)
    if how == "min":
        return h.masked_fill(~real, math.inf).amin(1)
    if how == "first":
        return h[:, 0]
    return h[torch.arange(len(h), device=h.device), mask.sum(1) - 1]


class ClassifierHead(nn.Module):
    """One hidden layer, n_input (default: n_embd) -> n_hidden -> n_class; none with n_hidden = 0: a linear classifier."""

    def __init__(self, config, n_class, n_input=0, n_hidden=100, dropout=0.0):
        super().__init__()
        n_input = n_input or config.n_embd
        hidden = [nn.Linear(n_input, n_hidden), nn.ReLU()] if n_hidden else []
        self.layers = nn.Sequential(
            *hidden, nn.Dropout(dropout), nn.Linear(n_hidden or n_input, n_class)
        )

    def forward(self, x):
        """x (..., n_input) -> logits (..., n_class)."""
        return self.layers(x)
