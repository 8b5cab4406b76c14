"""lab.load_run: what a trained run tells in Python, against the model called by hand."""

import html
import math
import sys

import numpy as np
import pytest
import torch
from helpers import NO_ENCODER, read_weights, tiny_model

import data
from data.files import UserError
from data.tokenizer import BOS, MASK, SPECIAL
from lab import load_run
from lab.inside.positions import draw_positions
from model import POSITIONS, Decoder, Encoder
from nets.relative import ContentBias

N_SPECIAL = len(SPECIAL)
TEXT = "this is a small sentence"
THREAD = ("this is a small sentence", "we will read", "this [MASK] is small")


def ids_of(run, text):
    return torch.tensor([[BOS, *run.tokenizer.encode(text, add_special_tokens=False).ids]])


def softmax(scores):
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return scores / scores.sum(-1, keepdims=True)


def test_a_run_is_described(make, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    make("mlm", pos="alibi", alibi="one-sided", window=4)
    run = load_run("~/run")
    assert run.folder == tmp_path / "run"
    run.config["flags"]["data"] = "a/b"
    told = "masked LM, ALiBi (one-sided), window 4, trained on b"
    assert repr(run) == f"<{run.folder}: {told}>"
    run.weights_of = "step 3"
    assert run.describe() == f"{told}, step 3"


@pytest.mark.parametrize("kind", ["lm", "mlm", "classifier"])
@pytest.mark.parametrize("pos", POSITIONS)
def test_content_and_position_make_the_weights(make, kind, pos):
    if kind != "lm" and pos in NO_ENCODER:
        pytest.skip("this encoding needs a decoder")
    run = load_run(make(kind, pos=pos, window=4, log_scale=kind == "lm"))
    attention = run.attention(TEXT)
    assert attention.words == ["[BOS]", *TEXT.split()] == attention.keys
    assert attention.weights.shape == (2, 2, 6, 6)
    position = 0 if attention.position is None else attention.position
    assert np.allclose(softmax(attention.content + position), attention.weights, atol=1e-6)
    _, maps = read_weights(run.model.body, ids_of(run, TEXT))
    assert np.allclose(attention.weights, torch.stack(maps)[:, 0].numpy(), atol=1e-6)
    i, j = np.indices((6, 6))
    seen = (abs(i - j) < 4) & ((j <= i) | (kind != "lm"))
    assert np.array_equal(np.isfinite(attention.content[0, 0]), seen)
    assert np.array_equal(np.isnan(attention.shown()[0, 0]), ~seen)


def test_what_rotation_adds_vanishes_at_distance_0(make):
    position = load_run(make("mlm", pos="rope")).attention(TEXT).position
    assert np.abs(np.diagonal(position, axis1=2, axis2=3)).max() < 1e-5 < np.abs(position).max()


def test_an_encoding_of_ones_own_is_taken_apart_and_drawn(make, monkeypatch):
    class Shift(ContentBias):
        label = "shift"

        def content_bias(self, q, k, i, j, attention):
            return q.mean(-1, keepdim=True) * (i[:, None] - j)

    monkeypatch.setitem(POSITIONS, "shift", Shift)
    attention = load_run(make("mlm", pos="shift")).attention(TEXT)
    scores = attention.content + attention.position
    assert np.allclose(softmax(scores), attention.weights, atol=1e-5)
    assert np.abs(np.diagonal(attention.position, axis1=2, axis2=3)).max() < 1e-6


@pytest.mark.parametrize("script, texts", [("train_seq2seq", ["we [MASK] work"]), (None, THREAD)])
def test_some_runs_have_three_attentions(make, finished, script, texts):
    folder = finished(f"beyond.{script}") if script else make("thread", pos="alibi")
    run = load_run(folder)
    parts = run.attention(*texts)
    assert list(parts) == ["encoder", "decoder", "cross"]
    assert parts["cross"].words == parts["decoder"].words != parts["cross"].keys
    assert parts["cross"].position is None
    for attention in parts.values():
        assert attention.title == texts[-1]
        position = 0 if attention.position is None else attention.position
        assert np.allclose(softmax(attention.content + position), attention.weights, atol=1e-5)
    with run.without_head(1, 1, "encoder"):
        assert not np.allclose(run.attention(*texts)["cross"].weights, parts["cross"].weights)


def test_pictures_of_positions_show_what_the_model_adds(make, maps_of):
    run = load_run(make(pos="alibi"))
    bias, added = maps_of(run.positions())["bias of head 1"], run.attention(TEXT).position[0, 0]
    assert bias[2, 0] == -(2**-4) * 2 == pytest.approx(added[2, 0]) and bias.mask[0, 1]
    run = load_run(make(name="learned"))
    vectors, tables = run.half.positions.vectors.weight, maps_of(run.positions())
    shown, products = tables.values()
    square = draw_positions(tiny_model(Decoder, pos="learned", n_embd=12).body, "")  # 12 x 12
    labels = [(axis.get_ylabel(), axis.get_xlabel()) for axis in square.axes if axis.images]
    assert labels == [("position", "channel"), ("query", "key")]
    assert np.array_equal(shown, vectors) and np.allclose(products, vectors @ vectors.T, atol=1e-6)
    _, products = maps_of(load_run(make(name="rope", pos="rope")).positions()).values()
    assert np.allclose(products.diagonal(), 1, atol=1e-5) and products[0, 5] < 0.99
    assert np.allclose(products[:-1, :-1], products[1:, 1:], atol=1e-5)  # only distances count


def test_biases_share_a_labelled_bar_and_hidden_keys_are_hatched():
    penalty = draw_positions(tiny_model(Decoder, pos="alibi", n_head=4).body, "title")
    *maps, bar = penalty.axes
    assert len(maps) == 4 and bar.get_ylabel() == "added to the score"
    assert {axis.images[0].get_cmap().name for axis in maps} == {"Blues_r"}  # never positive
    assert {axis.images[0].get_clim()[1] for axis in maps} == {0}
    assert all(axis.patch.get_hatch() for axis in maps)
    assert penalty.get_suptitle() == "title\nhatched: hidden keys" and penalty.get_figwidth() == 6.5
    reads = draw_positions(tiny_model(Decoder, pos="shaw").body, "title")
    assert "for vectors of ones" in reads.get_suptitle()
    assert reads.axes[0].images[0].get_cmap().name == "RdBu_r"
    assert "hatched" not in draw_positions(tiny_model(Encoder, pos="t5").body, "").get_suptitle()


@pytest.mark.parametrize("more", [{}, dict(window=3, global_tokens=1), dict(attn_block=5)])
@pytest.mark.parametrize("pos", POSITIONS)
def test_every_encoding_and_mask_is_drawn(pos, more, maps_of):
    body, t = tiny_model(Decoder, pos=pos, **more).body, torch.arange(12)
    figure = draw_positions(body, "")
    if pos == "nope" and not more:
        assert figure is None
    elif more:  # the last map is of a bias, or of what may be attended to
        *_, last = maps_of(figure).values()
        assert np.array_equal(last.mask, ~body.may_attend(t, t, None)[0, 0])


def test_heatmaps_of_one_head_and_of_the_mean(make, maps_of):
    attention = load_run(make("mlm", pos="alibi", alibi="one-sided")).attention(TEXT)
    figure = attention.plot(layer=2, head=1, numbers=True, title="Mine")
    drawn = maps_of(figure)["layer 2, head 1"]
    assert np.allclose(drawn.filled(0), attention.weights[1, 0])
    shown = [text.get_text() for axis in figure.axes for text in axis.texts if text.get_text()]
    assert f"{attention.weights[1, 0, 5, 0]:.2f}".lstrip("0") in shown
    assert figure.texts[0].get_text() == "Mine" and figure._repr_png_()[1:4] == b"PNG"
    mean = maps_of(attention.plot(layer=1, mean=True))["layer 1, mean of heads"]
    assert np.allclose(mean.filled(0), attention.weights[0].mean(0))  # 0 where one may not see


def test_a_page_is_shown_in_a_notebook_and_written(make, tmp_path):
    attention = load_run(make(pos="alibi")).attention('this is "small" & <b>')
    page = attention.html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    frame = page._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and frame.count("<") == 2  # the rest is escaped
    assert html.unescape(frame.split('"')[1]) == text


def test_without_a_head_nothing_reads_its_output(make):
    run = load_run(make("mlm"))
    whole = run.losses(TEXT)
    with run.without_head(2, 1) as off:
        found = off.losses(TEXT)
        with run.without_head(1, 2):
            assert run.losses(TEXT) != found
        assert run.losses(TEXT) == found != whole
    assert run.losses(TEXT) == whole
    run.model.body.blocks[1].attention.out.weight[:, :8] = 0
    expected = [loss for _, loss in run.losses(TEXT)]
    assert [loss for _, loss in found] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind, part", [("lm", ""), ("thread", "cross")])
def test_layers_and_heads_that_are_not_there_are_named(make, kind, part):
    run = load_run(make(kind, pos="alibi", n_layer=3))
    view = run.attention(*THREAD) if kind == "thread" else run.attention(TEXT)
    view = view[part] if part else view
    for place, message in [((4, 1), "layer: 1 to 3, not 4"), ((0, 1), "layer: 1 to 3, not 0")]:
        with pytest.raises(UserError, match=message), run.without_head(*place, part):
            pass
        with pytest.raises(UserError, match=message):
            view.plot(*place)
    for place in ((1, 3), (1, -1)):
        with pytest.raises(UserError, match="head: 1 to 2"), run.without_head(*place, part):
            pass
        with pytest.raises(UserError, match="head: 1 to 2"):
            view.plot(*place)
    with pytest.raises(UserError, match="part: "), run.without_head(1, 1, "middle"):
        pass


def test_perplexity_is_that_of_the_training_script(finished, corpus):
    run, sets = load_run(finished("train_lm")), data.load(str(corpus)).tests
    for name, lines in sets.items():
        text = "\n".join(lines)
        assert run.perplexity(text) == pytest.approx(run.result[f"perplexity/{name}"], rel=1e-5)
    words, losses = zip(*run.losses(text))
    assert math.exp(sum(losses) / len(losses)) == pytest.approx(run.perplexity(text))
    assert run.metrics[-1]["step"] == 8


def test_masked_losses_are_those_of_one_mask_at_a_time(make):
    run = load_run(make("mlm", pos="alibi"))
    ids = ids_of(run, TEXT)
    for place, (word, loss) in enumerate(run.losses(TEXT), 1):
        masked = ids.clone()
        masked[0, place] = MASK
        expected = -run.model(masked)[0, place].log_softmax(-1)[ids[0, place]]
        assert word == TEXT.split()[place - 1] and loss == pytest.approx(expected.item(), rel=1e-4)
    assert (
        len(run.losses(f"{TEXT} " * 20 + f"\n\n {TEXT}")) == 105
    )  # more than a block, and two lines


def test_unknown_words_are_no_targets_of_masked_losses(make, capsys):
    """As in training, and in the scores of train_mlm.py."""
    run, text = load_run(make("mlm", pos="alibi")), "this is a zebra sentence"
    expected, ids = [], ids_of(run, text)
    for place in (1, 2, 3, 5):
        logits = run.model(ids.clone().index_fill_(1, torch.tensor(place), MASK))[0, place]
        expected.append(-logits.log_softmax(-1)[ids[0, place]].item())
    words, losses = zip(*run.losses(f"{text}\nzebra zebra"))
    assert words == ("this", "is", "a", "sentence") and losses == pytest.approx(expected, rel=1e-4)
    assert "note: 3 unknown words are" in capsys.readouterr().out
    assert run.perplexity(text) == pytest.approx(math.exp(sum(expected) / 4), rel=1e-4)


def test_next_words_are_the_models(make):
    run = load_run(make(pos="rope"))
    logits = run.model(ids_of(run, TEXT))[0, -1, N_SPECIAL:]
    shares, order = logits.softmax(-1).sort(descending=True)
    words = [run.tokenizer.id_to_token(N_SPECIAL + int(i)) for i in order]
    assert run.next_words(TEXT, n=4) == list(zip(words[:4], map(pytest.approx, shares.tolist())))


@pytest.mark.parametrize("n", [4, 10**6])
def test_masks_are_filled_as_by_hand(make, n):
    run, text = load_run(make("mlm")), "this [MASK] a small [MASK] ."
    ids = ids_of(run, text)
    for found, logits in zip(run.fill(text, n=n), run.model(ids)[ids == MASK], strict=True):
        shares, order = logits[N_SPECIAL:].softmax(-1).sort(descending=True)
        words = [run.tokenizer.id_to_token(N_SPECIAL + int(i)) for i in order[:n]]
        assert found == list(zip(words, map(pytest.approx, shares.tolist())))


def test_classes_and_features_are_the_models(make, capsys):
    run = load_run(make("classifier", block_size=4))
    ids = ids_of(run, TEXT)[:, :4]
    shares = run.model(ids)[0].softmax(-1).tolist()
    (found,) = run.classify(TEXT)
    assert found == pytest.approx(dict(zip("ab", shares)))
    assert list(found.values()) == sorted(shares, reverse=True)
    assert "1 of 1 texts are cut to 4 tokens" in capsys.readouterr().out
    run.model.pool = ["max"]
    assert np.allclose(run.embed(TEXT), run.model.features(ids).numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["lm", "mlm"])
def test_vectors_of_texts_are_means_without_padding(make, kind):
    run = load_run(make(kind))
    for vector, text in zip(run.embed("this is", TEXT), ("this is", TEXT)):
        assert np.allclose(vector, run.model.body(ids_of(run, text))[0].mean(0), atol=1e-5)


class Column(list):
    """Stands for a pandas Series: one dimension, and not read as a list."""

    ndim = 1


SEVERAL = [[TEXT, "we will"], Column([TEXT, "we will"]), np.array([TEXT, "we will"], dtype=object)]


@pytest.mark.parametrize("texts", SEVERAL, ids=["list", "column", "array"])
def test_a_list_or_a_column_is_several_texts(make, texts):
    run = load_run(make("classifier"))
    assert run.classify(texts) == run.classify(*texts) and len(run.classify(texts)) == 2
    assert np.array_equal(run.embed(texts), run.embed(*texts))
    assert [view.title for view in run.attention(texts)] == list(texts)
    assert [view.title for view in run.attention(*texts)] == list(texts)
    assert run.attention([TEXT])[0].words == run.attention(TEXT).words

    run = load_run(make(name="lm"))
    for ask in (run.losses, run.perplexity, run.sample, run.next_words):
        assert ask(texts) == [ask(text) for text in texts]
    masks = [f"{text} [MASK]" for text in texts]
    run = load_run(make("mlm", name="mlm"))
    assert run.fill(iter(masks)) == [run.fill(text) for text in masks]
    run, thread = load_run(make("thread", name="thread")), list(THREAD)
    assert run.fill(thread) == run.fill(*thread)
    assert run.attention(thread)["cross"].keys == run.attention(*thread)["cross"].keys


def test_a_list_is_several_texts_to_translate(finished):
    run = load_run(finished("beyond.train_seq2seq"))
    texts = ["we [MASK] work", "this [MASK] is"]
    assert run.sample(texts, temperature=0) == [run.sample(text, temperature=0) for text in texts]
    run.first_gap = None  # as a run that translates
    texts = ["we will work", "this is small"]
    assert run.translate(texts) == run.translate(*texts) and len(run.translate(texts)) == 2


def test_a_tuple_is_a_pair_for_runs_of_pairs(make):
    pair = (TEXT, "we will")
    run = load_run(make("classifier", n_segment=2))
    assert run.classify(pair) == run.classify(f"{pair[0]} [EOS] {pair[1]}")
    assert len(run.classify([pair, pair])) == 2
    assert run.attention(pair).words.count("[EOS]") == 1
    with pytest.raises(UserError, match="of 1: .*tuple"):
        run.classify((TEXT, TEXT, TEXT))


NO_TEXTS = [(math.nan, "nan .float"), (3, "3 .int"), (None, "None .NoneType"), (b"a", "b'a'")]
NO_TEXTS += [({"text": "a"}, "dict"), (np.array([["a", "b"]]), "ndarray")]
NO_TEXTS += [(np.array([1.5]), "1.5.* .float64"), ((TEXT, TEXT), "not trained on pairs")]
ASK = {"classifier": ["classify", "embed", "attention"], "lm": ["losses", "sample", "next_words"]}
ASK |= {"mlm": ["fill", "perplexity"]}


@pytest.mark.parametrize("kind", ASK)
def test_what_is_no_text_is_named(make, kind):
    run = load_run(make(kind))
    for name in ASK[kind]:
        ask = getattr(run, name)
        for value, named in NO_TEXTS:
            with pytest.raises(UserError, match=named):
                ask(value)
        with pytest.raises(UserError, match="text 2 of 3: nan"):
            ask(["this [MASK]", math.nan, "this"])
        with pytest.raises(UserError, match="no text is given"):
            ask([])
    for name in set(ASK[kind]) & {"classify", "embed", "attention", "fill"}:
        with pytest.raises(UserError, match="no text is given"):
            getattr(run, name)()


REFUSED = [  # a kind of run, what it is asked, and the message
    ("mlm", lambda run: run.next_words(TEXT), "a masked LM cannot .*train_lm.py"),
    ("lm", lambda run: run.fill(TEXT), "a causal LM cannot .*train_mlm.py"),
    ("mlm", lambda run: run.translate(TEXT), "cannot .*beyond.train_seq2seq --task translate"),
    ("mlm", lambda run: run.losses("we [MASK]"), "without .MASK."),
    ("mlm", lambda run: run.perplexity("zebra"), "no word of the text is known"),
    ("classifier", lambda run: run.classify("a", ""), "contains no words"),
    ("lm", lambda run: run.errors(), "a causal LM cannot classify; .*train_classifier.py"),
    ("mlm", lambda run: run.fill("a [MASK]", "another [MASK]"), "cannot read a post"),
    ("lm", lambda run: run.attention(TEXT * 6).plot(numbers=True), "maps of 12 tokens, .* 26"),
]


@pytest.mark.parametrize("kind, ask, told", REFUSED)
def test_what_a_run_cannot_do_is_refused(kind, ask, told, make):
    run = load_run(make(kind, pos="nope"))
    with pytest.raises(UserError, match=told):
        ask(run)


HOOKED = {
    "learned": {},
    "sinusoidal": dict(activation="relu"),
    "alibi": {},
    "nope": dict(tie=False),
}
HOOKED |= {"rope": dict(rope_share=0.5, rope_base=500.0)}


@pytest.mark.slow
@pytest.mark.parametrize("pos", HOOKED)
def test_a_hooked_model_gives_the_same(make, pos):
    pytest.importorskip("transformer_lens", reason="the extra lens is not installed")
    run = load_run(make(pos=pos, **HOOKED[pos]))
    hooked = run.hooked()
    logits, cache = hooked.run_with_cache(TEXT)
    torch.testing.assert_close(logits, run.model(ids_of(run, TEXT)), atol=1e-5, rtol=1e-5)
    for layer, weights in enumerate(run.attention(TEXT).weights):
        np.testing.assert_allclose(cache["pattern", layer][0], weights, atol=1e-5)


@pytest.mark.slow
def test_what_a_hooked_model_cannot_express_is_named(make):
    pytest.importorskip("transformer_lens", reason="the extra lens is not installed")
    for options, words in (
        (dict(window=3, norm_first=False), "norm_first=False, window=3"),
        (dict(pos="fire"), "pos=fire"),
        (dict(pos="alibi", n_head=3, n_embd=12), "2, 4, 8, ... heads"),
        (dict(build=dict(members=2)), "an ensemble"),
    ):
        run = load_run(make(name=words.split("=")[0], **options))
        with pytest.raises(UserError, match=words):
            run.hooked()


def test_without_transformer_lens_a_hooked_model_says_so(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_lens", None)
    with pytest.raises(UserError, match=r"\[lens\]"):
        load_run(make()).hooked()
