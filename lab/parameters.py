"""The size of a model."""

PARTS = ("embedding", "positions", "attention", "feed-forward", "norm", "head")
# Part of a parameter whose name contains a word: the first of these that it contains
PART_OF = {
    ".head.": "head",
    ".embedding.": "embedding",
    ".languages.": "embedding",
    ".positions.": "positions",
    "attention.": "attention",  # also cross-attention
    ".feed_forward.": "feed-forward",
    "norm": "norm",
}


def count_parameters(model):
    """Return the number of parameters by part, and their sum as "total".

    Parameters with two names, such as tied word vectors, count once.
    """
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        parts = [part for word, part in PART_OF.items() if word in f".{name}"]
        if not parts:
            raise ValueError(f"{name}: belongs to no part; add it to PART_OF in lab/parameters.py")
        counts[parts[0]] += parameter.numel()
    return {**counts, "total": sum(counts.values())}
