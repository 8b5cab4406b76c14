"""Measure why an untrained decoder knows positions: averages over more words vary less.

    python -m studies.averages out/nope

An untrained head attends to all tokens so far almost alike, so its output at position t is a mean
of t vectors. The mean of t independent vectors has the squared length |m|^2 + s^2 / t, with m their
mean and s^2 their variance (Chi et al. 2023, "Latent Positional Information is in the
Self-Attention Variance of Transformer Language Models Without Positional Embeddings"). This study
compares the output of the first layer's attention with this prediction, which has no free
parameter, and guesses the position from its length alone.
"""

import statistics
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lab import tables
from lab.command import main
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from nets.device import device_of
from studies.probe_network import middle_of, untrained
from studies.probes import ProbeFlags, count_ticks, layer_cells, measure_runs, middles, texts_of

BINS = 200  # of the lengths, from which positions are guessed


@dataclass
class Flags(ProbeFlags):
    blocks: int = flag(1500, "blocks to learn from; a quarter as many test it", at_least=4)
    seed: int = flag(0, "seed of the blocks")
    out: str = flag("", "folder of the results (default: averages/ in the first run's folder)")


def study(flags):
    measured = measure_runs(flags, ("lm",), "averages", measure)
    print(write_table(measured))
    draw(measured)
    measured.finish("averages.png", "averages.md", "averages.tex")


def measure(run, corpus, flags):
    """Return {"middle": the distance of always guessing the middle, "trained" and "untrained":
    {"measured", "predicted": squared length (T,) in the first layer, "error": their mean relative
    difference, "median": distance of the guess by length for each layer}}."""
    (train, _), (test, _) = texts_of(run, corpus, flags.blocks, flags.seed)
    anchor = bool(run.config["flags"].get("anchor"))
    found = {"middle": middle_of(torch.arange(test.size(1)))}
    blank = untrained(run.model.body, run.config["flags"]["seed"]).eval()
    for kind, body in (("trained", run.model.body), ("untrained", blank)):
        learned, lengths = squared_lengths(body, train), squared_lengths(body, test)
        measured, expected = lengths[0].mean(0), predicted(body, test, anchor)  # (T,)
        found[kind] = {
            "measured": measured.tolist(),
            "predicted": expected.tolist(),
            "error": ((measured - expected).abs() / expected).mean().item(),
            "median": [distance_by_length(a, b) for a, b in zip(learned, lengths)],
        }
    return found


@torch.no_grad()
def squared_lengths(body, idx):
    """Return (n_layer, N, T): the squared lengths of the attention's outputs for idx (N, T)."""
    device, parts, found = device_of(body), [], []

    def note(attention, inputs, output):
        found.append(output[0].pow(2).sum(-1).cpu())  # (B, T)

    hooks = [block.attention.register_forward_hook(note) for block in body.blocks]
    for rows in idx.split(64):
        body(rows.to(device))
        parts.append(torch.stack(found))
        found.clear()
    for hook in hooks:
        hook.remove()
    return torch.cat(parts, dim=1)


@torch.no_grad()
def predicted(body, idx, anchor):
    """Return (T,): the expected squared length of the first attention's output, if it were the mean
    of independent words of idx (N, T). anchor: the first token of every block is the same."""
    block, T = body.blocks[0], idx.size(1)
    x = body.token_vectors(idx.to(device_of(body)))  # (N, T, C)
    if (vectors := body.position_vectors(T)) is not None:
        x = x + vectors
    x = body.embedding_norm(x)
    x = block.norm1(x) if block.norm_first else x
    attention, C = block.attention, x.size(-1)
    values = F.linear(x, attention.qkv.weight[2 * C :], attention.qkv.bias[2 * C :])
    u = F.linear(values, attention.out.weight)  # what each word adds to the output, times t
    words = u[:, 1 if anchor else 0 :].flatten(0, 1)  # (.., C)
    m = words.mean(0)
    variance = (words - m).pow(2).sum(-1).mean()
    t = torch.arange(1, T + 1, device=x.device)[:, None]  # (T, 1)
    n = t - 1 if anchor else t  # independent words among the first t
    mean = (n * m + (u[0, :1] if anchor else 0)) / t + attention.out.bias  # (T, C)
    return (mean.pow(2).sum(-1) + (n * variance / t**2).squeeze(1)).cpu()


def distance_by_length(learned, lengths):
    """Return the mean distance of the best guess from a length alone, in tokens.

    learned (N, T), lengths (M, T): a length in `lengths` gets the median position of those in
    `learned` that are about as long.
    """
    positions = torch.arange(learned.size(1)).expand_as(learned).flatten()
    order = learned.flatten().argsort()
    parts = order.tensor_split(min(BINS, len(order)))
    edges = torch.stack([learned.flatten()[part[-1]] for part in parts[:-1]])
    guesses = torch.stack([positions[part].median() for part in parts])
    guessed = guesses[torch.bucketize(lengths, edges)]  # (M, T)
    return (guessed - torch.arange(lengths.size(1))).abs().float().mean().item()


# ---------------------------------------------------------------------------- results


def write_table(measured):
    """Write averages.md and .tex: two rows per configuration; return the Markdown."""
    columns = max(len(r["trained"][0]["median"]) for r in measured.results.values())
    rows = []
    for label, r in measured.results.items():
        for kind, name in (("trained", label), ("untrained", f"{label}, untrained")):
            error = tables.spread([100 * seed["error"] for seed in r[kind]])
            rows.append([name, error, *layer_cells([seed["median"] for seed in r[kind]], columns)])
    caption = (
        "Mean difference of the squared length of the first attention's output from the prediction "
        "|m|² + s²/t, and mean distance in tokens of the position that is guessed from the length "
        f"of each layer's attention output alone, on test text{measured.spread}. "
        f"{middles(measured.results)}"
    )
    header = ["model", "difference (%)", *(f"layer {i + 1}" for i in range(columns))]
    return tables.write(measured.out / "averages", header, rows, caption)


@styled()
def draw(measured):
    """Draw averages.png: squared lengths over positions, measured and predicted."""
    n = len(measured.results)
    figure, axes = new_figure(1, n, figsize=(3.4 * n + 0.6, 3.3), squeeze=False, sharey=True)
    for (r, style), axis in zip(measured.with_styles(), axes[0]):
        for kind, filling, dashes in (("untrained", "white", "-"), ("trained", None, "--")):
            seeds = [seed["measured"] for seed in r[kind]]
            t = range(1, len(seeds[0]) + 1)
            dots = dict(color=style["color"], markerfacecolor=filling, markersize=3.5)
            over_seeds(axis, t, seeds, linestyle="", marker="o", label=f"{kind}, measured", **dots)
            means = [statistics.fmean(ys) for ys in zip(*(seed["predicted"] for seed in r[kind]))]
            axis.plot(t, means, dashes, color="k", linewidth=1, label=f"{kind}, predicted")
        axis.set(xscale="log", yscale="log", xlabel="tokens so far, t")
        count_ticks(axis, len(t))
        axis.set_title(style["label"], fontsize=9)
    axes[0][0].set_ylabel("squared length of the first attention's output")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"Averages over t tokens: test text of {measured.corpora}")
    save(figure, measured.out / "averages.png")


if __name__ == "__main__":
    main(study, Flags, __doc__)
