"""Test whether a causal model uses the order of the words before the one it predicts.

    python -m studies.probe_order out/lm-speeches-nope-0 out/lm-speeches-alibi-0

The last word of each text is predicted from the words before it. Only the last k of them keep their
order, and all earlier ones are shuffled (Haviv et al. 2022, appendix). A model without positions
would not notice, unless it has learned the order by itself.

The second measurement is the loss at each position of the block.
"""

from dataclasses import dataclass

import torch

from data import batching
from lab import tables
from lab.command import main
from lab.figures import legend_below, new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.inside.answers import losses_of_blocks
from nets.ensemble import members_of
from studies.probes import ProbeFlags, blocks_of, measure_runs

SEGMENTS = 8  # parts of a block over which its losses are averaged
KEPT = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Flags(ProbeFlags):
    blocks: int = flag(1000, "texts, of the length the model was trained on", at_least=1)
    seed: int = flag(0, "seed of the choice of texts and of the shuffling")
    out: str = flag("", "folder of the results (default: order/ in the first run's folder)")


def probe(flags):
    measured = measure_runs(flags, ("lm",), "order", measure)
    print(write_table(measured))
    draw(measured)
    measured.finish("order.png", "order.md", "order.tex")


def measure(run, corpus, flags):
    """Return {"kept": the values of k, "shuffled": the loss of the last word for each, "segments":
    the loss in each part of the block}, losses in nats."""
    model, T = members_of(run.model)[0], run.model.body.config.block_size  # of an ensemble, one
    gen = batching.generator("order", flags.seed)
    x, y = blocks_of(run, corpus, "test", flags.blocks, gen)  # (N, T)
    order = torch.rand(x.shape, generator=gen)
    if run.config["flags"].get("anchor"):
        order[:, 0] = -1  # shuffled words stay behind the anchor

    losses = losses_of_blocks(model, x, y).view(-1, T).mean(0)  # (T,)
    last = torch.full_like(y, -100)
    last[:, -1] = y[:, -1]
    kept = [k for k in KEPT if k < T] + [T]
    inputs = (shuffle_all_but_last(x, order, k) for k in kept)
    return {
        "kept": kept,
        "shuffled": [losses_of_blocks(model, part, last).mean().item() for part in inputs],
        "segments": [part.mean().item() for part in losses.tensor_split(min(SEGMENTS, T))],
    }


def shuffle_all_but_last(x, order, k):
    """Return x (N, T) with the first T - k tokens of each row sorted by `order` (N, T)."""
    n = x.size(1) - k
    return torch.cat([x[:, :n].gather(1, order[:, :n].argsort(1)), x[:, n:]], dim=1)


def write_table(measured):
    """Write order.md and order.tex, and return the Markdown."""
    kept = max((r["kept"][0] for r in measured.results.values()), key=len)
    rows = []
    for label, r in measured.results.items():
        cells = [tables.spread(values, 2) for values in zip(*r["shuffled"])]
        rows.append([label, *cells[:-1], *["–"] * (len(kept) - len(cells)), cells[-1]])
    header = ["positions", *(f"last {k}" for k in kept[:-1]), "all"]
    caption = "Loss in nats of the last word when only the last words before it keep their order"
    return tables.write(measured.out / "order", header, rows, caption + measured.spread + ".")


@styled()
def draw(measured):
    """Draw order.png: loss over the number of ordered words, and loss along the block."""
    figure, (left, right) = new_figure(1, 2, figsize=(7.6, 3.3))
    kept = max((r["kept"][0] for r in measured.results.values()), key=len)
    for r, style in measured.with_styles():
        # The loss with all words shuffled is so high that it would flatten the other lines
        xs = [*range(len(r["kept"][0]) - 2), len(kept) - 2]
        over_seeds(left, xs, [ys[1:] for ys in r["shuffled"]], **style)
        n = len(r["segments"][0])
        middles = [r["block_size"] * (i + 0.5) / n for i in range(n)]
        over_seeds(right, middles, r["segments"], **style)
    left.set_xticks(range(len(kept) - 1), [*map(str, kept[1:-1]), "all"])
    left.set_title("Last word, earlier words shuffled", fontsize=9)
    left.set(xlabel="preceding words kept in order", ylabel="loss of the last word (nats)")
    right.set_title("Every word, nothing shuffled", fontsize=9)
    right.set(xlabel="position in the block", ylabel="loss (nats per token)")
    figure.suptitle(f"Does a causal LM use word order? Test text of {measured.corpora}")
    legend_below(figure, *left.get_legend_handles_labels())
    save(figure, measured.out / "order.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__)
