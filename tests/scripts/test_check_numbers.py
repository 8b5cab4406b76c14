"""check_numbers.py: every number it checks is on its page, and one that drifts is named."""

import pytest
from helpers import ROOT, assert_complains, call

from studies import check_numbers

N_GRAMS = "5-gram perplexity hbush {h}, obama {o}, wbush {w}; naive Bayes accuracy 90.9%"


@pytest.mark.parametrize("check", check_numbers.CHECKS, ids=lambda check: check.stated[:30])
def test_every_number_is_on_its_page_and_named_alike(check):
    page = (ROOT / check.page).read_text(encoding="utf-8")
    stated = check_numbers.numbers(check.stated, page, check.page)
    assert stated and all(f"{{{name}}}" in check.printed for name in stated)


@pytest.mark.parametrize(
    "obama, code, part", [("240.9", 0, "1 of 1 hold"), ("300.2", 1, "240.8 is 300.2")]
)
def test_a_number_that_drifts_is_named(obama, code, part, monkeypatch):
    (check,) = (c for c in check_numbers.CHECKS if "which only counts" in c.stated)
    monkeypatch.setattr(check_numbers, "CHECKS", (check,))
    output = N_GRAMS.format(h="252.0", o=obama, w="350.5")
    monkeypatch.setattr(check_numbers, "run", lambda words: output)
    done = call("check_numbers")
    assert done.code == code and part in done.out


def test_an_output_without_the_numbers_is_an_error(monkeypatch):
    monkeypatch.setattr(check_numbers, "run", lambda words: "nothing")
    assert_complains(call("check_numbers"), "not found; correct CHECKS")
