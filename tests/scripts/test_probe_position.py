"""probe_position.py: what untrained models know of positions, and its command line."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import SHORT, call, call_main

from lab.load import by_position, read_run
from model import Config, Decoder, Encoder, LanguageModel
from studies import probe_position

FLAGS = probe_position.Flags(runs=[], steps=150, batch_size=256, lr=5e-3)


def body(pos, kind=Decoder, **more):
    torch.manual_seed(0)
    return LanguageModel(
        kind(Config(vocab_size=30, block_size=12, n_layer=2, n_head=2, n_embd=32, pos=pos, **more))
    ).body


def text(n, T=12):
    return torch.randint(5, 30, (n, T), generator=torch.Generator().manual_seed(n)), torch.ones(
        n, T, dtype=torch.bool
    )


@pytest.mark.parametrize(
    "pos, knows",
    [("learned", True), ("sinusoidal", True), ("alibi", False), ("rope", False), ("nope", False)],
)
def test_only_absolute_positions_are_in_the_embeddings(pos, knows):
    model = body(pos)
    guesses, truth = probe_position.guess(
        model, probe_position.fit_probes(model, *text(100), FLAGS), *text(40)
    )
    first = probe_position.distances(guesses, truth)[0]
    assert first < 0.5 if knows else first > 2.5  # guessing the middle gives 3, guessing anything 4


def test_without_positions_a_decoder_learns_some_an_encoder_none():
    # With uniform attention over t words the first has a weight of 1/t, which tells t even in an
    # untrained layer. In an encoder its weight is always 1/12.
    after = {}
    for kind in (Decoder, Encoder):
        model = body("nope", kind, init_std=0.1)
        learn, judge = text(300), text(50)
        learn[0][:, 0], judge[0][:, 0] = 3, 3
        guesses, truth = probe_position.guess(
            model, probe_position.fit_probes(model, *learn, replace(FLAGS, steps=400)), *judge
        )
        after[kind] = (guesses - truth).abs().float()[:, truth > 0].mean(1)[1]
    assert after[Decoder] < 2.4 < 3 < after[Encoder]


def test_chance_is_the_formula():
    for n in (2, 7, 32):
        assert probe_position.random_guess(torch.arange(n), n) == pytest.approx(
            (n * n - 1) / (3 * n)
        )


def test_distances_are_means_over_tokens_for_each_layer():
    assert probe_position.distances(
        torch.tensor([[0, 1, 2], [2, 1, 2]]), torch.tensor([0, 1, 5])
    ) == pytest.approx([1.0, 5 / 3])


def test_states_are_those_of_the_real_tokens():
    model = body("alibi", Encoder).eval()
    idx, mask = text(5)
    mask = torch.arange(12) < torch.tensor([12, 3, 7, 1, 9])[:, None]
    states = probe_position.states_of(model, idx, mask, "cpu")
    assert states.shape == (3, int(mask.sum()), 32)
    assert torch.equal(
        states, probe_position.states_of(model, idx.masked_fill(~mask, 0), mask, "cpu")
    )  # whatever stands in the padding
    alone, _ = model(idx[1:2, :3], need_states=True)[1], None
    torch.testing.assert_close(states[:, 12:15], torch.stack(alone)[:, 0], atol=1e-5, rtol=1e-5)


def test_the_probe_is_the_sources():
    parts = probe_position.Probe(8, 20, scale=2.0)
    assert [tuple(p.shape) for p in parts.parameters()] == [(16, 8), (20, 16)]
    x = torch.randn(3, 8)
    torch.testing.assert_close(
        parts(x), torch.relu(x / 2 @ parts.layers[0].weight.T) @ parts.layers[2].weight.T
    )


def test_seeds_are_one_row_and_an_encoder_can_be_probed_too(corpus, finished, shell, tmp_path):
    for seed in (1, 2):
        assert (
            call(
                "train_lm",
                *SHORT["train_lm"],
                "--data",
                corpus,
                "--pos",
                "nope",
                "--seed",
                seed,
                "--out",
                tmp_path / f"nope-{seed}",
            ).code
            == 0
        )
    done = shell(
        "probe_position",
        "nope-1",
        "nope-2",
        finished("train_lm"),
        "--steps",
        20,
        "--blocks",
        20,
        "--out",
        "probe",
        "--text",
        "hope and change",
    )
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "probe" / "result.json").read_text(encoding="utf-8"))["runs"]
    assert (
        list(result) == ["NoPE", "learned"]
        and len(result["NoPE"]["trained"]) == 2
        and len(result["NoPE"]["trained"][0]) == 2
    )
    assert result["NoPE"]["random"][0] == pytest.approx((12 * 12 - 1) / 36, abs=0.01)
    assert len(result["NoPE"]["example"][0]["true"]) == 4  # [BOS] and three words
    assert "±" in done.out and (tmp_path / "probe" / "probe.png").stat().st_size > 10_000
    assert "NoPE, untrained" in (tmp_path / "probe" / "probe.tex").read_text(encoding="utf-8")
    encoder = call_main(
        probe_position,
        probe_position.probe,
        finished("train_mlm"),
        "--steps",
        5,
        "--blocks",
        8,
        "--out",
        tmp_path / "encoder",
    )
    assert encoder.code == 0 and "layer 1" in encoder.out


@pytest.mark.parametrize(
    "argv, part",
    [
        (("nowhere",), "nowhere: no such run folder"),
        ((), "runs"),
        (("run", "--steps", 0), "--steps must be at least 1"),
        (("run", "--blocks", 1), "--blocks must be at least 4"),
        (("run", "--out", "run"), "--out run: is a run"),
    ],
)
def test_mistakes_are_named(finished, tmp_path, monkeypatch, argv, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").symlink_to(finished("train_lm"))
    done = call_main(probe_position, probe_position.probe, *argv)
    assert done.code == 2 and done.err.count("\n") == 1 and part in done.err, done.err


def test_runs_that_differ_in_more_than_the_seed_stand_alone(corpus, tmp_path):
    for name, more in (("a", ()), ("b", ("--n-embd", 8, "--seed", 1))):
        assert (
            call(
                "train_lm", *SHORT["train_lm"], *more, "--data", corpus, "--out", tmp_path / name
            ).code
            == 0
        )
    assert list(by_position([read_run(tmp_path / name) for name in "ab"])) == ["a", "b"]


def test_runs_without_one_order_of_words_are_refused(corpus, tmp_path):
    assert (
        call(
            "train_seq2seq", *SHORT["train_seq2seq"], "--data", corpus, "--out", tmp_path / "run"
        ).code
        == 0
    )
    done = call_main(probe_position, probe_position.probe, tmp_path / "run")
    assert done.code == 2 and done.err.count("\n") == 1 and "train_lm.py" in done.err
