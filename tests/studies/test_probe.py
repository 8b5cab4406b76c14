"""probe.py: what untrained models know of positions, known distributions, and its tables."""

import json
from types import SimpleNamespace

import pytest
import torch
from helpers import call, fails, succeed

import data
from data.leaks import hold_out
from model import Decoder, Encoder
from nets.build import Options, build_body, build_lm
from nets.classifier import read_states
from studies import probe

FLAGS = SimpleNamespace(steps=250, batch_size=256, lr=5e-3, seed=0)
TINY = ("--steps", 20, "--blocks", 20, "--order-blocks", 20)


def body(pos, kind=Decoder, init_std=0.05):
    shape = dict(vocab_size=30, block_size=12, n_layer=2, n_head=2, n_embd=32)
    options = Options(**shape, pos=pos, init_std=init_std)
    model = build_lm(build_body(options, causal=kind.causal)).body
    return model.eval().requires_grad_(False)


def text(n):
    return torch.randint(5, 30, (n, 12))


def error_in_layer(model, layer, learn, judge):
    """Return the error of a probe trained on one text and tested on another."""
    states = [probe.states_of_tokens(model, idx, [layer])[0] for idx in (learn, judge)]
    truth = torch.arange(12).repeat(len(judge))
    return probe.mean_distance(probe.median(probe.fit(states[0], 12, FLAGS), states[1]), truth)


@pytest.mark.parametrize(
    "pos, knows",
    [("learned", True), ("sinusoidal", True), ("alibi", False), ("rope", False), ("nope", False)],
)
def test_only_absolute_positions_are_in_the_embeddings(pos, knows):
    error = error_in_layer(body(pos), 0, text(100), text(40))
    assert error < 0.5 if knows else error > 2.7  # the middle: 3


def test_without_positions_a_decoder_learns_some_an_encoder_none():
    # With uniform attention over t tokens the first has a weight of 1/t, which tells t even in an
    # untrained layer. In an encoder its weight is always 1/12.
    after = {}
    for kind in (Decoder, Encoder):
        learn, judge = text(300), text(50)
        learn[:, 0], judge[:, 0] = 3, 3
        after[kind] = error_in_layer(body("nope", kind, 0.1), 1, learn, judge)
    assert after[Decoder] < 2.1 < 2.4 < after[Encoder]  # the middle of the others: 2.5


def test_the_median_of_known_distributions():
    # Position 0 has 0.4, position 1 has 0.3, position 3 has 0.3: the median is 1.
    p = torch.tensor([0.4, 0.3, 1e-30, 0.3] + [1e-30] * 8).expand(12, 12)
    answer = probe.median(lambda states: p.log(), None)
    assert answer.tolist() == [1] * 12
    assert probe.mean_distance(answer, torch.arange(12)) == pytest.approx((1 + sum(range(11))) / 12)


def test_states_are_those_of_the_tokens_in_order():
    model = body("alibi")
    idx = text(70)
    states = read_states(model, idx)
    found = probe.states_of_tokens(model, idx, [0, 2])
    torch.testing.assert_close(found, torch.stack([states[0], states[2]]).flatten(1, 2))


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_shuffling_keeps_all_tokens_and_the_last_k_in_place(k):
    x = torch.arange(9).expand(50, 9)
    shuffled = probe.shuffle_all_but_last(x, torch.rand(50, 9), k)
    assert torch.equal(shuffled[:, 9 - k :], x[:, 9 - k :])
    assert torch.equal(shuffled.sort(1).values, x)
    assert (shuffled != x).any() == (k < 8)


def test_seeds_are_one_row(finished, tmp_path):
    runs = [finished("train_lm", "--pos", "nope", "--seed", seed) for seed in ("1", "2")]
    runs, out = [*runs, finished("train_lm")], tmp_path / "probe"
    done = succeed(call("studies.probe", *runs, *TINY, "--order", out=out))
    results = json.loads((out / "result.json").read_text("utf-8"))["runs"]
    assert list(results) == ["NoPE", "learned"] and [len(r) for r in results.values()] == [2, 1]
    assert results["NoPE"][1]["order"]["kept"] == [0, 1, 2, 4, 8, 12]
    assert "±" in done.out and "| NoPE      | untrained |" in done.out and "last 8" in done.out
    assert (out / "probe.png").exists() and (out / "median.tex").exists()
    assert (out / "guesses.png").exists()
    i = torch.arange(12.0)  # no constant answer is better
    best = (i - i[:, None]).abs().mean(1).min().item()
    assert results["learned"][0]["nothing"] == pytest.approx(best)


def test_probes_learn_from_no_line_that_is_held_out_or_tested(finished, corpus, monkeypatch):
    run, blocks_of, given = finished("train_lm", "--valid", "0.2"), probe.blocks_of, []
    monkeypatch.setattr(probe, "blocks_of", lambda *a: given.append(a[1]) or blocks_of(*a))
    probe.measure(run, probe.Flags([], steps=2, blocks=8), torch.device("cpu"))
    (learned, judged), (kept, held) = given, hold_out(data.load(corpus).lines, 0.2)
    assert held and set(kept) & set(judged) and set(learned) == set(kept) - set(judged)


def test_guesses_are_those_of_the_best_layer_in_one_text(finished, monkeypatch):
    flags = probe.Flags([], steps=20, blocks=4)  # a quarter as many test blocks: one
    result = probe.measure(finished("train_lm"), flags, torch.device("cpu"))
    layer, positions = result["guesses"]["layer"], result["guesses"]["positions"]
    error = sum(abs(guess - i) for i, guess in enumerate(positions)) / 12
    errors = dict(zip(result["layers"], result["probe"]["trained"]))
    assert errors[layer] == min(errors.values()) == pytest.approx(error)
    drawn = []
    monkeypatch.setattr(probe.figures, "save", lambda figure, path: drawn.append(figure))
    deeper = result | {"guesses": {"layer": 3, "positions": [5] * 12}}
    probe.draw_guesses("guesses.png", {"learned": [result], "NoPE": [deeper, result]})
    (figure,) = drawn
    where = "embeddings" if layer == 0 else f"layer {layer}"
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == [f"learned\n{where}", "NoPE\nlayer 3"]
    for axis, guesses in zip(figure.axes, (positions, [5] * 12)):
        _, points = axis.lines  # the first one is that of right guesses
        assert list(points.get_xdata()) == list(range(12)) and list(points.get_ydata()) == guesses
    texts = figure.findobj(lambda part: hasattr(part, "get_fontsize"))
    assert figure.get_figwidth() <= 6.5 and min(text.get_fontsize() for text in texts) >= 7


@pytest.mark.parametrize("options", ["--pos pope", "--nope-every 1 --log-scale"])
def test_the_untrained_body_has_the_options_of_the_run(options, finished, tmp_path):
    run = finished("train_lm", *options.split(), "--keep", "0")
    flags = dict(kept=0, layers=1, out=tmp_path / "probe")
    succeed(call("studies.probe", run, *TINY, **flags))
    result = json.loads((tmp_path / "probe" / "result.json").read_text("utf-8"))
    ((measured,),) = result["runs"].values()
    assert measured["probe"]["step 0"] == measured["probe"]["untrained"]


def test_chosen_layers_and_kept_steps(finished, tmp_path):
    run, out = finished("train_lm", "--keep", "0,4"), tmp_path / "probe"
    succeed(call("studies.probe", run, *TINY, "--layers", "1", "--kept", "0,4", out=out))
    ((measured,),) = json.loads((out / "result.json").read_text("utf-8"))["runs"].values()
    assert measured["layers"] == [1]
    assert list(measured["probe"]) == ["untrained", "step 0", "step 4", "trained"]
    # At step 0 the model is the untrained one, drawn with the same seed
    assert measured["probe"]["step 0"] == measured["probe"]["untrained"]
    fails(call("studies.probe", run, *TINY, kept="7", out=out), "no step-7.pt", "step-4", "--keep")
    fails(call("studies.probe", finished("train_mlm"), *TINY, out=out), "mlm", "lm")
