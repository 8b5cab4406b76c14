"""Draw the figures of all scripts, in one style, as files. No display is needed.

Importing this module changes no setting of matplotlib. Figures are made without pyplot, and the
style is active only inside functions decorated with `styled`.
"""

import contextlib
import io
import math
import re
import warnings

import numpy as np

COLORS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777")
POSITION_COLORS = {
    "learned": "#4477AA",
    "sinusoidal": "#66CCEE",
    "alibi": "#EE6677",
    "rope": "#228833",
    "nope": "#777777",
}
POSITION_NAMES = {
    "learned": "learned",
    "sinusoidal": "sinusoidal",
    "alibi": "ALiBi",
    "rope": "rotary",
    "nope": "NoPE",
}
BEST = "best possible, "  # followed by the label of a line, whose color it takes
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.25,
    "figure.dpi": 150,
    "pdf.fonttype": 42,  # TrueType; many conferences refuse Type 3
    "legend.frameon": False,
    "text.usetex": False,  # names such as train_lm are not LaTeX
    "axes.prop_cycle": f"cycler('color', {list(COLORS)})",
}


def name_positions(config):
    """Return the positions of a Config or of flags: "learned positions", "ALiBi, window 8"."""
    name = POSITION_NAMES.get(config.pos, config.pos)
    window = f", window {config.window}" if config.window else ""
    return name + " positions" * name.islower() + window


@contextlib.contextmanager
def styled(grid=True):
    """Use STYLE in a `with` block or a decorated function, then restore matplotlib's settings."""
    import matplotlib

    with matplotlib.rc_context(STYLE | {"axes.grid": grid}):
        yield


def make_figure(**more):
    """Return an empty matplotlib Figure, made without pyplot. A notebook shows it as a picture."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        @styled()
        def savefig(self, *args, bbox_inches="tight", **more):
            super().savefig(*args, bbox_inches=bbox_inches, **more)

        def _repr_png_(self):
            picture = io.BytesIO()
            save(self, picture)
            return picture.getvalue()

    return Picture(**more)


def new_figure(rows=1, columns=1, figsize=None, dpi=None, **more):
    """Return a figure and its axes as pyplot.subplots does, without pyplot."""
    figure = make_figure(figsize=figsize, layout="constrained", dpi=dpi)
    return figure, figure.subplots(rows, columns, **more)


def save(figure, path):
    """Write a figure; the ending of the path gives the format."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph")
        figure.savefig(path)
    if any("Glyph" in str(warning.message) for warning in caught):
        print(
            "note: the font lacks some letters of a figure, which are drawn as boxes; to use the "
            "installed font FONT for them, write the line `font.family: DejaVu Sans, FONT` into "
            "a file matplotlibrc in this folder"
        )


def line_colors(labels):
    """Return {label: color}.

    A label that names a position encoding ("ALiBi (3 seeds)", "steps=500, rotary") gets the
    color of that encoding. If several labels name the same one, only the first gets it. The other
    labels share the remaining colors.
    """
    names = {name.lower().split()[0]: pos for pos, name in POSITION_NAMES.items()}
    known = POSITION_COLORS | {word: POSITION_COLORS[pos] for word, pos in names.items()}
    colors = {}
    for label in labels:
        words = re.split("[ ,=]+", label.lower())
        color = next((known[word] for word in words if word in known), None)
        if color and color not in colors.values():
            colors[label] = color
    free = [color for color in COLORS if color not in colors.values()]
    free = sorted(free, key=lambda color: color in POSITION_COLORS.values())  # theirs come last
    others = [label for label in labels if label not in colors]
    return colors | {label: free[i % len(free)] for i, label in enumerate(others)}


def step_ticks(xs, most=6):
    """Return at most `most` of the evaluation steps xs: multiples of the distance between two, and
    the last."""
    xs = sorted(set(xs))
    gap = min((b - a for a, b in zip(xs, xs[1:-1])), default=1)
    room = (xs[-1] - xs[0]) / most / 2  # labels that are closer would overlap
    for factor in (digit * 10**power for power in range(9) for digit in (1, 2, 5)):
        ticks = [x for x in xs if x % (factor * gap) == 0 and xs[-1] - x >= room] + xs[-1:]
        if len(ticks) <= most and all(b - a >= room for a, b in zip(ticks, ticks[1:])):
            break
    return ticks if len(ticks) > 1 else [xs[0], xs[-1]]


def without_untrained(lines):
    """Return {label: (xs, ys, ...)} without step 0 if that would take more than a third of a log
    axis, else the same lines.

    An untrained model's perplexity is about the size of the vocabulary.
    """
    if not all(len(xs) > 2 and xs[0] == 0 for xs, *_ in lines.values()):
        return lines
    first = max(ys[0] for _, ys, *_ in lines.values())
    rest = [y for _, ys, *_ in lines.values() for y in ys[1:]]
    if (first / max(rest)) ** 3 <= first / min(rest):
        return lines
    return {label: tuple(part[1:] for part in line) for label, line in lines.items()}


@styled()
def curves(panels, xlabel):
    """Return a figure of one line chart per panel.

    panels: [(title, ylabel, {label: (xs, ys)}, {label: y of a dashed line}, log), ...]. BEST
    and the label of a line has its color, dashed.
    """
    figure, axes = new_figure(1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False)
    for axis, (title, ylabel, whole, dashed, log) in zip(axes[0], panels):
        lines = without_untrained(whole) if log else whole
        floors = {BEST + label for label in lines}
        colors = line_colors([label for label in lines if label not in floors])
        dash = dict(linestyle="--", linewidth=0.9)
        for label, (xs, ys) in lines.items():
            solid = dict(marker="o" if len(xs) < 25 else None, markersize=3, linewidth=1.4)
            style = dash if label in floors else solid
            color = colors.get(label) or colors[label.removeprefix(BEST)]
            axis.plot(xs, ys, label=label, color=color, **style)
        for label, y in dashed.items():
            color = colors.get(label.removeprefix(BEST), "0.35")
            axis.axhline(y, color=color, label=label, **dash)
        if log:
            axis.set_yscale("log")
            plain_log_ticks(axis)
        elif ylabel == "accuracy":
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}%")
        axis.set_xticks(step_ticks([x for xs, *_ in lines.values() for x in xs]))
        note = f" (not shown: untrained model at {xlabel} 0)" if lines is not whole else ""
        axis.set(xlabel=xlabel + note, ylabel=ylabel)
        axis.set_title(title, parse_math=False)  # a folder's name may contain $
        below = dict(loc="upper center", bbox_to_anchor=(0.5, -0.19), ncols=2)
        show_dollars(axis.legend(fontsize=8, **below if len(lines) + len(dashed) > 3 else {}))
    return figure


def over_seeds(axis, xs, seeds, **style):
    """Plot the mean over seeds with a band of ± the sample standard deviation; return the means.

    seeds: one list of ys per seed.
    """
    means = np.mean(seeds, axis=0)
    (line,) = axis.plot(xs, means, **style)
    if len(seeds) > 1:
        d, color = np.std(seeds, axis=0, ddof=1), line.get_color()
        axis.fill_between(xs, means - d, means + d, color=color, alpha=0.18, linewidth=0)
    return means.tolist()


def legend_below(figure, handles, labels):
    """Put a legend below the axes, in as many columns as fit; return its number of rows."""
    width = 0.056 * max(map(len, labels)) + 0.6  # of an entry, in inches
    columns = max(1, int(figure.get_figwidth() / width))
    style = dict(loc="outside lower center", fontsize=8, ncols=columns)
    show_dollars(figure.legend(handles, labels, **style))
    return math.ceil(len(labels) / columns)


def show_dollars(legend):
    """Show the labels of a legend as they are: text between two $ is not a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def plain_log_ticks(axis):
    """Put about five ticks with plain numbers on a log y axis whose limits are final."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    low, high = axis.get_ylim()

    def inside(ticks):
        return [tick for tick in ticks if low <= tick <= high]

    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    many = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    for digits in (many, (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        ticks = inside(digit * 10.0**power for power in powers for digit in digits)
        if len(ticks) <= 6:
            break
    if len(ticks) < 3:
        ticks = inside(MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high))
    axis.set_yticks(ticks)
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(
        lambda y, _: f"{y:.0e}" if y >= 1e6 else f"{y:,.0f}" if y >= 1000 else f"{y:.4g}"
    )


@styled(grid=False)
def confusion(counts, classes, title):
    """Return a figure of a confusion matrix.

    counts[i][j]: rows of true class i that were given class j. Colors are shares of the true class.
    """
    digits = len(str(max(map(max, counts))))
    cell = max(0.1 * digits, 0.2, min(0.8, 6 / len(classes)))  # inches; many classes fit on a page
    size = cell * len(classes)
    figure, axis = new_figure(figsize=(size + 1.6, size + 0.8))
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, row in enumerate(counts):
        for j, n in enumerate(row):
            color = "white" if shares[i][j] > 0.5 else "black"
            axis.text(j, i, n, ha="center", va="center", color=color)
    n_row = sum(map(sum, counts))
    right = sum(row[i] for i, row in enumerate(counts)) / n_row
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}  # long names would overlap
    slant = slanted if max(map(len, classes)) > 13 * cell else {}
    axis.set_xticks(range(len(classes)), classes, parse_math=False, **slant)
    axis.set_yticks(range(len(classes)), classes, parse_math=False)
    axis.set(xlabel="predicted class", ylabel="true class\n(color: share of class)")
    axis.set_title(f"{title}\n{n_row:,} test rows: {right:.1%} correct", parse_math=False)
    return figure
