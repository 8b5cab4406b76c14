"""Labelled rows: .tsv and .csv, with and without a header, in any order of columns."""

from collections import Counter

import pytest

import data
from data.files import UserError
from data.labelled import load_labelled
from data.leaks import split_corpus
from data.tables import read_rows

SENTENCES = [(("ham", "spam")[i % 2], f"message number {i}") for i in range(20)]


def read_pairs(path):
    return [(row["label"], row["text"]) for row in read_rows(path)]


def write(path, header, rows=SENTENCES, line="{}\t{}\n"):
    path.write_text(header + "".join(line.format(*row) for row in rows), encoding="utf-8")
    return path


def test_a_table_is_split_with_all_copies_of_a_text_on_one_side(tmp_path):
    rows = [(label, f"text {number}") for number in range(30) for label in ("label", "10", "9")]
    got = data.load(write(tmp_path / "mine.tsv", "", rows))  # a class "label" is no header
    assert got.classes == ["10", "9", "label"] and len(got.test_rows) == 18  # 6 of 30 texts
    numbers = [(str(i % 11), f"message number {i}") for i in range(44)]
    assert data.load(write(tmp_path / "mine.tsv", "", numbers)).classes == [*map(str, range(11))]
    both = [(got.classes[label], text) for label, text in got.rows + got.test_rows]
    assert not any(got.seen()) and Counter(both) == Counter(rows)


@pytest.mark.parametrize("header, line, used", [
    ("", "{},{}\n", ""),
    ("id,Text,Label\n", '7,"{1}",{0}\n', "labels are column 3, texts are column 2"),
    ("\ufefflabel,text\r\n", "{},{}\r\n", "labels are column 1, texts are column 2"),
    ("\nlabel;text\n", "{};{}\n", "mine.csv: the first row is a header"),
    ("label,text\r", '{}, "{}"\r', ""),  # lines of old Macs, a space before a quote
    ("label\ttext\n", "{}\t{}\n", ""),  # tab-separated, but named .csv
])  # fmt: skip
def test_csv_columns_are_found_and_named(header, line, used, tmp_path, capsys):
    path = write(tmp_path / "mine.csv", header, line=line)
    assert read_pairs(path) == SENTENCES and used in capsys.readouterr().err
    for how in ("full", "clean", "1/3"):
        each = split_corpus(data.load(path), how)[0]
        assert each.texts() == [text for _, text in each.rows]  # also its lines: each once


def test_quoted_fields_hold_separators_quotes_and_line_ends(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('text,label\n"One, ""two""\nand three",a\n"four; five",b\n', encoding="utf-8")
    assert read_pairs(path) == [("a", 'One, "two" and three'), ("b", "four; five")]
    path.write_text(f'"a;b","x, y"\na, " {"long " * 40_000}"\n', encoding="utf-8")
    assert read_pairs(path) == [("a;b", "x, y"), ("a", ("long " * 40_000).strip())]


def test_tab_separated_cells_are_quoted_only_if_the_first_line_is(tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text('0\t"Yes, he said\n1\tno" and "so"\n', encoding="utf-8")
    assert read_pairs(path) == [("0", '"Yes, he said'), ("1", 'no" and "so"')]
    table = '"label"\t"text"\n"1"\t"a"\t"he said \\"no\\""\n"2"\t"b"\t"so, so"\n'  # of R
    path.write_text(table, encoding="utf-8")
    assert read_pairs(path) == [("a", 'he said "no"'), ("b", "so, so")]


def test_one_label_in_several_encodings_is_one_class(tmp_path, capsys):
    path = write(tmp_path / "a.tsv", "\ufeff", [("café", "x\xady"), ("cafe\u0301", "<unk>")])
    path.write_text(path.read_text("utf-8") + path.read_text("utf-8"), encoding="utf-8")
    assert read_pairs(path) == [("café", "xy"), ("café", "[UNK]")] * 2
    assert "a.tsv: 4 lines changed: read in NFC, without U+FEFF" in capsys.readouterr().err


def test_each_class_gives_its_share_of_the_test_rows(tmp_path):
    rows = [("rare" if i % 25 == 0 else "often", f"text {i}") for i in range(500)]
    got = data.load(write(tmp_path / "a.tsv", "", rows))
    assert Counter(got.classes[i] for i, _ in got.test_rows) == {"rare": 4, "often": 96}


@pytest.mark.parametrize("name, text, message", [
    ("a.tsv", "one\n", "a.tsv:1: 1 columns, expected 2; complete the line"),
    ("a.tsv", "label\ttext\n", "a.tsv: a header but no rows"),
    ("a.tsv", "a\tone\n\na\t \n", "a.tsv:3: empty label or text; complete the line or rem"),
    ("a.tsv", "id\ttext\tlabel\n1\ta b\n", "a.tsv:2: 2 columns, expected 3"),
    ("a.csv", "a;one; two\n", "a.csv:1: 3 columns, expected 2; .* remove ';' from its text"),
    ("a.csv", 'a,one\nb,"two\n', "a.csv:2: not valid CSV .*; put quotes around texts"),
    ("a.csv", "id,text\n1,one\n", "a.csv: the first row names no labels; call their column label"),
])  # fmt: skip
def test_a_mistake_names_the_line_and_the_remedy(name, text, message, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        read_rows(tmp_path / name)
    assert "\n" not in str(error.value)


def test_labels_in_the_wrong_column_and_too_few_rows_are_refused(tmp_path):
    with pytest.raises(UserError, match="--data toy-pairs: no labelled rows .*; give a .csv"):
        load_labelled("toy-pairs")
    path = write(tmp_path / "a.tsv", "", [(text, label) for label, text in SENTENCES])
    with pytest.raises(UserError, match="20 labels in 20 rows, expected .*; check which column"):
        load_labelled(path)
