"""Labelled rows: .tsv and .csv, with and without a header, in any order of columns."""

import pytest

import data
from data.corpora.rows import read_rows
from data.files import DataError
from data.labelled import load_labelled

SENTENCES = [(("ham", "spam")[i % 2], f"message number {i}") for i in range(20)]


def write(path, header, rows=SENTENCES, line="{}\t{}\n"):
    text = header + "".join(line.format(*row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["label\ttext\n", "Label \t Sentence\n", "author\tx y z\n"])
def test_a_header_is_noted_and_is_no_class(header, tmp_path, capsys):
    corpus = data.load(write(tmp_path / "mine.tsv", header))
    assert corpus.classes == ["ham", "spam"]
    assert len(corpus.rows) + len(corpus.test_rows) == 20
    note = capsys.readouterr().err
    assert note.startswith("note: ") and "mine.tsv: the first row is a header" in note
    assert note.count("\n") == 1


def test_numbered_classes_reveal_a_header_of_any_name(tmp_path, capsys):
    rows = [(str(i % 3), text) for i, (_, text) in enumerate(SENTENCES)]
    assert read_rows(write(tmp_path / "mine.tsv", "president\tutterance\n", rows)) == rows
    assert "is a header" in capsys.readouterr().err


def test_numbered_classes_are_in_the_order_of_numbers(tmp_path):
    rows = [(str(i % 11), f"message number {i}") for i in range(44)]
    corpus = data.load(write(tmp_path / "mine.tsv", "", rows))
    assert corpus.classes == [str(i) for i in range(11)]


NAMED = ("label", "more of the class label")


@pytest.mark.parametrize(
    "rows",
    [
        [("other", "message"), NAMED, *SENTENCES],  # a class of one row
        [("label", "one of this class"), NAMED, *SENTENCES],
        [("0", "text"), NAMED, *SENTENCES],
        [("good", "nice")],
        [("other", "two words"), ("0", "one"), ("1", "two")],
    ],
)
def test_a_row_that_is_no_header_is_kept(rows, tmp_path, capsys):
    assert read_rows(write(tmp_path / "mine.tsv", "", rows)) == rows
    assert capsys.readouterr().err == ""


def test_a_header_in_the_assignments_folder(own_corpus, capsys):
    expected = data.load(own_corpus)
    for n, name in enumerate(("train", "test"), start=1):
        path = own_corpus / f"{name}_CLS.tsv"
        path.write_text("label\ttext\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
        assert data.load(own_corpus) == expected
        assert capsys.readouterr().err.count("is a header") == n


# ---------------------------------------------------------------------------- .csv


@pytest.mark.parametrize(
    "header, line, used",
    [
        ("", "{},{}\n", "no header; labels are column 1, texts column 2"),
        ("label,text\n", "{},{}\n", "labels are column 1 ('label'), texts column 2 ('text')"),
        ("id,Text,Label\n", '7,"{1}",{0}\n', "column 3 ('Label'), texts column 2 ('Text')"),
        ("category,body of it\n", "{},{}\n", "column 1 ('category'), texts column 2"),
        ("\ufefflabel,text\r\n", "{},{}\r\n", "column 1 ('label')"),
    ],
)
def test_csv_columns_are_found_and_named(header, line, used, tmp_path, capsys):
    assert read_rows(write(tmp_path / "mine.csv", header, line=line)) == SENTENCES
    assert used in capsys.readouterr().err


def test_quoted_fields_hold_commas_quotes_and_line_ends(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('text,label\n"One, ""two""\nand three",a\nfour,b\n', encoding="utf-8")
    assert read_rows(path) == [("a", 'One, "two" and three'), ("b", "four")]


def test_a_csv_file_is_a_corpus(tmp_path):
    tsv = data.load(write(tmp_path / "mine.tsv", ""))
    assert data.load(write(tmp_path / "mine.csv", "label,text\n", line="{},{}\n")) == tsv
    for corpus in (tsv, tsv.split("clean")[0], tsv.split("1/3")[0]):
        assert corpus.texts() == [text for _, text in corpus.rows]  # also its lines: each once


# ---------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.tsv", "one\n", "a.tsv:1: no tab, expected a label, a tab and a text"),
        ("a.tsv", "label\ttext\n", "a.tsv: a header but no rows"),
        ("a.tsv", "a\tone\n\ttwo\n", "a.tsv:2: empty label"),
        ("a.tsv", "a\tone\n\nb\ttwo\n", "a.tsv:2: no tab"),
        ("a.tsv", "a\tone\na\t \n", "a.tsv:2: empty text; complete the line or remove it"),
        ("a.tsv", "id\ttext\tlabel\n1\ta b\n", "a.tsv:2: 2 columns, expected 3"),
        ("a.tsv", "a\tone\ttwo\n", "a.tsv:1: 3 columns, expected 2; remove tabs from texts, or"),
        ("a.csv", "one\n", "a.csv:1: 1 column, expected a label and a text"),
        ("a.csv", "a\tone\n", "separated by a comma; rename the file to .tsv"),
        ("a.csv", "a,one, two\n", "a.csv:1: 3 columns, expected 2; quote texts that hold a comma"),
        ("a.csv", "1,a,one two\n", "texts that hold a comma, or name the columns label and text"),
        ("a.csv", "a;one; two\n", "a.csv:1: 3 columns, expected 2; quote texts that hold a semi"),
        ("a.csv", "a;one\nb\n", "a.csv:2: 1 column, expected a label and a text separated by a s"),
        ("a.csv", 'a,"one\n', "a.csv:1: not valid CSV"),
        ("a.csv", 'a,"one"two\n', "a.csv:1: not valid CSV"),
        ("a.csv", "", "a.csv: the file is empty"),
    ],
)
def test_a_mistake_names_the_line_and_the_remedy(name, text, message, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        read_rows(tmp_path / name)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_rows_of_one_text_are_too_few_to_test_on(tmp_path):
    path = write(tmp_path / "a.tsv", "", [("a", "one"), ("b", "one")] * 4)
    with pytest.raises(DataError, match="8 labelled rows are too few to test on; give more"):
        load_labelled(path)


def test_a_header_that_is_there_is_not_asked_for(tmp_path):
    path = write(tmp_path / "mine.csv", "label,text\n", [("ham", "one, two")], "{},{}\n")
    with pytest.raises(DataError, match="quote texts that hold a comma$"):
        read_rows(path)


@pytest.mark.parametrize("header", ["", "label;text\n", "\n"])
@pytest.mark.parametrize("text", ["plain", "one, comma", "two, of, them", '"in; quotes,\ntoo"'])
def test_semicolons_between_columns_are_read(header, text, tmp_path):
    path = write(tmp_path / "mine.csv", header, [("ham", text), ("spam", text)], "{};{}\n")
    read = text.strip('"').replace("\n", " ")
    assert read_rows(path) == [("ham", read), ("spam", read)]


def test_a_semicolon_after_a_comma_separates_no_cells(tmp_path):
    rows = [("ham", "one; two"), ("spam", "three")]
    assert read_rows(write(tmp_path / "mine.csv", "", rows, "{},{}\n")) == rows


@pytest.mark.parametrize("name, tab", [("mine.csv", ","), ("mine.tsv", "\t")])
def test_a_header_of_unknown_names_is_suspected(name, tab, tmp_path, capsys):
    read_rows(write(tmp_path / name, f"Bewertung{tab}Satz\n", line=f"{{}}{tab}{{}}\n"))
    assert "if row 1 ('Bewertung') is a header, name its columns" in capsys.readouterr().err


def test_a_named_corpus_without_rows_is_refused_before_it_is_downloaded(monkeypatch):
    monkeypatch.setitem(data.NAMED, "wikitext2", lambda: pytest.fail("downloads"))
    for name in data.UNLABELLED:
        with pytest.raises(DataError, match=f"--data {name}: holds no labelled rows"):
            load_labelled(name)
    assert not any(data.load(name).rows for name in ("pydocs", "toy-pairs"))
    assert load_labelled("toy").rows
