"""The assignment, tiny: its runs, the report in both forms, and what the report concludes."""

import json
import re
import shutil
import statistics
import types
from html.parser import HTMLParser
from itertools import combinations

import pytest
from helpers import STEPS, TINY, call, result_of, subprocess_here, succeed

import data
from studies import assignment, assignment_appendix, assignment_report, jobs
from studies.assignment_report import report_parts
from studies.assignment_runs import Runs, conclude, signed, write_table
from studies.page import make_page
from studies.report import literal, picture

SMALL = {  # flags that make each script of the assignment tiny
    "baselines": ("--order", "3"),
    "train_lm": STEPS,
    "train_mlm": (*STEPS, "--valid", "0.2"),
    "train_classifier": (*TINY, "--epochs", "2", "--valid", "0.2"),
    "frozen": ("--epochs", "2", "--valid", "0.2", "--n-hidden", "8"),
    "beyond.train_generative": (*STEPS, "--class-steps", "1"),
    "attention_maps": (),
    "compare": (),
}


def compare_two(patch):
    """Let the assignment compare two position encodings instead of all."""
    for module in (assignment, assignment_report, assignment_appendix):
        patch.setattr(module, "COMPARED", ("learned", "alibi"))


def assign(corpus, out, *argv):
    """Run the assignment on a corpus: two encodings, every job tiny and in this process."""

    def small(script, *argv):
        return SMALL["frozen" if "--encoder" in argv else script]

    with pytest.MonkeyPatch.context() as patch:
        compare_two(patch)
        patch.setattr(jobs, "subprocess", subprocess_here(small))
        flags = "--data", corpus, "--out", out, "--jobs", 1, *argv
        return call("assignment", *flags)


@pytest.fixture(scope="module")
def done(corpus, tmp_path_factory):
    """The folder of an assignment with two seeds."""
    out = tmp_path_factory.mktemp("assignment") / "out"
    succeed(assign(corpus, out, "--seeds", 2, "--mlm-steps", 8))
    return out


class Words(HTMLParser):
    """The words of a page, and the files it loads."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags, self.sources, self.links = "", set(), [], []
        self.feed(page.partition("<body>")[2])

    def handle_data(self, data):
        self.text += data

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        self.sources += [attributes["src"]] if "src" in attributes else []
        self.links += [attributes["href"]] if "href" in attributes else []


def read(path):
    return path.read_text(encoding="utf-8")


def number(path, entry):
    return json.loads(read(path / "result.json"))[entry]


def test_both_reports_show_the_same(done):
    markdown, page = read(done / "report.md"), Words(read(done / "report.html"))
    figures = re.findall(r"^!\[.*\]\((.*)\)$", markdown, re.MULTILINE)
    assert len(figures) == len(set(figures)) == len(page.sources) > 10
    assert all((done / figure).exists() for figure in figures)
    plain = re.sub(r"^!\[.*\)$", "", markdown, flags=re.MULTILINE)
    plain = re.sub(r"\]\([^)]*\)|^\|[ :|-]+\|$|^- |^#+ |\\(?=\W|_)", "", plain, flags=re.MULTILINE)
    bare = str.maketrans("", "", "*`[| \n")
    assert page.text.translate(bare) == plain.translate(bare)


def test_the_page_needs_nothing_else(done):
    page = read(done / "report.html")
    shown = Words(page)
    assert "default-src 'none'" in page and "script" not in shown.tags
    assert all(source.startswith("data:image/png;base64,") for source in shown.sources)
    assert shown.links and all((done / link).exists() for link in shown.links)


def test_tables_hold_the_numbers_of_the_runs(done):
    def mean(run, entry, factor=1):
        values = [factor * number(done / f"{run}-{seed}", entry) for seed in (0, 1)]
        return f"{statistics.mean(values):,.1f} ± {statistics.stdev(values):,.1f}"

    def row(table, label):
        lines = read(done / "tables" / f"{table}.md").split("\n")
        line = next(line for line in lines if label in line)
        return [cell.strip() for cell in line.split("|")[2:-1]]

    shares = ("accuracy/test", "accuracy/seen", "accuracy/unseen")
    assert row("accuracy", "ALiBi") == [mean("classifier-alibi", name, 100) for name in shares]
    frozen = [mean("frozen-learned", name, 100) for name in shares]
    assert row("accuracy-frozen", "learned") == frozen
    control = [mean("untrained-alibi", name, 100) for name in shares]
    assert row("accuracy-frozen", "random weights") == control
    assert f"with random weights {control[-1]}%" in read(done / "report.md")
    assert "--untrained" in result_of(done / "untrained-alibi-0")["command"]
    assert signed([-0.04]) == "+0.0"
    for table in ("accuracy", "accuracy-frozen"):
        means = [mean("likelihood-alibi", name, 100) for name in shares]
        assert row(table, "a decoder per class") == means
    tests = ("perplexity/hbush", "perplexity/obama", "perplexity/wbush")
    assert row("perplexity", "learned") == [mean("lm-learned", name) for name in tests]
    assert row("perplexity", "3-gram") == [f"{number(done / 'baselines', t):.1f}" for t in tests]
    assert row("forms", "one-sided")[0] == mean("form-one-sided", "perplexity/valid")
    longer = read(done / "compare-lm" / "train-short-test-long.md")
    assert longer.strip() in read(done / "report.md")
    assert row("../compare-lm/train-short-test-long", "learned")[2:] == ["–"] * 4
    assert "–" not in row("../compare-lm/train-short-test-long", "ALiBi")


def test_latex_tables_fit_one_column(done):
    tables = {path.stem: read(path) for path in (done / "tables").glob("*.tex")}
    assert {"accuracy", "accuracy-frozen", "perplexity", "alibi", "forms"} < set(tables)
    for text in tables.values():
        assert r"\begin{table}" in text and r"\small" in text
        (columns,) = re.findall(r"tabular}{@{}(\w+)@{}}", text)
        assert len(columns) <= 5


def test_errors_are_left_out_where_absent(done, corpus, tmp_path, monkeypatch):
    assert "The most confident errors" in read(done / "report.md")
    copy = shutil.copytree(done, tmp_path / "copy")
    (copy / "classifier-alibi-0" / "predictions.tsv").unlink()
    compare_two(monkeypatch)
    rows, seen, _ = data.load(str(corpus)).split("full")
    parts = report_parts(Runs(copy, rows, seen, "full", 2, ["classifier", "frozen", "lm"]))
    assert not any("The most confident errors" in part for part in parts)


def test_a_corpus_without_rows(own_corpus, tmp_path):
    for name in ("train_CLS.tsv", "test_CLS.tsv"):
        (own_corpus / name).unlink()
    succeed(assign(own_corpus, tmp_path / "out", "--split", "clean"))
    page = read(tmp_path / "out" / "report.html")
    assert "Part 1, classification, is left out" in page and "Part 1:" not in page
    assert "Part 2:" in page and "Three forms" in page


def test_a_corpus_without_text(own_corpus, tmp_path):
    for path in own_corpus.glob("*_LM*"):
        path.unlink()
    succeed(assign(own_corpus, tmp_path / "out", "--split", "clean", "--mlm-steps", 0))
    page = read(tmp_path / "out" / "report.html")
    assert "Part 2, language modelling, is left out" in page and "Part 2:" not in page
    assert "Part 1:" in page and "Train short" not in page and "Perplexity: of all" not in page
    assert "accuracy (points) test" in page  # none was seen in training
    assert "trained jointly on 54 rows" in page and "One seed cannot tell" in page


HOSTILE = ["<script>alert(1)</script>", "*stars* **and** `code` [link](x.html) ![image](y.png)"]
HOSTILE += [r"a\b \*c\* a|b # &amp; _under_ $x$ ~~gone~~ ![", "# heading"]


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_is_shown_as_it_is(text, tmp_path):
    runs = types.SimpleNamespace(out=tmp_path)
    table = write_table(runs, "classes", [text], [[text]], "A caption.")
    page = Words(make_page(f"# T\n\nA: {literal(text)}\n\n{table}", tmp_path))
    assert page.text.count(text) == 3
    tags = {"h1", "p", "figure", "div", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.tags == tags | {"figcaption", "a"}


def test_a_missing_figure_is_named(tmp_path):
    with pytest.raises(ValueError, match="lost.png: no such file"):
        make_page(f"# T\n\n{picture('lost.png', 'A figure')}", tmp_path)


@pytest.mark.parametrize(
    "split, n_seen, rows", [("full", 5, "unseen"), ("full", 0, "test"), ("clean", 5, "test")]
)
def test_models_are_compared_on_rows_that_are_not_memory(split, n_seen, rows):
    scores = {"accuracy/test": 0.8} | ({"accuracy/unseen": 0.6} if n_seen else {})
    runs = types.SimpleNamespace(split=split, baselines=lambda: scores)
    assert Runs.rows_that_count(runs) == rows


def test_conclusions_follow_from_the_seeds():
    one = conclude({"a": [1.0], "b": [2.0]}, min, "perplexity")
    assert "1.0 (a)" in one and "2.0 (b)" in one and "One seed cannot tell" in one
    tied = conclude({"a": [2.0], "b": [1.0], "c": [2.0]}, max, "accuracy", "%")
    assert "2.0% (a and c)" in tied and "1.0% (b)" in tied
    assert conclude({"a": [2.0], "b": [2.0]}, max, "x") == "The x is 2.0 for all: a and b."
    three = conclude({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 9.0], "c": [3.0, 4.0, 5.0]}, min, "x")
    assert three.startswith("The lowest x is 2.0 ± 1.0 (a).")
    assert "better than every seed of b." in three and "overlap with those of c:" in three
    best = conclude({"a": [1.0, 2.0], "b": [3.0, 4.0]}, max, "x")
    assert best.startswith("The highest x is 3.5 ± 0.7 (b)") and "every seed of a." in best

    # Of all ways to deal six ranks to two encodings, how many put one of them first entirely?
    deals = list(combinations(range(6), 3))
    apart = [deal for deal in deals if set(deal) in ({0, 1, 2}, {3, 4, 5})]
    assert f"in {len(apart) // 2} of {len(deals) // 2} cases" in three
