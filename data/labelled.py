"""Labelled sentences for a classifier: loaded, as tensors, and how well it does."""

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from data.batching import length_batches, pad, sentences
from data.files import UserError
from data.readers import load
from data.tables import read_table


def load_labelled(name, target="class", columns=""):
    """Return the Corpus of --data. Its rows have classes or, as a `target`, scores. columns: those
    of a table that hold the label or score, the text, and of pairs the second text, "label,a,b".
    Raises UserError without rows to train and test on."""
    if columns and not Path(name).expanduser().is_file():
        problem = f"names columns of a table, but --data {name} is no .tsv or .csv"
        raise UserError(f"--columns {columns}: {problem}; leave it out")
    if columns:
        corpus = read_table(Path(name).expanduser(), columns, target)
    else:
        corpus = load(name)
    remedy = "give a .csv, hf:NAME:text=COLUMN,label=COLUMN, or a folder with train_CLS.tsv"
    if target == "score":
        scored = corpus.scored or {"rows": []}
        corpus = replace(corpus, classes=[], **scored)
        remedy += "; for --target score, with a column score"
    if not (corpus.rows and corpus.test_rows):
        raise UserError(f"--data {name}: no labelled rows to train and test on; {remedy}")
    return corpus


class Rows:
    """Labelled sentences: sequences of ids that begin with [BOS], lengths, labels (N,)."""

    def __init__(self, rows, tokenizer, block_size):
        texts = [text for _, text in rows]
        self.sequences, self.n_long = sentences(tokenizer, texts, block_size)
        self.labels = torch.tensor([label for label, _ in rows])
        self.lengths = [len(sequence) for sequence in self.sequences]

    def __len__(self):
        return len(self.sequences)

    def batch(self, rows):
        """Return idx and mask (B, T) of some rows."""
        return pad([self.sequences[i] for i in rows])

    def batches(self, batch_size, gen=None):
        """Return the row numbers of batches of similar length, in random order with a generator."""
        return length_batches(self.lengths, batch_size, gen)

    def balance(self, n_class, how):
        """Return a correction for classes of unequal size: weights of the loss (n_class,), and a
        prior (n_class,) to add to the logits in training (Menon et al. 2021). how: "none",
        "prior", which is twice the log of the class shares, or "weights": PyTorch divides by those
        of the batch, so a small batch is balanced less (in batches of 16, a tenth counts 43%)."""
        weights = torch.ones(n_class)
        prior = torch.zeros(n_class)
        if self.labels.is_floating_point():
            return weights, prior
        counts = self.labels.bincount(minlength=n_class).clamp(min=1)
        if how == "weights":
            weights = counts.sum() / len(counts) / counts
        if how == "prior":
            prior = 2 * (counts / counts.sum()).log()
        return weights, prior


def balanced_loss(logits, labels, balance):
    """Return the cross-entropy of logits (N, n_class), balanced by `Rows.balance`; of labels that
    are scores, the mean squared error of logits (N, 1)."""
    labels = labels.to(logits.device)
    if labels.is_floating_point():
        return F.mse_loss(logits[:, 0], labels)
    weights, prior = balance
    return F.cross_entropy(logits + prior.to(logits.device), labels, weights.to(logits.device))


def accuracies(logits, sets, seen):
    """Return {"accuracy/SET": share, ...} of logits {set: (N, n_class)} and sets {set: Rows}, also
    of the test rows that are seen, (N,) bool: in the training files, and of the others. Of scores,
    {"pearson/SET": correlation, ...}."""
    if sets["test"].labels.is_floating_point():
        return correlations(logits, sets)
    right = {}
    for name, rows in sets.items():
        right[name] = (logits[name].argmax(-1) == rows.labels).double()  # (N,)
    if seen.any():
        right["seen"] = right["test"][seen]
        right["unseen"] = right["test"][~seen]
    return {f"accuracy/{name}": hits.mean().item() for name, hits in right.items() if len(hits)}


def correlations(logits, sets):
    """Return {"pearson/SET": correlation of logits {set: (N, 1)} with the scores of a set, ...}."""
    result = {}
    for name, rows in sets.items():
        both = torch.stack([logits[name][:, 0], rows.labels])  # (2, N)
        r = both.corrcoef()[0, 1]
        result[f"pearson/{name}"] = r.nan_to_num().item()  # NaN: all logits are equal
    return result


def by_seen(numbers):
    """Return the accuracy on seen and unseen test rows in words, if there are both."""
    seen = numbers.get("accuracy/seen")
    unseen = numbers.get("accuracy/unseen")
    if seen is None or unseen is None:
        return ""
    return f" (seen {seen:.1%}, unseen {unseen:.1%})"
