"""Multinomial naive Bayes: a sentence classifier that only counts (McCallum & Nigam 1998)."""

import numpy as np


class NaiveBayes:
    """Multinomial naive Bayes on single tokens and pairs of neighbouring tokens.

        P(class, sentence) = P(class) prod_f P(f | class)
        P(f | class) = (c(f, class) + a) / (sum_g c(g, class) + a F)

    f runs over the features of the sentence that occur in the training rows. F is the number of
    different features there, a is the smoothing, and P(class) is the share of training rows.
    """

    def __init__(self, sentences, labels, n_class, smoothing):
        """Count the features of `sentences`, lists of ids; `labels` are their classes, from 0."""
        labels = np.asarray(labels, dtype=np.int64)
        row, features = self.features(sentences)
        self.known, column = np.unique(features, return_inverse=True)
        size = len(self.known)
        counts = np.bincount(labels[row] * size + column, minlength=n_class * size)
        counts = counts.reshape(n_class, size)
        total = counts.sum(1, keepdims=True) + smoothing * size
        self.weights = np.log((counts + smoothing) / total)  # (n_class, F)
        with np.errstate(divide="ignore"):  # a class without rows has probability 0
            self.prior = np.log(np.bincount(labels, minlength=n_class) / len(labels))

    @staticmethod
    def features(sentences):
        """Return two arrays: for each feature its sentence's index, and the feature's number."""
        tokens = np.array([token for sentence in sentences for token in sentence], dtype=np.int64)
        row = np.repeat(np.arange(len(sentences)), [len(sentence) for sentence in sentences])
        inside = row[1:] == row[:-1]  # no pair reaches into the next sentence
        pairs = ((tokens[:-1] + 1) << 32) + tokens[1:]  # larger than any single token
        return np.concatenate([row, row[1:][inside]]), np.concatenate([tokens, pairs[inside]])

    def scores(self, sentences):
        """Return (N, n_class): the natural log of P(class, sentence)."""
        row, features = self.features(sentences)
        known = np.isin(features, self.known)
        row, column = row[known], np.searchsorted(self.known, features[known])
        return self.prior + np.stack(
            [np.bincount(row, weights[column], len(sentences)) for weights in self.weights], axis=1
        )

    def predict(self, sentences):
        """Return (N,): the most probable class of each sentence."""
        return self.scores(sentences).argmax(1)


def choose_smoothing(sentences, labels, n_class, grid=(0.03, 0.1, 0.3, 1.0, 3.0)):
    """Choose the smoothing of `grid` by 10-fold cross-validation on the training rows.

    All copies of a sentence go into the same fold. Otherwise the smallest smoothing would win by
    memorising.
    """
    numbers = {}
    fold = [numbers.setdefault(tuple(sentence), len(numbers)) % 10 for sentence in sentences]
    correct = dict.fromkeys(grid, 0)
    rows = list(zip(sentences, labels, fold))
    for k in range(10):
        kept = [(sentence, label) for sentence, label, number in rows if number != k]
        held = [(sentence, label) for sentence, label, number in rows if number == k]
        if not (kept and held):
            continue
        questions, answers = zip(*held)
        for smoothing in grid:
            model = NaiveBayes(*zip(*kept), n_class, smoothing)
            correct[smoothing] += (model.predict(questions) == answers).sum()
    return max(grid, key=correct.get)
