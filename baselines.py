"""What a transformer has to beat: n-grams that count, and a naive Bayes classifier, in a second and without training.

    python baselines.py --data speeches
    python baselines.py --data speeches --text wikitext2 n-grams of a larger text mixed in: the rival of a pretrained decoder
    python baselines.py --data speeches --split clean    the classifier without the training rows that stand in the test set

Text, tokens and test sets are those of train_lm.py and train_classifier.py, so the numbers compare directly.
"""

import math
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import data
from data import NAMES, batching
from data.corpus import hold_out
from data.files import write_json
from data.noise import noise_tokens
from data.tokenizer import BOS, SPECIAL, UNK, encode, train_tokenizer
from lab.command import main
from lab.errors import UserError, require
from lab.flags import TokenizerFlags, flag
from lab.machine import git_revision, versions
from lab.optim import perplexity


@dataclass
class Flags(TokenizerFlags):
    data: str = flag(
        "toy",
        f"corpus: {', '.join(NAMES)}, a folder in the assignment's form, "
        "a .txt, or a .tsv of label<TAB>text",
    )
    out: str = flag(
        "",
        "run folder (default: out/baselines-DATA, with -clean for --split clean, -1-of-5 for 1/5)",
    )
    rare_unknown: float = flag(
        0.0,
        "of the words that the training text holds once, "
        "share that the n-grams read as [UNK], as in train_lm.py",
    )
    text: str = flag(
        "",
        "a larger text, as in --data; its longest n-grams are also mixed with those of --data, "
        "in the share that suits held-out lines best",
    )
    order: int = flag(5, "longest n-gram; 5 sees four tokens back")
    split: str = flag(
        "full", "as in train_classifier.py, whose test rows it chooses; n-grams do not change"
    )
    overwrite: bool = flag(False, "delete the run in --out and start anew")


# ---------------------------------------------------------------------------- n-grams


def discounts(counts):
    """D (4,): what is taken off an n-gram counted 0, 1, 2 and 3 or more times (Chen & Goodman 1999, section 3).

        D_j = j - (j + 1) Y n_{j+1} / n_j,    Y = n_1 / (n_1 + 2 n_2),    n_j = number of n-grams counted j times

    A small corpus can lack an n_j, and then the formula is undefined, takes nothing or takes everything;
    j / 2 stands in.
    """
    n1, n2, n3, n4 = (int((counts == j).sum()) for j in (1, 2, 3, 4))
    Y = n1 / (n1 + 2 * n2) if n1 else 0.0
    estimates = [
        j - (j + 1) * Y * more / n if n else 0.0
        for j, n, more in ((1, n1, n2), (2, n2, n3), (3, n3, n4))
    ]
    return np.array([0.0] + [D if 0 < D < j else j / 2 for j, D in enumerate(estimates, start=1)])


class Level:
    """The n-grams of one length k: each is a number, found from the number of its first k-1 tokens and its last token."""

    def __init__(self, keys):
        self.keys = keys  # sorted; number of the first k-1 tokens * vocab_size + last token

    def find(self, keys):
        """The numbers of these n-grams, -1 where there is none."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    def set_counts(self, counts, vocab_size, n_context):
        D = discounts(counts)[np.minimum(counts, 3)]
        context = self.keys // vocab_size
        total = np.bincount(context, counts, n_context)
        # Both end in one entry more, so that number -1, an n-gram or a context never counted, leaves all to the lower order.
        self.kept = np.append((counts - D) / np.maximum(total[context], 1), 0.0)
        self.rest = np.append(
            np.where(total > 0, np.bincount(context, D, n_context) / np.maximum(total, 1), 1.0), 1.0
        )


class KneserNey:
    """Interpolated modified Kneser-Ney n-grams (Chen & Goodman 1999, section 3; Kneser & Ney 1995).

        p_k(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v) + rest(h) p_{k-1}(w | h without its first token)
        rest(h) = sum_v D(c(h v)) / sum_v c(h v), which makes p_k sum to 1;    p_0(w) = 1 / V

    h are the k-1 tokens before w. In the longest n-grams, c counts occurrences. In shorter ones it counts the
    different tokens seen before h w: "Francisco" is frequent but follows only "San", so it is unlikely elsewhere.

    p_0 is uniform over all V ids, the special tokens included, so each has a positive probability. A word that is
    in no training text is [UNK] and gets little more than p_0's share, as much as any single id never seen.
    """

    def __init__(self, ids, vocab_size, order=5):
        """ids (N + 1,): the training stream, [BOS] and N > 0 tokens."""
        self.order, self.vocab_size, self.levels = order, vocab_size, []
        tokens, count = self.padded(ids), len(ids) - 1

        # Number every n-gram of the text, the longer by the shorter. node[i]: that of the n-gram ending at tokens[i + k - 1].
        node, nodes = np.zeros(len(tokens) + 1, dtype=np.int64), []
        for k in range(1, order + 1):
            keys, node = np.unique(node[:-1] * vocab_size + tokens[k - 1 :], return_inverse=True)
            self.levels.append(Level(keys))
            nodes.append(node)

        counts = np.bincount(
            nodes[-1][len(nodes[-1]) - count :], minlength=len(self.levels[-1].keys)
        )
        for k in range(order, 0, -1):
            n_context = len(self.levels[k - 2].keys) if k > 1 else 1
            self.levels[k - 1].set_counts(counts, vocab_size, n_context)
            if k > 1:
                ending = np.zeros(len(counts), dtype=np.int64)
                ending[nodes[k - 1]] = nodes[k - 2][1:]  # each n-gram without its first token
                counts = np.bincount(ending[counts > 0], minlength=n_context)

    def padded(self, ids):
        """The ids as an array, with [BOS] before them until their second has a context of full length."""
        return np.array([BOS] * (self.order - 2) + list(map(int, ids)), dtype=np.int64)

    def log_probabilities(self, ids):
        """(N,) natural log of the probability of each of ids (N + 1,) but the first, given those before it."""
        tokens, count = self.padded(ids), len(ids) - 1
        p = np.full(count, 1 / self.vocab_size)
        node = np.zeros(len(tokens) + 1, dtype=np.int64)
        for k, level in enumerate(self.levels, start=1):
            context = node[:-1]
            # The key of an unknown context is negative, so no longer n-gram is found in it either.
            node = level.find(context * self.vocab_size + tokens[k - 1 :])
            p = (
                level.kept[node[len(node) - count :]]
                + level.rest[context[len(context) - count :]] * p
            )
        return np.log(p)

    def distribution(self, context):
        """(V,) probability of every id after these ids;
        a context shorter than the order is taken as the beginning of a text."""
        tokens = [BOS] * self.order + list(map(int, context))
        p = np.full(self.vocab_size, 1 / self.vocab_size)
        for k, level in enumerate(self.levels, start=1):
            number = 0
            for lower, token in zip(self.levels, tokens[len(tokens) - (k - 1) :]):
                number = int(lower.find(number * self.vocab_size + token)) if number >= 0 else -1
            first, last = np.searchsorted(
                level.keys, [number * self.vocab_size, (number + 1) * self.vocab_size]
            )
            p *= level.rest[number]
            if number >= 0:
                p[level.keys[first:last] - number * self.vocab_size] += level.kept[first:last]
        return p


# ---------------------------------------------------------------------------- classification


class NaiveBayes:
    """Multinomial naive Bayes on single tokens and pairs of neighbours (McCallum & Nigam 1998).

        P(class, sentence) = P(class) prod_f P(f | class),    P(f | class) = (c(f, class) + a) / (sum_g c(g, class) + a F)

    f runs over the sentence's features that the training rows hold, F is how many of those there are, a the
    smoothing, and P(class) the share of training rows.
    """

    def __init__(self, sentences, labels, n_class, smoothing):
        """sentences: lists of ids; labels: a class each, from 0."""
        labels = np.asarray(labels, dtype=np.int64)
        row, features = self.features(sentences)
        self.known, column = np.unique(features, return_inverse=True)
        size = len(self.known)
        counts = np.bincount(labels[row] * size + column, minlength=n_class * size).reshape(
            n_class, size
        )
        self.weights = np.log(
            (counts + smoothing) / (counts.sum(1, keepdims=True) + smoothing * size)
        )  # (n_class, F)
        with np.errstate(divide="ignore"):  # a class without rows has the probability 0
            self.prior = np.log(np.bincount(labels, minlength=n_class) / max(1, len(labels)))

    @staticmethod
    def features(sentences):
        """Two arrays, for each feature of each sentence: the number of the sentence, and the feature as one integer."""
        tokens = np.array([token for sentence in sentences for token in sentence], dtype=np.int64)
        row = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
        inside = row[1:] == row[:-1]  # no pair reaches into the next sentence
        pairs = ((tokens[:-1] + 1) << 32) + tokens[1:]  # above every single token
        return np.concatenate([row, row[1:][inside]]), np.concatenate([tokens, pairs[inside]])

    def scores(self, sentences):
        """(N, n_class) natural log of P(class, sentence)."""
        row, features = self.features(sentences)
        known = np.isin(features, self.known)
        row, column = row[known], np.searchsorted(self.known, features[known])
        return self.prior + np.stack(
            [np.bincount(row, weights[column], len(sentences)) for weights in self.weights], axis=1
        )

    def predict(self, sentences):
        return self.scores(sentences).argmax(1)


def choose_smoothing(sentences, labels, n_class, grid=(0.03, 0.1, 0.3, 1.0, 3.0), folds=10):
    """The smoothing of `grid` that classifies most training rows right when each fold is left out in turn.

    Copies of a sentence share a fold: otherwise the least smoothing would win, by memory.
    """
    numbers = {}
    fold = (
        np.array([numbers.setdefault(tuple(sentence), len(numbers)) for sentence in sentences])
        % folds
    )
    right = dict.fromkeys(grid, 0)
    for k in range(folds):
        kept, held = (
            [(s, label) for s, label, out in zip(sentences, labels, fold == k) if out == side]
            for side in (False, True)
        )
        if kept and held:
            for smoothing in grid:
                model = NaiveBayes(*zip(*kept), n_class, smoothing)
                right[smoothing] += int(
                    (model.predict([s for s, _ in held]) == [label for _, label in held]).sum()
                )
    return max(grid, key=right.get)


# ---------------------------------------------------------------------------- the script


def train(flags):
    started = time.perf_counter()
    require(
        (
            0 <= flags.rare_unknown <= 1,
            f"--rare-unknown must be from 0 to 1, got {flags.rare_unknown}",
        ),
        (1 <= flags.order <= 10, f"--order must be 1 to 10, got {flags.order}"),
        (
            flags.vocab_size == 0 or flags.vocab_size > len(SPECIAL),
            f"--vocab-size must be above {len(SPECIAL)}, the special tokens, got {flags.vocab_size}",
        ),
    )
    folder = run_folder(flags)
    corpus = data.load(flags.data)
    has_text, has_rows = corpus.lines and corpus.tests, corpus.rows and corpus.test_rows
    require(
        (
            has_text or has_rows,
            f"--data {flags.data}: holds neither test text nor test rows; "
            "give a larger corpus, or one with both parts",
        )
    )
    result = (measure_ngrams(corpus, flags) if has_text else {}) | (
        measure_classifier(corpus, flags) if has_rows else {}
    )

    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    write_json(
        folder / "config.json",
        {
            "kind": "baselines",
            "flags": asdict(flags),
            "revision": git_revision(),
            "versions": versions(),
        },
    )
    seconds = time.perf_counter() - started
    write_json(
        folder / "result.json",
        result
        | {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(time.process_time(), 2),
            "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        },
    )
    words = []
    if has_text:
        words.append(
            f"{flags.order}-gram perplexity "
            + ", ".join(f"{name} {result[f'perplexity/{name}']:.1f}" for name in corpus.tests)
        )
    if has_rows:
        unseen = (
            f", {result['accuracy/unseen']:.1%} on unseen sentences"
            if "accuracy/unseen" in result
            else ""
        )
        words.append(f"naive Bayes accuracy {result['accuracy/test']:.1%}{unseen}")
    print("; ".join(words) + f"; {seconds:.1f} s, {folder}")


def run_folder(flags):
    """Where the results go. UserError when something is there already and --overwrite is not given, or it is no run."""
    name = flags.data if flags.data in NAMES else Path(flags.data).resolve().stem
    split = "" if flags.split == "full" else "-" + flags.split.replace("/", "-of-")
    folder = Path(flags.out or f"out/baselines-{name}{split}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: is a file; choose another folder")
    is_run = (folder / "config.json").exists()
    if folder.exists() and any(folder.iterdir()) and not (is_run and flags.overwrite):
        what = (
            "already holds a run; replace it with --overwrite"
            if is_run
            else "is not empty and no run"
        )
        raise UserError(f"--out {folder}: {what}, or choose another folder")
    return folder


def measure_ngrams(corpus, flags):
    """Perplexity of every test set for n-grams of length 1 to --order, each token predicted exactly once."""
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    ids, vocab_size = batching.stream(tokenizer, corpus.lines), tokenizer.get_vocab_size()
    _, ids = noise_tokens(
        ids, ids, ids.bincount(minlength=vocab_size), batching.generator(0), rare=flags.rare_unknown
    )
    streams = {name: batching.stream(tokenizer, part) for name, part in corpus.tests.items()}
    n_tokens = {name: len(part) - 1 for name, part in streams.items()}
    unknown = {name: batching.fraction_unknown(part[1:], UNK) for name, part in streams.items()}
    result = (
        {"vocab_size": vocab_size}
        | {f"tokens/{name}": n for name, n in n_tokens.items()}
        | {f"unknown/{name}": share for name, share in unknown.items()}
    )

    print(
        f"{corpus.name}: {len(ids) - 1:,} training tokens, {vocab_size:,} entries in the vocabulary"
    )
    row("perplexity", streams)
    for order in range(1, flags.order + 1):
        model = KneserNey(ids, vocab_size, order)
        nats = {name: -model.log_probabilities(part).sum() for name, part in streams.items()}
        at_order = {
            f"perplexity/{name}": perplexity(nats[name], n_tokens[name]) for name in streams
        }
        row(f"  {order}-gram", [f"{value:,.1f}" for value in at_order.values()])
        result |= {f"{name}@{order}-gram": value for name, value in at_order.items()}
    result |= at_order
    if flags.text:
        weight, probabilities = mixed_with(flags, corpus, tokenizer, model, streams)
        values = {
            f"perplexity/{name}@mixed": perplexity(
                -np.log(probabilities[name]).sum(), n_tokens[name]
            )
            for name in streams
        }
        row(
            f"  + {1 - weight:.0%} {Path(flags.text).stem}",
            [f"{value:,.1f}" for value in values.values()],
        )
        result |= values | {"weight": weight}
    for name, part in corpus.tests.items():
        result[f"bits_per_byte/{name}"] = (
            nats[name] / math.log(2) / sum(len(line.encode()) + 1 for line in part)
        )

    # The floor counts every word as a token: it bounds no other tokenizer, and none to which rare words are all the same.
    floor = {name: corpus.floor.get(f"perplexity/{name}") for name in streams}
    if any(floor.values()) and flags.tokenizer == "word" and not flags.vocab_size:
        row("  floor", [f"{value:,.1f}" if value else "" for value in floor.values()])
        result |= {f"floor/perplexity/{name}": value for name, value in floor.items() if value}
    row("tokens", [f"{n:,}" for n in n_tokens.values()])
    row("out of vocabulary", [f"{share:.1%}" for share in unknown.values()])
    return result


def mixed_with(flags, corpus, tokenizer, model, streams):
    """p = weight p_model + (1 - weight) p_text, for each token of each stream. Returns (weight, {name: p}).

    The weight is the one that suits a tenth of the training lines best, when the other nine are counted
    (Jelinek & Mercer 1980).
    """
    lines = data.load(flags.text).lines
    require((lines, f"--text {flags.text}: holds no running text; give another"))
    wide = KneserNey(batching.stream(tokenizer, lines), model.vocab_size, flags.order)
    kept, held = (batching.stream(tokenizer, part) for part in hold_out(corpus.lines, 0.1, seed=0))
    _, kept = noise_tokens(
        kept,
        kept,
        kept.bincount(minlength=model.vocab_size),
        batching.generator(0),
        rare=flags.rare_unknown,
    )
    own, other = (
        np.exp(each.log_probabilities(held))
        for each in (KneserNey(kept, model.vocab_size, flags.order), wide)
    )
    weight = max(np.arange(0.02, 1, 0.02), key=lambda w: np.log(w * own + (1 - w) * other).sum())
    return float(weight), {
        name: weight * np.exp(model.log_probabilities(part))
        + (1 - weight) * np.exp(wide.log_probabilities(part))
        for name, part in streams.items()
    }


def measure_classifier(corpus, flags):
    """Accuracy on all test rows, on those whose sentence stands in the training rows, and on the others."""
    corpus, seen, left_out = corpus.split(flags.split)
    seen = np.array(seen)
    if left_out:
        print(left_out)
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    # With [BOS], as in the encoder: the pair it makes with the first word says how sentences begin.
    sentences, test = (
        [[BOS, *ids] for ids in encode(tokenizer, [text for _, text in rows])]
        for rows in (corpus.rows, corpus.test_rows)
    )
    labels, n_class = [label for label, _ in corpus.rows], len(corpus.classes)
    smoothing = choose_smoothing(sentences, labels, n_class)
    right = NaiveBayes(sentences, labels, n_class, smoothing).predict(test) == [
        label for label, _ in corpus.test_rows
    ]

    result = {"smoothing": smoothing}
    best = "accuracy/test" in corpus.floor
    row("accuracy", ["test rows", "naive Bayes"] + ["best possible"] * best)
    stood = "seen in full training" if flags.split == "clean" else "seen in training"
    for name, label, part in (
        ("test", "all", right),
        ("seen", stood, right[seen]),
        ("unseen", "unseen", right[~seen]),
    ):
        if len(part):
            result[f"accuracy/{name}"] = float(part.mean())
            floor = [corpus.floor[f"accuracy/{name}"]] if f"accuracy/{name}" in corpus.floor else []
            result |= {f"floor/accuracy/{name}": value for value in floor}
            row(
                "  " + label,
                [f"{len(part):,}"] + [f"{value:.1%}" for value in [part.mean(), *floor]],
            )
    row("smoothing", ["", f"{smoothing:g}"])
    return result


def row(label, values):
    print(f"{label:<24}" + "".join(f"{value:>15}" for value in values).rstrip())


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
