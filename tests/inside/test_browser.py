"""The attention page in a real browser: Debian's chromium and chromium-driver, by selenium."""

import io
import json
import re
import shutil
import time

import pytest
from matplotlib.image import imread

from lab import load_run
from lab.inside.live import LivePage
from model import POSITIONS, Attention

webdriver = pytest.importorskip("selenium.webdriver", reason="the extra test lacks selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("no browser: apt-get install chromium chromium-driver", allow_module_level=True)

TEXT = "we will work with the people of the world today , and this is a small sentence ."


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(params=[1280, pytest.param(360, marks=pytest.mark.slow)])
def window(browser, request):
    """The browser at two widths. Its console and all that it loads is looked at in the end."""
    resize(browser, request.param)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    yield browser
    assert browser.get_log("browser") == []
    here = browser.current_url
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked = message["params"]["request"]["url"]
            assert asked in (here, f"{here}answer", "data:,", "about:blank"), asked


def resize(browser, width):
    size = dict(width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def show(browser, view, path):
    """Open the static page of a view."""
    view.html(path)
    browser.get(path.as_uri())
    until(browser, "return document.body.dataset.ready")


def until(browser, script):
    """Return what a script returns as soon as it is true."""
    for _ in range(200):
        found = browser.execute_script(script)
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"never true: {script}")


def query(browser, selector, what="textContent"):
    """Return a property of all elements of a selector."""
    script = f"return [...document.querySelectorAll(arguments[0])].map((one) => one.{what})"
    return browser.execute_script(script, selector)


def click(browser, selector, number=0):
    browser.execute_script(
        "document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, number
    )


def click_cell(browser, i, j):
    """Click cell (i, j) of the first map that is open."""
    script = """const field = document.querySelector(".field"), [i, j] = arguments;
        const box = field.getBoundingClientRect();
        const T = runs[0].parts[state.part].queries.length;
        const size = (box.height - 2) / T;
        field.dispatchEvent(new MouseEvent("click", { bubbles: true,
          clientX: box.left + 1 + (j + .5) * size, clientY: box.top + 1 + (i + .5) * size }));"""
    browser.execute_script(script, i, j)


def overflow(browser):
    """Return how many pixels the page is wider than the window."""
    script = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
    return browser.execute_script(script)


def rows_of_cell(browser):
    """Return the rows of the table that takes a cell apart, without the bars: {name: value}."""
    script = """return [...document.querySelectorAll(".apart tbody tr")].map((row) =>
        [...row.cells].map((cell) => cell.textContent))"""
    return {name: value for name, value in browser.execute_script(script) if value}


def number(text):
    return float(text.replace("−", "-").replace("≈", "").rstrip("%"))


# ------------------------------------------------------------------------------------------ live
def test_type_switch_off_click_and_compare(make, window):
    live = LivePage([load_run(make(pos="alibi"))], "this is a")
    try:
        window.get(live.address)
        until(window, "return document.body.dataset.ready")
        assert query(window, ".choice button bdi") and overflow(window) == 0
        type_text(window, " small")
        until(window, "return runs[0].parts[0].queries.length === 5")
        first = query(window, ".choice button bdi")
        click(window, ".toggle", 1)
        until(window, "return runs[0].switched")
        assert query(window, ".toggle", "ariaPressed") == ["false", "true", "false", "false"]
        assert query(window, "#switched h2") == ["Before and after: layer 1, head 2 off"]
        assert query(window, "#off")[0].startswith("off: layer 1, head 2 ")
        headings = query(window, ".choice td.soft")
        assert headings == ["next word", "all heads", "without"]
        type_text(window, " sentence")
        until(window, "return runs[0].parts[0].queries.length === 6 && runs[0].switched")
        assert query(window, ".toggle", "ariaPressed")[1] == "true"  # stays off
        assert query(window, ".choice button bdi") != first

        click(window, ".grid .open", 3)
        click_cell(window, 4, 2)
        cell = rows_of_cell(window)
        assert query(window, ".apart h3") == ["“small” → “is”"]
        assert number(cell["score"]) == pytest.approx(-1, abs=10)
        type_text(window, " and")  # the cell stays open
        until(window, "return runs[0].parts[0].queries.length === 7")
        assert query(window, ".apart h3") == ["“small” → “is”"]
        assert overflow(window) == 0

        word = query(window, ".choice button bdi")[0]
        click(window, ".choice td button")
        until(window, "return runs[0].parts[0].queries.length === 8")
        assert query(window, "#text", "value")[0].split()[-1].endswith(word)
        click(window, ".choice h3 button")
        until(window, "return runs[0].parts[0].queries.length > 20")
        click(window, "#off button")
        until(window, "return runs[0].sorted && !runs[0].switched")
        assert set(query(window, ".toggle", "ariaPressed")) == {"false"}
    finally:
        live.stop()


def test_two_runs_side_by_side(make, window):
    learned = load_run(make(name="b", block_size=8))
    live = LivePage([load_run(make(pos="alibi", block_size=8)), learned], TEXT)
    try:
        window.get(live.address)
        until(window, "return document.body.dataset.ready")
        assert len(query(window, ".choice")) == len(query(window, "#maps figure")) == 2
        notes = "19 tokens; in training, texts had up to 8", "cut to the first 8 of 19 tokens"
        for shown, note in zip(query(window, "#maps .warning"), notes):
            assert shown.startswith(note)
        click(window, ".grid .open")
        assert len(query(window, ".ends")) == 2  # of the first run
        assert query(window, ".beyond bdi") == ["the", "the"]  # the ninth token of both lists
        type_text(window, "this is small", anew=True)
        until(window, "return runs[1].parts[0].queries.length === 4 && runs[1].sorted")
        click(window, "[name=view]", 1)
        click_cell(window, 2, 1)
        rows = rows_of_cell(window)
        parts = [number(rows["weight in A"]), -number(rows["weight in B"].replace("− ", ""))]
        shown = number(rows["percentage points"].replace("points", ""))
        assert sum(parts) == pytest.approx(shown, abs=1e-6)
        assert "more in B" in query(window, "#legend")[0] and overflow(window) == 0
    finally:
        live.stop()


def type_text(browser, text, anew=False):
    box = browser.find_element("id", "text")
    if anew:
        box.clear()
    box.send_keys(text)


def test_problems_are_told(make, browser):
    live = LivePage([load_run(make())], "this is a")
    browser.get(live.address)
    until(browser, "return document.body.dataset.ready")
    browser.execute_script("type('work '.repeat(5000))")
    until(browser, "return document.getElementById('status').textContent.includes('20 kB')")
    browser.execute_script("type('this is a')")
    until(browser, "return document.getElementById('status').textContent === ''")
    live.stop()
    type_text(browser, " small")
    until(browser, "return document.getElementById('status').textContent.includes('still running')")


# ---------------------------------------------------------------------------------------- static
NEEDS_DECODER = "fire cope forget".split()


@pytest.mark.parametrize("pos", [*POSITIONS, "yarn", "sinks"])
def test_the_numbers_of_a_cell_add_up(make, browser, tmp_path, pos):
    more = dict(pos=pos)
    if pos == "yarn":
        more = dict(pos="rope", rope_scale="yarn", rope_factor=4.0)
    if pos == "sinks":
        more = dict(pos="alibi", sinks=True)
    view = load_run(make("lm", n_embd=32, **more)).attention(TEXT)
    resize(browser, 1280)
    show(browser, view, tmp_path / "page.html")
    click(browser, ".grid .open", 3)  # layer 2, head 2
    for i, j in ((5, 2), (16, 0), (3, 3)):
        click_cell(browser, i, j)
        cell = rows_of_cell(browser)
        q, k, content = view.q[1, 1, i], view.k[1, 1, j], view.content[1, 1, i, j]
        assert number(cell["q · k, their sum"]) == pytest.approx(float(q @ k), abs=6e-4)
        (shown_content,) = [cell[name] for name in cell if name.startswith("content")]
        assert number(shown_content) == pytest.approx(content, abs=6e-4)
        label = POSITIONS[more["pos"]].label
        is_term = re.compile(rf"(content|positions|{label}):")
        terms = [number(cell[name]) for name in cell if is_term.match(name)]
        assert sum(terms) == pytest.approx(number(cell["score"]), abs=1e-6)  # to the last digit
        e = number(cell["e^score"])
        total = number(cell[f"sum of e^score over the row’s {i + 1} keys"])
        if pos == "sinks":
            sink = cell["the head’s sink, a key without a value, adds to the sum"]
            assert number(sink) == pytest.approx(1, abs=0.01)  # e^0, as it was not trained
            total += number(sink)
        weight = number(cell["weight: e^score / sum"]) / 100
        assert weight == pytest.approx(view.weights[1, 1, i, j], abs=6e-5)
        assert e / total == pytest.approx(weight, rel=1e-3, abs=6e-5)
        length = number(cell["length of the value vector that it brings"])
        assert length == pytest.approx(view.lengths[1, 1, j], abs=6e-4)
        assert number(cell["weight × length"]) == pytest.approx(weight * length, abs=1e-3)
        assert "by another formula" not in " ".join(cell)
    bars = query(browser, ".apart svg", "children.length")
    assert bars == [16, 16, 16]
    click_cell(browser, 2, 5)
    assert rows_of_cell(browser)["score"] == "−∞"


def test_cells_of_cross_attention_add_up(make, browser, tmp_path):
    run = load_run(make("thread", pos="alibi"))
    view = run.attention("this is a small sentence", "we will work", "the [MASK] will work")[
        "cross"
    ]
    show(browser, view, tmp_path / "page.html")
    click(browser, "[name=part]", 3)
    click(browser, ".grid .open")
    for j in (0, 1):  # the post and its reply, which the model reads in the other order
        click_cell(browser, 2, j)
        cell = rows_of_cell(browser)
        assert cell["positions: cross-attention has none"] == "+0.000"
        assert number(cell["score"]) == pytest.approx(view.content[0, 0, 2, j], abs=6e-4)
        weight = number(cell["weight: e^score / sum"]) / 100
        assert weight == pytest.approx(view.weights[0, 0, 2, j], abs=6e-5)


def test_another_formula_of_attention_is_told(make, browser, tmp_path, monkeypatch):
    def attend(self, q, k, v, bias):
        return (q @ k.mT / q.size(-1) ** 0.5 + bias).sigmoid() @ v

    monkeypatch.setattr(Attention, "attend", attend)
    view = load_run(make(pos="alibi")).attention(TEXT)
    show(browser, view, tmp_path / "page.html")
    click(browser, ".grid .open")
    click_cell(browser, 4, 2)
    shown = number(rows_of_cell(browser)["the model’s own weight, by another formula"]) / 100
    assert shown == pytest.approx(view.weights[0, 0, 4, 2], abs=6e-5)


def test_a_query_and_a_key_of_the_lists_are_a_cell(make, window, tmp_path):
    show(window, load_run(make(pos="rope")).attention(TEXT), tmp_path / "page.html")
    click(window, ".grid .open")
    click(window, ".words.queries li", 4)
    click(window, ".words.keys li", 2)
    assert query(window, ".apart h3") == ["“with” → “will”"]
    assert overflow(window) == 0
    tab_stops = query(window, "[tabindex='0'], button:not([tabindex]), input", "tagName")
    assert len(tab_stops) < 20


def test_a_word_far_below_is_seen_with_its_map(make, window, tmp_path):
    text = " ".join([TEXT] * 3)
    show(window, load_run(make(pos="alibi", block_size=64)).attention(text), tmp_path / "page.html")
    click(window, ".grid .open")
    script = """const item = document.querySelectorAll(".words.queries li")[30];
        item.scrollIntoView({ block: "center" }); item.onmouseenter();
        return [".told", ".frame"].map((name) => { // the sentence, and the row in the map
          const { top, bottom } = document.querySelector(name).getBoundingClientRect();
          return [top, bottom]; })"""
    for top, bottom in window.execute_script(script):
        assert 0 <= top < bottom <= 900
    assert "attends to" in query(window, ".told")[0]


CONTRAST = """
const bright = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) =>
  x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4)
  .reduce((sum, x, i) => sum + [.2126, .7152, .0722][i] * x, 0);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const page = numbers(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll(".tinted, .tinted .number")].map((one) => {
  const own = getComputedStyle(one.closest(".tinted"));
  const tint = own.backgroundImage.match(/rgba?\\([^)]*\\)/)?.[0] ?? own.backgroundColor;
  const [r, g, b, share = 1] = numbers(tint);
  const under = [r, g, b].map((x, i) => share * x + (1 - share) * page[i]);
  const [a, c] = [bright(numbers(getComputedStyle(one).color)), bright(under)];
  return (Math.max(a, c) + .05) / (Math.min(a, c) + .05);
});"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_on_tints_and_hidden_cells_can_be_told(make, browser, tmp_path, scheme):
    feature = dict(name="prefers-color-scheme", value=scheme)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    run = load_run(make(pos="alibi", init_std=1.0))  # sure of its words: dark tints
    show(browser, run.attention(TEXT), tmp_path / "page.html")
    contrasts = browser.execute_script(CONTRAST)
    assert len(contrasts) > 50 and min(contrasts) >= 4.5
    # What is hidden is darker than a weight of 0 in both schemes
    click(browser, ".grid .open")
    picture = browser.find_element("css selector", ".field").screenshot_as_png
    hidden, least = corner_and_lightest(picture, scheme)
    assert hidden < least
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def corner_and_lightest(png, scheme):
    """Return the brightness of a hidden cell, top right, and that of a weight near 0, of which the
    lower left has some."""
    pixels = imread(io.BytesIO(png))[..., :3].mean(-1)
    height, width = pixels.shape
    cells = pixels[height // 2 :, 4 : width // 3]
    near_zero = cells.max() if scheme == "light" else cells.min()
    return pixels[8, -8], near_zero


@pytest.mark.slow
def test_a_notebook_falls_back_to_the_static_page(make, browser, tmp_path):
    script = "return document.querySelector('iframe').contentDocument?.body?.dataset.ready"
    for reached in (True, False):
        live = load_run(make(name=f"run-{reached}")).live("this is a")
        notebook = tmp_path / f"{reached}.html"
        notebook.write_text(f"<!doctype html>{live._repr_html_()}", "utf-8")
        if not reached:
            live.stop()
        browser.get(notebook.as_uri())
        try:
            if reached:
                time.sleep(5)  # longer than it waits
                assert not browser.execute_script("return document.querySelector('iframe').srcdoc")
            else:
                until(browser, script)
        finally:
            if reached:
                live.stop()
