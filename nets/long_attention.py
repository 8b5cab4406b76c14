"""Faster attention for long sequences, with the same results.

On a GPU, ALiBi and windows do without a T x T table. With 12 heads and 8,192 tokens, ALiBi's would
take 3 GB, and every layer would read it. FlexAttention (Dong et al. 2024) compiles a kernel that
computes the penalty from the two positions and skips blocks of scores that are all hidden.

Without a bias, a GPU uses cuDNN's kernel, which is faster than FlashAttention 2 on an H100.

On a CPU, PyTorch's kernel computes all scores, even those that the bias of a decoder hides.
Attending in slices of rows skips most of them.

    long_attention.install()     # all models use these kernels where they are faster
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._triton import has_triton

from model import Transformer, alibi_slopes
from nets.device import is_gpu

LONG = 256  # tokens; a GPU uses these kernels from here on
FLEX_WIDTHS = range(16, 257)  # of heads; for others it cannot be compiled
CUDNN_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
ROWS = 256  # rows of scores that a decoder computes at a time on a CPU


def install():
    """Let all models use these kernels where they are faster."""
    Transformer.choose_kernel = choose_kernel


def choose_kernel(body, T, mask, need_weights):
    """Return (kernel, bias) for T tokens. The kernel is None where PyTorch's own is as good.

    body: a Transformer; T, mask, need_weights: as in its forward.
    kernel(q, k, v, bias, dropout, is_causal) -> (B, H, T, D).
    """
    config, device = body.config, body.embedding.weight.device
    # These kernels return no weights and have no dropout, which cuDNN rounds (pytorch#174245).
    if need_weights or body.training and config.attn_dropout:
        return None, body.attention_bias(T, mask)
    wide = config.n_embd // config.n_head in FLEX_WIDTHS
    alibi = config.pos == "alibi"
    needs_table = alibi or config.window
    if needs_table and T >= LONG and wide and has_flex(device):
        variant = "causal" if body.causal else config.alibi if alibi else "symmetric"
        return flex_kernel(config.n_head, T, alibi, variant, config.window, device, mask), None
    bias = body.attention_bias(T, mask)
    if bias is None and T >= LONG and is_gpu(device):
        return attend_with_cudnn, None
    if bias is not None and T > ROWS and body.causal and device.type == "cpu":
        return attend_in_rows, bias
    return None, bias


def attend_with_cudnn(q, k, v, *_, is_causal):
    """Compute attention with cuDNN, or where it cannot with the next kernel. Shapes as above.

    Only without a bias, since cuDNN returns NaN for some (pytorch#196678).
    """
    with sdpa_kernel(CUDNN_FIRST, set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


def attend_in_rows(q, k, v, bias, *_, **__):
    """Compute causal attention ROWS queries at a time. q, k, v (B, H, T, D) -> (B, H, T, D).

    bias is broadcastable to (B, H, T, T) and hides the future.
    """
    parts = []
    for i in range(0, q.size(2), ROWS):
        rows, seen = slice(i, i + ROWS), slice(i + ROWS)
        part = q[:, :, rows], k[:, :, seen], v[:, :, seen], bias[:, :, rows, seen]
        parts.append(F.scaled_dot_product_attention(*part))
    return torch.cat(parts, dim=2)


@functools.cache
def compiled(function, device):
    """Return a function compiled for a GPU, or unchanged for a CPU."""
    if device.type != "cuda":
        return function
    torch._dynamo.config.recompile_limit = 64  # else a ninth kind of batch is not compiled
    return torch.compile(function)


@functools.cache
def has_flex(device):
    """Return whether FlexAttention can be compiled: for CUDA, with Triton and an Ampere GPU."""
    if device.type != "cuda" or not has_triton():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def flex_kernel(n_head, T, alibi, variant, window, device, mask=None):
    """Return a kernel with the effect of `Transformer.attention_bias`, but without its table.

    alibi: whether distances are penalised. variant: which of alibi_bias; without ALiBi causal or
    symmetric. window: as in Config. mask (B, T): True for real tokens.
    """
    slopes, blocks = prepare(n_head, T, variant, window, device)

    def score(s, b, h, i, j):
        if alibi:
            distance = (i - j).abs()
            if variant == "offset":
                distance = distance - 0.5 * (j > i)
            s = s - slopes[h % len(slopes)] * distance
        if mask is not None:  # a token always sees itself, as in Transformer.attention_bias
            s = torch.where(mask[b, j] | (i == j), s, -math.inf)
        return s

    attend = compiled(flex_attention, device)
    return lambda q, k, v, *_, **__: attend(q, k, v, score_mod=score, block_mask=blocks)


@functools.lru_cache(maxsize=64)
def prepare(n_head, T, variant, window, device):
    """Return the slopes of ALiBi, and the blocks of scores that are not all hidden, or None.

    The padding of a batch is left to the scores, so that the blocks are computed once per length.
    """
    half = n_head // 2
    slopes = alibi_slopes(half if variant == "one-sided" else n_head).to(device)

    def allowed(b, h, i, j):
        seen = j >= 0  # always true; a kernel needs a tensor
        if variant == "causal":
            seen = j <= i
        if variant == "one-sided":
            seen = torch.where(h < half, j <= i, j >= i)
        if window:
            seen = seen & ((i - j).abs() < window)
        return seen

    if not (variant in ("causal", "one-sided") or window):
        return slopes, None
    n_side = n_head if variant == "one-sided" else None
    # Not compiled, it would make a table of all T x T pairs
    make = compiled(create_block_mask, device)
    return slopes, make(allowed, None, n_side, T, T, device=device)
