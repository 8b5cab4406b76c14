"""Faster attention for long sequences, with the same results.

On a GPU, ALiBi needs no T x T table. With 12 heads and 8,192 tokens the table takes 3 GB, which
every layer reads. FlexAttention (Dong et al. 2024) compiles a kernel that computes the penalty from
the two positions and skips blocks of scores that are all hidden.

On a CPU, PyTorch's kernel computes all scores, even those that the bias of a decoder hides.
Attending in slices of rows skips most of them.

    long_alibi.install()     # all models use these kernels where they are faster
"""

import functools

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from model import Transformer, alibi_slopes

FLEX_DEVICES = ("cuda",)
FLEX_TOKENS = 256  # FlexAttention is faster from this length on
FLEX_WIDTH = 16  # it cannot be compiled for narrower heads
ROWS = 256  # scores that a decoder computes at a time on a CPU


def install():
    """Let all models use these kernels where they are faster."""
    Transformer.long_attention = choose_kernel


def choose_kernel(body, T, mask, need_weights):
    """Return (kernel, bias) for T tokens, or None where PyTorch's own kernel is as good.

    body: a Transformer; T, mask, need_weights: as in its forward.
    kernel(q, k, v, bias, dropout, is_causal) -> (B, H, T, D).
    """
    config, device = body.config, body.embedding.weight.device
    if need_weights or body.training and config.attn_dropout:
        return None  # attention is written out
    wide = config.n_embd // config.n_head >= FLEX_WIDTH
    if config.pos == "alibi" and T >= FLEX_TOKENS and device.type in FLEX_DEVICES and wide:
        variant = "causal" if body.causal else config.alibi
        make = alibi_kernel if mask is None else alibi_kernel.__wrapped__  # masks are never alike
        return make(config.n_head, T, variant, config.window, device, mask), None
    if body.causal and T > ROWS and device.type == "cpu":
        bias = body.attention_bias(T, mask)
        return None if bias is None else (attend_in_rows, bias)
    return None


def attend_in_rows(q, k, v, bias, dropout=0.0, is_causal=False):
    """Compute causal attention ROWS queries at a time. q, k, v (B, H, T, D) -> (B, H, T, D).

    bias is broadcastable to (B, H, T, T) and hides the future. dropout must be 0.
    """
    parts = [
        F.scaled_dot_product_attention(
            q[:, :, i : i + ROWS], k[:, :, : i + ROWS], v[:, :, : i + ROWS],
            attn_mask=bias[:, :, i : i + ROWS, : i + ROWS],
        )
        for i in range(0, q.size(2), ROWS)
    ]  # fmt: skip
    return torch.cat(parts, dim=2)


@functools.cache
def compiled():
    return torch.compile(flex_attention)


@functools.lru_cache(maxsize=8)
def alibi_kernel(n_head, T, variant, window, device, mask=None):
    """Return a kernel that attends as with alibi_bias(n_head, T, variant) and without that table.

    window: as in Config; mask (B, T): True for real tokens.
    """
    half = n_head // 2
    slopes = alibi_slopes(half if variant == "one-sided" else n_head).to(device)

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
            seen = torch.where(h < half, j <= i, j >= i)
        if window:
            seen = seen & ((i - j).abs() < window)
        # A token always sees itself, as in Transformer.attention_bias
        return seen if mask is None else seen & (mask[b, j] | (i == j))

    blocks = None
    if variant in ("causal", "one-sided") or window or mask is not None:
        n_mask = None if mask is None else len(mask)
        n_side = n_head if variant == "one-sided" else None
        blocks = create_block_mask(allowed, n_mask, n_side, T, T, device=device)
    attend = compiled() if device.type == "cuda" else flex_attention
    return lambda q, k, v, *_, **__: attend(q, k, v, score_mod=score, block_mask=blocks)
