"""Find the head that counts positions: its attention to the first token, the loss without it.

    python -m studies.anchor_head out/nope

A head that attends to all t tokens alike gives the first token the weight 1/t, and c / (c + t - 1)
if the first one counts c times. If every block begins with the same token (train_lm.py --anchor),
the output of such a head tells t (Kazemnejad et al. 2023, theorem 1). This study measures the
weight of every head on the first token by position. It then switches off each head and measures the
probes and the loss again.

The counting head is the one without which the error of the best layer's probe rises most, on a part
of the text that the probes were trained on. All numbers are of test text.
"""

from dataclasses import dataclass

import torch

from lab import tables
from lab.command import main
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.inside.ablation import switched_off
from nets.device import device_of
from nets.ensemble import members_of
from studies.probe_network import FitFlags, fit_probes, layer_name, read_positions, scores
from studies.probes import count_ticks, layer_cells, loss_of, measure_runs, texts_of


@dataclass
class Flags(FitFlags):
    out: str = flag("", "folder of the results (default: anchor/ in the first run's folder)")


def study(flags):
    measured = measure_runs(flags, ("lm",), "anchor", measure)
    print(write_table(measured))
    draw(measured)
    measured.finish("anchor.png", "anchor.md", "anchor.tex")


def measure(run, corpus, flags):
    """Return a dictionary:

    head: [layer, head] of the counting head, counted from 1
    weights: on the first token, (n_layer, n_head, T)
    whole, off, reread, other: {"loss", "median": a distance per layer} of the whole model; without
        the counting head; the same with new probes; without another head of its layer, their mean
    harm: {"layer.head": distance at the best layer without this head}, by which it is chosen
    """
    model, body = members_of(run.model)[0], run.model.body  # of an ensemble, one
    train, test = texts_of(run, corpus, flags.blocks, flags.seed)
    choosing = [part[: len(test[0])] for part in train]
    probes = fit_probes(body, *train, flags)

    def numbers(text, probes=probes):
        distances = scores(*read_positions(body, probes, *text))["median"]
        return {"loss": loss_of(model, text[0]), "median": distances}

    def without(layer, head, compute, *arguments):
        with switched_off(body.blocks[layer].attention, head):
            return compute(*arguments)

    n_head, known = body.config.n_head, numbers(choosing)["median"]
    best = min(range(1, len(known)), key=known.__getitem__)  # heads of later layers cannot matter
    harm = {
        (layer, head): without(layer, head, numbers, choosing)["median"][best]
        for layer in range(best)
        for head in range(n_head)
    }
    layer, head = max(harm, key=harm.get)
    heads = [without(layer, each, numbers, test) for each in range(n_head)]
    others = [found for each, found in enumerate(heads) if each != head] or heads
    new_probes = without(layer, head, fit_probes, body, *train, flags)
    return {
        "head": [layer + 1, head + 1],
        "weights": weights_on_first(body, test[0]).tolist(),
        "whole": numbers(test),
        "off": heads[head],
        "reread": without(layer, head, numbers, test, new_probes),
        "other": {
            "loss": sum(other["loss"] for other in others) / len(others),
            "median": [sum(each) / len(others) for each in zip(*(o["median"] for o in others))],
        },
        "harm": {f"{layer + 1}.{head + 1}": value for (layer, head), value in harm.items()},
    }


@torch.no_grad()
def weights_on_first(body, idx):
    """Return (n_layer, n_head, T): the mean weight on the first token of idx (N, T) by query."""
    device, total = device_of(body), 0
    for rows in idx.split(64):
        _, maps = body(rows.to(device), need_weights=True)
        total = total + torch.stack([weights[..., 0].sum(0) for weights in maps])  # (L, H, T)
    return (total / len(idx)).cpu()


# ---------------------------------------------------------------------------- results


def write_table(measured):
    """Write anchor.md and .tex: four rows per configuration; return the Markdown."""
    columns = max(len(r["whole"][0]["median"]) for r in measured.results.values())
    rows = []
    for label, r in measured.results.items():
        heads = ", ".join(f"{layer}.{head}" for layer, head in r["head"])
        for kind, name in (
            ("whole", label),
            ("other", "without another head of its layer"),
            ("off", f"without head {heads}"),
            ("reread", f"without head {heads}, new probes"),
        ):
            loss = tables.spread([seed["loss"] for seed in r[kind]], 3)
            rows.append([name, loss, *layer_cells([seed["median"] for seed in r[kind]], columns)])
    caption = (
        "Loss on test text in nats per token, and mean distance in tokens from the probe's median "
        f"position, with all heads and without one (layer.head, one per seed){measured.spread}. "
        f"{measured.flags.budget}"
    )
    header = ["model", "loss", *map(layer_name, range(columns))]
    return tables.write(measured.out / "anchor", header, rows, caption)


@styled()
def draw(measured):
    """Draw anchor.png: for each configuration, the weight of the heads on the first token."""
    n = len(measured.results)
    figure, axes = new_figure(1, n, figsize=(3.4 * n + 0.6, 3.3), squeeze=False)
    for (r, style), axis in zip(measured.with_styles(), axes[0]):
        T = len(r["weights"][0][0][0])
        count = range(1, T + 1)  # tokens so far
        (layer, head), weights = r["head"][0], r["weights"][0]
        for i, heads in enumerate(weights):
            for h, values in enumerate(heads):
                if (i + 1, h + 1) != (layer, head):
                    axis.plot(count, values, color="0.8", linewidth=0.8)
        axis.plot([], [], color="0.8", linewidth=0.8, label="other heads, one seed")
        seeds = zip(r["head"], r["weights"])
        chosen = [weights[layer - 1][head - 1] for (layer, head), weights in seeds]
        look = dict(color=style["color"], linewidth=1.8, label="counting head")
        means = over_seeds(axis, count, chosen, **look)
        last = min(max(means[-1], 1e-6), 1 - 1e-6)  # a window hides the first token: 0
        c = last * (T - 1) / (1 - last)  # the first token counts c times
        fitted = [c / (c + t - 1) for t in count]
        axis.plot(count, fitted, "k--", linewidth=1, label=f"c/(c + t − 1), c = {c:.2g}")
        axis.plot(count, [1 / t for t in count], "k:", linewidth=1.2, label="1/t")
        axis.set(xscale="log", yscale="log", xlabel="tokens so far, t", ylim=(0.3 / T, 1.3))
        count_ticks(axis, T)
        axis.set_title(style["label"], fontsize=9)
        axis.legend(fontsize=7, loc="lower left")
    axes[0][0].set_ylabel("attention weight on the first token")
    figure.suptitle(
        f"Which head counts? Weights on the first token, test text of {measured.corpora}"
    )
    save(figure, measured.out / "anchor.png")


if __name__ == "__main__":
    main(study, Flags, __doc__)
