"""The attention page in a real browser: what it shows, its keys, and texts that are markup."""

import shutil

import pytest
import torch
from helpers import make_run

from lab import load_run
from lab.inside.ablation import ablate
from lab.inside.lens import ask
from lab.inside.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium to open the page with")
TEXT = "this is a small sentence"
HOSTILE = [
    "<script>document.title='run'</script>",
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=document.title='run'>",
    "]]>",
    "<!--",
    "&lt;{{data}}\\u003c",
    "שלום",
    "مرحبا*",
    "e\u0301a\u0323\u0308",
    "👩‍👩‍👧",
    "\u202eabc",
    "\u2028",
]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """show(html) -> the page, opened from a file. It may load nothing and report no error."""
    context, seen, number = browser.new_context(), [], iter(range(9))

    def open_page(html):
        path = tmp_path / f"page-{next(number)}.html"
        path.write_text(html, encoding="utf-8")
        tab, own = context.new_page(), path.as_uri()
        tab.on("request", lambda request: request.url == own or seen.append(request.url))
        tab.on("console", lambda message: seen.append(message.text))
        tab.on("pageerror", lambda error: seen.append(str(error)))
        tab.on("dialog", lambda dialog: seen.append(dialog.message))
        tab.goto(own)
        tab.wait_for_selector("body[data-ready]")
        return tab

    yield open_page
    context.close()
    assert seen == []


def opened(folder, kind="lm", **config):
    """A run with random weights and its AttentionView of TEXT."""
    run = load_run(make_run(folder, kind, **config))
    return run, run.attention(TEXT)


def percents(weights):
    """Weights (T,) as the page writes them; 0 of a causal model's future is not allowed."""
    return [f"{weight:.2%}" if weight else "–" for weight in weights.tolist()]


def chance(p):
    return f"{p:.1%}" if p >= 0.0005 else "<0.1%"


def numbers(tab, side, panel=0):
    return tab.locator(f"figure >> nth={panel} >> ol.{side} .number").all_inner_texts()


def open_head(tab, layer, head):
    tab.click(f"#maps [data-place='{layer - 1},{head - 1}']")


def test_every_head_opens_with_the_numbers_of_its_weights(show, tmp_path):
    _, view = opened(tmp_path / "run", pos="alibi", n_layer=3)
    tab = show(page([view], TEXT))
    names = tab.locator("#maps button").evaluate_all("all => all.map((one) => one.ariaLabel)")
    assert names == [f"layer {layer}, head {head}" for layer in (1, 2, 3) for head in (1, 2)]
    weights = view.weights
    open_head(tab, 3, 2)
    assert tab.inner_text("#place") == "Layer 3, head 2"
    for i in (0, 3, 5):
        tab.hover(f"ol.queries li >> nth={i}")
        assert numbers(tab, "keys") == percents(weights[2, 1, i])
        assert numbers(tab, "queries") == [""] * 6
    tab.hover("ol.keys li >> nth=2")
    assert numbers(tab, "queries") == percents(weights[2, 1, :, 2])
    tab.click("ol.queries li >> nth=4")  # pinned: the mouse changes nothing
    tab.hover("ol.queries li >> nth=1")
    assert numbers(tab, "keys") == percents(weights[2, 1, 4])
    box = tab.locator(".field").bounding_box()
    tab.keyboard.press("Escape")
    tab.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.6 * box["height"])  # row 3, column 2
    assert tab.inner_text(".told") == f"“a” attends to “is” {weights[2, 1, 3, 2]:.2%}"


@pytest.mark.parametrize("pos", ["rope", "alibi"])
def test_the_score_is_taken_apart(show, tmp_path, pos):
    _, view = opened(tmp_path / "run", "mlm", pos=pos)
    tab = show(page([view]))
    for name, scores in (("content", view.content), ("position", view.position)):
        tab.click(f"text={name} alone")
        open_head(tab, 2, 1)
        tab.hover("ol.queries li >> nth=2")
        expected = torch.tensor(scores[1, 0, 2]).softmax(-1).tolist()
        assert numbers(tab, "keys") == [f"{weight:.1%}" for weight in expected]
        tab.keyboard.press("Escape")
    _, learned = opened(tmp_path / "learned", pos="learned")
    tab = show(page([learned]))
    assert tab.is_disabled("input[name=mode] >> nth=2")
    assert "Learned positions are added to the word vectors." in tab.inner_text("#shown")


def test_heads_are_sorted_by_what_happens_without_them(show, tmp_path):
    run, view = opened(tmp_path / "run", pos="rope")
    tab = show(page([view]))
    whole, effects = ablate(run, ask(view))  # checked by tests/lab/test_lens.py
    known = slice(0, -1)  # nothing follows the last word
    effects.sort(key=lambda effect: -effect.losses[known].mean())
    buttons = tab.locator("#heads li button")
    for n, effect in enumerate(effects):
        change, name = (
            (effect.losses - whole.losses)[known],
            f"layer {effect.layer}, head {effect.head}",
        )
        text = buttons.nth(n).inner_text().replace("−", "-")
        assert text.split("\n") == [name, f"{change.mean().item():+.3f}"]
        buttons.nth(n).click()
        rows = [row.replace("−", "-").split("\t") for row in rows_of(tab, "#heads")]
        assert [row[3] for row in rows[:-1]] == [f"{value:+.3f}" for value in change.tolist()]
        answers = [row[4].split(" → ")[-1] for row in rows]
        assert answers == [run.tokenizer.id_to_token(i) for i in effect.words]
    tab.click("text=show its attention")  # of the head clicked last
    assert buttons.last.inner_text().lower().startswith(tab.inner_text("#place").lower())


def rows_of(tab, section):
    return tab.locator(f"{section} tbody tr").all_inner_texts()


def test_answers_stand_beside_each_word_and_layer(show, tmp_path):
    run, view = opened(tmp_path / "run", pos="nope")
    tab, ids = show(page([view])), view.inputs["idx"]
    _, states = run.model.body(ids, need_states=True)
    layers = [run.model.head(run.model.body.norm(x))[0].softmax(-1) for x in states]
    for place, row in enumerate(rows_of(tab, "#answers")[:-1]):
        word, true, p, rank, _, *cells = row.split("\t")
        i = ids[0, place + 1]
        assert (word, true) == (view.words[place], view.words[place + 1])
        expected = layers[-1][place]
        assert p == chance(expected[i]) and int(rank) == 1 + (expected > expected[i]).sum()
        for cell, probabilities in zip(cells, layers):
            best = probabilities[place].max(-1)
            assert cell == f"{run.tokenizer.id_to_token(best.indices)} {chance(best.values)}"
    tab.hover("#answers [data-place='1,2']")
    assert "“this”, layer 2: " in tab.inner_text("#answers .told")


def test_arrows_move_between_heads_and_escape_goes_back(show, tmp_path):
    _, view = opened(tmp_path / "run", n_layer=3)
    tab = show(page([view]))
    tab.focus("#maps [data-place='0,0']")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):  # there is no third head
        tab.keyboard.press(key)
    assert tab.inner_text("#place") == "Layer 2, head 2"
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        tab.keyboard.press(key)
    assert tab.inner_text("#place") == "Layer 3, head 1"
    tab.focus("ol.queries li >> nth=1")
    tab.keyboard.press("Enter")  # pins
    assert tab.locator(".pinned").count() == 1
    tab.keyboard.press("Escape")
    assert tab.locator(".pinned").count() == 0 and tab.is_visible("#open")
    tab.keyboard.press("Escape")
    assert tab.is_hidden("#open")
    assert tab.evaluate("document.activeElement.dataset.place") == "2,0"
    tab.focus("#answers [data-place='0,0']")
    tab.keyboard.press("ArrowDown")
    assert tab.evaluate("document.activeElement.dataset.place") == "1,0"


def test_two_runs_stand_side_by_side_or_as_a_difference(show, tmp_path):
    _, first = opened(tmp_path / "a", pos="alibi")
    b, second = opened(tmp_path / "b", pos="learned")
    tab = show(page([first, second]))
    open_head(tab, 1, 2)
    tab.hover("ol.queries li >> nth=5")
    rows = [view.weights[0, 1, 5] for view in (first, second)]
    assert [numbers(tab, "keys", panel) for panel in (0, 1)] == [percents(row) for row in rows]
    tab.click("text=A minus B")
    tab.hover("ol.queries li >> nth=5")
    shown = [float(text.replace("−", "-")[:-1]) for text in numbers(tab, "keys")]
    assert shown == pytest.approx((100 * (rows[0] - rows[1])).tolist(), abs=0.011)
    tab = show(page([first, b.attention(TEXT + " and")]))
    assert tab.is_disabled("input[name=view] >> nth=1")


def test_an_encoder_decoder_has_three_attentions(show, finished):
    run = load_run(finished("train_seq2seq"))
    cross = run.attention("hope and change matter")["cross"]
    tab = show(page([cross]))
    labels = tab.locator("#controls fieldset >> nth=0 >> label").all_inner_texts()
    assert [label.strip().split("-")[0].split(" ")[0] for label in labels] == [
        "encoder",
        "decoder",
        "cross",
    ]
    tab.click("#controls label >> nth=2")
    open_head(tab, 1, 1)
    weights = cross.weights[0, 0]
    by_target = [(word, cross.keys[j]) for word, j in zip(cross.words, weights.argmax(1))]
    by_source = [(word, cross.words[i]) for word, i in zip(cross.keys, weights.argmax(0))]
    rows = [tuple(row.split("\t")[:2]) for row in rows_of(tab, "#maps")]
    assert rows == by_target + by_source


@pytest.mark.parametrize("kind", ["mlm", "classifier", "thread"])
def test_the_other_kinds_of_runs_have_a_page(show, tmp_path, kind):
    run = load_run(make_run(tmp_path / "run", kind))
    if kind == "thread":
        view = run.attention("we will", "this [MASK] is small")["decoder"]
    else:
        view = run.attention(TEXT)
    tab = show(page([view]))
    words = {"mlm": TEXT.split(), "classifier": ["(the whole text)", "[BOS]", *TEXT.split()]}
    words["thread"] = ["this", "[MASK]", "is", "small"]
    assert [row.split("\t")[0] for row in rows_of(tab, "#answers")] == words[kind]
    assert tab.locator("#heads li button").count() == (12 if kind == "thread" else 4)
    if kind == "thread":
        tab.click("#controls label >> nth=2")  # whose maps have one narrow column
    fits = "all => all.every((one) => one.scrollWidth <= one.clientWidth)"
    assert tab.locator(".grid > span").evaluate_all(fits)


def test_texts_that_are_markup_are_text(show, tmp_path):
    run = load_run(make_run(tmp_path / "<b>&{{data}}", "mlm"))
    view = run.attention(" ".join(["work"] * (len(HOSTILE) - 1)))
    view.words = view.keys = HOSTILE
    tab = show(page([view], HOSTILE[1]))
    assert tab.title() == tab.inner_text("h1") == HOSTILE[1]
    open_head(tab, 1, 1)
    shown = tab.locator("ol.queries bdi").evaluate_all("all => all.map((one) => one.textContent)")
    assert shown == HOSTILE
    assert tab.locator("script").count() == 2 and tab.locator("img").count() == 0
    assert "<b>&{{data}}" in tab.inner_text("figcaption")
    assert tab.locator("ol.queries .unknown").all_inner_texts() == ["مرحبا*"]
    rtl = "all => getComputedStyle(all[6]).direction"
    assert tab.locator("ol.queries bdi").evaluate_all(rtl) == "rtl"


def test_two_pages_share_a_notebook(browser, tmp_path):
    _, view = opened(tmp_path / "run")
    tab, seen = browser.new_page(), []
    tab.on("console", lambda message: seen.append(message.text))
    tab.on("request", lambda request: seen.append(request.url))
    tab.set_content("<iframe></iframe><iframe></iframe>")
    fill = "html => document.querySelectorAll('iframe').forEach((one) => { one.srcdoc = html; })"
    tab.evaluate(fill, page([view]))
    for frame in tab.frames[1:]:
        frame.wait_for_selector("body[data-ready]")
        assert frame.locator("#maps button").count() == 4
    tab.close()
    assert seen == []
