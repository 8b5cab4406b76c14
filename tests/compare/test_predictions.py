"""Predictions of a classifier: the table read back, and scores counted by hand."""

import csv

import pytest
import torch

from data.tables import read_rows
from lab.predictions import Predictions, read_predictions, write_predictions

FILE = "predictions.tsv"

# True classes a a a a b b c, predicted a a a b b c b; d is neither
ROWS = [(0, "one"), (0, "two"), (0, "three"), (0, "four"), (1, "five"), (1, "six"), (2, "seven")]
GIVEN = [0, 0, 0, 1, 1, 2, 1]
SURE = [0.9, 0.8, 0.7, 0.6, 0.9, 0.95, 0.7]


def predictions():
    shares = [[p if i == k else (1 - p) / 3 for i in range(4)] for k, p in zip(GIVEN, SURE)]
    return Predictions(ROWS, list("abcd"), torch.tensor(shares).log(), torch.arange(7) % 2 == 0)


def test_the_table_has_a_line_per_row_in_order(tmp_path):
    predictions().write(tmp_path)
    with open(tmp_path / FILE, encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file, dialect="excel-tab"))
    assert list(table[0]) == ["text", "gold", "predicted", "a", "b", "c", "d", "seen"]
    assert [row["text"] for row in table] == [text for _, text in ROWS]
    assert "".join(row["gold"] for row in table) == "aaaabbc"
    assert "".join(row["predicted"] for row in table) == "aaabbcb"
    assert [float(row[row["predicted"]]) for row in table] == pytest.approx(SURE, abs=1e-6)
    assert [row["seen"] for row in table] == ["yes", "no"] * 3 + ["yes"]
    _, *columns = read_predictions(tmp_path)
    assert [column[3] for column in columns[:3]] == ["four", "a", "b"]


def test_any_text_stays_in_its_cell(tmp_path):
    plain = ['"Yes", he said', 'a "quoted" word', "é", "x" * 200_000]
    texts = [*plain, "two\tcells", "two\nlines\r\nthree\u2028four"]
    classes = ['the "first"', "second\tclass"]
    shares = torch.full((6, 2), 0.5)
    write_predictions(tmp_path / FILE, texts, shares, classes, [0] * 6, [True] * 6)
    _, read, gold, *_ = read_predictions(tmp_path)
    assert read == (*plain, "two cells", "two lines three four") and set(gold) == {classes[0]}
    assert len((tmp_path / FILE).read_text(encoding="utf-8").splitlines()) == 7
    # Without labels there is no gold and no seen
    write_predictions(tmp_path / "own.tsv", ["mine"], [[0.25, 0.75]], ["gold", "text"])
    written = (tmp_path / "own.tsv").read_text(encoding="utf-8")
    header = '"text"\t"predicted"\t"gold"\t"text"'
    assert written == f"{header}\nmine\ttext\t0.250000\t0.750000\n"
    # As a file of rows it has the same texts
    assert [row["text"] for row in read_rows(tmp_path / FILE, wanted="")] == [*read]


def test_scores_are_those_by_hand():
    found = predictions()
    assert found.confusion == [[3, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    # a: 3 of 3 predicted, 3 of 4 true. b: 1 of 3 and 1 of 2. c: none. d does not occur.
    assert found.scores() == {
        "macro_f1/test": pytest.approx((6 / 7 + 2 / 5 + 0) / 3),
        **{"precision/a": 1.0, "recall/a": 0.75, "f1/a": pytest.approx(6 / 7)},
        **{"precision/b": pytest.approx(1 / 3), "recall/b": 0.5, "f1/b": pytest.approx(2 / 5)},
        **{"precision/c": 0.0, "recall/c": 0.0, "f1/c": 0.0},
    }
    shares = found.accuracies()  # seen: one, three, five, seven, of which seven is wrong
    assert shares == {"accuracy/test": 4 / 7, "accuracy/seen": 3 / 4, "accuracy/unseen": 1 / 3}
    header, *lines = [line.split() for line in found.describe()]
    assert header == ["class", "precision", "recall", "f1", "rows"]
    assert lines[0] == ["a", "100.0%", "75.0%", "85.7%", "4"]
    assert lines[3:5] == [["d", *"–––", "0"], ["macro-F1", "41.9%", "7"]]
    assert found.describe()[-1].endswith(
        "fewer than 10 test rows, so scores are uncertain: a, b, c, d"
    )
    many = Predictions([(0, "x")] * 10, ["a"], torch.zeros(10, 1), torch.zeros(10).bool())
    assert "note" not in many.describe()[-1]
