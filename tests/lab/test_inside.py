"""lab.load_run: what a trained run tells in Python, against the model called by hand."""

import html
import math

import matplotlib
import matplotlib.image
import numpy as np
import pytest
import torch
from helpers import make_run, maps_of

import data
from data.tokenizer import BOS, MASK, SPECIAL
from lab import load_run
from lab.errors import UserError
from model import POSITIONS

N_SPECIAL = len(SPECIAL)
TEXT = "this is a small sentence"
THREAD = ("this is a small sentence", "we will read", "this [MASK] is small")


def ids_of(run, text):
    return torch.tensor([[BOS, *run.tokenizer.encode(text, add_special_tokens=False).ids]])


def softmax(scores):
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "kind, config, flags, words",
    [
        ("lm", {"pos": "alibi", "window": 4}, {}, "causal LM, ALiBi, window 4"),
        ("mlm", {"pos": "alibi", "alibi": "one-sided"}, {}, "masked LM, ALiBi (one-sided)"),
        ("lm", {}, {"data": "a/b"}, "causal LM, learned positions, trained on b"),
        ("mlm", {"pos": "nope"}, {"steps": 0}, "masked LM, NoPE, untrained"),
        ("lm", {"pos": "nope"}, {"steps": 0, "init": "a"}, "causal LM, NoPE"),
    ],
)
def test_a_run_is_described(tmp_path, kind, config, flags, words):
    run = load_run(make_run(tmp_path / "run", kind, **config))
    run.config["flags"] |= flags
    assert repr(run) == f"<{run.folder}: {words}>"


# ---------------------------------------------------------------------------- attention


@pytest.mark.parametrize("kind", ["lm", "mlm", "classifier"])
@pytest.mark.parametrize("pos", POSITIONS)
def test_content_and_position_make_the_weights(tmp_path, kind, pos):
    run = load_run(make_run(tmp_path / "run", kind, pos=pos, window=4))
    attention = run.attention(TEXT)
    assert attention.words == ["[BOS]", *TEXT.split()] == attention.keys
    assert attention.weights.shape == (2, 2, 6, 6)
    position = 0 if attention.position is None else attention.position
    assert (attention.position is None) == (pos in ("learned", "sinusoidal", "nope"))
    assert np.allclose(softmax(attention.content + position), attention.weights, atol=1e-6)
    _, maps = run.model.body(ids_of(run, TEXT), need_weights=True)
    assert np.allclose(attention.weights, torch.stack(maps)[:, 0].numpy(), atol=1e-6)


def test_what_alibi_adds_is_its_bias(tmp_path):
    attention = load_run(make_run(tmp_path / "run", pos="alibi")).attention(TEXT)
    for slope, bias in zip([2**-4, 2**-8], attention.position[0]):  # of two heads
        for (i, j), found in np.ndenumerate(bias):
            assert found == pytest.approx(-slope * (i - j) if j <= i else -math.inf)


def test_the_picture_of_positions_shows_what_the_model_adds(tmp_path, monkeypatch):
    run = load_run(make_run(tmp_path / "run", pos="alibi"))
    bias = run.model.body.attention_bias
    monkeypatch.setattr(run.model.body, "attention_bias", lambda *sizes: 3 * bias(*sizes))
    bias = maps_of(run.positions())["head 1: bias, slope 1/16"]
    assert bias[2, 0] == -3 * 2**-4 * 2


def test_pictures_of_position_vectors_and_of_rotation(tmp_path):
    run = load_run(make_run(tmp_path / "learned"))
    vectors, (shown, products) = run.model.body.positions.weight, maps_of(run.positions()).values()
    assert np.array_equal(shown, vectors) and np.allclose(products, vectors @ vectors.T, atol=1e-6)
    _, products = maps_of(load_run(make_run(tmp_path / "rope", pos="rope")).positions()).values()
    assert np.allclose(products.diagonal(), 1) and products[0, 5] < 0.99
    assert np.allclose(products[:-1, :-1], products[1:, 1:], atol=1e-5)  # only distances count


def test_what_rotation_adds_vanishes_at_distance_0(tmp_path):
    position = load_run(make_run(tmp_path / "run", "mlm", pos="rope")).attention(TEXT).position
    assert np.abs(np.diagonal(position, axis1=2, axis2=3)).max() < 1e-5 < np.abs(position).max()


@pytest.mark.parametrize("script, texts", [("train_seq2seq", [TEXT]), ("train_thread", THREAD)])
def test_some_runs_have_three_attentions(finished, script, texts):
    parts = load_run(finished(script)).attention(*texts)
    assert list(parts) == ["encoder", "decoder", "cross"]
    assert parts["cross"].words == parts["decoder"].words != parts["cross"].keys
    assert parts["cross"].position is None
    for attention in parts.values():
        assert attention.title == texts[-1]
        position = 0 if attention.position is None else attention.position
        assert np.allclose(softmax(attention.content + position), attention.weights, atol=1e-5)


def test_heatmaps_of_one_head_and_of_the_mean(tmp_path):
    before = matplotlib.get_backend(), matplotlib.rcParams.copy()
    attention = load_run(make_run(tmp_path / "run", pos="rope")).attention(TEXT)
    figure = attention.plot(layer=2, head=1, numbers=True, scale="linear", title="Mine")
    drawn = maps_of(figure)["layer 2, head 1"]
    assert np.allclose(drawn.filled(0), attention.weights[1, 0])
    texts = [text for axis in figure.axes for text in axis.texts]
    shown = {text.get_text(): text.get_color() for text in texts}
    assert len(texts) == 21 and f"{attention.weights[1, 0, 5, 0]:.2f}".lstrip("0") in shown
    assert (shown[".93"], shown[".53"]) == ("white", "black")  # on dark and on lighter blue
    assert not any(line.get_visible() for axis in figure.axes for line in axis.get_ygridlines())
    on_root_scale = attention.plot(layer=2, head=1, numbers=True).axes[0].texts
    assert next(text for text in on_root_scale if text.get_text() == ".53").get_color() == "white"
    assert figure.texts[0].get_text() == "Mine"
    figure.savefig(tmp_path / "head.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "head.png").shape
    assert height > 200 and width > 200  # of the whole figure, whose canvas is one inch
    assert figure._repr_png_()[1:4] == b"PNG"
    mean = maps_of(attention.plot(layer=1, mean=True, bos=False))["layer 1, mean of heads"]
    assert np.allclose(mean.filled(0), attention.weights[0].mean(0)[1:, 1:])
    assert (matplotlib.get_backend(), matplotlib.rcParams.copy()) == before


def test_the_mean_of_heads_counts_keys_that_a_head_may_not_see(tmp_path):
    run = load_run(make_run(tmp_path / "run", "mlm", pos="alibi", alibi="one-sided"))
    shown = maps_of(run.attention(TEXT).plot(layer=1, mean=True))["layer 1, mean of heads"]
    assert np.allclose(shown.filled(0).sum(-1), 1, atol=1e-5)


def test_a_page_is_shown_in_a_notebook_and_written(tmp_path):
    attention = load_run(make_run(tmp_path / "run", pos="alibi")).attention('this is "small" & <b>')
    page = attention.html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and frame.count("<") == 2  # the rest is escaped
    assert html.unescape(frame.split('"')[1]) == text


# ---------------------------------------------------------------------------- words and numbers


def test_perplexity_is_that_of_the_training_script(finished, corpus):
    run, sets = load_run(finished("train_lm")), data.load(corpus).tests
    for name, lines in sets.items():
        text = "\n".join(lines)
        assert run.perplexity(text) == pytest.approx(run.result[f"perplexity/{name}"], rel=1e-5)
    words, losses = zip(*run.losses(text))
    assert len(words) == run.result[f"tokens/{name}"]
    assert math.exp(sum(losses) / len(losses)) == pytest.approx(run.perplexity(text))


def test_masked_losses_are_those_of_one_mask_at_a_time(tmp_path):
    run = load_run(make_run(tmp_path / "run", "mlm", pos="alibi"))
    ids = ids_of(run, TEXT)
    for place, (word, loss) in enumerate(run.losses(TEXT), 1):
        masked = ids.clone()
        masked[0, place] = MASK
        expected = -run.model(masked)[0, place].log_softmax(-1)[ids[0, place]]
        assert word == TEXT.split()[place - 1] and loss == pytest.approx(expected.item(), rel=1e-4)


def test_losses_skip_special_tokens_and_empty_lines(tmp_path):
    run = load_run(make_run(tmp_path / "run", "mlm", pos="alibi"))
    lines = [TEXT, f"{TEXT} [EOS]", "[EOS]", TEXT]
    one, both = run.losses(TEXT), run.losses("\n\n".join(lines))
    assert [word for word, _ in both] == 3 * [word for word, _ in one]
    assert [loss for _, loss in both[: len(one)]] == pytest.approx([loss for _, loss in one])
    assert len(run.losses(20 * f"{TEXT} ")) == 20 * len(one)  # more than a block
    assert len(run.fill(20 * f"{TEXT} [MASK] ")) == 20


def test_next_words_are_the_models(tmp_path):
    run = load_run(make_run(tmp_path / "run", pos="rope"))
    shares = run.model(ids_of(run, TEXT))[0, -1, N_SPECIAL:].softmax(-1)
    found = run.next_words(TEXT, n=4)
    for (word, share), expected in zip(found, shares.sort(descending=True).values[:4]):
        assert share == pytest.approx(expected.item(), rel=1e-4)
        assert run.tokenizer.id_to_token(N_SPECIAL + int((shares - share).abs().argmin())) == word
    assert sum(share for _, share in run.next_words(TEXT, n=10**6)) == pytest.approx(1)


@pytest.mark.parametrize("n", [4, 10**6])
def test_masks_are_filled_as_by_hand(n, tmp_path):
    run, text = load_run(make_run(tmp_path / "run", "mlm")), "this [MASK] a small [MASK] ."
    ids = ids_of(run, text)
    for found, logits in zip(run.fill(text, n=n), run.model(ids)[ids == MASK], strict=True):
        shares, order = logits[N_SPECIAL:].softmax(-1).sort(descending=True)
        words = [run.tokenizer.id_to_token(N_SPECIAL + int(i)) for i in order[:n]]
        shares = [pytest.approx(share, rel=1e-4) for share in shares.tolist()]
        assert found == list(zip(words, shares))


def test_classes_and_features_are_the_models(tmp_path, capsys):
    run = load_run(make_run(tmp_path / "run", "classifier", block_size=4))
    ids = ids_of(run, TEXT)[:, :4]
    shares = run.model(ids)[0].softmax(-1).tolist()
    for classes in ("ba", "ab"):  # in one of them the first is not the likeliest
        run.config["classes"] = list(classes)
        (found,) = run.classify(TEXT)
        assert found == pytest.approx(dict(zip(classes, shares)))
        assert list(found.values()) == sorted(shares, reverse=True)
    assert "only the first 4 tokens count" in capsys.readouterr().out
    assert run.classify("a") and "note" not in capsys.readouterr().out
    run.model.pool = ["max"]
    assert np.allclose(run.embed(TEXT), run.model.features(ids).numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["lm", "mlm"])
def test_vectors_of_texts_are_means_without_padding(tmp_path, kind):
    run = load_run(make_run(tmp_path / "run", kind))
    vectors = run.embed("this is", TEXT)
    for vector, text in zip(vectors, ("this is", TEXT)):
        assert np.allclose(vector, run.model.body(ids_of(run, text))[0].mean(0), atol=1e-5)


REFUSED = [  # a kind of run, what it is asked, and the message
    ("mlm", lambda run: run.next_words(TEXT), "a masked LM cannot .*train_lm.py"),
    ("lm", lambda run: run.fill(TEXT), "a causal LM cannot .*train_mlm.py or beyond.train_thread"),
    ("lm", lambda run: run.classify(TEXT), "a causal LM cannot .*train_classifier.py"),
    ("classifier", lambda run: run.sample(TEXT), "cannot .*train_lm.py or beyond.train_seq2seq"),
    ("classifier", lambda run: run.perplexity(TEXT), "cannot .*train_lm.py or train_mlm.py"),
    ("mlm", lambda run: run.translate(TEXT), "cannot .*beyond.train_seq2seq --task translate"),
    ("lm", lambda run: run.sample([TEXT]), "is not a text; give strings"),
    ("lm", lambda run: run.attention([TEXT]), "is not a text; give strings"),
    ("mlm", lambda run: run.losses([TEXT]), "is not a text; give strings"),
    ("classifier", lambda run: run.embed([TEXT]), "is not a text; give strings"),
    ("mlm", lambda run: run.losses("[EOS]"), "contains no words"),
    ("mlm", lambda run: run.losses(""), "contains no words"),
    ("mlm", lambda run: run.losses("\n \n"), "contains no words"),
    ("mlm", lambda run: run.losses("we [MASK]"), "contains .MASK.,"),
    ("classifier", lambda run: run.classify("a", ""), "contains no words"),
    ("mlm", lambda run: run.fill("a [MASK]", "another [MASK]"), "give one text"),
    ("thread", lambda run: run.fill(), "^fill: "),
    ("thread", lambda run: run.attention(), "^attention: "),
    ("thread", lambda run: run.embed(), "^embed: "),
    ("lm", lambda run: run.sample(TEXT, temperature=-1), "must be at least"),
    ("lm", lambda run: run.sample(TEXT, top_k=0), "must be at least"),
    ("lm", lambda run: run.positions(), "NoPE has no position encoding"),
    ("lm", lambda run: run.attention(TEXT).plot(layer=3), "layer 3: .* has layers 1 to 2"),
    ("lm", lambda run: run.attention(TEXT).plot(head=0), "head 0: .* has heads 1 to 2"),
    ("lm", lambda run: run.attention(TEXT * 6).plot(numbers=True), "26 tokens; .* maps of 12"),
    ("lm", lambda run: run.attention(TEXT).plot(scale="lin"), "scale 'lin': must be sqrt or lin"),
    ("lm", lambda run: run.attention(TEXT).plot(beside=run), "beside: is not the attention of a"),
    ("lm", lambda run: run.attention(TEXT).html(beside=run.attention("a")), "is of the same run"),
]


@pytest.mark.parametrize("kind, ask, told", REFUSED)
def test_what_a_run_cannot_do_is_refused(kind, ask, told, tmp_path):
    run = load_run(make_run(tmp_path / "run", kind, pos="nope"))
    with pytest.raises(UserError, match=told):
        ask(run)


def test_a_device_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match="device tpu: cannot be used"):
        load_run(make_run(tmp_path / "run"), device="tpu")
