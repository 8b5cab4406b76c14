"""compare.py on run folders made by hand, whose means, spreads and best values are known."""

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from helpers import assert_complains, call, succeed

import compare
from data.files import write_json
from lab import figures, tables
from lab.comparison import panels
from lab.comparison.configurations import Configuration
from lab.comparison.finished import Finished, read_finished
from lab.comparison.panels import Panel
from lab.flags import ModelFlags
from lab.predictions import write_predictions
from model import POSITIONS, Config

FLAGS = dict(data="toy", tokenizer="word", vocab_size=0, pos="learned", norm_first=True, seed=0)
FLAGS |= dict(dropout=0.0, block_size=32, device="auto", threads=0, eval_block="")
FLAGS |= dict(resume=False, overwrite=False)
METRICS = {
    "lm": ("perplexity/train", "perplexity/ada", "perplexity/bruno"),
    "mlm": ("perplexity/valid", "accuracy/valid"),
    "classifier": tuple(f"accuracy/{part}" for part in "train valid test seen unseen".split()),
}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Write a finished run: make("a", pos="alibi", result={"perplexity/ada": 12.5})."""
    monkeypatch.chdir(tmp_path)

    def make(name, kind="lm", result=(), vocab_size=542, pos_of_model="", **flags):
        folder = tmp_path / name
        folder.mkdir()
        pos = pos_of_model or flags.get("pos", "learned")
        config = {"kind": kind, "flags": FLAGS | {"out": name} | flags}
        config["model"] = {"vocab_size": vocab_size, "pos": pos, "n_embd": 64}
        numbers = {key: 0.5 if key.startswith("accuracy/") else 20.0 for key in METRICS[kind]}
        result = numbers | {"parameters": {"total": 154798}, "seconds": 11.0} | dict(result)
        metrics = (
            {"step": step} | {key: result[key] * scale for key in METRICS[kind]}
            for step, scale in ((0, 30), (100, 2), (200, 1))
        )
        write_json(folder / "config.json", config)
        write_json(folder / "result.json", result)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
        return name

    return make


@pytest.fixture
def baseline(tmp_path):
    def baseline(name, result, **flags):
        (tmp_path / name).mkdir()
        flags = dict(data="toy", tokenizer="word", vocab_size=0, order=5, split="full") | flags
        write_json(tmp_path / name / "config.json", {"kind": "baselines", "flags": flags})
        write_json(tmp_path / name / "result.json", {"vocab_size": 542, "seconds": 1.2} | result)
        return name

    return baseline


@pytest.fixture
def table(monkeypatch):
    """table("a", "b") -> {first cell: {heading: cell}} of compare.md."""

    for name in ("draw_over_steps", "draw_over_lengths"):  # slower than all the rest
        monkeypatch.setattr(panels, name, lambda *_, **__: None)
    monkeypatch.setattr(compare, "save", lambda figure, path: None)

    def compared(*argv):
        out = succeed(call("compare", *argv)).out
        written = Path("out/compare/compare.md").read_text(encoding="utf-8")
        assert written in out
        header, _, *body = [
            [cell.strip() for cell in line.strip("| ").split(" | ")]
            for line in written.splitlines()
            if line.startswith("|")
        ]
        return {cells[0]: dict(zip(header, cells)) for cells in body}

    return compared


def outputs(name="compare.json"):
    return json.loads(Path("out/compare", name).read_text(encoding="utf-8"))


def by_label(found):
    return {c["label"]: c for c in found["configurations"]}


# ---------------------------------------------------------------------------- numbers


def test_mean_and_sample_deviation_over_seeds(make, table):
    # 10, 12, 17: mean 13, squared distances 9 + 1 + 16 = 26, over n - 1 = 2: 13.
    names = [
        make(
            f"a-{seed}",
            pos="alibi",
            seed=seed,
            result={"perplexity/ada": value, "bits_per_byte/ada": 1.5},
        )
        for seed, value in enumerate((10.0, 12.0, 17.0))
    ]
    cells = table(*names, make("b", result={"perplexity/ada": 30.0}))
    assert cells["ALiBi"]["perplexity ada"] == "**13.0** ± 3.6"
    assert cells["ALiBi"]["seeds"] == "0, 1, 2"
    assert cells["learned"]["perplexity ada"] == "30.0"  # one seed has no spread
    number = by_label(outputs())["ALiBi"]["numbers"]["perplexity/ada"]
    deviation = pytest.approx(13**0.5)
    assert number == {"mean": 13.0, "deviation": deviation, "values": [10.0, 12.0, 17.0]}
    assert by_label(outputs())["ALiBi"]["numbers"]["bits_per_byte/ada"]["mean"] == 1.5
    assert by_label(outputs())["learned"]["numbers"]["perplexity/ada"]["deviation"] is None


def test_curves_are_means_over_seeds():
    made = []
    for i in range(2):
        metrics = [{"step": 0, "x": 4.0 + i}, {"step": 10, "x": 1.0 + 2 * i}]
        made.append(Finished(Path(), "lm", seed=str(i), metrics=metrics))
    made[1].metrics.append({"step": 20, "x": 1.0})
    steps, means, deviations = Configuration(made).curve("x")
    assert (steps, means) == ([0, 10], [4.5, 2.0])
    assert deviations == pytest.approx([0.5**0.5, 2**0.5])


@pytest.mark.parametrize(
    "kind, heading, values, cells",
    [
        ("lm", "perplexity ada", (12.04, 11.96, 20.0), ["**12.0**", "**12.0**", "20.0"]),
        ("lm", "perplexity ada", (4.378, 20.0), ["**4.38**", "20.00"]),
        ("classifier", "accuracy (%) test", (0.8566, 0.5), ["**85.7**", "50.0"]),
        ("lm", "perplexity train", (4.378, 20.0), ["4.38", "20.00"]),  # memorising is no aim
    ],
)
def test_the_best_of_a_column_is_bold_and_so_are_ties(kind, heading, values, cells, make, table):
    entry = heading.replace(" (%)", "").replace(" ", "/")
    names = [make(p, kind, pos=p, result={entry: v}) for p, v in zip(POSITIONS, values)]
    assert [row[heading] for row in table(*names).values()] == cells


def test_macro_f1_has_a_column(make, table):
    cells = table(make("c", "classifier", pos="alibi", result={"macro_f1/test": 0.5}))
    assert [row["macro-F1 (%) test"] for row in cells.values()] == ["50.0"]


# ---------------------------------------------------------------------------- configurations


def test_runs_differing_in_seed_and_folder_are_one_configuration(make, table):
    names = [
        make("a", seed=0, result={"perplexity/ada@64": 9.0}),  # which b lacks
        make(
            "b", seed=1, device="cpu", threads=2, overwrite=True, eval_block="32,64", eval_every=9
        ),
        make("c", seed=2, dropout=0.1),
    ]
    assert [cells["seeds"] for cells in table(*names).values()] == ["0, 1", "2"]


def test_a_flag_that_is_off_is_as_one_unknown_to_older_runs(make, table):
    rows = table(make("a", pos="alibi"), make("b", pos="alibi", seed=1, newer=False), make("c"))
    assert list(rows)[:2] == ["ALiBi", "learned"] and rows["ALiBi"]["seeds"] == "0, 1"


def test_an_option_newer_than_a_run_had_its_default(make, table):
    old, same = make("a"), make("b", seed=1, activation="gelu")
    rows = table(old, same, make("c", activation="relu"))
    assert list(rows)[:2] == ["activation=gelu", "activation=relu"]
    assert rows["activation=gelu"]["seeds"] == "0, 1"


@pytest.mark.parametrize("init", ["", "roberta"])
def test_runs_before_and_after_config_has_grown_are_one_configuration(init, make, table):
    shape = {field.name: getattr(Config, field.name) for field in fields(ModelFlags)}
    for seed, newer in enumerate(((), ("alibi", "norm_eps"))):  # with a flag, and without
        path = Path(make(f"run-{seed}", seed=seed, init=init, **shape), "config.json")
        config = json.loads(path.read_text()) | {"model": asdict(Config(542))}
        for name in newer:
            config["flags"].pop(name, None)
            del config["model"][name]
        write_json(path, config)
    assert [cells["seeds"] for cells in table("run-0", "run-1").values()] == ["0, 1"]


def test_seeds_of_pretraining_do_not_make_configurations(make, table):
    for seed in (0, 1):
        make(f"text-{seed}", "lm", seed=seed)
    names = [make(f"then-{seed}", "lm", seed=seed, init_from=f"text-{seed}") for seed in (0, 1)]
    scratch = make("scratch", "lm", seed=0, init_from="")
    assert list(table(*names, scratch)) == ["init-from=pretrained", "init-from=scratch"]


def test_labels_are_the_flags_that_differ_spelled_as_flags(make, table):
    assert list(table(make("a", pos="alibi"), make("b", pos="rope"))) == ["ALiBi", "rotary"]
    assert list(table("a", make("c", pos="alibi", dropout=0.1, norm_first=False))) == [
        "norm-first=yes, dropout=0.0",
        "norm-first=no, dropout=0.1",
    ]
    assert list(table(make("d", window=0), make("e", window=8))) == ["window=none", "window=8"]


def test_runs_that_were_not_trained_alike_are_told(make):
    names = [make("a", steps=200, batch_size=16), make("b", pos="alibi", steps=1000, batch_size=16)]
    different = call("compare", *names).out
    assert "batch-size 16. Trained differently: steps 200, 1000." in different
    equal = call("compare", names[0], make("c", pos="alibi", steps=200, batch_size=16)).out
    assert "batch-size 16, steps 200." in equal and "Trained differently" not in equal
    local = [make(f"w{n}", pos="alibi", window=4, n_layer=n) for n in (1, 2)]
    assert "Causal LM on toy, ALiBi, window 4: single runs" in call("compare", *local).out
    local[1] = make("w3", pos="rope", window=4)
    assert "Causal LM on toy, window 4: single runs" in call("compare", *local).out
    rows = {"accuracy/test": 0.8, "rows/test": 1600}
    pair = [make(f"c{pos}", "classifier", pos=pos, result=rows) for pos in ("alibi", "rope")]
    assert " Test rows: 1,600. Settings: " in call("compare", *pair).out
    other = call("compare", pair[0], make("e", "classifier", epochs=2)).out
    assert "block-size 32" in other and "epochs 2" not in other and "Test rows" not in other


def test_a_single_configuration_is_not_told_of_differences(make, baseline):
    lone = make("a", result={"floor/perplexity/ada": 2.5})
    alone = succeed(call("compare", lone)).out
    assert "a single run. " in alone and "difference" not in alone and "bold" not in alone
    beside = succeed(call("compare", lone, baseline("n", {"perplexity/ada": 15.0}))).out
    assert "difference" in beside and "bold" in beside
    assert "not tested" not in alone + beside


def test_configurations_of_a_single_seed_are_named_as_not_tested(make):
    names = [make("a", pos="alibi", seed=0), make("b", pos="alibi", seed=1), make("c", pos="nope")]
    note = "note: not tested, a single seed: NoPE; train with more seeds\n"
    assert note in succeed(call("compare", *names)).out
    both = succeed(call("compare", *names, make("d", pos="nope", seed=1))).out
    assert "not tested" not in both and "Paired t-test" in both


def test_seen_sentences_are_explained_only_where_there_are_any(make):
    run = Path(make("a", "classifier"))
    assert "Seen test sentences" in succeed(call("compare", run)).out
    for path in (run / "result.json", run / "metrics.jsonl"):
        path.write_text(re.sub(r',\s*"accuracy/(un)?seen": [0-9.]+', "", path.read_text()))
    assert "Seen test sentences" not in succeed(call("compare", run)).out


def test_sentences_that_clean_removed_are_not_called_seen_in_training(make):
    for split, title in (("full", "seen in training"), ("clean", "removed from training")):
        read = read_finished(Path(make(split, "classifier", split=split)))
        panel = compare.panel("accuracy/seen", [Configuration([read])], [], False)
        assert panel.title == f"test, {title}"
    for runs, told in (
        (["full"], "and are partly memorised."),
        (["clean"], "and were removed from training."),
        (["full", "clean"], "and are partly memorised without --split clean."),
    ):
        assert told in succeed(call("compare", *runs)).out


def test_where_many_flags_differ_the_folders_are_the_labels(make, table):
    flags = {f"flag_{i}": "value" for i in range(9)}
    names = [make(f"wide-{seed}", seed=seed, **flags) for seed in range(2)]
    other = make("narrow-1", seed=1, **dict.fromkeys(flags, "none"))
    assert list(table(*names, other)) == ["wide", "narrow"]
    assert "since many flags differ; see --labels" in call("compare", *names, other).out


def test_labels_can_be_chosen_in_the_order_of_the_folders(make, table):
    names = [make("b", pos="rope"), make("a", pos="alibi")]
    assert list(table(*names, "--labels", "RoPE, A_L & B")) == ["RoPE", "A_L & B"]
    assert r"A\_L \& B" in Path("out/compare/compare.tex").read_text(encoding="utf-8")
    assert "label RoPE: rotary\n" in call("compare", *names, "--labels", "RoPE,A").out
    wrong = call("compare", *names, "--labels", "RoPE")
    assert_complains(wrong, "one name for each configuration, all different: rotary; ALiBi")


def test_seeds_of_encoders_do_not_make_configurations(make, table):
    names = []
    for pos in ("alibi", "rope"):
        for seed in range(2):
            encoder = make(f"mlm-{pos}-{seed}", "mlm", pos=pos, seed=seed, mask_rate=0.15)
            # the encoder's positions count, whatever --pos was
            tuned = dict(encoder=encoder, tune="all", seed=seed, pos_of_model=pos)
            names.append(make(f"tuned-{pos}-{seed}", "classifier", **tuned))
    seeds = {label: cells["seeds"] for label, cells in table(*names).items()}
    assert seeds == {"ALiBi": "0, 1", "rotary": "0, 1"}
    scratch = make("scratch", "classifier", encoder="", tune="frozen", pos="alibi")
    assert list(table(*names[:2], scratch)) == ["encoder=pretrained", "encoder=scratch"]
    crossed = make("crossed", "classifier", **tuned | {"seed": 0})  # on the encoder of seed 1
    assert [cells["seeds"] for cells in table(names[2], crossed).values()] == ["0, 0 (encoder 1)"]


def test_flags_that_follow_from_the_encoder_are_named_only_where_nothing_else_differs(make, table):
    frozen = dict(encoder=make("mlm", "mlm"), tune="frozen", n_component=1000, lr=4e-4)
    linear = make("linear", "classifier", **frozen, n_hidden=0)
    alone = dict(encoder="", tune="frozen", n_component=0, lr=1e-3)
    joint = make("joint", "classifier", **alone, n_hidden=100)
    assert list(table(joint, linear)) == ["encoder=scratch", "encoder=pretrained"]
    other = make("other", "classifier", **frozen, n_hidden=300)
    assert list(table(linear, other)) == ["n-hidden=0", "n-hidden=300"]
    assert list(table(joint, linear, other)) == ["joint", "linear", "other"]  # five flags differ


def test_the_corpus_of_an_encoder_makes_a_configuration(make, table):
    encoders = [make(f"mlm-{data}", "mlm", data=data) for data in ("toy", "ada")]
    # the size is the encoder's, whatever --n-embd was
    frozen = [make(f"on-{e}", "classifier", encoder=e, n_embd=n) for n, e in enumerate(encoders)]
    assert list(table(*frozen)) == ["encoder data=toy", "encoder data=ada"]


def test_the_same_roberta_at_two_places_is_one_configuration(make, table):
    roberta = [make(f"on-{seed}", "classifier", init=f"{seed}/base", seed=seed) for seed in (0, 1)]
    assert [cells["seeds"] for cells in table(*roberta).values()] == ["0, 1"]
    scratch = make("scratch", "classifier", init="", n_embd=64)
    larger = make("larger", "classifier", init="large", n_embd=1024)
    assert list(table(larger, scratch)) == ["init=large", "init=scratch"]


def test_what_a_classifier_tunes_makes_a_configuration(make, table):
    by_likelihood = [make(tune, "classifier", tune=tune) for tune in ("all", "biases")]
    assert list(table(*by_likelihood)) == ["tune=all", "tune=biases"]


# ---------------------------------------------------------------------------- baselines, floor


def test_baselines_can_be_the_best_and_the_floor_cannot(make, baseline, table):
    floor = {"floor/perplexity/ada": 2.53}
    ngrams = {"perplexity/ada": 15.0, "perplexity/ada@2-gram": 17.0}
    cells = table(
        baseline("base", ngrams | floor, rare_unknown=0.0),  # a flag that older runs lack
        make("a", pos="alibi", result=floor),
        make("b"),
    )
    assert list(cells) == ["ALiBi", "learned", "5-gram", "best possible"]
    assert [row["perplexity ada"] for row in cells.values()] == ["20.0", "20.0", "**15.0**", "2.5"]
    assert cells["5-gram"]["perplexity train"] == "–"
    assert "@" not in "".join(cells["5-gram"])
    tex = Path("out/compare/compare.tex").read_text(encoding="utf-8")
    places = [tex.index(row) for row in ("\nlearned", "\\midrule\n5-gram", "best possible")]
    assert places == sorted(places)


def test_baselines_of_a_classifier_are_naive_bayes(make, baseline, table):
    names = [
        baseline("full", {"accuracy/test": 0.9}),
        baseline("clean", {"accuracy/test": 0.6}, split="clean"),
        make("a", "classifier"),
    ]
    assert list(table(*names)) == ["a", "naive Bayes", "naive Bayes, split=clean"]


def test_baselines_are_named_by_what_sets_them_apart_from_the_runs(make, baseline, table):
    full, clean = (baseline(name, {"accuracy/test": 0.9}, split=name) for name in ("full", "clean"))
    cells = table(full, clean, make("a", "classifier", split="clean"))
    assert list(cells) == ["a", "naive Bayes, split=full", "naive Bayes"]


# ---------------------------------------------------------------------------- McNemar's test


def answers(folder, sure):
    """Write predictions of rows of the class "yes" with these probabilities. Two rows are seen."""
    shares, seen = [[1 - p, p] for p in sure], [n < 2 for n in range(len(sure))]
    texts, classes, gold = [f"text {n}" for n in range(len(sure))], ["no", "yes"], [1] * len(sure)
    write_predictions(Path(folder, "predictions.tsv"), texts, shares, classes, gold, seen)


def test_classifiers_are_tested_on_the_same_rows(make, baseline, table):
    names = [
        make("a", "classifier", pos="alibi"),
        make("b", "classifier", pos="nope"),
        baseline("base", {"accuracy/test": 0.5}),
    ]
    for name, right in zip(names, ("11111111", "00000001", "11110000")):
        answers(name, [0.9 if mark == "1" else 0.1 for mark in right])
    table(*names)
    text = Path("out/compare/compare.md").read_text(encoding="utf-8")
    assert "- ALiBi and naive Bayes differ on 4 rows (4 to 0), p = 0.125: not significant\n" in text
    tests = outputs()["mcnemar"]
    assert (tests[0]["first"], tests[0]["second"], len(tests)) == ("ALiBi", "NoPE", 3)
    expected = {"seed": "0", "rows": 8, "only_first": 7, "only_second": 0, "p": 2 / 2**7}
    assert tests[0]["results"] == [expected]


def test_classifiers_answer_together(make, baseline, table):
    """Each is wrong on two rows but unsure there, so together they are right on three of four."""
    names = [make(f"a{seed}", "classifier", pos="alibi", seed=seed) for seed in (0, 1)]
    names += [make(f"b{seed}", "classifier", pos="nope", seed=seed) for seed in (0, 1)]
    for name in names:
        answers(name, [0.9, 0.45, 0.9, 0.3] if name[0] == "a" else [0.45, 0.9, 0.9, 0.45])
    answers("b1", [0.45, 0.9, 0.9, 0.9])
    rows = table(*names, baseline("base", {"accuracy/test": 0.5}), "--together")
    assert list(rows) == ["ALiBi", "NoPE", "together", "naive Bayes"]
    assert rows["together"]["seeds"] == "0, 1"
    assert rows["together"]["accuracy (%) test"] == "**87.5** ± 17.7"
    assert rows["together"]["accuracy (%) seen"] == "**100.0** ± 0.0"
    text = Path("out/compare/compare.md").read_text(encoding="utf-8")
    assert "- ALiBi and together differ on 1 row (0 to 1), p = 1.000; 2 rows (0 to 2)" in text
    (folder, other) = (Path("out/compare", f"together-{seed}") for seed in (0, 1))
    assert (folder / "predictions.tsv").exists() and (other / "predictions.tsv").exists()

    alone = table("b0", "b1", "--together")  # all seeds of one configuration
    assert alone["together (2 runs)"]["accuracy (%) unseen"] == "**100.0**"


def test_runs_that_cannot_answer_together_are_named(make):
    rows = {"a0": ["one"], "b1": ["one"], "b0": ["another"]}
    for name, texts in rows.items():
        make(name, "classifier", pos="alibi" if name[0] == "a" else "nope", seed=int(name[1]))
        path = Path(name, "predictions.tsv")
        write_predictions(path, texts, [[0.5, 0.5]], ["no", "yes"], [1], [True])
    for names, *parts in (
        (["b0", "b1"], "b1", "leave it out"),
        (["a0", "b1"], "--together", "share no seed", "same seeds"),
        (["a0"], "--together", "single run", "name more runs"),
        ([make("lm")], "--together", "no answers", "leave it out"),
    ):
        assert_complains(call("compare", *names, "--together"), *parts)


def test_runs_without_predictions_cost_one_note(make):
    names = [make(name, "classifier", pos=name) for name in ("alibi", "nope")]
    out = succeed(call("compare", *names)).out
    (note,) = [line for line in out.splitlines() if line.startswith("note: ")]
    assert "no predictions.tsv in alibi, nope;" in note
    assert outputs()["mcnemar"] == [] and "McNemar" not in out


# ---------------------------------------------------------------------------- files


def test_latex_is_escaped_and_its_rows_are_of_one_length(make):
    assert (
        tables.escaped("a_b & 5% of $x^2 #{~\\} < |m| `---c`")
        == r"a\_b \& 5\% of \$x\textasciicircum{}2 \#\{\textasciitilde{}\textbackslash{}\} $<$ "
        r"\textbar{}m\textbar{} \texttt{-{}-{}-c}"
    )
    better = make("b_0", "mlm", pos="alibi", result={"perplexity/valid": 7.0})
    succeed(call("compare", make("a_0", "mlm"), better))
    lines = Path("out/compare/compare.tex").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert rows[1] == r"configuration & seeds & valid & valid & parameters \\"
    two = r"\multicolumn{1}{c}{perplexity} & \multicolumn{1}{c}{accuracy (\%)}"
    assert rows[0] == rf" &  & {two} &  \\"
    assert rows[3] == r"ALiBi & 0 & \textbf{7.00} & \textbf{50.0} & 154,798 \\"
    assert r"\cmidrule(lr){3-3} \cmidrule(lr){4-4}" in lines
    assert {line.strip(r"\ ").replace(r"\&", "").count("&") for line in rows} == {4}


def is_picture(path):
    return (
        path.read_bytes().startswith(b"\x89PNG\r\n")
        and path.stat().st_size > 5000
        and path.with_suffix(".pdf").stat().st_size > 1000
        and b"/Type3" not in path.with_suffix(".pdf").read_bytes()
    )


def test_figures_are_written_and_a_stale_one_goes(make, baseline):
    test = {"tokens/ada": 50, "floor/perplexity/ada": 2.5}
    long = test | {"perplexity/ada@64": 21.0, "perplexity/ada@128": 23.0}
    names = [
        make("a", pos="alibi", result=long),
        make("b", pos="alibi", result=long, seed=1),
        make("c", block_size=16, result=test),
        baseline("base", test | {"perplexity/ada": 15.0}),
    ]
    out, folder = succeed(call("compare", *names)).out, Path("out/compare")
    assert is_picture(folder / "compare.png")
    assert is_picture(folder / "train-short-test-long.png")
    files = "compare and train-short-test-long (.png, .pdf, .md, .tex), compare.json"
    assert out.splitlines()[-1] == f"configurations: 2, runs: 3; out/compare: {files}"
    again = succeed(call("compare", "c", make("d", seed=1, result=test))).out
    assert "replaced" not in out and again.endswith(
        "replaced an older comparison (--out NAME keeps both)\n"
    )
    assert is_picture(folder / "compare.png") and not [*folder.glob("train-short-test-long*")]


def test_longer_blocks_have_a_table_and_a_test(make):
    def result(*perplexities):
        names = ("ada", "bruno", "ada@64", "bruno@64", "train@64", "ada@128", "bruno@128")
        found = {f"perplexity/{name}": p for name, p in zip(names, perplexities)}
        return {"tokens/ada": 50, "tokens/bruno": 100} | found

    names = [
        make("a0", pos="alibi", result=result(80, 10, 80, 10, 1, 160, 20)),
        make("a1", pos="alibi", seed=1, result=result(160, 20, 80, 10, 1, 160, 20)),
        make("b0", pos="nope", result=result(40, 40, 20, 20, 1, 60, 60)),
        make("b1", pos="nope", seed=1, result=result(40, 40, 30, 30, 1, 60, 60)),
        make("c", block_size=64, result=result(5, 5)),
    ]
    out = succeed(call("compare", *names)).out
    text = Path("out/compare/train-short-test-long.md").read_text(encoding="utf-8")
    assert text in out
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()[:5]]
    assert rows[0][2:] == [f"perplexity {n} tokens" for n in (32, 64, 128)]
    # Of 80 on 50 tokens and 10 on 100 tokens: (80 * 10 * 10) ** (1 / 3) = 20
    label, seeds, *cells = rows[2]
    assert "ALiBi" in label and cells == ["**30.0** ± 14.1", "20.00 ± 0.00", "**40.0** ± 0.0"]
    assert rows[3][2:] == ["40.0 ± 0.0", "25.00 ± 7.07", "60.0 ± 0.0"]
    assert rows[4][2:] == ["–", "**5.00**", "–"]  # trained with 64 tokens, and measured there
    assert "Trained with 32 or 64 tokens. –: not measured with every seed." in text
    (test,) = outputs()["paired at the longest"]
    assert test["percent"] == pytest.approx(50) and test["tokens"] == 128 and test["seeds"] == 2
    line = "NoPE, block-size=32 is 50.0 ± 0.0% above ALiBi, block-size=32 over 2 seeds"
    assert "perplexities at 128 tokens" in text and line in text


@pytest.mark.parametrize(
    "low, high", [(4.1, 12.3), (2.3, 65), (100, 7000), (310, 330), (0.9, 3e9), (16.1, 16.4)]
)
def test_log_axes_have_a_few_plain_ticks_within_their_limits(low, high):
    _, axis = figures.new_figure()
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    figures.plain_log_ticks(axis)
    ticks = list(axis.get_yticks())
    assert axis.get_ylim() == (low, high)
    assert 2 <= len(ticks) <= 11 and low <= min(ticks) and max(ticks) <= high
    texts = [axis.yaxis.get_major_formatter()(tick, 0) for tick in ticks]
    assert [float(text.replace(",", "")) for text in texts] == pytest.approx(ticks)
    assert len(set(texts)) == len(texts)


def test_shares_have_one_scale_in_all_panels():
    low, high = {"a": ([1, 2], [20, 40], [0, 0])}, {"a": ([1, 2], [90, 95], [1, 1])}
    three = [
        Panel("low", "accuracy (%)", low),
        Panel("high", "accuracy (%)", high),
        Panel("other", "perplexity (log scale)", high, log=True),
    ]
    axes = panels.draw_over_steps("title", three, "step").axes
    first, second, other = (axis.get_ylim() for axis in axes)
    assert first == second and first[0] <= 20 and 96 <= first[1] <= 102 and other[0] > 50


def test_what_a_short_run_reached_stays_in_sight():
    lines = {
        "short": ([0, 50, 100], [540, 60, 41], [0, 0, 0]),
        "long": ([0, 500, 1000], [540, 6, 5], [0, 0, 0]),
    }
    both = Panel("both", "perplexity (log scale)", lines, log=True)
    (axis,) = panels.draw_over_steps("title", [both], "step").axes
    low, high = axis.get_ylim()
    assert low < 5 and 60 < high < 540  # where they began is not drawn
    assert {min(line.get_xdata()) for line in axis.lines} == {50, 500}


@pytest.mark.parametrize("metric, ylabel", [("bleu", "BLEU"), ("exact", "exact (%)")])
def test_only_shares_are_drawn_in_percent(metric, ylabel):
    name = f"{metric}/test"
    run = Finished(Path("a"), "seq2seq", numbers={name: 0.5}, metrics=[{"step": 0, name: 0.5}])
    panel = compare.panel(name, [Configuration([run], "a")], [], in_epochs=False)
    factor = 100 if ylabel.endswith("(%)") else 1
    assert (panel.ylabel, panel.lines["a"][1]) == (ylabel, [0.5 * factor])


def test_classifiers_without_epochs_to_draw_are_points(make, baseline, monkeypatch):
    drawn = []
    monkeypatch.setattr(panels, "draw_over_steps", lambda *arguments: drawn.append(arguments))
    monkeypatch.setattr(compare, "save", lambda figure, path: None)
    names = [
        make("a", "classifier", pos="alibi", epochs=15, refit=True, result={"accuracy/test": 0.8}),
        make("b", "classifier", pos="nope", epochs=15, refit=False),
        make("c", "classifier", pos="learned", result={"accuracy/test": 0.7}),  # counts steps
        baseline("base", {"accuracy/test": 0.9}),
    ]
    assert call("compare", *names)[0] == 0
    title, (_, test, *_), xlabel, lines_are, finals_are = drawn[0]
    assert (title, xlabel) == ("Classification on toy", "epoch")
    assert test.lines["NoPE, refit=no"][0] == [0, 100, 200]
    assert test.lines["learned"] == ([], [], [])
    assert test.finals == {"ALiBi, refit=yes": (80.0, 0.0), "learned": (70.0, 0.0)}
    assert test.levels == {"naive Bayes, all training rows": (90.0, "--")}
    assert "rows held out" in lines_are and "all training rows" in finals_are


def test_lengths_of_evaluation_begin_with_that_of_training(make):
    result = {"perplexity/ada@128": 3.0, "perplexity/ada@64": 2.0, "perplexity/ada": 1.0}
    read = read_finished(Path(make("a", result=result | {"perplexity/bruno@64": 9.0})))
    found = Configuration([read]).by_length("perplexity/ada")
    assert found == ([32, 64, 128], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    assert Configuration([read, read], "label").legend == "label (2 seeds)"


# ---------------------------------------------------------------------------- mistakes


def run(*args, **more):
    """A run to be made by the fixture `make`."""
    return lambda make, baseline: make(*args, **more)


def ngrams(name, result):
    """A run to be made by the fixture `baseline`."""
    return lambda make, baseline: baseline(name, result)


def damaged(made, file, text=None):
    """A run in which a file holds this text, or which lacks it."""

    def build(*fixtures):
        path = Path(made(*fixtures), file)
        path.unlink() if text is None else path.write_text(text)
        return path.parent.name

    return build


A, TRIGRAMS = run("a"), ngrams("base", {"perplexity/ada": 3.0})
SHARES = ["valid=0.05", "valid=0.4", "not comparable"]
MISTAKES = {  # what is compared, and what the message says
    "no run": (["."], ["no config.json"]),
    "unfinished": ([damaged(A, "result.json")], ["a: ", "not finished", "train_KIND.py --resume"]),
    "n-grams": ([damaged(TRIGRAMS, "result.json")], ["base: ", "not finished", "repeat its com"]),
    "no kind": ([damaged(A, "config.json", "{}")], ["a:", "is not that of a run"]),
    "no flags": ([damaged(A, "config.json", '{"kind": "lm"}')], ["a:", "is not that of a run"]),
    "no metrics": ([damaged(A, "metrics.jsonl", "")], ["a:", "metrics.jsonl"]),
    "kinds": ([A, run("b", "mlm")], ["a (Causal LM) and b (Masked LM)", "each kind on its own"]),
    "masked LM and n-grams": ([run("a", "mlm"), TRIGRAMS], ["base", "not comparable"]),
    "only baselines": ([TRIGRAMS], ["base", "at least one run"]),
    "other baseline": ([A, ngrams("base", {"accuracy/test": 0.5})], ["base", "leave it out"]),
    "corpora": ([A, run("b", data="c")], ["a (--data toy) and b (--data c)", "same data"]),
    "changed corpus": (
        [run("a", result={"tokens/ada": 50}), run("b", seed=1, result={"tokens/ada": 60})],
        ["50", "60", "the data or --eval-test differs"],
    ),
    "test parts": (
        [run("a", "classifier", split="1/5"), run("b", "classifier", split="2/5")],
        ["a (--split 1/5) and b (--split 2/5)", "give runs on one part"],
    ),
    "tokenizers": (
        [A, run("b", tokenizer="bpe", vocab_size=4000)],
        ["a (word vocabulary of 542) and b (bpe vocabulary of 4,000)", "bits_per_byte"],
    ),
    "mask rates": (
        [run("a", "mlm", mask_rate=0.15), run("b", "mlm", mask_rate=0.4)],
        ["mask_rate=0.15", "mask_rate=0.4", "not comparable"],
    ),
    "shares": ([run("a", "mlm", valid=0.05), run("b", "mlm", valid=0.4)], SHARES),
    "shares without test sets": ([run("a", valid=0.05), run("b", valid=0.4)], SHARES),
    "decoders of train_lm.py and train_mlm.py": (
        [run("a", result={"tokens/ada": 50}), run("b")],
        ["a (test sets ada) and b (held-out sentences)", "different texts"],
    ),
    "twice the same": ([A, run("b")], ["a and b", "same seed 0"]),
    "out is a run": ([A, "--out", "a"], ["--out a: is a run"]),
    "out is a file": ([A, "--out", "a/result.json"], ["is a file"]),
}


@pytest.mark.parametrize("given, parts", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_costs_one_line_that_says_what_to_do(given, parts, make, baseline):
    words = [word if isinstance(word, str) else word(make, baseline) for word in given]
    done = call("compare", *words)
    assert_complains(done, *parts)
    assert done.out == "" and done.err.startswith("compare.py: ")


def test_the_same_corpus_at_another_place_is_the_same(make, table):
    names = make("a", data="speeches"), make("b", data="/elsewhere/speeches", seed=1)
    assert len(table(*names)) == 1
