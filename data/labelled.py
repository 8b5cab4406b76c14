"""Labelled sentences: read from a .tsv or .csv, as tensors, and how well a classifier does."""

import csv
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from data import batching, corpus
from data.files import UserError, read_lines

NAMES = {  # of columns, in lower case
    "label": "label labels class category target sentiment speaker author gold_label "
    "entailment_judgment",
    "text": "text texts sentence content message review tweet document text1 sentence1 sentence_a "
    "question1 premise",
    "text2": "text2 sentence2 sentence_b question2 hypothesis",
    "score": "score similarity relatedness_score",
}
COLUMNS = {name: what for what, names in NAMES.items() for name in names.split()}


def load_labelled(name, target="class", columns=""):
    """Return the Corpus of --data. Its rows have classes or, as a `target`, scores. columns: those
    of a table that hold the label or score, the text, and of pairs the second text, "label,a,b".
    Raises UserError without rows to train and test on."""
    found = read_table(Path(name), columns, target) if columns else corpus.load(name)
    if target == "score":
        found = replace(found, classes=[], **(found.scored or dict(rows=[])))
    if not (found.rows and found.test_rows):
        remedy = "give a .csv, hf:NAME:text=COLUMN,label=COLUMN, or a folder with train_CLS.tsv"
        remedy += "; for --target score, with a column score" * (target == "score")
        raise UserError(f"--data {name}: no labelled rows to train and test on; {remedy}")
    return found


def read_table(path, columns="", target="class"):
    """Return the Corpus of a .tsv or .csv, with a fifth of the distinct texts of each class as test
    rows. Raises UserError as `read_rows`, and without two classes of several rows."""
    wanted, text = "label" if target == "class" else "score", lambda row: row["text"]
    rows = read_rows(path, None, wanted, columns)
    rows, test = corpus.hold_out(rows, 0.2, key=text, kind=lambda row: row.get("label", ""))
    return corpus_of(path, path.stem, rows, test)


def corpus_of(path, name, rows, test, valid=()):
    """Return the Corpus of rows of `read_rows`, those for training, testing and validation. Raises
    UserError as `read_table`; path: of the file to name."""
    every, parts = [*rows, *valid, *test], dict(rows=rows, valid_rows=valid, test_rows=test)
    found = corpus.Corpus(name)
    try:
        scores = {k: [(float(row["score"]), row["text"]) for row in p] for k, p in parts.items()}
        if not all(math.isfinite(score) for part in scores.values() for score, _ in part):
            raise ValueError("nan or inf")
        found.scored = scores
    except (KeyError, ValueError) as error:
        if "label" not in rows[0]:
            raise UserError(f"{path}: not all numbers ({error}); correct the scores") from None
    if "label" in rows[0]:
        classes = sorted({row["label"] for row in every})
        if all(map(str.isdecimal, classes)):
            classes.sort(key=len)  # 9 before 10
        if not 2 <= len(classes) <= max(2, len(every) // 4):
            remedy = "expected two of several rows each; check which column holds the labels"
            raise UserError(f"{path}: {len(classes)} labels in {len(every)} rows, {remedy}")
        found.classes = classes
        for k, part in parts.items():
            setattr(found, k, [(classes.index(row["label"]), row["text"]) for row in part])
    found.lines = corpus.sentences_of(found.rows or found.scored["rows"])
    return found


def read_rows(path, labels=None, wanted="label", columns=""):
    """Return [{"label": ..., "text": ..., another name: ...}, ...] of a .csv, or of any other file
    as tab-separated lines: of the columns that a header names, see COLUMNS, or the first two.
    columns: their names if others, "label,a,b". A pair becomes one text. The first comma, semicolon
    or tab of a .csv separates its cells, which may be quoted; tab-separated cells are only if all
    in the first line are, as R writes them. Raises UserError naming a line without label or text,
    or with a label that is not among `labels`, and without the column `wanted`."""
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
            if cells:  # an empty line gives none; [EOS] separates the sentences of a pair
                one_line = (cell.replace("[EOS]", " ").replace("\n", " ") for cell in cells)
                records.append((number, [*map(str.strip, one_line)]))
            number = reader.line_num + 1
    except csv.Error as error:
        remedy = "put quotes around texts that hold separators or quotes, and double these quotes"
        raise UserError(f"{path}:{number}: not valid CSV ({error}); {remedy}") from None
    if is_from_r and len(records[0][1]) < len(records[-1][1]):
        records[0][1].insert(0, "row")  # R's names of rows have no header
    called = COLUMNS
    if columns:
        called = dict(zip(columns.lower().split(","), (wanted or "label", "text", "text2")))
        missing = called.keys() - {cell.lower() for cell in records[0][1]}
        called = called if wanted else COLUMNS | called
        if missing and wanted:
            raise UserError(f"--columns {columns}: the header of {path} has no {missing.pop()}")
    names, header = ["label", "text"], [called.get(cell.lower(), cell) for cell in records[0][1]]
    if is_header := "text" in header:
        at = {name: i for i, name in enumerate(header, start=1)}
        told = dict(label="labels", score="scores", text="texts", text2="second texts")
        where = [f"{told[name]} are column {at[name]}" for name in told if name in at]
        print(f"note: {path}: the first row is a header: {', '.join(where)}", file=sys.stderr)
        names = header
    if wanted and wanted not in names and "score" not in names:
        raise UserError(f"{path}: the first row names no {wanted}s; call their column {wanted}")
    rows = []
    for number, cells in records[is_header:]:
        if len(cells) != (n := len(names)):
            remedy = f"complete the line, or remove {separator!r} from its text"
            raise UserError(f"{path}:{number}: {len(cells)} columns, expected {n}; {remedy}")
        row = dict(zip(names, cells))
        label = row.get("label")
        if "" in (label, row["text"], row.get("text2")):
            raise UserError(f"{path}:{number}: empty label or text; complete the line or remove it")
        if labels is not None and label not in (None, *labels):
            expected = f"expected one of {', '.join(sorted(labels))}; correct it"
            raise UserError(f"{path}:{number}: unknown label {label[:40]!r}, {expected}")
        if "text2" in row:
            row["text"] += corpus.PAIR + row.pop("text2")
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
        "prior", which is twice the log of the class shares, or "weights": PyTorch divides by those
        of the batch, so a small batch is balanced less (in batches of 16, a tenth counts 43%)."""
        weights, prior = torch.ones(n_class), torch.zeros(n_class)
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
    if labels.is_floating_point():
        return F.mse_loss(logits[:, 0], labels.to(logits.device))
    weights, prior = (part.to(logits.device) for part in balance)
    return F.cross_entropy(logits + prior, labels.to(logits.device), weights)


def accuracies(logits, sets, seen):
    """Return {"accuracy/SET": share, ...} of logits {set: (N, n_class)} and sets {set: Rows}, also
    of the test rows that are seen, (N,) bool: in the training files, and of the others. Of scores,
    {"pearson/SET": correlation, ...}."""
    if sets["test"].labels.is_floating_point():
        pairs = {n: torch.stack([logits[n][:, 0], rows.labels]) for n, rows in sets.items()}
        found = {n: pair.corrcoef()[0, 1] for n, pair in pairs.items()}
        return {f"pearson/{n}": r.nan_to_num().item() for n, r in found.items()}  # NaN: constant
    right = {name: (logits[name].argmax(-1) == rows.labels).double() for name, rows in sets.items()}
    if seen.any():
        right |= {"seen": right["test"][seen], "unseen": right["test"][~seen]}
    return {f"accuracy/{name}": hits.mean().item() for name, hits in right.items() if len(hits)}


def by_seen(numbers):
    """Return the accuracy on seen and unseen test rows in words, if there are both."""
    found = [numbers.get(f"accuracy/{part}") for part in ("seen", "unseen")]
    return "" if None in found else " (seen {:.1%}, unseen {:.1%})".format(*found)
