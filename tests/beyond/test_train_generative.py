"""beyond.train_generative: its two stages, what each class trains, and what it starts from."""

import pytest
import torch
from helpers import TINY, call, fails, succeed

from lab import load_run
from lab.load import read_result

SCRIPT = "beyond.train_generative"


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generative") / "run"
    learn = "--steps 30 --class-steps 30 --eval-every 20 --lr 0.02 --class-lr 0.02 --members 2"
    argv = [*TINY, *learn.split(), "--data", corpus, "--split", "clean"]
    succeed(call(SCRIPT, *argv, out=folder))
    return folder


def test_it_learns_and_python_reads_it(run):
    result, opened = read_result(run), load_run(run)
    assert result["accuracy/test"] > 0.6
    texts = [
        line.split("\t")[0] for line in (run / "predictions.tsv").read_text().split("\n")[1:-1]
    ]
    gold = [line.split("\t")[1] for line in (run / "predictions.tsv").read_text().split("\n")[1:-1]]
    right = [max(shares, key=shares.get) == y for shares, y in zip(opened.classify(*texts), gold)]
    assert sum(right) / len(right) == pytest.approx(result["accuracy/test"])


def test_the_classes_begin_without_averages_of_the_first_stage(corpus, tmp_path):
    argv = [*TINY, "--class-steps", 4, "--steps", 4, "--data", corpus]
    succeed(call(SCRIPT, *argv, out=tmp_path / "run"))
    optimizer = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["optimizer"]
    assert {int(state["step"]) for state in optimizer["state"].values()} == {4}
    # the last of four steps down to zero: the classes have no warm-up
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(5e-4 / 4)


def test_biases_leave_the_matrices_shared(corpus, tmp_path):
    flags = dict(tune="biases", weight_decay=0, steps=4, class_steps=4, data=corpus)
    succeed(call(SCRIPT, *TINY[:-4], **flags, out=tmp_path / "run"))
    weights = dict(load_run(tmp_path / "run").model.named_parameters())
    same = {
        weight.dim()
        for name, weight in weights.items()
        if name.startswith("members_of_class.0.")
        and torch.equal(weight, weights[name.replace("class.0.", "class.1.")])
    }
    assert same == {2}


def test_it_starts_from_a_decoder(corpus, finished, tmp_path):
    argv = ["--init-from", finished("train_lm"), "--class-steps", 1, "--data", corpus, "--steps", 0]
    succeed(call(SCRIPT, *argv, "--class-lr", 1e-9, out=tmp_path / "run"))
    member = load_run(tmp_path / "run").model.members_of_class[1][0].state_dict()
    for name, weight in load_run(finished("train_lm")).model.state_dict().items():
        torch.testing.assert_close(member[name], weight, atol=1e-6, rtol=0)


def test_on_a_frozen_encoder_each_class_trains_biases_alone(corpus, finished, tmp_path):
    encoder = finished("train_mlm")
    argv = ["--init-from", encoder, "--data", corpus, "--class-steps", 30, "--class-lr", 0.1]
    done = succeed(call(SCRIPT, *argv, out=tmp_path / "run"))
    assert "step    30  accuracy" in done.out and "of them trained" in done.out
    pretrained = load_run(encoder).model.state_dict()
    model = load_run(tmp_path / "run").model
    for members in model.members_of_class:
        weights = members[0].state_dict()
        changed = {name for name, weight in weights.items() if (weight != pretrained[name]).any()}
        assert changed and all(weights[name].dim() == 1 for name in changed)


def test_a_class_without_rows_is_refused(corpus, tmp_path):
    few = call(SCRIPT, *TINY, valid=0.99, data=corpus, out=tmp_path / "few")
    fails(few, "--valid 0.99: a class has no rows left")
