"""Labelled rows: .tsv and .csv, with and without a header, in any order of columns."""

from collections import Counter

import pytest

import data
from data.files import UserError
from data.labelled import load_labelled
from data.leaks import split_corpus
from data.tables import read_rows
from data.tokenizer import encode, token_strings, train_tokenizer

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
    ("id,Text,Label\n", '7,"{1}",{0}\n', "header: labels in Label, texts in Text"),
    ("\ufefflabel,text\r\n", "{},{}\r\n", "header: labels in label, texts in text"),
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


@pytest.mark.parametrize("header, read", [
    ("text,label,author", "bac"), ("author,label,text", "bca"), ("label,text,content", "abc"),
    ("content,text,label", "cba"), ("Sentence,Label,speaker", "bac"),
    ("score,message,class", "cba"),
])  # fmt: skip
def test_the_exact_name_of_a_column_wins_over_usual_ones(header, read, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\na,b,c\n", encoding="utf-8")
    label, text, other = read
    (row,) = read_rows(path)
    names = header.split(",")
    others = {names["abc".index(other)]: other}
    if "score" in names:
        others = {}
    assert (row["label"], row["text"], row["others"]) == (label, text, others)


@pytest.mark.parametrize("header, names", [
    ("sentiment,text,author", "sentiment and author both fit label"),
    ("label,review,content", "review and content both fit text"),
    ("label,text,Label", "label and Label both fit label"),
    ("label,text,text", "text and text both fit text"),
    ("label,premise,sentence2,hypothesis", "sentence2 and hypothesis both fit text2"),
])  # fmt: skip
def test_two_columns_that_fit_are_both_named(header, names, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{'a,' * header.count(',')}b\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"the columns {names}; choose with --columns"):
        read_rows(path)


@pytest.mark.parametrize("header", ["label,gold,text,body", "gold,body,label,text2"])
def test_named_columns_are_read_whatever_the_others_are_called(header, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(header + "\n" + ",".join(f"of {name}" for name in header.split(",")), "utf-8")
    (row,) = read_rows(path, columns="gold, Body")
    assert (row["label"], row["text"]) == ("of gold", "of body") and len(row["others"]) == 2
    (row,) = read_rows(path, wanted="score", columns="gold,body")
    assert row["score"] == "of gold" and "label" not in row
    for columns in "gold", "a,b,c,d":
        with pytest.raises(UserError, match=f"--columns {columns}: expected .* two or three"):
            read_rows(path, columns=columns)
    with pytest.raises(UserError, match="--columns a,b: .* --data toy is no .tsv or .csv"):
        load_labelled("toy", columns="a,b")


def test_a_first_row_with_a_label_of_its_own_may_be_a_header(tmp_path, capsys):
    for header in "stars", "ham":
        read_rows(write(tmp_path / "a.csv", f"{header},comment\n", line="{},{}\n"))
        note = "if it is a header, give --columns stars,comment"
        assert (note in capsys.readouterr().err) == (header == "stars")


PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse".split()
SNLI = ["gold_label", *PARSES, *"sentence1 sentence2 captionID pairID label1 label2".split()]
MNLI = [*"index promptID pairID genre".split(), *PARSES]
MNLI += "sentence1 sentence2 label1 gold_label".split()
QQP = "id qid1 qid2 question1 question2 is_duplicate".split()
STS = "index genre filename year old_index source1 source2 sentence1 sentence2 score".split()


@pytest.mark.parametrize("name, header, line", [
    ("SST-2.tsv", ["sentence", "label"], ["A", "L"]),
    ("MRPC.txt", ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"], "L 1 2 A B".split()),
    ("QQP.tsv", QQP, "7 8 9 A B L".split()),
    ("STS-B.tsv", STS, "7 genre file year 9 none none A B S".split()),
    ("QNLI.tsv", ["index", "question", "sentence", "label"], "7 A B L".split()),
    ("RTE.tsv", ["index", "sentence1", "sentence2", "label"], "7 A B L".split()),
    ("MNLI.tsv", MNLI, "7 8 9n fiction (A) (B) (A) (B) A B other L".split()),
    ("snli_1.0_train.txt", SNLI, ["L", "(A)", "(B)", "(A)", "(B)", "A", "B", "7", "8", "L", ""]),
    ("CoLA.tsv", [], ["gj04", "L", "*", "A"]),
])  # fmt: skip
def test_files_are_read_as_their_authors_ship_them(name, header, line, tmp_path):
    lines = []
    if header:
        lines.append("\t".join(header))
    for i in range(20):
        cells = dict(L=str(i % 2), S=f"{i % 5}.500", A=f'some "text {i}', B=f"other text, {i}")
        lines.append("\t".join(cells.get(cell, cell) for cell in line))
    (tmp_path / name).write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
    got = load_labelled(tmp_path / name, "score" if "S" in line else "class")
    expected = {}
    for i in range(20):
        text = f'some "text {i}'
        if "B" in line:
            text += f" [EOS] other text, {i}"
        expected[text] = i % 2
        if "S" in line:
            expected[text] = i % 5 + 0.5
    assert {text: label for label, text in got.rows + got.test_rows} == expected


def test_rows_without_a_label_or_a_cell_are_left_out_where_authors_left_them(tmp_path, capsys):
    rows = ["a\tb\tneutral", "a\tb\t-", "a\t\tneutral", "a\tneutral", "a\tb\t"]
    for name in "gold_label", "is_duplicate", "label":
        path = tmp_path / f"{name}.tsv"
        path.write_text("\n".join([f"sentence1\tsentence2\t{name}", *rows]), encoding="utf-8")
        if name == "label":
            with pytest.raises(UserError, match="label.tsv:4: empty label or text"):
                read_rows(path)
        else:
            assert [row["text"] for row in read_rows(path)] == ["a [EOS] b"]
            assert f"{name}.tsv: left out 4 rows without" in capsys.readouterr().err


@pytest.mark.parametrize("invisible", ["\u2060", "\u200e", "\xad", "\ufeff", "\u200b", "\u200d"])
def test_labels_and_names_of_columns_have_no_invisible_ends(invisible, tmp_path):
    rows = [(f"{invisible}neg", "a"), (f"neg {invisible}{invisible}", "b"), ("neg", "c")]
    path = write(tmp_path / "a.csv", f"{invisible}label,text{invisible}\n", rows, line="{},{}\n")
    assert read_pairs(path) == [("neg", "a"), ("neg", "b"), ("neg", "c")]


def test_zero_width_spaces_separate_words(tmp_path):
    words = "ខ្ញុំ", "ស្រឡាញ់", "ភាសា"
    path = write(tmp_path / "a.tsv", "", [("a", "\u200b".join(words))])
    (row,) = read_rows(path)
    tokenizer = train_tokenizer("word", [row["text"]])
    assert token_strings(tokenizer, encode(tokenizer, [row["text"]])[0]) == [*words]


@pytest.mark.parametrize("name, text, message", [
    ("a.tsv", "one\n", "a.tsv:1: 1 columns, expected 2; complete the line"),
    ("a.tsv", "label\ttext\n", "a.tsv: a header but no rows"),
    ("a.tsv", "a\tone\n\na\t \n", "a.tsv:3: empty label or text; complete the line or rem"),
    ("a.tsv", "id\ttext\tlabel\n1\ta b\n", "a.tsv:2: 2 columns, expected 3"),
    ("a.csv", "a;one; two\n", "a.csv:1: 3 columns, expected 2; .* remove ';' from its text"),
    ("a.csv", 'a,one\nb,"two\n', "a.csv:2: not valid CSV .*; put quotes around texts"),
    ("a.csv", "id,stars,review\n1,2,a", "columns id, stars, review; .* --columns LABEL,review"),
    ("a.tsv", "a\tb\tc\td\te\n", "a.tsv:1: 5 columns, expected 2; .* with --columns label,text"),
    ("a.csv", "id,text\n1,one\n", "no label among the columns id, text; .*: --columns id,text"),
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
    with pytest.raises(
        UserError, match="20 labels in 20 rows, expected .*; .* --columns label,text"
    ):
        load_labelled(path)
