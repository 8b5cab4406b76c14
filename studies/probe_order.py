"""Does a causal model use the order of the words? Its loss along the block, and after the words before are shuffled.

    python -m studies.probe_order out/lm-speeches-nope-0 out/lm-speeches-alibi-0

For a set of texts, the last word of each is predicted from the words before it with only the last k of them left in
order and all earlier ones shuffled (Haviv et al. 2022, appendix). A model without positions that had not found out the
order by itself would not notice. Runs that differ only in their seed are drawn as their mean.
"""

import shlex
import sys
import time
from dataclasses import dataclass

import torch

import data
from data import batching
from data.files import write_json
from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.folder import figures_folder
from lab.load import by_position, load_run
from lab.machine import prepare

SEGMENTS = 8


@dataclass
class Flags:
    runs: list[str] = flag(
        None,
        "run folders of train_lm.py; several are drawn in one figure, seeds as their mean",
        positional=True,
    )
    data: str = flag("", "corpus whose test sets are read (default: the run's own)")
    blocks: int = flag(1000, "texts, of the length the model was trained on")
    seed: int = flag(0, "of the choice of texts and of the shuffling")
    out: str = flag(
        "",
        "folder of order.png, order.md and result.json (default: order/ in the first run's folder)",
    )
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def probe(flags):
    require((flags.blocks > 0, f"--blocks must be at least 1, got {flags.blocks}"))
    started, device = time.perf_counter(), prepare(flags)
    loaded = [load_run(folder, ("lm",), device=device) for folder in dict.fromkeys(flags.runs)]
    out = figures_folder(flags.out or loaded[0].folder / "order")
    result = {}
    for name, group in by_position(loaded).items():
        measured = [measure(run, flags, device) for run in group]
        result[name] = {
            "folders": [str(run.folder) for run in group],
            "seeds": [run.config["flags"]["seed"] for run in group],
            "block_size": group[0].model.body.config.block_size,
            "segments": [m[0] for m in measured],
            "kept": list(measured[0][1]),
            "shuffled": [list(m[1].values()) for m in measured],
        }

    out.mkdir(parents=True, exist_ok=True)
    print(write_table(out / "order", result))
    write_json(
        out / "result.json",
        {
            "runs": result,
            "seconds": round(time.perf_counter() - started, 1),
            "command": shlex.join(["python", "-m", "studies.probe_order", *sys.argv[1:]]),
        },
    )
    draw(out, result)
    print(
        f"{out}: order.png, order.md, order.tex and result.json; {time.perf_counter() - started:.0f} s"
    )


@torch.no_grad()
def measure(run, flags, device):
    """(loss in nats of each of SEGMENTS parts of the block, {k: loss of the last word when only the k words before it
    are in order})."""
    corpus, T = (
        data.load(flags.data or run.config["flags"]["data"]),
        run.model.body.config.block_size,
    )
    ids = batching.stream(run.tokenizer, [line for part in corpus.tests.values() for line in part])
    require(
        (
            len(ids) > T + 1,
            f"--data {corpus.name}: too little test text for blocks of {T} tokens; give another corpus",
        )
    )
    gen = batching.generator("order", flags.seed)
    x, y = batching.random_blocks(ids, T, flags.blocks, gen)  # (N, T)
    order = torch.rand(x.shape, generator=gen)

    losses = per_target(run.model, x, y, device).view(-1, T).mean(0)  # (T,)
    segments = [part.mean().item() for part in losses.tensor_split(min(SEGMENTS, T))]
    last = torch.full_like(y, -100)
    last[:, -1] = y[:, -1]
    kept = sorted({k for k in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if k < T} | {T})
    return segments, {
        k: per_target(run.model, shuffle_all_but_last(x, order, k), last, device).mean().item()
        for k in kept
    }


def shuffle_all_but_last(x, order, k):
    """x (N, T) with each row's first T - k tokens in the order of the random numbers `order` (N, T), the last k as they
    were."""
    first = x.size(1) - k
    return torch.cat([x[:, :first].gather(1, order[:, :first].argsort(1)), x[:, first:]], dim=1)


def per_target(model, x, y, device):
    """(N,) losses in nats of the targets that are not -100; of an ensemble, those of its first member."""
    model = getattr(model, "members", [model])[0]
    return torch.cat(
        [model.losses(a.to(device), b.to(device)).cpu() for a, b in zip(x.split(64), y.split(64))]
    )


def write_table(stem, result):
    kept = next(iter(result.values()))["kept"]
    rows = [
        [name, *(tables.spread(values, 2) for values in zip(*r["shuffled"]))]
        for name, r in result.items()
    ]
    return tables.write(
        stem,
        ["", "all shuffled", *(f"last {k}" for k in kept[1:-1]), "none shuffled"],
        rows,
        "Loss of the last word of a block in nats when, of the words before it, only so many last ones are "
        "in their order"
        + ", ± sample standard deviation over the seeds."
        * (max(len(r["seeds"]) for r in result.values()) > 1),
    )


@styled
def draw(out, result):
    """order.png: loss along the block; loss over how many of the last words are in order."""
    figure, axes = new_figure(1, 2, figsize=(7.6, 3.1), layout="constrained")
    for i, (name, r) in enumerate(result.items()):
        T = r["block_size"]
        middles = [T * (j + 0.5) / len(r["segments"][0]) for j in range(len(r["segments"][0]))]
        # Without even the last word in its place all are at a loss, which would flatten the rest: that number stands in
        # the table.
        for axis, xs, seeds in (
            (axes[0], middles, r["segments"]),
            (axes[1], range(len(r["kept"]) - 1), [values[1:] for values in r["shuffled"]]),
        ):
            over_seeds(
                axis,
                xs,
                seeds,
                marker="os^Dv"[i % 5],
                color=f"C{i}",
                markersize=3.5,
                linewidth=1.3,
                label=name,
            )
    kept = max((r["kept"] for r in result.values()), key=len)
    axes[0].set(
        title="Along the block",
        xlabel=f"position in the block (means of {SEGMENTS} parts)",
        ylabel="loss (nats per token)",
    )
    axes[1].set_xticks(range(len(kept) - 1), [*map(str, kept[1:-1]), "all"])
    axes[1].set(
        title="Words before shuffled, but for the last",
        xlabel="last words left in order (all: nothing shuffled)",
        ylabel="loss of the next word (nats)",
    )
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    save(figure, out / "order.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__.split("\n")[0])
