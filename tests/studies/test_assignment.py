"""assignment.py, tiny: its runs, its tables, and a report that needs no other file."""

import html
import json
import re
import statistics
from types import SimpleNamespace

import pytest
from helpers import TINY, write_corpus

from studies import assignment

SMALL = {  # flags that make each script of the assignment tiny
    "baselines": ("--order", "3"),
    "train_lm": TINY,
    "train_mlm": (*TINY, "--valid", "0.2"),
    "train_classifier": ("--epochs", "2", "--valid", "0.2", "--batch-size", "4"),
    "beyond.train_generative": (*TINY, "--class-steps", "1"),
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
    assert len(jobs) == 1 + 2 * (3 * 2 + 1 + 4) + 2 * 3 + 4 + 3
    page = read(tmp_path / "report.html")
    rows = [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in page.split("<tr>")]

    def mean(run, entry, factor=1):
        of = [json.loads(read(tmp_path / f"{run}-{seed}" / "result.json")) for seed in (0, 1)]
        values = [factor * result[entry] for result in of]
        return f"{statistics.mean(values):,.1f} ± {statistics.stdev(values):,.1f}"

    shares = ("accuracy/test", "accuracy/seen", "accuracy/unseen")
    tests = ("perplexity/one", "perplexity/two")
    for label, run, entries, factor in (
        ("ALiBi", "classifier-alibi", shares, 100),
        ("learned", "frozen-learned", shares, 100),
        ("ALiBi, random weights", "untrained-alibi", shares, 100),
        ("ALiBi, a decoder per class", "likelihood-alibi", shares, 100),
        ("learned", "lm-learned", tests, 1),
    ):
        assert [label, *(mean(run, entry, factor) for entry in entries)] in rows, label
    assert "| ALiBi, encoder=random " in read(tmp_path / "compare-frozen" / "compare.md")
    # The page needs nothing else, and its appendix is there
    sources, links = re.findall('src="(.{22})', page), re.findall('href="(.*?)"', page)
    assert len(sources) >= 7 and set(sources) == {"data:image/png;base64,"}
    assert len(links) > 20 and all((tmp_path / link).exists() for link in links)
    tables = {path.stem for path in (tmp_path / "tables").glob("*.tex")}
    assert tables == {"classifier", "frozen", "classes", "perplexity", "forms"}


@pytest.mark.parametrize("missing", ["*_CLS*", pytest.param("*_LM*", marks=pytest.mark.slow)])
def test_a_corpus_without_rows_or_without_text(missing, tmp_path, monkeypatch, jobs_here):
    data, out = write_corpus(tmp_path / "data"), tmp_path / "out"
    for path in data.glob(missing):
        path.unlink()
    jobs = assign(jobs_here, monkeypatch, data, out, split="clean", mlm_steps=0)
    text, scripts = read(out / "report.html"), {words[0] for words in jobs}
    assert ("train_classifier" in scripts) == ("Part 1" in text) == (missing == "*_LM*")
    assert ("train_lm" in scripts) == ("Part 2" in text) == (missing == "*_CLS*")
    assert "Part 3" in text and "Three forms" in text and "frozen" not in text


def test_foreign_text_is_shown_as_it_is(tmp_path, monkeypatch):
    hostile = "<script>alert(1)</script> *a* & `b` {{ 7 * 7 }}"
    tables = {"forms": ([hostile], [[hostile]])}
    monkeypatch.setattr(assignment, "collect_tables", lambda *_: tables)
    corpus, flags = SimpleNamespace(name=hostile, classes=[]), assignment.Flags()
    assignment.write_report(flags, tmp_path, corpus, [])
    page = read(tmp_path / "report.html")
    assert page.count(html.escape(hostile)) >= 4 and "<script" not in page
