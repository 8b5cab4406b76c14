"""The predictions of a classifier: a table of all rows, scores per class, the worst errors."""

from dataclasses import dataclass

import torch

from data.corpus import normalize
from data.files import MEGABYTE, DataError, printable, read_bytes, write_text
from data.labelled import accuracies
from lab.tables import align

FILE = "predictions.tsv"  # in a run folder
LIMIT = 256 * MEGABYTE
REMEDY = "train the run again"


def write_predictions(path, texts, probabilities, classes, gold=None, seen=None):
    """Write a table with a header: text, gold, predicted, a probability per class, seen.

    probabilities (N, n_class); gold (N,): index of the true class; seen (N,) bool. Without gold or
    seen, the table lacks that column. Cells are separated by tabs and quoted as in CSV. White space
    becomes one space, so that each row is one line.
    """
    probabilities, classes = torch.as_tensor(probabilities), list(map(normalize, classes))
    columns = [("text", map(normalize, texts))]
    if gold is not None:
        columns.append(("gold", (classes[i] for i in gold)))
    columns.append(("predicted", (classes[i] for i in probabilities.argmax(1))))
    for name, shares in zip(classes, probabilities.T.tolist()):
        columns.append((name, map("{:.6f}".format, shares)))
    if seen is not None:
        columns.append(("seen", ("yes" if known else "no" for known in seen)))

    names, cells = zip(*columns)
    write_rows(path, names, zip(*cells))


def write_rows(path, header, rows):
    """Write a table of tab-separated cells, which hold no tabs and no line breaks."""
    lines = ["\t".join(map(quote, row)) + "\n" for row in (header, *rows)]
    write_text(path, "".join(lines))


def read_predictions(folder):
    """Return [(text, gold, predicted, probability of it, seen), ...] of a run folder's table.

    Raises DataError without a valid table.
    """
    _, texts, gold, predicted, probabilities, seen = read_table(folder)
    return list(zip(texts, gold, predicted, map(max, probabilities), seen))


def read_table(folder):
    """Return the classes, and of all rows the texts, gold, predicted, probabilities and seen."""
    path = folder / FILE
    try:
        lines = read_bytes(path, LIMIT, REMEDY).decode("utf-8").split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason}); {REMEDY}") from None
    table = [[unquote(cell) for cell in line.split("\t")] for line in lines]
    named = len(table) > 1 and table[0][:3] == ["text", "gold", "predicted"]
    if not named or len(table[0]) < 5 or len({len(row) for row in table}) > 1:
        raise DataError(f"{path}: not a table of text, gold and predicted; {REMEDY}")
    try:
        rows = [(*row[:3], [*map(float, row[3:-1])], row[-1] == "yes") for row in table[1:]]
    except ValueError:
        raise DataError(f"{path}: a probability in it is not a number; {REMEDY}") from None
    return table[0][3:-1], *zip(*rows)


def quote(cell):
    return '"' + cell.replace('"', '""') + '"' if '"' in cell else cell


def unquote(cell):
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def label_of_seen(clean):
    """Return how a table or figure names the seen test rows, which --split clean removes."""
    return "removed from training" if clean else "seen in training"


@dataclass
class Predictions:
    """The answers of a classifier to labelled rows.

    rows: [(index in `classes`, text), ...]; logits (N, n_class): unnormalised log probabilities;
    seen (N,) bool: whether a row is also in the training files.
    """

    rows: list
    classes: list
    logits: torch.Tensor
    seen: torch.Tensor

    def __post_init__(self):
        self.probabilities = self.logits.double().softmax(1)  # (N, n_class)
        self.labels = torch.tensor([label for label, _ in self.rows])
        self.predicted = self.probabilities.argmax(1)
        n = len(self.classes)
        counts = (self.labels * n + self.predicted).bincount(minlength=n * n)
        self.confusion = counts.view(n, n).tolist()  # [i][j]: rows of class i that were given j

    def accuracies(self):
        """Return {"accuracy/test": share of all rows}, and with "accuracy/seen" and
        "accuracy/unseen" if any row is seen; a part without rows has none."""
        return accuracies({"test": self.logits}, {"test": self}, self.seen)

    def write(self, folder):
        """Write predictions.tsv into a run folder."""
        texts = [text for _, text in self.rows]
        columns = texts, self.probabilities, self.classes, self.labels, self.seen
        write_predictions(folder / FILE, *columns)

    def scores(self):
        """Return {"macro_f1/test": ..., "precision/CLASS": ..., "recall/CLASS": ..., "f1/CLASS":
        ...} for the classes that are true or predicted at least once.

        A class that is never predicted has precision 0, and one without rows recall 0. Macro-F1 is
        the mean F1 of these classes.
        """
        scores, f1 = {}, []
        for i, name in enumerate(self.classes):
            right, true = self.confusion[i][i], sum(self.confusion[i])
            given = sum(row[i] for row in self.confusion)
            if true or given:
                f1.append(2 * right / (true + given))
                scores[f"precision/{name}"] = right / max(1, given)
                scores[f"recall/{name}"] = right / max(1, true)
                scores[f"f1/{name}"] = f1[-1]
        return {"macro_f1/test": sum(f1) / len(f1)} | scores

    def describe_scores(self):
        """Return the scores of each class as lines of a table, and a note on absent classes."""
        scores, lines = self.scores(), [("class", "precision", "recall", "F1", "rows")]
        for name, row in zip(self.classes, self.confusion):
            if f"f1/{name}" in scores:
                shares = [f"{scores[f'{s}/{name}']:.1%}" for s in ("precision", "recall", "f1")]
                lines.append((printable(name, 40), *shares, f"{sum(row):,}"))
        lines.append(("macro-F1", "", "", f"{scores['macro_f1/test']:.1%}", f"{len(self.rows):,}"))
        absent = ", ".join(name for name, row in zip(self.classes, self.confusion) if not any(row))
        note = f"note: no test rows, so no measured recall: {printable(absent, 80)}"
        return ["  ".join(cells) for cells in align(lines)] + [note] * bool(absent)

    def describe_errors(self, most=5):
        """Return the errors with the highest probabilities as lines of a table."""
        wrong = (self.predicted != self.labels).nonzero().flatten()
        if not len(wrong):
            return ["no errors on the test rows"]
        shares = self.probabilities.max(1).values
        order = shares[wrong].argsort(descending=True, stable=True)
        lines = [("predicted", "", "true", "text")]
        for i in wrong[order][:most].tolist():
            names = [printable(self.classes[j], 20) for j in (self.predicted[i], self.labels[i])]
            text = printable(normalize(self.rows[i][1]), 60)
            lines.append((names[0], f"{shares[i]:6.1%}", names[1], text))
        n = f"{len(lines) - 1} of {len(wrong):,}"
        table = ["  ".join(cells).rstrip() for cells in align(lines, left=4)]
        return [f"most confident errors ({n}; all rows are in {FILE})", *table]


def average_predictions(folders):
    """Return the Predictions that run folders with the same test rows give together: the class with
    the highest mean log-probability. Raises DataError for other test rows."""
    tables = [read_table(folder) for folder in folders]
    classes, texts, gold, _, _, seen = tables[0]
    if not set(gold) <= set(classes):
        raise DataError(f"{folders[0]}/{FILE}: a gold label is not among its classes; {REMEDY}")
    for folder, table in zip(folders, tables):
        if table[:3] != (classes, texts, gold):
            raise DataError(f"{folder}: has different test rows from {folders[0]}; leave it out")
    shares = torch.tensor([probabilities for *_, probabilities, _ in tables]).double()
    logits = shares.clamp(min=1e-9).log().mean(0)  # (M, N, n_class) -> (N, n_class)
    rows = list(zip(map(classes.index, gold), texts))
    return Predictions(rows, classes, logits, torch.tensor(seen))
