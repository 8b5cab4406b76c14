"""Draw figures as files, in one style: curves, and bands over seeds.

Figures are made without pyplot, so no backend for a display is loaded. `styled` functions have the
style: importing this module changes no setting.
"""

import io
import re
from itertools import cycle

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from model import POSITIONS

COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777")
BEST = "best possible, "  # followed by the label of a line, whose color it takes
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "grid.alpha": 0.25}
STYLE |= {"font.size": 9, "figure.dpi": 150, "legend.frameon": False}
STYLE |= {"text.usetex": False, "text.parse_math": False}  # a folder's name may contain $
STYLE |= {"pdf.fonttype": 42}  # TrueType; many conferences refuse Type 3
STYLE |= {"axes.prop_cycle": f"cycler('color', {list(COLORS)})"}


def styled(grid=True):
    """Use STYLE in a `with` block or a decorated function, then restore matplotlib's settings."""
    return matplotlib.rc_context(STYLE | {"axes.grid": grid})


class Picture(Figure):
    """A matplotlib Figure that a notebook shows as a picture."""

    def _repr_png_(self):
        save(self, picture := io.BytesIO())
        return picture.getvalue()


def new_figure(rows=1, columns=1, figsize=None, **more):
    """Return a figure and its axes as pyplot.subplots does, without pyplot."""
    figure = Picture(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


@styled()
def save(figure, path):
    """Write a figure; the ending of the path gives the format."""
    figure.savefig(path, bbox_inches="tight")


def name_positions(config):
    """Return the positions of a Config or of flags: "learned positions", "ALiBi, window 8"."""
    label, told = POSITIONS[config.pos].label, ""
    options = "rope_scale nope_every random_positions window attn_block global_tokens random_keys"
    for name in options.split():
        if (value := getattr(config, name, 0)) not in (0, "none"):
            told += f", {name.replace('_', ' ')} {value}"
    return label + " positions" * label.islower() + told


def line_colors(labels):
    """Return {label: color}: "lr=0.1, rotary" has that of its class, others the rest of COLORS."""
    colors = {}
    for pos in POSITIONS:
        positions = POSITIONS[pos]
        name = rf"(?<!\w)({pos}|{re.escape(positions.label)})(?!\w)"
        named = [label for label in labels if re.search(name, label, re.I) and label not in colors]
        colors |= dict.fromkeys(named[:1], positions.color)
    free = cycle([color for color in COLORS if color not in colors.values()] or COLORS)
    return {label: colors.get(label) or next(free) for label in labels}


@styled()
def curves(panels, xlabel):
    """Return a figure of one line chart per panel.

    panels: [(title, ylabel, {label: (xs, ys or [ys of each seed])}, {label: y of a dashed line},
    log), ...]. A log axis leaves out step 0: an untrained model's perplexity flattens the rest.
    """
    columns, rows = min(len(panels), 4), -(-len(panels) // 4)
    figure, axes = new_figure(rows, columns, (3 * columns + 1, 2.7 * rows + 0.5), squeeze=False)
    colors, handles = line_colors([label for _, _, lines, *_ in panels for label in lines]), {}
    for axis, (title, ylabel, lines, dashed, log) in zip(axes.flat, panels):
        skip = int(log and all(len(xs) > 2 and xs[0] == 0 for xs, _ in lines.values()))
        for label, (xs, ys) in lines.items():  # as " label": a legend hides what begins with _
            ys, style = np.atleast_2d(ys)[:, skip:], ".-" if len(xs) < 25 else "-"
            over_seeds(axis, xs[skip:], ys, style, color=colors[label], label=f" {label}")
        for (label, y), style in zip(dashed.items(), cycle(("--", ":", "-."))):
            color = colors.get(label.removeprefix(BEST), "0.35")
            axis.axhline(y, color=color, label=f" {label}", linestyle=style, linewidth=0.9)
        if log:  # with a few plain numbers as ticks
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            some = LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,))
            axis.yaxis.set_major_locator(some if high / low > 8 else MaxNLocator(5))
            axis.yaxis.set_minor_locator(NullLocator())
            axis.yaxis.set_major_formatter("{x:,.6g}")
        elif ylabel == "accuracy":
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(title=title, xlabel=xlabel + f" ({xlabel} 0 not shown)" * skip, ylabel=ylabel)
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3)
    return figure


def over_seeds(axis, xs, seeds, *style, **more):
    """Plot the mean of [ys of each seed], in a band of ± their sample deviation."""
    means = np.mean(seeds, axis=0)
    (line,) = axis.plot(xs, means, *style, **more)
    if len(seeds) > 1:
        d = np.std(seeds, axis=0, ddof=1)
        axis.fill_between(xs, means - d, means + d, color=line.get_color(), alpha=0.18, linewidth=0)
