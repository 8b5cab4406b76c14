"""Labelled sentences as tensors, and how well a classifier does on them."""

import math

import torch
import torch.nn.functional as F

import data
from data import batching
from data.corpus import Corpus
from data.files import DataError


def load_labelled(name):
    """Read a corpus as `data.load` does. Raises DataError if it has no labelled rows."""
    # A named corpus without rows is refused before it is downloaded
    corpus = Corpus(name) if name in data.UNLABELLED else data.load(name)
    if not corpus.rows:
        remedy = "give a .tsv, a .csv, or a folder with train_CLS.tsv and test_CLS.tsv"
        raise DataError(f"--data {name}: holds no labelled rows; {remedy}")
    if not corpus.test_rows:
        problem = f"{len(corpus.rows)} labelled rows are too few to test on"
        raise DataError(f"--data {name}: {problem}; give more")
    return corpus


class Rows:
    """Labelled sentences: sequences of ids that begin with [BOS], labels (N,), and lengths."""

    def __init__(self, rows, tokenizer, block_size):
        texts = [text for _, text in rows]
        self.sequences, self.n_long = batching.sentences(tokenizer, texts, block_size)
        self.labels = torch.tensor([label for label, _ in rows])
        self.lengths = [len(sequence) for sequence in self.sequences]

    def __len__(self):
        return len(self.sequences)

    def unknown(self):
        """Return the share of the words that are unknown to the vocabulary."""
        return batching.share_unknown(self.sequences)

    def batch(self, rows):
        """Return idx and mask (B, T) of some rows."""
        return batching.pad([self.sequences[i] for i in rows])

    def batches(self, batch_size, gen=None):
        """Return the row numbers of batches of similar length, in random order with a generator."""
        return batching.length_batches(self.lengths, batch_size, gen)

    def n_batches(self, batch_size):
        """Return the number of batches in an epoch."""
        return math.ceil(len(self) / batch_size)

    def balance(self, n_class, how):
        """Return a correction for classes of unequal size: weights of the loss (n_class,), and a
        prior (n_class,) to add to the logits in training.

        how: "none", "weights", or "prior", which is twice the log of the class shares. When every
        row is memorised, weights hardly matter, but the prior does (Menon et al. 2021).
        """
        counts = self.labels.bincount(minlength=n_class).clamp(min=1)
        weights, prior = torch.ones(n_class), torch.zeros(n_class)
        if how == "weights":
            weights = counts.sum() / len(counts) / counts
        if how == "prior":
            prior = 2 * (counts / counts.sum()).log()
        return weights, prior


def describe_seen(seen, removed):
    """Return "551 of them are also in the training files". removed: whether --split removed them,
    which makes it "were"."""
    are = "were" if removed else "are"
    return f"{int(seen.sum()):,} of them {are} also in the training files"


def accuracies(logits, sets, seen):
    """Return {"accuracy/train": share, ...} of logits {set: (N, n_class)}, with "accuracy/seen" and
    "accuracy/unseen" of the test rows if any is seen.

    seen (N,) bool: whether a test row is also in the training files.
    """
    right = {name: (logits[name].argmax(-1) == rows.labels).double() for name, rows in sets.items()}
    if seen.any():
        right |= {"seen": right["test"][seen], "unseen": right["test"][~seen]}
    return {f"accuracy/{name}": hits.mean().item() for name, hits in right.items() if len(hits)}


def by_seen(numbers):
    """Return the accuracy on seen and unseen test rows in words, if there are both."""
    if not {"accuracy/seen", "accuracy/unseen"} <= set(numbers):
        return ""
    return f" (seen {numbers['accuracy/seen']:.1%}, unseen {numbers['accuracy/unseen']:.1%})"


def balanced_loss(logits, labels, balance):
    """Return the cross-entropy of logits (N, n_class), balanced by `Rows.balance`."""
    weights, prior = (part.to(logits.device) for part in balance)
    return F.cross_entropy(logits + prior, labels.to(logits.device), weights)
