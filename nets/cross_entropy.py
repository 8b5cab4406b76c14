"""Cross-entropy from hidden states, in chunks of rows.

The N x V logits of all tokens would take most of a small model's memory and time.
"""

import torch
import torch.nn.functional as F


def linear_cross_entropy(x, weight, bias, targets, smoothing=0.0):
    """Return the (N,) cross-entropies of logits = x weight^T + bias with the targets.

    x (N, C), weight (V, C), bias (V,) or None, targets (N,) without ignored rows.
    smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7).
    For evaluation only: with gradients, autograd would store the probabilities of all chunks.
    """
    n, losses, weight = rows_at_a_time(x, weight), [], cast(weight, x)
    for part, target in zip(x.split(n), targets.split(n)):
        logits = F.linear(part, weight, bias)  # (n, V)
        logits = logits.to(precise_dtype(logits))  # autocast does this on a CPU, not on a GPU
        losses.append(F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing))
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
        total, n, weight = 0.0, rows_at_a_time(x, weight), cast(weight, x)
        for part, target, part_grad in zip(x.split(n), targets.split(n), x_grad.split(n)):
            logits = F.linear(part, weight, bias)  # (n, V)
            p = logits.softmax(-1, dtype=precise_dtype(logits))
            rows = torch.arange(len(part), device=x.device)
            # p = exp(logit) / sum, so log sum = logit - log p. Use the likeliest word: its p is at
            # least 1 / V.
            log_sum = logits.amax(-1) - p.amax(-1).log()
            total = total + (log_sum - (1 - smoothing) * logits[rows, target].to(p.dtype)).sum()
            p[rows, target] -= 1 - smoothing  # from here on p - q
            if smoothing:
                total = total - smoothing * logits.mean(-1, dtype=p.dtype).sum()
                p -= smoothing / len(weight)
            if bias is not None:
                bias_grad += p.sum(0)
            p = p.to(logits.dtype)
            if weight_grad is not None:
                weight_grad += p.t() @ part
            part_grad.copy_(p @ weight)
        ctx.save_for_backward(x_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    def backward(ctx, grad):
        scaled = (None if part is None else part.mul_(grad) for part in ctx.saved_tensors)
        return *scaled, None, None


def rows_at_a_time(x, weight):
    """Return how many rows of x (N, C) to compute at once with weight (V, C).

    On a CPU, a chunk has few rows, so that its logits fit into the cache. It has more if states are
    wide, because each chunk reads all weights. On a GPU, where each chunk launches several kernels,
    a chunk has half a GiB of logits.
    """
    n = max(64, 2 * x.size(1))
    return max(n, 2**27 // len(weight)) if x.is_cuda else n


def cast(weight, x):
    """Return weight in autocast's dtype. Autocast caches the casts of parameters only, and would
    cast CLAP's normalised weight in each chunk."""
    return weight.to(F.linear(x[:0], weight[:1]).dtype)


def precise_dtype(logits):
    """Return the dtype for a softmax: a sum over the vocabulary needs more bits than bfloat16."""
    return torch.promote_types(logits.dtype, torch.float32)
