"""Measure when a model learns positions: the position probe at several steps of the training.

    python train_lm.py --pos nope --anchor --keep 0,50,100,200,500 --out out/nope
    python -m studies.emergence out/nope

Reads the weights that --keep kept. Runs that differ only in the seed are averaged.
"""

from dataclasses import dataclass

import torch

from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.load import kept_steps, read_run
from studies.probe_network import (
    FitFlags,
    fit_probes,
    layer_name,
    middle_of,
    read_positions,
    scores,
)
from studies.probes import layer_cells, loss_of, mark_middle, measure_runs, middles, texts_of


@dataclass
class Flags(FitFlags):
    out: str = flag("", "folder of the results (default: emergence/ in the first run's folder)")


def study(flags):
    measured = measure_runs(flags, ("lm",), "emergence", measure, check_kept)
    print(write_table(measured))
    draw(measured)
    measured.finish("emergence.png", "emergence.md", "emergence.tex")


def check_kept(label, runs):
    """Raise UserError unless all seeds of a configuration kept the same steps."""
    remedy = "train it with --keep 0,100,200 or other steps"
    kept = [kept_steps(run.folder) for run in runs]
    for run, steps in zip(runs, kept):
        require((steps, f"{run.folder}: holds no weights of earlier steps; {remedy}"))
    alike = all(steps == kept[0] for steps in kept)
    require((alike, f"{label}: its seeds kept other steps; train them with the same --keep"))


def measure(run, corpus, flags):
    """Return {"kept": the steps, "loss": nats per token of test text, one per step, "median": the
    probe's distance per step and layer, "middle": that of the middle}."""
    train, test = texts_of(run, corpus, flags.blocks, flags.seed)
    kept, losses, distances = kept_steps(run.folder), [], []
    for step in kept:
        model = read_run(run.folder, device=run.device, step=step).model
        probes = fit_probes(model.body, *train, flags)
        distances.append(scores(*read_positions(model.body, probes, *test))["median"])
        losses.append(loss_of(model, test[0]))
    return {
        "kept": kept,
        "loss": losses,
        "median": distances,
        "middle": middle_of(torch.arange(test[0].size(1))),
    }


# ---------------------------------------------------------------------------- results


def write_table(measured):
    """Write emergence.md and .tex: a row per configuration and step; return the Markdown."""
    columns = max(len(r["median"][0][0]) for r in measured.results.values())
    rows = []
    for label, r in measured.results.items():
        for i, step in enumerate(r["kept"][0]):
            cells = layer_cells([seed[i] for seed in r["median"]], columns)
            loss = tables.spread([seed[i] for seed in r["loss"]], 3)
            rows.append([label, f"{step:,}", loss, *cells])
    caption = (
        "Loss on test text in nats per token, and mean distance in tokens from the probe's median "
        f"position, by step of the training{measured.spread}. {middles(measured.results)} "
        f"{measured.flags.budget}"
    )
    header = ["positions", "step", "loss", *map(layer_name, range(columns))]
    return tables.write(measured.out / "emergence", header, rows, caption)


@styled()
def draw(measured):
    """Draw emergence.png: the probe's distance over steps, by configuration, and the losses."""
    n = len(measured.results)
    figure, axes = new_figure(1, n + 1, figsize=(2.9 * (n + 1) + 0.5, 3.2))
    *panels, last = axes
    for (r, style), axis in zip(measured.with_styles(), panels):
        steps, n_layers = r["kept"][0], len(r["median"][0][0])
        for layer in range(n_layers):
            seeds = [[distances[layer] for distances in seed] for seed in r["median"]]
            shade = str(0.75 - 0.75 * layer / (n_layers - 1))  # later layers are darker
            look = dict(color=shade, marker="o", markersize=3, linewidth=1.3)
            over_seeds(axis, steps, seeds, **look, label=layer_name(layer))
        mark_middle(axis, r["middle"][0])
        axis.set_ylim(0, 1.15 * r["middle"][0])
        axis.set_title(style["label"], fontsize=9)
        over_seeds(last, steps, r["loss"], **style)
    panels[0].set_ylabel("distance from the true position (tokens)")
    panels[0].legend(fontsize=7, loc="lower left")
    last.set(ylabel="loss on test text (nats per token)")
    last.set_title("Loss", fontsize=9)
    last.legend(fontsize=7)
    steps = sorted({step for r in measured.results.values() for step in r["kept"][0]})
    first, ticks = next((step for step in steps if step), 1), []
    for step in reversed(steps):
        if not ticks or 2.2 * step <= ticks[-1]:
            ticks.append(step)
    for axis in axes:
        axis.set_xscale("symlog", linthresh=first)  # step 0 has a place too
        axis.set_xlim(-0.15 * first, 1.2 * max(steps[-1], first))
        axis.set_xticks(ticks, [f"{step:,}" for step in ticks])
        axis.minorticks_off()
        axis.set_xlabel(f"training step (log scale from {first:,} on)")
    figure.suptitle(f"When does a model learn where each word stands? Probes on {measured.corpora}")
    save(figure, measured.out / "emergence.png")


if __name__ == "__main__":
    main(study, Flags, __doc__)
