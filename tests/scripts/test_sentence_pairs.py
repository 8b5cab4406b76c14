"""Pairs of sentences: read from tables, classified or scored, opened again."""

import json
import math

import numpy as np
import pytest
import torch
from helpers import SIZE, call, fails, sentences, succeed
from scipy.stats import pearsonr, spearmanr

from baselines import describe_overlap
from data import load
from data.files import UserError
from data.labelled import load_labelled
from data.tokenizer import BOS, EOS, SPECIAL
from lab import load_run
from lab.inside.means import head_means
from nets.build import Options
from nets.pairs import SegmentVectors

# (sentence, sentence, whether they share one of their two nouns)
NOUNS = "peace work hope war freedom jobs schools taxes".split()
PAIRS = [
    (a, b, any(noun in a and noun in b for noun in NOUNS))
    for a, b in zip(sentences(300), sentences(300, 7))
]
TRAIN = (*SIZE, "--block-size", 24, "--epochs", 3, "--valid", 0.2)


def write(path, header="label,sentence1,sentence2", label=lambda same: "same" if same else "other"):
    lines = [header, *(f"{label(same)},{a},{b}" for a, b, same in PAIRS)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "pairs.csv")


@pytest.mark.parametrize(
    "header", ["label,sentence_A,sentence_B", "gold_label,premise,hypothesis", "class,text,text2"]
)
def test_columns_of_pairs_are_found_by_their_names(header, tmp_path):
    found = load(write(tmp_path / "mine.csv", header))
    expected = {f"{a} [EOS] {b}" for a, b, _ in PAIRS}
    assert {text for _, text in found.rows + found.test_rows} == expected
    assert found.classes == ["other", "same"]
    assert found.lines[:2] == found.rows[0][1].split(" [EOS] ")


def test_other_columns_are_named(tmp_path):
    path = write(tmp_path / "mine.csv", "gold,first,second")
    found = load_labelled(path, columns="gold,first,second")
    assert found.rows == load_labelled(write(tmp_path / "named.csv")).rows
    argv = ("train_classifier", *TRAIN, "--out", tmp_path / "run")
    fails(call(*argv, data=path, columns="gold,first,third"), "has no third")
    fails(call(*argv, data=path, columns="gold,first,second", target="score"), "'other'", "number")
    fails(call(*argv, data=tmp_path / "named.csv", target="score"), "column score")


def test_sick_has_classes_scores_and_a_validation_set(tmp_path):
    for part, n in ("train", 90), ("trial", 8), ("test", 20):
        lines = ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
        lines += [f"{i}\t{a}\t{b}\t{1 + i % 5}\tC{i % 3}" for i, (a, b, _) in enumerate(PAIRS[:n])]
        (tmp_path / f"SICK_{part}.txt").write_text("\r\n".join(lines), "utf-8")
    found = load(tmp_path)
    assert [*map(len, (found.rows, found.valid_rows, found.test_rows))] == [90, 8, 20]
    scored = load_labelled(tmp_path, "score")
    assert [score for score, _ in scored.valid_rows] == [1.0 + i % 5 for i in range(8)]
    result = train(tmp_path, tmp_path / "run")
    assert result["rows/test"] == 20 and "accuracy/new" not in result


@pytest.mark.parametrize("n", [2, 4])
def test_segments_tell_the_sentence_and_the_words_of_both(n):
    segments, first = SegmentVectors(Options(n_segment=n, n_embd=6)), len(SPECIAL)
    torch.nn.init.normal_(segments.vectors)
    rows = [
        [BOS, first, first + 1, EOS, first + 1, first + 2, EOS],
        [BOS, first, EOS, first, 0, 0, 0],
    ]
    found = segments(torch.tensor(rows))
    for row, vectors in zip(rows, found):
        middle = row.index(EOS)
        for t, token in enumerate(row):
            other = row[middle + 1 :] if t <= middle else row[:middle]
            index = int(t > middle) + (2 if n == 4 and token >= first and token in other else 0)
            assert torch.equal(vectors[t], segments.vectors[index])


def train(data, out, **flags):
    succeed(call("train_classifier", *TRAIN, "--overwrite", data=data, out=out, **flags))
    return json.loads((out / "result.json").read_text("utf-8"))


@pytest.mark.slow
def test_overlap_tells_whether_a_word_is_repeated(table, tmp_path):
    how = dict(pool="max", epochs=10, lr=0.01, head_dropout=0, pos="nope")
    with_it = train(table, tmp_path / "a", overlap=True, **how)
    assert with_it["accuracy/test"] > 0.95 > train(table, tmp_path / "b", **how)["accuracy/test"]
    fails(call("train_classifier", *TRAIN, overlap=True, out=tmp_path / "c"), "needs pairs")


@pytest.mark.parametrize("causal", [False, True])
def test_a_run_reads_pairs_as_in_training(causal, table, tmp_path):
    train(table, tmp_path / "run", **(dict(causal=True) if causal else {}))
    run = load_run(tmp_path / "run")
    rows = (tmp_path / "run" / "predictions.tsv").read_text("utf-8").splitlines()[1:]
    for row in rows[:5]:
        text, _, predicted, *shares, _ = row.split("\t")
        ((name, share), *_) = run.classify(tuple(text.split(" [EOS] ")))[0].items()
        assert name == predicted and share == pytest.approx(max(map(float, shares)), abs=1e-5)
    view = run.attention(text)
    assert view.words.count("[EOS]") == 1 + causal and all(check["ok"] for check in view.checks)
    middle = view.words.index("[EOS]")
    n, found = len(view.words), [row for row in head_means([view]) if row["head"]]
    other = [(t, s) for t in range(n) for s in range(n) if (t > middle) != (s > middle)]
    same = [(t, s) for t, s in other if view.words[t] == view.words[s] != "[EOS]"]
    for name, cells in ("across", other), ("match", same):
        weights = [np.array(view.weights)[:, :, t, s] for t, s in cells]  # each (L, H)
        share = sum(weights) / n
        assert [row[name] for row in found] == pytest.approx(share.flatten().tolist(), abs=1e-3)
    assert same


@pytest.mark.slow
def test_scores_are_correlated_with_the_true_ones(tmp_path):
    path = write(tmp_path / "scored.csv", "score,text1,text2", lambda same: 5.0 if same else 2.0)
    result = train(path, tmp_path / "run", target="score", overlap=True, epochs=8, lr=0.01)
    rows = (tmp_path / "run" / "predictions.tsv").read_text("utf-8").splitlines()[1:]
    true, given = zip(*(map(float, row.split("\t")[1:3]) for row in rows))
    for name, compute in ("pearson", pearsonr), ("spearman", spearmanr):
        assert result[f"{name}/test"] == pytest.approx(compute(true, given).statistic, abs=0.01)
    interval = pearsonr(true, given).confidence_interval()
    assert result["pearson/test/low"] == pytest.approx(interval.low, abs=0.01)
    error = np.mean((np.array(true) - given) ** 2)
    assert result["squared_error/test"] == pytest.approx(error, rel=1e-3)
    far = write(path, "score,text1,text2", lambda same: 1905.0 if same else 1902.0)  # years
    again = train(far, tmp_path / "again", target="score", overlap=True, epochs=8, lr=0.01)
    assert again["pearson/test"] == pytest.approx(result["pearson/test"], abs=0.1)
    assert math.isfinite(result["pearson/valid"]) and (tmp_path / "run" / "scatter.png").exists()


def test_baselines_count_what_two_sentences_share(table, tmp_path):
    succeed(call("baselines", data=table, out=tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    assert result["accuracy/test@overlap"] > result["accuracy/test@second sentence"]
    pair = "The cat never saw a dog . [EOS] The dog saw no bird"
    assert describe_overlap(pair) == "shared3 only3first only2second noTruenoTrue"


@pytest.mark.slow
def test_a_score_run_can_be_used(tmp_path, capsys):
    path = write(tmp_path / "scored.csv", "score,text1,text2", lambda same: 5.0 if same else 2.0)
    train(path, tmp_path / "run", target="score")
    run, pair = load_run(tmp_path / "run"), PAIRS[0][:2]
    (score,) = run.classify(pair)[0].values()
    assert (
        f"{score:.3f}  score" in succeed(call("sample", run.folder, text=" [EOS] ".join(pair))).out
    )
    succeed(call("sample", run.folder, file=path))
    assert run.attention(pair).html()
    with pytest.raises(UserError, match="gives scores"):
        run.errors()
    succeed(call("compare", run.folder, out=tmp_path / "out"))
    assert "Pearson's r test" in (tmp_path / "out" / "compare.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scores", ["1", "0 0 0 0 0 0 0 0 1", "1 2 3"])
def test_scores_without_a_correlation_are_no_divergence(scores, tmp_path):
    """Few rows, or equal scores of the rows that choose the epoch."""
    scores = iter(scores.split() * len(PAIRS))
    path = write(tmp_path / "scored.csv", "score,text1,text2", lambda same: next(scores))
    lines = path.read_text("utf-8").splitlines()[:21]
    path.write_text("\n".join(lines), "utf-8")
    result = train(path, tmp_path / "run", target="score")
    assert -1 <= result["pearson/test/low"] <= result["pearson/test"] <= 1
    path.write_text("\n".join([*lines, "nan,a,b"]), "utf-8")
    fails(call("train_classifier", data=path, target="score"), "not all numbers", "nan")


def test_a_lost_second_sentence_is_reported(table, tmp_path):
    done = call("train_classifier", *TRAIN, "--block-size", 6, data=table, out=tmp_path / "run")
    assert "train pairs lost their second sentence" in succeed(done).out
