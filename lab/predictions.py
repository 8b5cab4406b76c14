"""The answers of a classifier: the table predictions.tsv, and scores per class."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data.files import printable, read_lines, write_text
from data.labelled import accuracies
from lab.tables import align

FILE = "predictions.tsv"  # in a run folder
SCORES = ("precision", "recall", "f1")
FEW = 10  # test rows of a class: with fewer, its scores are uncertain


def write_rows(path, header, rows):
    """Write a table of tab-separated cells, each on one line, quoted as in CSV."""
    style = {"dialect": "excel-tab", "lineterminator": "\n"}
    text = io.StringIO()
    # All names of columns are quoted: `read_rows` then reads the other cells as quoted, too
    csv.writer(text, quoting=csv.QUOTE_ALL, **style).writerow(map(to_one_line, header))
    writer = csv.writer(text, **style)
    for row in rows:
        writer.writerow(map(to_one_line, row))
    write_text(path, text.getvalue())


def to_one_line(cell):
    """Return the text of a cell with single spaces instead of tabs and line ends."""
    return " ".join(cell.split())


def yes_or_no(truths):
    """Return "yes" or "no" for each of the truth values (N,)."""
    return np.where(truths, "yes", "no").tolist()


def write_predictions(path, texts, probabilities, classes, gold=None, seen=None, more=None):
    """Write the columns of `more` {name: cells}, text, gold, predicted, one per class, and seen.

    probabilities (N, n_class): the cells of the classes' columns. gold (N,): index of the true
    class. seen (N,) bool. Without gold or seen, the table lacks this column."""
    probabilities = torch.as_tensor(probabilities)
    columns = []  # (name, cells); no dictionary, as a class may be named "text"
    if more:
        columns.extend(more.items())
    columns.append(("text", texts))
    if gold is not None:
        columns.append(("gold", [classes[label] for label in gold]))
    columns.append(("predicted", [classes[label] for label in probabilities.argmax(1)]))
    for name, shares in zip(classes, probabilities.T.tolist()):
        columns.append((name, [f"{share:.6f}" for share in shares]))
    if seen is not None:
        columns.append(("seen", yes_or_no(seen)))
    names, cells = zip(*columns)
    write_rows(path, names, zip(*cells))


class PredictionTable(NamedTuple):
    """The classes of predictions.tsv, and its columns with one entry per test row."""

    classes: list
    texts: tuple
    gold: tuple  # the name of the true class
    predicted: tuple  # the name of the likeliest class
    probabilities: tuple  # a list of n_class numbers each
    seen: tuple  # bool: whether the row is also in the training files


def read_predictions(folder):
    """Return the PredictionTable of a run folder."""
    csv.field_size_limit(2**30)  # a text may be long
    header, *table = csv.reader(read_lines(Path(folder) / FILE), "excel-tab")
    classes = header[3:-1]  # between text, gold, predicted and seen
    rows = []
    for text, gold, predicted, *shares, seen in table:
        probabilities = [float(share) for share in shares]
        rows.append((text, gold, predicted, probabilities, seen == "yes"))
    return PredictionTable(classes, *zip(*rows))


@dataclass
class Predictions:
    """Answers to rows. seen (N,) bool: whether a row is also in the training files."""

    rows: list  # [(index in `classes`, text), ...]
    classes: list
    logits: torch.Tensor  # (N, n_class)
    seen: torch.Tensor

    def __post_init__(self):
        n_class = len(self.classes)
        self.probabilities = self.logits.double().softmax(1)  # (N, n_class)
        self.predicted = self.probabilities.argmax(1)  # (N,)
        self.labels = torch.tensor([label for label, _ in self.rows])  # (N,)
        cells = self.labels * n_class + self.predicted  # (N,), each row's cell in the matrix
        counts = cells.bincount(minlength=n_class * n_class)
        # [i][j]: number of rows of class i that were given class j
        self.confusion = counts.view(n_class, n_class).tolist()

    def accuracies(self):
        """Return {"accuracy/test": share}, and of "seen" and "unseen" rows if any row is seen."""
        return accuracies({"test": self.logits}, {"test": self}, self.seen)

    def write(self, folder):
        """Write predictions.tsv into a run folder."""
        texts = [text for _, text in self.rows]
        write_predictions(
            Path(folder) / FILE,
            texts,
            self.probabilities,
            self.classes,
            gold=self.labels,
            seen=self.seen,
        )

    def scores(self):
        """Return {"macro_f1/test": mean F1, "precision/CLASS": ..., "recall/CLASS": ...,
        "f1/CLASS": ...} of the classes that are true or predicted at least once."""
        predicted = [sum(column) for column in zip(*self.confusion)]  # rows given each class
        all_f1 = []
        scores = {}
        for i, name in enumerate(self.classes):
            n_right = self.confusion[i][i]
            n_true = sum(self.confusion[i])
            n_predicted = predicted[i]
            if n_true + n_predicted == 0:
                continue  # neither score is defined
            f1 = 2 * n_right / (n_true + n_predicted)
            all_f1.append(f1)
            scores[f"precision/{name}"] = n_right / max(1, n_predicted)
            scores[f"recall/{name}"] = n_right / max(1, n_true)
            scores[f"f1/{name}"] = f1
        return {"macro_f1/test": sum(all_f1) / len(all_f1), **scores}

    def describe(self):
        """Return lines that show the scores of each class, with a note of classes of few rows."""
        scores = self.scores()
        table = [("class", *SCORES, "rows")]
        uncertain = []
        for name, row in zip(self.classes, self.confusion):
            shown = printable(name, 20)
            n_rows = sum(row)
            shares = ["–"] * len(SCORES)
            if f"f1/{name}" in scores:
                shares = [f"{scores[f'{score}/{name}']:.1%}" for score in SCORES]
            table.append((shown, *shares, f"{n_rows:,}"))
            if n_rows < FEW:
                uncertain.append(shown)
        macro_f1 = f"{scores['macro_f1/test']:.1%}"
        table.append(("macro-F1", "", "", macro_f1, f"{len(self.rows):,}"))
        lines = align(table)
        if uncertain:
            names = ", ".join(uncertain)
            lines.append(f"note: fewer than {FEW} test rows, so scores are uncertain: {names}")
        return lines
