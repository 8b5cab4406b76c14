"""Predictions of a classifier: the table read back, scores counted by hand, the worst errors."""

import csv

import pytest
import torch

from data.files import DataError
from lab.predictions import (
    FILE,
    Predictions,
    average_predictions,
    read_predictions,
    write_predictions,
)

# True classes a a a a b b c, predicted a a a b b c b; d is neither.
ROWS = [(0, "one"), (0, "two"), (0, "three"), (0, "four"), (1, "five"), (1, "six"), (2, "seven")]
GIVEN = [0, 0, 0, 1, 1, 2, 1]
SURE = [0.9, 0.8, 0.7, 0.6, 0.9, 0.95, 0.7]


def predictions(rows=ROWS, given=GIVEN, sure=SURE, classes=("a", "b", "c", "d")):
    shares = torch.tensor(
        [
            [p if i == answer else (1 - p) / (len(classes) - 1) for i in range(len(classes))]
            for answer, p in zip(given, sure)
        ]
    )
    seen = torch.arange(len(rows)) % 2 == 0
    return Predictions(rows, list(classes), shares.log(), seen)


def read_csv(path):
    """The rows of the table, as any program reads a tab-separated file."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, dialect="excel-tab"))


def test_the_table_has_a_line_per_row_in_order(tmp_path):
    predictions().write(tmp_path)
    table = read_csv(tmp_path / FILE)
    assert list(table[0]) == ["text", "gold", "predicted", "a", "b", "c", "d", "seen"]
    assert [row["text"] for row in table] == [text for _, text in ROWS]
    assert "".join(row["gold"] for row in table) == "aaaabbc"
    assert "".join(row["predicted"] for row in table) == "aaabbcb"
    assert [float(row[row["predicted"]]) for row in table] == pytest.approx(SURE, abs=1e-6)
    assert [row["seen"] for row in table] == ["yes", "no"] * 3 + ["yes"]
    assert read_predictions(tmp_path)[3] == ("four", "a", "b", 0.6, False)
    assert not list(tmp_path.glob("*.partial"))


def test_any_text_stays_in_its_cell(tmp_path):
    plain = ['"Yes", he said', 'a "quoted" word', "é"]
    texts = [*plain, "two\tcells", "two\nlines\r\nthree\u2028four"]
    folded = [*plain, "two cells", "two lines three four"]
    shares = torch.full((5, 2), 0.5)
    classes = ['the "first"', "second\tclass"]
    write_predictions(tmp_path / FILE, texts, shares, classes, [0] * 5, [True] * 5)
    assert [row["text"] for row in read_csv(tmp_path / FILE)] == folded
    found = [row[:3] for row in read_predictions(tmp_path)]
    assert found == [(text, classes[0], classes[0]) for text in folded]
    assert len((tmp_path / FILE).read_text(encoding="utf-8").splitlines()) == 6


def test_the_average_of_runs_is_that_of_log_probabilities(tmp_path):
    """Two are unsure, one is sure of the other class: it wins by 0.6^2 * 0.01 < 0.4^2 * 0.99."""
    for name, shares in {"a": [0.6, 0.4], "b": [0.6, 0.4], "c": [0.01, 0.99]}.items():
        (tmp_path / name).mkdir()
        write_predictions(tmp_path / name / FILE, ["x"], [shares], ["one", "two"], [0], [True])
    folders = [tmp_path / name for name in "abc"]
    assert average_predictions(folders).predicted.tolist() == [1]
    two = average_predictions(folders[:2])
    assert two.predicted.tolist() == [0]
    assert two.accuracies() == {"accuracy/test": 1.0, "accuracy/seen": 1.0}
    write_predictions(tmp_path / "b" / FILE, ["y"], [[0.6, 0.4]], ["one", "two"], [0], [True])
    with pytest.raises(DataError, match="b: has different test rows from .*a; leave it out"):
        average_predictions(folders)
    table = tmp_path / "a" / FILE
    table.write_text(table.read_text().replace("\tone\tone\t", "\tthree\tone\t"))
    with pytest.raises(DataError, match="a gold label is not among its classes"):
        average_predictions(folders)


def test_texts_without_labels_have_no_gold_and_no_seen(tmp_path):
    write_predictions(tmp_path / "own.tsv", ["mine"], [[0.25, 0.75]], ["gold", "text"])
    assert (tmp_path / "own.tsv").read_text(encoding="utf-8") == (
        "text\tpredicted\tgold\ttext\nmine\ttext\t0.250000\t0.750000\n"
    )


def test_scores_are_those_by_hand():
    found = predictions()
    assert found.confusion == [[3, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    scores = found.scores()
    # a: 3 of 3 predicted, 3 of 4 true. b: 1 of 3 and 1 of 2. c: none. d does not occur.
    assert scores == {
        "macro_f1/test": pytest.approx((6 / 7 + 2 / 5 + 0) / 3),
        **{"precision/a": 1.0, "recall/a": 0.75, "f1/a": pytest.approx(6 / 7)},
        **{"precision/b": pytest.approx(1 / 3), "recall/b": 0.5, "f1/b": pytest.approx(2 / 5)},
        **{"precision/c": 0.0, "recall/c": 0.0, "f1/c": 0.0},
    }
    never = predictions([(0, "x"), (1, "y"), (1, "z")], [0, 0, 0], [0.9] * 3, "ab").scores()
    assert never["f1/b"] == never["precision/b"] == never["recall/b"] == 0
    assert never["macro_f1/test"] == pytest.approx((2 / 4 + 0) / 2)
    absent = predictions([(0, "x"), (0, "y")], [0, 1], [0.9] * 2, "ab").scores()
    assert absent["precision/a"] == 1 and absent["recall/b"] == absent["f1/b"] == 0


def test_scores_are_described_in_aligned_columns():
    *lines, note = predictions().describe_scores()
    assert lines[0].split() == ["class", "precision", "recall", "F1", "rows"]
    assert lines[1].split() == ["a", "100.0%", "75.0%", "85.7%", "4"]
    assert lines[-1].split() == ["macro-F1", "41.9%", "7"]
    assert len(set(map(len, lines))) == 1 and len(lines) == 5
    assert note == "note: no test rows, so no measured recall: d"


def test_the_most_confident_errors_come_first():
    title, header, *lines = predictions().describe_errors(2)
    assert "(2 of 3;" in title and header.split() == ["predicted", "true", "text"]
    assert [line.split() for line in lines] == [
        ["c", "95.0%", "b", "six"],
        ["b", "70.0%", "c", "seven"],
    ]
    long = [(1, "word\n" * 100), (0, "fine")]
    line = predictions(long, [0, 0], [0.8, 0.8], "ab").describe_errors()[-1]
    assert line.endswith(" ...") and len(line) < 100 and line.isprintable()
    right = predictions([(0, "fine")], [0], [0.8], "ab")
    assert right.describe_errors() == ["no errors on the test rows"]


HEADER = b"text\tgold\tpredicted\ta\tseen\n"
NO_SHARE = b"text\tgold\tpredicted\tseen\nx\ta\ta\tyes\n"
OTHER = b"a\tb\tc\td\te\n1\t2\t3\t4\t5\n"


@pytest.mark.parametrize(
    "content", [b"", b"text\tgold\n", HEADER, HEADER + b"x\ta\ta\t1\n", NO_SHARE, OTHER, b"\xff\n"]
)
def test_a_damaged_table_is_named(content, tmp_path):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match=f"{FILE}: not "):
        read_predictions(tmp_path)


def test_a_probability_that_is_no_number_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(HEADER + b"x\ta\ta\tp\tyes\n")
    with pytest.raises(DataError, match=f"{FILE}: a probability in it is not a number"):
        read_predictions(tmp_path)
