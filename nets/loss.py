"""Cross-entropy from hidden states, in chunks of rows.

The N x V logits of all tokens would take most of a small model's memory and time. Each chunk gives
its losses and gradients while it is in memory, as in Liger Kernel (Hsu et al. 2024).
"""

import math

import torch
import torch.nn.functional as F

from data.batching import is_gpu


def not_ignored(targets):
    """Return the (N,) indices of targets (M,) >= 0. While a CUDA graph is recorded, of all."""
    if targets.is_cuda and torch.cuda.is_current_stream_capturing():
        return torch.arange(len(targets), device=targets.device)
    return (targets >= 0).nonzero().squeeze(1)


def linear_cross_entropy(x, weight, bias, targets, smoothing=0.0):
    """Return the (N,) cross-entropies of logits = x weight^T + bias with the targets, without
    gradients: autograd would store the probabilities of all chunks.

    x (N, C), weight (V, C), bias (V,) or None, targets (N,) without ignored rows.
    smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7).
    """
    losses, n, V = [], rows_at_a_time(x, weight), len(weight)
    weight, bias = pad_words(cast(weight, x), bias)
    for part, target in zip(x.split(n), targets.split(n)):
        logits = F.linear(part, weight, bias)  # (n, V), or with padded words
        losses.append(chunk_losses(logits, target, smoothing, V))
    return torch.cat(losses)


class LinearCrossEntropySum(torch.autograd.Function):
    """The sum of `linear_cross_entropy`, for training: apply(x, weight, bias, targets, smoothing).
    The gradient of the logits is p - q: p = softmax(logits), q = 1 - smoothing on the right word
    plus smoothing / V on every word. The backward pass scales the gradients that the chunks have
    added up, in place, so it can run only once."""

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


def chunk_losses(logits, targets, smoothing, V):
    """Return the (n,) cross-entropies of logits (n, V), or with padded words more columns of -inf.
    A softmax needs more bits than bfloat16."""
    logits = logits[:, :V] if smoothing else logits  # with -inf, their mean would be infinite
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)


def chunk_gradient(logits, targets, smoothing, V, with_sum):
    """Return the sum of the losses, its gradient p - q rounded to the dtype of the logits, and
    with_sum, for the bias, the gradient summed over the rows before it is rounded, else None."""
    p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    rows = torch.arange(len(p), device=p.device)
    # logits.logsumexp(-1) in two thirds of the time: p = exp(logit) / sum, so log sum = logit -
    # log p. Of the likeliest word, whose p is at least 1 / V.
    log_sum = logits.amax(-1) - p.amax(-1).log()
    loss = (log_sum - (1 - smoothing) * logits[rows, targets].to(p.dtype)).sum()
    p[rows, targets] -= 1 - smoothing  # from here on p - q
    if smoothing:
        loss = loss - smoothing * logits[:, :V].mean(-1, dtype=p.dtype).sum()
        p -= smoothing / V
    return loss, p.to(logits.dtype), p.sum(0) if with_sum else None


def chunk_gradient_to_compile(logits, targets, smoothing, V, with_sum):
    """Return the same with formulas that torch.compile fuses: on an H100, the loss of GPT-2 small
    then takes 10 instead of 31 ms."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
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


def rows_at_a_time(x, weight):
    """Return how many rows of x (N, C) to compute at once with weight (V, C): on a CPU so few that
    their logits fit into the cache, on a GPU a GiB of logits in float32."""
    n = max(64, 2 * x.size(1))  # each chunk reads all weights
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
