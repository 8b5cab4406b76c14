"""Attention maps: files, reports, and checks that fail when the attention is wrong."""

import json
import math
import re

import numpy as np
import pytest
import torch
from helpers import WORDS, assert_complains, call, make_run, maps_of, succeed, unchanged

import attention_maps
import data
import model
from attention_maps import slug
from data import batching
from data.tokenizer import UNK, train_tokenizer
from lab import load_run
from lab.inside.attention import readings_of, summary
from lab.inside.heatmaps import WIDEST, Picture, draw_maps
from lab.load import read_run

SHORT = "this is a small sentence"
LONG = "we will work with the people of the world , and the world will work with us today ."
SHORT_MAP = "map-1-this-is-a-small-sentence.png"
LONG_MAP = "map-2-we-will-work-with-the-people-of-the.png"


def entry(folder, figure):
    """The entry of a figure in maps.json: one dictionary per attention of each run."""
    return json.loads((folder / "maps.json").read_text(encoding="utf-8"))[figure]["runs"]


# ---------------------------------------------------------------------------- healthy runs


def test_from_the_shell_files_and_report(shell, tmp_path):
    done = succeed(shell("attention_maps", make_run(tmp_path / "run", pos="alibi"), "--positions"))
    first, second = "this-is-a-test-sentence", "when-the-members-of-the-senate-return-to"
    names = {f"map-1-{first}.png", f"map-2-{second}.png", "maps.json", "positions.png"}
    assert {path.name for path in (tmp_path / "run" / "maps").iterdir()} == names
    for path in (tmp_path / "run" / "maps").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert "FAIL" not in done.out and done.out.count("  ok  ") == 6


@pytest.mark.parametrize(
    "kind, more",
    [
        ("lm", {"pos": "learned"}),
        ("lm", {"pos": "nope", "window": 3}),
        ("lm", {"pos": "rope", "norm_first": False}),
        ("lm", {"pos": "alibi", "n_head": 6, "n_embd": 18, "window": 4}),
        ("mlm", {"pos": "alibi", "alibi": "offset", "head": "roberta"}),
        ("mlm", {"pos": "alibi", "alibi": "symmetric"}),
        ("mlm", {"pos": "alibi", "alibi": "one-sided", "n_head": 4}),
        ("mlm", {"pos": "alibi", "alibi": "one-sided", "n_head": 2}),
        ("classifier", {"pos": "sinusoidal", "window": 5}),
        ("classifier", {"pos": "nope"}),
    ],
)
def test_a_healthy_run_of_any_kind_passes(tmp_path, figures, kind, more):
    run = make_run(tmp_path / "run", kind, **more)
    out = succeed(call("attention_maps", run, text=[SHORT, LONG], positions=True)).out
    assert "FAIL" not in out
    assert ("nothing above the diagonal" in out) == (kind == "lm")
    assert ("ALiBi's bias" in out) == (more["pos"] == "alibi")
    assert ("or more tokens away" in out) == ("window" in more)
    assert ("looks one way" in out) == (more.get("alibi") == "one-sided")
    assert ("NoPE has no position encoding" in out) == (more["pos"] == "nope")
    names = [name for name, _ in figures]
    assert names[:2] == [SHORT_MAP, LONG_MAP]
    assert names[2:] == ["positions.png"] * (more["pos"] != "nope")
    (report,) = entry(tmp_path / "run" / "maps", LONG_MAP)
    assert all(check["worst"] <= check["limit"] for check in report["checks"])
    assert [(head["layer"], head["head"]) for head in report["heads"]] == [
        (i, j) for i in (1, 2) for j in range(1, more.get("n_head", 2) + 1)
    ]


# ---------------------------------------------------------------------------- broken models


attend, alibi_bias, score_bias = model.attend, model.alibi_bias, model.score_bias
attention_bias = model.Transformer.attention_bias


def leaking(q, k, v, bias=None, dropout=0.0):
    return attend(q, k, v, None, dropout)


def unnormalised(q, k, v, bias=None, dropout=0.0):
    weights = attend(q, k, v, bias, dropout)[1] * 1.01
    return weights @ v, weights


def not_a_number(q, k, v, bias=None, dropout=0.0):
    y, weights = attend(q, k, v, bias, dropout)
    return y * math.nan, weights * math.nan


def unscaled(q, k, v, bias=None, dropout=0.0):
    return attend(q * 2, k, v, bias, dropout)


def wide(T, pos, n_head, variant, window, *more):
    return score_bias(T, pos, n_head, variant, window + 1, *more)


def unmasked(body, T, mask=None):
    return attention_bias(body, T)


BODY, ALIBI = model.Transformer, {"pos": "alibi"}
FLAT = ALIBI | {"kind": "mlm", "alibi": "symmetric"}
WINDOW = {"kind": "classifier", "window": 3}
BROKEN = [  # what is replaced, by what, in which run, and the checks that fail
    (model, "attend", leaking, ALIBI, "no weight on padding, nothing above, fused, ALiBi's bias"),
    (model, "attend", unnormalised, ALIBI, "rows sum to 1, fused"),
    (model, "attend", not_a_number, ALIBI, "rows sum to 1, above, fused, alone, ALiBi's bias"),
    (model, "attend", unscaled, ALIBI, "fused, ALiBi's bias"),
    (model, "alibi_bias", lambda *of: alibi_bias(*of) / 2, ALIBI | {"kind": "mlm"}, "ALiBi's bias"),
    (model, "alibi_bias", lambda *of: alibi_bias(*of) * 0, FLAT, "ALiBi's bias"),
    (model, "score_bias", wide, WINDOW, "nothing 3 or more tokens away"),
    (BODY, "attention_bias", unmasked, {"kind": "mlm"}, "no weight on padding, each text alone"),
]


@pytest.mark.parametrize("owner, name, broken, run, fails", BROKEN)
def test_a_broken_model_fails(owner, name, broken, run, fails, tmp_path, figures, monkeypatch):
    monkeypatch.setattr(owner, name, broken)
    folder = make_run(tmp_path / "run", **run)
    code, out, err = call("attention_maps", folder, text=[SHORT, LONG])
    assert code == 1 and err == ""
    failed = [line for line in out.splitlines() if line.startswith("  FAIL")]
    assert all(any(check in line for line in failed) for check in fails.split(", ")), out
    assert len(figures) == 2  # what is wrong can be looked at
    report = (tmp_path / "run" / "maps" / "maps.json").read_text()
    json.loads(report, parse_constant=pytest.fail)  # NaN is not JSON


# ---------------------------------------------------------------------------- numbers


def test_summary_of_known_weights():
    T, mask = 4, torch.tensor([[True, True, True, True, False, False]])
    weights = torch.zeros(1, 1, 3, 6, 6)
    weights[..., :T, :T] = torch.stack([torch.eye(T), torch.full((T, T), 1 / T), torch.zeros(T, T)])
    weights[:, :, 2, :, 0] = 1.0
    weights[..., T:, :] = 0.3  # the padding of a shorter text
    heads = summary(weights, mask)
    assert list(heads[0]) == ["layer", "head", *"distance first previous itself entropy".split()]
    assert [tuple(head.values()) for head in heads] == [
        (1, 1, 0, 0.25, 0, 1, 0),  # each token sees itself
        (1, 2, 1.25, 0.25, 0.1875, 0.25, round(math.log(4), 4)),  # all tokens alike
        (1, 3, 1.5, 1, 0.25, 0.25, 0),  # the first token
    ]


# ---------------------------------------------------------------------------- drawing


def test_only_words_are_drawn_never_padding(tmp_path, figures):
    call("attention_maps", make_run(tmp_path / "run", "mlm"), "--text", SHORT, "--text", LONG)
    for text, (_, figure) in zip((SHORT, LONG), figures):
        words = ["[BOS]", *text.replace("us", "us*").split()]
        assert all(array.shape == (len(words), len(words)) for array in maps_of(figure).values())
        axis = next(axis for axis in figure.axes if axis.get_title() == "layer 2, head 1")
        for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
            assert [label.get_text() for label in labels] == words


def test_hidden_tokens_are_blank_and_not_zero(tmp_path, figures):
    call("attention_maps", make_run(tmp_path / "run", pos="nope", window=3), "--text", LONG)
    for array in maps_of(figures[0][1]).values():
        places = range(len(array))
        assert array.mask.tolist() == [[j > i or i - j >= 3 for j in places] for i in places]


def test_a_leak_is_drawn(tmp_path, figures, monkeypatch):
    monkeypatch.setattr(model, "attend", leaking)
    call("attention_maps", make_run(tmp_path / "run"), "--text", SHORT)
    assert not any(array.mask.any() for array in maps_of(figures[0][1]).values())


def test_one_layer_or_head(tmp_path, figures):
    folder = make_run(tmp_path / "run", n_layer=3, n_head=4)
    call("attention_maps", folder, "--text", SHORT, "--layer", 3, "--head", 2, "--format", "svg")
    call("attention_maps", folder, "--text", SHORT, "--head", 4)
    assert [name for name, _ in figures] == [
        "map-1-this-is-a-small-sentence-layer-3-head-2.svg",
        "map-1-this-is-a-small-sentence-head-4.png",
    ]
    assert list(maps_of(figures[0][1])) == ["layer 3, head 2"]
    assert list(maps_of(figures[1][1])) == ["layer 1, head 4", "layer 2, head 4", "layer 3, head 4"]


def test_two_runs_side_by_side(tmp_path, figures):
    a = make_run(tmp_path / "a", pos="alibi")
    b = make_run(tmp_path / "b", "mlm", "bpe", pos="rope", n_layer=3, block_size=64)
    succeed(call("attention_maps", a, b, "--text", SHORT, "--positions"))
    side_by_side = "map-1-this-is-a-small-sentence-a-b.png"
    assert {name for name, _ in figures} == {side_by_side, "positions-a.png", "positions-b.png"}
    figure = figures[0][1]
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert len(titles) == 2 * 2 + 3 * 2
    assert {text.get_text().split("\n")[0] for text in figure.texts} == {"a", "b"}
    lefts = [axis.get_position().x0 for axis in figure.axes if axis.get_title()]
    assert max(lefts[:4]) < min(lefts[4:])
    assert (tmp_path / "a" / "maps" / "maps.json").exists()
    assert not (tmp_path / "b" / "maps").exists()


def test_long_texts_and_odd_letters(tmp_path, figures):
    folder = make_run(tmp_path / "run", block_size=100, pos="alibi", n_layer=1)
    texts = [" ".join(WORDS.split() * 7), "costs $5$ or $6$ \N{SNOWMAN} a_b^c " + "x" * 300]
    call("attention_maps", folder, text=texts)
    assert len(next(iter(maps_of(figures[0][1]).values()))) == 100
    for _, figure in figures:
        width, height = figure.get_tightbbox().size
        assert width < 25 and height < 25
    last = figures[1][1].axes[0].get_yticklabels()[-1].get_text()
    assert last == "x" * 14 + "…*"  # still marked as unknown


@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_of_wide_letters_do_not_reach_the_other_run(tmp_path, figures):
    a, b = (make_run(tmp_path / name, n_layer=1, n_head=1) for name in "ab")
    succeed(call("attention_maps", a, b, text="\N{CJK UNIFIED IDEOGRAPH-65E5}" * 12))
    left, right = (axis for axis in figures[0][1].axes if axis.get_title())
    assert left.get_window_extent().x1 < right.yaxis.get_tightbbox().x0


def test_many_heads_of_one_layer_are_drawn_in_rows_of_four(tmp_path, figures):
    folder = make_run(tmp_path / "run", n_layer=1, n_head=7, n_embd=14)
    succeed(call("attention_maps", folder, "--text", SHORT))
    maps = [axis for axis in figures[0][1].axes if axis.get_title()]
    lefts, bottoms = zip(*(axis.get_position().p0.round(6) for axis in maps))
    assert lefts == (*lefts[:4], *lefts[:3]) and len(set(lefts)) == 4
    assert bottoms == (bottoms[0],) * 4 + (bottoms[4],) * 3 and bottoms[4] < bottoms[0]
    words = [axis.get_xticklabels()[-1].get_text() for axis in maps]
    assert words == ["", "", "", "sentence", *["sentence"] * 3]  # below the lowest map of each


def test_many_heads_of_two_layers_are_two_rows_of_limited_width():
    words, weights = ["word"] * 64, torch.full((2, 12, 64, 64), 1 / 64)
    figure = draw_maps([[Picture(["two layers"], words, words, weights)]])
    places = [axis.get_position() for axis in figure.axes if axis.get_title()]  # in inches
    assert len({place.y0 for place in places}) == 2
    assert max(place.x1 for place in places) < 1.1 * WIDEST


@pytest.mark.parametrize("ending, magic", [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pdf_and_svg_are_drawn_with_any_letters(tmp_path, ending, magic):
    run, text = make_run(tmp_path / "run", n_layer=1), "\N{CJK UNIFIED IDEOGRAPH-65E5} $is$ a"
    succeed(call("attention_maps", run, text=text, format=ending))
    drawn = tmp_path / "run" / "maps" / f"map-1-\N{CJK UNIFIED IDEOGRAPH-65E5}-is-a.{ending}"
    assert drawn.read_bytes().startswith(magic)


# ---------------------------------------------------------------------------- several calls


def test_a_second_sentence_leaves_the_first_as_it_is(tmp_path):
    folder = make_run(tmp_path / "run", n_layer=1, n_head=1)
    call("attention_maps", folder, "--text", SHORT)
    maps = folder / "maps"
    first, before = (maps / SHORT_MAP).read_bytes(), entry(maps, SHORT_MAP)
    call("attention_maps", folder, "--text", "the world")
    assert (maps / SHORT_MAP).read_bytes() == first and entry(maps, SHORT_MAP) == before
    names = [SHORT_MAP, "map-1-the-world.png", "maps.json"]
    assert sorted(path.name for path in maps.iterdir()) == sorted(names)
    assert entry(maps, "map-1-the-world.png")[0]["queries"] == ["[BOS]", "the", "world"]


@pytest.mark.parametrize("damage", ["{", '{"runs": []}'])
def test_a_report_describes_only_the_figures_there_are(tmp_path, figures, damage):
    folder = make_run(tmp_path / "run", n_layer=1)
    (folder / "maps").mkdir()
    (folder / "maps" / "maps.json").write_text(damage)
    succeed(call("attention_maps", folder, "--text", SHORT))
    assert list(json.loads((folder / "maps" / "maps.json").read_text())) == [SHORT_MAP]


def test_slugs_are_short_and_safe():
    assert slug("We'll [MASK] it, ../now") == "we-ll-mask-it-now"
    assert slug("x" * 300) == "x" * 40 and slug("word " * 30) == "word-" * 7 + "word"
    assert slug("?!") == "" and slug("हिन्दी में\0") == "हिन्दी-में"  # vowels are marks


# ---------------------------------------------------------------------------- threads

POST, REPLY, COMMENT = "the people of the world", "we will work with us", "this [MASK] is a world"


def test_a_thread_has_maps_of_ancestors_comment_and_between(tmp_path, figures):
    folder = make_run(tmp_path / "run", "thread", pos="alibi")
    texts = [word for text in (POST, REPLY, COMMENT) for word in ("--text", text)]
    out = succeed(call("attention_maps", folder, *texts, "--positions", "--html")).out
    assert "FAIL" not in out
    (page,) = (folder / "maps").glob("*.html")  # all attentions of the thread
    parts = re.findall(r'"part":"\w+","name":"([^"]+)"', page.read_text(encoding="utf-8"))
    assert page.stem == "attention-3-this-mask-is-a-world"
    assert parts == [
        *("encoder self-attention of text 1", "encoder self-attention of text 2"),
        *("self-attention of the comment", "cross-attention from comment to ancestors"),
    ]
    names = [name for name, _ in figures]
    slugs = "the-people-of-the-world", "we-will-work-with-us", "this-mask-is-a-world"
    assert names[:3] == [f"map-{number}-{text}.png" for number, text in enumerate(slugs, 1)]
    assert names[3:] == ["positions-encoder.png", "positions-decoder.png"]
    (post,), (reply,) = (entry(folder / "maps", name) for name in names[:2])
    assert post["attention"] == "encoder" and post["queries"] == ["[BOS]", *POST.split()]
    assert reply["queries"] == ["[BOS]", *REPLY.replace("us", "us*").split()]
    comment, cross = entry(folder / "maps", names[2])
    assert comment["attention"] == "decoder" and cross["attention"] == "cross"
    assert comment["keys"] == cross["queries"] == ["[BOS]", *COMMENT.split()]
    assert [key[0] for key in cross["keys"]] == ["1", "2"]  # one column per ancestor, post first
    shapes = [axis.images[0].get_array().shape for axis in figures[2][1].axes if axis.get_title()]
    assert shapes == [(6, 6)] * 4 + [(6, 2)] * 4


def test_cross_attention_to_ancestors_is_that_of_the_model(tmp_path):
    run = read_run(make_run(tmp_path / "run", "thread", ancestor_positions="sinusoidal"))
    *_, cross = readings_of(run, [POST, REPLY, COMMENT])
    texts, _ = batching.sentences(run.tokenizer, [REPLY, POST], 32)  # the parent first
    (idx,), _ = batching.sentences(run.tokenizer, [COMMENT], 32)
    body = run.model.body
    with torch.no_grad():
        states = [body.encoder(text[None])[0].mean(0) for text in texts]
        memory = (torch.stack(states) + body.distances[:2])[None]
        _, maps = body.decoder(idx[None], need_weights=True, memory=memory)
    expected = torch.stack([weights.flip(-1) for _, weights in maps])
    torch.testing.assert_close(cross.views[0].shown(), expected[:, 0], atol=1e-5, rtol=1e-4)


def test_a_comment_alone_and_a_thread_too_long(tmp_path, figures):
    folder = make_run(tmp_path / "run", "thread", n_ancestors=2)
    code, out, _ = call("attention_maps", folder, "--text", COMMENT)
    assert code == 0 and len(figures) == 1
    assert "cross-attention" not in out and "note" not in out
    texts = ["--text", "a small world", "--text", POST, "--text", REPLY, "--text", COMMENT]
    code, out, _ = call("attention_maps", folder, *texts)
    assert code == 0 and "note: only the nearest 2 of 3 ancestors are read" in out
    assert [name[:6] for name, _ in figures[1:]] == ["map-2-", "map-3-", "map-4-"]


# ---------------------------------------------------------------------------- what the user is told


def test_unknown_words_and_cuts_are_told(tmp_path, figures):
    folder = make_run(tmp_path / "run", block_size=6)
    code, out, _ = call("attention_maps", folder, text=["this zorg is a qwx", LONG])
    assert code == 0
    assert "text 1: 2 of 5 tokens unknown to this run, read as [UNK]: zorg* qwx*" in out
    assert "note: text 2 has 20 tokens with [BOS]; truncated to --block-size 6" in out
    assert load_run(folder).attention(LONG).words[-1].endswith(" …")


@pytest.mark.parametrize(
    "argv, message",
    [
        (("RUN", "nowhere"), "nowhere: no such run folder"),
        (("RUNs",), "train one first or check the path; did you mean {run}?"),
        (("RUN", "--layer", "3"), "--layer 3: {run} has layers 1 to 2"),
        (("RUN/config.json",), "is a file; give the folder of a run"),
        (("RUN", "--head", "9", "--layer", "9"), "has heads 1 to 2"),
        (("RUN", "--text", ""), "text '': contains no words"),
        (("RUN", "--text", "[EOS]"), "contains no words"),
        (("RUN", "RUN", "RUN", "--html"), "--html: compares at most two runs, got 3"),
        (("RUN", "--out", "RUN/config.json"), "config.json: File exists"),
    ],
)
def test_mistakes_are_one_line(tmp_path, figures, argv, message):
    folder = make_run(tmp_path / "run")
    done = call("attention_maps", *(arg.replace("RUN", str(folder)) for arg in argv))
    assert_complains(done, message.format(run=folder))
    assert not figures


def test_a_run_that_has_not_ended_is_drawn_as_such(tmp_path):
    folder = make_run(tmp_path / "cut")
    (folder / "result.json").unlink()
    torch.save(torch.load(folder / "best.pt", weights_only=True) | {"step": 3}, folder / "best.pt")
    _, out, _ = call("attention_maps", folder, "--text", SHORT)
    (drawn,) = entry(folder / "maps", SHORT_MAP)
    assert "causal LM, learned positions, unfinished: step 3\n" in out
    assert drawn["model"].endswith("unfinished: step 3")


def test_the_texts_shown_for_toy_have_no_unknown_word():
    known = train_tokenizer("word", data.load("toy").texts())
    assert all(UNK not in known.encode(text).ids for text in attention_maps.TOY_TEXTS)
    assert any(UNK in known.encode(text).ids for text in attention_maps.TEXTS)


# ---------------------------------------------------------------------------- pages and options


def test_a_page_and_the_weights_of_each_text(tmp_path, figures):
    run = make_run(tmp_path / "run", pos="alibi")
    out = tmp_path / "maps"
    argv = ("--text", SHORT, "--text", "we will read", "--html", "--save-weights", "--out", out)
    with unchanged(run):
        told = succeed(call("attention_maps", run, *argv)).out
    for number, text in enumerate((SHORT, "we will read"), 1):
        path = out / f"attention-{number}-{text.replace(' ', '-')}-run.html"
        assert f"open {path} in a browser" in told
        assert f"<title>{text}" in path.read_text(encoding="utf-8")
    view = load_run(run).attention("we will read")
    with np.load(out / "map-2-we-will-read-run.npz") as arrays:
        assert arrays["queries"].tolist() == arrays["keys"].tolist() == view.words
        for name in ("weights", "content", "position"):
            assert np.allclose(arrays[name], getattr(view, name), atol=1e-5), name


def test_figures_of_two_runs_in_one_folder_do_not_replace_each_other(tmp_path, figures):
    for name in "ab":
        argv = ("--text", SHORT, "--positions", "--out", tmp_path / "maps")
        succeed(call("attention_maps", make_run(tmp_path / name, pos="alibi"), *argv))
    names = [f"{figure}-{run}.png" for run in "ab" for figure in (SHORT_MAP[:-4], "positions")]
    assert [name for name, _ in figures] == names


def test_titles_labels_and_means(tmp_path, figures):
    runs = [make_run(tmp_path / name, pos="rope") for name in "ab"]
    argv = ("--text", SHORT, "--mean", "--no-bos", "--scale", "linear", "--numbers")
    assert call("attention_maps", *runs, *argv, "--labels", "first run, second")[0] == 0
    ((name, figure),) = figures
    assert name == "map-1-this-is-a-small-sentence-mean-first-run-second.png"
    assert {"first run", "second"} <= {text.get_text().split("\n")[0] for text in figure.texts}
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == ["layer 1, mean of heads", "layer 2, mean of heads"] * 2
    done = call("attention_maps", *runs, labels="one", text=SHORT)
    assert_complains(done, "--labels one: gives 1 names, for 2 runs")
    for labels in ("same,same", "a/b,c", ",b"):  # would share a column, or name a missing folder
        done = call("attention_maps", *runs, labels=labels, text=SHORT)
        assert_complains(done, f"--labels {labels}: ")
    done = call("attention_maps", *runs, *argv, "--head", 2)
    assert_complains(done, "mean and head 2: give one of them")
    alike = [make_run(tmp_path / parent / "x" / "lm", pos="rope") for parent in "ab"]
    assert_complains(call("attention_maps", *alike, text=SHORT), "are called x-lm: ", "--labels")
