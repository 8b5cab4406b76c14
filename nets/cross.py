"""Cross-attention: every block of a Transformer also reads a memory, the states of other texts."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import Attention, Block, split_heads


class ReadsMemory:
    """Replaces Transformer.start: adds to the Where the memory (B, S, C) that CrossBlocks read, and
    what hides its padding. memory_mask (B, S): each row needs a True."""

    def start(self, idx, mask=None, memory=None, memory_mask=None, **inputs):
        x, where = super().start(idx, mask, **inputs)
        where.memory = memory
        where.memory_bias = None
        if memory_mask is not None:
            bias = torch.where(memory_mask, 0.0, -math.inf).to(x.dtype)  # (B, S)
            where.memory_bias = bias[:, None, None]  # (B, 1, 1, S)
        return x, where


class CrossBlock(Block):
    """A Block that reads the memory, if there is one, between attention and feed-forward layer."""

    def __init__(self, config, attention, cross_attention):
        super().__init__(config, attention)
        # init_weights draws in the order of the modules. Those of the feed-forward layer come last,
        # as in forward, so they are taken out and put back
        norm2, feed_forward = self.norm2, self.feed_forward
        del self.norm2, self.feed_forward
        self.cross_norm = nn.LayerNorm(config.n_embd, config.norm_eps)
        self.cross_attention = cross_attention
        self.norm2 = norm2
        self.feed_forward = feed_forward

    def forward(self, x, where, picked=None):
        x = self.residual(x, self.norm1, self.attention, where)
        if where.memory is not None:
            x = self.residual(x, self.cross_norm, self.cross_attention, where)
        if picked is not None:
            x = x.flatten(0, 1).index_select(0, picked)  # (B, T, C) -> (N, C)
        return self.residual(x, self.norm2, self.feed_forward)


class CrossAttention(Attention):
    """q comes from the tokens, k and v from the memory of a Where, without positions."""

    def forward(self, x, where):
        """x (B, T, C) -> (B, T, C)."""
        C = x.size(-1)
        weight, bias = self.qkv.weight, self.qkv.bias  # (3C, C), (3C,)
        q = F.linear(x, weight[:C], bias[:C])  # (B, T, C)
        keys_and_values = F.linear(where.memory, weight[C:], bias[C:])  # (B, S, 2C)
        k, v = keys_and_values.split(C, dim=-1)  # 2 of (B, S, C)
        q, k, v = (split_heads(t, self.n_head) for t in (q, k, v))  # (B, H, T or S, D)
        y = self.attend(q, k, v, where.memory_bias)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(x.shape))
