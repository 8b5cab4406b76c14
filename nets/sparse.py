"""Attention to some of the keys: windows, blocks, global tokens, random keys.

What differs from the papers: Qiu et al. also let heads attend from each block to another one (a
permutation of the blocks), here each block sees itself alone. BigBird's windows, global tokens and
random keys come in blocks of tokens, for speed, here they are single ones. In a decoder, which
BigBird is not, a global token is seen by all later tokens, but sees only what is before it.
"""

import torch


class Sparse:
    """Replaces Transformer.may_attend. Of the Options: window, attn_block (blockwise attention, Qiu
    et al. 2020), and beside these global_tokens and random_keys (BigBird, Zaheer et al. 2020)."""

    def may_attend(self, i, j, mask):
        options = self.config
        may = super().may_attend(i, j, mask)  # (1 or B, 1, T, S)
        i = i[..., :, None]
        j = j[..., None, :]
        near = torch.ones_like(i - j, dtype=torch.bool)  # (T, S) or (B, T, S)
        if options.window:
            near = (i - j).abs() < options.window
        if options.attn_block:
            near = near & (i // options.attn_block == j // options.attn_block)
        if options.global_tokens:
            near = near | (torch.minimum(i, j) < options.global_tokens)
        if options.random_keys:
            near = near | (hash_pairs(i, j) % options.block_size < options.random_keys)
        return may & near.view(-1, 1, *near.shape[-2:])


def hash_pairs(i, j):
    """Return a number below 2^31 for each pair of positions, which looks random and never changes,
    so that a text has the same random keys in training, with a cache and in a longer batch."""
    h = (i * 73856093 ^ j * 19349663) & 0x7FFFFFFF
    h = (h ^ h >> 15) * 0x2C1B3C6D & 0x7FFFFFFF
    return h ^ h >> 15
