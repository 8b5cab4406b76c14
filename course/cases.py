"""The ten exercises, and what the check calls each function with.

A case is the arguments of one call. Where results are random, a measure (ask, *case) -> {name:
tensor} returns what is fixed; ask(*args, shapes=...) calls the function and checks its shapes.
"""

import importlib
from pathlib import Path

import torch

from course.exercises.ex03_heads import split_heads
from data.files import UserError
from data.tokenizer import MASK, SPECIAL

EXERCISES = {path.stem[5:]: path for path in sorted(Path(__file__).parent.glob("exercises/ex*.py"))}


def chosen(wanted):
    """Return the exercises given by name or number, in order, or all. Raises UserError."""
    numbered = {str(number): name for number, name in enumerate(EXERCISES, start=1)}
    names = [numbered.get(word.strip(), word.strip()) for word in wanted if word.strip()]
    for name in names:
        if name not in EXERCISES:
            raise UserError(f"{name}: no such exercise; there are 1 to 10: {', '.join(EXERCISES)}")
    return [name for name in EXERCISES if name in names or not names]


def solutions(name):
    """Return {function: solution} of an exercise."""
    module = importlib.import_module(f"course.exercises.{EXERCISES[name].stem}")
    own = vars(module).items()
    return {name: f for name, f in own if getattr(f, "__module__", "") == module.__name__}


class Wrong(Exception):
    """A result that cannot be compared; the message continues after the function's name."""


def draw(gen, *shapes):
    return [torch.randn(shape, generator=gen) for shape in shapes]


def correlations(what, field, among, dims):
    """Return {sentence: correlation between neighbours along a dimension}, for each of the dims.

    Pairs of which both are `among` count. Below 0.2, or 6 standard errors, correlations become 0.
    """
    found = {}
    for dim, name in enumerate(dims.split()):
        values, pairs = field.movedim(dim, 0), among.movedim(dim, 0)
        pairs = pairs[1:] & pairs[:-1]
        sides = torch.stack([values[1:][pairs], values[:-1][pairs]]).double()
        r = torch.cosine_similarity(*(sides - sides.mean(1, keepdim=True)), dim=0)
        said = f"the correlation of {what} between one {name} and the next"
        found[said] = torch.where(r.abs() > (6 / pairs.sum().sqrt()).clamp(min=0.2), r, 0)
    return found


def pad_cases(gen):
    for lengths in ([3, 5, 2], [4, 1], [2, 6, 6, 3]):
        yield ([torch.randint(5, 50, (n,), generator=gen) for n in lengths],)


def attend_cases(gen):
    for B, H, T, S, D in ((5, 8, 6, 6, 3), (3, 5, 7, 8, 4), (7, 3, 5, 5, 6)):
        q, k, v = draw(gen, (B, H, T, D), (B, H, S, D), (B, H, S, D))
        mask = torch.arange(S) < torch.randint(2, S, (B, 1), generator=gen)
        bias = torch.randn(H, T, S, generator=gen)
        bias[..., 2:-1].masked_fill_(torch.rand(H, T, S - 3, generator=gen) < 0.4, -torch.inf)
        yield from ((q, k, v, None, None, 0.0), (q, k, v, mask, bias, 0.0))
    yield from ((q, k, v, mask, None, 0.0), (q, k, v, None, bias, 0.0))
    q, k = torch.randn(2, 4, 4, 64, 65, generator=gen)
    v = torch.cat([torch.eye(64), torch.ones(64, 1)], 1)  # shows each weight, and their sum
    yield q, k, v.expand(4, 4, 64, 65), None, None, 0.2


def measure_dropout(ask, q, k, v, mask, bias, p):
    plain, T = ask(q, k, v, mask, bias, 0.0), q.size(2)
    if p == 0:
        return plain
    found = ask(q, k, v, mask, bias, p, shapes=[v.shape, (*v.shape[:3], T)])
    after = found["output"][..., :T] / plain["weights"]  # each is 0 or 1 / (1 - p)
    new = (found["weights"] - plain["weights"]).abs() > 1e-4 * plain["weights"].abs()
    zero, sums, what = after == 0, found["output"][..., T], f"with dropout {p}, the"
    return correlations("dropout", zero, torch.ones_like(zero), "text head query key") | {
        f"{what} share of weights that become 0": zero.float().mean(),
        f"{what} mean square of weight after / before": after.square().mean(),
        f"{what} mean sum of weights (1 if the size of a weight has no effect)": sums.mean(),
        f"{what} deviation of the sums of weights": sums.std(),
        f"{what} share of returned weights that the dropout changed": new.float().mean(),
    }


def split_cases(gen):
    for B, H, T, D in ((5, 8, 6, 3), (3, 4, 8, 7), (7, 5, 4, 6)):
        yield *draw(gen, (B, T, H * D)), H


def block_cases(gen):
    for B, T, C in ((5, 8, 6), (3, 4, 7)):
        x, weights, keep = draw(gen, (B, T, C), (4, C, C), (C,))
        yield x, *(lambda x, w=w: (x @ w).tanh() for w in weights), lambda x, keep=keep: x * keep


def next_cases(gen):
    for n in (11, 14, 8, 3):  # tokens to predict in blocks of 4
        ids = torch.randint(5, 99, (n + 1,), generator=gen)
        ids[n // 2] = 0  # an id like any other
        yield ids, 4


def loss_cases(gen, n=2):
    for B, T in ((5, 8), (3, 6), (7, 4))[:n]:
        targets = torch.randint(9, (B, T), generator=gen)
        targets[0, T // 2 :] = -100
        yield 2 * torch.randn(B, T, 9, generator=gen), targets


def masking_cases(gen):
    idx = torch.randint(5, 20, (64, 160), generator=gen)  # the vocabulary has more words
    idx[:, 0], idx[:, 5:10], idx[::2, 140:] = 3, 1, 0  # [BOS], [UNK], [PAD]
    yield from ((idx, 30, 0.75), (idx, 30, 0.85))  # many random words


def measure_masking(ask, idx, vocab_size, rate):
    """Mask many words and measure shares. Raises Wrong if the words do not depend on gen alone."""
    found, again, other = (
        ask(idx, vocab_size, rate, torch.Generator().manual_seed(seed), shapes=[idx.shape] * 2)
        for seed in (1, 1, 2)
    )
    if not all(torch.equal(found[name], again[name]) for name in found):
        raise Wrong("draws random numbers without gen. Give generator=gen to each torch function.")
    inputs, labels = (torch.stack([found[name], other[name]]) for name in found)
    idx, special = idx.expand(inputs.shape), len(SPECIAL)
    words, chosen = idx >= special, labels != -100
    if torch.equal(*labels) and 0 < chosen[words].sum() < words.sum():
        raise Wrong("chooses the same words whatever gen is. Use gen as it is, without a seed.")
    drawn = chosen & (inputs != idx) & (inputs != MASK)
    kind, dims = drawn + 2 * (inputs == idx), "call row column"
    shares = {
        "the share of words with a label": chosen[words],
        "the share of special tokens with a label": chosen[~words],
        "the share of labels that hold the original word": (labels == idx)[chosen],
        "the share of labelled words that become [MASK]": (inputs == MASK)[chosen],
        "the share of labelled words that become another word": drawn[chosen],
        "the share of tokens without label that are changed": (inputs != idx)[~chosen],
        "whether words with the id 5 are chosen": (chosen & (idx == special)).any(),
        "whether random words are special tokens": (drawn & (inputs < special)).any(),
        "whether random words are outside the vocabulary": (drawn & (inputs >= vocab_size)).any(),
    }
    return {
        **correlations("the choice of words", chosen, words, dims),
        **correlations("what chosen words become", kind, chosen, dims),
        **correlations("random words", inputs, drawn, dims),
        "the number of different random words": torch.tensor(len(inputs[drawn].unique())),
        **{name: which.float().mean() for name, which in shares.items()},
    }


def pool_cases(gen):
    for B, T, C in ((3, 5, 2), (2, 4, 6), (4, 7, 4)):
        lengths = torch.randint(2, T, (B, 1), generator=gen)
        yield *draw(gen, (B, T, C)), torch.arange(T) < lengths


def classify_cases(gen):
    for N, C, K in ((4, 6, 3), (6, 4, 2)):
        yield *draw(gen, (N, C), (20, C), (20,), (K, 20), (K,)), 0.3, False
    one, eye = torch.ones(5), torch.eye(5)
    yield torch.ones(4000, 5), eye, one, eye, one, 0.3, True


def measure_classify(ask, *args):
    """In training, each logit is a hidden channel, which is 2 before dropout, plus 1."""
    logits, again = (ask(*args, shapes=[(len(args[0]), len(args[4]))])["logits"] for _ in "12")
    if args[-1]:
        hidden = (logits - 1) / 2
        zero = hidden == 0
        return correlations("dropout", zero, torch.ones_like(zero), "row channel") | {
            "in training, the share of hidden channels that become 0": zero.float().mean(),
            "in training, the mean of hidden channels after / before": hidden.mean(),
            "in training, their mean square after / before": hidden.square().mean(),
        }
    differ = (logits != again).any()
    return {"whether two calls in evaluation differ": differ} | (
        {} if differ else {"logits": logits}
    )


def clap_cases(gen):
    for B, T, V, C in ((5, 8, 6, 3), (3, 4, 8, 7)):
        idx, (table,) = torch.randint(V, (B, T), generator=gen), draw(gen, (V, C))
        idx[:, 1], idx[:, 2] = V - 2, V - 1
        yield idx, torch.nn.functional.normalize(table) * torch.linspace(0.3, 5, V)[:, None], V - 2


def logit_cases(gen):
    for idx, table, _ in clap_cases(gen):
        yield *draw(gen, (*idx.shape, table.size(1))), table, torch.tensor(3.0)


CHECKS = {  # function: names of what it returns, its cases (the first two without dropout), measure
    "pad": ("idx mask", pad_cases),
    "attend": ("output weights", attend_cases, measure_dropout),
    "split_heads": ("output", split_cases),
    "join_heads": ("output", lambda gen: [(split_heads(*case),) for case in split_cases(gen)]),
    "sinusoids": ("table", lambda gen: [(5, 8), (20, 6), (3, 2)]),
    "slopes": ("slopes", lambda gen: [(n,) for n in (8, 2, 1, 6, 12)]),
    "causal_bias": ("bias", lambda gen: [(2, 5), (4, 7), (8, 4)]),
    "encoder_bias": ("bias", lambda gen: zip((2, 4, 8, 2), (5, 6, 4, 7), (False, True) * 2)),
    "block": ("output", block_cases),
    "next_words": ("inputs targets", next_cases),
    "loss": ("loss", loss_cases),
    "perplexity": ("perplexity", lambda gen: [(list(loss_cases(gen, n)),) for n in (3, 2)]),
    "mask_words": ("inputs labels", masking_cases, measure_masking),
    "mean_pool": ("mean", pool_cases),
    "classify": ("logits", classify_cases, measure_classify),
    "embed": ("vectors", clap_cases),
    "logits": ("logits", logit_cases),
}
