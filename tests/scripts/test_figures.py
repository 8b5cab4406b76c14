"""Figures: importing changes no setting, one color per encoding, ticks at steps, no spike at 0."""

from types import SimpleNamespace

import matplotlib
import pytest

from lab import figures
from lab.comparison import panels
from lab.comparison.panels import Panel
from model import POSITIONS


@pytest.fixture(autouse=True)
def blank_curves():
    """Draw the figures of runs, which conftest.py leaves empty for other tests."""


def test_drawing_changes_no_setting_of_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)  # as a user may have set
    before = {name: matplotlib.rcParams[name] for name in matplotlib.rcParams}
    curve = ("t", "y", {"alibi": ([1, 2], [3, 4])}, {}, True)
    figures.save(figures.curves([curve], "step"), tmp_path / "x.png")
    figures.confusion([[1, 2], [3, 4]], ["a", "b"], "t")
    panels.draw_over_steps("t", [Panel("p", "y", {"ALiBi": ([1, 2], [3, 4], [1, 1])})], "step")
    assert {name: matplotlib.rcParams[name] for name in matplotlib.rcParams} == before
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_names_are_not_read_as_formulas(tmp_path):
    name = r"lm-$\frac$-0"
    curve = (name, "y", {name: ([1], [2])}, {}, True)
    figures.save(figures.curves([curve], "step"), tmp_path / "curve.png")
    figures.save(figures.confusion([[1, 2], [3, 4]], [name, "b"], name), tmp_path / "confusion.png")


def test_a_new_position_encoding_without_a_name_does_not_end_a_training():
    assert figures.name_positions(SimpleNamespace(pos="random", window=0)) == "random positions"


def test_a_second_font_has_letters_that_the_first_lacks(tmp_path, capsys):
    for fonts, noted in (["STIXSizeOneSym"], True), (["STIXSizeOneSym", "DejaVu Sans"], False):
        with matplotlib.rc_context({"font.family": fonts}):  # as a file matplotlibrc sets it
            figures.save(figures.confusion([[1, 2], [3, 4]], ["я", "б"], "t"), tmp_path / "x.png")
        assert ("note: the font lacks" in capsys.readouterr().out) == noted


def test_a_confusion_matrix_of_many_classes_fits_on_a_page():
    few, many = (figures.confusion([[9] * n] * n, ["class"] * n, "t") for n in (3, 30))
    assert few.get_figwidth() == pytest.approx(4.0) and many.get_figwidth() < 8
    assert few.axes[0].get_title() == "t\n81 test rows: 33.3% correct"
    cell = figures.confusion([[1234] * 30] * 30, ["class"] * 30, "t").get_figwidth() / 30
    assert cell > 0.4  # room for four digits


def test_lines_that_share_a_color_differ_in_style():
    lines = {f"line {i}": ([0, 1], [i, i], [0, 0]) for i in range(1, 13)}
    (axis,) = panels.draw_over_steps("t", [Panel("p", "y", lines)], "step").axes
    drawn = [(line.get_color(), line.get_linestyle()) for line in axis.lines]
    assert len({color for color, _ in drawn}) == 7 and len(set(drawn)) == 12


def test_a_comparison_says_that_it_hides_the_untrained_model():
    for steps, shown in (([0, 50, 100], "step (0 not shown)"), ([50, 75, 100], "step")):
        lines = {"a": (steps, [540, 6, 5], [0, 0, 0])}
        both = [Panel("p", "y", lines, log=log) for log in (True, False)]
        axes = panels.draw_over_steps("t", both, "step").axes
        assert [axis.get_xlabel() for axis in axes] == [shown, "step"]


def test_every_encoding_has_a_name_and_a_color_of_its_own():
    assert set(figures.POSITION_NAMES) == set(figures.POSITION_COLORS) == set(POSITIONS)
    assert len(set(figures.POSITION_COLORS.values())) == len(POSITIONS)
    for pos, name in figures.POSITION_NAMES.items():
        assert figures.line_colors([name]) == {name: figures.POSITION_COLORS[pos]}


def test_lines_of_encodings_have_their_color_in_any_order():
    labels = ["NoPE (3 seeds)", "steps=9, rotary", "alibi", "pos=learned", "ALiBi, window=8"]
    labels += ["other", "third"]
    colors = figures.line_colors(labels)
    expected = [figures.POSITION_COLORS[pos] for pos in ("nope", "rope", "alibi", "learned")]
    assert [colors[label] for label in labels[:4]] == expected
    assert len(set(colors.values())) == len(labels)


def test_ticks_are_evaluation_steps():
    for steps in ([0, 100, 200, 300, 400, 500], [0, 100, 200, 250], [3, 10**6 + 1]):
        assert figures.step_ticks(steps) == steps
    assert figures.step_ticks(range(0, 1501, 150)) == [0, 300, 600, 900, 1200, 1500]
    assert figures.step_ticks(range(1, 21)) == [5, 10, 15, 20]
    assert figures.step_ticks([*range(0, 4001, 200), 4001]) == [0, 1000, 2000, 3000, 4001]
    assert figures.step_ticks(range(0, 501, 100), most=4) == [0, 200, 400, 500]
    assert figures.step_ticks([7]) == [7, 7]


def test_accuracies_are_in_percent_and_losses_are_not():
    line = {"test": ([1, 2], [0.5, 1.0])}
    panels = [("", name, line, {}, False) for name in ("accuracy", "loss")]
    accuracy, loss = (
        axis.yaxis.get_major_formatter() for axis in figures.curves(panels, "epoch").axes
    )
    assert (accuracy(0.5), accuracy(0.555)) == ("50%", "55.5%") and not loss(0.5).endswith("%")


def test_an_untrained_model_does_not_flatten_the_curve():
    steps = [0, 50, 100]
    lines = {"train": (steps, [540, 6, 5]), "best possible, train": (steps, [3, 3, 3])}
    panels = [("spike", "y", lines, {}, True), ("share", "y", lines, {}, False)]
    slow = {"train": (steps, [540, 300, 20])}
    spike, share, slow = figures.curves([*panels, ("slow", "y", slow, {}, True)], "step").axes
    assert list(spike.lines[0].get_xdata()) == [50, 100] and spike.get_ylim()[1] < 50
    assert spike.get_xlabel() == "step (not shown: untrained model at step 0)"
    assert spike.lines[1].get_color() == spike.lines[0].get_color()
    for axis in (share, slow):
        assert list(axis.lines[0].get_xdata()) == [0, 50, 100] and axis.get_xlabel() == "step"
