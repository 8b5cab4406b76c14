"""Attention: every token gets a weighted mean of what the tokens it may attend to offer.

The formula, the module, fused kernels, masks, and a GPU's kernel for long sequences. Shapes: B
sequences, H heads of width D = C / H, T queries, S keys.
"""

import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._triton import has_triton

from data.batching import is_gpu

LONG = 256  # tokens: below, all kernels are equally fast
KERNELS = "CUDNN_ATTENTION FLASH_ATTENTION EFFICIENT_ATTENTION MATH".split()  # the fastest first


def attend(q, k, v, bias=None, dropout=0.0):
    """Compute softmax(q k^T / sqrt(D) + bias) v (Vaswani et al. 2017, equation 1).

    q (B, H, T, D); k, v (B, H, S, D); bias broadcastable to (B, H, T, S), -inf hides a key.
    Returns the output (B, H, T, D) and the weights (B, H, T, S), whose rows sum to 1.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ v, weights


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself, or to a memory (cross-attention)."""

    def __init__(self, config, causal=False):
        super().__init__()
        self.n_head, self.attn_dropout, self.causal = config.n_head, config.attn_dropout, causal
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)  # q, k and v of all heads at once
        self.out = nn.Linear(config.n_embd, config.n_embd)
        self.log_scale = None
        if config.log_scale and causal:
            start = torch.full((config.n_head,), 1 / math.log(config.block_size))
            self.log_scale = nn.Parameter(start)

    def heads(self, x, memory=None):
        """x (B, T, C) -> q (B, H, T, D), and k, v (B, H, S, D) of x or of memory (B, S, C)."""
        (B, _, C), H = x.shape, self.n_head
        if memory is None:
            q, k, v = self.qkv(x).split(C, dim=-1)  # 3 of (B, T, C)
        else:
            q = F.linear(x, self.qkv.weight[:C], self.qkv.bias[:C])  # (B, T, C)
            kv = F.linear(memory, self.qkv.weight[C:], self.qkv.bias[C:])  # (B, S, 2C)
            k, v = kv.split(C, dim=-1)  # 2 of (B, S, C)
        return tuple(t.view(B, -1, H, C // H).transpose(1, 2) for t in (q, k, v))

    def scale(self, q, S):
        """Multiply q (B, H, T, D), the last T of S tokens, by s log t for the t-th token, s trained
        per head (scalable softmax, Nakanishi 2025). At first it is 1 for t = block_size."""
        if self.log_scale is None:
            return q
        t = torch.arange(S - q.size(2), S, device=q.device) + 1
        return q * (self.log_scale[:, None, None] * t.log()[:, None]).to(q.dtype)

    def forward(
        self, x, where=None, bias=None, need_weights=False, memory=None, past=None, kernel=None
    ):
        """x (B, T, C) -> the output (B, T, C), and the weights (B, H, T, S) or None.

        where: the encoding, and the positions i, j of queries and keys. bias (1 or B, 1 or H, T,
        S): that of all blocks (`shared_bias`). memory (B, S, C): what keys and values come from,
        else x. past: a dictionary of the keys and values read before, which is extended. kernel:
        replaces the bias (`choose_flex`).
        """
        q, k, v = self.heads(x, memory)
        if past is not None:
            k, v = (torch.cat([past[n], t], dim=2) if past else t for n, t in (("k", k), ("v", v)))
            past.update(k=k, v=v)
        q = self.scale(q, k.size(2))
        if where is not None:
            positions, i, j = where
            q, k = positions.turn(q, k, i, j)
            if positions.reads_content:
                own = positions.bias(q, k, i, j, self)
                bias = own if bias is None else own + bias
        dropout, weights = self.attn_dropout if self.training else 0.0, None
        if need_weights:
            if self.causal and bias is None:
                bias = q.new_full((q.size(2), k.size(2)), -math.inf).triu(1)
            y, weights = attend(q, k, v, bias, dropout)
        else:
            y = (kernel or fused)(q, k, v, bias, dropout, self.causal)
        return self.out(y.transpose(1, 2).reshape(x.shape)), weights  # (B, H, T, D) -> (B, T, C)


def fused(q, k, v, bias, dropout, causal):
    """Return softmax(q k^T / sqrt(D) + bias) v as `attend`, without the weights. bias (1 or B, 1 or
    H, T, S) also hides the future of a causal layer; None: the kernel does."""
    T, D, device = q.size(2), v.size(-1), q.device
    if q.size(-1) > D:  # PoPE's; many kernels need one width
        return fused(q, k, F.pad(v, (0, q.size(-1) - D)), bias, dropout, causal)[..., :D]
    if bias is None and is_gpu(device) and T >= LONG and not dropout:
        # cuDNN's kernel is faster than FlashAttention 2 on an H100. It returns NaN for some biases
        # (pytorch#196678) and rounds dropout (pytorch#174245).
        with sdpa_kernel([getattr(SDPBackend, name) for name in KERNELS], set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    if bias is not None and causal and device.type == "cpu" and T > LONG and not dropout:
        # The kernel would compute all scores, even hidden ones. Slices of rows skip most of them.
        parts = []
        for t in range(0, T, LONG):
            rows, seen = slice(t, t + LONG), slice(k.size(2) - T + t + LONG)
            part = q[:, :, rows], k[:, :, seen], v[:, :, seen], bias[:, :, rows, seen]
            parts.append(F.scaled_dot_product_attention(*part))
        return torch.cat(parts, dim=2)
    is_causal = causal and bias is None
    return F.scaled_dot_product_attention(q, k, v, bias, dropout, is_causal=is_causal)


def may_attend(i, j, config, causal=False, mask=None):
    """Return (1 or B, 1, T, S) bool: which keys each query may attend to, True = may.

    i, j: positions of queries and keys as in NoPE; the last T keys are the queries' own tokens.
    mask (B, S): True on tokens. A token always sees itself, since the softmax of nothing is NaN.
    Of the Config: window, attn_block (blockwise attention, Qiu et al. 2020), and beside these
    global_tokens and random_keys (BigBird, Zaheer et al. 2020).
    """
    T, S, i, j = i.size(-1), j.size(-1), i[..., :, None], j[..., None, :]
    may = torch.ones_like(i - j, dtype=torch.bool)  # (T, S) or (B, T, S)
    if config.window:
        may = (i - j).abs() < config.window
    if config.attn_block:
        may = may & (i // config.attn_block == j // config.attn_block)
    if config.global_tokens:
        may = may | (torch.minimum(i, j) < config.global_tokens)
    if config.random_keys:
        may = may | (hash_pairs(i, j) % config.block_size < config.random_keys)
    if causal:
        may = may & (j <= i)
    may = may.view(-1, 1, T, S)
    if mask is not None:
        itself = torch.eye(S, dtype=torch.bool, device=may.device)[S - T :]
        may = may & (mask[:, None, None] | itself)
    return may


def hash_pairs(i, j):
    """Return a number below 2^31 for each pair of positions, which looks random and never changes,
    so that a text has the same random keys in training, with a cache and in a longer batch."""
    h = (i * 73856093 ^ j * 19349663) & 0x7FFFFFFF
    h = (h ^ h >> 15) * 0x2C1B3C6D & 0x7FFFFFFF
    return h ^ h >> 15


def shared_bias(body, positions, i, j, mask=None):
    """Return the bias (1 or B, 1 or H, T, S) that the blocks of a Transformer with these positions
    add to their scores: that of the positions, and -inf where a query may not attend. None: a
    kernel hides the future of a causal layer by itself, and nothing else is hidden."""
    config, dtype = body.config, body.embedding.weight.dtype
    bias = None if positions.reads_content else positions.bias(None, None, i, j)
    own_future = bias is None and not positions.reads_content and i.size(-1) == j.size(-1)
    sparse = config.window or config.attn_block
    if mask is None and not sparse and (own_future or not body.causal):
        return None if bias is None else bias.to(dtype)
    may = may_attend(i, j, config, body.causal, mask)
    bias = torch.zeros_like(may, dtype=dtype) if bias is None else bias.to(dtype)
    return bias.masked_fill(~may, -math.inf)


def choose_flex(body, positions, T, mask):
    """Return a kernel with the effect of `shared_bias`, or None where a table is as good.

    With 12 heads and 8,192 tokens, ALiBi's table would take 3 GB, and every layer would read it. On
    a GPU, FlexAttention (Dong et al. 2024) compiles a kernel that computes the penalty from the two
    positions and skips blocks of scores that are all hidden. body: a Transformer of T tokens; mask
    (B, T) as in its forward.
    """
    config, device = body.config, body.embedding.weight.device
    if config.attn_block or config.global_tokens or config.random_keys:
        return None
    dropout = body.training and config.attn_dropout  # which FlexAttention does not have
    width = config.n_embd // config.n_head  # others cannot be compiled
    if T < LONG or dropout or not 16 <= width <= 256 or not compiled(device):
        return None
    score, here = positions.flex(), torch.arange(1, device=device)
    if score is None:
        biased = positions.reads_content or positions.bias(None, None, here, here) is not None
        if biased or not config.window:
            return None

    def add_bias(s, b, h, i, j):
        s = score(s, b, h, i, j) if score else s
        return s if mask is None else torch.where(mask[b, j] | (i == j), s, -math.inf)

    blocks = blocks_to_compute(T, body.causal, config.window, device)
    run = compiled(device)[0]
    return lambda q, k, v, *_: run(q, k, v, score_mod=add_bias, block_mask=blocks)


@functools.cache
def compiled(device):
    """Return flex_attention and create_block_mask, compiled: for CUDA, with Triton and an Ampere
    GPU; else None."""
    if device.type != "cuda" or not has_triton():
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    torch._dynamo.config.recompile_limit = 64  # else a ninth kind of batch is not compiled
    return torch.compile(flex_attention), torch.compile(create_block_mask)


@functools.lru_cache(maxsize=64)
def blocks_to_compute(T, causal, window, device):
    """Return the blocks of scores that are not all hidden, or None: all. The padding of a batch is
    left to the scores, so that the blocks are computed once per length."""

    def allowed(b, h, i, j):
        seen = j <= i if causal else j >= 0
        return seen & ((i - j).abs() < window) if window else seen

    if not causal and not window:
        return None
    return compiled(device)[1](allowed, None, None, T, T, device=device)
