"""Draw figures as files, in one style: curves, and bands over seeds.

Figures are made without pyplot, so no backend for a display is loaded. `styled` functions have the
style: importing this module changes no setting.
"""

import io
import math
import re
from dataclasses import dataclass, field
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from model import POSITIONS

COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777")
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
# Options that change what the positions are, and that `name_positions` names
POSITION_OPTIONS = (
    "rope_scale",
    "nope_every",
    "random_positions",
    "window",
    "attn_block",
    "global_tokens",
    "random_keys",
)


def styled(grid=True):
    """Use STYLE in a `with` block or a decorated function, then restore matplotlib's settings."""
    return matplotlib.rc_context(STYLE | {"axes.grid": grid})


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
    name = POSITIONS[config.pos].label
    if name.islower():  # not a name of its own, as ALiBi is
        name += " positions"
    for option in POSITION_OPTIONS:
        value = getattr(config, option, 0)
        if value not in (0, "none"):
            name += f", {option.replace('_', ' ')} {value}"
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
        # A legend hides a label that begins with _, hence the space
        plot_mean(axis, xs[n_hidden:], seeds, style, color=colors[label], label=f" {label}")
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


def plot_mean(axis, xs, seeds, *style, **options):
    """Plot the mean of [ys of each seed], in a band of ± their sample deviation."""
    means = np.mean(seeds, axis=0)
    (line,) = axis.plot(xs, means, *style, **options)
    if len(seeds) > 1:
        d = np.std(seeds, axis=0, ddof=1)
        axis.fill_between(xs, means - d, means + d, color=line.get_color(), alpha=0.18, linewidth=0)
