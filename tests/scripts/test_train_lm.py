"""train_lm.py: its numbers, and what its flags do."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, call, fails, start, succeed

from data.batching import consecutive_blocks, stream
from data.tokenizer import BOS, load_tokenizer
from lab.load import read_metrics, read_result, read_run
from train_lm import describe_perplexity, evaluate


def run(corpus, out, *argv, **flags):
    succeed(call("train_lm", "--data", corpus, *TINY, *argv, out=out, **flags))
    return read_result(out)


def weights(folder, name="best.pt"):
    return torch.load(folder / name, weights_only=True)["model"]


def same_weights(one, two):
    return all(torch.equal(a, b) for a, b in zip(weights(one).values(), weights(two).values()))


def test_training_lowers_the_perplexity_and_writes_a_run(corpus, tmp_path):
    done = succeed(call("train_lm", "--data", corpus, *TINY, lr=0.03, steps=30, out=tmp_path / "a"))
    first, *_, last = read_metrics(tmp_path / "a")
    assert last["perplexity/one"] < 0.7 * first["perplexity/one"]
    names = "config.json tokenizer.json metrics.jsonl result.json curve.png checkpoint.pt best.pt"
    assert set(names.split()) <= {path.name for path in (tmp_path / "a").iterdir()}
    assert f"one {read_result(tmp_path / 'a')['perplexity/one']:.1f}" in done.out.split("\n")[-2]


@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize("stride", [0, 3])
def test_perplexity_predicts_each_token_of_the_stream_once(finished, stride, anchor):
    source = read_run(finished("train_lm", "--pos", "alibi"))
    ids = stream(source.tokenizer, ["we want peace and hope today ."] * 9)
    T, blocks = 12, consecutive_blocks(ids, 12, stride, anchor)
    got = evaluate(source.model, *blocks, torch.device("cpu"), "float32")
    losses, step = [], stride or T
    for t in range(len(ids) - 1):  # token t + 1, from the block that predicts it
        block = 0 if t < T else math.ceil((t + 1 - T) / step)
        context = ids[block * step : t + 1].clone()
        if anchor:
            context[0] = BOS
        losses.append(F.cross_entropy(source.model(context[None])[0, -1], ids[t + 1]))
    assert got == pytest.approx(torch.stack(losses).mean().exp().item(), rel=1e-4)


@pytest.mark.slow
def test_accumulated_parts_and_two_processes_are_the_whole_batch(corpus, tmp_path):
    whole = run(corpus, tmp_path / "whole", "--threads", 1, pos="alibi")
    parts = run(corpus, tmp_path / "parts", "--threads", 1, pos="alibi", accumulate=3)
    two = start(
        "torch.distributed.run", "--nproc_per_node", 2, "train_lm.py", "--data", corpus, *TINY,
        "--threads", 1, pos="alibi", out=tmp_path / "two",
    )  # fmt: skip
    assert two.wait(120) == 0, two.stdout.read()
    for other in (parts, read_result(tmp_path / "two")):
        assert other["perplexity/one"] == pytest.approx(whole["perplexity/one"], rel=1e-5)


def test_weights_that_are_not_tied_are_not_tied_later(corpus, tmp_path):
    run(corpus, tmp_path / "untied", "--no-tie")
    argv = ("train_lm", "--data", corpus, *TINY, "--init-from", tmp_path / "untied")
    fails(call(*argv, "--tie", out=tmp_path / "run"), "--tie", "is not tied")
    succeed(call(*argv, out=tmp_path / "run"))


def test_members_are_trained_separately_and_averaged(corpus, tmp_path):
    ensemble = run(corpus, tmp_path / "a", members=2, steps=20, lr=0.01)
    state = weights(tmp_path / "a")
    first, second = (state[f"members.{m}.body.embedding.weight"] for m in (0, 1))
    assert not torch.equal(first, second)
    model = read_run(tmp_path / "a").model
    assert len(model.members) == 2 and ensemble["perplexity/one"] > 1


def test_noise_changes_training_but_not_evaluation(corpus, tmp_path):
    noisy = dict(drop_words=0.1, swap_words=0.2, rare_unknown=0.3, label_smoothing=0.1)
    run(corpus, tmp_path / "noise", **noisy)
    run(corpus, tmp_path / "plain")
    a, b = read_metrics(tmp_path / "noise"), read_metrics(tmp_path / "plain")
    assert a[0]["perplexity/one"] == b[0]["perplexity/one"]
    assert a[1]["perplexity/one"] != b[1]["perplexity/one"]


def test_longer_blocks_bits_per_byte_and_kept_steps(corpus, tmp_path):
    bpe = ["--tokenizer", "bpe", "--vocab-size", 300, "--pos", "alibi"]
    result = run(corpus, tmp_path / "a", *bpe, eval_block="6,24", keep="0,4")
    assert {"perplexity/one@6", "perplexity/one@24", "bits_per_byte/one"} <= result.keys()
    nats = math.log(result["perplexity/one"]) * result["tokens/one"]
    size = (corpus / "test_LM_one.txt").stat().st_size
    assert result["bits_per_byte/one"] == pytest.approx(nats / math.log(2) / size)
    for step in (0, 4):
        assert read_run(tmp_path / "a", step=step).weights_of == f"step {step}"


def test_valid_chooses_the_best_step(corpus, tmp_path):
    result = run(corpus, tmp_path / "a", valid=0.2, lr=0.5, steps=16)
    lines = read_metrics(tmp_path / "a")
    best = min(lines, key=lambda line: line["perplexity/valid"])
    assert result["step"] == best["step"]
    assert result["perplexity/valid"] == pytest.approx(best["perplexity/valid"], rel=1e-6)


def test_generated_text_has_a_floor(tmp_path):
    succeed(call("train_lm", *TINY, steps=2, eval_train=200, out=tmp_path / "a"))
    result = read_result(tmp_path / "a")
    floors = {name: value for name, value in result.items() if name.startswith("floor/")}
    assert floors and all(result[name[6:]] > value > 1 for name, value in floors.items())


# ---------------------------------------------------------------------------- starting from a run


def test_init_from_continues_with_weights_architecture_and_vocabulary(finished, corpus, tmp_path):
    source = finished("train_lm", "--pos", "alibi", "--anchor")
    run(corpus, tmp_path / "a", init_from=source, steps=0)
    assert same_weights(tmp_path / "a", source)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["model"]["pos"] == "alibi" and config["flags"]["anchor"]
    assert load_tokenizer(tmp_path / "a" / "tokenizer.json").get_vocab_size() > 10


@pytest.mark.parametrize("pos, changed", [
    ("alibi", ["--block-size", 20]), ("rope", ["--pos", "nope"]), ("learned", ["--dropout", 0.1]),
    ("rope", ["--rope-scale", "yarn", "--rope-factor", 4, "--eval-block", "48"]),
])  # fmt: skip
def test_init_from_accepts_what_has_no_weights(finished, corpus, tmp_path, pos, changed):
    source = finished("train_lm", "--pos", pos)
    small = ["--data", corpus, "--steps", 0]
    succeed(call("train_lm", *small, *changed, init_from=source, out=tmp_path / "a"))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["model"][changed[0][2:].replace("-", "_")] == changed[1]
    assert same_weights(tmp_path / "a", source)


@pytest.mark.parametrize("changed", [["--n-embd", 32], ["--n-layer", 3], ["--block-size", 20]])
def test_init_from_refuses_weights_that_do_not_fit(finished, corpus, tmp_path, changed):
    source = finished("train_lm")
    outcome = call("train_lm", "--data", corpus, *changed, init_from=source, out=tmp_path / "a")
    fails(outcome, "--init-from", "weights do not fit")


def test_vocab_from_another_corpus(corpus, tmp_path):
    (tmp_path / "own.txt").write_text("a text of other words\n" * 3 + "and a last line\n")
    result = run(tmp_path / "own.txt", tmp_path / "a", vocab_from=corpus, block_size=4)
    assert result["unknown/test"] > 0.4


@pytest.mark.parametrize("flags, words", [
    (dict(n_head=3), "n_head must divide n_embd"),
    (dict(pos="rope", n_embd=6, n_head=2), "even"),
    (dict(eval_block="40"), "positions end at --block-size"),
    (dict(eval_stride=13), "--eval-stride"),
    (dict(graph=True, device="cpu"), "--graph: needs CUDA"),
    (dict(random_keys=2), "--random-keys: need --window or --attn-block"),
    (dict(random_positions=8), "--random-positions 8: at least --block-size"),
    (dict(rope_scale="yarn"), "--rope-scale, --rope-factor: give both"),
    (dict(pos="rope", rope_share=0.1), "rope_share must be of 2 to 8 channels"),
    (dict(block_size=5000), "use a smaller block"),
    (dict(steps=-1), "must be at least 0"),
    (dict(keep="9"), "--keep 9"),
    (dict(keep="x"), "give whole numbers"),
    (dict(data="speches"), "or a name: sick, speeches"),
    (dict(pos="alibo"), "alibo"),
    (dict(nlayer=3), "nlayer"),
])  # fmt: skip
def test_a_wrong_flag_is_one_message(corpus, tmp_path, flags, words):
    fails(call("train_lm", "--data", corpus, *TINY, **flags, out=tmp_path / "a"), words)


@pytest.mark.parametrize("ppl, words", [
    (2.6, "ada 2.6 (4% above the best possible, 2.50)"),
    (4.9, "ada 4.9 (96% above the best possible, 2.50)"),
    (5.0, "ada 5.0 (2 times the best possible, 2.50)"),
    (586.0, "ada 586.0 (234 times the best possible, 2.50)"),
])  # fmt: skip
def test_a_large_distance_is_given_in_times(ppl, words):
    assert describe_perplexity({"perplexity/ada": ppl, "floor/perplexity/ada": 2.5}, "ada") == words
