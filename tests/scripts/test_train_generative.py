"""train_generative.py: likelihoods by hand, its two stages, and the tools that read its runs."""

import re

import pytest
import torch
from helpers import SHORT, assert_complains, call, result_of, succeed, train

import data
from data.batching import pad
from data.tokenizer import BOS, EOS, MASK, UNK, encode
from lab import load_run
from lab.records import read_metrics
from model import Config
from nets.generative import GenerativeClassifier


def make(n_class=3, members=2, masked=False):
    torch.manual_seed(0)
    config = Config(vocab_size=30, block_size=12, n_layer=1, n_head=2, n_embd=16, init_std=0.5)
    return GenerativeClassifier(config, n_class, members, masked).eval()


def test_the_score_is_the_likelihood_of_the_text_by_hand():
    model = make()
    idx, mask = pad([torch.tensor([BOS, 7, 8]), torch.tensor([BOS, 9])])
    scores = model(idx, mask)
    for text, sequence in enumerate(([BOS, 7, 8, EOS], [BOS, 9, EOS])):
        for label, members in enumerate(model.members_of_class):
            nats = 0
            for member in members:
                logs = member(torch.tensor([sequence[:-1]]))[0].log_softmax(-1)
                nats += sum(logs[i, word].item() for i, word in enumerate(sequence[1:])) / 2
            assert scores[text, label].item() == pytest.approx(nats, abs=1e-4)
    alone = model(torch.tensor([[BOS, 9]]))
    torch.testing.assert_close(alone[0], scores[1], atol=1e-4, rtol=1e-5)


def test_an_encoder_is_asked_for_every_fourth_word_given_the_others():
    model, text = make(masked=True), [BOS, 7, UNK, 5, 9, 10, 11]  # 5 is the first word
    idx, mask = pad([torch.tensor(text), torch.tensor([BOS]), torch.randint(5, 30, (9,))])
    scores = model(idx, mask)
    for label, members in enumerate(model.members_of_class):
        nats = 0
        for member in members:
            for places in ([1, 6], [3], [4], [5]):  # 7 and 11; 5; 9; 10: [UNK] is not scored
                hidden = torch.tensor([[MASK if i in places else w for i, w in enumerate(text)]])
                logs = member(hidden)[0].log_softmax(-1)
                nats += sum(logs[place, text[place]].item() for place in places) / 2
        assert scores[0, label].item() == pytest.approx(nats, abs=1e-4)
    assert scores[1].tolist() == [0, 0, 0]  # no word to score


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generative") / "run"
    more = "--steps 30 --class-steps 30 --eval-every 20 --lr 0.02 --class-lr 0.02 --members 2"
    train("train_generative", "--data", corpus, "--split", "clean", *more.split(), out=folder)
    return folder


def test_it_learns_and_python_reads_it(run, corpus):
    result = result_of(run)
    assert result["accuracy/test"] > 0.6  # chance is 1/3
    opened, test_rows = load_run(run), data.load(corpus).test_rows
    answers = opened.classify(*(text for _, text in test_rows))
    right = [next(iter(a)) == result["classes"][y] for a, (y, _) in zip(answers, test_rows)]
    assert sum(right) / len(right) == pytest.approx(result["accuracy/test"])
    ids = torch.tensor([[BOS, *encode(opened.tokenizer, [test_rows[0][1]])[0]][:12]])
    scores = opened.model(ids)[0]
    assert max(answers[0].values()) == pytest.approx(scores.softmax(-1).max().item(), abs=1e-5)
    assert opened.embed(test_rows[0][1])[0] == pytest.approx(scores.tolist(), abs=1e-4)


def test_the_other_scripts_read_it(run, finished, tmp_path):
    asked = succeed(call("sample", run, text="hope and change matter"))
    assert "obama" in asked.out
    maps = succeed(call("attention_maps", run, "--html", text="hope and change matter"))
    assert "nothing above the diagonal" in maps.out
    done = succeed(call("compare", run, finished("train_classifier"), out=tmp_path / "out"))
    assert "accuracy" in done.out


def test_steps_of_the_classes_can_be_kept_and_flags_are_obeyed(corpus, tmp_path):
    argv = (*SHORT["train_generative"], "--data", corpus, "--eval-every", 1)
    ways = {"decay": 0, "label_smoothing": 0.5, "clip": 0.1, "swap_words": 0, "warmup": 3}
    found = []
    for name, value in [("decay", 1), *ways.items()]:
        out = tmp_path / f"{name}-{value}"
        succeed(call("train_generative", *argv, keep="8", out=out, **{name: value}))
        assert ", step 8>" in repr(load_run(out, step=8))
        found.append(torch.cat([w.flatten() for w in load_run(out).model.state_dict().values()]))
    kept = torch.load(out / "checkpoint.pt", weights_only=True)["optimizer"]["state"]
    assert {int(state["step"]) for state in kept.values()} == {4}  # no averages of the first stage
    groups = torch.load(out / "checkpoint.pt", weights_only=True)["optimizer"]["param_groups"]
    # The last of four steps down to zero: the classes have no warm-up
    assert groups[0]["lr"] == pytest.approx(5e-4 / 4)
    tokens = [line["tokens"] for line in read_metrics(out)]
    assert tokens[4] != 4 * tokens[1]  # each step reads another batch
    assert not any(torch.equal(found[0], other) for other in found[1:])
    late = call("train_generative", *argv, keep="9", out=tmp_path / "late")
    assert_complains(late, "--keep 9", "from 0 to 8")


def test_biases_leave_the_matrices_shared(corpus, tmp_path):
    flags = dict(tune="biases", weight_decay=0)
    train("train_generative", **flags, data=corpus, out=tmp_path / "run")
    weights = dict(load_run(tmp_path / "run").model.named_parameters())
    same = {
        weight.dim()
        for name, weight in weights.items()
        if name.startswith("members_of_class.0.")
        and torch.equal(weight, weights[name.replace("class.0.", "class.1.")])
    }
    assert same == {2}
    groups = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["optimizer"]
    assert groups["param_groups"][0]["params"]  # the first stage trains the matrices too


def test_rows_held_out_leave_both_stages(corpus, tmp_path):
    argv, found = ("train_generative", *SHORT["train_generative"], "--data", corpus), []
    for valid in (0, 0.5):
        told = succeed(call(*argv, valid=valid, out=tmp_path / str(valid))).out
        found.append([int(n) for n in re.findall(r"(\d+) training rows and (\d+) texts", told)[0]])
    (rows, texts), (fewer_rows, fewer_texts) = found
    assert texts > 121  # lines and rows: long ones are split
    assert fewer_rows == rows / 2 and texts - fewer_texts >= rows / 2
    few = call(*argv, valid=0.99, out=tmp_path / "few")
    assert_complains(few, "--valid 0.99: leave no training rows of")


def test_it_starts_from_a_decoder(corpus, finished, tmp_path, monkeypatch):
    monkeypatch.setattr("beyond.train_generative.train_tokenizer", None)  # the decoder has one
    argv = (*SHORT["train_generative"], "--init-from", finished("train_lm"))
    argv += ("--steps", "0", "--data", corpus)
    succeed(call("train_generative", *argv, out=tmp_path / "run"))
    done = call("train_generative", *argv, split="clean", out=tmp_path / "clean")
    assert_complains(done, "--split clean", "was pretrained on test sentences")


def test_on_a_frozen_encoder_each_class_trains_biases_alone(corpus, finished, tmp_path):
    encoder = finished("train_mlm")
    argv = ("--init-from", encoder, "--data", corpus, "--class-steps", 30, "--eval-every", 20)
    done = succeed(call("train_generative", *argv, "--class-lr", "0.1", out=tmp_path / "run"))
    assert "step    30  accuracy" in done.out and "of them trained" in done.out
    pretrained = load_run(encoder).model.state_dict()
    assert not load_run(tmp_path / "run").config["flags"]["label_smoothing"]
    for c in range(len(result_of(tmp_path / "run")["classes"])):
        weights = load_run(tmp_path / "run").model.members_of_class[c][0].state_dict()
        changed = {name for name, weight in weights.items() if (weight != pretrained[name]).any()}
        assert changed and all(weights[name].dim() == 1 for name in changed)
    assert result_of(tmp_path / "run")["accuracy/train"] > 0.5  # chance is 1/3
    noisy = call("train_generative", *argv, label_smoothing="0.1", out=tmp_path / "noisy")
    assert_complains(noisy, "--label-smoothing 0.1", "trained by masking", "leave that out")
