"""What each head does on average, in a few numbers: distances, patterns, entropy."""

import numpy as np
import torch
import torch.nn.functional as F

from data.batching import generator
from data.tokenizer import BOS, SPECIAL
from lab.inside.measure import measure

N_SEQUENCES = 16  # of random words, to look for induction heads in
COLUMNS = ("distance", "first", "previous", "itself", "induction", "entropy", "across", "match")


def head_means(views):
    """Return means over all queries of some views of one part, a dictionary for each head, and last
    one for equal weights.

    distance: tokens to the key. first, previous, itself: weight of the first key, of the one before
    the query's own, and of that. entropy: in nats. Cross-attention has only first and entropy.
    induction: of causal models, see `induction`. across, match: of pairs, weight on the other
    sentence, and on the same word there."""
    are_pairs = all(is_pair(view) for view in views)
    means = average_queries(views, [view.weights for view in views], are_pairs)
    equal = average_queries(views, [equal_weights(view) for view in views], are_pairs)
    if views[0].part == "" and views[0].run.model.body.causal:
        means["induction"], equal["induction"] = induction(views[0].run)
    names = [name for name in COLUMNS if name in means]
    rows = []
    n_layer, n_head = means["first"].shape
    for layer, head in np.ndindex(n_layer, n_head):
        row = {"layer": layer + 1, "head": head + 1}
        for name in names:
            row[name] = means[name][layer, head].item()
        rows.append(row)
    last_row = {"layer": "equal", "head": ""}
    for name in names:
        last_row[name] = equal[name].mean().item()
    rows.append(last_row)
    return rows


def is_pair(view):
    """Return whether a view is of two sentences, in a run with one attention."""
    return view.part == "" and "[EOS]" in view.words[:-1]


def equal_weights(view):
    """Return the weights (L, H, T, S) of queries that attend to all allowed keys alike."""
    allowed = np.isfinite(view.content).astype(float)
    n_keys = allowed.sum(-1, keepdims=True)  # (L, H, T, 1)
    return allowed / n_keys.clip(min=1)


def average_queries(views, weights, are_pairs):
    """Return {name: means (L, H) over the queries of all views}. weights: of each view an array
    (L, H, T, S)."""
    values = {}  # name -> of each view an array (L, H, T)
    for view, w in zip(views, weights):
        columns = read_rows(w.astype(float))
        if view.part == "cross":  # its keys are other tokens than its queries
            columns = {name: columns[name] for name in ("first", "entropy")}
        if are_pairs:
            columns |= read_pairs(w.astype(float), view.words)
        for name, column in columns.items():
            values.setdefault(name, []).append(column)
    return {name: np.concatenate(v, axis=-1).mean(-1).round(4) for name, v in values.items()}


def read_rows(w):
    """w (L, H, T, S) -> {name: (L, H, T)}, what each query attends to."""
    T, S = w.shape[2:]
    i, j = np.indices((T, S))
    return {
        "distance": (w * abs(i - j)).sum(-1),
        "first": w[..., 0],
        "previous": (w * (j == i - 1)).sum(-1),
        "itself": (w * (j == i)).sum(-1),
        "entropy": -(w * np.log(w + (w == 0))).sum(-1),  # 0 log 0 counts as 0
    }


def read_pairs(w, words):
    """w (L, H, T, T) -> {name: (L, H, T)}, how two sentences attend to each other."""
    words = np.array(words)
    middle = words.tolist().index("[EOS]")
    is_second = np.arange(len(words)) > middle  # (T,)
    is_other = is_second[:, None] != is_second  # (T, T): query and key in different sentences
    is_match = (words[:, None] == words) & (words != "[EOS]")
    return {"across": (w * is_other).sum(-1), "match": (w * (is_other & is_match)).sum(-1)}


@torch.no_grad()
def induction(run):
    """Return the mean weights (n_layer, n_head) on the token after the previous occurrence of the
    query's own, and the mean if weights were equal: in [BOS], up to 16 random tokens of the
    vocabulary, and the same again. Induction heads have large ones (Olsson et al. 2022)."""
    n_words = run.model.body.config.vocab_size - len(SPECIAL)
    n = min(16, n_words, (run.block_size - 1) // 2)
    drawn = []
    for number in range(N_SEQUENCES):
        order = torch.randperm(n_words, generator=generator("induction", number))
        drawn.append(len(SPECIAL) + order[:n])
    twice = torch.stack(drawn).repeat(1, 2)  # (16, 2n)
    idx = F.pad(twice, (1, 0), value=BOS)  # (16, 1 + 2n)
    _, records = measure(run.model.body, {"idx": idx.to(run.device)})
    layers = [record.weights.cpu() for record in records[""]]
    weights = torch.stack(layers)  # (L, 16, H, T, T)
    allowed = (weights > 0).float()
    equal = allowed / allowed.sum(-1, keepdim=True)
    shares = weight_after_repeated(weights, n).round(4)
    share_if_equal = weight_after_repeated(equal, n).mean().round(4)
    return shares, share_if_equal


def weight_after_repeated(weights, n):
    """weights (L, 16, H, 1 + 2n, 1 + 2n) -> (L, H): of queries n + 1 to 2n, which repeat a
    token, the mean weight of the key n - 1 tokens before, after its previous occurrence."""
    of_key = weights.diagonal(1 - n, -2, -1)  # (L, 16, H, n + 2), of queries n - 1, n, n + 1, ...
    return of_key[..., 2:].mean((1, 3)).numpy()
