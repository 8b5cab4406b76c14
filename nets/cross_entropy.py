"""Cross-entropy from hidden states, without the logits of all tokens at once:
N x V of them are most of a small model's memory and time."""

import torch
import torch.nn.functional as F


def linear_cross_entropy(x, weight, bias, targets, smoothing=0.0):
    """(N,) cross-entropy of each row of logits = x weight^T + bias, x (N, C), targets (N,), both without ignored rows.

    For evaluation: where gradients are wanted autograd keeps the probabilities of all chunks, see `LinearCrossEntropySum`.
    smoothing: share of each target given to all words alike (Szegedy et al. 2016, section 7).
    """
    n = rows_at_a_time(x)
    pairs = (
        (F.linear(part, weight, bias), target) for part, target in zip(x.split(n), targets.split(n))
    )
    return torch.cat(
        [
            F.cross_entropy(
                logits.to(precise(logits)), target, reduction="none", label_smoothing=smoothing
            )
            for logits, target in pairs
        ]
    )


class LinearCrossEntropySum(torch.autograd.Function):
    """F.cross_entropy(F.linear(x, weight, bias), targets, reduction="sum", label_smoothing=smoothing), for training.

    With p = softmax(logits) and q the target, 1 - smoothing on the right word and smoothing / V on all, the gradient of
    the logits is p - q. So each chunk adds its share to the gradients of x, weight and bias while its p is at hand, and
    no logits are kept (as in Liger Kernel, Hsu et al. 2024); the backward pass only multiplies them by what it is
    given. That is done in place, so a loss can be differentiated once.

    apply(x, weight, bias or None, targets, smoothing) -> ().
    """

    @staticmethod
    def forward(ctx, x, weight, bias, targets, smoothing):
        x_grad, weight_grad, bias_grad = torch.empty_like(x), None, None
        total, n = 0.0, rows_at_a_time(x)
        for part, target, part_grad in zip(x.split(n), targets.split(n), x_grad.split(n)):
            logits = F.linear(part, weight, bias)  # (n, V)
            p, rows = (
                logits.softmax(-1, dtype=precise(logits)),
                torch.arange(len(part), device=x.device),
            )
            # p = exp(logit) / sum, so that log sum = logit - log p; of the likeliest word, since its p is at least 1 / V.
            log_sum = logits.amax(-1) - p.amax(-1).log()
            total = total + (log_sum - (1 - smoothing) * logits[rows, target].to(p.dtype)).sum()
            p[rows, target] -= 1 - smoothing
            if smoothing:
                total = total - smoothing * logits.mean(-1, dtype=p.dtype).sum()
                p -= smoothing / len(weight)
            if bias is not None:
                bias_grad = plus(bias_grad, p.sum(0).to(bias.dtype))
            p = p.to(logits.dtype)
            weight_grad = plus(weight_grad, (p.t() @ part).to(weight.dtype))
            part_grad.copy_(p @ weight)
        ctx.save_for_backward(x_grad, weight_grad, bias_grad)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return (
            *(None if part is None else part.mul_(grad) for part in ctx.saved_tensors),
            None,
            None,
        )


def rows_at_a_time(x):
    """All N x V logits would leave the processor's cache, or fill a GPU.
    Every chunk of rows reads all the weights, so that it must be the larger the wider they are."""
    return max(64, 2 * x.size(1))


def precise(logits):
    """The dtype to compute a softmax in: a sum over a vocabulary needs more than the 8 bits of bfloat16."""
    return torch.promote_types(logits.dtype, torch.float32)


def plus(total, part):
    return part if total is None else total.add_(part)
