"""ALiBi as a function of two positions, for long sequences on a GPU: no T x T table is ever made.

A table of 12 heads at 8,192 tokens is 3 GB, read again in every layer. PyTorch's FlexAttention (Dong et al. 2024) instead
compiles a kernel that computes the penalty where the score is, and skips the blocks in which nothing may be attended to.
"""

import functools

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


@functools.cache
def compiled():
    return torch.compile(flex_attention)


def alibi_attention(slopes, T, variant, window=0, mask=None):
    """What alibi_bias(n_head, T, variant) does to attention, as f(q, k, v) -> (B, H, T, D), q, k, v (B, H, T, D).

    slopes (H,): alibi_slopes(H), for variant "one-sided" alibi_slopes(H / 2); window: as in Config;
    mask (B, T): True for real tokens.
    """
    H = len(slopes) * (2 if variant == "one-sided" else 1)

    def score(s, b, h, i, j):
        distance = (i - j).abs()
        if variant == "offset":
            distance = distance - 0.5 * (j > i)
        return s - slopes[h % len(slopes)] * distance

    def allowed(b, h, i, j):
        seen = j >= 0
        if variant == "causal":
            seen = j <= i
        if variant == "one-sided":
            seen = torch.where(h < H // 2, j <= i, j >= i)
        if window:
            seen = seen & ((i - j).abs() < window)
        # As in Transformer.attention_bias, a token always sees itself
        return seen if mask is None else seen & (mask[b, j] | (i == j))

    blocks = None
    if variant in ("causal", "one-sided") or window or mask is not None:
        blocks = create_block_mask(
            allowed,
            None if mask is None else len(mask),
            H if variant == "one-sided" else None,
            T,
            T,
            device=slopes.device,
        )
    attend = compiled() if slopes.is_cuda else flex_attention
    return lambda q, k, v: attend(q, k, v, score_mod=score, block_mask=blocks)
