"""Turn a call of a student's function into tensors that can be compared.

Most functions are simply called. Where the result is random, and where arguments are functions, a
watcher measures what is fixed. `ask` calls the function and returns {output: tensor}.
"""

import torch
import torch.nn.functional as F

MASK, N_SPECIAL = 2, 5  # as in the exercise; this file has to work without data/


class Wrong(Exception):
    """A result that cannot be compared; the message continues after the function's name."""


def require_shapes(found, **shapes):
    """Raise Wrong if an output has another shape."""
    for name, shape in shapes.items():
        if found[name].shape != shape:
            got = tuple(found[name].shape)
            raise Wrong(f"returns {name} of shape {got}, expected {tuple(shape)}")


def share(which, of):
    """Return the share of True among the entries `of`."""
    return (which & of).sum() / of.sum().clamp(min=1)


def call(ask, *args):
    return ask(*args)


def dropout(ask, *args):
    """With a number T and a share p alone: attend with dropout p and without, where the values are
    unit vectors and a one. With all arguments: call."""
    if len(args) > 2:
        return ask(*args)
    T, p = args
    q, k = torch.randn(2, 4, 4, T, T + 1)
    v = torch.cat([torch.eye(T), torch.ones(T, 1)], dim=1).expand(4, 4, T, T + 1)
    found, plain = (ask(q, k, v, None, None, share) for share in (p, 0.0))
    require_shapes(found, output=v.shape, weights=(4, 4, T, T))
    after = found["output"][..., :T] / plain["weights"]  # (4, 4, T, T), each is 0 or 1 / (1 - p)
    new = (found["weights"] - plain["weights"]).abs() > 1e-4 * plain["weights"].abs()
    zero, what = after == 0, f"with dropout {p}, the"
    return {
        f"{what} share of weights that become 0": zero.float().mean(),
        f"{what} mean of weight after / before, F.dropout keeps it": after.mean(),
        f"{what} mean square of weight after / before": after.square().mean(),
        f"{what} share of outputs that are 0": (found["output"][..., T] == 0).float().mean(),
        f"{what} share of keys that no query sees": zero.all(-2).float().mean(),
        f"{what} share of queries that see no key": zero.all(-1).float().mean(),
        f"{what} share of returned weights that the dropout changed": new.float().mean(),
    }


def block(ask, x, weights, keep):
    """Call a block whose parts are made from weights (4, C, C); dropout multiplies by keep (C,)."""
    norm1, norm2 = (
        lambda x, w=w: F.layer_norm(x, x.shape[-1:], 1 + w[0], w[1]) for w in weights[:2]
    )
    return ask(
        x,
        norm1,
        lambda x: x.cumsum(dim=1) @ weights[2],
        norm2,
        lambda x: (x @ weights[3]).relu(),
        lambda x: x * keep,
    )


def classifier(ask, *args):
    """In training the hidden channels are 2, and each logit is one of them plus 1: measure what
    dropout does to them. In evaluation call twice, and compare the logits if they agree."""
    logits = ask(*args)["logits"]
    if args[-1]:
        require_shapes({"logits": logits}, logits=args[0].shape)
        hidden = (logits - 1) / 2
        return {
            "in training, the share of hidden channels that become 0": (hidden == 0).float().mean(),
            "in training, the mean of hidden channels after / before": hidden.mean(),
            "in training, their mean square after / before": hidden.square().mean(),
        }
    again = ask(*args)["logits"]
    steady = torch.equal(logits, again)
    random = {"whether two calls in evaluation differ": torch.tensor(not steady)}
    return random | {"logits": logits} if steady else random


def disguises(ask, idx, vocab_size, rate):
    """Mask many words and measure shares. Raises Wrong if the words do not depend on gen alone."""
    found, again, other = (
        ask(idx, vocab_size, rate, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    require_shapes(found, inputs=idx.shape, labels=idx.shape)
    if not all(torch.equal(found[name], again[name]) for name in found):
        raise Wrong("draws random numbers without gen. Give generator=gen to each torch function.")
    inputs, labels = found["inputs"], found["labels"]
    words, chosen = idx >= N_SPECIAL, labels != -100
    if torch.equal(labels, other["labels"]) and 0 < share(chosen, words) < 1:
        raise Wrong("chooses the same words whatever gen is. Use gen as it is, without a seed.")
    drawn = chosen & (inputs != idx) & (inputs != MASK)
    return {
        "the share of words with a label": share(chosen, words),
        "the share of special tokens with a label": share(chosen, ~words),
        "the share of labels that hold the original word": share(labels == idx, chosen),
        "the share of labelled words that become [MASK]": share(inputs == MASK, chosen),
        "the share of labelled words that become another word": share(drawn, chosen),
        "the share of tokens without label that are changed": share(inputs != idx, ~chosen),
        "whether words with the id 5 are chosen": (chosen & (idx == N_SPECIAL)).any(),
        "whether random words are special tokens": (drawn & (inputs < N_SPECIAL)).any(),
        "whether random words are outside the vocabulary": (drawn & (inputs >= vocab_size)).any(),
        "the deviation between columns of their share of labels": chosen.float().mean(0).std(),
    }
