"""Read a text token by token without rereading it for each one."""

import math

import torch
import torch.nn.functional as F

STEP = 64  # tables of positions grow by this many tokens at a time


class CachedReader:
    """Reads the next tokens of a text with a decoder, and keeps the keys and values of all tokens.

    The states are those of reading the whole text at once. Memory: 2 n_layer (B, T, C).
    """

    def __init__(self, body):
        self.body, self.past = body, [None] * len(body.blocks)  # of each layer (k, v)
        self.n_read, self.layer = 0, 0

    def read(self, idx, **more):
        """idx (B, n): the next tokens -> h (B, n, C). more: see `Transformer.run_blocks`."""
        body, begin, T = self.body, self.n_read, self.n_read + idx.size(1)
        x = body.token_vectors(idx)
        if (vectors := body.position_vectors(T)) is not None:
            x = x + vectors[begin:]
        length = math.ceil(T / STEP) * STEP
        bias, angles = body.attention_bias(length), body.angles(length)
        if bias is None:  # only the future is hidden
            bias = x.new_full((1, 1, T - begin, T), -math.inf).triu(begin + 1)
        else:
            bias = bias[:, :, begin:T, :T]
        args = dict(bias=bias, angles=None if angles is None else angles[begin:T])
        self.n_read, self.layer = T, 0
        return body.run_blocks(x, args | dict(need_weights=False, kernel=self.attend), **more)

    def attend(self, q, k, v, bias, *_, **__):
        """Attend from the new tokens, q, k, v (B, H, n, D), to them and to all before."""
        if self.past[self.layer] is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.past[self.layer], (k, v)))
        self.past[self.layer] = k, v
        self.layer += 1
        return F.scaled_dot_product_attention(q, k, v, bias)
