"""Measure how well masked words are predicted, on batches whose masks never change."""

import torch
import torch.nn.functional as F

import lab.dist as dist
from data.batching import send, send_all, send_mask
from lab.flags import require
from lab.machine import autocast

ROWS = 4096  # tokens whose logits are in memory at once


@torch.no_grad()
def measure_masked(model, batches, device, dtype):
    """Return (nats, hits, count), summed over all tokens to predict. Several processes share the
    batches of inputs, mask, labels (B, T), and what else the body reads {name: (B, ...)}."""
    model.eval()
    sums = [torch.zeros(2)]  # nats and hits of each batch; zeros if this process has none
    count = 0
    for inputs, mask, labels, context in dist.my_share(batches):
        flat = labels.flatten()  # (B * T,)
        picked = (flat != -100).nonzero().squeeze(1)  # (N,), on the CPU: no GPU sync
        targets = send(flat[picked], device)
        body_inputs = send_all({"idx": inputs, "picked": picked, **context}, device)
        with autocast(dtype, device):
            h = model.body(mask=send_mask(mask, device), **body_inputs)  # (N, C)
            for h_part, target in zip(h.split(ROWS), targets.split(ROWS)):
                logits = model.head(h_part).float()  # (n, V)
                nats = F.cross_entropy(logits, target, reduction="sum")
                hits = (logits.argmax(-1) == target).sum()
                sums.append(torch.stack([nats, hits]))
        count += len(picked)
    model.train()
    total = torch.zeros(3, dtype=torch.float64)
    for part in sums:
        total[:2] += part.cpu()  # only here the CPU waits for a GPU
    total[2] = count
    return dist.all_sum(total).tolist()


def require_targets(batches, what):
    """Raise UserError, beginning with `what`, if the batches have no token to predict."""
    has_target = any((labels != -100).any() for _, _, labels, _ in batches)
    require(has_target, f"{what} is in the vocabulary; give a larger --vocab-size or other data")
