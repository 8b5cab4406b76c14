"""The studies, tiny: every run is there, the tables show its numbers."""

import json
import math
import statistics
from functools import partial

import pytest
from helpers import ROOT, SIZE, TINY, call, fails, succeed
from scipy.stats import ttest_1samp

from data.files import UserError
from lab.predictions import FILE, write_predictions
from studies import clap, contextual, crossvalidate, grid, nope, positions, recurrence


def read(path):
    return path.read_text(encoding="utf-8")


def read_json(path):
    return json.loads(read(path))


def of_tests(result, longer=""):
    """The perplexity of both test sets of `corpus` together."""
    sizes = [result[f"tokens/{name}"] for name in ("one", "two")]
    values = [result[f"perplexity/{name}{longer}"] for name in ("one", "two")]
    return math.prod(v ** (n / sum(sizes)) for v, n in zip(values, sizes))


def spread(values, digits=1):
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


@pytest.mark.slow
def test_nope(corpus, tmp_path, monkeypatch, jobs_here):
    tiny = dict(depths=(2, 1), n_embd=16, n_head=2, block_size=8, tokens=32, steps=8, lr=1e-3)
    tiny |= dict(vocab_size=0, eval_test=0, keep="0,4,8", probe=dict(blocks=8, steps=5))
    monkeypatch.setattr(nope, "SIZES", {"quick": tiny})
    monkeypatch.setattr(nope, "COMPARED", ("nope", "learned"))
    started, out = jobs_here({"studies.probe": ("--order-blocks", 8)}), tmp_path / "study"
    flags = nope.Flags(data=str(corpus), size="quick", seeds=1, jobs=1, out=str(out))
    nope.study(flags)
    runs = {path.parent.name for path in out.glob("*/checkpoint.pt")}
    main = [f"lm-{pos}-1{a}-0" for pos in ("nope", "learned") for a in ("", "-anchor")]
    assert runs == {*main, "lm-nope-2-0", "lm-nope-2-anchor-0"}
    assert len(started) == 11
    assert read_json(out / "lm-nope-1-anchor-0" / "config.json")["flags"]["anchor"]
    one = read_json(out / "lm-nope-1-anchor-0" / "result.json")
    assert {f"perplexity/one@{length}" for length in (16, 32, 64)} < set(one)
    report = read(out / "report.md")
    assert f"{one['perplexity/one']:.1f}" in report
    assert all(read(out / f"{table}.md") in report for _, table in nope.REPORT)
    figures = [line[line.index("](") + 2 : -1] for line in report.splitlines() if line[:2] == "!["]
    assert len(figures) == 6 and all((out / figure).exists() for figure in figures)
    kept = read_json(out / "probe-kept" / "result.json")["runs"]
    assert all("step 4" in run["probe"] for runs in kept.values() for run in runs)
    nope.study(flags)
    assert len(started) == 11  # nothing runs twice


@pytest.mark.slow
def test_grid(corpus, tmp_path, monkeypatch, jobs_here):
    tiny = dict(widths=(16,), lengths=(4, 8), tokens=32, model=dict(n_layer=1, n_head=2))
    tiny |= dict(lm=dict(steps=4), masked=dict(n_embd=16, block_size=8, batch_size=4, steps=4))
    monkeypatch.setattr(grid, "SIZES", {"quick": tiny})
    started = jobs_here({"train_mlm": ("--valid", "0.2")})
    grid.study(grid.Flags(data=str(corpus), size="quick", seeds=2, jobs=1, out=str(tmp_path)))
    assert len(started) == 2 * 4 * 3  # seeds, encodings, two cells and the encoders

    def numbers(name, pos):
        runs = [read_json(tmp_path / f"{name}-{pos}-{seed}" / "result.json") for seed in (0, 1)]
        assert not read_json(tmp_path / f"{name}-{pos}-0" / "config.json")["flags"].get("anchor")
        if name == "masked":
            return [run["perplexity/valid"] for run in runs]
        return [of_tests(run) for run in runs]

    def difference(ours, theirs):
        d = [math.log(a / b) for a, b in zip(ours, theirs)]
        return f"{100 * math.expm1(statistics.mean(d)):+.1f} ±", ttest_1samp(d, 0).pvalue

    cells = {}  # by name of the runs
    for name, line in zip(("lm-16-4", "lm-16-8"), read(tmp_path / "grid.md").splitlines()[2:]):
        cells[name] = [cell.strip() for cell in line.split("|")[3:-1]]
    line = read(tmp_path / "masked.md").splitlines()[2]
    cells["masked"] = [cell.strip() for cell in line.split("|")[1:-1]]
    for name, row in cells.items():
        nope, *others = [numbers(name, pos) for pos in grid.ENCODINGS]
        assert row[:4] == [spread(values) for values in (nope, *others)]
        for cell, theirs in zip(row[4:], others):
            words, p = difference(nope, theirs)
            assert cell.startswith(words) and cell.endswith(f"(p = {p:.1g})")


@pytest.mark.slow
def test_clap(corpus, tmp_path, monkeypatch, jobs_here):
    tiny = dict(vocab_size=300, n_layer=1, n_embd=16, n_head=2, n_ffn=20, block_size=12)
    monkeypatch.setattr(clap, "SIZES", {"quick": tiny | dict(batch_size=4, lr=1e-3, steps=10)})
    jobs_here({"train_mlm": ("--valid", "0.2")})
    expected = {  # head, zero_mask, omit_mask, scale_words
        "baseline": ("roberta", False, False, True),
        "sinusoidal": ("roberta", False, False, False),
        "zero-clap": ("clap", True, True, True),
        "zero-clap-plain": ("plain-clap", True, True, True),
    }
    flags = dict(data=str(corpus), size="quick", seeds=2, jobs=1, out=str(tmp_path))
    clap.study(clap.Flags(only=",".join(expected), steps=5, **flags))
    for name, values in expected.items():
        model = read_json(tmp_path / f"{name}-0" / "config.json")["model"]
        names = ("head", "zero_mask", "omit_mask", "scale_words")
        assert tuple(model[name] for name in names) == values
        assert not model["norm_first"]
        assert read_json(tmp_path / f"{name}-1" / "result.json")["step"] == 5
    assert (tmp_path / "compare" / "compare.png").exists()
    table = read(tmp_path / "compare" / "compare.md")
    assert all(f"| {name} " in table for name in expected)


@pytest.mark.slow
def test_positions(corpus, tmp_path, monkeypatch, jobs_here):
    labels = "learned", "rotary", "FIRE", "learned, random", "LSTM", "rotary, coupled"
    monkeypatch.setattr(positions, "ROWS", {label: positions.ROWS[label] for label in labels})
    shape = dict(n_layer=1, n_head=2, n_embd=16, n_ffn=20, steps=2)
    tiny = dict(tasks=dict(copy=dict(length=2, steps=2)), lm=shape, masked=shape)
    tiny |= dict(long=shape | dict(block_size=8, batch_size=4), on=dict(steps=2))
    monkeypatch.setattr(positions, "SIZES", {"quick": tiny})
    started = jobs_here({"train_mlm": ("--valid", "0.2"), "studies.probe": ("--batch-size", 8)})
    flags = dict(data=str(corpus), size="quick", seeds=2, jobs=1, out=str(tmp_path))
    positions.study(positions.Flags(**flags))
    assert len(started) == 2 * (4 * 4 - 1 + 3 + 1 + 5) + 4  # the LSTM has no encoder

    def row(table, label):
        (line,) = [s for s in read(tmp_path / f"{table}.md").splitlines() if f"| {label} " in s]
        return [cell.strip() for cell in line.split("|")[2:-1]]

    def cell(run, value):
        values = [value(read_json(tmp_path / f"{run}-{seed}" / "result.json")) for seed in (0, 1)]
        return spread(values, 1 if values[0] > 5 else 2)

    for i, n in enumerate((2, 3, 4, 8)):
        assert row("tasks", "FIRE")[i] == cell("copy-FIRE", lambda r, n=n: 100 * r[f"accuracy/{n}"])

    assert row("texts", "rotary")[1] == cell("long-rotary", partial(of_tests, longer="@16"))
    assert row("texts", "rotary")[4] == cell("lm-rotary", of_tests)
    assert row("texts", "rotary")[5] == cell("masked-rotary", lambda r: r["perplexity/valid"])
    assert row("texts", "learned")[1:4] == ["–"] * 3 and row("texts", "FIRE")[5] == "–"
    assert row("texts", "learned")[7].startswith("1.00 ±")
    assert row("stretched", "stretched, yarn")[2] == cell(
        "long-yarn", partial(of_tests, longer="@32")
    )
    assert read_json(tmp_path / "long-dropped-0" / "config.json")["model"]["pos"] == "nope"
    assert (tmp_path / "positions-heatmap.png").stat().st_size > 2000  # with 20 dots per inch
    stored = dict(size="quick", stored=str(tmp_path / "result.json"), out=str(tmp_path / "again"))
    (tmp_path / "again").mkdir()
    positions.study(positions.Flags(**stored))
    names = ("positions-heatmap.png", "positions-brief.png")
    same = [(tmp_path / "again" / n).read_bytes() == (tmp_path / n).read_bytes() for n in names]
    assert same == [True, True]


def test_the_heatmap_is_dark_from_chance_on_and_hatched_where_not_possible():
    copy = {"learned": [100 / 26], "NoPE": [100, 100]}
    text = {"learned": None, "NoPE": 50, "ALiBi": 75, "rotary": 100}
    groups = {"copy": {"16": copy}, "longer text": {"8 ×": text}}
    rows = ["learned", "NoPE", "ALiBi", "rotary"]
    (axis,) = positions.draw(groups, rows, size=7).axes
    (image,) = axis.images
    expected = [[0, math.nan], [1, 1], [math.nan, 1 / 3], [math.nan, 0]]
    shown = [[float(value) for value in row] for row in image.get_array().filled(math.nan)]
    assert shown == [pytest.approx(row, nan_ok=True) for row in expected]
    (hatched,) = axis.patches
    assert hatched.get_hatch() and (hatched.get_x(), hatched.get_y()) == (0.5, -0.5)
    cells = {text.get_position(): text for text in axis.texts[:5]}
    assert [cells[place].get_text() for place in ((0, 0), (0, 1), (1, 3))] == ["4", "100", "100"]
    assert cells[0, 1].get_color() == "white" and cells[1, 3].get_color() == "black"
    assert set(positions.SIZES["laptop"]["tasks"]) <= set(positions.CHANCE)


def test_the_stored_numbers_are_of_the_rows_of_the_study():
    groups = read_json(ROOT / "docs" / "figures" / "positions.json")["groups"]
    for columns in groups.values():
        for column in columns.values():
            assert set(column) <= set(positions.ROWS)
    assert groups["copy"]["64"]["KERPLE"] == 48 and groups["text"]["masked"]["FIRE"] is None


@pytest.mark.slow
def test_cross_validation_with_two_seeds(corpus, tmp_path, jobs_here, capsys):
    started, tiny = jobs_here({}), " ".join(SIZE)
    flags = dict(data=str(corpus), folds=2, seeds=2, jobs=1, out=str(tmp_path))
    flags |= dict(recipes="bayes,random", mlm=f"{tiny} --valid 0.2")
    crossvalidate.crossvalidate(crossvalidate.Flags(**flags))
    assert len(started) == 4 + 2 + 4  # encoders, naive Bayes, their classifiers
    result = read_json(tmp_path / "result.json")
    bayes = [read_json(tmp_path / f"bayes-{i}" / "result.json") for i in (1, 2)]
    assert result["sentences"] == sum(fold["rows/test"] for fold in bayes)
    values = [fold["accuracy/test"] for fold in bayes]
    assert (
        result["accuracy"]["bayes"]["values"] == result["accuracy"]["bayes"]["averaged"] == values
    )
    folders = [tmp_path / f"random-2-{seed}" for seed in (0, 1)]
    mean = statistics.fmean(read_json(f / "result.json")["accuracy/test"] for f in folders)
    assert result["accuracy"]["random"]["values"][1] == mean
    together = crossvalidate.accuracy(folders)
    assert result["accuracy"]["random"]["averaged"][1] == together
    encoder = read_json(tmp_path / "untrained-1-0" / "config.json")["flags"]
    assert encoder["split"] == "1/2" and encoder["steps"] == 0 and encoder["valid"] == 0.2
    assert crossvalidate.RECIPES["bayes"][0] in capsys.readouterr().out


@pytest.mark.parametrize("study", ["clap", "nope", "positions"])
def test_a_study_lists_the_commands_of_its_runs(study, tmp_path):
    outcome = call(f"studies.{study}", "--commands", size="quick", out=tmp_path)
    lines = succeed(outcome).out.splitlines()
    assert len(lines) > 5 and all(line.startswith("python -m train_") for line in lines)
    assert len(set(lines)) == len(lines)


def test_an_invalid_flag_is_named(tmp_path, corpus):
    fails(call("studies.clap", "--only", "alibis"), "--only alibis", "alibi-no-dropout")
    fails(call("studies.crossvalidate", recipes="x", data=corpus), "--recipes x", "bayes")
    rows = tmp_path / "rows.tsv"
    rows.write_text("".join(f"{i % 2}\tword {i}\n" for i in range(40)), encoding="utf-8")
    for study in ("studies.nope", "studies.grid"):
        fails(call(study, data=rows, out=tmp_path), f"--data {rows}", "no running text")
    # Flags for another script, in the form that the pages show
    fails(
        call("studies.crossvalidate", "--mlm=--steps x", data=corpus, out=tmp_path / "cv"),
        "pretrained-1-0: Error parsing --steps",
    )


def test_the_average_of_runs_is_that_of_log_probabilities(tmp_path):
    """Two are unsure, one is sure of the other class: it wins by 0.6^2 * 0.01 < 0.4^2 * 0.99."""
    folders = [tmp_path / name for name in "abc"]
    for folder, shares in zip(folders, ([0.6, 0.4], [0.6, 0.4], [0.01, 0.99])):
        folder.mkdir()
        write_predictions(folder / FILE, ["x"], [shares], ["one", "two"], [0], [True])
    assert crossvalidate.accuracy(folders) == 0
    assert crossvalidate.accuracy(folders[:2]) == 1
    write_predictions(tmp_path / "b" / FILE, ["y"], [[0.6, 0.4]], ["one", "two"], [0], [True])
    with pytest.raises(UserError, match="b: has other test rows; leave it out"):
        crossvalidate.accuracy(folders)


def test_recurrence_measures_reach_and_time(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(recurrence, "LENGTHS", (8, 12, 16))
    runs = []
    for pos in ("lstm", "learned"):
        flags = {"body": "lstm"} if pos == "lstm" else {"pos": pos}
        succeed(call("train_lm", *TINY, data=corpus, out=tmp_path / pos, **flags))
        runs.append(str(tmp_path / pos))
    recurrence.study(recurrence.Flags(runs, blocks=20))
    result = read_json(tmp_path / "recurrence" / "result.json")
    for distances, shares in result["gradients"].values():
        assert distances == list(range(12)) and shares[0] == 1
        assert min(shares) > 0
    _, shares = result["gradients"]["LSTM"]
    assert shares[11] < shares[1] / 10  # an LSTM hardly reaches what is far
    lengths, _ = result["seconds"]["learned positions"]
    assert lengths == [8, 12]  # where the table ends
    assert (tmp_path / "recurrence" / "recurrence.png").stat().st_size > 5000


def test_a_word_is_compared_layer_by_layer(finished, capsys):
    folder = finished("train_mlm", "--valid", "0.2", "--pos", "nope")
    texts = ("we want peace today", "they love peace and hope")
    contextual.compare_word(contextual.Flags(folder, "peace", texts))
    lines = [line for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["embedding", "1"]
    assert "1.000" in lines[2]  # without positions, the word's own vector
    assert "1.000" not in lines[3]
    with pytest.raises(UserError, match="--word war: not a word of"):
        contextual.compare_word(contextual.Flags(folder, "war", texts))
