"""beyond.train_generative: its two stages, what each class trains, and what it starts from."""

import pytest
import torch
from helpers import TINY, call, succeed

from lab import load_run
from lab.load import read_result

SCRIPT = "beyond.train_generative"


def test_it_learns_and_python_reads_it(corpus, tmp_path):
    learn = "--steps 30 --class-steps 30 --eval-every 20 --lr 0.02 --class-lr 0.02 --members 2"
    run, argv = tmp_path / "run", [*TINY, *learn.split(), "--data", corpus, "--split", "clean"]
    succeed(call(SCRIPT, *argv, out=run))
    result, opened = read_result(run), load_run(run)
    assert result["accuracy/test"] > 0.6
    rows = (run / "predictions.tsv").read_text().split("\n")[1:-1]
    texts, gold = zip(*(row.split("\t")[:2] for row in rows))
    right = [max(shares, key=shares.get) == y for shares, y in zip(opened.classify(*texts), gold)]
    assert sum(right) / len(right) == pytest.approx(result["accuracy/test"])


def test_the_classes_begin_without_averages_of_the_first_stage(corpus, tmp_path):
    argv = [*TINY, "--class-steps", 4, "--steps", 4, "--data", corpus]
    succeed(call(SCRIPT, *argv, out=tmp_path / "run"))
    optimizer = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["optimizer"]
    assert {int(state["step"]) for state in optimizer["state"].values()} == {4}
    # the last of four steps down to zero: the classes have no warm-up
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(5e-4 / 4)


def test_it_starts_from_a_decoder(corpus, finished, tmp_path):
    argv = ["--init-from", finished("train_lm"), "--class-steps", 1, "--data", corpus, "--steps", 0]
    succeed(call(SCRIPT, *argv, "--class-lr", 1e-9, out=tmp_path / "run"))
    member = load_run(tmp_path / "run").model.members_of_class[1][0].state_dict()
    for name, weight in load_run(finished("train_lm")).model.state_dict().items():
        torch.testing.assert_close(member[name], weight, atol=1e-6, rtol=0)
