"""Modified Kneser-Ney n-grams: a language model that only counts (Chen & Goodman 1999, section 3).

model = KneserNey(ids, vocab_size, order=5)
nats = -model.log_probabilities(test_ids).sum()
"""

import numpy as np

from data.tokenizer import BOS


def discounts(counts):
    """Return D (4,): the discount of an n-gram counted 0, 1, 2, and 3 or more times.

        D_j = j - (j + 1) Y n_{j+1} / n_j,    Y = n_1 / (n_1 + 2 n_2)

    n_j is the number of n-grams counted j times. In a small corpus an n_j can be zero. The formula
    is then undefined or gives a discount outside (0, j), and j / 2 takes its place.
    """
    n = [(counts == j).sum() for j in range(5)]
    Y = n[1] / (n[1] + 2 * n[2]) if n[1] else 0.0
    D = np.zeros(4)
    for j in (1, 2, 3):
        estimate = j - (j + 1) * Y * n[j + 1] / n[j] if n[j] else 0.0
        D[j] = estimate if 0 < estimate < j else j / 2
    return D


class Level:
    """The n-grams of one length k, numbered by their sorted keys.

    The key of an n-gram is (number of its context, the first k - 1 tokens) * vocab_size + its last
    token.
    """

    def __init__(self, keys, counts, vocab_size, n_context):
        """Compute `kept`, the discounted share of each n-gram, and `rest` of each context."""
        D, context = discounts(counts)[np.minimum(counts, 3)], keys // vocab_size
        total, spared = (np.bincount(context, part, n_context) for part in (counts, D))
        # Number -1, an unseen n-gram or context, reads the additional last entry: it leaves
        # everything to the lower order. So does a context that nothing follows.
        self.keys, self.kept, self.rest = keys, np.zeros(len(keys) + 1), np.ones(n_context + 1)
        self.kept[:-1] = (counts - D) / total[context]
        np.divide(spared, total, out=self.rest[:-1], where=total > 0)

    def find(self, keys):
        """Return the numbers of these n-grams, -1 for an n-gram not in the text."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)


class KneserNey:
    """Interpolated modified Kneser-Ney n-grams (Chen & Goodman 1999, section 3; Kneser & Ney 1995).

        p_k(w | h) = (c(h w) - D(c(h w))) / sum_v c(h v) + rest(h) p_{k-1}(w | h')
        rest(h) = sum_v D(c(h v)) / sum_v c(h v), which makes p_k sum to 1
        h' = h without its first token,    p_0(w) = 1 / V

    h are the k - 1 tokens before w. For the longest n-grams, c counts occurrences. For shorter
    ones, c counts the different tokens seen before h w: "Francisco" is frequent but follows only
    "San", so it is unlikely elsewhere.

    p_0 is uniform over all V ids, special tokens included, so every id has a positive probability.
    A word that is not in the training text is [UNK] and gets little more than p_0's share.
    """

    def __init__(self, ids, vocab_size, order=5):
        """Count the n-grams of ids (N + 1,): [BOS], then N > 0 training tokens."""
        self.order, self.vocab_size, self.levels = order, vocab_size, []
        tokens = self.padded(ids)

        # nodes[k][i] is the number of the k-gram tokens[i : i + k]; there is one empty 0-gram.
        nodes, keys = [np.zeros(len(tokens) + 1, dtype=np.int64)], []
        for k in range(order):
            longer = nodes[k][:-1] * vocab_size + tokens[k:]
            found, node = np.unique(longer, return_inverse=True)
            keys.append(found)
            nodes.append(node)

        counts = np.bincount(nodes[order])
        for k in reversed(range(order)):
            n_context = nodes[k].max() + 1
            self.levels.insert(0, Level(keys[k], counts, vocab_size, n_context))
            suffix = np.empty_like(counts)
            suffix[nodes[k + 1]] = nodes[k][1:]  # each n-gram without its first token
            counts = np.bincount(suffix[counts > 0], minlength=n_context)

    def padded(self, ids):
        """Return the tokens ids[1:] after enough [BOS] to give the first one a full context."""
        return np.array([BOS] * (self.order - 1) + list(map(int, ids[1:])), dtype=np.int64)

    def log_probabilities(self, ids):
        """Return (N,): the natural log of the probability of ids[1:], for ids (N + 1,)."""
        tokens = self.padded(ids)
        node = np.zeros(len(tokens) + 1, dtype=np.int64)  # as nodes[0] in __init__
        p = np.full(len(tokens) + 1, 1 / self.vocab_size)
        for k, level in enumerate(self.levels):
            context = node[:-1]
            # The key of an unseen context is negative, so no longer n-gram is found in it either.
            node = level.find(context * self.vocab_size + tokens[k:])
            p = level.kept[node] + level.rest[context] * p[1:]
        return np.log(p)


class Mixture:
    """Two language models: p = weight p_first + (1 - weight) p_second (Jelinek & Mercer 1980)."""

    def __init__(self, models, weight):
        self.models, self.weight = models, weight

    def log_probabilities(self, ids):
        """Return (N,), as KneserNey does."""
        first, second = (np.exp(model.log_probabilities(ids)) for model in self.models)
        return np.log(self.weight * first + (1 - self.weight) * second)


def mixing_weight(models, ids):
    """Return the weight in steps of 0.02 under which the ids are most probable."""
    first, second = (np.exp(model.log_probabilities(ids)) for model in models)
    weights = np.arange(0.02, 1, 0.02)
    return float(max(weights, key=lambda w: np.log(w * first + (1 - w) * second).sum()))
