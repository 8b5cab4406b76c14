"""Cross-entropy from hidden states, in chunks of rows, for many words or a GPU.

The N x V logits of all tokens would take most of a small model's memory and time. Each chunk gives
its losses and gradients while it is in memory, as in Liger Kernel (Hsu et al. 2024).
"""

import math

import torch
import torch.nn.functional as F

from data.batching import is_gpu, send


class FusedLoss:
    """Replaces LanguageModel.losses and loss: never stores the logits of all tokens."""

    def losses(self, idx, targets, mask=None, smoothing=0.0, **inputs):
        x, targets = self.read(idx, targets, mask, **inputs)
        return linear_cross_entropy(*x, targets, smoothing, self.chunk_losses)

    def loss(self, idx, targets, mask=None, smoothing=0.0, **inputs):
        x, targets = self.read(idx, targets, mask, **inputs)
        if not torch.is_grad_enabled():
            return linear_cross_entropy(*x, targets, smoothing, self.chunk_losses).sum()
        return LinearCrossEntropySum.apply(*x, targets, smoothing, self.chunk_gradient)

    def read(self, idx, targets, mask, **inputs):
        """Return (features (N, C), weight (V, C), bias (V,)) and targets (N,) of what is not
        ignored."""
        if targets.shape != idx.shape:
            raise ValueError(f"targets {tuple(targets.shape)} for tokens {tuple(idx.shape)}")
        targets = targets.flatten()
        picked = not_ignored(targets)  # (N,), on the CPU: a GPU need not wait
        h = self.body(idx, mask, send(picked, idx.device), **inputs)  # (N, C)
        return self.head.project(h), send(targets[picked], idx.device)

    def chunk_losses(self, *chunk):
        return chunk_losses(*chunk)

    def chunk_gradient(self, *chunk):
        return chunk_gradient(*chunk)

    def compile_chunks(self):
        """Compile what is computed of each chunk, for a GPU."""
        self.chunk_losses = torch.compile(chunk_losses)
        self.chunk_gradient = torch.compile(chunk_gradient_to_compile)


def not_ignored(targets):
    """Return the (N,) indices of targets (M,) >= 0. While a CUDA graph is recorded, of all."""
    if targets.is_cuda and torch.cuda.is_current_stream_capturing():
        return torch.arange(len(targets), device=targets.device)
    return (targets >= 0).nonzero().squeeze(1)


def linear_cross_entropy(x, weight, bias, targets, smoothing, losses_of_chunk):
    """Return the (N,) cross-entropies of logits = x weight^T + bias with the targets, without
    gradients: autograd would store the probabilities of all chunks.

    x (N, C), weight (V, C), bias (V,) or None, targets (N,) without ignored rows.
    smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7).
    losses_of_chunk: `chunk_losses`, perhaps compiled.
    """
    n = rows_at_a_time(x, weight)
    V = len(weight)
    weight, bias = pad_words(cast(weight, x), bias)
    losses = []
    for part, target in zip(x.split(n), targets.split(n)):
        logits = F.linear(part, weight, bias)  # (n, V), or with padded words
        losses.append(losses_of_chunk(logits, target, smoothing, V))
    return torch.cat(losses)


class LinearCrossEntropySum(torch.autograd.Function):
    """The sum of `linear_cross_entropy`, for training: apply(x, weight, bias, targets, smoothing,
    gradient_of_chunk). The gradient of the logits is p - q: p = softmax(logits), q = 1 - smoothing
    on the right word plus smoothing / V on every word. The backward pass scales the gradients that
    the chunks have added up, in place, so it can run only once."""

    @staticmethod
    def forward(ctx, x, weight, bias, targets, smoothing, gradient_of_chunk):
        x_grad = torch.empty_like(x)
        weight_grad = None
        if ctx.needs_input_grad[1]:  # else the words are frozen
            weight_grad = torch.zeros_like(weight)
        bias_grad = None
        if bias is not None:
            bias_grad = torch.zeros_like(bias)
        n = rows_at_a_time(x, weight)
        V = len(weight)
        weight, bias = pad_words(cast(weight, x), bias)
        total = 0.0
        for part, target, part_grad in zip(x.split(n), targets.split(n), x_grad.split(n)):
            logits = F.linear(part, weight, bias)  # (n, V), or with padded words
            with_sum = bias_grad is not None
            loss, grad, summed = gradient_of_chunk(logits, target, smoothing, V, with_sum)
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
        scaled = [None, None, None]
        for n, part in enumerate(ctx.saved_tensors):
            if part is not None:
                scaled[n] = part.mul_(grad)
        return *scaled, None, None, None


def chunk_losses(logits, targets, smoothing, V):
    """Return the (n,) cross-entropies of logits (n, V), or with padded words more columns of -inf.
    A softmax needs more bits than bfloat16."""
    if smoothing:  # with -inf, the mean over all words would be infinite
        logits = logits[:, :V]
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
    summed = p.sum(0) if with_sum else None
    return loss, p.to(logits.dtype), summed


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
    summed = grad.sum(0) if with_sum else None
    return loss, grad.to(logits.dtype), summed


def rows_at_a_time(x, weight):
    """Return how many rows of x (N, C) to compute at once with weight (V, C): on a CPU so few that
    their logits fit into the cache, on a GPU a GiB of logits in float32."""
    n = max(64, 2 * x.size(1))  # not fewer: each chunk reads all weights
    if is_gpu(x.device):
        n = max(n, 2**28 // len(weight))
    return n


def pad_words(weight, bias):
    """On a GPU, add words of probability 0 until V is a multiple of 64: its matrix products are
    then several times as fast. weight (V, C), bias (V,) or None -> weight, bias."""
    padding = -len(weight) % 64
    if not is_gpu(weight.device) or padding == 0:
        return weight, bias
    if bias is None:
        bias = weight.new_zeros(len(weight))
    return F.pad(weight, (0, 0, 0, padding)), F.pad(bias, (0, padding), value=-math.inf)


def cast(weight, x):
    """Return weight in autocast's dtype. Autocast caches the casts of parameters only, and would
    cast CLAP's normalised weight in each chunk."""
    return weight.to(F.linear(x[:0], weight[:1]).dtype)
