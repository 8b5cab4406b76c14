"""Read labelled rows from a table: a .csv, or lines of tab-separated cells.

A table is read in steps: find how its cells are separated and quoted, parse its records, name its
columns by a header if it has one, and check each row.
"""

import csv
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from data.corpus import PAIR, Corpus, sentences_of
from data.files import UserError, read_lines, strip_invisible
from data.leaks import hold_out

# What a column holds -> its usual names, in lower case. Its name here wins over them
NAMES = {
    "label": "labels|class|category|target|sentiment|speaker|author|gold_label|"
    "entailment_judgment|quality|is_duplicate",
    "text": "texts|sentence|content|message|review|tweet|document|text1|sentence1|sentence_a|"
    "question1|premise|#1 string",
    # The second sentence of a pair
    "text2": "sentence2|sentence_b|question2|hypothesis|#2 string",
    "score": "similarity|relatedness_score",
}
QNLI = {"text": "question", "text2": "sentence"}  # a pair only together

# Columns of labels in files (SNLI, MultiNLI, QQP) whose authors left rows without a label or a cell
FLAWED = ("gold_label", "is_duplicate")


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
        remedy = "expected two of several rows each; choose the column with --columns label,text"
        raise UserError(f"{path}: {len(classes)} labels in {len(rows)} rows, {remedy}")
    return classes


def read_rows(path, labels=None, wanted="label", columns=""):
    """Return [{"label": ..., "text": ..., "others": {name: cell}}, ...] of a .csv, or of any other
    file as tab-separated lines; "score" instead of a label, or beside it. A pair becomes one text.

    The columns are those that a header names, see `choose_columns`, or the first two. columns:
    their names if others, "label,a,b". Raises UserError naming a line without label or text, or
    with a label that is not among `labels`, and without the column `wanted`: "label", "score", or
    "" for none."""
    lines = read_lines(path)
    form = find_form(path, lines)
    records = parse(path, lines, form)
    _, first_cells = records[0]
    _, last_cells = records[-1]
    if form.is_from_r and len(first_cells) < len(last_cells):
        first_cells.insert(0, "row")  # R writes no header for the names of rows
    header = [strip_invisible(cell) for cell in first_cells]
    places = choose_columns(path, header, wanted, columns)
    has_header = "text" in places
    if has_header:
        say_columns(path, header, places)
        del records[0]
    else:
        header, places = columns_without_header(path, records)
    if "label" in places and header[places["label"]].lower() in FLAWED:
        records = leave_out_flawed(path, header, places, records)
    if not records:
        raise UserError(f"{path}: a header but no rows; add a label and a text per line")

    rows = []
    for number, cells in records:
        if len(cells) != len(header):
            remedy = f"complete the line, or remove {form.separator!r} from its text"
            if not has_header:
                remedy += "; or name the columns of a header with --columns label,text"
            problem = f"{len(cells)} columns, expected {len(header)}"
            raise UserError(f"{path}:{number}: {problem}; {remedy}")
        row = make_row(header, places, cells)
        check_row(f"{path}:{number}", row, labels)
        if "text2" in row:
            row["text"] += PAIR + row.pop("text2")
        rows.append(row)
    return rows


def leave_out_flawed(path, header, places, records):
    """Return the records with all cells, a text and a label, which SNLI writes as - if none."""
    whole = []
    for number, cells in records:
        if len(cells) != len(header):
            continue
        if {"", "-"}.isdisjoint(cells[place] for place in places.values()):
            whole.append((number, cells))
    n_flawed = len(records) - len(whole)
    if n_flawed:
        note = f"left out {n_flawed:,} rows without a label, a text or all columns"
        print(f"note: {path}: {note}", file=sys.stderr)
    return whole


def make_row(header, places, cells):
    """Return the cells of a row by what they hold, those of other columns as "others" by name."""
    row = {role: cells[place] for role, place in places.items()}
    for role in ("label", "score"):
        if role in row:
            row[role] = strip_invisible(row[role])
    row["others"] = {}
    for place, name in enumerate(header):
        if place not in places.values():
            row["others"][name] = cells[place]
    return row


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


def choose_columns(path, header, wanted, columns):
    """Return {what a column holds: its place in the header}, nothing if the first row, header,
    names no text. columns: the names of the columns `wanted`, text and text2; if no column is
    wanted, usual names count too. Raises UserError for a missing column, and for two that fit."""
    named = parse_names(columns, wanted or "label")
    fits = find_columns(header, named)
    if columns and wanted:
        fits = {role: fits.get(role, []) for role in named}
        for role, name in named.items():
            if not any(header[place].lower() == name for place in fits[role]):
                raise UserError(f"--columns {columns}: the header of {path} has no {name}")
    if not wanted:
        fits.pop("score", None)
    if "text" not in fits:
        return {}
    for role, places in fits.items():
        if len(places) > 1:
            names = " and ".join(header[place] for place in places)
            remedy = "choose with --columns label,text or label,a,b, or rename one"
            raise UserError(f"{path}: the columns {names} both fit {role}; {remedy}")
    places = {role: places[0] for role, places in fits.items()}
    if wanted and not places.keys() & {wanted, "score"}:
        raise UserError(f"{path}: {explain_missing(header, places, wanted)}")
    return places


def parse_names(columns, wanted):
    """Return {what a column holds: its name in lower case} of --columns. Raises UserError."""
    if not columns:
        return {}
    names = [name.strip().lower() for name in columns.split(",")]
    if len(names) not in (2, 3):
        problem = "expected the names of two or three columns, label,text or label,a,b"
        raise UserError(f"--columns {columns}: {problem}")
    return dict(zip((wanted, "text", "text2"), names))


def explain_missing(header, places, wanted):
    """Return that no column is `wanted`, and the --columns to give: those of texts, and the other
    one if there is only one."""
    texts = [header[place] for place in places.values()]
    others = [name for name in header if name not in texts]
    label = others[0] if len(others) == 1 else wanted.upper()
    columns = ",".join([label, *texts])
    return f"no {wanted} among the columns {', '.join(header)}; name them: --columns {columns}"


def find_columns(header, named):
    """Return {what a column holds: the places in the header of the columns that fit}. The column
    `named` wins, {what it holds: its name in lower case}, then one that is called as what it holds,
    then usual names."""
    names = [name.lower() for name in header]
    if "text" not in names and set(QNLI.values()) <= set(names):
        named = QNLI | named
    fits = {}
    taken = set(named.values())
    for role, usual in NAMES.items():
        for choices in ({named.get(role)}, {role} - taken, set(usual.split("|")) - taken):
            places = [place for place, name in enumerate(names) if name in choices]
            if places:
                fits[role] = places
                break
    return fits


def columns_without_header(path, records):
    """Return the header of a table that has none, and `choose_columns` of it: a label and a text,
    or the four columns of CoLA (source, 0 or 1, the source's mark, sentence)."""
    if all(len(cells) == 4 and cells[1] in ("0", "1") for _, cells in records):
        header = ["source", "label", "mark", "text"]
        print(f"note: {path}: read as CoLA: {', '.join(header)}", file=sys.stderr)
        return header, {"label": 1, "text": 3}
    first, *others = Counter(cells[0] for _, cells in records).values()
    if first == 1 and min(others, default=0) > 1:  # a label of its own
        _, cells = records[0]
        remedy = f"if it is a header, give --columns {','.join(cells[:3])}"
        print(f"note: {path}: the first row is read as a row; {remedy:.200}", file=sys.stderr)
    return ["label", "text"], {"label": 0, "text": 1}


def say_columns(path, header, places):
    """Print which columns are read."""
    words = dict(label="labels", score="scores", text="texts", text2="second texts")
    parts = [f"{words[role]} in {header[place]}" for role, place in places.items()]
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
