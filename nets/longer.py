"""Options for texts longer than those in training."""

import math
from copy import copy
from dataclasses import replace

import torch
import torch.nn as nn

from model import Learned, NoPE


class LogScale:
    """Replaces Attention.mix: multiplies the query of the t-th token by s log t, s trained per head
    (scalable softmax, Nakanishi 2025). At first it is 1 for t = block_size. Tokens that a window
    hides from the query count too."""

    def __init__(self, config):
        super().__init__(config)
        start = torch.full((config.n_head,), 1 / math.log(config.block_size))
        self.log_scale = nn.Parameter(start)

    def mix(self, q, k, v, where):
        return super().mix(self.scale(q, k), k, v, where)

    def scale(self, q, k):
        """q (B, H, T, D), of the last T of the S tokens of k (B, H, S, D) -> q scaled."""
        T, S = q.size(2), k.size(2)
        t = 1 + torch.arange(S - T, S, device=q.device)
        scale = self.log_scale[:, None, None] * t.log()[:, None]  # (H, T, 1)
        return q * scale.to(q.dtype)


class NopeEvery:
    """Replaces Transformer.start: also makes `where.nope`, a Where without positions, which a
    NopeBlock reads. With nope_every=n, every n-th block is one (Yang et al. 2025, "RNoPE")."""

    def start(self, idx, mask=None, **inputs):
        x, where = super().start(idx, mask, **inputs)
        nope = NoPE(self.config, self.causal)
        where.nope = copy(where)  # with what other options have added to it
        where.nope.positions = nope
        where.nope.bias = self.bias(nope, where.i, where.j, mask)
        return x, where


class NopeBlock:
    """Replaces Block.forward: attends without rotations and biases."""

    def forward(self, x, where, picked=None):
        return super().forward(x, where.nope, picked)


class RandomPositions:
    """Replaces Transformer.number: positions that `spread` draws."""

    def number(self, idx, mask):
        return spread(idx, mask, self.config.random_positions, self.training)


class LongLearned(Learned):
    """Learned positions that end at random_positions, not at block_size."""

    def __init__(self, config, causal):
        super().__init__(replace(config, block_size=config.random_positions), causal)


def spread(idx, mask, end, is_training):
    """Return positions below `end` for texts idx (B, T), mask (B, T) or None: (T,) or (B, T).

    In training, they are a sorted sample (Ruoss et al. 2023). Else each text is spread evenly, so
    that an evaluation repeats; the paper draws a sample then too. At positions 0, 1, 2, ... all
    tokens would be closer together than in training."""
    T = idx.size(1)
    if is_training:
        return torch.randperm(end, device=idx.device)[:T].sort().values
    at = torch.arange(T, device=idx.device)
    if T > end:
        return at
    lengths = T
    if mask is not None:
        lengths = mask.sum(1, keepdim=True)  # (B, 1)
    return (at * end // lengths).clamp(max=end - 1)  # of padding, the last position
