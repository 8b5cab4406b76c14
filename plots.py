"""The few kinds of figure the scripts draw, all in one style and all to files: no display is needed."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend must be chosen first)

plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                     "grid.alpha": 0.25, "figure.dpi": 150, "savefig.bbox": "tight", "legend.frameon": False,
                     "axes.prop_cycle": plt.cycler(color=["#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777"])})


def curves(path, panels, xlabel):
    """One line chart a panel. panels: [(title, ylabel, {label: (xs, ys) or (xs, ys, spread)}, {dashed line's label: y}, log), ...]."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False)
    for axis, (title, ylabel, lines, dashed, log) in zip(axes[0], panels):
        for i, (label, (xs, ys, *spread)) in enumerate(lines.items()):
            (line,) = axis.plot(xs, ys, label=label, marker="o" if len(xs) < 25 else None, markersize=3, linewidth=1.4)
            if spread:
                axis.fill_between(xs, [y - s for y, s in zip(ys, spread[0])], [y + s for y, s in zip(ys, spread[0])],
                                  color=line.get_color(), alpha=0.18, linewidth=0)
        for i, (label, y) in enumerate(dashed.items()):
            axis.axhline(y, color=f"C{i}" if len(dashed) == len(lines) else "0.35", linestyle="--", linewidth=0.9, label=label)
        if log:
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 10 else f"{y:g}"))
            low, high = axis.get_ylim()
            if high / low < 30:
                axis.yaxis.set_minor_formatter(matplotlib.ticker.FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 10 else f"{y:g}"))
        axis.set(title=title, xlabel=xlabel, ylabel=ylabel)
        axis.legend(fontsize=8)
    save(figure, path)


def confusion(path, counts, classes):
    """counts[i][j]: how many rows of true class i were given class j; colours are shares of the row."""
    figure, axis = plt.subplots(figsize=(0.8 * len(classes) + 1.6, 0.8 * len(classes) + 0.8))
    axis.imshow([[n / max(1, sum(row)) for n in row] for row in counts], cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            axis.text(j, i, n, ha="center", va="center", color="white" if n > 0.5 * sum(row) else "black")
    axis.set(xticks=range(len(classes)), yticks=range(len(classes)), xticklabels=classes, yticklabels=classes,
             xlabel="given class", ylabel="true class", title="Test rows")
    axis.grid(False)
    save(figure, path)


def save(figure, path):
    """Write and close a figure; the format follows the file's ending."""
    figure.savefig(path)
    plt.close(figure)
