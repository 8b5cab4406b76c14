"""Draw the figures of compare.py: several panels side by side, with one legend below them all.

They have the width of a page with two columns, and are written as .png and as .pdf.
"""

import math
from dataclasses import dataclass, field, replace

from lab.figures import (
    legend_below,
    line_colors,
    new_figure,
    plain_log_ticks,
    step_ticks,
    styled,
    without_untrained,
)

MARKERS = "os^Dv"
DEVIATION = "± standard deviation"


@dataclass
class Panel:
    """One metric of all configurations."""

    title: str
    ylabel: str
    lines: dict  # {label: (xs, means, deviations)}
    levels: dict = field(default_factory=dict)  # horizontal lines: {label: (y, line style)}
    finals: dict = field(default_factory=dict)  # points at the right: {label: (y, deviation)}
    log: bool = False

    @property
    def is_share(self):
        return self.ylabel.endswith("(%)")


@styled()
def draw_over_steps(title, panels, xlabel, lines_are="", finals_are=""):
    """Return a figure of metrics over the training.

    lines_are, finals_are: what the legend says of the lines and of the marked points.
    """
    figure, axes, colors, handles = begin(title, panels)
    shown = [replace(p, lines=without_untrained(p.lines)) if p.log else p for p in panels]
    for axis, panel in zip(axes.flat, shown):
        plot_lines(axis, panel, colors, handles)
        plot_finals(axis, panel, colors)
        if panel.log:
            scale_log(axis, panel)
        axis.set_xticks(step_ticks([x for xs, *_ in panel.lines.values() for x in xs], most=4))
    share_one_scale(axes, panels)
    if lines_are:
        handles[lines_are] = legend_line(color="0.4", linewidth=1.1)
    if any(panel.finals for panel in panels):
        handles[finals_are] = legend_line(color="0.4", marker="*", markersize=7, linestyle="none")
    hidden = [after.lines is not before.lines for after, before in zip(shown, panels)]
    xlabels = [xlabel + " (0 not shown)" * hides_0 for hides_0 in hidden]
    return finish(figure, axes, panels, xlabels, handles)


@styled()
def draw_over_lengths(title, panels, trained, undefined):
    """Return a figure of metrics over the length of evaluation.

    trained: lengths in training. undefined: labels of models that cannot read longer texts.
    """
    figure, axes, colors, handles = begin(title, panels)
    for axis, panel in zip(axes.flat, panels):
        plot_lines(axis, panel, colors, handles)
        for label in undefined:
            xs, means, _ = panel.lines[label]
            cross = dict(marker="x", markersize=6, linestyle="none")
            axis.plot(xs[-1:], means[-1:], color=colors[label], **cross)
            handles["learned positions end here"] = legend_line(color="0.2", **cross)
        for x in trained:
            line = axis.axvline(x, color="0.6", linewidth=3, alpha=0.5, zorder=0)
            handles["length in training"] = line
        scale_log(axis, panel)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({x for xs, *_ in panel.lines.values() for x in xs}))
        axis.xaxis.set_major_formatter("{x:g}")
    return finish(figure, axes, panels, ["evaluation length (tokens)"] * len(panels), handles)


def begin(title, panels):
    """Return a figure, its axes, the color of each label, and an empty legend {label: handle}."""
    rows = math.ceil(len(panels) / 4)
    figure, axes = new_figure(rows, math.ceil(len(panels) / rows), squeeze=False, dpi=250)
    figure.suptitle(title, fontsize=9.5, parse_math=False)
    return figure, axes, line_colors(panels[0].lines), {}


def plot_lines(axis, panel, colors, handles):
    """Plot the lines with bands of ± the deviation, and the horizontal lines."""
    order = list(colors)
    for label, (xs, means, deviations) in panel.lines.items():
        color, marker = colors[label], MARKERS[order.index(label) % len(MARKERS)]
        marker = marker if len(xs) <= 25 else None
        alike = [other for other in order if colors[other] == color]  # more lines than colors
        dash = ("-", (0, (4, 1)), (0, (1, 1)))[alike.index(label) % 3]
        style = dict(color=color, marker=marker, markersize=2.5, linewidth=1.1, linestyle=dash)
        (handles[label],) = axis.plot(xs, means, **style)
        most = 100 if panel.is_share else math.inf
        low = [m - d for m, d in zip(means, deviations)]
        high = [min(m + d, most) for m, d in zip(means, deviations)]
        axis.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
        if any(deviations):
            handles.pop(DEVIATION, None)  # last in the legend
            handles[DEVIATION] = legend_line(color="0.5", linewidth=6, alpha=0.3)
    for label, (y, style) in panel.levels.items():
        handles[label] = axis.axhline(y, color="0.3", linestyle=style, linewidth=0.9)


def plot_finals(axis, panel, colors):
    """Plot the marked points side by side, to the right of the lines."""
    steps = [x for xs, *_ in panel.lines.values() for x in xs]
    span = max(steps) - min(steps)
    for i, (label, (y, deviation)) in enumerate(panel.finals.items()):
        x = max(steps) + span * (0.08 + 0.15 * i / len(panel.finals))
        style = dict(color=colors[label], fmt="*", elinewidth=0.9)
        axis.errorbar([x], [y], [deviation], **style)


def scale_log(axis, panel):
    """Give the y axis a log scale that shows all lines and levels.

    The top is at least 30% above the bottom, so that small differences look small.
    """
    shown = [
        y
        for _, means, deviations in panel.lines.values()
        for m, d in zip(means, deviations)
        for y in (max(m - d, m / 2), m + d)
    ]
    shown += [y for y, _ in panel.levels.values()]
    low, high = min(shown), max(shown)
    margin = max((high / low) ** 0.05 * 1.02, (1.3 * low / high) ** 0.5)
    axis.set_yscale("log")
    axis.set_ylim(low / margin, high * margin)
    plain_log_ticks(axis)


def share_one_scale(axes, panels):
    """Give all panels of shares one scale, so that they can be compared."""
    shares = [axis for axis, panel in zip(axes.flat, panels) if panel.is_share]
    ends = [end for axis in shares for end in axis.get_ylim()]
    for axis in shares:
        axis.set_ylim(max(min(ends) - 2, 0), min(max(ends), 102))  # room for the lowest point


def legend_line(**style):
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def finish(figure, axes, panels, xlabels, handles):
    """Label the axes, add the legend, and return the figure."""
    rows, columns = axes.shape
    for i, (axis, panel) in enumerate(zip(axes.flat, panels)):
        axis.set_title(panel.title, fontsize=9, parse_math=False)
        axis.set_xlabel(xlabels[i] if i + columns >= len(panels) else "", fontsize=8)
        repeated = i % columns and panel.ylabel == panels[i - 1].ylabel
        axis.set_ylabel("" if repeated else panel.ylabel, fontsize=8)
        axis.tick_params(labelsize=7.5)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()

    figure.set_figwidth(7)
    below = legend_below(figure, handles.values(), handles)
    figure.set_figheight(1.8 * rows + 0.17 * below + 0.35)
    return figure
