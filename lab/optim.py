"""Learning rate, optimizer, and loss as perplexity."""

import math

import torch


def learning_rate(step, steps, peak, warmup, decay):
    """Return the learning rate of a step, counted from 0: it (1) rises linearly for `warmup` steps,
    (2) stays at its peak, (3) falls linearly to zero over the last `decay` share of the steps."""
    if step < warmup:
        return peak * (step + 1) / warmup
    falling = min(steps - warmup, decay * steps)
    if steps - step >= falling:
        return peak
    return peak * (steps - step) / falling


def make_adamw(model, lr, weight_decay, beta2=0.999):
    """Return AdamW with weight decay of matrices, but not of biases, norms and scalars."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    matrices = dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay)
    others = dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)
    device = parameters[0].device.type
    how = dict(fused=device in ("cpu", "cuda"), capturable=device == "cuda")  # by a CUDA graph
    return torch.optim.AdamW([matrices, others], lr=lr, betas=(0.9, beta2), **how)


def perplexity(nats, tokens):
    """Return exp(nats / tokens), at most exp(700), which is still a float."""
    return math.exp(min(nats / tokens, 700.0)) if tokens else math.nan
