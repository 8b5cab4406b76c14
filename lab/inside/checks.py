"""Check attention weights against the definitions.

Nothing here uses model.py's own tables, so the checks can find errors in model.py. attention.py
calls `examine`, and attention_maps.py prints what it finds.
"""

import torch

from lab.inside.scores import scores_of


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


def check(what, values, where, limit=0.0):
    """Check that values are 0, up to a limit, wherever `where` is True."""
    worst = torch.where(where, values, 0).abs().max().item()
    return {"check": what, "worst": worst, "limit": limit}


def check_rows(weights, mask, key_mask):
    """Return the checks of all attentions: weights (L, B, H, T, S), masks (B, T) and (B, S)."""
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)
    checks = [check("rows sum to 1", weights.sum(-1, keepdim=True) - 1, real, 1e-5)]
    if not key_mask.all():
        padding = real & ~key_mask[:, None, None, :]
        checks.append(check("no weight on padding", weights, padding))
    return checks


@torch.no_grad()
def examine_cross(body, inputs):
    """Compute the weights (L, B, H, T, S) of the cross-attention, on the CPU, and their checks."""
    _, maps = body(**inputs, need_weights=True)
    weights = torch.stack([to_memory for _, to_memory in maps])
    return weights.cpu(), check_rows(weights, inputs["mask"], inputs["memory_mask"])


@torch.no_grad()
def examine(body, inputs):
    """Compute the weights (L, B, H, T, T) of the self-attention, on the CPU, and their checks.

    inputs: what the body reads, idx and mask (B, T), and with cross-attention memory (B, S, C) and
    memory_mask (B, S).
    """
    idx, mask, memory = inputs["idx"], inputs["mask"], inputs.get("memory")
    h, maps = body(**inputs, need_weights=True)
    fused = body(**inputs)
    alone = []  # each text read by itself, without padding, minus its row of h
    for b, n in enumerate(mask.sum(1).tolist()):
        source = None if memory is None else memory[b : b + 1, : inputs["memory_mask"][b].sum()]
        alone.append(body(idx[b : b + 1, :n], memory=source)[0] - h[b, :n])
    weights = torch.stack(maps if memory is None else [own for own, _ in maps])
    ahead = steps_ahead(idx.size(1)).to(idx.device)
    may = allowed(body, idx.size(1)).to(idx.device)
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)
    everywhere = torch.tensor(True, device=idx.device)

    checks = check_rows(weights, mask, mask)
    if body.causal:
        checks.append(check("nothing above the diagonal", weights, real & (ahead > 0)))
    if W := body.config.window:
        far = real & (ahead.abs() >= W)
        checks.append(check(f"nothing {W} or more tokens away", weights, far))
    if (may != may[0]).any():
        checks.append(check("each half of the heads looks one way", weights, real & ~may))
    same = "gives the same output"
    checks.append(check(f"fused attention {same}", fused - h, mask[:, :, None], 1e-4))
    checks.append(check(f"each text alone {same}", torch.cat(alone), everywhere, 1e-4))
    if body.config.pos == "alibi":
        nearer = 0.5 if body.config.alibi == "offset" and not body.causal else 0.0
        bias = torch.stack(
            [-slope(body, head) * (ahead.abs() - nearer * (ahead > 0)) for head in range(len(may))]
        )  # (H, T, T)
        content, _ = scores_of(body, inputs | {"need_weights": True})
        # What was added to q k^T / sqrt(D), each row up to a constant, which a softmax removes
        added = weights.log() - content  # (L, B, H, T, T)
        most = weights.argmax(-1, keepdim=True)
        wrong = added - added.gather(-1, most) - (bias - bias.expand_as(weights).gather(-1, most))
        # The logarithm of a smaller weight is too inexact. ~(<) instead of >= keeps NaN as wrong.
        exact = real & mask[:, None, None, :] & may & ~(weights < 1e-30)
        checks.append(check("the weights contain ALiBi's bias", wrong, exact, 1e-3))
    return weights.cpu(), checks


def holds(check):
    """Return whether a check is passed; NaN is not."""
    return check["worst"] <= check["limit"]
