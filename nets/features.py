"""Run a classifier over labelled rows: logits, and features computed once."""

import torch

from nets.device import send


@torch.no_grad()
def compute_features(model, rows, device):
    """Return the pooled states (N, n_features) of all rows."""
    model.eval()
    features = None
    for chosen in rows.batches(256):
        idx, mask = rows.batch(chosen)
        part = model.features(send(idx, device), send(mask, device))  # (B, n_features)
        if features is None:
            features = torch.zeros(len(rows), part.size(1), device=device)
        features[send(chosen, device)] = part
    model.train()
    return features


@torch.no_grad()
def compute_logits(model, rows, device, features=None):
    """Return the logits (N, n_class) of all rows on the CPU, from features (N, n_features) if they
    are given."""
    model.eval()
    parts, order = [], []
    for chosen in rows.batches(256):
        if features is None:
            idx, mask = rows.batch(chosen)
            part = model(send(idx, device), send(mask, device))  # (B, n_class)
        else:
            part = model.head(features[send(chosen, device)])
        parts.append(part.float())
        order.append(chosen)
    model.train()
    return torch.cat(parts).cpu()[torch.cat(order).argsort()]
