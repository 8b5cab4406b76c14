"""Measures: what is fixed about results that are random, such as the share of dropped weights.

A measure (ask, *case) -> {sentence: number} calls the function with ask(*arguments, shapes=...),
which checks the shapes, and returns what a right answer has in common with the solution.
"""

import torch

MASK = 2  # the id of [MASK] in exercise 8
N_SPECIAL = 5  # ids below it are special tokens


class Wrong(Exception):
    """A result that cannot be compared; the message continues after the function's name."""


def correlations(subject, field, among, dims):
    """Return {sentence: correlation between neighbours along a dimension}, for each of the dims.

    Only pairs of which both are `among` count. Below 0.2, or 6 standard errors, it becomes 0.
    """
    results = {}
    for dim, dim_name in enumerate(dims.split()):
        values = field.movedim(dim, 0).float()
        counts = among.movedim(dim, 0).float()
        pairs = counts[1:] * counts[:-1]
        n = pairs.sum()
        after = (values[1:] - (values[1:] * pairs).sum() / n) * pairs
        before = (values[:-1] - (values[:-1] * pairs).sum() / n) * pairs
        r = torch.cosine_similarity(after.flatten(), before.flatten(), dim=0)
        least = (6 / n.sqrt()).clamp(min=0.2)
        sentence = f"the correlation of {subject} between one {dim_name} and the next"
        results[sentence] = torch.where(r.abs() > least, r, 0)
    return results


# ------------------------------------------------------------------------------------ attention


def measure_dropout(ask, q, k, v, mask, bias, p):
    """Measure which attention weights become 0. v is [identity, ones]: the output's first S
    channels are the weights after dropout, its last one their sum."""
    plain = ask(q, k, v, mask, bias, 0.0)
    if p == 0:
        return plain
    S = k.size(2)
    dropped = ask(q, k, v, mask, bias, p, shapes=[v.shape, (*q.shape[:3], S)])
    after = dropped["output"][..., :S]
    sums = dropped["output"][..., S]
    growth = after / plain["weights"]  # each is 0 or 1 / (1 - p)
    zero = growth == 0
    change = (dropped["weights"] - plain["weights"]).abs()
    changed = change > 1e-4 * plain["weights"].abs()
    apart = (after.sum(-1) - sums).abs().max() > 1e-3
    when = f"with dropout {p},"
    return {
        f"{when} whether the channels of a value are dropped one by one": apart,
        **correlations("dropout", zero, torch.ones_like(zero), "text head query key"),
        f"{when} the share of weights that become 0": zero.float().mean(),
        f"{when} the mean square of weight after / before": growth.square().mean(),
        f"{when} the mean sum of weights (1 if the size of a weight has no effect)": sums.mean(),
        f"{when} the deviation of the sums of weights": sums.std(),
        f"{when} the share of returned weights that the dropout changed": changed.float().mean(),
    }


# -------------------------------------------------------------------------------- masked words


def measure_masking(ask, idx, vocab_size, rate):
    """Mask many words and measure shares. Raises Wrong if the words do not depend on gen alone."""

    def mask_with(seed):
        gen = torch.Generator().manual_seed(seed)
        return ask(idx, vocab_size, rate, gen, shapes=[idx.shape, idx.shape])

    first = mask_with(1)
    again = mask_with(1)
    other = mask_with(2)
    for name, part in first.items():
        if part.is_floating_point() or part.dtype == torch.bool:
            raise Wrong(f"returns {name} as {part.dtype}, expected torch.int64")
    is_word = idx >= N_SPECIAL
    n_chosen = (is_word & (first["labels"] != -100)).sum()
    some = 0 < n_chosen < is_word.sum()  # not all or none, which has a message of its own
    if some and torch.equal(first["labels"], other["labels"]):
        raise Wrong(
            "chooses the same words whatever gen is. Draw from gen in each call: set no seed, and "
            "keep nothing of the call before."
        )
    if not all(torch.equal(first[name], again[name]) for name in first):
        raise Wrong(
            "gives two results for the same gen: it draws without gen, or keeps something of the "
            "call before. Give generator=gen to each torch function."
        )
    inputs = torch.stack([first["inputs"], other["inputs"]])  # (2, B, T)
    labels = torch.stack([first["labels"], other["labels"]])
    return describe_masking(inputs, labels, idx.expand(inputs.shape), vocab_size)


def describe_masking(inputs, labels, idx, vocab_size):
    """Return {sentence: number} of masked inputs and their labels; all have shape (2, B, T)."""
    is_word = idx >= N_SPECIAL
    chosen = labels != -100
    kept = inputs == idx
    masked = inputs == MASK
    drawn = chosen & ~kept & ~masked  # random words
    kind = drawn + 2 * kept  # of a chosen word: 0 [MASK], 1 random, 2 as it was
    shares = {
        "the share of words with a label": chosen[is_word],
        "the share of special tokens with a label": chosen[~is_word],
        "the share of labels that hold the original word": (labels == idx)[chosen],
        "the share of labelled words that become [MASK]": masked[chosen],
        "the share of labelled words that become another word": drawn[chosen],
        "the share of tokens without label that are changed": ~kept[~chosen],
        "whether words with the id 5 are chosen": (chosen & (idx == N_SPECIAL)).any(),
        "whether random words are special tokens": (drawn & (inputs < N_SPECIAL)).any(),
        "whether random words are outside the vocabulary": (drawn & (inputs >= vocab_size)).any(),
        "whether some random words come more often": is_uneven(inputs[drawn], vocab_size),
    }
    dims = "call row column"
    results = {
        **correlations("the choice of words", chosen, is_word, dims),
        **correlations("what chosen words become", kind, chosen, dims),
        **correlations("random words", inputs, drawn, dims),
        "the number of different random words": torch.tensor(len(inputs[drawn].unique())),
    }
    for sentence, holds in shares.items():
        results[sentence] = holds.float().mean()
    return results


def is_uneven(words, vocab_size):
    """Return whether words were hardly drawn evenly from those of the vocabulary (chi-square)."""
    words = words[(words >= N_SPECIAL) & (words < vocab_size)]
    counts = torch.bincount(words - N_SPECIAL, minlength=vocab_size - N_SPECIAL)
    mean = len(words) / len(counts)
    if mean < 5:  # too few to tell
        return torch.tensor(False)
    chi_square = (counts - mean).square().sum() / mean
    # Its mean is about len(counts), its variance twice that; 8 standard deviations above
    return chi_square > len(counts) + 8 * (2 * len(counts)) ** 0.5


# ---------------------------------------------------------------------------------------- block


def measure_block(ask, x, *weights):
    """Call a block with functions that stand for its layers, which have weights (C, C), and for
    dropout, which multiplies each channel by a number (C,)."""
    *matrices, scale = weights
    layers = [make_layer(matrix) for matrix in matrices]

    def dropout(x):
        return x * scale  # the same in each call

    return ask(x, *layers, dropout)


def make_layer(weight):
    def layer(x):
        return (x @ weight).tanh()

    return layer


# ----------------------------------------------------------------------------------- classifier


def measure_classify(ask, x, w1, b1, w2, b2, dropout, training):
    """In training, each logit is a hidden channel, which is 2 before dropout, plus 1."""
    arguments = x, w1, b1, w2, b2, dropout, training
    shapes = [(len(x), len(b2))]
    logits = ask(*arguments, shapes=shapes)["logits"]
    again = ask(*arguments, shapes=shapes)["logits"]
    if training:
        growth = (logits - 1) / 2
        zero = growth == 0
        return {
            **correlations("dropout", zero, torch.ones_like(zero), "row channel"),
            "in training, the share of hidden channels that become 0": zero.float().mean(),
            "in training, the mean of hidden channels after / before": growth.mean(),
            "in training, their mean square after / before": growth.square().mean(),
        }
    differ = (logits != again).any()
    results = {"whether two calls in evaluation differ": differ}
    if not differ:
        results["logits"] = logits
    return results


# ------------------------------------------------------------------------------------- sampling


def measure_generate(ask, scores, ids, n, temperature, top_k):
    """Generate with a model whose next word depends on all words that it has read: logits (V,) are
    a row of scores (V, V). Measure how many tokens it reads, and for many texts, shares."""
    V = len(scores)
    many = len(ids) > 100
    n_read = []

    def model(new, past):
        read = new
        if past is not None:
            read = torch.cat([past, new], dim=1)
        n_read.append(new.size(1))
        rows = read.cumsum(1)[:, -new.size(1) :] % V
        return scores[rows], read

    def generate(seed):
        n_read.clear()
        gen = torch.Generator().manual_seed(seed)
        shapes = []
        if many:
            shapes = [(len(ids), ids.size(1) + n)]
        return ask(model, ids, n, temperature, top_k, gen, shapes=shapes)["ids"]

    first = generate(1)
    n_first = sum(n_read)
    if n_first == ids.size(1) + n:
        n_first -= 1  # the last token too, which is not needed
    if not torch.equal(first, generate(1)):
        raise Wrong(
            "gives two results for the same gen: it draws without gen. Give generator=gen to "
            "torch.multinomial."
        )
    if not many:
        return {"ids": first, "the number of tokens that the model reads": torch.tensor(n_first)}
    new = first[:, ids.size(1) :]
    flags = {
        "whether a text does not begin with its ids": (first[:, : ids.size(1)] != ids).any(),
        "whether another gen gives the same words": torch.equal(generate(2), first),
        "whether all texts go on with the same words": (new == new[0]).all(),
        "the share of texts that repeat a word": new[:, 1:] == new[:, :1],
    }
    for word in range(V):
        flags[f"the share of new tokens that are {word}"] = new == word
    return {name: torch.as_tensor(value).float().mean() for name, value in flags.items()}


# ----------------------------------------------------------------------------------- vocabulary


def measure_vocabulary(ask, words, size):
    """Return the id of each word and special token, -1 for one that is missing."""
    ids = ask(words, size)
    if not isinstance(ids, dict):
        raise Wrong(f"returns a value of type {type(ids).__name__}, expected a dict of word: id")
    for word, i in ids.items():
        if not isinstance(word, str) or not isinstance(i, int):
            raise Wrong(f"has the entry {word!r}: {i!r}, expected a word and its id, an int")
    order = [word for word in ids if word in words]
    is_set = len(order) >= 10 and order == [word for word in set(words) if word in ids]
    results = {"whether the words have the order of a Python set": torch.tensor(is_set)}
    if is_set:  # the ids are other ones in each process
        return results
    results["len(vocabulary(...))"] = torch.tensor(len(ids))
    names = ["[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]", *sorted(set(words))]
    for name in names:
        results[f"vocabulary(...)[{name!r}]"] = torch.tensor(ids.get(name, -1))
    return results
