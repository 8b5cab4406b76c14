"""Cross-entropy from hidden states, in chunks of rows.

The N x V logits of all tokens would take most of a small model's memory and time.
"""

import math

import torch
import torch.nn.functional as F

from nets.device import is_gpu


def linear_cross_entropy(x, weight, bias, targets, smoothing=0.0):
    """Return the (N,) cross-entropies of logits = x weight^T + bias with the targets.

    x (N, C), weight (V, C), bias (V,) or None, targets (N,) without ignored rows.
    smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7).
    For evaluation only: with gradients, autograd would store the probabilities of all chunks.
    """
    losses, n, V = [], rows_at_a_time(x, weight), len(weight)
    weight, bias = pad_words(cast(weight, x), bias)
    for part, target in zip(x.split(n), targets.split(n)):
        logits = F.linear(part, weight, bias)  # (n, V), or with padded words
        losses.append(chunk_losses(logits, target, smoothing, V))
    return torch.cat(losses)


class LinearCrossEntropySum(torch.autograd.Function):
    """The sum of `linear_cross_entropy`, for training.

    Let p = softmax(logits), and let q be the target: 1 - smoothing on the right word, plus
    smoothing / V on every word. The gradient of the logits is p - q. Each chunk adds its share to
    the gradients of x, weight and bias while its p is in memory, so no logits are stored (as in
    Liger Kernel, Hsu et al. 2024). The backward pass multiplies these gradients in place, so it can
    run only once.

    apply(x, weight, bias or None, targets, smoothing) -> ().
    """

    @staticmethod
    def forward(ctx, x, weight, bias, targets, smoothing):
        x_grad = torch.empty_like(x)
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None  # else frozen
        bias_grad = None if bias is None else torch.zeros_like(bias)
        total, n, V = 0.0, rows_at_a_time(x, weight), len(weight)
        weight, bias = pad_words(cast(weight, x), bias)
        for part, target, part_grad in zip(x.split(n), targets.split(n), x_grad.split(n)):
            logits = F.linear(part, weight, bias)  # (n, V), or with padded words
            loss, grad, summed = chunk_gradient(logits, target, smoothing, V, bias_grad is not None)
            total = total + loss
            if bias_grad is not None:
                bias_grad += summed[:V]
            if weight_grad is not None:
                weight_grad += (grad.t() @ part)[:V]
            part_grad.copy_(grad @ weight)
        ctx.save_for_backward(x_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx, grad):
        scaled = (None if part is None else part.mul_(grad) for part in ctx.saved_tensors)
        return *scaled, None, None


# ---------------------------------------------------------------------------- one chunk
# logits (n, V), or with padded words: more columns of -inf, whose gradient is ignored


def chunk_losses(logits, targets, smoothing, V):
    """Return the (n,) cross-entropies of the logits with the targets (n,)."""
    logits = logits[:, :V] if smoothing else logits  # with -inf, their mean would be infinite
    logits = logits.to(precise_dtype(logits))  # autocast does this on a CPU, not on a GPU
    return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)


def chunk_gradient(logits, targets, smoothing, V, with_sum):
    """Return the sum of the losses and its gradient p - q, rounded to the dtype of the logits.

    with_sum: also return the gradient summed over the rows, not rounded (for the bias), else None.
    """
    p = logits.softmax(-1, dtype=precise_dtype(logits))
    rows = torch.arange(len(p), device=p.device)
    # The same as logits.logsumexp(-1), in two thirds of the time: p = exp(logit) / sum, so
    # log sum = logit - log p. Use the likeliest word: its p is at least 1 / V.
    log_sum = logits.amax(-1) - p.amax(-1).log()
    loss = (log_sum - (1 - smoothing) * logits[rows, targets].to(p.dtype)).sum()
    p[rows, targets] -= 1 - smoothing  # from here on p - q
    if smoothing:
        loss = loss - smoothing * logits[:, :V].mean(-1, dtype=p.dtype).sum()
        p -= smoothing / V
    return loss, p.to(logits.dtype), p.sum(0) if with_sum else None


def chunk_gradient_to_compile(logits, targets, smoothing, V, with_sum):
    """Return the same as `chunk_gradient`, with formulas that torch.compile fuses.

    On an H100, compiling both takes the loss of GPT-2 small from 31 to 10 ms.
    """
    z = logits.to(precise_dtype(logits))
    log_sum = z.logsumexp(-1, keepdim=True)  # (n, 1)
    right = torch.arange(z.size(-1), device=z.device) == targets[:, None]  # as logits
    loss = log_sum.sum() - (1 - smoothing) * z.gather(1, targets[:, None]).sum()
    p = (z - log_sum).exp()
    grad = torch.where(right, p - (1 - smoothing), p)  # p - q
    if smoothing:
        loss = loss - smoothing * z[:, :V].mean(-1).sum()
        grad = grad - smoothing / V
    return loss, grad.to(logits.dtype), grad.sum(0) if with_sum else None


def compile_chunks():
    """Compile the two functions of a chunk, for a GPU."""
    global chunk_losses, chunk_gradient
    chunk_losses = torch.compile(chunk_losses)
    chunk_gradient = torch.compile(chunk_gradient_to_compile)


# ---------------------------------------------------------------------------- sizes and dtypes


def rows_at_a_time(x, weight):
    """Return how many rows of x (N, C) to compute at once with weight (V, C).

    On a CPU, a chunk has few rows, so that its logits fit into the cache. It has more if states are
    wide, because each chunk reads all weights. On a GPU, where each chunk launches several kernels,
    a chunk has a GiB of logits in float32.
    """
    n = max(64, 2 * x.size(1))
    return max(n, 2**28 // len(weight)) if is_gpu(x.device) else n


def pad_words(weight, bias):
    """On a GPU, add words of probability 0 until V is a multiple of 64: its matrix products are
    then several times as fast. weight (V, C), bias (V,) or None -> weight, bias."""
    padding = -len(weight) % 64 if is_gpu(weight.device) else 0
    if not padding:
        return weight, bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=-math.inf)


def cast(weight, x):
    """Return weight in autocast's dtype. Autocast caches the casts of parameters only, and would
    cast CLAP's normalised weight in each chunk."""
    return weight.to(F.linear(x[:0], weight[:1]).dtype)


def precise_dtype(logits):
    """Return the dtype for a softmax: a sum over the vocabulary needs more bits than bfloat16."""
    return torch.promote_types(logits.dtype, torch.float32)
