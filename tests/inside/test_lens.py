"""The answers of models by layer and without a head, against smaller models called by hand."""

import copy
import json
import re
import shutil
import subprocess
from itertools import product

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from data.tokenizer import MASK
from lab import load_run
from lab.inside import lens
from lab.inside.attention import record
from lab.inside.lens import Questions
from lab.inside.page import page

TEXT = "this is a small sentence and we"
THREAD = ["this is a small sentence", "we will read", "this [MASK] is small"]


@pytest.fixture
def opened(make, finished):
    """opened("lm", pos="rope") -> a run, and what its body reads of a text."""

    def get(kind, **config):
        made = kind == "seq2seq"  # by training; the others have random weights
        run = load_run(finished("beyond.train_seq2seq") if made else make(kind, **config))
        texts = {"thread": THREAD, "seq2seq": ["we want [MASK] today ."]}
        return run, record(run, texts.get(kind, [TEXT]))[-1].inputs

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


class NoBlock(nn.Module):
    def forward(self, x, where, picked=None):
        return x


KINDS = [
    ("lm", {"pos": "alibi"}),
    ("lm", {"norm_first": False, "pos": "sinusoidal"}),
    ("mlm", {"pos": "rope", "head": "roberta"}),
    ("mlm", {"pos": "learned", "head": "clap"}),
    ("classifier", {"pos": "nope"}),
    ("seq2seq", {}),
    ("thread", {"pos": "alibi"}),
]


@pytest.mark.parametrize("kind, config", KINDS)
def test_each_layer_answers_as_a_model_that_ends_there(opened, kind, config):
    run, inputs = opened(kind, **config)
    found = Questions(run, inputs).layers
    assert len(found["names"]) == len(run.half.blocks) + 1
    for layer in range(len(found["names"])):
        shorter = copy.deepcopy(run.model)
        half = getattr(shorter.body, "decoder", shorter.body)
        half.blocks = nn.ModuleList([*half.blocks[:layer], NoBlock()])
        probabilities = logits_of(run, shorter, inputs).softmax(-1)
        best = probabilities.topk(found["words"].size(-1)).values
        assert torch.allclose(found["probabilities"][layer], best, atol=1e-5)
        shown = probabilities.gather(-1, found["words"][layer])  # equal ones in any order
        assert torch.allclose(shown, best, atol=1e-5)


def test_the_true_word_has_its_probability_and_rank(opened):
    run, inputs = opened("lm", pos="rope")
    found, ids = Questions(run, inputs).layers, inputs["idx"]
    probabilities = run.model(ids)[0].softmax(-1)
    for place, true in enumerate(ids[0, 1:]):
        p = probabilities[place, true]
        assert found["true"][-1, place].item() == pytest.approx(p.item(), abs=1e-6)
        assert found["ranks"][-1, place] == 1 + (probabilities[place] > p).sum()
    assert found["true"][-1, -1].isnan() and found["ranks"][-1, -1] == 0  # nothing follows


def test_unknown_words_and_masks_are_no_true_words(make):
    asked = load_run(make("lm")).attention("we qwx work").asked
    assert (asked.targets >= 0).tolist() == [True, False, True, False]  # nothing follows the last
    asked = load_run(make("thread", name="thread")).attention(*THREAD)["decoder"].asked
    assert (asked.targets >= 0).tolist() == [True, False, True, True]
    assert (asked.inputs["idx"] == MASK).sum(1).tolist() == [2, 1, 2, 2]


def test_an_ensemble_adds_the_answers_of_all_members(make):
    run = load_run(make(build={"members": 2}, n_layer=1))
    view = run.attention("we will work")
    found = view.asked.layers
    assert found["names"] == ["embedding", "layer 1", "all 2 members"]
    members = [member(view.inputs["idx"])[0].softmax(-1) for member in run.model.members]
    for layer, probabilities in ((1, members[0]), (2, sum(members) / 2)):
        expected = probabilities.topk(5).values
        assert torch.allclose(found["probabilities"][layer], expected, atol=1e-6)
    assert view.asked.heads["heads"] == [("", 1, 1), ("", 1, 2)]


def test_too_long_a_text_is_asked_in_part(opened, monkeypatch):
    monkeypatch.setattr(lens, "MOST_WORK", 1)
    assert Questions(*opened("mlm")).places.tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize("kind, config", KINDS)
def test_a_head_that_is_off_has_no_output_weights(opened, kind, config):
    run, inputs = opened(kind, **config)
    before, asked = copy.deepcopy(run.model.state_dict()), Questions(run, inputs)
    found = asked.heads
    parts = ["encoder", "decoder", "cross"] if kind in ("seq2seq", "thread") else [""]
    size = run.model.body.config
    heads = product(parts, range(1, size.n_layer + 1), range(1, size.n_head + 1))
    assert found["heads"] == list(heads)
    whole = asked.answer()
    targets = torch.where(asked.targets >= 0, asked.targets, whole.argmax(-1))
    for n, head in enumerate([None, *found["heads"]]):
        asked.model = without_head(run.model, *head) if head else run.model
        logits = asked.answer()
        losses = F.cross_entropy(logits, targets, reduction="none")
        assert torch.allclose(found["losses"][n], losses, atol=1e-4)
        assert torch.equal(found["words"][n], logits.argmax(-1))
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def without_head(model, part, layer, head):
    """A copy of a model where nothing reads the output of a head."""
    model = copy.deepcopy(model)
    body = getattr(model.body, part.replace("cross", "decoder")) if part else model.body
    block = body.blocks[layer - 1]
    attention = block.cross_attention if part == "cross" else block.attention
    D = attention.out.in_features // attention.n_head
    attention.out.weight.data[:, (head - 1) * D : head * D] = 0
    return model


HOSTILE = ["</script><script>document.title='run'</script>", "<img src=x onerror=alert()>", "<!--"]
HOSTILE += ["&lt;{{ data }}{% x %}\\u003c", "שלום", "\u2028"]


def test_texts_that_are_markup_are_text(make):
    view = load_run(make("mlm", name="<b>&{{ data }}")).attention("work " * (len(HOSTILE) - 1))
    view.words = view.keys = HOSTILE
    view.title = HOSTILE[0]
    text = page([view])
    assert text.count("<script") == 2 and "<img" not in text and "<b>&" not in text
    (data,) = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert data["parts"][0]["queries"] == HOSTILE and data["folder"] == "<b>&{{ data }}"
    assert "<title>&lt;/script&gt;&lt;script&gt;" in text


@pytest.mark.skipif(not shutil.which("node"), reason="no node to run the page's script with")
def test_the_script_of_a_page_reads_weights_and_sorts_heads(make):
    run = load_run(make("lm", pos="rope"))
    view = run.attention(TEXT)
    page, effects = view.html(), view.asked.heads
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    data = re.findall(r'id="data">(.*?)</script>', page)[0]
    functions = re.findall(r"^function (?:unpack|sorted)\(.*?^}$", script, re.DOTALL | re.MULTILINE)
    ask = f"""const [run] = {data};
        const weights = [...unpack(run.parts[0].maps.weights)]
          .map((x) => Number.isNaN(x) ? null : x);
        console.log(JSON.stringify([weights, sorted(run)]));"""
    program = "\n".join([*functions, ask])
    out = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout
    weights, heads = json.loads(out)
    shown = torch.tensor(view.shown()).flatten()
    assert [w is None for w in weights] == shown.isnan().tolist()
    assert [w or 0 for w in weights] == pytest.approx(shown.nan_to_num().tolist(), abs=1e-4)
    changes = (effects["losses"][1:] - effects["losses"][0])[:, :-1].mean(1)  # nothing follows
    order = changes.argsort(descending=True)
    assert [head["mean"] for head in heads] == pytest.approx(changes[order].tolist(), abs=1e-3)
    names = [(head["part"], head["layer"], head["head"]) for head in heads]
    assert names == [effects["heads"][i] for i in order]
