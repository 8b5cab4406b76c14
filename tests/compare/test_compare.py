"""compare.py on run folders made by hand, whose means, spreads and best values are known."""

import json
import math
import shutil
from pathlib import Path

import pytest
from helpers import call, fails, succeed
from scipy import stats

from data.files import UserError, write_json
from lab import figures, tables
from lab.predictions import FILE, write_predictions
from lab.rows import Row, group_runs, read_finished_run
from lab.significance import compare_answers, compare_seeds, sums_and_counts

FLAGS = dict(data="toy", tokenizer="word", pos="learned", norm_first=True, dropout=0.0, out="")
FLAGS |= dict(block_size=32, device="auto", threads=0, eval_block="", encoder="", valid=0.0)
FLAGS |= dict(order=5, split="full")
LOGGED = dict(lm=[f"perplexity/{name}" for name in ("train", "ada", "bruno")])
LOGGED |= dict(task=["accuracy/16", "accuracy/64", "perplexity/16", "perplexity/64"])
LOGGED |= dict(mlm=["perplexity/valid", "accuracy/valid"], baselines=[])
LOGGED |= dict(classifier=[f"accuracy/{name}" for name in "train valid test unseen".split()])


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Write a finished run: make("a", pos="alibi", result={"perplexity/ada": 12.5})."""
    monkeypatch.chdir(tmp_path)
    # Saving a figure takes longer than all the rest
    monkeypatch.setattr(figures, "save", lambda figure, path: make.drawn.update({path: figure}))

    def make(name, kind="lm", result=(), seed=0, code="c0", revision="r0", data_hash="", **flags):
        (tmp_path / name).mkdir()
        flags = FLAGS | ({} if kind == "baselines" else {"seed": seed}) | flags
        about = {"kind": kind, "flags": flags, "code": code, "revision": revision, "build": {}}
        about["data_hash"] = data_hash
        write_json(tmp_path / name / "config.json", about)
        names = LOGGED[kind]
        numbers = {key: 0.5 if key.startswith("accuracy") else 20.0 for key in names}
        result = numbers | {"parameters": 154798} | dict(result)
        write_json(tmp_path / name / "result.json", result)
        lines = [{"step": n} | {key: result[key] for key in names} for n in (0, 100)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "metrics.jsonl").write_text(text)
        return name

    make.drawn = {}
    return make


def compared(*argv):
    """Run compare.py; return {first cell: {heading: cell}} of compare.md."""
    out = succeed(call("compare", *argv)).out
    written = Path("out/compare/compare.md").read_text(encoding="utf-8")
    assert written in out
    lines = [line for line in written.split("\n\n")[0].splitlines() if line.startswith("|")]
    header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {cells[0]: dict(zip(header, cells)) for cells in body}


def answers(folder, *right):
    """Write predictions.tsv with these probabilities of the true class."""
    shares, gold = [[1 - share, share] for share in right], [1] * len(right)
    texts = [f"row {i}" for i in gold]
    write_predictions(Path(folder, FILE), texts, shares, ["no", "yes"], gold, [True, False] * 9)


def test_mean_and_sample_deviation_over_seeds(make):
    # 10, 12, 17: mean 13, squared distances 9 + 1 + 16 = 26, over n - 1 = 2: 13.
    for seed, value in enumerate((10.0, 12.0, 17.0)):
        result = {"perplexity/ada": value, "floor/perplexity/ada": 2.5}
        make(f"a-{seed}", pos="alibi", seed=seed, result=result, threads=seed)
    make("b", result={"perplexity/ada": 30.0})
    make("base", "baselines", {"perplexity/ada": 15.0})
    rows = compared("a-0", "a-1", "a-2", "b", "base")
    assert list(rows) == ["ALiBi", "learned", "5-gram"]
    assert rows["ALiBi"]["perplexity ada"] == "**13.0** ± 3.6"
    assert rows["ALiBi"]["seeds"] == "0, 1, 2" and rows["ALiBi"]["parameters"] == "154,798"
    assert rows["learned"]["perplexity ada"] == "30.0"  # one seed has no spread
    assert rows["5-gram"]["perplexity ada"] == "15.0"
    axis = make.drawn[Path("out/compare/compare.png")].axes[1]
    levels = [line for line in axis.lines if list(line.get_xdata()) == [0, 1]]
    dashed = {line.get_label().strip(): line.get_ydata()[0] for line in levels}
    assert dashed == {"5-gram": 15, "best possible": 2.5}


def test_the_best_of_a_column_is_bold_and_so_are_ties(make):
    entries = dict(ada=(12.04, 11.96, 20.0), bruno=(4.378, 9.0, 20.0), train=(4.3, 20.0, 20.0))
    for i, pos in enumerate(("learned", "alibi", "rope")):
        make(pos, pos=pos, result={f"perplexity/{name}": v[i] for name, v in entries.items()})
    rows = compared("learned", "alibi", "rope").values()
    assert [row["perplexity ada"] for row in rows] == ["**12.0**", "**12.0**", "20.0"]
    assert [row["perplexity bruno"] for row in rows] == ["**4.38**", "9.00", "20.00"]
    assert [row["perplexity train"] for row in rows] == ["4.30", "20.00", "20.00"]  # memorised


def test_test_sets_have_any_name_and_a_folder_counts_once(make):
    numbers = {"perplexity/low": 5.0, "perplexity/high": 6.0}
    make("a", result=numbers | {"pearson/test/low": 0.1, "pearson/valid": 0.2514})
    found = compared("a", "./a/")["learned"]
    assert found.pop("Pearson's r valid") == "0.251"
    assert (found["perplexity low"], found["perplexity high"]) == ("5.00", "6.00")
    assert not any("Pearson" in heading for heading in found)


def rows_of(*names, labels=""):
    return group_runs([read_finished_run(name) for name in names], labels)


def labels_of(*names, **more):
    return [row.label for row in rows_of(*names, **more)]


def test_rows_are_named_by_the_flags_that_differ_or_by_folders(make):
    assert labels_of(make("a", pos="alibi"), make("b", pos="rope")) == ["ALiBi", "rotary"]
    two = labels_of("a", make("c", pos="alibi", dropout=0.1, norm_first=False))
    assert two == ["norm-first=True, dropout=0.0", "norm-first=False, dropout=0.1"]
    assert labels_of(make("alone-3", seed=3)) == ["learned"]  # a single row
    same_flags = make("pos=x_seed=0"), make("pos=y_seed=0", data_hash="other")
    assert labels_of(*same_flags) == ["pos=x", "pos=y"]
    assert labels_of("a", make("long-0", tokenizer="t" * 60)) == ["a", "long"]
    assert labels_of("a", "b", labels="x, y") == ["x", "y"]
    fails(call("compare", "a", "b", labels="x"), "--labels x", "ALiBi; rotary")
    same = [make("speeches", data="speeches"), make("other", data="/at/speeches", seed=1)]
    assert len(labels_of(*same)) == 1
    other = make("easy-0"), make("hard-1", seed=1, data_hash="of another text of that name")
    assert labels_of(*other) == ["easy", "hard"]


def test_runs_that_differ_in_code_are_compared(make):
    make("base-0"), make("base-1", seed=1, revision="r1")  # another commit, but the same code
    make("gate-0", code="c1", result={"parameters": 154862})
    assert labels_of("base-0", "base-1", "gate-0")[1] == "parameters=154862"
    assert labels_of("base-0", make("relu-0", code="c2", revision="r2"))[1] == "revision=r2"
    assert labels_of("base-0", make("dirty-0", code="c3")) == ["base", "dirty"]
    assert labels_of("base-0", make("again-0"), labels="one,two") == ["one", "two"]
    assert labels_of("base-0", "again-0") == ["base", "again"]
    make("base-2", seed=2, code="c4", revision="r0")  # from a copy without git, say
    assert labels_of("base-0", "base-2") == ["base-0", "base-2"]


def test_a_flag_that_an_older_run_lacks_names_the_rows(make):
    newer = dict(code="c1", revision="r1", kernels=True)
    make("old-0")
    make("local-0", window=8, **newer)
    make("global-0", window=0, **newer)
    make("gated-0", gate=True, **newer)
    assert labels_of("old-0", "local-0") == ["window=0", "window=8"]
    assert labels_of("old-0", "gated-0") == ["gate=none", "gate=True"]  # not of CommonFlags
    three = ["window=0, revision=r0", "window=0, revision=r1", "window=8, revision=r1"]
    assert labels_of("old-0", "global-0", "local-0") == three


def test_seeds_of_pretraining_do_not_make_rows(make, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    for seed in (0, 1):
        make(f"text-{seed}", "mlm", seed=seed, dropout=0.3)
        of_both = dict(encoder=f"~/text-{seed}", data_hash=f"of data and text-{seed}")
        make(f"then-{seed}", "classifier", seed=seed, **of_both)
    make("cross", "classifier", encoder="text-0", seed=1)
    (row,) = rows_of("then-0", "then-1", "cross")
    assert [run.seed for run in row.runs] == ["0", "1", "1 (encoder 0)"]
    make("random", "classifier", encoder="text-0", untrained=True)
    states = labels_of("then-0", make("joint", "classifier", untrained=False), "random")
    assert states == ["encoder=pretrained", "encoder=none", "encoder=random"]


def test_seeds_are_paired(make):
    pairs = {"a": (100.0, 200.0, 300.0), "b": (101.0, 203.0, 306.0)}
    for name, values in pairs.items():
        for seed, value in enumerate(values):
            more = {"perplexity/ada": value, "perplexity/bruno": 1.0}
            make(f"{name}-{seed}", seed=seed, dropout=0.1 * (name == "b"), result=more)
    rows = rows_of(*(f"{name}-{seed}" for name in pairs for seed in (0, 2, 1)), labels="a,b")
    (test,) = compare_seeds(rows, ["perplexity/ada", "perplexity/bruno"])
    differences = [math.log(a / b) / 2 for a, b in zip(*pairs.values())]
    assert (test.test, test.first, test.second, test.seeds) == ("paired t", "a", "b", "0, 1, 2")
    assert test.difference == "-0.7 ± 0.2%"  # half of -1.0, -1.5 and -2.0%, as logs
    assert test.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    make("c-0", pos="rope"), make("c-1", pos="rope", seed=1)  # 20.0 with every seed
    assert compare_seeds(rows_of("c-0", "c-1", "a-0"), ["perplexity/bruno"]) == []  # one seed each
    make("d-0", pos="nope"), make("d-1", pos="nope", seed=1)
    assert compare_seeds(rows_of("c-0", "c-1", "d-0", "d-1"), ["perplexity/ada"]) == []


def test_baselines_are_constants(make):
    """t by hand: of 90, 92, 97% against 90%, the mean 3 over a standard error of sqrt(13 / 3)."""
    for seed, right in enumerate((0.90, 0.92, 0.97)):
        make(f"a-{seed}", "classifier", {"accuracy/test": right}, seed=seed)
        make(f"b{seed}", result={"perplexity/ada": 10.0 + seed, "vocab_size": 99}, seed=seed)
    make("base", "baselines", {"accuracy/test": 0.9, "perplexity/ada": 9.0, "vocab_size": 99})
    compared("a-0", "a-1", "a-2", "base")
    text = Path("out/compare/compare.md").read_text(encoding="utf-8")
    p = 2 * stats.t.sf(3 / math.sqrt(13 / 3), 2)
    found = "| one-sample t | learned | naive Bayes | 0, 1, 2 | +3.0 ± 3.6 points    | {:.3f} |"
    assert found.format(p) in text and text.count("one-sample t") == 1
    rows = rows_of("b0", "b1", "b2") + [Row("5-gram", [read_finished_run("base")])]
    assert [test.seeds for test in compare_seeds(rows, ["perplexity/ada"])] == ["0, 1, 2"]
    rows[1].runs[0].result["vocab_size"] = 98
    assert compare_seeds(rows, ["perplexity/ada"]) == []


def test_runs_of_one_seed_have_no_verdict(make):
    """McNemar's tests of their answers are in a file beside."""
    names = [make(p, "classifier", {"macro_f1/test": 0.5}, pos=p) for p in ("alibi", "nope")]
    names += [make("base", "baselines", {"accuracy/test": 0.5})]
    for name, right in zip(names, ("111111111111", "000000000011", "111100001111")):
        answers(name, *map(int, right))
    rows = compared(*names)
    assert rows["ALiBi"]["macro-F1 (%) test"] == "**50.0**" and "naive Bayes" in rows
    text = Path("out/compare/compare.md").read_text(encoding="utf-8")
    assert "No difference is tested" in text and "McNemar" not in text
    text = (beside := Path("out/compare/mcnemar.md")).read_text(encoding="utf-8")
    assert "| McNemar | ALiBi | NoPE        | 0     | 10 to 0 rows         | 0.002 |" in text
    assert "| McNemar | ALiBi | naive Bayes | 0     | 4 to 0 rows          | 0.125 |" in text
    rows = rows_of(*names[:2])
    assert compare_answers(rows)[0].p == pytest.approx(2 / 2**10)
    answers("nope", 0, 0, 0)  # other rows
    assert compare_answers(rows) == []
    compared(*names[:2])
    assert not beside.exists()  # of the comparison before


def test_longer_blocks_have_a_table_and_a_test(make):
    names = ("ada", "bruno", "ada@64", "bruno@64", "train@64", "ada@128", "bruno@128")
    tokens = {"tokens/ada": 50, "tokens/bruno": 100, "tokens/train": 9}
    runs = {"alibi-0": (80, 10, 80, 10, 1, 160, 20), "alibi-1": (160, 20, 80, 10, 1, 168, 21)}
    runs |= {"nope-0": (40, 40, 20, 20, 1, 60, 60), "nope-1": (40, 40, 30, 30, 1, 60, 60)}
    for folder, values in runs.items():
        result = tokens | {f"perplexity/{name}": value for name, value in zip(names, values)}
        make(folder, pos=folder[:-2], seed=int(folder[-1]), result=result)
    make("c", block_size=64, result=tokens | {"perplexity/ada": 5, "perplexity/bruno": 5})
    succeed(call("compare", "alibi-0", "alibi-1", "nope-0", "nope-1", "c"))
    text = (written := Path("out/compare/train-short-test-long.md")).read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[:5]]
    assert rows[0][2:] == [f"perplexity at {n}" for n in (32, 64, 128)]
    # Of 80 on 50 tokens and 10 on 100 tokens: (80 * 10 * 10) ** (1 / 3) = 20
    assert rows[2][2:] == ["**30.0** ± 14.1", "20.00 ± 0.00", "**41.0** ± 1.4"]
    assert rows[3][2:] == ["40.0 ± 0.0", "25.00 ± 7.07", "60.0 ± 0.0"]
    assert rows[4][2:] == ["–", "**5.00**", "–"]  # trained with 64 tokens, and measured there
    tests = [line.split("|")[1].strip() for line in text.splitlines() if "| paired t" in line]
    assert tests == [f"paired t, length {n}" for n in (32, 64, 128)]
    assert "-31.7 ± 2.4%" in text.split("paired t, length 128")[1]
    words = " ".join(text.split())
    assert "perplexity of all tokens of ada, bruno together" in words
    assert "blocks of 32 or 64" in words and "–: not measured at this length." in words
    assert "the log of the perplexity of ada, bruno together, at each length that both" in words
    assert "have read other blocks" in words and "do not share batches" in words
    assert r"-31.7 $\pm$ 2.4\%" in written.with_name("train-short-test-long-tests.tex").read_text()
    (axis,) = make.drawn[written.absolute().relative_to(Path.cwd()).with_suffix(".png")].axes
    assert axis.get_xlabel() == "tokens per block; in training 32 or 64 (log)"
    drawn = {line.get_label().strip(): list(line.get_xdata()) for line in axis.lines}
    assert drawn["ALiBi, block-size=32"] == [32, 64, 128]
    assert drawn["learned, block-size=64"] == [64]
    assert list(axis.lines[0].get_ydata()) == pytest.approx([30, 20, 41])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["32", "64", "128"]
    succeed(call("compare", "c"))
    assert not list(written.parent.glob("train-short*"))  # of the comparison before


def test_rows_are_tested_at_the_lengths_that_both_have(make):
    tokens = {"tokens/ada": 50}
    for seed in (0, 1, 2):
        short = tokens | {"perplexity/ada": 20 + seed}
        make(f"a-{seed}", pos="alibi", seed=seed, result=short | {"perplexity/ada@128": 30})
        make(f"b-{seed}", pos="learned", seed=seed, result=tokens | {"perplexity/ada": 30})
        make(f"c-{seed}", pos="alibi", block_size=64, seed=seed, result=short)
    folders = [f"{name}-{seed}" for name in "ab" for seed in (0, 1, 2)]
    succeed(call("compare", *folders))
    text = Path("out/compare/train-short-test-long.md").read_text("utf-8")
    assert "No difference" not in text and text.count("paired t,") == 1
    assert "| paired t, length 32 | ALiBi | learned | 0, 1, 2 |" in text
    succeed(call("compare", *folders[:3], "c-0", "c-1", "c-2"))  # no length in common
    text = Path("out/compare/train-short-test-long.md").read_text("utf-8")
    assert "needs numbers that two rows have" in text


def test_tasks_are_compared_by_the_length_of_their_prompts(make):
    for pos, shares in (("alibi", (0.95, 0.3)), ("nope", (0.99, 0.1))):
        for seed in (0, 1):
            result = {"accuracy/16": shares[0], "accuracy/64": shares[1] + 0.1 * seed * shares[1]}
            result |= {"perplexity/16": 2.0 + seed, "perplexity/64": 30.0, "tokens/16": 9}
            flags = dict(data="copy", pos=pos, seed=seed, length=16)
            make(f"{pos}-{seed}", kind="task", result=result, **flags)
    rows = compared("alibi-0", "alibi-1", "nope-0", "nope-1")
    assert rows["NoPE"]["accuracy (%) length 16"] == "**99.0** ± 0.0"
    text = Path("out/compare/compare.md").read_text("utf-8")
    assert "| paired t, length 64 | ALiBi | NoPE   | 0, 1  | +21.0 ± 1.4 points   |" in text
    assert "of single symbols" in " ".join(text.split()) and text.count("paired t,") == 1
    figure = make.drawn[Path("out/compare/compare.png")]
    assert "prompt length 64" in [axis.get_title() for axis in figure.axes]
    (axis,) = make.drawn[Path("out/compare/train-short-test-long.png")].axes
    assert list(axis.lines[0].get_xdata()) == [16, 64]
    assert list(axis.lines[0].get_ydata()) == pytest.approx([95, 31.5])


def test_flags_of_evaluation_are_in_no_label(make):
    make("short-0", eval_test=1000)
    make("long-0", eval_test=4000)
    assert labels_of("short-0", "long-0") == ["short", "long"]  # two rows, their numbers differ
    make("wide-0", eval_test=1000, window=8)
    assert labels_of("long-0", "wide-0") == ["window=0", "window=8"]


def test_the_first_column_is_named_by_what_differs(make):
    plain = dict(window=0, dropout=0.0, lr=1)
    make("a-0", **plain, pos="alibi")
    make("b-0", **plain, pos="rope")
    make("c-0", **plain | dict(window=8), pos="rope")
    make("d-0", window=8, dropout=0.2, lr=2, pos="rope")
    headings = {("a-0",): "positions", ("a-0", "b-0"): "positions"}
    headings |= {("a-0", "c-0"): "positions, window", ("b-0", "c-0"): "window"}
    headings |= {("a-0", "d-0"): "run"}
    for names, heading in headings.items():
        succeed(call("compare", *names))
        text = Path("out/compare/compare.md").read_text("utf-8")
        assert text.splitlines()[0].split("|")[1].strip() == heading


def test_a_width_and_a_prefix_of_the_files(make):
    make("a-0", pos="alibi")
    succeed(call("compare", "a-0", "--width", 3.25, "--prefix", "lm-"))
    assert {path.name[:10] for path in Path("out/compare").iterdir()} == {"lm-compare"}
    assert make.drawn[Path("out/compare/lm-compare.png")].get_figwidth() == 3.25
    fails(call("compare", "a-0", "--width", 1), "--width 1: at least 2.5 inches")


def test_captions_are_of_this_table(make):
    for seed in (0, 1):
        result = {"accuracy/test": 0.9 + 0.01 * seed, "parameters": 10}
        make(f"a-{seed}", "classifier", seed=seed)
        make(f"b-{seed}", "classifier", result, pos="alibi", seed=seed)
    make("m", "mlm")
    compared("a-0", "a-1", "b-0", "b-1")
    text = " ".join(Path("out/compare/compare.md").read_text("utf-8").split())
    assert "Classifiers on toy: accuracy (%) of train, valid, test, unseen." in text
    assert "over 2 seeds" in text and "seen rows" in text and "Perplexities" not in text
    assert "t-tests over seeds, of the accuracy of test." in text
    assert "other numbers of parameters share the batches of a seed, but not its" in text
    tests = Path("out/compare/compare-tests.tex").read_text("utf-8")
    assert r"paired t & learned & ALiBi & 0, 1 & -40.5 $\pm$ 0.7 points" in tests
    compared("m")
    text = Path("out/compare/compare.md").read_text("utf-8")
    assert "Masked language models on toy: perplexity of valid" in text and "One seed." in text
    assert "Classifiers" not in text and "bold" not in text
    assert not Path("out/compare/compare-tests.tex").exists()


def test_latex_is_escaped_and_its_rows_are_of_one_length(make):
    special = r"a\_b \& 5\% \$x\textasciicircum{}2 \#\{\textbackslash{}\} $<$ $\pm$"
    assert tables.escape("a_b & 5% $x^2 #{\\} < ±") == special
    better = make("b_0", "mlm", pos="alibi", result={"perplexity/valid": 7.0})
    succeed(call("compare", make("a_0", "mlm"), better))
    lines = Path("out/compare/compare.tex").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert rows[0] == r"positions & seeds & perplexity valid & accuracy (\%) valid & parameters \\"
    assert rows[2] == r"ALiBi & 0 & \textbf{7.00} & \textbf{50.0} & 154,798 \\"
    assert r"\toprule" in lines and lines.count(r"\midrule") == 1
    assert tables.escape("[1] **[a]**") == r"{[}1] \textbf{[a]}"  # \midrule [1] would take it
    markdown = tables.to_markdown(["a", "b"], [["x|y", "1"], None, ["z", "22"]])
    assert markdown == "| a    |   b |\n| ---  | --: |\n| x\\|y |   1 |\n| z    |  22 |\n"


def test_a_folder_of_runs_stands_for_them(make):
    Path("out/x/logs").mkdir(parents=True)
    make("out/x/b", pos="alibi"), make("out/x/a"), make("out/x/unfinished")
    Path("out/x/unfinished/result.json").unlink()
    Path("out/x/runs.csv").write_text("run\n")
    outcome = succeed(call("compare", "out/x"))
    assert "note: out/x/unfinished: has not ended; skipped" in outcome.out
    table = Path("out/compare/compare.md").read_text("utf-8")
    assert [line.split()[1] for line in table.splitlines()[2:4]] == ["learned", "ALiBi"]
    shutil.rmtree("out/x/unfinished")
    outcome = succeed(call("compare", *sorted(Path("out/x").iterdir())))
    assert "2 rows of 2 runs" in outcome.out
    for name in ("logs", "runs.csv"):
        assert f"note: out/x/{name}: no run; skipped" in outcome.out
    fails(call("compare", "out/x/logs"), "at least one run")
    fails(call("compare", "out/x/c"), "out/x/c: has no config.json")


def test_a_mistake_costs_one_line_that_says_what_to_do(make):
    make("a"), make("mlm", "mlm"), make("other", data="c"), make("unfinished")
    make("base", "baselines", {"perplexity/ada": 3.0})
    Path("unfinished/result.json").unlink()
    for names, *parts in (
        (["base"], "at least one run"),
        (["unfinished"], "unfinished/result.json"),
        (["a", "mlm"], "kind lm and mlm are not comparable"),
        (["mlm", "base"], "kind baselines and mlm are not comparable"),
        (["a", "other"], "data c and toy are not comparable"),
    ):
        fails(call("compare", *names), *parts)
    assert not Path("out").exists()


def test_intervals_over_test_rows_and_sentences(make, finished):
    numbers = {"accuracy/seen": 0.5, "accuracy/new": 0.5}  # new: of pairs, not in the rows
    answers(make("a", "classifier", result=numbers), *[0.9] * 12, *[0.1] * 6)
    make("base", "baselines", {"accuracy/test": 0.5})
    compared("a", "base", "--intervals")
    text = Path("out/compare/intervals.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()[:4]]
    of_a = dict(zip(cells[0], cells[2]))
    found = of_a["accuracy/test"].split(" to ")
    assert of_a["accuracy/new"] == "–"
    # Of 18 drawn rows, the number of right ones is binomial
    expected = stats.binom.ppf((0.025, 0.975), 18, 12 / 18) / 18 * 100
    assert list(map(float, found)) == pytest.approx(list(expected), abs=100 / 18 + 0.1)
    assert cells[3][2] == "–"
    run = read_finished_run(finished("train_lm", "--eval-stride", "5"))
    for name in ("perplexity/one", "perplexity/two"):
        nats, counts = sums_and_counts(run, name)
        assert len(nats) > 10 and math.exp(nats.sum() / counts.sum()) == pytest.approx(
            run.result[name], rel=1e-5
        )
    run.result["perplexity/one"] *= 1.1  # of other code
    with pytest.raises(UserError, match="another perplexity"):
        sums_and_counts(run, "perplexity/one")
