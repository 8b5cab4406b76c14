"""Learning rate, optimizer, and loss as perplexity."""

import math

import torch
from torch.nn.utils import clip_grad_norm_


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
    """Return AdamW with weight decay of matrices, but not of biases, norms and scalars, nor of the
    phases, gates and numbers per distance of a position encoding, for which zero is no simpler
    value. Vectors of positions decay as those of words do."""
    matrices = []
    others = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        has_vectors = ".positions." not in name or name.endswith("positions.vectors.weight")
        if parameter.dim() >= 2 and has_vectors:
            matrices.append(parameter)
        else:
            others.append(parameter)
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    device = [*matrices, *others][0].device.type
    return torch.optim.AdamW(
        groups,
        lr=lr,
        betas=(0.9, beta2),
        fused=device in ("cpu", "cuda"),  # one kernel for all parameters
        capturable=device == "cuda",  # by a CUDA graph, see --graph
    )


def clip_gradients(model, clip):
    """Scale the gradients of a model to a norm of at most `clip`; 0: no limit. The members of an
    ensemble are trained independently, so each has a norm of its own."""
    if clip > 0:
        for member in getattr(model, "members", [model]):
            clip_grad_norm_(member.parameters(), clip)


def perplexity(nats, tokens):
    """Return exp(nats / tokens), at most exp(700), which is still a float; NaN without tokens."""
    if tokens == 0:
        return math.nan
    return math.exp(min(nats / tokens, 700.0))
