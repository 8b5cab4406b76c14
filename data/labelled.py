"""Labelled sentences: read from a .tsv or .csv, as tensors, and how well a classifier does."""

import csv
import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from data import batching, corpus
from data.files import UserError, read_lines

LABEL_NAMES = frozenset("label labels class category target sentiment speaker author".split())
TEXT_NAMES = frozenset("text texts sentence content message review tweet document".split())


def load_labelled(name):
    """Return the Corpus of --data. Raises UserError without labelled rows to train and test on."""
    found = corpus.load(name)
    if not (found.rows and found.test_rows):
        remedy = "give a .tsv, a .csv, or a folder with train_CLS.tsv and test_CLS.tsv"
        raise UserError(f"--data {name}: no labelled rows to train and test on; {remedy}")
    return found


def read_table(path):
    """Return the Corpus of a .tsv or .csv, with a fifth of the distinct texts of each class as test
    rows. Raises UserError as `read_rows`, and without two classes of several rows."""
    labelled = read_rows(path)
    classes = sorted({row["label"] for row in labelled})
    if all(map(str.isdecimal, classes)):
        classes.sort(key=len)  # 9 before 10
    if not 2 <= len(classes) <= max(2, len(labelled) // 4):
        remedy = "expected two of several rows each; check which column holds the labels"
        raise UserError(f"{path}: {len(classes)} labels in {len(labelled)} rows, {remedy}")
    rows = [(classes.index(row["label"]), row["text"]) for row in labelled]
    rows, test_rows = corpus.hold_out(rows, 0.2, key=lambda row: row[1], kind=lambda row: row[0])
    return corpus.Corpus(path.stem, [text for _, text in rows], {}, rows, test_rows, classes)


def read_rows(path, labels=None, labelled=True):
    """Return [{"label": ..., "text": ..., another name: ...}, ...] of a .csv, or of any other file
    as tab-separated lines: of the columns that a header names, or the first two. The first comma,
    semicolon or tab of a .csv separates its cells, which may be quoted; tab-separated cells are
    only if all in the first line are, as R writes them. Raises UserError naming a line without
    label or text, or with a label that is not among `labels`, and without labels if labelled."""
    lines, separator, quoting = read_lines(path), "\t", csv.QUOTE_NONE
    first = next(line.strip() for line in lines if line.strip())
    if Path(path).suffix.lower() == ".csv":
        bare = re.sub('"[^"]*"?', "", first)  # without quoted cells
        separator, quoting = next((c for c in bare if c in ",;\t"), ","), csv.QUOTE_MINIMAL
    if is_from_r := separator == "\t" and all(re.fullmatch('".*"', c) for c in first.split("\t")):
        lines, quoting = [line.replace('\\"', '""') for line in lines], csv.QUOTE_MINIMAL
    csv.field_size_limit(2**30)  # a text may be long
    how = dict(delimiter=separator, quoting=quoting, strict=True, skipinitialspace=True)
    reader = csv.reader((line + "\n" for line in lines), **how)
    number, records = 1, []
    try:
        for cells in reader:
            if cells:  # an empty line gives none
                records.append((number, [" ".join(cell.split("\n")).strip() for cell in cells]))
            number = reader.line_num + 1
    except csv.Error as error:
        remedy = "put quotes around texts that hold separators or quotes, and double these quotes"
        raise UserError(f"{path}:{number}: not valid CSV ({error}); {remedy}") from None
    if is_from_r and len(records[0][1]) < len(records[-1][1]):
        records[0][1].insert(0, "row")  # R's names of rows have no header
    called = dict.fromkeys(LABEL_NAMES, "label") | dict.fromkeys(TEXT_NAMES, "text")
    names, header = ["label", "text"], [called.get(cell.lower(), cell) for cell in records[0][1]]
    if is_header := "text" in header:
        at = {name: i for i, name in enumerate(header, start=1)}
        where = [f"{name}s are column {at[name]}" for name in names if name in at]
        print(f"note: {path}: the first row is a header: {', '.join(where)}", file=sys.stderr)
        names = header
    if labelled and "label" not in names:
        raise UserError(f"{path}: the first row names no labels; call their column label")
    rows = []
    for number, cells in records[is_header:]:
        if len(cells) != (n := len(names)):
            remedy = f"complete the line, or remove {separator!r} from its text"
            raise UserError(f"{path}:{number}: {len(cells)} columns, expected {n}; {remedy}")
        row = dict(zip(names, cells))
        label = row.get("label")
        if "" in (label, row["text"]):
            raise UserError(f"{path}:{number}: empty label or text; complete the line or remove it")
        if labels is not None and label not in (None, *labels):
            expected = f"expected one of {', '.join(sorted(labels))}; correct it"
            raise UserError(f"{path}:{number}: unknown label {label[:40]!r}, {expected}")
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: a header but no rows; add a label and a text per line")
    return rows


class Rows:
    """Labelled sentences: sequences of ids that begin with [BOS], lengths, labels (N,)."""

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
    """Return {"accuracy/SET": share, ...} of logits {set: (N, n_class)} and sets {set: Rows}, also
    of the test rows that are seen, (N,) bool: in the training files, and of the others."""
    right = {name: (logits[name].argmax(-1) == rows.labels).double() for name, rows in sets.items()}
    if seen.any():
        right |= {"seen": right["test"][seen], "unseen": right["test"][~seen]}
    return {f"accuracy/{name}": hits.mean().item() for name, hits in right.items() if len(hits)}


def by_seen(numbers):
    """Return the accuracy on seen and unseen test rows in words, if there are both."""
    found = [numbers.get(f"accuracy/{part}") for part in ("seen", "unseen")]
    return "" if None in found else " (seen {:.1%}, unseen {:.1%})".format(*found)
