"""probe_position.py: what untrained models know of positions, and its command line."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import SHORT, assert_complains, call, result_of, succeed, tiny_model, train

from data.files import write_json
from lab.records import read_config
from model import Decoder, Encoder
from studies import probe_network
from studies.probes import Measured, labelled

FLAGS = probe_network.FitFlags(runs=[], steps=150, batch_size=256, lr=5e-3)


def body(pos, kind=Decoder, init_std=0.05):
    return tiny_model(kind, pos=pos, n_embd=32, n_ffn=0, init_std=init_std).body


def probed(model, learn, judge, flags=FLAGS):
    """The readings of probes trained on one text, of another, and the true positions."""
    probes = probe_network.fit_probes(model, *learn, flags)
    return probe_network.read_positions(model, probes, *judge)


def text(n):
    return torch.randint(5, 30, (n, 12)), torch.ones(n, 12, dtype=torch.bool)


@pytest.mark.parametrize(
    "pos, knows",
    [("learned", True), ("sinusoidal", True), ("alibi", False), ("rope", False), ("nope", False)],
)
def test_only_absolute_positions_are_in_the_embeddings(pos, knows):
    scores = probe_network.scores(*probed(body(pos), text(100), text(40)))
    assert scores["argmax"][0] < 0.5 if knows else scores["argmax"][0] > 3  # a random guess: 4
    assert scores["median"][0] < 0.5 if knows else scores["median"][0] > 2.7  # the middle: 3
    assert scores["nats"][0] < 0.5 if knows else scores["nats"][0] > 2.4  # log of 12: 2.5


def test_without_positions_a_decoder_learns_some_an_encoder_none():
    # With uniform attention over t words the first has a weight of 1/t, which tells t even in an
    # untrained layer. In an encoder its weight is always 1/12.
    after = {}
    for kind in (Decoder, Encoder):
        model = body("nope", kind, init_std=0.1)
        learn, judge = text(300), text(50)
        learn[0][:, 0], judge[0][:, 0] = 3, 3
        readings, truth = probed(model, learn, judge, replace(FLAGS, steps=400))
        after[kind] = (readings[1]["argmax"] - truth).abs().float()[truth > 0].mean()
    assert after[Decoder] < 2.4 < 3 < after[Encoder]


def test_the_scores_of_a_known_distribution():
    # Position 0 has 0.4, position 1 has 0.3, position 3 has 0.3: the median is 1.
    model, layer = body("nope"), probe_network.Probe(32, 12)
    p = torch.tensor([0.4, 0.3, 1e-30, 0.3] + [1e-30] * 8)
    layer.forward = lambda states: p.log().expand(len(states), 12)
    readings, truth = probe_network.read_positions(model, [layer], *text(2))
    scores = probe_network.scores(readings, truth)
    assert scores["argmax"] == pytest.approx([sum(range(12)) / 12])
    assert scores["median"] == pytest.approx([(1 + sum(range(11))) / 12])
    assert readings[0]["nats"][:2].tolist() == pytest.approx([-math.log(0.4), -math.log(0.3)])


def test_a_probe_that_knows_only_frequencies_has_the_loss_of_their_entropy():
    sentences = torch.tensor([0, 0, 1, 2])  # the first position is in every sentence
    assert probe_network.entropy_of(sentences) == pytest.approx(1.5 * math.log(2))
    assert probe_network.entropy_of(torch.arange(12).repeat(5)) == pytest.approx(math.log(12))


def test_captions_name_the_numbers_of_seeds():
    def spread(*counts):
        results = {str(i): {"seeds": list(range(n))} for i, n in enumerate(counts)}
        return Measured(None, 0, None, results).spread

    assert spread(1, 1) == "" and spread(1, 3, 3).endswith("over 3 seeds")
    assert spread(3, 2, 1).endswith("over 2 or 3 seeds")


def test_states_are_those_of_the_real_tokens():
    model = body("alibi", Encoder)
    idx, _ = text(5)
    mask = torch.arange(12) < torch.tensor([12, 3, 7, 1, 9])[:, None]
    states = probe_network.states_of_tokens(model, idx, mask)
    assert states.shape == (3, int(mask.sum()), 32)
    # whatever stands in the padding
    other = probe_network.states_of_tokens(model, idx.masked_fill(~mask, 0), mask)
    assert torch.equal(states, other)
    _, alone = model(idx[1:2, :3], need_states=True)
    torch.testing.assert_close(states[:, 12:15], torch.stack(alone)[:, 0], atol=1e-5, rtol=1e-5)


def test_seeds_are_one_row_and_an_encoder_can_be_probed_too(corpus, finished, tmp_path):
    runs = [tmp_path / f"nope-{seed}" for seed in (1, 2)]
    for seed, run in enumerate(runs, 1):
        argv = (*SHORT["train_lm"], "--data", corpus, "--pos", "nope")
        succeed(call("train_lm", *argv, seed=seed, out=run))
    tiny, out = ("--steps", 20, "--blocks", 20), tmp_path / "probe"
    argv = (*runs, finished("train_lm"), *tiny, "--text", "hope and change")
    done = succeed(call("probe_position", *argv, out=out))
    result = result_of(out)["runs"]
    assert list(result) == ["NoPE", "learned"] and len(result["NoPE"]["trained"]) == 2
    assert len(result["NoPE"]["trained"][0]["median"]) == 2
    nothing = result["NoPE"]["nothing"][0]
    assert nothing["argmax"] == pytest.approx((12 * 12 - 1) / 36, abs=0.01)
    assert nothing["median"] == 3 and nothing["nats"] == pytest.approx(math.log(12))
    assert len(result["NoPE"]["example"][0]["true"]) == 4  # [BOS] and three words
    assert "±" in done.out and (out / "probe.png").stat().st_size > 10_000
    assert "NoPE, untrained" in (out / "argmax.tex").read_text(encoding="utf-8")
    encoder = succeed(
        call("probe_position", finished("train_mlm"), *tiny, out=tmp_path / "encoder")
    )
    assert "layer 1" in encoder.out
    (measured,) = result_of(tmp_path / "encoder")["runs"].values()
    uniform = math.log(measured["block_size"])  # if all sentences were as long as a block
    assert measured["nothing"][0]["nats"] < uniform - 0.001


def test_results_are_not_written_into_a_run(finished):
    run = finished("train_lm")
    assert_complains(call("probe_position", run, out=run), f"--out {run}: is a run")


def test_runs_that_differ_in_more_than_the_seed_are_named_by_it(corpus, tmp_path):
    runs = {"a": {"n_embd": 8}, "b": {"seed": 1}, "c": {"anchor": True}}
    for name, more in runs.items():
        train("train_lm", data=corpus, out=tmp_path / name, **more)
    folders = [tmp_path / name for name in runs]
    expected = ["n-embd=8, anchor=no", "n-embd=16, anchor=no", "n-embd=16, anchor=yes"]
    assert list(labelled(folders)) == expected
    assert list(labelled(folders, "x, y, z")) == ["x", "y", "z"]


@pytest.mark.parametrize(
    "study, run, told",
    [
        ("probe_position", "train_seq2seq", "train_lm.py"),
        ("probe_order", "train_mlm", "train_lm.py"),
        ("probe_layers", "train_lm", "train_mlm.py"),
    ],
)
def test_a_run_of_another_kind_is_refused(study, run, told, finished):
    assert_complains(call(study, finished(run)), told)


def test_a_run_whose_corpus_is_on_another_machine_is_named(copied):
    run = copied("train_lm")
    config = read_config(run)
    config["flags"]["data"] = "gone.txt"
    write_json(run / "config.json", config)
    assert_complains(call("probe_position", run), "--data gone.txt", "name it with --data")
