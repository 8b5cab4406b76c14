"""The few kinds of figure the scripts draw, all in one style and all to files: no display is needed."""

import math
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)
from matplotlib.patches import Patch  # noqa: E402

plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "figure.dpi": 150,
        "savefig.bbox": "tight",
        "legend.frameon": False,
        "axes.prop_cycle": plt.cycler(
            color=["#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777"]
        ),
    }
)


def curves(path, panels, xlabel, room=0.0):
    """One line chart a panel.

    panels: [(title, ylabel, {label: (xs, ys) or (xs, ys, spread)}, {dashed line's label: y}, log), ...].
    What is labelled "floor X" has the colour of X, dashed. room: share of a log panel's height to be left free at the
    top, for a long legend.
    """
    figure, axes = plt.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False, layout="constrained"
    )
    for axis, (title, ylabel, lines, dashed, log) in zip(axes[0], panels):
        colours = {}
        for i, (label, (xs, ys, *spread)) in enumerate(lines.items()):
            floor_of = colours.get(label.removeprefix("floor "))
            style = (
                dict(color=floor_of, linestyle="--", linewidth=0.9)
                if floor_of
                else dict(marker="o" if len(xs) < 25 else None, markersize=3, linewidth=1.4)
            )
            (line,) = axis.plot(xs, ys, label=label, **style)
            colours[label] = line.get_color()
            if spread:
                axis.fill_between(
                    xs,
                    [y - s for y, s in zip(ys, spread[0])],
                    [y + s for y, s in zip(ys, spread[0])],
                    color=line.get_color(),
                    alpha=0.18,
                    linewidth=0,
                )
        for i, (label, y) in enumerate(dashed.items()):
            colour = colours.get(label.removeprefix("floor ")) or (
                f"C{i}" if len(dashed) == len(lines) else "0.35"
            )
            axis.axhline(y, color=colour, linestyle="--", linewidth=0.9, label=label)
        if log:
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            axis.set_ylim(low, low * (high / low) ** (1 / (1 - room)))
            plain_log_ticks(axis)
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(7, integer=True))
        axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axis.legend(fontsize=8)
    save(figure, path)


def compared(path, panels, xlabel, trained=None, ending=()):
    """Panels for the full width of a two-column page, with one legend below them all; a .png, and a .pdf beside it.

    panels: [(title, ylabel, {label: (xs, means, deviations)}, {label: (y, line style)}, log), ...]; the second
    dictionary is of horizontal lines. trained: x is a length on a log scale, and these are the lengths of training;
    ending: labels of lines that cannot go on where they end.
    """
    rows = -(-len(panels) // 4)
    columns = -(-len(panels) // rows)
    figure, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained", dpi=250)
    labels = list(dict.fromkeys(label for panel in panels for label in panel[2]))
    handles, extra, before = {}, {}, None
    for i, (axis, (title, ylabel, lines, levels, log)) in enumerate(zip(axes.flat, panels)):
        for label, (xs, means, deviations) in lines.items():
            colour, marker = f"C{labels.index(label) % 7}", "os^Dv"[labels.index(label) % 5]
            (handles[label],) = axis.plot(
                xs,
                means,
                color=colour,
                marker=marker if len(xs) <= 25 else None,
                markersize=2.5,
                linewidth=1.1,
            )
            most = (
                100 if ylabel.endswith("(%)") else math.inf
            )  # a deviation may reach beyond, a share cannot
            axis.fill_between(
                xs,
                [m - d for m, d in zip(means, deviations)],
                [min(m + d, most) for m, d in zip(means, deviations)],
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
            if label in ending:
                (extra["not defined beyond its table"],) = axis.plot(
                    xs[-1:], means[-1:], color="0.2", marker="x", markersize=6, linestyle="none"
                )
            if any(deviations):
                extra["± standard deviation"] = Patch(color="0.5", alpha=0.3, linewidth=0)
        for label, (y, style) in levels.items():
            handles[label] = axis.axhline(y, color="0.3", linestyle=style, linewidth=0.9)
        for x in trained or ():
            extra["length in training"] = axis.axvline(
                x, color="0.6", linewidth=3, alpha=0.5, zorder=0
            )
        if log:
            # An untrained model's perplexity is the size of the vocabulary; shown whole, it would flatten all that follows.
            seen = [
                y
                for xs, *pair in lines.values()
                for x, m, d in zip(xs, *pair)
                if trained or x >= max(xs) / 4
                for y in (max(m - d, m / 2), m + d)
            ]
            seen += [y for y, _ in levels.values()]
            axis.set_yscale("log")
            # Small differences stay small
            margin = max(
                (max(seen) / min(seen)) ** 0.05 * 1.02, (1.3 * min(seen) / max(seen)) ** 0.5
            )
            axis.set_ylim(min(seen) / margin, max(seen) * margin * (1 if trained else 1.5))
            plain_log_ticks(axis)
        elif ylabel.endswith("(%)"):
            axis.set_ylim(max(axis.get_ylim()[0], 0), min(axis.get_ylim()[1], 102))
        if trained is None:
            axis.xaxis.set_major_locator(
                matplotlib.ticker.MaxNLocator(4, steps=[1, 2, 5, 10], integer=True)
            )
        else:
            axis.set_xscale("log", base=2)
            axis.set_xticks(sorted({x for xs, *_ in lines.values() for x in xs}))
            axis.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
            axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axis.set_title(title, fontsize=9, parse_math=False)
        axis.set_xlabel(xlabel if i + columns >= len(panels) else "", fontsize=8)
        axis.set_ylabel(ylabel if i % columns == 0 or ylabel != before else "", fontsize=8)
        axis.tick_params(labelsize=7.5)
        before = ylabel
    shares = [axis for axis, panel in zip(axes.flat, panels) if panel[1].endswith("(%)")]
    ends = [end for axis in shares for end in axis.get_ylim()]
    for (
        axis
    ) in shares:  # one scale, so that a share in one panel can be compared with that in another
        axis.set_ylim(min(ends), max(ends))
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    handles |= extra
    across = max(
        1, min(len(handles), int(7 / (0.056 * max(map(len, handles)) + 0.6)))
    )  # a letter is about 0.056 inch wide
    legend = figure.legend(
        handles.values(), handles, loc="outside lower center", fontsize=8, ncols=across
    )
    figure.set_size_inches(7, 1.8 * rows + 0.17 * math.ceil(len(handles) / across) + 0.15)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in a folder's name is a $
    figure.savefig(path.with_suffix(".pdf"))
    save(figure, path)


def over_seeds(axis, xs, seeds, **style):
    """The mean of several seeds' lines as one line, with a band of ± sample standard deviation. seeds: a list of ys for
    each. Returns the means."""
    means = [statistics.fmean(ys) for ys in zip(*seeds)]
    (line,) = axis.plot(xs, means, **style)
    if len(seeds) > 1:
        deviations = [statistics.stdev(ys) for ys in zip(*seeds)]
        axis.fill_between(
            xs,
            [m - d for m, d in zip(means, deviations)],
            [m + d for m, d in zip(means, deviations)],
            color=line.get_color(),
            alpha=0.18,
            linewidth=0,
        )
    return means


def plain_log_ticks(axis):
    """About five ticks on a log y axis, written as plain numbers; its limits must be final."""
    low, high = axis.get_ylim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        ticks = [
            tick
            for tick in (digit * 10.0**power for power in powers for digit in digits)
            if low <= tick <= high
        ]
        if len(ticks) <= 6:
            break
    if len(ticks) < 3:
        ticks = [
            tick
            for tick in matplotlib.ticker.MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
            if low <= tick <= high
        ]
    axis.set_yticks(ticks)
    axis.set_ylim(low, high)
    axis.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axis.yaxis.set_major_formatter(
        matplotlib.ticker.FuncFormatter(
            lambda y, _: f"{y:.0e}" if y >= 1e6 else f"{y:,.0f}" if y >= 1000 else f"{y:.4g}"
        )
    )


def confusion(path, counts, classes):
    """counts[i][j]: how many rows of true class i were given class j; colours are shares of the row."""
    figure, axis = plt.subplots(figsize=(0.8 * len(classes) + 1.6, 0.8 * len(classes) + 0.8))
    axis.imshow(
        [[n / max(1, sum(row)) for n in row] for row in counts], cmap="Blues", vmin=0, vmax=1
    )
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            axis.text(
                j, i, n, ha="center", va="center", color="white" if n > 0.5 * sum(row) else "black"
            )
    axis.set(
        xticks=range(len(classes)),
        yticks=range(len(classes)),
        xticklabels=classes,
        yticklabels=classes,
        xlabel="predicted class",
        ylabel="true class",
        title=f"Test rows, {sum(row[i] for i, row in enumerate(counts)) / max(1, sum(map(sum, counts))):.1%} right",
    )
    axis.grid(False)
    save(figure, path)


def save(figure, path):
    """Write and close a figure; the format follows the file's ending."""
    figure.savefig(path)
    plt.close(figure)
