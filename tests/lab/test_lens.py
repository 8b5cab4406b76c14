"""The answers of models by layer and without a head, against smaller models called by hand."""

import copy
from itertools import product

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from helpers import call, make_run

from data.tokenizer import MASK
from lab import load_run
from lab.inside import lens
from lab.inside.ablation import ablate
from lab.inside.attention import readings_of
from lab.inside.lens import ask, final_logits, read_layers
from lab.inside.page import ASKED, page
from lab.load import SCRIPTS

TEXT = "this is a small sentence and we"
THREAD = ["this is a small sentence", "we will read", "this [MASK] is small"]


@pytest.fixture
def opened(tmp_path, finished):
    """opened("lm", pos="rope") -> a run and its last AttentionView of a text."""

    def get(kind, **config):
        made = kind == "seq2seq"  # by training; the others have random weights
        folder = finished("train_seq2seq") if made else make_run(tmp_path / kind, kind, **config)
        run = load_run(folder)
        texts = THREAD if kind == "thread" else ["we will work", TEXT]
        return run, readings_of(run, texts)[-1].views[-1]

    return get


def logits_of(run, model, inputs):
    """The answers (M, V) of a model at all places, one forward pass for each masked word."""
    if run.kind in ("lm", "seq2seq", "classifier"):
        return model(**inputs).reshape(-1, run.model(**inputs).size(-1))
    rows = []
    for place in range(1, inputs["idx"].size(1)):
        idx = inputs["idx"].clone()
        idx[0, place] = MASK
        rows.append(model(**inputs | {"idx": idx})[0, place])
    return torch.stack(rows)


KINDS = [
    ("lm", {"pos": "alibi"}),
    ("lm", {"norm_first": False, "pos": "sinusoidal"}),
    ("mlm", {"pos": "rope", "head": "roberta"}),
    ("mlm", {"pos": "learned", "head": "clap"}),
    ("classifier", {"pos": "nope"}),
    ("seq2seq", {}),
    ("thread", {"pos": "alibi"}),
]


def test_every_kind_of_run_is_asked():
    assert {kind for kind, _ in KINDS} == set(ASKED) == set(SCRIPTS)


@pytest.mark.parametrize("kind, config", KINDS)
def test_each_layer_answers_as_a_model_that_ends_there(opened, kind, config):
    run, view = opened(kind, **config)
    inputs, found = view.inputs, read_layers(run, ask(view))
    writer = lens.writer(run.model.body)
    assert len(found.layers) == len(writer.blocks) + 1
    for layer in range(len(found.layers)):
        shorter = copy.deepcopy(run.model)
        lens.writer(shorter.body).blocks = nn.ModuleList(lens.writer(shorter.body).blocks[:layer])
        probabilities = logits_of(run, shorter, inputs).softmax(-1)
        n = len(probabilities)  # of a classifier only the text, not its words
        best, words = probabilities.topk(found.words.size(-1))
        assert torch.allclose(found.probabilities[layer, :n], best, atol=1e-5)
        shown = probabilities.gather(-1, found.words[layer, :n])  # equal ones in any order
        assert torch.allclose(shown, best, atol=1e-5)


def test_the_last_layer_answers_as_the_model(opened):
    run, view = opened("lm", pos="rope")
    ids = view.inputs["idx"]
    found = read_layers(run, ask(view))
    probabilities = run.model(ids)[0].softmax(-1)
    for place, true in enumerate(ids[0, 1:]):
        p = probabilities[place, true]
        assert found.true[-1, place].item() == pytest.approx(p.item(), abs=1e-6)
        assert found.ranks[-1, place] == 1 + (probabilities[place] > p).sum()
    assert found.true[-1, -1].isnan() and found.ranks[-1, -1] == 0  # nothing follows


def test_words_alone_have_classes_too(opened):
    run, view = opened("classifier", pos="alibi")
    found = read_layers(run, ask(view))
    h = run.model.body(view.inputs["idx"])[0]
    expected = run.model.head(h).softmax(-1).sort(-1, descending=True).values
    assert torch.allclose(found.probabilities[-1, 1:], expected, atol=1e-6)


def test_a_mask_in_the_text_stays_and_has_no_true_word(opened):
    run, view = opened("thread")
    asked = ask(view)
    assert asked.targets.tolist()[1] == -100 and (asked.targets >= 0).sum() == 3
    assert (asked.inputs["idx"] == MASK).sum(1).tolist() == [2, 1, 2, 2]


@pytest.mark.parametrize("kind, after", [("lm", [False]), ("mlm", [])])  # nothing follows in lm
def test_an_unknown_word_is_no_true_word(opened, kind, after):
    run, _ = opened(kind)
    assert (ask(run.attention("we qwx work")).targets >= 0).tolist() == [True, False, True, *after]


def test_an_ensemble_adds_the_answers_of_all_members(corpus, tmp_path):
    sizes = "--n-layer 1 --n-embd 16 --block-size 12 --batch-size 4 --steps 2 --members 2".split()
    assert call("train_lm", "--data", corpus, "--out", tmp_path / "run", *sizes).code == 0
    run = load_run(tmp_path / "run")
    view = run.attention("hope and change")
    found = read_layers(run, ask(view))
    assert found.layers == ["embedding", "layer 1", "all 2 members"]
    members = [member(view.inputs["idx"])[0].softmax(-1) for member in run.model.members]
    for layer, probabilities in ((1, members[0]), (2, sum(members) / 2)):
        assert torch.allclose(found.probabilities[layer], probabilities.topk(5).values, atol=1e-6)


def test_too_long_a_text_is_asked_in_part(opened, monkeypatch):
    monkeypatch.setattr(lens, "MOST_WORK", 1)
    _, view = opened("mlm")
    assert ask(view).places.tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("kind, config", KINDS)
def test_a_head_that_is_off_has_no_output_weights(opened, kind, config):
    run, view = opened(kind, **config)
    asked = ask(view)
    before = copy.deepcopy(run.model.state_dict())
    whole, effects = ablate(run, asked)
    logits = final_logits(run.model, asked)
    targets = torch.where(asked.targets >= 0, asked.targets, logits.argmax(-1))
    assert torch.allclose(whole.losses, F.cross_entropy(logits, targets, reduction="none"))
    parts = ["encoder", "decoder", "cross"] if kind in ("seq2seq", "thread") else [""]
    size = run.model.body.config
    heads = product(parts, range(1, size.n_layer + 1), range(1, size.n_head + 1))
    assert [(one.part, one.layer, one.head) for one in effects] == list(heads)
    for effect in effects:
        zeroed = without_head(run.model, effect.part, effect.layer, effect.head)
        logits = final_logits(zeroed, asked)
        losses = F.cross_entropy(logits, targets, reduction="none")
        assert torch.allclose(effect.losses, losses, atol=1e-4)
        assert torch.equal(effect.words, logits.argmax(-1))
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_comment_alone_has_the_heads_of_its_own_words(opened):
    run, _ = opened("thread")
    (alone,) = run.attention(THREAD[-1]).values()
    _, effects = ablate(run, ask(alone))
    assert {one.part for one in effects} == {"decoder"}


def without_head(model, part, layer, head):
    """A copy of a model where nothing reads the output of a head."""
    model = copy.deepcopy(model)
    body = getattr(model.body, part.replace("cross", "decoder")) if part else model.body
    block = body.blocks[layer - 1]
    attention = block.cross_attention if part == "cross" else block.attention
    D = attention.out.in_features // attention.n_head
    attention.out.weight.data[:, (head - 1) * D : head * D] = 0
    return model


def test_a_large_page_is_below_one_megabyte(tmp_path, monkeypatch):
    monkeypatch.setattr(lens, "MOST_WORK", 10**9)  # a few masked words suffice here
    size = {"n_layer": 6, "n_head": 12, "n_embd": 96, "block_size": 64, "init_std": 0.05}
    run = load_run(make_run(tmp_path / "run", "mlm", pos="rope", **size))
    text = " ".join(["this is a small sentence and we will work with the people"] * 6)
    view = run.attention(text)
    assert view.weights.shape == (6, 12, 64, 64)
    assert len(page([view], text).encode()) < 1_000_000
