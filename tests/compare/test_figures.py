"""Figures: no display backend, no setting changed, names stay text, colors from the classes."""

import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from helpers import ROOT
from matplotlib import image
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from lab import figures
from lab.classification import draw_confusion
from lab.figures import Panel
from model import POSITIONS


@pytest.mark.slow
def test_no_display_backend_is_loaded(tmp_path):
    code = """
import sys
from lab.classification import draw_confusion
from lab.figures import Panel, curves, save
save(curves([Panel("t", "y", {"a": ([1, 2], [3, 4])}, log=True)], "step"), sys.argv[1] + "/a.png")
save(draw_confusion([[1, 2], [3, 4]], ["a", "b"], "t"), sys.argv[1] + "/b.pdf")
displays = ("matplotlib.pyplot", "matplotlib_inline", "matplotlib.backends.backend_tk")
assert not [name for name in sys.modules if name.startswith(displays)]
"""
    env = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # a notebook's !
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, env=env, check=True)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"/Type3" not in (tmp_path / "b.pdf").read_bytes()


def test_drawing_changes_no_setting_and_names_with_dollars_stay_text(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)  # as a user may have set
    before, name = dict(matplotlib.rcParams), r"lm-$\frac$-0"  # no formula that could be drawn
    panel = Panel(name, "y", {name: ([1, 2], [3, 4])}, {"$\\a$": 1}, log=True)
    figure = figures.curves([panel], "step")
    figures.save(draw_confusion([[1, 2], [3, 4]], [name, "b"], name), tmp_path / "confusion.png")
    panel = Panel("", "", {"_a": ([1], [2])}, {"_b": 1}, log=True)
    (legend,) = figures.curves([panel], "step").legends
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_a", "_b"]
    assert figure._repr_png_().startswith(b"\x89PNG")  # in a notebook
    assert dict(matplotlib.rcParams) == before


def test_encodings_have_the_style_of_their_class_in_any_order(monkeypatch):
    monkeypatch.setitem(POSITIONS, "t5", SimpleNamespace(label="T5's (new)", color="#123456"))
    labels = ["NoPE, x", "steps=9, rotary", "alibi", "T5's (new), a", "ALiBi, window=8", "else"]
    styles = figures.line_styles(labels)
    expected = [POSITIONS[pos].color for pos in ("nope", "rope", "alibi", "t5")]
    colors = [styles[label]["color"] for label in labels]
    assert colors[:4] == expected and len(set(colors)) == 6
    assert len({styles[label]["marker"] for label in labels}) == 6
    assert figures.line_styles(labels[3::-1])["alibi"] == styles["alibi"]
    others = figures.line_styles([*"abcdefghij"]).values()
    assert {style["color"] for style in others} == set(figures.COLORS)
    named = [SimpleNamespace(pos="alibi", window=3), SimpleNamespace(pos="learned", window=0)]
    assert [*map(figures.name_positions, named)] == ["ALiBi, window 3", "learned positions"]


def as_a_deuteranope_sees(color):
    """Return a color as CIE L*a*b*, after the matrix of Machado et al. 2009 for deuteranopia."""
    parts = np.array(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413]]
    seen = np.clip(np.array([*seen, [-0.01182, 0.04294, 0.968881]]) @ linear, 0, 1)
    xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    white = np.array([0.9505, 1, 1.089])
    shares = np.array(xyz) @ seen / white
    x, y, z = np.where(shares > 0.008856, np.cbrt(shares), 7.787 * shares + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_encodings_that_look_alike_to_a_deuteranope_have_other_markers_and_dashes():
    encodings = [POSITIONS[pos].label for pos in POSITIONS]
    styles = figures.line_styles(encodings)
    markers = [styles[label]["marker"] for label in encodings]
    assert len(set(markers)) == len(encodings)
    alike = []
    for first, second in itertools.combinations(encodings, 2):
        seen = [as_a_deuteranope_sees(styles[label]["color"]) for label in (first, second)]
        if np.linalg.norm(seen[0] - seen[1]) < 12:
            alike.append({first, second})
            assert styles[first]["linestyle"] != styles[second]["linestyle"], (first, second)
    assert {"FIRE", "PoPE"} in alike
    assert styles["ALiBi"]["linestyle"] != styles["CoPE"]["linestyle"]  # alike in other simulations


def test_lines_that_coincide_are_both_seen():
    lines = {"rotary": ([0, 1], [1, 2]), "else": ([0, 1], [1, 2])}  # dotted, solid
    (axis,) = figures.curves([Panel("", "y", lines)], "step").axes
    above, below = axis.lines
    assert below.get_zorder() < above.get_zorder()
    assert below.get_linestyle() == "-" and above.get_linestyle() != "-"
    lines = {"a": ([0, 1], [1, 2]), "b": ([0, 1], [1, 2])}
    (axis,) = figures.curves([Panel("", "y", lines)], "step").axes
    assert axis.lines[0].get_linewidth() > axis.lines[1].get_linewidth()


@pytest.mark.parametrize("n_panel", [1, 2, 3, 4, 5, 7])
def test_figures_are_as_wide_as_a_page_with_text_of_seven_points(n_panel, tmp_path):
    lines = {POSITIONS[pos].label: ([0, 1, 2], [3, 2, 1]) for pos in POSITIONS}
    panels = [Panel("a panel", "perplexity", lines, {"5-gram": 2}, log=True)] * n_panel
    figure = figures.curves(panels, "step")
    figures.save(figure, tmp_path / "figure.png")
    height, width, _ = image.imread(tmp_path / "figure.png").shape
    assert width / 150 == pytest.approx(6.5, abs=0.05) and height / 150 < 9
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert min(sizes) >= 7
    starts = {round(axis.get_position().x0, 2) for axis in figure.axes}
    assert len(starts) == (2 if n_panel == 4 else min(3, n_panel))
    assert figure.axes[0].get_ylabel() == "perplexity (log)"


def test_the_legend_stands_in_a_free_cell():
    panels = [Panel("", "y", {"a": ([0, 1], [1, 2])})] * 5
    figure = figures.curves(panels, "step")
    assert not figure.legends and figure.axes[5].get_legend()
    long = {"a very long label that does not fit into a cell": ([0, 1], [1, 2])}
    assert figures.curves([Panel("", "y", long)] * 5, "step").legends


def test_the_band_is_one_sample_deviation_around_the_mean_and_ends_at_the_limits():
    _, axis = figures.new_figure()
    seeds = [[1.0, 4.0], [3.0, 4.0]] * 3  # squared distances of 6 x 1, over 5
    figures.plot_mean(axis, [1, 2], seeds, color="k")
    assert list(axis.lines[0].get_ydata()) == [2, 4]
    band = axis.collections[0].get_paths()[0].vertices
    d = 1.2**0.5
    assert sorted({y for x, y in band if x == 1}) == pytest.approx([2 - d, 2 + d])
    assert {y for x, y in band if x == 2} == {4}
    figures.plot_mean(axis, [1], [[5.0]])
    assert list(axis.lines[1].get_ydata()) == [5] and len(axis.collections) == 1
    lines = {"a": ([1, 2], seeds)}
    (axis,) = figures.curves([Panel("", "y", lines, limits=(1.5, 3))], "step").axes
    ends = {y for x, y in axis.collections[0].get_paths()[0].vertices if x == 1}
    assert sorted(ends) == [1.5, 3]


def test_few_seeds_are_points_without_a_band():
    lines = {"a": ([1, 2], [[1.0, 4.0], [3.0, 4.0]])}
    (axis,) = figures.curves([Panel("", "y", lines)], "step").axes
    mean, *points = axis.lines
    assert list(mean.get_ydata()) == [2, 4] and mean.get_marker() == "None"
    assert [list(line.get_ydata()) for line in points] == [[1, 4], [3, 4]]
    assert {line.get_linestyle() for line in points} == {"None"} and not axis.collections
    assert {line.get_markevery() for line in points} == {None}  # all are drawn


def test_an_untrained_model_does_not_flatten_a_log_axis():
    lines, best = {"train": ([0, 50, 100], [540, 6, 5])}, {figures.BEST + "train": 3}
    panels = [Panel("", "y", lines, best, log) for log in (True, False)]
    log, plain = figures.curves(panels, "step").axes
    assert list(log.lines[0].get_xdata()) == [50, 100] and log.get_ylim()[1] < 50
    assert log.get_xlabel() == "step (step 0 not shown)" and plain.get_xlabel() == "step"
    assert list(plain.lines[0].get_xdata()) == [0, 50, 100]
    assert log.lines[1].get_color() == log.lines[0].get_color() and log.get_ylabel() == "y (log)"


@pytest.mark.parametrize("low, high", [(4.1, 12.3), (2.3, 65), (100, 7e3), (310, 330), (1, 3e9)])
def test_log_axes_have_a_few_plain_numbers(low, high):
    panel = Panel("", "y", {"a": ([0, 1], [low, high])}, log=True)
    (axis,) = figures.curves([panel], "step").axes
    bottom, top = axis.get_ylim()
    ticks = [tick for tick in axis.get_yticks() if bottom <= tick <= top]
    texts = [axis.yaxis.get_major_formatter()(tick, 0) for tick in ticks]
    assert 2 <= len(ticks) <= 12 and len(set(texts)) == len(texts)
    assert [float(text.replace(",", "")) for text in texts] == pytest.approx(ticks)


def contrast(a, b):
    """The contrast of two RGB colors, as WCAG 2.2 defines it."""

    def luminance(color):
        parts = [((x + 0.055) / 1.055) ** 2.4 if x > 0.04045 else x / 12.92 for x in color[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05

    brighter, darker = sorted([luminance(a), luminance(b)], reverse=True)
    return brighter / darker


def test_numbers_can_be_read_on_every_shade():
    for shade in range(256):
        color = matplotlib.colormaps["Blues"](shade)
        ink = matplotlib.colors.to_rgb(figures.choose_ink(color))
        assert contrast(ink, color) >= 4.5
    counts = [[90, 10 * n, 0, 30 - n] for n in range(4)]
    axis = draw_confusion(counts, list("abcd"), "t").axes[0]
    (picture,) = axis.images
    for text in axis.texts:
        j, i = text.get_position()
        color = picture.to_rgba(picture.get_array()[i, j])
        assert contrast(matplotlib.colors.to_rgb(text.get_color()), color) >= 4.5


def test_a_confusion_matrix_counts_the_right_rows_and_fits_on_a_page():
    few, many = (draw_confusion([[9] * n] * n, ["class"] * n, "t") for n in (3, 20))
    assert few.get_figwidth() == pytest.approx(4.0) and many.get_figwidth() < 8
    assert draw_confusion([[9] * 16] * 16, ["class"] * 16, "t").get_figwidth() < 6.6
    assert few.axes[0].get_title() == "t\n81 test rows: 33.3% correct"
    assert [text.get_text() for text in few.axes[0].texts] == ["9"] * 9
