"""assignment.py, tiny: its runs, its tables, and a report that needs no other file."""

import html
import json
import re
import statistics
from types import SimpleNamespace

import pytest
from helpers import TINY, write_corpus

from lab import tables
from studies import assignment

SMALL = {  # flags that make each script of the assignment tiny
    "baselines": ("--order", "3"),
    "train_lm": TINY,
    "train_mlm": (*TINY, "--valid", "0.2"),
    "train_classifier": ("--epochs", "2", "--valid", "0.2", "--batch-size", "4"),
}


def assign(jobs_here, monkeypatch, data, out, **flags):
    """Run the assignment with two encodings; return the words of its jobs."""
    monkeypatch.setattr(assignment, "COMPARED", ("learned", "alibi"))
    jobs = jobs_here(SMALL)
    assignment.assignment(assignment.Flags(data=str(data), out=str(out), jobs=1, **flags))
    return jobs


def read(path):
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_assignment_with_two_seeds(corpus, tmp_path, monkeypatch, jobs_here):
    jobs = assign(jobs_here, monkeypatch, corpus, tmp_path, seeds=2, mlm_steps=8)
    assert len(jobs) == 1 + 2 * (3 * 2 + 4) + 2 * 3 + 4 + 4
    before = len(jobs)
    flags = dict(data=str(corpus), out=str(tmp_path), jobs=1, seeds=2, mlm_steps=8)
    assignment.assignment(assignment.Flags(**flags))
    assert len(jobs) == before  # nothing runs twice
    page = read(tmp_path / "report.html").replace("<b>", "").replace("</b>", "")
    rows = [re.findall("<td>(.*?)</td>", row) for row in page.split("<tr>")]

    def mean(run, entry, factor, digits):
        of = [json.loads(read(tmp_path / f"{run}-{seed}" / "result.json")) for seed in (0, 1)]
        values = [factor * result[entry] for result in of]
        return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"

    shares = ("accuracy/test", "accuracy/seen", "accuracy/unseen")
    for label, run, entries, *how in (
        ("ALiBi", "classifier-alibi", shares, 100, 1),
        ("learned", "frozen-learned", shares, 100, 1),
        ("ALiBi (random weights)", "untrained-alibi", shares, 100, 1),
        ("learned", "lm-learned", ("perplexity/one", "perplexity/two"), 1, 2),
        ("one-sided", "form-one-sided", ("perplexity/valid",), 1, 1),
    ):
        means = {mean(run, entry, *how) for entry in entries}
        assert any(row[:1] == [label] and means <= set(row) for row in rows), label
    # The page needs nothing else, and its appendix is there
    sources, links = re.findall('src="(.{22})', page), re.findall('href="(.*?)"', page)
    assert len(sources) >= 7 and set(sources) == {"data:image/png;base64,"}
    assert len(links) > 20 and all((tmp_path / link).exists() for link in links)
    of_comparisons = [path.name for path in tmp_path.glob("compare-*/*")]
    assert len(of_comparisons) > 20 and len(set(of_comparisons)) == len(of_comparisons)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["*_CLS*", "*_LM*"])
def test_a_corpus_without_rows_or_without_text(missing, tmp_path, monkeypatch, jobs_here):
    data, out = write_corpus(tmp_path / "data"), tmp_path / "out"
    for path in data.glob(missing):
        path.unlink()
    jobs = assign(jobs_here, monkeypatch, data, out, split="clean", mlm_steps=0)
    text, scripts = read(out / "report.html"), {words[0] for words in jobs}
    assert ("train_classifier" in scripts) == ("Part 1" in text) == (missing == "*_LM*")
    assert ("train_lm" in scripts) == ("Part 2" in text) == (missing == "*_CLS*")
    assert "Part 3" in text and "Three forms" in text and "frozen" not in text


def test_foreign_text_is_shown_as_it_is(tmp_path):
    hostile = "<script>alert(1)</script> *a* & `b` {{ 7 * 7 }}"
    (tmp_path / "compare-form").mkdir()
    tables.write(tmp_path / "compare-form" / "form-compare", [hostile], [[hostile]], "")
    corpus, flags = SimpleNamespace(name=hostile, classes=[]), assignment.Flags()
    assignment.write_report(flags, tmp_path, corpus, [])
    page = read(tmp_path / "report.html")
    assert page.count(html.escape(hostile)) >= 4 and "<script" not in page
