"""train_classifier.py: accuracies counted by hand, jointly, frozen and fine-tuned."""

from operator import itemgetter

import pytest
import torch
from helpers import SIZE, call, fails, stopped_at, succeed, write_corpus
from test_train_mlm import same_runs, weights

import data
from data.labelled import Rows
from data.leaks import hold_out
from data.tokenizer import BOS, encode
from lab.classification import beside_majority, draw_confusion
from lab.load import read_config, read_metrics, read_result, read_run
from lab.predictions import read_predictions
from lab.run import Run
from nets.classifier import compute_features, pool_tokens
from train_classifier import POOLS

LEARN = (*SIZE, *"--valid 0.2 --lr 0.02 --epochs 5 --dropout 0 --threads 1".split())


def run(corpus, out, *argv, **flags):
    done = succeed(call("train_classifier", "--data", corpus, *LEARN, *argv, out=out, **flags))
    return done, read_result(out), read_run(out)


def answer(loaded, text):
    """Return the logits of one text, read without others."""
    ids = torch.tensor([[BOS, *encode(loaded.tokenizer, [text])[0]][:12]])
    return loaded.model(ids)[0].detach()


def share_right(loaded, rows):
    right = sum(answer(loaded, text).argmax() == label for label, text in rows)
    return pytest.approx(right.item() / len(rows))


@pytest.mark.parametrize("how", [[], ["--causal"], ["--causal", "--pos", "fire"]])
def test_the_result_is_that_of_the_rows_one_by_one(how, corpus, tmp_path):
    done, result, loaded = run(corpus, tmp_path / "a", *(how or ["--pos", "alibi"]))
    rows = data.load(corpus).test_rows
    expected = [answer(loaded, text).softmax(0) for _, text in rows]
    classes, texts, gold, predicted, shares, seen = read_predictions(tmp_path / "a")
    assert list(texts) == [text for _, text in rows]
    assert list(predicted) == [classes[p.argmax()] for p in expected]
    torch.testing.assert_close(torch.tensor(shares), torch.stack(expected), atol=1e-5, rtol=0)
    n, confusion = sum(seen), result["confusion"]
    assert result["accuracy/test"] == share_right(loaded, rows)
    assert result["accuracy/seen"] == share_right(loaded, rows[:n])
    assert [sum(row) for row in confusion] == [gold.count(name) for name in classes]
    f1 = [2 * confusion[i][i] / (sum(confusion[i]) + predicted.count(classes[i])) for i in (0, 1)]
    assert result["macro_f1/test"] == pytest.approx(sum(f1) / 2)
    assert how or result["accuracy/train"] > 0.8
    assert loaded.model.body.causal == bool(how)
    assert f"({n} of them are also in the training files)" in done.out and "macro-F1" in done.out
    assert (tmp_path / "a" / "confusion.png").exists() and (tmp_path / "a" / "curve.png").exists()


def test_search_measures_the_held_out_rows_and_keeps_its_best_epoch(corpus, tmp_path):
    _, result, loaded = run(corpus, tmp_path / "a", "--no-refit", balance="none", lr=0.05)
    lines = read_metrics(tmp_path / "a")
    best = max(lines, key=lambda line: line["accuracy/valid"])  # the first of equals
    assert result["epoch"] == best["step"] and [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    for name in ("accuracy/train", "accuracy/test", "accuracy/valid"):
        assert result[name] == pytest.approx(best[name])
    rows, label, text = data.load(corpus).rows, itemgetter(0), itemgetter(1)
    _, held = hold_out(rows, 0.2, key=text, kind=label)
    losses = [-answer(loaded, text).log_softmax(0)[label].item() for label, text in held]
    assert best["loss/valid"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_retraining_starts_from_scratch_on_all_rows(corpus, tmp_path):
    _, kept, _ = run(corpus, tmp_path / "kept", "--no-refit")
    done, result, loaded = run(corpus, tmp_path / "refit")
    assert read_metrics(tmp_path / "kept") == read_metrics(tmp_path / "refit")
    # Both report the search that chose the number of epochs
    assert all(result[name] == kept[name] for name in ("epoch", "accuracy/valid"))
    rows = data.load(corpus).rows
    assert result["accuracy/train"] == share_right(loaded, rows) != kept["accuracy/train"]
    assert f"retraining from scratch on all {len(rows)} rows" in done.out


def test_retraining_takes_longer_while_fewer_training_rows_are_right(corpus, tmp_path, monkeypatch):
    save = Run.save_weights

    def better(run, name, *args, **numbers):  # as if the search had got all right at epoch 1
        if run.lines and "accuracy/train" in run.lines[-1]:
            run.best = run.lines[0] | {"accuracy/train": 1.0, "accuracy/valid": 1.0}
        save(run, name, *args, **numbers)

    monkeypatch.setattr(Run, "save_weights", better)
    done, _, _ = run(corpus, tmp_path / "a", lr=1e-6)
    assert "the final model gets only" in done.out and "after 5 epochs on all" in done.out


def test_balance_weights_a_rare_class_like_a_common_one(tmp_path):
    # The text tells nothing about the class, so the model answers with the share of the class as
    # the loss sees it: 1/5, or 1/2 with weights. Training adds the prior a second time and the
    # finished model leaves it out, which turns odds of 1/4 into odds of 4.
    rows = [f"{'common' if n % 5 else 'rare'}\tnumber {n} of them\n" for n in range(100)]
    (tmp_path / "mine.tsv").write_text("".join(rows))
    share = {}
    for how in ("none", "weights", "prior"):
        argv = "--n-layer 1 --epochs 1 --batch-size 8 --lr 0.005 --head-dropout 0 --vocab-size 8"
        argv = (*argv.split(), "--balance", how)
        succeed(call("train_classifier", *argv, data=tmp_path / "mine.tsv", out=tmp_path / how))
        loaded = read_run(tmp_path / how)
        shares = answer(loaded, "number unheard of them").softmax(0)
        share[how] = shares[loaded.config["classes"].index("rare")].item()
    assert share["none"] < 0.33 < share["weights"] < 0.6 < share["prior"]


@pytest.mark.parametrize("kind", ["train_mlm", "train_lm"])
@pytest.mark.parametrize("how", [["--tune", "frozen"], ["--tune", "all"], ["--untrained"]])
def test_on_a_pretrained_body(how, kind, finished, corpus, tmp_path):
    body, argv = finished(kind, "--pos", "alibi"), ("--data", corpus, *LEARN, *how)
    done = succeed(call("train_classifier", *argv, encoder=body, out=tmp_path / "a"))
    loaded, before, after = read_run(tmp_path / "a"), weights(body), weights(tmp_path / "a")
    same = [torch.equal(after[name], before[name]) for name in after if name.startswith("body.")]
    assert all(same) == (how == ["--tune", "frozen"])
    causal, frozen = kind == "train_lm", "all" not in how
    assert loaded.model.body.causal == read_config(tmp_path / "a")["flags"]["causal"] == causal
    assert loaded.model.pool == ["last"] if causal else len(loaded.model.pool) == 1 + 2 * frozen
    assert ("of them trained" in done.out) == frozen
    expected = share_right(loaded, data.load(corpus).test_rows)
    assert read_result(tmp_path / "a")["accuracy/test"] == expected
    if frozen:  # the projection is that of all training rows, after retraining
        rows = Rows(data.load(corpus).rows, loaded.tokenizer, 12)
        features = compute_features(loaded.model, rows, torch.device("cpu"))
        torch.testing.assert_close(loaded.model.shift, features.mean(0), atol=1e-5, rtol=1e-4)


def test_encoder_accepts_what_has_no_weights_and_refuses_the_rest(finished, corpus, tmp_path):
    argv = ("--data", corpus, "--epochs", 1, "--valid", 0.2, "--out", tmp_path / "a")
    alibi, mlm = finished("train_mlm", "--pos", "alibi"), finished("train_mlm")
    succeed(call("train_classifier", *argv, encoder=alibi, block_size=20, pos="nope"))
    model = read_config(tmp_path / "a")["model"]
    assert (model["block_size"], model["pos"], model["n_embd"]) == (20, "nope", 16)
    argv = (*argv, "--overwrite", "--encoder")
    fails(call("train_classifier", *argv, mlm, block_size=20), "weights do not fit")
    fails(call("train_classifier", *argv, mlm, "--causal"), "is an encoder")
    fails(call("train_classifier", *argv, tmp_path / "a"), "a run of kind classifier")


@pytest.mark.parametrize("at", [7, 42])  # in the search of 40 steps, and in the retraining
@pytest.mark.parametrize("how", ["jointly", "frozen", "all"])
def test_an_interrupted_run_resumes_exactly(how, at, finished, corpus, tmp_path, monkeypatch):
    argv = ["train_classifier", "--data", corpus, *LEARN, "--head-dropout", 0.2]
    if how != "jointly":
        argv += ["--encoder", finished("train_mlm"), "--tune", how]
    succeed(call(*argv, out=tmp_path / "whole"))
    stopped = stopped_at(at, monkeypatch, *argv, out=tmp_path / "parts")
    assert stopped.code == 130 and ("the search is saved" in stopped.err) == (at > 40)
    succeed(call("train_classifier", "--resume", out=tmp_path / "parts"))
    assert same_runs(tmp_path / "whole", tmp_path / "parts")


def test_resume_refuses_a_changed_encoder(copied, corpus, tmp_path):
    body, argv = copied("train_mlm"), ("--epochs", 1, "--valid", 0.2, "--out", tmp_path / "a")
    succeed(call("train_classifier", *argv, data=corpus, encoder=body))
    saved = torch.load(body / "best.pt", weights_only=True)
    saved["model"]["body.embedding.weight"] += 1
    torch.save(saved, body / "best.pt")
    fails(call("train_classifier", "--resume", out=tmp_path / "a"), "has changed since")


def test_resume_refuses_two_swapped_labels(tmp_path):
    path = write_corpus(tmp_path / "own") / "train_CLS.tsv"
    run(tmp_path / "own", tmp_path / "run")
    swapped = path.read_text().replace("0\t", "x\t", 1).replace("1\t", "0\t", 1)
    path.write_text(swapped.replace("x\t", "1\t"))
    fails(call("train_classifier", "--resume", out=tmp_path / "run"), "has changed since")


def test_every_pool_of_the_flag_exists():
    h, mask = torch.zeros(1, 2, 3), torch.ones(1, 2, dtype=torch.bool)
    for name in POOLS:
        assert pool_tokens(h, mask, name).shape == (1, 3)


@pytest.mark.parametrize("flags, words", [
    (["--tune", "all"], "need --encoder"),
    (["--untrained"], "need --encoder"),
    (["--layers", 2], "--layers 2"),
    (["--pool", "mean+median"], "--pool mean+median"),
    (["--n-component", 5], "needs a frozen body"),
    (["--accumulate", 2], "--accumulate"),
    (["--epochs", 0], "--epochs 0"),
    (["--valid", 0], "--valid 0"),
    (["--init", "x", "--causal"], "brings an encoder"),
])  # fmt: skip
def test_a_wrong_flag_is_one_message(flags, words, corpus, tmp_path):
    fails(call("train_classifier", "--data", corpus, *LEARN, *flags, out=tmp_path / "a"), words)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("accuracy, words", [
    (0.61, "below the 67.5% of always answering yes"),
    (0.7, "always answering yes gets 67.5%"),
])  # fmt: skip
def test_the_last_line_names_the_share_of_the_most_frequent_class(accuracy, words):
    labels = torch.tensor([0] * 13 + [1] * 27)
    assert beside_majority(accuracy, labels, ["no", "yes"]) == words


def test_scores_are_printed_before_the_matrix_is_drawn(corpus, tmp_path, monkeypatch):
    def draw(*args):
        print("now it is drawn")
        return draw_confusion(*args)

    monkeypatch.setattr("lab.classification.draw_confusion", draw)
    done, result, _ = run(corpus, tmp_path / "run", "--epochs", 1)
    assert done.out.index("macro-F1") < done.out.index("now it is drawn")
    last_line = done.out.splitlines()[-1]
    share = max(map(sum, result["confusion"])) / result["rows/test"]
    assert "always answering" in last_line and f"{share:.1%}" in last_line


@pytest.mark.parametrize("n_class", [3, 40, 200, 1000])
def test_the_matrix_of_many_classes_fits_on_a_page(n_class):
    counts = torch.ones(n_class, n_class).long().tolist()
    figure = draw_confusion(counts, [f"class {i}" for i in range(n_class)], "title")
    (axis,) = figure.axes
    assert len(axis.texts) == (n_class**2 if n_class <= 40 else 0)
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        names = [tick.get_text() for tick in ticks]
        assert min(n_class, 20) <= len(names) <= 40
        assert names[1] == f"class {-(-n_class // 40)}"
    assert max(figure.get_size_inches()) < 14
    assert (figure.get_size_inches()[0] - 1.6) / n_class > 0.29 or n_class > 40  # room for digits
