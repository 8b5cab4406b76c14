"""The answers of a classifier: the table predictions.tsv, and scores per class."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import torch

from data.files import printable, read_lines, write_text
from data.labelled import accuracies
from lab.tables import align

FILE = "predictions.tsv"  # in a run folder
SCORES = ("precision", "recall", "f1")


def write_rows(path, header, rows):
    """Write a table of tab-separated cells, quoted as in CSV; the names of columns always are."""
    how = dict(dialect="excel-tab", lineterminator="\n")
    header, *rows = ([" ".join(cell.split()) for cell in row] for row in (header, *rows))
    csv.writer(text := io.StringIO(), quoting=csv.QUOTE_ALL, **how).writerow(header)
    csv.writer(text, **how).writerows(rows)
    write_text(path, text.getvalue())


def write_predictions(path, texts, probabilities, classes, gold=None, seen=None, more=()):
    """Write the columns `more` {name: cells}, text, gold, predicted, a probability per class, seen.
    probabilities (N, n_class); gold (N,): index of the true class; seen (N,) bool; or None."""
    p, columns = torch.as_tensor(probabilities), [*dict(more).items(), ("text", texts)]
    columns += [] if gold is None else [("gold", [classes[i] for i in gold])]
    columns += [("predicted", [classes[i] for i in p.argmax(1)])]
    columns += [(name, map("{:.6f}".format, shares)) for name, shares in zip(classes, p.T.tolist())]
    columns += [] if seen is None else [("seen", ["yes" if known else "no" for known in seen])]
    names, cells = zip(*columns)
    write_rows(path, names, zip(*cells))


def read_predictions(folder):
    """Return the classes, and of all rows the texts, gold, predicted, probabilities and seen."""
    csv.field_size_limit(2**30)  # a text may be long
    header, *table = csv.reader(read_lines(Path(folder) / FILE), "excel-tab")
    rows = [(*row[:3], list(map(float, row[3:-1])), row[-1] == "yes") for row in table]
    return header[3:-1], *zip(*rows)


@dataclass
class Predictions:
    """Answers to rows. seen (N,) bool: whether a row is also in the training files."""

    rows: list  # [(index in `classes`, text), ...]
    classes: list
    logits: torch.Tensor  # (N, n_class)
    seen: torch.Tensor

    def __post_init__(self):
        self.probabilities = self.logits.double().softmax(1)  # (N, n_class)
        self.labels = torch.tensor([label for label, _ in self.rows])
        self.predicted, n = self.probabilities.argmax(1), len(self.classes)
        counts = (self.labels * n + self.predicted).bincount(minlength=n * n)
        self.confusion = counts.view(n, n).tolist()  # [i][j]: rows of class i that were given j

    def accuracies(self):
        """Return {"accuracy/test": share}, and of "seen" and "unseen" rows if any row is seen."""
        return accuracies({"test": self.logits}, {"test": self}, self.seen)

    def write(self, folder):
        """Write predictions.tsv into a run folder."""
        columns = self.probabilities, self.classes, self.labels, self.seen
        write_predictions(Path(folder) / FILE, [text for _, text in self.rows], *columns)

    def scores(self):
        """Return {"macro_f1/test": mean F1, "precision/CLASS": ..., "recall/CLASS": ...,
        "f1/CLASS": ...} of the classes that are true or predicted at least once."""
        scores, f1 = {}, []
        for i, (name, row) in enumerate(zip(self.classes, self.confusion)):
            right, true, given = row[i], sum(row), sum(each[i] for each in self.confusion)
            if true or given:
                f1.append(2 * right / (true + given))
                shares = right / max(1, given), right / max(1, true), f1[-1]
                scores |= {f"{score}/{name}": share for score, share in zip(SCORES, shares)}
        return {"macro_f1/test": sum(f1) / len(f1)} | scores

    def describe(self):
        """Return the scores of each class as lines, and which of them are of very few rows."""
        scores, lines = self.scores(), [("class", *SCORES, "rows")]
        for name, row in zip(self.classes, self.confusion):
            shares = [f"{scores[f'{s}/{name}']:.1%}" for s in SCORES if f"f1/{name}" in scores]
            lines.append((printable(name, 20), *(shares or ["–"] * 3), f"{sum(row):,}"))
        lines.append(("macro-F1", "", "", f"{scores['macro_f1/test']:.1%}", f"{len(self.rows):,}"))
        few = [printable(n, 20) for n, row in zip(self.classes, self.confusion) if sum(row) < 10]
        note = f"note: fewer than 10 test rows, so scores are uncertain: {', '.join(few)}"
        return align(lines) + [note] * bool(few)
