"""Draw figures as files, in one style: curves, and points or bands of seeds.

Figures are made without pyplot, so no backend for a display is loaded. `styled` functions have the
style: importing this module changes no setting.
"""

import io
import math
import re
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from model import POSITIONS
from nets.build import Options

COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777")
FEW_SEEDS = 5  # fewer are drawn as points, without a band
BEST = "best possible, "  # followed by the label of a line, whose color it takes
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
    "grid.alpha": 0.25,
    "font.size": 9,
    "figure.dpi": 150,
    "legend.frameon": False,
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


def line_colors(labels):
    """Return {label: color}: "lr=0.1, rotary" has that of its class, others the rest of COLORS."""
    colors = {}
    for pos in POSITIONS:
        encoding = POSITIONS[pos]
        pattern = rf"(?<!\w)({pos}|{re.escape(encoding.label)})(?!\w)"
        for label in labels:
            if label not in colors and re.search(pattern, label, re.IGNORECASE):
                colors[label] = encoding.color
                break  # a second line of this encoding needs another color
    unused = [color for color in COLORS if color not in colors.values()]
    free = cycle(unused or COLORS)
    return {label: colors.get(label) or next(free) for label in labels}


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
def curves(panels, xlabel):
    """Return a figure of Panels, with one legend for all."""
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / 4)
    figsize = (3 * columns + 1, 2.7 * rows + 0.5)
    figure, axes = new_figure(rows, columns, figsize, squeeze=False)
    labels = []
    for panel in panels:
        labels.extend(panel.lines)
    colors = line_colors(labels)
    handles = {}  # label: its line, in any panel
    for axis, panel in zip(axes.flat, panels):
        draw_panel(axis, panel, xlabel, colors)
        for line, label in zip(*axis.get_legend_handles_labels()):
            handles[label] = line
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3)
    return figure


def draw_panel(axis, panel, xlabel, colors):
    """Draw a Panel. colors: {label: color} of its lines."""
    n_hidden = 0  # first values of each line
    if panel.log and all(len(xs) > 2 and xs[0] == 0 for xs, _ in panel.lines.values()):
        n_hidden = 1
        xlabel = f"{xlabel} ({xlabel} 0 not shown)"
    for label, (xs, ys) in panel.lines.items():
        seeds = np.atleast_2d(ys)[:, n_hidden:]  # (seeds, N)
        style = ".-" if len(xs) < 25 else "-"
        if 1 < len(seeds) < FEW_SEEDS and len(xs) > 1:
            style = "-"  # the seeds are points
        # A legend hides a label that begins with _, hence the space
        options = {"color": colors[label], "label": f" {label}"}
        plot_mean(axis, xs[n_hidden:], seeds, style, limits=panel.limits, **options)
    for (label, y), style in zip(panel.dashed.items(), cycle(("--", ":", "-."))):
        color = colors.get(label.removeprefix(BEST), "0.35")
        axis.axhline(y, color=color, label=f" {label}", linestyle=style, linewidth=0.9)
    if panel.log:
        set_log_scale(axis)
    elif panel.ylabel == "accuracy":
        axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(title=panel.title, xlabel=xlabel, ylabel=panel.ylabel)


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


def plot_mean(axis, xs, seeds, *style, limits=(-math.inf, math.inf), **options):
    """Plot the mean of [ys of each seed], in a band of ± their sample deviation, which ends at the
    limits. Few seeds are points instead: they tell more than their deviation."""
    means = np.mean(seeds, axis=0)
    (line,) = axis.plot(xs, means, *style, **options)
    color = line.get_color()
    if 1 < len(seeds) < FEW_SEEDS:
        for ys in seeds:
            axis.plot(xs, ys, ".", color=color, markersize=3, alpha=0.6)
    elif len(seeds) > 1:
        d = np.std(seeds, axis=0, ddof=1)
        low = np.clip(means - d, *limits)
        high = np.clip(means + d, *limits)
        axis.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
