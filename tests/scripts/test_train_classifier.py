"""train_classifier.py: accuracies counted by hand, jointly, frozen and fine-tuned."""

import itertools
import re
import shutil
import types

import pytest
import torch
from helpers import SAID, assert_complains, call, result_of, succeed, train, weights

import data
import train_classifier
from data.corpus import hold_out
from data.labelled import Rows, balanced_loss
from data.tokenizer import BOS, encode, train_tokenizer
from lab.live import LiveLine
from lab.load import read_run
from lab.records import read_metrics
from lab.run import Run
from nets.features import compute_features, compute_logits

LEARN = tuple("--lr 0.02 --epochs 8".split())


@torch.no_grad()
def answer(loaded, text):
    """The logits of one text, read without others."""
    return loaded.model(torch.tensor([[BOS, *encode(loaded.tokenizer, [text])[0]][:12]]))[0]


def test_the_classifier_learns_and_its_result_adds_up(corpus, tmp_path):
    done = train("train_classifier", *LEARN, data=corpus, out=tmp_path / "run")
    result = result_of(tmp_path / "run")
    # Each speaker has words of his own; chance is 1/3.
    assert result["accuracy/train"] > 0.6 and result["accuracy/unseen"] > 0.5
    confusion, classes = result["confusion"], result["classes"]
    assert classes == list(SAID) and [sum(row) for row in confusion] == [5, 5, 5]
    accuracy = pytest.approx(result["accuracy/test"])
    assert sum(confusion[i][i] for i in range(3)) / 15 == accuracy
    assert (6 * result["accuracy/seen"] + 9 * result["accuracy/unseen"]) / 15 == accuracy
    assert "macro-F1" in done.out and "most confident errors" in done.out
    n = len(data.load(corpus).rows)
    assert re.search(r"15 test rows \(6 of them are also in the training files\)", done.out)
    assert re.search(rf"on all {n} rows, at least as long", done.out)
    for line in read_metrics(tmp_path / "run"):
        assert line["accuracy/seen"] * 6 == pytest.approx(round(line["accuracy/seen"] * 6))


def test_predictions_are_those_of_the_rows_one_by_one(finished, corpus):
    run = finished("train_classifier")
    loaded, read, result = read_run(run), data.load(corpus), result_of(run)
    lines = (run / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == ["text", "gold", "predicted", *SAID, "seen"]
    right = []
    for number, ((label, text), line) in enumerate(zip(read.test_rows, lines[1:], strict=True)):
        expected = answer(loaded, text).softmax(0)
        right.append(expected.argmax().item() == label)
        shown, gold, predicted, *shares, seen = line.split("\t")
        assert (shown, gold) == (text, read.classes[label])
        assert predicted == read.classes[expected.argmax()]
        assert [float(share) for share in shares] == pytest.approx(expected.tolist(), abs=2e-6)
        assert seen == ("yes" if number < 6 else "no")
    assert result["accuracy/test"] == pytest.approx(sum(right) / 15)
    assert result["accuracy/seen"] == pytest.approx(sum(right[:6]) / 6)


def test_the_validation_loss_is_that_of_the_held_out_rows(corpus, tmp_path):
    flags = dict(no_refit=True, balance="none")
    train("train_classifier", *LEARN, **flags, data=corpus, out=tmp_path / "run")
    loaded, epoch = read_run(tmp_path / "run"), result_of(tmp_path / "run")["epoch"]
    _, held_out = hold_out(data.load(corpus).rows, 0.2, 0, key=lambda row: row[1])
    losses = [-answer(loaded, text).log_softmax(0)[label].item() for label, text in held_out]
    logged = {line["step"]: line["loss/valid"] for line in read_metrics(tmp_path / "run")}
    assert logged[epoch] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_balance_weights_a_rare_class_like_a_common_one(tmp_path):
    # The text tells nothing about the class, so the model answers with the share of the class as
    # the loss sees it: 1/5, or 1/2 with weights. Training adds the prior a second time and the
    # finished model leaves it out, which turns odds of 1/4 into odds of 4.
    rows = [f"{'common' if n % 5 else 'rare'}\tnumber {n} of them\n" for n in range(100)]
    (tmp_path / "mine.tsv").write_text("".join(rows), encoding="utf-8")
    share = {}
    for how in ("none", "weights", "prior"):
        argv = (*"--n-layer 1 --n-embd 16 --epochs 3 --lr 0.01 --balance".split(), how)
        succeed(call("train_classifier", *argv, data=tmp_path / "mine.tsv", out=tmp_path / how))
        loaded = read_run(tmp_path / how)
        shares = answer(loaded, "number unheard of them").softmax(0)
        share[how] = shares[loaded.config["classes"].index("rare")].item()
    assert share["none"] < 0.33 < share["weights"] < 0.6 < share["prior"]


@pytest.mark.parametrize("how", ["weights", "prior"])
def test_balance_without_a_training_row_of_a_class_keeps_the_loss_finite(how):
    rows = Rows([(0, "one"), (2, "two")], train_tokenizer("word", ["one two"]), 8)
    assert balanced_loss(torch.zeros(1, 3), torch.tensor([1]), rows.balance(3, how)).isfinite()


def test_a_frozen_run_is_not_resumed_on_another_encoder(corpus, finished, tmp_path):
    encoder, run = shutil.copytree(finished("train_mlm"), tmp_path / "encoder"), tmp_path / "run"
    succeed(call("train_classifier", encoder=encoder, data=corpus, epochs=2, out=run))
    (run / "result.json").unlink()
    succeed(call("train_classifier", "--resume", out=run))
    saved = torch.load(encoder / "best.pt", weights_only=True)
    saved["model"]["body.embedding.weight"] += 1
    torch.save(saved, encoder / "best.pt")
    assert_complains(call("train_classifier", "--resume", out=run), f"--encoder {encoder} has chan")


def test_head_dropout_works_with_a_frozen_encoder(corpus, finished, tmp_path):
    for rate in ("0.0", "0.5"):
        given = dict(encoder=finished("train_mlm"), data=corpus, epochs=1, out=tmp_path / rate)
        succeed(call("train_classifier", **given, head_dropout=rate))
    heads = (read_run(tmp_path / rate).model.head for rate in ("0.0", "0.5"))
    assert not torch.equal(*(head.layers[-1].weight for head in heads))


def test_refit_trains_on_all_rows_for_the_best_epochs(corpus, tmp_path):
    for name, how in (("refit", "--refit"), ("kept", "--no-refit")):
        train("train_classifier", *LEARN, "--data", corpus, how, out=tmp_path / name)
    assert read_metrics(tmp_path / "refit") == read_metrics(tmp_path / "kept")
    refit, kept = result_of(tmp_path / "refit"), result_of(tmp_path / "kept")
    # Both report the search that chose the number of epochs.
    assert refit["epoch"] == kept["epoch"] and refit["accuracy/valid"] == kept["accuracy/valid"]
    loaded, other = read_run(tmp_path / "refit"), read_run(tmp_path / "kept")
    assert not torch.equal(loaded.model.head.layers[0].weight, other.model.head.layers[0].weight)
    right = [answer(loaded, text).argmax() == label for label, text in data.load(corpus).rows]
    # of all 60 rows, not of the 48 that were not held out
    assert refit["accuracy/train"] == pytest.approx(sum(right).item() / 60)


def test_retraining_has_a_clock_of_its_own(corpus, tmp_path, monkeypatch):
    shown, now = [], iter(range(10**9))
    clock = types.SimpleNamespace(perf_counter=lambda: next(now), process_time=lambda: 0.0)
    monkeypatch.setattr("lab.run.time", clock)
    monkeypatch.setattr(LiveLine, "show", lambda self, text: shown.append(text))
    monkeypatch.setattr(LiveLine, "clear", lambda self: None)
    monkeypatch.setattr(LiveLine, "is_due", lambda self: True)
    train("train_classifier", "--data", corpus, "--out", tmp_path / "run")
    starts = re.findall(r"^1/(\d+) .* tokens/s  (\d+):(\d+) left$", "\n".join(shown), re.MULTILINE)
    assert len(starts) == 2  # of the search and of retraining
    for total, minutes, seconds in starts:  # one tick of the clock per step
        assert 60 * int(minutes) + int(seconds) <= 3 * int(total)


def body_of(folder):
    return {k: v for k, v in weights(folder / "best.pt").items() if k.startswith("body.")}


def test_a_final_model_that_has_learned_nothing_is_reported(corpus, tmp_path, monkeypatch):
    fits = iter((train_classifier.fit, lambda *_: None))  # the search, then no training at all
    monkeypatch.setattr(train_classifier, "fit", lambda *args: next(fits)(*args))
    done = train("train_classifier", *LEARN, data=corpus, out=tmp_path / "a")
    assert "the final model gets only" in done.out and "--no-refit" in done.out


@pytest.mark.parametrize("known, expected", [(0.0, 3), (1.0, 8)])
def test_retraining_has_more_epochs_if_fewer_training_rows_are_right(
    known, expected, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(Run, "improves", lambda run, *_: len(read_metrics(run.folder)) <= 3)
    monkeypatch.setattr(
        "lab.run.read_metrics",
        lambda folder: [line | {"accuracy/train": known + 0.05} for line in read_metrics(folder)],
    )
    done = train("train_classifier", *LEARN, data=corpus, lr=1e-6, out=tmp_path / "a")
    assert f"after {expected} epochs on all training rows" in done.out


def test_wrong_labels_are_not_taken_for_too_few_steps(tmp_path):
    orders, path = list(itertools.permutations("abcde")), tmp_path / "a.tsv"
    rows = [(word, f"{word} {' '.join(order)}") for word in ("yes", "no") for order in orders]

    def write(wrong):
        labelled = [("no" if text in wrong else word, text) for word, text in rows]
        path.write_text("".join(f"{word}\t{text}\n" for word, text in labelled))

    write([])
    kept, _ = hold_out(data.load(path).rows, 0.1, 0, key=lambda row: row[1])
    write([text for _, text in kept[::5]])  # of the rows to train on alone
    how = dict(lr=0.01, epochs=2, valid=0.1, pos="nope", head_dropout=0, n_embd=16)
    done = train("train_classifier", data=path, **how, out=tmp_path / "run")
    result = result_of(tmp_path / "run")
    assert result["accuracy/train"] < result["accuracy/valid"] == 1
    assert "the final model" not in done.out


@pytest.mark.parametrize("tune", ["frozen", "all"])
def test_on_a_pretrained_encoder(tune, corpus, finished, tmp_path):
    encoder = finished("train_mlm")
    argv = (*LEARN, *"--lr 0.01 --batch-size 8 --tune".split(), tune, "--encoder", encoder)
    done = succeed(call("train_classifier", *argv, data=corpus, out=tmp_path / "run"))
    before, after = body_of(encoder), body_of(tmp_path / "run")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert before.keys() == after.keys() and bool(changed) == (tune == "all"), changed
    loaded = read_run(tmp_path / "run")
    assert loaded.tokenizer.to_str() == read_run(encoder).tokenizer.to_str()
    assert result_of(tmp_path / "run")["accuracy/test"] > 0.6
    body, head = (
        sum(p.numel() for p in part.parameters()) for part in (loaded.model.body, loaded.model.head)
    )
    trained = f", {head:,} of them trained" if tune == "frozen" else ""
    assert f"{head + body:,} parameters{trained}, pos=" in done.out
    assert loaded.config["flags"]["n_embd"] == 16  # the encoder's width, not the flag's default
    # By default a frozen encoder is pooled in three ways at every layer.
    width = 16 * 3 * 2 if tune == "frozen" else 16
    assert loaded.model.features(torch.tensor([[2, 6, 7]])).size(1) == width


def test_cached_features_of_a_frozen_encoder_are_the_models(corpus, finished, tmp_path):
    given = dict(encoder=finished("train_mlm"), data=corpus, out=tmp_path / "run")
    succeed(call("train_classifier", *LEARN, **given))
    loaded, result = read_run(tmp_path / "run"), result_of(tmp_path / "run")
    rows = Rows(data.load(corpus).test_rows, loaded.tokenizer, 12)
    right = compute_logits(loaded.model, rows, torch.device("cpu")).argmax(1) == rows.labels
    assert right.float().mean().item() == pytest.approx(result["accuracy/test"])
    # The mean of the training rows is subtracted, and 54 rows have at most 54 components.
    rows = Rows(data.load(corpus).rows, loaded.tokenizer, 12)
    features = compute_features(loaded.model, rows, torch.device("cpu"))
    torch.testing.assert_close(loaded.model.shift, features.mean(0), atol=1e-5, rtol=1e-4)
    assert loaded.model.project(features).size(1) == loaded.model.head.layers[0].in_features <= 54


@pytest.mark.parametrize("tune", ["frozen", "all"])
def test_on_a_causal_decoder_by_its_last_word(tune, corpus, finished, tmp_path):
    decoder, run = finished("train_lm"), tmp_path / "run"
    given = dict(encoder=decoder, tune=tune, data=corpus, batch_size=8, out=run)
    succeed(call("train_classifier", *LEARN, **given))
    now, before = body_of(run), body_of(decoder)
    changed = [not torch.equal(value, now[name]) for name, value in before.items()]
    assert any(changed) == (tune == "all") and result_of(run)["accuracy/test"] > 0.5
    loaded = read_run(run)
    assert loaded.model.body.causal
    assert loaded.config["flags"]["causal"]
    assert loaded.model.pool == ["last"]
    # Also in a padded batch, the state of the last real word decides, which no later word changes.
    idx = torch.tensor([[BOS, 7, 8, 9, 6], [BOS, 9, 7, 0, 0]])
    mask = idx != 0
    together, alone = loaded.model.features(idx, mask), loaded.model.features(idx[1:, :3])
    torch.testing.assert_close(together[1:], alone, atol=1e-5, rtol=1e-4)
    h = loaded.model.body(idx, mask)[torch.arange(2), torch.tensor([4, 2])]
    torch.testing.assert_close(together[:, -16:], h, atol=1e-6, rtol=1e-5)
    right = [answer(loaded, text).argmax() == label for label, text in data.load(corpus).test_rows]
    assert result_of(run)["accuracy/test"] == pytest.approx(sum(right).item() / 15)
    # sample.py and attention_maps.py read the run.
    if tune == "all":
        asked = succeed(call("sample", run, text="hope and change matter"))
        maps = succeed(call("attention_maps", run, text="hope and change matter"))
        assert "obama" in asked.out and "nothing above the diagonal" in maps.out


def test_a_decoder_from_scratch(corpus, tmp_path):
    train("train_classifier", *LEARN, "--causal", data=corpus, out=tmp_path / "run")
    assert result_of(tmp_path / "run")["accuracy/train"] > 0.6
    loaded = read_run(tmp_path / "run")
    assert loaded.model.body.causal and loaded.model.pool == ["last"]


def test_clean_split_trains_without_the_test_sentences(corpus, tmp_path):
    done = train("train_classifier", *LEARN, "--split", "clean", data=corpus, out=tmp_path / "run")
    assert "6 of 60 training rows and 1 of 61 lines of text with their sentences" in done.out
    assert "43 training rows, 11 for validation" in done.out  # of 54
    # Seen and unseen rows are those of the full split, so that the two compare.
    assert {"accuracy/seen", "accuracy/unseen"} <= result_of(tmp_path / "run").keys()


def test_clean_split_refuses_an_encoder_that_saw_the_test(corpus, finished, tmp_path):
    given = dict(data=corpus, split="clean", epochs=1, valid=0.2, out=tmp_path / "run")
    refused = call("train_classifier", **given, encoder=finished("train_mlm"))
    assert_complains(refused, "pretrain it with --split clean too")
    start = dict(data=corpus, split="clean", init_from=finished("train_mlm"), out=tmp_path / "run")
    assert_complains(call("train_mlm", **start), "pretrain it with --split clean too")
    further = dict(data="pydocs", init_from=finished("train_mlm"), steps=0, out=tmp_path / "on")
    succeed(call("train_mlm", **further))
    refused = call("train_classifier", **given, encoder=tmp_path / "on")
    assert_complains(refused, "on was pretrained on test sentences")  # by the run before it
    clean = tmp_path / "clean"
    train("train_mlm", data=corpus, split="clean", out=clean)
    succeed(call("train_classifier", **given, encoder=clean))
