"""Models that only count, in numpy: Kneser-Ney n-grams and a naive-Bayes classifier."""

from itertools import chain

import numpy as np

from data.tokenizer import BOS


def discounts(counts):
    """Return D (4,): the discount of an n-gram counted 0, 1, 2, and 3 or more times.

        D_j = j - (j + 1) Y n_{j+1} / n_j,    Y = n_1 / (n_1 + 2 n_2)

    n_j is the number of n-grams counted j times. Where a small corpus leaves the formula undefined
    or outside (0, j), D_j is j / 2.
    """
    n = np.bincount(counts.clip(max=5), minlength=5)
    j = np.arange(1, 4)
    with np.errstate(divide="ignore", invalid="ignore"):
        Y = n[1] / (n[1] + 2 * n[2])
        D = j - (j + 1) * Y * n[2:5] / n[1:4]
    is_defined = (D > 0) & (D < j)  # False for NaN
    return np.array([0, *np.where(is_defined, D, j / 2)])


class KneserNey:
    """Interpolated modified Kneser-Ney n-grams (Chen & Goodman 1999, section 3; Kneser & Ney 1995).

        p_k(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v) + rest(h) p_{k-1}(w | h')
        rest(h) = sum_v D(c(h v)) / sum_v c(h v), which makes p_k sum to 1
        h' = h without its first token,    p_0(w) = 1 / V

    h are the k - 1 tokens before w, or [BOS]. c counts occurrences of the longest n-grams; of other
    ones the different tokens seen before h w: "Francisco" is frequent, but follows only "San".
    """

    def __init__(self, ids, vocab_size, order=5):
        """Count the n-grams of ids (N + 1,): [BOS], then N > 0 training tokens."""
        self.order = order
        self.vocab_size = vocab_size
        self.levels = []  # of 1-grams, 2-grams, ...: sorted keys, first term of p_k, rest
        tokens = np.append([BOS] * (order - 1), ids[1:]).astype(np.int64)

        # nodes[k][i] is the number of the k-gram tokens[i : i + k]; there is one empty 0-gram.
        # keys[k], sorted, are those of the (k+1)-grams: number of the context * V + last token.
        nodes = [np.zeros(len(tokens) + 1, dtype=np.int64)]
        keys = []
        for k in range(order):
            grams = nodes[k][:-1] * vocab_size + tokens[k:]
            distinct, numbers = np.unique(grams, return_inverse=True)
            keys.append(distinct)
            nodes.append(numbers)

        counts = np.bincount(nodes[order])
        for k in reversed(range(order)):
            context = keys[k] // vocab_size
            n_context = nodes[k].max() + 1
            D = discounts(counts)[counts.clip(max=3)]
            total = np.bincount(context, counts, n_context)
            spared = np.bincount(context, D, n_context)
            # Number -1, an unseen n-gram or context, reads the additional last entry: it leaves
            # everything to the lower order. So does a context that nothing follows.
            kept = np.append((counts - D) / total[context], 0)
            rest = np.ones(n_context + 1)
            np.divide(spared, total, out=rest[:-1], where=total > 0)
            self.levels.insert(0, (keys[k], kept, rest))
            suffix = np.empty_like(counts)
            suffix[nodes[k + 1]] = nodes[k][1:]  # each n-gram without its first token
            counts = np.bincount(suffix[counts > 0], minlength=n_context)

    def log_probabilities(self, ids):
        """Return (N,): the natural log of the probability of ids[1:], for ids (N + 1,)."""
        tokens = np.append([BOS] * (self.order - 1), ids[1:]).astype(np.int64)
        node = np.zeros(len(tokens) + 1, dtype=np.int64)  # as nodes[0] in __init__
        p = np.full(len(tokens) + 1, 1 / self.vocab_size)
        for k, (keys, kept, rest) in enumerate(self.levels):
            context = node[:-1]
            # The key of an unseen context is negative, so no longer n-gram is found in it either.
            wanted = context * self.vocab_size + tokens[k:]
            number = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
            node = np.where(keys[number] == wanted, number, -1)
            p = kept[node] + rest[context] * p[1:]
        return np.log(p)


class NaiveBayes:
    """Multinomial naive Bayes on tokens and pairs of neighbouring tokens (McCallum & Nigam 1998).

        P(class, sentence) = P(class) prod_f P(f | class)
        P(f | class) = (c(f, class) + a) / (sum_g c(g, class) + a F)

    f runs over the features of the sentence that occur in training, F is the number of different
    ones there, a is the smoothing, and P(class) is the share of training rows.
    """

    def __init__(self, sentences, labels, n_class, smoothing):
        """Count the features of `sentences`, lists of ids; `labels` are their classes, from 0."""
        row, features = self.features(sentences)
        self.known, column = np.unique(features, return_inverse=True)
        counts = np.full((n_class, len(self.known)), smoothing)  # (n_class, F)
        np.add.at(counts, (np.array(labels)[row], column), 1)
        self.weights = np.log(counts / counts.sum(1, keepdims=True))
        with np.errstate(divide="ignore"):  # a class without rows has probability 0
            self.prior = np.log(np.bincount(labels, minlength=n_class) / len(labels))

    @staticmethod
    def features(sentences):
        """Return two arrays: for each feature its sentence's index, and the feature's number."""
        tokens = np.array([*chain.from_iterable(sentences)], dtype=np.int64)
        row = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
        inside = row[1:] == row[:-1]  # no pair reaches into the next sentence
        pairs = ((tokens[:-1] + 1) << 32) + tokens[1:]  # larger than any single token
        return np.append(row, row[1:][inside]), np.append(tokens, pairs[inside])

    def scores(self, sentences):
        """Return (N, n_class): the natural log of P(class, sentence)."""
        row, features = self.features(sentences)
        is_known = np.isin(features, self.known)
        row = row[is_known]
        column = np.searchsorted(self.known, features[is_known])
        scores = [np.bincount(row, weights[column], len(sentences)) for weights in self.weights]
        return self.prior + np.stack(scores, axis=1)


def choose_smoothing(sentences, labels, n_class, grid=(0.03, 0.1, 0.3, 1.0, 3.0)):
    """Return the best smoothing in 10-fold cross-validation; copies of a sentence share a fold."""
    labels = np.array(labels)
    numbers = {}  # distinct sentence: its number
    fold = []
    for sentence in sentences:
        number = numbers.setdefault(tuple(sentence), len(numbers))
        fold.append(number % 10)
    if len(numbers) == 1:
        return grid[0]  # nothing can be held out
    fold = np.array(fold)
    right = np.zeros(len(grid))
    for k in np.unique(fold):
        is_held = fold == k
        kept = [sentences[i] for i in np.flatnonzero(~is_held)]
        held = [sentences[i] for i in np.flatnonzero(is_held)]
        for i, smoothing in enumerate(grid):
            model = NaiveBayes(kept, labels[~is_held], n_class, smoothing)
            right[i] += (model.scores(held).argmax(1) == labels[is_held]).sum()
    return grid[right.argmax()]
