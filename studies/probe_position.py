"""Read the position of every word back out of a model's layers (Haviv et al. 2022, section 5).

    python -m studies.probe_position out/lm-speeches-nope-0 out/lm-speeches-alibi-0

For every layer a small network, the probe, learns to predict a word's position from its frozen
state. Its error on new text shows how much of the position the layer holds. The same is done with
an untrained model of the same configuration.

Three numbers say how good the probe is. A layer that knows nothing gets the number in brackets:

    argmax   distance from the likeliest position to the true one, as in the source (random guess)
    median   distance from the median of the probe's distribution (always the middle)
    nats     cross-entropy of the true position (entropy of the positions)
"""

import math
import statistics
import textwrap
from dataclasses import dataclass

import torch

from data import batching
from lab import tables
from lab.command import main
from lab.figures import legend_below, make_figure, over_seeds, save, styled
from lab.flags import flag
from studies.probe_network import (
    FitFlags,
    entropy_of,
    fit_probes,
    layer_name,
    middle_of,
    read_positions,
    scores,
    untrained,
)
from studies.probes import layer_cells, mark_middle, measure_runs, texts_of


@dataclass
class Flags(FitFlags):
    text: str = flag("", "text of the scatter plots (default: the first of the test text)")
    out: str = flag("", "folder of the results (default: probe/ in the first run's folder)")


def probe(flags):
    measured = measure_runs(flags, ("lm", "mlm", "classifier"), "probe", measure)
    print("\n".join(write_table(measured, *score) for score in SCORES))
    draw(measured)
    measured.finish("probe.png", "tables of argmax, median, nats")


def measure(run, corpus, flags):
    """Return the scores of the probes of each layer, trained and untrained.

    {"trained" and "untrained": {score: a number per layer}, "nothing": {score: that of a layer that
    knows nothing}, "example": the guesses for one text}.
    """
    body, seed = run.model.body, run.config["flags"]["seed"]
    train, test = texts_of(run, corpus, flags.blocks, flags.seed)
    blank, T = untrained(body, seed), body.config.block_size
    probes = fit_probes(body, *train, flags)
    readings, truth = read_positions(body, probes, *test)
    readings_of_blank, _ = read_positions(blank, fit_probes(blank, *train, flags), *test)

    idx, mask = test  # (N, T)
    text = idx[0][mask[0]]
    if flags.text:
        text = batching.sentences(run.tokenizer, [flags.text], T)[0][0]
    example, true = read_positions(body, probes, *batching.pad([text]))
    return {
        "trained": scores(readings, truth),
        "untrained": scores(readings_of_blank, truth),
        "nothing": {
            "argmax": (torch.arange(T)[:, None] - truth).abs().float().mean().item(),
            "median": middle_of(truth),
            "nats": entropy_of(truth),
        },
        "example": {"guessed": [r["median"].tolist() for r in example], "true": true.tolist()},
    }


# ---------------------------------------------------------------------------- results


SCORES = (  # name, what the caption says, what the column of a layer that knows nothing says
    ("argmax", "Mean distance in tokens from the probe's likeliest position", "random guess"),
    ("median", "Mean distance in tokens from the probe's median position", "always the middle"),
    ("nats", "Cross-entropy of the probe in nats", "entropy of positions"),
)


def write_table(measured, score, words, nothing):
    """Write one of SCORES as .md and .tex, a column per layer; return the Markdown."""
    columns = max(len(r["trained"][0][score]) for r in measured.results.values())
    rows = []
    for label, r in measured.results.items():
        level = f"{r['nothing'][0][score]:.2f}"
        for kind, name in (("trained", label), ("untrained", f"{label}, untrained")):
            rows.append([name, *layer_cells([seed[score] for seed in r[kind]], columns), level])
    header = ["positions", *map(layer_name, range(columns)), nothing]
    caption = f"{words}, on test text{measured.spread}. The lower, the more the layer knows. "
    caption += measured.flags.budget
    return tables.write(measured.out / score, header, rows, caption)


@styled()
def draw(measured):
    """Draw probe.png: distances over layers, and the guesses for one text at the best layer."""
    rows = 1 if len(measured.results) <= 3 else 2  # of example panels
    columns = math.ceil(len(measured.results) / rows)
    figure = make_figure(figsize=(4 + 2 * columns, 1.9 + 1.4 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, columns + 1, width_ratios=[2] + [1] * columns)
    left = figure.add_subplot(grid[:, 0])
    places = [grid[i // columns, 1 + i % columns] for i in range(len(measured.results))]
    right = [figure.add_subplot(place) for place in places]
    n_layers = max(len(r["trained"][0]["median"]) for r in measured.results.values())
    for (r, style), axis in zip(measured.with_styles(), right):
        seeds = [seed["median"] for seed in r["trained"]]
        means = over_seeds(left, range(len(seeds[0])), seeds, **style)
        blank = zip(*(seed["median"] for seed in r["untrained"]))
        blank = [statistics.fmean(values) for values in blank]
        look = {name: style[name] for name in ("color", "marker", "markersize", "linewidth")}
        left.plot(range(len(blank)), blank, ":", markerfacecolor="white", **look)
        best = means.index(min(means))
        true, guessed = r["example"][0]["true"], r["example"][0]["guessed"][best]
        axis.plot(true, true, color="0.6", linewidth=0.9)
        axis.plot(true, guessed, "o", markersize=3, alpha=0.8, color=style["color"])
        ends = (-0.03 * r["block_size"], 1.03 * r["block_size"])
        axis.set(xlabel="true position", xlim=ends, ylim=ends, aspect="equal")
        title = textwrap.fill(f"{style['label']}, {layer_name(best)}", 24)
        axis.set_title(title, fontsize=8, parse_math=False)
    left.plot([], [], "k:o", markerfacecolor="white", markersize=3.5, label="untrained model")
    for level in sorted({round(r["nothing"][0]["median"], 1) for r in measured.results.values()}):
        mark_middle(left, level)
    left.set_xticks(range(n_layers), ["embed-\ndings", *map(str, range(1, n_layers))])
    left.set_ylim(-0.03 * left.get_ylim()[1], 1.05 * left.get_ylim()[1])
    ylabel = "distance from the\ntrue position (tokens)"
    left.set(xlabel="layer that the probe reads", ylabel=ylabel)
    left.set_title("All test text", fontsize=9)
    right[0].set_ylabel("guessed position, one text")
    figure.suptitle(f"Which layers know a word's position? Probes on {measured.corpora}")
    legend_below(figure, *left.get_legend_handles_labels())
    save(figure, measured.out / "probe.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__)
