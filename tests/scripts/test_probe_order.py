"""probe_order.py: shuffling keeps the words and the last k, losses are plain cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from helpers import call, succeed, tiny_model

from lab.records import read_result
from model import Decoder
from studies import probe_order
from studies.probes import Measured


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_shuffling_keeps_all_words_and_the_last_k_in_place(k):
    x = torch.arange(9).expand(50, 9)
    shuffled = probe_order.shuffle_all_but_last(x, torch.rand(50, 9), k)
    assert torch.equal(shuffled[:, 9 - k :], x[:, 9 - k :])
    assert torch.equal(shuffled.sort(1).values, x)
    assert (shuffled != x).any() == (k < 8)


def test_losses_are_the_cross_entropy_of_each_target():
    model = tiny_model(Decoder, n_layer=1, n_ffn=0, pos="nope")
    x, y = torch.randint(5, 30, (70, 12)), torch.randint(5, 30, (70, 12))
    with torch.no_grad():
        found, logits = probe_order.losses_of_blocks(model, x, y), model(x)
    expected = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(found, expected)


def test_the_loss_of_shuffled_words_is_that_of_the_last(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(probe_order, "SEGMENTS", 12)  # one for each token of a block
    succeed(call("probe_order", finished("train_lm"), blocks=20, out=tmp_path / "order"))
    (run,) = read_result(tmp_path / "order")["runs"].values()
    (in_order,) = [losses[-1] for losses in run["shuffled"]]
    assert in_order == pytest.approx(run["segments"][0][-1])


def test_runs_of_two_lengths_share_the_columns(tmp_path):
    one = {"seeds": [0], "pos": "nope", "data": ["x"]}
    results = {
        "short": one | {"kept": [[0, 1, 12]], "shuffled": [[3.0, 2.0, 1.0]]},
        "long": one | {"kept": [[0, 1, 2, 24]], "shuffled": [[3.5, 2.5, 2.2, 1.5]]},
    }
    measured = Measured(None, 0.0, tmp_path, results)
    header, _, short, _ = probe_order.write_table(measured).splitlines()[:4]
    cells = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (header, short))))
    assert (cells["last 1"], cells["last 2"], cells["all"]) == ("2.00", "–", "1.00")
