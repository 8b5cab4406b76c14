"""The size of a model."""

PARTS = ("embedding", "positions", "attention", "feed-forward", "norm", "head")


def count_parameters(model):
    """Return the number of parameters by part, and their sum as "total".

    Parameters with two names, such as tied word vectors, count once.
    """
    counts = dict.fromkeys(PARTS, 0)
    for name, parameter in model.named_parameters():
        counts[part_of(f".{name}")] += parameter.numel()
    return {**counts, "total": sum(counts.values())}


def part_of(name):
    """Return the part that a parameter belongs to: ".members.0.head.bias" -> "head"."""
    if ".head." in name:
        return "head"
    if ".embedding." in name or ".languages." in name:
        return "embedding"
    if ".positions." in name:
        return "positions"
    if "attention." in name:  # also cross-attention
        return "attention"
    if ".feed_forward." in name:
        return "feed-forward"
    if "norm" in name:
        return "norm"
    raise ValueError(f"{name}: belongs to no part; add it to part_of")
