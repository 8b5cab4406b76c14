"""Draw figures as files, in one style: curves, and points or bands of seeds.

Figures are made without pyplot, so no backend for a display is loaded. `styled` functions have the
style: importing this module changes no setting.
"""

import io
import math
import re
import sys
import textwrap
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from model import POSITIONS
from nets.build import Options

WIDTH = 6.5  # inches of a figure, the text width of a page: figures are printed as they are
PANEL = 2.1  # inches that a panel of `curves` needs at least
COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777")
FEW_SEEDS = 5  # fewer are drawn as points, without a band
# Beside colors, which some readers cannot tell apart: of the encodings, in the order of POSITIONS
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "p", "h", "*", "d")
DASHES = ("-", (0, (6, 1.5)), (0, (3, 1)), (0, (6, 1, 1, 1)), (0, (1.5, 0.8)))
N_MARKS = 8  # markers on a line of many points
BEST = "best possible, "  # followed by the label of a line, whose color it takes
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "grid.alpha": 0.25,
    "font.size": 8,  # of titles and axes; the least is 7 points
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 3,  # shows the dashes
    "figure.dpi": 150,
    "savefig.pad_inches": 0.0417,  # as constrained layout leaves, so that the width is kept
    "text.usetex": False,  # a folder's name may contain $
    "text.parse_math": False,
    "pdf.fonttype": 42,  # TrueType; many conferences refuse Type 3
}
FALLBACK_FONTS = (  # of Linux, Windows and macOS, for letters that matplotlib's own font lacks
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
    *("Microsoft YaHei", "Malgun Gothic", "Hiragino Sans GB", "Arial Unicode MS"),
    *("Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Khmer", "Nirmala UI", "Leelawadee UI"),
    *("Noto Emoji", "Segoe UI Emoji", "Symbola"),
)
# Options that change what the positions are, and that `name_positions` names
POSITION_OPTIONS = (
    "alibi_heads",
    "hard_alibi",
    "rope_share",
    "rope_speeds",
    "rope_scale",
    "nope_every",
    "random_positions",
    "window",
    "attn_block",
    "global_tokens",
    "random_keys",
)


def choose_ink(color):
    """Return black or white, whichever has more contrast with an RGB color (numbers from 0 to 1),
    by the luminance of WCAG 2.2. The contrast is then at least 4.5."""
    rgb = np.array(color[:3])
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    if luminance > 0.179:  # where both contrasts are the same
        return "black"
    return "white"


@contextmanager
def styled(grid=True):
    """Use STYLE in a `with` block or a decorated function, then restore matplotlib's settings. One
    note on stderr takes the place of matplotlib's warnings of letters that no font has."""
    fonts = [*matplotlib.rcParams["font.family"], *installed_fallbacks()]
    show = warnings.showwarning

    def show_or_note(message, *details, **options):
        if "missing from" in str(message):
            note_missing_letters()
        else:
            show(message, *details, **options)

    with matplotlib.rc_context(STYLE | {"axes.grid": grid, "font.family": fonts}):
        with warnings.catch_warnings():
            warnings.filterwarnings("always", "Glyph .* missing from")
            warnings.showwarning = show_or_note
            yield


@cache
def installed_fallbacks():
    """Return those FALLBACK_FONTS that are installed; matplotlib warns of others."""
    installed = fontManager.get_font_names()
    return [name for name in FALLBACK_FONTS if name in installed]


@cache
def note_missing_letters():
    """Print a note that figures have boxes in place of letters, once in a process."""
    remedy = f"install Noto Sans CJK or Noto Emoji, and delete {matplotlib.get_cachedir()}"
    print(f"note: no font has some letters, drawn as boxes; {remedy}", file=sys.stderr)


class Picture(Figure):
    """A matplotlib Figure that a notebook shows as a picture."""

    def _repr_png_(self):
        picture = io.BytesIO()
        save(self, picture)
        return picture.getvalue()


def new_figure(rows=1, columns=1, figsize=None, **options):
    """Return a figure and its axes as pyplot.subplots does, without pyplot."""
    figure = Picture(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


@styled()
def save(figure, path):
    """Write a figure; the ending of the path gives the format."""
    figure.savefig(path, bbox_inches="tight")


def name_positions(config):
    """Return the positions of a Config or of flags: "learned positions", "ALiBi, window 8"."""
    if getattr(config, "body", "") == "lstm":
        return "LSTM"
    name = POSITIONS[config.pos].label
    if name.islower():  # not a name of its own, as ALiBi is
        name += " positions"
    for option in POSITION_OPTIONS:
        default = getattr(Options, option)
        value = getattr(config, option, default)
        if value == default:
            continue
        name += f", {option.replace('_', ' ')}"
        if value is not True:
            name += f" {value}"
    if getattr(config, "restart_ids", ()):
        name += ", coupled"
    return name


def line_styles(labels):
    """Return {label: {"color", "marker", "linestyle"}}: "lr=0.1, rotary" has those of its class,
    others the rest."""
    numbers = {}  # label: the number of its encoding
    for number, pos in enumerate(POSITIONS):
        pattern = rf"(?<!\w)({pos}|{re.escape(POSITIONS[pos].label)})(?!\w)"
        for label in labels:
            if label not in numbers and re.search(pattern, label, re.IGNORECASE):
                numbers[label] = number
                break  # a second line of this encoding needs other marks
    encodings = list(POSITIONS.values())
    used = [encodings[number].color for number in numbers.values()]
    colors = cycle([color for color in COLORS if color not in used] or COLORS)
    unused = [number for number in range(len(MARKERS)) if number not in numbers.values()]
    others = cycle(unused or range(len(MARKERS)))
    styles = {}
    for label in labels:
        if label in styles:
            continue
        if label in numbers:
            number = numbers[label]
            color = encodings[number].color
        else:
            number = next(others)
            color = next(colors)
        marker = MARKERS[number % len(MARKERS)]
        styles[label] = dict(color=color, marker=marker, linestyle=DASHES[number % len(DASHES)])
    return styles


@dataclass
class Panel:
    """A line chart of `curves`."""

    title: str
    ylabel: str
    lines: dict  # label: (xs, ys), or (xs, [ys of each seed])
    dashed: dict = field(default_factory=dict)  # label: y of a horizontal line
    log: bool = False  # logarithmic y axis, without step 0: untrained models flatten the rest
    limits: tuple = (-math.inf, math.inf)  # least and largest possible y, where bands end


@styled()
def curves(panels, xlabel, width=WIDTH):
    """Return a figure of Panels, with one legend for all. width: in inches."""
    columns = count_columns(len(panels), width)
    rows = math.ceil(len(panels) / columns)
    height = max(1.9, 0.72 * width / columns)  # of a panel
    if columns == 1:
        height = 0.5 * width
    figure, axes = new_figure(rows, columns, (width, rows * height), squeeze=False)
    labels = []
    for panel in panels:
        labels.extend(panel.lines)
    styles = line_styles(labels)
    for axis, panel in zip(axes.flat, panels):
        draw_panel(axis, panel, xlabel, styles)
        title = textwrap.fill(panel.title, int(13 * width / columns))
        axis.set_title(title)
    free = axes.flat[len(panels) :]
    draw_legend(figure, free, panels, styles)
    return figure


def count_columns(n_panel, width):
    """Return how many panels stand side by side, at most three; four make a square."""
    most = max(1, min(3, int(width / PANEL)))
    if n_panel == 4:
        most = min(2, most)
    return min(n_panel, most)


def draw_legend(figure, free, panels, styles):
    """Draw the legend of all panels into the cells that are free, or below the panels."""
    handles = {}  # label: a line that looks as in the panels
    for label, style in styles.items():
        # A legend hides a label that begins with _, hence the space
        handles[label] = Line2D([], [], markersize=4, label=f" {label}", **style)
    for panel in panels:
        for label, style in dashed_styles(panel, styles).items():
            handles[label] = Line2D([], [], label=f" {label}", **style)
    longest = max((len(label) for label in handles), default=0)  # letters
    legend_fits = len(free) > 0 and len(handles) <= 12 and longest <= 26
    for axis in free:
        axis.set_axis_off()
    if legend_fits:
        free[0].legend(handles=list(handles.values()), loc="center left")
    else:
        n_across = int(figure.get_figwidth() / (0.6 + 0.06 * longest))
        n_across = min(max(1, n_across), 4)
        place = dict(loc="outside lower center", ncols=n_across)
        figure.legend(handles=list(handles.values()), **place)
        n_lines = math.ceil(len(handles) / n_across)
        figure.set_figheight(figure.get_figheight() + 0.17 * n_lines)


def dashed_styles(panel, styles):
    """Return {label: options of its line} of a Panel's horizontal lines."""
    options = {}
    for label, dash in zip(panel.dashed, cycle(("--", ":", "-."))):
        color = "0.35"
        if label.removeprefix(BEST) in styles:
            color = styles[label.removeprefix(BEST)]["color"]
        options[label] = dict(color=color, linestyle=dash, linewidth=0.9)
    return options


def draw_panel(axis, panel, xlabel, styles):
    """Draw a Panel. styles: see `line_styles`."""
    n_hidden = 0  # first values of each line
    if panel.log and all(len(xs) > 2 and xs[0] == 0 for xs, _ in panel.lines.values()):
        n_hidden = 1
        xlabel = f"{xlabel} ({xlabel} 0 not shown)"
    # Lines that coincide are all seen: dashed ones are above solid ones, narrow above wide ones
    widths = np.linspace(min(2.2, 1 + 0.2 * len(panel.lines)), 1.2, len(panel.lines))
    for number, (label, (xs, ys)) in enumerate(panel.lines.items()):
        seeds = np.atleast_2d(ys)[:, n_hidden:]  # (seeds, N)
        options = dict(styles[label], label=f" {label}", linewidth=widths[number], markersize=3.5)
        options["zorder"] = 2 if styles[label]["linestyle"] == "-" else 2.1
        step = math.ceil(len(xs) / N_MARKS)
        options["markevery"] = (number % step, step)
        plot_mean(axis, xs[n_hidden:], seeds, limits=panel.limits, **options)
    for label, options in dashed_styles(panel, styles).items():
        axis.axhline(panel.dashed[label], label=f" {label}", **options)
    ylabel = panel.ylabel
    if panel.log:
        set_log_scale(axis)
        ylabel = f"{ylabel} (log)"
    elif panel.ylabel == "accuracy":
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel=xlabel, ylabel=ylabel)


def set_lengths(axis, lengths):
    """Make the x axis, of lengths, logarithmic with these lengths as ticks; name it so."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(lengths), sorted(lengths))
    axis.minorticks_off()
    axis.set_xlabel(f"{axis.get_xlabel()} (log)")


def set_log_scale(axis):
    """Make the y axis logarithmic, with a few plain numbers as ticks."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low >= 200:
        locator = LogLocator(subs=(1,))
    elif high / low > 8:
        locator = LogLocator(subs=(1, 2, 5))
    else:
        locator = MaxNLocator(5)
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter("{x:,.6g}")


def plot_mean(axis, xs, seeds, limits=(-math.inf, math.inf), **options):
    """Plot the mean of [ys of each seed], in a band of ± their sample deviation, which ends at the
    limits. Few seeds are points instead: they tell more than their deviation."""
    means = np.mean(seeds, axis=0)
    are_points = 1 < len(seeds) < FEW_SEEDS
    options_of_mean = dict(options)
    if are_points and len(xs) > 1:
        options_of_mean["marker"] = "None"  # the seeds are the markers
    (line,) = axis.plot(xs, means, **options_of_mean)
    color = line.get_color()
    if are_points:
        points = {"marker": "."} | options | {"linestyle": "none", "alpha": 0.6, "label": None}
        if len(xs) < 25:
            points["markevery"] = None  # there is room for all
        for ys in seeds:
            axis.plot(xs, ys, **points | {"color": color, "markersize": 3})
    elif len(seeds) > 1:
        d = np.std(seeds, axis=0, ddof=1)
        low = np.clip(means - d, *limits)
        high = np.clip(means + d, *limits)
        axis.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
