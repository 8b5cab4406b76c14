"""Run a classifier over labelled rows: logits, and features computed once."""

import torch

from nets.device import send


@torch.no_grad()
def compute_features(model, rows, device):
    """Return the pooled states (N, n_features) of all rows."""
    model.eval()
    features = over_rows(model.features, rows, device)
    model.train()
    return features


@torch.no_grad()
def compute_logits(model, rows, device, features=None):
    """Return the logits (N, n_class) of all rows on the CPU, from their projected features (N,
    n_component or n_features) if they are given."""
    model.eval()
    logits = over_rows(model, rows, device) if features is None else model.head(features)
    model.train()
    return logits.cpu()


def over_rows(compute, rows, device):
    """Return compute(idx, mask) of all rows in order. Each batch has rows of similar length."""
    batches = rows.batches(256)
    parts = [compute(*(send(x, device) for x in rows.batch(chosen))) for chosen in batches]
    return torch.cat(parts)[torch.cat(batches).argsort()]  # back into the order of rows
