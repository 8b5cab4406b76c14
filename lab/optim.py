"""Learning rate, optimizer and perplexity."""

import math

import torch


def learning_rate(step, steps, peak, warmup, decay):
    """The schedule: (1) up in a straight line for `warmup` steps, (2) constant, (3) down in a straight line to zero
    at the end, over the last `decay` share of the steps. step counts from 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    falling = min(steps - warmup, decay * steps)
    if steps - step >= falling:
        return peak
    return peak * (steps - step) / falling


def make_optimizer(model, lr, weight_decay, betas=(0.9, 0.999)):
    """AdamW that decays matrices and spares biases, norms and scalars. Each parameter is in exactly one group."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=weight_decay),
        dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0),
    ]
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, fused=parameters[0].device.type in ("cpu", "cuda")
    )


def perplexity(nats, tokens):
    """exp(nats / tokens), at most exp(700), which a float still holds."""
    return math.exp(min(nats / tokens, 700.0)) if tokens else math.nan
