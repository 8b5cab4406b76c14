"""Run a classifier over labelled rows: predictions, and features computed once."""

import torch


@torch.no_grad()
def compute_features(model, rows, device):
    """Return the pooled states (N, n_features) of all rows."""
    model.eval()
    features = None
    for chosen in rows.batches(256):
        idx, mask = rows.batch(chosen)
        part = model.features(idx.to(device), mask.to(device))  # (B, n_features)
        if features is None:
            features = torch.zeros(len(rows), part.size(1), device=device)
        features[chosen.to(device)] = part
    model.train()
    return features


@torch.no_grad()
def predict(model, rows, device, features=None):
    """Return the class (N,) of every row, from its features (N, n_features) if they are given."""
    model.eval()
    answers = torch.zeros(len(rows), dtype=torch.long)
    for chosen in rows.batches(256):
        if features is None:
            idx, mask = rows.batch(chosen)
            logits = model(idx.to(device), mask.to(device))  # (B, n_class)
        else:
            logits = model.head(features[chosen.to(device)])
        answers[chosen] = logits.argmax(-1).cpu()
    model.train()
    return answers
