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
    n1, n2, n3, n4 = ((counts == j).sum() for j in (1, 2, 3, 4))
    Y = n1 / (n1 + 2 * n2) if n1 else 0.0
    estimates = [
        j - (j + 1) * Y * more / n if n else 0.0
        for j, n, more in ((1, n1, n2), (2, n2, n3), (3, n3, n4))
    ]
    return np.array([0.0] + [D if 0 < D < j else j / 2 for j, D in enumerate(estimates, start=1)])


class Level:
    """The n-grams of one length k, numbered by their sorted keys.

    The key of an n-gram is (number of its first k - 1 tokens) * vocab_size + its last token.
    """

    def __init__(self, keys):
        self.keys = keys

    def find(self, keys):
        """Return the numbers of these n-grams, -1 for an n-gram not in the text."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, at, -1)

    def set_counts(self, counts, vocab_size, n_context):
        """Compute `kept`, the discounted share of each n-gram, and `rest` of each context."""
        D = discounts(counts)[np.minimum(counts, 3)]
        context = self.keys // vocab_size
        total = np.bincount(context, counts, n_context)
        # Number -1, an unseen n-gram or context, reads the appended last entry:
        # it leaves everything to the lower order.
        self.kept = np.append((counts - D) / total[context], 0.0)
        self.rest = np.append(
            np.where(total > 0, np.bincount(context, D, n_context) / np.maximum(total, 1), 1.0), 1.0
        )


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
        tokens, count = self.padded(ids), len(ids) - 1

        # Number all n-grams of the text, longer ones by their prefix.
        # nodes[k - 1][i] is the number of the k-gram ending at tokens[i + k - 1].
        node, nodes = np.zeros(len(tokens) + 1, dtype=np.int64), []
        for k in range(1, order + 1):
            keys, node = np.unique(node[:-1] * vocab_size + tokens[k - 1 :], return_inverse=True)
            self.levels.append(Level(keys))
            nodes.append(node)

        counts = np.bincount(nodes[-1][-count:], minlength=len(self.levels[-1].keys))
        for k in range(order, 0, -1):
            n_context = len(self.levels[k - 2].keys) if k > 1 else 1
            self.levels[k - 1].set_counts(counts, vocab_size, n_context)
            if k > 1:
                suffix = np.zeros(len(counts), dtype=np.int64)
                suffix[nodes[k - 1]] = nodes[k - 2][1:]  # each n-gram without its first token
                counts = np.bincount(suffix[counts > 0], minlength=n_context)

    def padded(self, ids):
        """Return the ids after enough [BOS] to give the first prediction a full context."""
        return np.array([BOS] * (self.order - 2) + list(map(int, ids)), dtype=np.int64)

    def log_probabilities(self, ids):
        """Return (N,): the natural log of the probability of ids[1:], for ids (N + 1,)."""
        tokens, count = self.padded(ids), len(ids) - 1
        p = np.full(count, 1 / self.vocab_size)
        node = np.zeros(len(tokens) + 1, dtype=np.int64)
        for k, level in enumerate(self.levels, start=1):
            context = node[:-1]
            # The key of an unseen context is negative, so no longer n-gram is found in it either.
            node = level.find(context * self.vocab_size + tokens[k - 1 :])
            kept = level.kept[node[len(node) - count :]]
            p = kept + level.rest[context[len(context) - count :]] * p
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
