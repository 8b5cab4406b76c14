"""train_lm.py: perplexities counted by hand, and what helps on a small text."""

import math
import re
import shutil

import pytest
import torch
from helpers import SAID, call, result_of, succeed, train

import data
import train_lm
from data import batching
from data.tokenizer import BOS, UNK, encode, load_tokenizer
from lab import load_run
from lab.load import read_run
from lab.records import read_metrics
from model import LanguageModel


def nats_by_hand(model, ids, block):
    """Minus the log probability of each token after [BOS], given those before it in its block."""
    nats = 0.0
    with torch.no_grad():
        for t in range(1, len(ids)):
            start = (t - 1) // block * block
            logits = model(torch.tensor([ids[start:t]]))[0, -1]
            nats -= logits.log_softmax(-1)[ids[t]].item()
    return nats


def test_perplexity_and_bits_per_byte_are_those_by_hand(corpus, tmp_path):
    flags = dict(pos="alibi", lr=0.01, eval_block="5,40")
    done = train("train_lm", **flags, data=corpus, out=tmp_path / "run")
    loaded, result = read_run(tmp_path / "run"), result_of(tmp_path / "run")
    for name in SAID:
        text = (corpus / f"test_LM_{name}.txt").read_text(encoding="utf-8")
        ids = [BOS] + [i for line in text.splitlines() for i in encode(loaded.tokenizer, [line])[0]]
        count = len(ids) - 1
        assert result[f"tokens/{name}"] == count
        assert UNK in ids
        assert result[f"unknown/{name}"] == pytest.approx(ids.count(UNK) / count)
        assert count % 12  # the last block is shorter, so a mean over blocks would differ
        for block, at in ((12, ""), (5, "@5"), (40, "@40")):
            nats = nats_by_hand(loaded.model, ids, block)
            bits = nats / math.log(2) / len(text.encode())
            expected = pytest.approx((math.exp(nats / count), bits), rel=1e-4)
            found = (result[f"{metric}/{name}{at}"] for metric in ("perplexity", "bits_per_byte"))
            assert tuple(found) == expected
    last = read_metrics(tmp_path / "run")[-1]
    assert result["perplexity/obama"] == pytest.approx(last["perplexity/obama"])
    printed = re.findall(r"^  (\S+) +perplexity ", done.out, re.MULTILINE)
    assert {f"perplexity/{name}" for name in printed} == {n for n in result if "perplexity" in n}


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_evaluation_does_not_depend_on_the_batch_size(batch_size, finished, corpus):
    loaded = read_run(finished("train_lm"))
    ids = batching.stream(loaded.tokenizer, data.load(corpus).tests["obama"])
    given = (loaded.model, ids, 12, torch.device("cpu"), train_lm.Flags())
    once = train_lm.evaluate(*given, batch_size=len(ids))
    assert train_lm.evaluate(*given, batch_size) == pytest.approx(once, rel=1e-5)


def test_training_text_is_evaluated_whole_or_from_its_start(corpus, finished, tmp_path):
    train("train_lm", "--data", corpus, eval_train=50, out=tmp_path / "part")
    whole, part = result_of(finished("train_lm")), result_of(tmp_path / "part")
    ids = encode(read_run(tmp_path / "part").tokenizer, data.load(corpus).lines)
    assert whole["tokens/train"] == sum(map(len, ids)) and part["tokens/train"] == 50
    assert part["perplexity/obama"] == whole["perplexity/obama"]
    assert part["perplexity/train"] != whole["perplexity/train"]


RECIPE = (
    *"--drop-words 0.1 --swap-words 0.2 --rare-unknown 0.3 --label-smoothing 0.05".split(),
    *"--members 2 --eval-stride 5 --pos alibi".split(),
)


def test_all_options_for_small_texts_together(corpus, tmp_path):
    learn = "--steps 60 --lr 0.02 --eval-every 30 --valid 0.2".split()
    argv = ("--data", corpus, *learn)
    train("train_lm", *argv, *RECIPE, out=tmp_path / "run")
    first, *_, last = read_metrics(tmp_path / "run")
    assert last["perplexity/valid"] < 0.5 * first["perplexity/valid"]
    result = result_of(tmp_path / "run")
    assert result["perplexity/obama"] == pytest.approx(last["perplexity/obama"])
    # The members are averaged, and each prediction has at least 12 - 5 words of context.
    loaded = read_run(tmp_path / "run")
    ids = batching.stream(loaded.tokenizer, data.load(corpus).tests["obama"])
    nats = 0.0
    for i in range(1, len(ids)):
        begin = 0 if i <= 12 else -(-(i - 12) // 5) * 5
        logits = [member(ids[None, begin:i])[0, -1] for member in loaded.model.members]
        nats -= math.log(sum(each.softmax(-1)[ids[i]] for each in logits).item() / 2)
    assert result["perplexity/obama"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-4)
    # The model expects more unknown words than without these options.
    train("train_lm", *argv, out=tmp_path / "plain")
    models = (loaded.model, read_run(tmp_path / "plain").model)
    unknown, plain = (model(ids[None, :12]).softmax(-1)[..., UNK].mean() for model in models)
    assert unknown > 3 * plain
    # The other scripts read such a run too.
    assert call("attention_maps", tmp_path / "run", text="hope and change matter").code == 0
    assert call("sample", tmp_path / "run", text="hope and").code == 0


def test_split_keeps_test_sentences_out_of_the_vocabulary(own_corpus, tmp_path):
    for name in ("train_CLS.tsv", "test_CLS.tsv"):
        with open(own_corpus / name, "a", encoding="utf-8") as file:
            file.write("0\tOnly the word Zeppelin is new here .\n")
    words, lines = {}, shutil.copy(own_corpus / "train_LM.txt", tmp_path)
    for split in ("full", "clean"):
        run = tmp_path / split
        argv = ("--vocab-from", own_corpus, "--split", split, "--data", lines)
        train("train_lm", *argv, out=run)
        words[split] = load_tokenizer(run / "tokenizer.json").get_vocab()
    assert "Zeppelin" in words["full"] and "Zeppelin" not in words["clean"]


def test_a_run_with_the_anchor_is_continued_with_it(corpus, tmp_path):
    train("train_lm", "--anchor", data=corpus, out=tmp_path / "run")
    given = dict(data=corpus, init_from=tmp_path / "run", steps=0, out=tmp_path / "on")
    succeed(call("train_lm", **given))
    before, after = (result_of(tmp_path / name) for name in ("run", "on"))
    assert after["perplexity/train"] == before["perplexity/train"]


def test_the_anchor_can_be_added_to_a_run_without_it(corpus, tmp_path):
    train("train_lm", data=corpus, out=tmp_path / "run")
    given = dict(data=corpus, init_from=tmp_path / "run", steps=0, out=tmp_path / "on")
    succeed(call("train_lm", "--anchor", **given))
    resumed = call("train_lm", "--resume", out=tmp_path / "on")
    assert "--anchor" not in succeed(resumed).out and load_run(tmp_path / "on").anchor


def test_anchored_blocks_are_trained_measured_and_read_alike(corpus, tmp_path, monkeypatch):
    seen, loss = [], LanguageModel.loss

    def watched(self, idx, *more, **how):
        seen.append(idx)
        return loss(self, idx, *more, **how)

    monkeypatch.setattr(LanguageModel, "loss", watched)
    train("train_lm", "--anchor", data=corpus, out=tmp_path / "run")
    assert all((idx[:, 0] == BOS).all() for idx in seen)
    run = load_run(tmp_path / "run")
    for name, lines in data.load(corpus).tests.items():
        expected = run.result[f"perplexity/{name}"]
        assert run.perplexity("\n".join(lines)) == pytest.approx(expected, rel=1e-5)
    run.anchor = False
    assert run.perplexity("\n".join(lines)) != pytest.approx(expected, rel=1e-5)


def test_each_member_is_clipped_as_if_trained_alone(corpus, tmp_path, monkeypatch):
    norms = []

    def clip(parameters, most):
        gradients = [p.grad for p in parameters]
        norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm().item())

    monkeypatch.setattr(train_lm, "clip_grad_norm_", clip)
    for members in (1, 3):
        train("train_lm", data=corpus, steps=1, members=members, out=tmp_path / str(members))
    alone, *together = norms
    assert len(together) == 3 and together == pytest.approx([alone] * 3, rel=0.4)  # not a third
