"""Check attention weights against the definitions.

Nothing here uses model.py's own tables, so the checks can find errors in model.py. The readings of
lab/inside/attention.py call `examine`, and attention_maps.py prints what it finds.
"""

import torch

from lab.inside.scores import split_scores


def steps_ahead(T):
    """Return (T, T): how many tokens key j is ahead of query i, negative towards the past."""
    return torch.arange(T)[None, :] - torch.arange(T)[:, None]


def allowed(body, T):
    """Return (H, T, T) bool, True where query i may attend to key j."""
    config, ahead = body.config, steps_ahead(T)
    may = ((ahead <= 0) | (not body.causal)).repeat(config.n_head, 1, 1)
    if config.window:
        may &= ahead.abs() < config.window
    if config.pos == "alibi" and config.alibi == "one-sided" and not body.causal:
        may[: config.n_head // 2] &= ahead <= 0
        may[config.n_head // 2 :] &= ahead >= 0
    return may


def slope(body, head):
    """Return ALiBi's slope of a head counted from 0 (Press et al. 2022).

    With n heads, n a power of two, it is 2^(-8 (head + 1) / n). Otherwise the remaining heads take
    every second slope of the next power of two.
    """
    n = body.config.n_head
    if body.config.alibi == "one-sided" and not body.causal:
        n, head = n // 2, head % (n // 2)
    power = 2 ** (n.bit_length() - 1)
    return 2.0 ** (
        -8 * (head + 1) / power if head < power else -4 * (2 * (head - power) + 1) / power
    )


@torch.no_grad()
def examine(body, idx, mask, memory=None, memory_mask=None):
    """Compute the weights (L, B, H, T, T), on the CPU, and the checks of idx, mask (B, T).

    With a memory (B, S, C) and its mask (B, S), return two such pairs, the second of the
    cross-attention, with weights (L, B, H, T, S).
    """
    inputs = []  # of the attention of each layer, (B, T, C)
    hooks = [
        block.attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
        for block in body.blocks
    ]
    cross = {} if memory is None else dict(memory=memory, memory_mask=memory_mask)
    h, maps = body(idx, mask, need_weights=True, **cross)
    for hook in hooks:
        hook.remove()
    fused = body(idx, mask, **cross)
    alone = []  # each text read by itself, without padding, minus its row of h
    for b, n in enumerate(mask.sum(1).tolist()):
        source = {"memory": memory[b : b + 1, : memory_mask[b].sum()]} if cross else {}
        alone.append(body(idx[b : b + 1, :n], **source)[0] - h[b, :n])
    maps, cross_maps = zip(*maps) if cross else (maps, None)
    weights = torch.stack(maps)
    ahead = steps_ahead(idx.size(1)).to(idx.device)
    may = allowed(body, idx.size(1)).to(idx.device)
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)

    checks, cross_checks = [], []

    def check(what, values, where, limit=0.0, checks=checks):
        worst = torch.where(where, values, 0).abs().max().item()
        checks.append({"check": what, "worst": worst, "limit": limit})

    check("rows sum to 1", weights.sum(-1, keepdim=True) - 1, real, 1e-5)
    if not mask.all():
        check("no weight on padding", weights, real & ~mask[:, None, None, :])
    if body.causal:
        check("nothing above the diagonal", weights, real & (ahead > 0))
    if W := body.config.window:
        check(f"nothing {W} or more tokens away", weights, real & (ahead.abs() >= W))
    if (may != may[0]).any():
        check("each half of the heads looks one way", weights, real & ~may)
    check("fused attention gives the same output", fused - h, mask[:, :, None], 1e-4)
    everywhere = torch.tensor(True, device=idx.device)
    check("each text alone gives the same output", torch.cat(alone), everywhere, 1e-4)
    if body.config.pos == "alibi":
        nearer = 0.5 if body.config.alibi == "offset" and not body.causal else 0.0
        bias = torch.stack(
            [-slope(body, head) * (ahead.abs() - nearer * (ahead > 0)) for head in range(len(may))]
        )  # (H, T, T)
        scores = [split_scores(b.attention, x)[0] for b, x in zip(body.blocks, inputs)]
        # What was added to q k^T / sqrt(D), each row up to a constant, which a softmax removes
        added = weights.log() - torch.stack(scores)  # (L, B, H, T, T)
        most = weights.argmax(-1, keepdim=True)
        wrong = added - added.gather(-1, most) - (bias - bias.expand_as(weights).gather(-1, most))
        # The logarithm of a smaller weight is too inexact. ~(<) instead of >= keeps NaN as wrong.
        exact = real & mask[:, None, None, :] & may & ~(weights < 1e-30)
        check("the weights hold -slope * distance", wrong, exact, 1e-3)
    if not cross:
        return weights.cpu(), checks
    cross_weights = torch.stack(cross_maps)
    check("rows sum to 1", cross_weights.sum(-1, keepdim=True) - 1, real, 1e-5, cross_checks)
    if not memory_mask.all():
        padding = real & ~memory_mask[:, None, None, :]
        check("no weight on padding", cross_weights, padding, checks=cross_checks)
    return (weights.cpu(), checks), (cross_weights.cpu(), cross_checks)


def holds(check):
    """Return whether a check is passed; NaN is not."""
    return check["worst"] <= check["limit"]
