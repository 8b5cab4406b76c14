"""Labelled sentences from a .tsv of `label<TAB>text` lines or a .csv, with or without a header."""

import csv
import sys
from collections import Counter
from pathlib import Path

from data.corpus import Corpus, hold_out
from data.files import DataError, printable, read_lines

LABEL_NAMES = frozenset("label labels class category target sentiment speaker author".split())
TEXT_NAMES = frozenset("text texts sentence content message review tweet document".split())
SEPARATORS = {"\t": "tab", ",": "comma", ";": "semicolon"}
TEST_SHARE = 0.2


def load(path):
    """Return the Corpus of one file; a fifth of its distinct texts become test rows.

    Raises DataError as `read_rows` does, and unless there are at least two classes of several rows.
    """
    labelled = read_rows(path)
    classes = sorted({label for label, _ in labelled})
    if all(map(str.isdecimal, classes)):
        classes.sort(key=len)  # 9 before 10
    if not 2 <= len(classes) <= max(2, len(labelled) // 4):
        raise DataError(
            f"{path}: expected at least two classes of several rows each, found {len(classes)} in "
            f"{len(labelled)} rows; check which column holds the labels, or read sentence pairs "
            "with beyond.train_tlm or beyond.train_seq2seq --task translate"
        )
    rows = [(classes.index(label), text) for label, text in labelled]
    rows, test_rows = hold_out(rows, TEST_SHARE, seed=0, key=lambda row: row[1])
    return Corpus(path.stem, [text for _, text in rows], {}, rows, test_rows, classes)


def read_rows(path, labels=None):
    """Return [(label, text), ...] of a .csv, or of any other file as tab-separated lines.

    A header is skipped and may name the columns in any order; a note on stderr says so. Without a
    header there are two columns, the label first. Raises DataError naming the line of a row without
    a label or a text, and of a label that is not among `labels`, if these are given.
    """
    path = Path(path)
    is_csv = path.suffix.lower() == ".csv"
    if is_csv:
        separator, records = read_csv(path)
    else:
        lines = enumerate(read_lines(path), start=1)
        separator, records = "\t", [(number, line.split("\t")) for number, line in lines]
    header, label_at, text_at = find_columns([cells for _, cells in records])
    note_columns(path, header, label_at, text_at, is_csv, records)
    if header and len(records) == 1:
        raise DataError(f"{path}: a header but no rows; add a label and a text per line")

    width, rows = len(header) if header else 2, []
    for number, cells in records[bool(header) :]:
        check_width(f"{path}:{number}", cells, width, separator, header)
        label, text = cells[label_at].strip(), cells[text_at].strip()
        if not label or not text:
            raise DataError(
                f"{path}:{number}: empty {'text' if label else 'label'}; "
                "complete the line or remove it"
            )
        if labels is not None and label not in labels:
            raise DataError(
                f"{path}:{number}: unknown label {label[:40]!r}, "
                f"expected one of {', '.join(sorted(labels))}; correct it"
            )
        rows.append((label, text))
    return rows


def read_csv(path):
    """Return the separator and [(number of the first line, cells), ...] of a .csv.

    It is a semicolon, as in spreadsheets of some languages, if the first line has one before any
    comma. Quoted cells may hold separators, quotes and line ends; a line end becomes a space.
    """
    lines = read_lines(path)
    first = next(filter(None, lines))
    separator = ";" if ";" in first.partition(",")[0] else ","
    reader = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    records, number = [], 1
    try:
        for cells in reader:
            if cells:  # an empty line gives none
                records.append((number, [" ".join(cell.splitlines()) for cell in cells]))
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{number}: not valid CSV ({error}); put quotes around texts that hold "
            f"{SEPARATORS[separator]}s or quotes, and double the quotes in them"
        ) from None
    return separator, records


def find_columns(records):
    """Return (header or None, column of the labels, column of the texts).

    The first row is a header if it names both columns. With two columns, it is also one if its
    first cell is a name for labels and no label of another row, or if all other labels are numbers
    and its second cell is one word.
    """
    header = records[0]
    names = [cell.strip().lower() for cell in header]
    label_at = [i for i, name in enumerate(names) if name in LABEL_NAMES]
    text_at = [i for i, name in enumerate(names) if name in TEXT_NAMES]
    if label_at and text_at:
        return header, label_at[0], text_at[0]

    labels = {cells[0].strip() for cells in records[1:]}
    names_labels = names[0] in LABEL_NAMES and header[0].strip() not in labels
    heads_numbers = (
        not names[0].isdecimal()
        and all(label.isdecimal() for label in labels)
        and len(header[-1].split()) == 1
    )
    if len(header) == 2 and names[0] and labels and (names_labels or heads_numbers):
        return header, 0, 1
    return None, 0, 1


def note_columns(path, header, label_at, text_at, is_csv, records):
    """Print on stderr which columns are read, unless it is a plain `label<TAB>text` file."""
    if header:
        names = header[label_at].strip(), header[text_at].strip()
        note = (
            f"the first row is a header: labels are column {label_at + 1} ({names[0]!r}), "
            f"texts column {text_at + 1} ({names[1]!r})"
        )
    else:
        first, *others = [cells[0].strip() for _, cells in records]
        suspect = first not in others and (is_csv or others and 1 not in Counter(others).values())
        if not (is_csv or suspect):
            return
        note = "no header; labels are column 1, texts column 2"
        if suspect:
            note += f"; if row 1 ({first!r}) is a header, name its columns label and text"
    print(printable(f"note: {path}: {note}"), file=sys.stderr)


def check_width(where, cells, width, separator, header):
    """Raise DataError, which begins with `where`, for a row of too few or too many columns."""
    name = SEPARATORS[separator]
    if len(cells) == 1 and separator == "\t":
        raise DataError(f"{where}: no tab, expected a label, a tab and a text; complete the line")
    if len(cells) == 1:
        remedy = "rename the file to .tsv" if "\t" in cells[0] else "complete the line"
        expected = f"a label and a text separated by a {name}"
        raise DataError(f"{where}: 1 column, expected {expected}; {remedy}")
    if len(cells) != width:
        remedy = "complete the line"
        if len(cells) > width:
            tab = name == "tab"
            remedy = "remove tabs from texts" if tab else f"quote texts that hold a {name}"
            remedy += "" if header else ", or name the columns label and text in the first row"
        raise DataError(f"{where}: {len(cells)} columns, expected {width}; {remedy}")
