"""Read labelled rows from a table: a .csv, or lines of tab-separated cells.

A table is read in steps: find how its cells are separated and quoted, parse its records, name its
columns by a header if it has one, and check each row.
"""

import csv
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from data.corpus import PAIR, Corpus, sentences_of
from data.files import UserError, read_lines
from data.leaks import hold_out

# What a column holds -> its usual names, in lower case
NAMES = {
    "label": "label labels class category target sentiment speaker author gold_label "
    "entailment_judgment",
    "text": "text texts sentence content message review tweet document text1 sentence1 sentence_a "
    "question1 premise",
    "text2": "text2 sentence2 sentence_b question2 hypothesis",  # second sentence of a pair
    "score": "score similarity relatedness_score",
}


def invert(names):
    """Return {name of a column: what it holds}."""
    roles = {}
    for role, words in names.items():
        for name in words.split():
            roles[name] = role
    return roles


ROLES = invert(NAMES)


@dataclass
class Form:
    """How the cells of a table are written."""

    separator: str = "\t"
    quoting: int = csv.QUOTE_NONE
    is_from_r: bool = False  # R's write.table quotes all cells, and escapes quotes in them


def read_table(path, columns="", target="class"):
    """Return the Corpus of a .tsv or .csv, with a fifth of the distinct texts of each class as test
    rows. Raises UserError as `read_rows`, and without two classes of several rows."""
    wanted = "label" if target == "class" else "score"
    rows = read_rows(path, None, wanted, columns)
    rows, test_rows = hold_out(
        rows, 0.2, key=lambda row: row["text"], kind=lambda row: row.get("label", "")
    )
    return make_corpus(path, path.stem, rows, test_rows)


def make_corpus(path, name, rows, test_rows, valid_rows=()):
    """Return the Corpus of rows of `read_rows`. path: of the file to name in messages. Raises
    UserError for labels that are no classes and, without labels, scores that are no numbers."""
    corpus = Corpus(name)
    parts = {"rows": rows, "valid_rows": valid_rows, "test_rows": test_rows}
    has_labels = "label" in rows[0]
    try:
        corpus.scored = {part: score_rows(part_rows) for part, part_rows in parts.items()}
    except (KeyError, ValueError) as error:
        if not has_labels:
            raise UserError(f"{path}: not all numbers ({error}); correct the scores") from None
    if has_labels:
        corpus.classes = find_classes(path, [*rows, *valid_rows, *test_rows])
        corpus.rows = class_rows(rows, corpus.classes)
        corpus.valid_rows = class_rows(valid_rows, corpus.classes)
        corpus.test_rows = class_rows(test_rows, corpus.classes)
    corpus.lines = sentences_of(corpus.rows or corpus.scored["rows"])
    return corpus


def score_rows(rows):
    """Return [(score, text), ...]. Raises KeyError or ValueError for a score that is no number."""
    scored = []
    for row in rows:
        score = float(row["score"])
        if not math.isfinite(score):
            raise ValueError("nan or inf")
        scored.append((score, row["text"]))
    return scored


def class_rows(rows, classes):
    """Return [(index in classes, text), ...]."""
    return [(classes.index(row["label"]), row["text"]) for row in rows]


def find_classes(path, rows):
    """Return the sorted labels of the rows. Raises UserError for one label, and for more than a
    quarter as many as rows: then the column of labels is another one."""
    classes = sorted({row["label"] for row in rows})
    if all(map(str.isdecimal, classes)):
        classes.sort(key=len)  # 9 before 10
    if not 2 <= len(classes) <= max(2, len(rows) // 4):
        remedy = "expected two of several rows each; check which column holds the labels"
        raise UserError(f"{path}: {len(classes)} labels in {len(rows)} rows, {remedy}")
    return classes


def read_rows(path, labels=None, wanted="label", columns=""):
    """Return [{"label": ..., "text": ..., another name: ...}, ...] of a .csv, or of any other file
    as tab-separated lines. A pair becomes one text.

    The columns are those that a header names, see NAMES, or the first two. columns: their names if
    others, "label,a,b". Raises UserError naming a line without label or text, or with a label that
    is not among `labels`, and without the column `wanted`: "label", "score", or "" for none."""
    lines = read_lines(path)
    form = find_form(path, lines)
    records = parse(path, lines, form)
    _, first_cells = records[0]
    _, last_cells = records[-1]
    if form.is_from_r and len(first_cells) < len(last_cells):
        first_cells.insert(0, "row")  # R writes no header for the names of rows
    roles = choose_roles(path, first_cells, wanted, columns)
    header = [roles.get(cell.lower(), cell) for cell in first_cells]
    names = ["label", "text"]
    if "text" in header:
        say_header(path, header)
        names = header
        del records[0]
    if wanted and wanted not in names and "score" not in names:
        raise UserError(f"{path}: the first row names no {wanted}s; call their column {wanted}")
    rows = []
    for number, cells in records:
        if len(cells) != len(names):
            remedy = f"complete the line, or remove {form.separator!r} from its text"
            problem = f"{len(cells)} columns, expected {len(names)}"
            raise UserError(f"{path}:{number}: {problem}; {remedy}")
        row = dict(zip(names, cells))
        check_row(f"{path}:{number}", row, labels)
        if "text2" in row:
            row["text"] += PAIR + row.pop("text2")
        rows.append(row)
    if not rows:
        raise UserError(f"{path}: a header but no rows; add a label and a text per line")
    return rows


def find_form(path, lines):
    """Return the Form of a table. The first comma, semicolon or tab of a .csv separates its cells,
    which may be quoted. Tab-separated cells are quoted only if all in the first line are, as R
    writes them: else a quote is part of the text."""
    first = next(line.strip() for line in lines if line.strip())
    form = Form()
    if Path(path).suffix.lower() == ".csv":
        form.quoting = csv.QUOTE_MINIMAL
        bare = re.sub('"[^"]*"?', "", first)  # without quoted cells
        separators = [letter for letter in bare if letter in ",;\t"]
        form.separator = separators[0] if separators else ","
    if form.separator == "\t" and all(re.fullmatch('".*"', cell) for cell in first.split("\t")):
        form.quoting = csv.QUOTE_MINIMAL
        form.is_from_r = True
    return form


def parse(path, lines, form):
    """Return [(line number, cells), ...] of the lines that are not empty. A record may go over
    several lines, so this is its first one. Raises UserError for a quote that does not end."""
    if form.is_from_r:
        lines = [line.replace('\\"', '""') for line in lines]
    csv.field_size_limit(2**30)  # a text may be long
    reader = csv.reader(
        (line + "\n" for line in lines),
        delimiter=form.separator,
        quoting=form.quoting,
        strict=True,
        skipinitialspace=True,
    )
    records = []
    number = 1
    try:
        for cells in reader:
            if cells:
                records.append((number, [one_line(cell) for cell in cells]))
            number = reader.line_num + 1
    except csv.Error as error:
        remedy = "put quotes around texts that hold separators or quotes, and double these quotes"
        raise UserError(f"{path}:{number}: not valid CSV ({error}); {remedy}") from None
    return records


def one_line(cell):
    """Return a cell as a text on one line, without the [EOS] that separates the sentences of a
    pair."""
    return cell.replace("[EOS]", " ").replace("\n", " ").strip()


def choose_roles(path, cells, wanted, columns):
    """Return {name of a column in lower case: what it holds}, see ROLES. columns: the names of the
    columns `wanted`, text and text2. Raises UserError if the first row, cells, lacks one of them.
    If no column is wanted, usual names count too."""
    if not columns:
        return ROLES
    chosen = dict(zip(columns.lower().split(","), (wanted or "label", "text", "text2")))
    if not wanted:
        return ROLES | chosen
    header = [cell.lower() for cell in cells]
    for name in chosen:
        if name not in header:
            raise UserError(f"--columns {columns}: the header of {path} has no {name}")
    return chosen


def say_header(path, header):
    """Print which columns are read."""
    place = {name: number for number, name in enumerate(header, start=1)}
    words = dict(label="labels", score="scores", text="texts", text2="second texts")
    parts = [f"{words[name]} are column {place[name]}" for name in words if name in place]
    print(f"note: {path}: the first row is a header: {', '.join(parts)}", file=sys.stderr)


def check_row(where, row, labels):
    """Raise UserError if a row has an empty label or text, or a label not among `labels`. where:
    its file and line."""
    label = row.get("label")
    if "" in (label, row["text"], row.get("text2")):
        raise UserError(f"{where}: empty label or text; complete the line or remove it")
    if labels is not None and label not in (None, *labels):
        expected = f"expected one of {', '.join(sorted(labels))}; correct it"
        raise UserError(f"{where}: unknown label {label[:40]!r}, {expected}")
