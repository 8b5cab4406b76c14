"""McNemar's test: its p beside a sum of fractions, and which runs are compared with which."""

from dataclasses import dataclass
from fractions import Fraction
from math import comb

import pytest
import torch

from lab.comparison.mcnemar import compare_pairs, describe, p_value
from lab.predictions import FILE, write_predictions

TEXTS = [f"row {number}" for number in range(12)]


def tail(k, n):
    """The exact probability of at most k heads in n tosses of a fair coin."""
    return sum(Fraction(comb(n, heads), 2**n) for heads in range(k + 1))


@pytest.mark.parametrize("first, second", [(25, 16), (0, 5), (1, 0), (7, 7), (40, 12), (300, 240)])
def test_p_is_the_exact_sum_of_both_tails(first, second):
    n, less = first + second, min(first, second)
    both = tail(less, n) + 1 - tail(n - less - 1, n) if first != second else Fraction(1)
    assert p_value(first, second) == p_value(second, first) == pytest.approx(float(both), rel=1e-12)


def test_p_of_a_published_table_and_of_many_rows():
    assert p_value(16, 6) == pytest.approx(0.0525, abs=5e-5)  # binom.test(6, 22) in R
    assert p_value(0, 0) == 1
    assert 0 <= p_value(9_000, 11_000) < 1e-40


@dataclass
class Entry:
    label: str
    folders: dict


@pytest.fixture
def entry(tmp_path):
    """entry("a", {"0": "110..."}) has a run per seed, right on the rows marked by 1."""

    def make(label, seeds, texts=TEXTS):
        folders = {}
        for seed, right in seeds.items():
            folders[seed] = tmp_path / f"{label}-{seed}"
            folders[seed].mkdir()
            shares = torch.tensor([[0.9, 0.1] if mark == "1" else [0.2, 0.8] for mark in right])
            gold = [0] * len(texts)
            write_predictions(folders[seed] / FILE, texts, shares, ["x", "y"], gold, gold)
        return Entry(label, folders)

    return make


def test_runs_of_one_seed_are_compared_row_by_row(entry):
    a = entry("a", {"0": "111111111111", "1": "110000000000"})
    b = entry("b", {"0": "000000000011", "1": "110000000001", "2": "111111111111"})
    (test,), notes = compare_pairs([a, b, Entry("best possible", {})])
    assert notes == [] and (test["first"], test["second"]) == ("a", "b")
    assert [r["seed"] for r in test["results"]] == ["0", "1"]
    assert [(r["only_first"], r["only_second"]) for r in test["results"]] == [(10, 0), (0, 1)]
    assert test["results"][0]["p"] == pytest.approx(2 / 2**10) and test["results"][1]["p"] == 1
    about, _, line = describe([test]).splitlines()
    assert about.endswith("without a correction for the number of pairs.")
    assert line == (
        "- a and b differ on 10 rows (10 to 0), p = 0.002; 1 row (0 to 1), p = 1.000: "
        "significant for 1 of the 2 seeds 0, 1"
    )


def test_opposite_differences_are_told(entry):
    a = entry("a", {"0": "111111111111", "1": "000000000000"})
    b = entry("b", {"0": "000000000000", "1": "111111111111"})
    assert describe(compare_pairs([a, b])[0]).endswith(
        "12 rows (12 to 0), p < 0.001; 12 rows (0 to 12), p < 0.001: "
        "significant for 2 of the 2 seeds 0, 1, in opposite directions"
    )


def test_what_is_not_tested_is_noted(entry):
    marks = "1" * 12
    a, other = entry("a", {"0": marks}), entry("other", {"0": marks}, TEXTS[::-1])
    seed, old = entry("seed", {"5": marks}), entry("old", {"0": marks})
    (old.folders["0"] / FILE).unlink()
    tests, notes = compare_pairs([a, other, seed])
    assert tests == [] and notes == [
        "not tested, different test rows: a and other",
        "not tested, no seed in common: a and seed; other and seed",
    ]
    tests, (note,) = compare_pairs([a, old])
    assert tests == [] and str(old.folders["0"]) in note and "repeat these runs" in note
    assert compare_pairs([old]) == ([], []) and describe([]) == ""
