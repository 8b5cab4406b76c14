"""Measure a masked language model on batches whose masks never change."""

import torch
import torch.nn.functional as F

from lab import processes
from lab.errors import require
from lab.machine import autocast
from nets.device import send, send_all, send_mask

ROWS = 4096  # tokens whose logits are in memory at once


def require_targets(labels, what):
    """Raise UserError, beginning with `what`, if none of the labels [(B, T), ...] is a target."""
    remedy = "give a larger --vocab-size or other data"
    found = any((part != -100).any() for part in labels)
    require((found, f"{what} is in the vocabulary; {remedy}"))


@torch.no_grad()
def measure_masked(model, batches, device, flags):
    """Return (nats, hits, count), summed over all tokens to predict.

    batches: of inputs, mask, labels (B, T), and what else the body reads {name: (B, T)}. Several
    processes share them.
    """
    model.eval()
    sums, count = [torch.zeros(2)], 0  # nats and hits of each batch
    for inputs, mask, labels, more in processes.my_share(batches):
        picked = (labels.flatten() != -100).nonzero().squeeze(1)  # (N,), without waiting for a GPU
        targets = send(labels.flatten()[picked], device)
        read = send_all({"idx": inputs, "picked": picked, **more}, device)
        with autocast(flags, device):
            h = model.body(mask=send_mask(mask, device), **read)  # (N, C)
            for part, target in zip(h.split(ROWS), targets.split(ROWS)):
                logits = model.head(part).float()  # (n, V)
                nats = F.cross_entropy(logits, target, reduction="sum")
                sums.append(torch.stack([nats, (logits.argmax(-1) == target).sum()]))
        count += len(picked)
    model.train()
    nats, hits = sum(part.cpu().double() for part in sums)  # only here the CPU waits for a GPU
    return processes.all_sum(torch.stack([nats, hits, nats.new_tensor(count)])).tolist()
