"""Paired t-tests over seeds: known quantiles, and a comparison by hand."""

from types import SimpleNamespace

import pytest

from lab.comparison.paired import compare_pairs, describe, p_value

# Two-sided 5% and 1% points of Student's t, from any table
POINTS = {1: (12.706, 63.657), 2: (4.3027, 9.9248), 3: (3.1824, 5.8409), 4: (2.7764, 4.6041)}
POINTS |= {5: (2.5706, 4.0321), 10: (2.2281, 3.1693), 29: (2.0452, 2.7564), 30: (2.0423, 2.75)}


@pytest.mark.parametrize("n", POINTS)
def test_p_at_the_points_of_the_table(n):
    for t, p in zip(POINTS[n], (0.05, 0.01)):
        assert p_value(t, n) == p_value(-t, n) == pytest.approx(p, abs=2e-5)
    assert p_value(0, n) == pytest.approx(1)


def configuration(label, perplexities):
    others = {"perplexity/a@64": 1.0, "perplexity/train": 1.0}  # which do not count
    runs = [
        SimpleNamespace(seed=seed, numbers={"perplexity/a": p} | others, flags={})
        for seed, p in perplexities.items()
    ]
    return SimpleNamespace(label=label, runs=runs)


def test_seeds_are_paired():
    best = configuration("best", {"0": 100.0, "1": 200.0, "2": 300.0})
    next_best = configuration("next", {"2": 306.0, "0": 101.0, "1": 203.0})
    alone = configuration("alone", {"7": 183.0})  # between them
    tests, notes = compare_pairs([alone, next_best, best])
    assert notes == ["not tested, a single seed: alone; train with more seeds"]
    (test,) = tests
    assert (test["better"], test["worse"], test["seeds"]) == ("best", "next", 3)
    assert test["percent"] == pytest.approx(1.5, abs=0.01)
    assert test["deviation"] == pytest.approx(0.5)  # of 1.0, 1.5 and 2.0%
    assert test["p"] == pytest.approx(p_value(0.01488 / (0.00492 / 3**0.5), 2), abs=1e-3)
    assert "next is 1.5 ± 0.5% above best over 3 seeds, p = 0.03" in describe(tests)
    assert compare_pairs([alone]) == ([], []) and describe([]) == ""


def test_shared_seeds_decide_and_may_differ_all_alike():
    best = configuration("best", {"0": 100.0, "1": 100.0, "7": 900.0})  # seed 7 is not shared
    other = configuration("other", {"0": 110.0, "1": 110.0})
    tests, notes = compare_pairs([best, other])
    assert notes == []
    line = "other is 10.0 ± 0.0% above best over 2 seeds, p < 0.001: significant"
    assert describe(tests).endswith(line)


def test_the_deviation_of_a_large_difference_is_that_of_its_percentages():
    best = configuration("best", {"0": 10.0, "1": 10.0})
    other = configuration("other", {"0": 20.0, "1": 40.0})  # 100 and 300% above
    (test,), _ = compare_pairs([other, best])
    assert test["percent"] == pytest.approx(100 * (8**0.5 - 1))
    assert test["deviation"] == pytest.approx(100 * 2**0.5)


def test_pairs_without_two_shared_seeds_are_named():
    best = configuration("best", {"0": 10.0, "1": 11.0})
    other = configuration("other", {"1": 20.0, "2": 21.0})
    third = configuration("third", {"2": 31.0, "3": 30.0})
    pairs = "best and other; best and third; other and third"
    note = f"not tested, fewer than two seeds in common: {pairs}; train with the same seeds"
    assert compare_pairs([third, other, best]) == ([], [note])


def test_every_two_are_tested_the_best_first():
    names = ["worst", "best", "middle"]
    found = [configuration(name, {"0": p, "1": p + 1}) for name, p in zip(names, (9, 3, 5))]
    tests, notes = compare_pairs(found)
    assert notes == []
    pairs = [(test["better"], test["worse"]) for test in tests]
    assert pairs == [("best", "middle"), ("best", "worst"), ("middle", "worst")]
