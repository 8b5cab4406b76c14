"""anchor_head.py, averages.py and emergence.py: known answers, and their command lines."""

import pytest
import torch
from helpers import SHORT, assert_complains, call, result_of, same, succeed, tiny_model, train

from lab.errors import UserError
from lab.load import read_run
from model import Decoder
from studies import anchor_head, averages


def body():
    return tiny_model(Decoder, pos="nope", n_embd=32, n_ffn=0, init_std=0.5).body


def make_uniform(model):
    """Make the first attention weigh all words alike, by queries of zero."""
    C = model.config.n_embd
    with torch.no_grad():
        model.blocks[0].attention.qkv.weight[:C] = 0


def test_a_uniform_head_gives_the_first_token_one_over_t():
    model = body()
    make_uniform(model)
    weights = anchor_head.weights_on_first(model, torch.randint(5, 30, (70, 12)))  # (L, H, T)
    expected = 1 / torch.arange(1, 13).float()
    torch.testing.assert_close(weights[0], expected.expand(2, 12))
    assert (weights[1] - expected).abs().max() > 0.01  # of the second layer, nothing is known


@pytest.mark.parametrize("anchor", [False, True])
def test_the_mean_of_independent_words_has_the_predicted_length(anchor):
    model, idx = body(), torch.randint(5, 30, (4000, 12))
    make_uniform(model)
    with torch.no_grad():
        model.blocks[0].attention.out.bias.normal_()
    idx[:, 0] = 1 if anchor else idx[:, 0]
    measured = averages.squared_lengths(model, idx)[0].mean(0)
    expected = averages.predicted(model, idx, anchor)
    torch.testing.assert_close(measured, expected, rtol=0.03, atol=0)
    assert measured[0] > 1.5 * measured[-1]


def test_a_length_tells_the_position_as_far_as_it_differs():
    lengths = torch.arange(12.0) + 0.1 * torch.rand(500, 12)
    assert averages.distance_by_length(lengths, lengths) < 0.2
    same = torch.rand(500, 12)
    assert averages.distance_by_length(same, torch.rand(100, 12)) > 2.5  # always the middle: 3
    assert averages.distance_by_length(lengths[:1], lengths) < 1  # fewer lengths than bins


@pytest.fixture(scope="module")
def kept(corpus, tmp_path_factory):
    """The folders of two seeds of a model with an anchor that kept its weights."""
    place = tmp_path_factory.mktemp("kept")
    for seed in (1, 2):
        flags = dict(pos="nope", anchor=True, keep="8,0,3", seed=seed)
        train("train_lm", **flags, data=corpus, out=place / str(seed))
    return [place / "1", place / "2"]


def test_kept_weights_are_those_of_their_step(kept, corpus, tmp_path):
    short = [*SHORT["train_lm"], "--decay", "0"]
    short[short.index("--steps") + 1] = "3"
    for name, argv in {"whole": SHORT["train_lm"] + ("--decay", "0"), "short": short}.items():
        keep = () if name == "short" else ("--keep", "3")
        succeed(call("train_lm", *argv, *keep, data=corpus, out=tmp_path / name))
    early, whole = read_run(tmp_path / "whole", step=3), read_run(tmp_path / "short")
    assert same(early.model.state_dict(), whole.model.state_dict())
    last, whole = read_run(kept[0], step=8), read_run(kept[0])
    assert same(last.model.state_dict(), whole.model.state_dict())
    with pytest.raises(UserError, match="no step-5.pt; it has step-0.pt, step-3.pt, step-8.pt; "):
        read_run(kept[0], step=5)
    with pytest.raises(UserError, match="no step-3.pt; it kept none; train with --keep 3"):
        read_run(tmp_path / "short", step=3)


def test_seeds_that_kept_other_steps_are_refused(kept, corpus, tmp_path):
    flags = dict(pos="nope", anchor=True, keep="0,8", seed=3)
    train("train_lm", **flags, data=corpus, out=tmp_path / "3")
    done = call("emergence", kept[0], tmp_path / "3", blocks=20, steps=5, out=tmp_path / "out")
    assert_complains(done, "its seeds kept other steps", "--keep")
    assert "measuring" not in done.out


def test_a_run_without_kept_weights_is_refused(finished, tmp_path):
    done = call("emergence", finished("train_lm"), out=tmp_path / "out")
    assert_complains(done, "holds no weights of earlier steps", "--keep")


def test_the_counting_head_of_every_seed(kept, tmp_path):
    argv = ("--blocks", 20, "--steps", 5)
    done = succeed(call("anchor_head", *kept, *argv, out=tmp_path / "out"))
    (runs,) = result_of(tmp_path / "out")["runs"].values()
    assert len(runs["head"]) == 2 and "new probes" in done.out
    (layer, head), harm = runs["head"][0], runs["harm"][0]
    assert harm[f"{layer}.{head}"] == max(harm.values())
    # Without a head, the layers before it know what they knew.
    assert runs["off"][0]["median"][:layer] == runs["whole"][0]["median"][:layer]


def test_a_window_that_hides_the_first_token_is_drawn(corpus, tmp_path):
    train("train_lm", data=corpus, window=3, out=tmp_path / "run")
    succeed(
        call("anchor_head", tmp_path / "run", "--blocks", 20, "--steps", 5, out=tmp_path / "out")
    )
    assert (tmp_path / "out" / "anchor.png").exists()
