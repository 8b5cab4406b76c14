"""Attention maps: files, reports, and checks that fail when the attention is wrong."""

import math
import re
import warnings
from contextlib import ExitStack
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import call, fails, succeed

from lab import figures, load_run
from lab.inside import means
from lab.inside.attention import record
from lab.inside.means import head_means, induction
from lab.inside.measure import recorded
from lab.inside.texts import encode_texts
from model import Attention, Config, Transformer

SHORT = "this is a small sentence"
LONG = "we will work with the people of the world , and the world will work with us today ."
SHORT_MAP = "map-1-this-is-a-small-sentence-run.png"
LONG_MAP = "map-2-we-will-work-with-the-people-of-the-run.png"
POST, REPLY, COMMENT = "the people of the world", "we will work with us", "this [MASK] is a world"

HEALTHY = [
    ("lm", {"pos": "nope"}),
    ("lm", {"pos": "rope", "window": 3, "norm_first": False}),
    ("mlm", {"pos": "alibi", "alibi": "one-sided", "n_head": 4, "head": "roberta"}),
    ("classifier", {"pos": "sinusoidal", "window": 5}),
]


def test_the_names_of_many_runs_fit_into_that_of_a_file(make, figures_drawn, tmp_path):
    runs = [make("lm").rename(tmp_path / f"speeches-with-position-encoding-{n}") for n in range(14)]
    succeed(call("attention_maps", *runs, text=SHORT, layer=1, head=1))
    assert len(figures_drawn) == 1 and len(figures_drawn[0][0]) < 250


def test_chinese_names_and_texts_fit_into_that_of_a_file(make, tmp_path):
    """File systems allow 255 bytes; a letter has three."""
    sun, moon = "\N{CJK UNIFIED IDEOGRAPH-65E5}", "\N{CJK UNIFIED IDEOGRAPH-6708}"
    runs = [make("lm", n_layer=1).rename(tmp_path / f"{letter * 60}") for letter in (sun, moon)]
    flags = dict(positions=True, html=True, save_weights=True, layer=1, out=tmp_path / "maps")
    succeed(call("attention_maps", *runs, text=sun * 90, **flags))
    names = [path.name for path in (tmp_path / "maps").iterdir()]
    assert len(names) == 1 + 1 + 2 + 2 and all(sun * 5 in name or moon in name for name in names)


@pytest.mark.parametrize("kind, more", HEALTHY)
def test_a_healthy_run_of_any_kind_passes(make, figures_drawn, kind, more):
    run = make(kind, **more)
    out = succeed(call("attention_maps", run, text=[SHORT, LONG], positions=True)).out
    assert "FAIL" not in out
    assert "  ok    rows sum to 1   " in out
    assert ("nothing above the diagonal" in out) == (kind == "lm")
    assert ("that options hide" in out) == ("window" in more or "alibi" in more)
    assert ("no position encoding" in out) == (more["pos"] == "nope")
    names = [name for name, _ in figures_drawn]
    assert names == [SHORT_MAP, LONG_MAP] + ["positions-run.png"] * (more["pos"] != "nope")
    heads = [f"{i} {j}" for i in (1, 2) for j in range(1, more.get("n_head", 2) + 1)]
    rows = [" ".join(line.split()[:2]) for line in out.split("layer  head")[1].splitlines()[1:]]
    assert rows[: len(heads)] == heads and rows[len(heads)].startswith("equal")


HIDING = [
    ("lm", dict(pos="rope", window=3)),
    ("lm", dict(pos="learned", attn_block=4, global_tokens=1, random_keys=2)),
    ("mlm", dict(pos="learned", window=5, random_positions=64)),  # of positions far apart
    ("mlm", dict(pos="alibi", alibi="one-sided")),
    ("mlm", dict(pos="alibi", alibi="one-sided", nope_every=2, window=4)),
    ("thread", dict(pos="alibi", alibi="one-sided", attn_block=4)),
]
HIDDEN = "no weight on tokens that options hide"


def without_may_attend(self, positions, i, j, mask):
    return torch.zeros(1, 1, i.size(-1), j.size(-1)) + positions.bias(i, j)


@pytest.mark.parametrize("kind, options", HIDING)
def test_what_options_hide_is_checked(kind, options, make, figures_drawn, monkeypatch):
    texts = [POST, REPLY, COMMENT] if kind == "thread" else [SHORT, LONG]
    folder = make(kind, **options)
    out = succeed(call("attention_maps", folder, text=texts)).out
    assert f"  ok    {HIDDEN}" in out and "FAIL" not in out
    with monkeypatch.context() as patch:
        patch.setattr(Attention, "attend", without_bias)
        code, out, _ = call("attention_maps", folder, text=texts)
        assert code == 1 and f"  FAIL  {HIDDEN}" in out
    if options.get("alibi") != "one-sided":
        monkeypatch.setattr(Transformer, "bias", without_may_attend)
        code, out, _ = call("attention_maps", folder, text=texts)
        assert code == 1 and f"  FAIL  {HIDDEN}" in out


attend = Attention.attend


def not_a_number(self, q, k, v, bias):
    return attend(self, q, k, v, bias) * math.nan


def without_bias(self, q, k, v, bias):
    return attend(self, q, k, v, None)


def not_weights(self, q, k, v, bias):
    """What is cut off here is not in the weights, which are at most 1."""
    return attend(self, q, k, v.clamp(max=1.0), bias)


def of_other_heads(self, q, k, v, bias):
    return attend(self, q, k, v, bias).flip(1)


BROKEN = [  # in place of attend, and the checks that fail
    (without_bias, ["no weight on padding", "nothing above the diagonal"]),
    (not_a_number, ["rows sum to 1", "no weight", "nothing above", "the weights give the same"]),
    (not_weights, ["the weights give the same output"]),
    (of_other_heads, ["the weights give the same output"]),
]


@pytest.mark.parametrize("broken, failing", BROKEN)
def test_a_broken_model_fails(broken, failing, make, figures_drawn, monkeypatch):
    monkeypatch.setattr(Attention, "attend", broken)
    folder = make(pos="alibi")
    code, out, _ = call("attention_maps", folder, text=[SHORT, LONG])
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("  FAIL")]
    assert len(failed) == len(failing), out
    for name, line in zip(failing, failed):
        assert name in line
    assert len(figures_drawn) == 2  # what is wrong can be looked at


def test_means_of_known_weights(make):
    (view,) = record(load_run(make("mlm", n_head=3, n_embd=18, n_layer=1)), ["this is a"])
    T = 4
    heads = [np.eye(T), np.full((T, T), 1 / T), np.eye(T)[np.zeros(T, dtype=int)]]
    view.weights = np.stack(heads)[None]  # each token sees itself, all alike, or the first
    *rows, equal = head_means([view])
    assert list(rows[0]) == ["layer", "head", *"distance first previous itself entropy".split()]
    alike = (1.25, 0.25, 0.1875, 0.25, round(math.log(4), 4))
    expected = [(1, 1, 0, 0.25, 0, 1, 0), (1, 2, *alike), (1, 3, 1.5, 1, 0.25, 0.25, 0)]
    assert [tuple(row.values()) for row in rows] == expected
    assert tuple(equal.values()) == ("equal", "", *map(pytest.approx, alike))


def test_induction_is_the_weight_after_the_previous_occurrence(make, monkeypatch):
    def measure(body, inputs):
        idx = inputs["idx"]
        B, T = idx.shape
        weights = torch.zeros(B, 2, T, T)
        for b, i in product(range(B), range(T)):
            earlier = [j for j in range(i) if idx[b, j] == idx[b, i]]
            after = earlier[-1] + 1 if earlier else 0
            weights[b, 0, i, after] = 1  # an induction head
            weights[b, 1, i, i] = 1
        return None, {"": [SimpleNamespace(weights=weights)]}

    body = SimpleNamespace(config=Config(vocab_size=12))
    stub = SimpleNamespace(model=SimpleNamespace(body=body), block_size=64, device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(means, "measure", measure)
        assert induction(stub)[0].tolist() == [[1, 0]]
    run = load_run(make(block_size=12))  # with room for 5 tokens twice
    rows = head_means(record(run, [SHORT]))
    assert list(rows[0])[2:] == "distance first previous itself induction entropy".split()
    assert [row["induction"] for row in rows[:-1]] == induction(run)[0].flatten().tolist()
    equal = sum(1 / (i + 1) for i in range(6, 11)) / 5
    assert rows[-1]["induction"] == pytest.approx(equal, abs=1e-4)


LONG_TEXTS = [  # of a run whose texts had up to 8 tokens: what is read, and what is told
    ("lm", "alibi", 18, "18 tokens; in training, texts had up to 8"),
    ("mlm", "rope", 18, "18 tokens; in training, texts had up to 8"),
    ("lm", "learned", 8, "cut to the first 8 of 18 tokens, where learned positions end"),
    ("classifier", "alibi", 8, "cut to the first 8 of 18 tokens"),  # as its training did
]


@pytest.mark.parametrize("kind, pos, n_read, note", LONG_TEXTS)
def test_a_text_longer_than_in_training(make, figures_drawn, maps_of, kind, pos, n_read, note):
    folder = make(kind, pos=pos, block_size=8, n_layer=1)
    text = LONG.removesuffix(" today .")
    succeed(call("attention_maps", folder, text=[text, SHORT]))
    (_, figure), (_, short) = figures_drawn
    assert maps_of(figure)["layer 1, head 1"].shape == (n_read, n_read)
    assert figure.texts[0].get_text().replace("\n", " ").endswith(note)
    assert "training" not in short.texts[0].get_text()
    axis = next(axis for axis in figure.axes if axis.get_title())
    dashed = [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == "--"]
    assert 7.5 in dashed if n_read > 8 else not dashed
    view = load_run(folder).attention(text)
    assert view.length_note == note and note in view.html()


def test_a_very_long_text_is_cut_and_says_so(make):
    view = load_run(make(pos="alibi")).attention("work " * 300)
    assert view.length_note == "cut to the first 256 of 301 tokens"


def test_numbers_can_be_read_in_every_cell(make):
    figure = load_run(make(pos="alibi", init_std=1.0)).attention(SHORT).plot(numbers=True)
    for axis in [axis for axis in figure.axes if axis.get_title()]:
        (picture,) = axis.images
        for text in axis.texts:
            s, t = text.get_position()
            color = picture.to_rgba(picture.get_array()[t, s])
            assert text.get_color() == figures.choose_ink(color)


def test_only_words_are_drawn_never_padding(make, figures_drawn, maps_of):
    call("attention_maps", make("mlm"), text=[SHORT, LONG])
    for text, (_, figure) in zip((SHORT, LONG), figures_drawn):
        words = ["[BOS]", *text.replace("us", "us*").split()]
        assert all(array.shape == (len(words), len(words)) for array in maps_of(figure).values())
        axis = next(axis for axis in figure.axes if axis.get_title() == "layer 2, head 1")
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            assert [label.get_text() for label in labels] == words


def test_one_layer_or_head(make, figures_drawn, maps_of):
    folder = make(n_layer=3, n_head=4)
    call("attention_maps", folder, "--text", SHORT, "--layer", 3, "--head", 2, "--format", "svg")
    call("attention_maps", folder, "--text", SHORT, "--head", 4)
    names = [name.removeprefix("map-1-this-is-a-small-sentence-") for name, _ in figures_drawn]
    assert names == ["layer-3-head-2-run.svg", "head-4-run.png"]
    first, second = (list(maps_of(figure)) for _, figure in figures_drawn)
    assert first == ["layer 3, head 2"] and second == [f"layer {i}, head 4" for i in (1, 2, 3)]


def test_two_runs_side_by_side(make, figures_drawn):
    a = make(name="a", pos="alibi")
    b = make("mlm", "bpe", name="b", pos="rope", n_layer=3, block_size=64)
    call("attention_maps", a, b, "--text", SHORT, "--mean")
    name, figure = figures_drawn.pop()
    assert name == "map-1-this-is-a-small-sentence-mean-a-b.png"
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == [f"layer {i}, mean of heads" for i in (1, 2, 1, 2, 3)]
    succeed(call("attention_maps", a, b, "--text", SHORT, "--positions"))
    (name, figure), *others = figures_drawn
    assert name == "map-1-this-is-a-small-sentence-a-b.png"
    assert [name for name, _ in others] == ["positions-a.png", "positions-b.png"]
    assert {text.get_text().split("\n")[0] for text in figure.texts} == {"a", "b"}
    lefts = [axis.get_position().x0 for axis in figure.axes if axis.get_title()]
    assert len(lefts) == 2 * 2 + 3 * 2 and max(lefts[:4]) < min(lefts[4:])
    assert (a / "maps").exists() and not (b / "maps").exists()


@pytest.mark.parametrize("ending, magic", [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pdf_and_svg_are_drawn_with_any_letters(make, ending, magic):
    run, text = make(n_layer=1), "\N{CJK UNIFIED IDEOGRAPH-65E5} $is$ a"
    succeed(call("attention_maps", run, text=text, format=ending))
    drawn = run / "maps" / f"map-1-\N{CJK UNIFIED IDEOGRAPH-65E5}-is-a-run.{ending}"
    assert drawn.read_bytes().startswith(magic)


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_one_note_takes_the_place_of_warnings_of_letters(make, ending, recwarn):
    figures.note_missing_letters.cache_clear()
    run, text = make(n_layer=1), "\N{CJK UNIFIED IDEOGRAPH-65E5} \ue000 a"
    result = call("attention_maps", run, text=[text, f"{text} b"], format=ending)
    assert result.err.count("note: no font has some letters") == 1
    assert not [warning for warning in recwarn if "missing from" in str(warning.message)]


def test_installed_fonts_are_fallbacks(monkeypatch):
    """DejaVu Sans Mono stands for a font of Chinese."""
    monkeypatch.setattr(figures, "FALLBACK_FONTS", ("Nowhere Sans", "DejaVu Sans Mono"))
    figures.installed_fallbacks.cache_clear()
    with figures.styled():
        _, axis = figures.new_figure()
        assert axis.set_title("a").get_fontfamily() == ["sans-serif", "DejaVu Sans Mono"]
    figures.installed_fallbacks.cache_clear()
    with figures.styled(), pytest.warns(UserWarning, match="another"):
        warnings.warn("another", stacklevel=1)


def test_joiners_are_shown_by_their_numbers(make):
    attention = load_run(make(n_layer=1)).attention("this \u200d is")
    axis = next(axis for axis in attention.plot().axes if axis.get_title())
    assert "U+200D*" in [label.get_text() for label in axis.get_yticklabels()]


def test_a_thread_has_maps_of_ancestors_comment_and_between(make, figures_drawn):
    folder = make("thread", pos="alibi")
    out = succeed(call("attention_maps", folder, text=[POST, REPLY, COMMENT], html=True)).out
    assert "FAIL" not in out
    (page,) = (folder / "maps").glob("*.html")  # all attentions of the thread
    parts = re.findall(r'"part":"\w+","name":"([^"]+)"', page.read_text(encoding="utf-8"))
    assert page.stem == "attention-3-this-mask-is-a-world-run"
    encoders = [f"encoder self-attention of text {number}" for number in (1, 2)]
    assert parts == [*encoders, "decoder self-attention", "cross-attention"]
    slugs = "the-people-of-the-world", "we-will-work-with-us", "this-mask-is-a-world"
    names = [f"map-{number}-{text}-run.png" for number, text in enumerate(slugs, 1)]
    assert [name for name, _ in figures_drawn] == names
    post, reply, comment, cross = record(load_run(folder), [POST, REPLY, COMMENT])
    assert post.words == ["[BOS]", *POST.split()]
    assert reply.words == ["[BOS]", *REPLY.replace("us", "us*").split()]
    assert comment.keys == cross.words == ["[BOS]", *COMMENT.split()]
    assert [key[0] for key in cross.keys] == ["1", "2"]  # one column per ancestor, post first


def test_cross_attention_to_ancestors_is_that_of_the_model(make):
    run = load_run(make("thread", build={"ancestor_positions": "learned"}))
    *_, cross = record(run, [POST, REPLY, COMMENT])
    (idx,) = encode_texts(run, [COMMENT]).ids
    ancestors = encode_texts(run, [REPLY, POST]).ids
    body = run.model.body
    states = [body.encoder(ids[None])[0].mean(0) for ids in ancestors]
    memory = (torch.stack(states) + body.distances.weight[:2])[None]  # the parent first
    records = []
    with ExitStack() as stack:
        for block in body.decoder.blocks:
            stack.enter_context(recorded(block.cross_attention, records))
        body.decoder(idx[None], memory=memory)
    for layer, record_of_layer in enumerate(records):
        weights = record_of_layer.weights[0].flip(-1)
        assert np.allclose(cross.weights[layer], weights, atol=1e-5)


MISTAKES = [
    (("RUN", "nowhere"), "nowhere"),
    (("RUN", "--layer", "3"), "--layer: 1 to 2, not 3"),
    (("--text", "a", "RUN"), "give the folder of a run before --text"),
    (("RUN", "--text", "[EOS]"), "contains no words"),
    (("RUN", "RUN", "RUN", "--html"), "--html: compares at most two runs"),
    (("RUN", "RUN"), "two runs have the same name"),
    ((), "give the folder of a run"),
]


@pytest.mark.parametrize("argv, message", MISTAKES)
def test_mistakes_are_told(make, figures_drawn, argv, message):
    folder = make("mlm")
    fails(call("attention_maps", *(arg.replace("RUN", str(folder)) for arg in argv)), message)
    assert not figures_drawn


def test_one_text_flag_takes_several_texts(make, figures_drawn):
    succeed(call("attention_maps", make(), "--text", SHORT, LONG, "--text", "a world"))
    names = [name for name, _ in figures_drawn]
    assert names == [SHORT_MAP, LONG_MAP, "map-3-a-world-run.png"]


def test_a_page_and_the_weights_of_each_text(make, figures_drawn, tmp_path):
    run, out = make(pos="alibi"), tmp_path / "maps"
    flags = dict(html=True, save_weights=True, out=out)
    told = succeed(call("attention_maps", run, text=[SHORT, "we will read"], **flags)).out
    for number, text in enumerate((SHORT, "we will read"), 1):
        path = out / f"attention-{number}-{text.replace(' ', '-')}-run.html"
        assert f"open {path} in a browser" in told
        assert f"<title>{text}" in path.read_text(encoding="utf-8")
    view = load_run(run).attention("we will read")
    with np.load(out / "map-2-we-will-read-run.npz") as arrays:
        assert arrays["queries"].tolist() == arrays["keys"].tolist() == view.words
        for name in ("weights", "content", "position"):
            assert np.allclose(arrays[name], getattr(view, name), atol=1e-5), name


def test_many_heads_are_thumbnails_at_the_width_of_a_page(make, figures_drawn, maps_of):
    folder = make(n_layer=12, n_head=4)
    text = " ".join([LONG] * 3)
    call("attention_maps", folder, "--text", text, "--mean")
    call("attention_maps", make(name="wide", n_head=16), "--text", text)
    call("attention_maps", folder, "--text", text, "--layer", 12)
    (_, means), (_, wide), (_, large) = figures_drawn
    for figure, titles in (means, [f"layer {i}, mean" for i in range(1, 13)]), (wide, None):
        assert list(maps_of(figure)) == titles or not titles
        axes = [axis for axis in figure.axes if axis.images]
        assert max(axis.get_position().x1 for axis in axes) < 6.2
        assert len({round(axis.get_position().x0, 3) for axis in axes}) == 6
        assert not axes[-1].get_xticklabels() and not axes[0].get_yticklabels()
        assert "thumbnails" in figure.axes[-1].get_ylabel()
    axes = [axis for axis in large.axes if axis.images]
    assert len(axes) == 4 and all(axis.get_position().width > 3 for axis in axes)
    assert axes[0].get_yticklabels()
