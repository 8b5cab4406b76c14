"""Labelled sentences: read from a .tsv or .csv, as tensors, and how well a classifier does."""

import csv
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from data import batching, corpus
from data.files import UserError, printable, read_lines

LABEL_NAMES = frozenset("label labels class category target sentiment speaker author".split())
TEXT_NAMES = frozenset("text texts sentence content message review tweet document".split())
SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon"}


def load_labelled(name):
    """Return the Corpus of --data. Raises UserError without labelled rows to train and test on."""
    found = corpus.load(name)
    if not (found.rows and found.test_rows):
        problem = f"holds {'too few' if found.rows else 'no'} labelled rows"
        remedy = "give a .tsv, a .csv, or a folder with train_CLS.tsv and test_CLS.tsv"
        raise UserError(f"--data {name}: {problem}; {remedy}")
    return found


def read_table(path):
    """Return the Corpus of a .tsv or .csv of labels and texts; a fifth of its distinct texts become
    test rows. Raises UserError as `read_rows`, and without two classes of several rows."""
    labelled = read_rows(path)
    classes = sorted({label for label, _ in labelled})
    if all(map(str.isdecimal, classes)):
        classes.sort(key=len)  # 9 before 10
    if not 2 <= len(classes) <= max(2, len(labelled) // 4):
        found = f"{len(classes)} labels in {len(labelled)} rows"
        remedy = "expected two of several rows each; check which column holds the labels"
        raise UserError(f"{path}: {found}, {remedy}")
    rows = [(classes.index(label), text) for label, text in labelled]
    rows, test_rows = corpus.hold_out(rows, 0.2, key=lambda row: row[1])
    return corpus.Corpus(path.stem, [text for _, text in rows], {}, rows, test_rows, classes)


def read_rows(path, labels=None):
    """Return [(label, text), ...] of a .csv, or of any other file as tab-separated lines.

    A header may name the columns in any order; a note on stderr says so. Without one, there are two
    columns, the label first. In a .csv a semicolon separates the cells, as in spreadsheets of some
    languages, if the first line has one before any comma; cells may be quoted. Raises UserError
    naming the line of a row without label or text, or with a label that is not among `labels`."""
    lines, separator, quoting = read_lines(path), "\t", csv.QUOTE_NONE
    if Path(path).suffix.lower() == ".csv":
        first = next(filter(None, lines))
        separator, quoting = ";" if ";" in first.partition(",")[0] else ",", csv.QUOTE_MINIMAL
    text = (line + "\n" for line in lines)
    reader = csv.reader(text, delimiter=separator, quoting=quoting, strict=True)
    number, records = 1, []
    try:
        for cells in reader:
            if cells:  # an empty line gives none
                records.append((number, [" ".join(cell.split("\n")).strip() for cell in cells]))
            number = reader.line_num + 1
    except csv.Error as error:
        remedy = f"put quotes around texts that hold {SEPARATORS[separator]}s or quotes"
        problem = f"not valid CSV ({error}); {remedy}, and double the quotes in them"
        raise UserError(f"{path}:{number}: {problem}") from None
    # A header names both columns, or its first cell of two names labels and is no label itself
    header, names = records[0][1], [cell.lower() for cell in records[0][1]]
    label_at = [i for i, name in enumerate(names) if name in LABEL_NAMES]
    text_at = [i for i, name in enumerate(names) if name in TEXT_NAMES]
    if len(names) == 2 and label_at == [0] and all(x[0] != header[0] for _, x in records[1:]):
        text_at = [1]
    note, width, rows = "no header; labels are column 1, texts column 2", 2, []
    if is_header := bool(label_at and text_at):
        named = [f"{i + 1} ({header[i]!r})" for i in (label_at[0], text_at[0])]
        note = "the first row is a header: labels are column {}, texts {}".format(*named)
        width = len(header)
    if is_header or separator != "\t":
        print(printable(f"note: {path}: {note}"), file=sys.stderr)
    label_at, text_at = (label_at[0], text_at[0]) if is_header else (0, 1)
    for number, cells in records[is_header:]:
        where = f"{path}:{number}"
        if len(cells) != width:
            expected = f"expected {width}, separated by a {SEPARATORS[separator]}"
            remedy = "complete the line, or " + (
                "remove tabs from" if separator == "\t" else "quote"
            )
            raise UserError(f"{where}: {len(cells)} columns, {expected}; {remedy} the text")
        label, text = cells[label_at], cells[text_at]
        if not (label and text):
            raise UserError(f"{where}: empty label or text; complete the line or remove it")
        if labels is not None and label not in labels:
            problem = f"unknown label {label[:40]!r}, expected one of {', '.join(sorted(labels))}"
            raise UserError(f"{where}: {problem}; correct it")
        rows.append((label, text))
    if not rows:
        raise UserError(f"{path}: a header but no rows; add a label and a text per line")
    return rows


class Rows:
    """Labelled sentences: sequences of ids that begin with [BOS], labels (N,), and lengths."""

    def __init__(self, rows, tokenizer, block_size):
        texts = [text for _, text in rows]
        self.sequences, self.n_long = batching.sentences(tokenizer, texts, block_size)
        self.labels = torch.tensor([label for label, _ in rows])
        self.lengths = [len(sequence) for sequence in self.sequences]

    def __len__(self):
        return len(self.sequences)

    def batch(self, rows):
        """Return idx and mask (B, T) of some rows."""
        return batching.pad([self.sequences[i] for i in rows])

    def batches(self, batch_size, gen=None):
        """Return the row numbers of batches of similar length, in random order with a generator."""
        return batching.length_batches(self.lengths, batch_size, gen)

    def balance(self, n_class, how):
        """Return a correction for classes of unequal size: weights of the loss (n_class,), and a
        prior (n_class,) to add to the logits in training (Menon et al. 2021). how: "none",
        "weights", or "prior", which is twice the log of the class shares."""
        counts = self.labels.bincount(minlength=n_class).clamp(min=1)
        weights, prior = torch.ones(n_class), torch.zeros(n_class)
        if how == "weights":
            weights = counts.sum() / len(counts) / counts
        if how == "prior":
            prior = 2 * (counts / counts.sum()).log()
        return weights, prior


def balanced_loss(logits, labels, balance):
    """Return the cross-entropy of logits (N, n_class), balanced by `Rows.balance`."""
    weights, prior = (part.to(logits.device) for part in balance)
    return F.cross_entropy(logits + prior, labels.to(logits.device), weights)


def accuracies(logits, sets, seen):
    """Return {"accuracy/SET": share, ...} of logits {set: (N, n_class)} and sets {set: Rows}, with
    "accuracy/seen" and "accuracy/unseen" if any test row is seen, (N,) bool: in the training files.
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
