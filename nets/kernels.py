"""Attention in less time and memory: PyTorch's kernels, and one that is compiled for a GPU.

The core adds a table of T x S biases to the scores. With 12 heads and 8,192 tokens, ALiBi's table
would take 3 GB, and every layer would read it. Where a kernel can do without the table, a Kernel
takes its place.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._triton import has_triton

from data.batching import is_gpu
from model import ALiBi, NoPE, Transformer
from nets import LONG
from nets.relative import ContentBias
from nets.sparse import Sparse

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@dataclass
class Kernel:
    """Attends without a table. It stands in the place of the table, as the bias of a Where."""

    run: Callable  # (q, k, v, dropout) -> (B, H, T, D)


class ChooseKernel:
    """Replaces Transformer.start and bias: bias returns a Kernel where one has the effect of the
    table; start notes whether positions are 0, 1, 2, ..., as a Kernel assumes."""

    def start(self, idx, mask=None, at=None, **inputs):
        # Kernels take a token's index for its position, and T keys for T queries
        self.counts_from_0 = at is None and type(self).number is Transformer.number
        return super().start(idx, mask, at=at, **inputs)

    def bias(self, positions, i, j, mask):
        kernel = self.kernel(positions, i, j, mask)
        if kernel is None:
            return super().bias(positions, i, j, mask)
        return kernel

    def kernel(self, positions, i, j, mask):
        """Return a Kernel, or None where the table is needed."""
        options = self.config
        if not self.counts_from_0 or isinstance(positions, ContentBias):
            return None
        hiding = [option for option in type(self).__mro__ if "may_attend" in vars(option)]
        if not set(hiding) <= {Sparse, Transformer}:  # another option hides tokens in its own way
            return None
        if options.attn_block or options.global_tokens or options.random_keys:
            return None
        adds_nothing = type(positions).bias is NoPE.bias  # it does not override the method
        if adds_nothing and not options.window:
            if mask is None:
                return Kernel(functools.partial(attend_plainly, causal=self.causal))
            return None
        if adds_nothing or isinstance(positions, ALiBi):
            return self.compiled_kernel(positions, len(i), mask)
        return None

    def compiled_kernel(self, positions, T, mask):
        """Return a Kernel that FlexAttention (Dong et al. 2024) compiles for a GPU: it computes the
        penalty from the two positions and skips blocks of scores that are all hidden. None where it
        cannot be compiled, or would not be faster."""
        options, device = self.config, self.embedding.weight.device
        has_dropout = self.training and options.attn_dropout > 0  # which FlexAttention lacks
        width = options.n_embd // options.n_head
        if T < LONG or has_dropout or not 16 <= width <= 256 or compile_flex(device) is None:
            return None
        penalty = None
        if isinstance(positions, ALiBi):
            penalty = alibi_score(positions)

        def score(s, b, h, i, j):
            if penalty is not None:
                s = penalty(s, h, i, j)
            if mask is not None:
                s = torch.where(mask[b, j] | (i == j), s, -math.inf)
            return s

        blocks = blocks_to_compute(T, self.causal, options.window, device)
        flex, _ = compile_flex(device)
        return Kernel(lambda q, k, v, dropout: flex(q, k, v, score_mod=score, block_mask=blocks))


class FastAttention:
    """Replaces Attention.attend: runs the Kernel that stands in the place of a bias."""

    def attend(self, q, k, v, bias):
        dropout = self.attn_dropout if self.training else 0.0
        if isinstance(bias, Kernel):
            return bias.run(q, k, v, dropout)
        if bias is None:  # cross-attention to a memory without padding
            return attend_plainly(q, k, v, dropout, causal=False)
        return super().attend(q, k, v, bias)


class CausalFastAttention(FastAttention):
    """FastAttention of a decoder. A CPU's kernel also computes the scores that are hidden. So the
    queries are cut into slices of LONG rows, each with only the keys up to its last row."""

    def attend(self, q, k, v, bias):
        T, S = q.size(2), k.size(2)
        has_dropout = self.training and self.attn_dropout > 0
        is_short = T <= LONG
        if isinstance(bias, Kernel) or is_short or q.device.type != "cpu" or has_dropout:
            return super().attend(q, k, v, bias)  # has_dropout: slices would draw other numbers
        parts = []
        for t in range(0, T, LONG):
            rows = slice(t, t + LONG)
            seen = slice(S - T + t + LONG)  # keys up to the last of these rows
            part = super().attend(
                q[:, :, rows], k[:, :, seen], v[:, :, seen], bias[:, :, rows, seen]
            )
            parts.append(part)
        return torch.cat(parts, dim=2)  # (B, H, T, D)


def attend_plainly(q, k, v, dropout, causal):
    """Return softmax(q k^T / sqrt(D)) v; causal: of the keys up to the query."""
    if is_gpu(q.device) and q.size(2) >= LONG and not dropout:
        # cuDNN's kernel is faster than FlashAttention 2 on an H100. It is right only here, without
        # bias and dropout: it returns NaN for some biases (pytorch#196678) and rounds dropout
        # (pytorch#174245).
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)


def alibi_score(positions):
    """Return f(score, h, i, j) -> score with ALiBi's penalty, of one query and one key."""
    slopes = positions.slopes

    def penalty(s, h, i, j):
        distance = (i - j).abs()
        if positions.form == "offset":
            distance = distance - 0.5 * (i < j)
        s = s - slopes[h] * distance
        if positions.form == "one-sided":
            s = torch.where(positions.sides[h] * (i - j) < 0, -math.inf, s)
        return s

    return penalty


@functools.cache
def compile_flex(device):
    """Return flex_attention and create_block_mask, compiled: for CUDA, with Triton and an Ampere
    GPU; else None."""
    if device.type != "cuda" or not has_triton():
        return None
    if torch.cuda.get_device_capability(device) < (8, 0):
        return None
    torch._dynamo.config.recompile_limit = 64  # batches of other shapes are compiled anew; not 8
    return torch.compile(flex_attention), torch.compile(create_block_mask)


@functools.lru_cache(maxsize=64)
def blocks_to_compute(T, causal, window, device):
    """Return the blocks of scores that are not all hidden, or None: all. The padding of a batch is
    left to the scores, so that the blocks are computed once per length."""
    if not causal and not window:
        return None

    def allowed(b, h, i, j):
        seen = j <= i if causal else j >= 0
        if window:
            seen = seen & ((i - j).abs() < window)
        return seen

    _, make_blocks = compile_flex(device)
    return make_blocks(allowed, None, None, T, T, device=device)
