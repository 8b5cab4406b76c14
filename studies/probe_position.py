"""Read the position of every word back out of a model's layers (Haviv et al. 2022, section 5).

    python -m studies.probe_position out/lm-speeches-nope-0 out/lm-speeches-alibi-0

For every layer a small network is trained to tell, from the frozen state of a word, at which position it stands. What it
finds out on new text the layer holds. Beside each run stands an untrained model of the same configuration.
Drawn: the mean distance between the guessed and the true position over the layers, and both for one text. Runs that
differ only in their seed are drawn as their mean.
"""

import shlex
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import data
from data import batching
from data.corpus import hold_out
from data.files import write_json
from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.folder import figures_folder
from lab.load import by_position, load_run
from lab.machine import prepare
from lab.optim import learning_rate
from model import LanguageModel


@dataclass
class Flags:
    runs: list[str] = flag(
        None, "run folders; several are drawn in one figure, seeds as their mean", positional=True
    )
    data: str = flag("", "corpus to read positions from (default: the run's own)")
    text: str = flag("", "the text of the right-hand panel (default: the first of the test text)")
    blocks: int = flag(
        400,
        "blocks or sentences the probes learn from; a quarter as many, of the test text, measure them",
    )
    steps: int = flag(600, "updates of each probe")
    batch_size: int = flag(1024, "words an update")
    lr: float = flag(2e-3, "peak learning rate of the probes; it falls to zero")
    seed: int = flag(0, "of the probes, the blocks and the untrained model")
    out: str = flag(
        "",
        "folder of probe.png, probe.md and result.json (default: probe/ in the first run's folder)",
    )
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


class Probe(nn.Module):
    """Linear(n_embd, 2 n_embd), ReLU, Linear(2 n_embd, n_position), without biases, Xavier's initial weights; states are
    divided by `scale`."""

    def __init__(self, n_embd, n_position, scale=1.0):
        super().__init__()
        self.scale = max(scale, 1e-8)
        self.layers = nn.Sequential(
            nn.Linear(n_embd, 2 * n_embd, bias=False),
            nn.ReLU(),
            nn.Linear(2 * n_embd, n_position, bias=False),
        )
        for layer in self.layers[::2]:
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x):
        """x (N, n_embd) -> logits (N, n_position)."""
        return self.layers(x / self.scale)


def texts_of(run, corpus, n, seed):
    """Training and test sequences for the probes, as pairs idx, mask (N, T): blocks of running text for a causal model,
    padded sentences for an encoder, as each was trained. The probes never meet a test sequence. UserError when there is
    too little text."""
    T = run.model.body.config.block_size
    if run.kind == "lm":
        train, test = (
            batching.stream(run.tokenizer, corpus.lines),
            batching.stream(
                run.tokenizer, [line for part in corpus.tests.values() for line in part]
            ),
        )
        require(
            (
                len(train) > T + 1 and len(test) > T + 1,
                f"--data {corpus.name}: too little text for blocks of {T} tokens; give another corpus",
            )
        )
        train, _ = batching.random_blocks(train, T, n, batching.generator("probe", seed))
        test, _ = batching.random_blocks(
            test, T, max(1, n // 4), batching.generator("probe test", seed)
        )
        return (train, torch.ones_like(train, dtype=torch.bool)), (
            test,
            torch.ones_like(test, dtype=torch.bool),
        )
    lines, held_out = (
        corpus.texts(),
        (
            [line for part in corpus.tests.values() for line in part]
            or [text for _, text in corpus.test_rows]
        ),
    )
    if not held_out:
        lines, held_out = hold_out(lines, 0.2, seed=0)
    pairs = []
    for part, count in ((lines, n), (held_out, max(1, n // 4))):
        sequences, _ = batching.sentences(run.tokenizer, part, T)
        chosen = torch.randperm(len(sequences), generator=batching.generator("probe", seed))[:count]
        require((len(chosen) > 0, f"--data {corpus.name}: holds no sentences; give another corpus"))
        pairs.append(batching.pad([sequences[i] for i in chosen]))
    return tuple(pairs)


@torch.no_grad()
def states_of(body, idx, mask, device):
    """(n_layer + 1, N, C): the states of the N real tokens of idx, mask (B, T), the embeddings first; padding is left out."""
    parts = []
    for rows, real in zip(idx.split(64), mask.split(64)):
        rows, real = rows.to(device), real.to(device)
        _, states = body(rows, None if real.all() else real, need_states=True)
        parts.append(torch.stack(states)[:, real])
    return torch.cat(parts, dim=1)


def fit_probes(body, idx, mask, flags):
    """A probe for each layer, fitted to where the real tokens of idx, mask (B, T) stand."""
    body.eval().requires_grad_(False)
    device = body.embedding.weight.device
    positions = torch.arange(idx.size(1)).expand_as(idx)[mask].to(device)  # (N,)
    probes = []
    for states in states_of(body, idx, mask, device):  # (N, C)
        torch.manual_seed(flags.seed)
        # Layers differ in scale by orders of magnitude, which the optimizer's steps do not.
        probe = Probe(
            states.size(1), body.config.block_size, scale=states.pow(2).mean().sqrt().item()
        ).to(device)
        optimizer = torch.optim.Adam(probe.parameters(), lr=flags.lr)
        for step in range(flags.steps):
            which = torch.randint(
                len(states),
                (flags.batch_size,),
                generator=batching.generator("probe batch", flags.seed, step),
            ).to(device)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, flags.steps, flags.lr, 0, 1.0)
            loss = F.cross_entropy(probe(states[which]), positions[which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        probes.append(probe)
    return probes


@torch.no_grad()
def guess(body, probes, idx, mask):
    """(n_layer + 1, N) positions that the probes give the N real tokens of idx, mask (B, T), and the true ones (N,)."""
    states = states_of(body, idx, mask, body.embedding.weight.device)
    guesses = torch.stack([probe(layer).argmax(-1).cpu() for probe, layer in zip(probes, states)])
    return guesses, torch.arange(idx.size(1)).expand_as(idx)[mask]


def untrained(body, seed):
    """A body of the same configuration with new initial weights."""
    torch.manual_seed(seed)
    return LanguageModel(type(body)(body.config)).body.to(body.embedding.weight.device)


def distances(guesses, truth):
    """For each layer, the mean absolute distance in tokens."""
    return (guesses - truth).abs().float().mean(1).tolist()


def random_guess(truth, n_position):
    """The distance to expect of a position drawn from all n_position alike: (n^2 - 1) / 3n where every position is as
    frequent."""
    return (torch.arange(n_position)[:, None] - truth).abs().float().mean().item()


def probe(flags):
    require(
        (flags.blocks > 3, f"--blocks must be at least 4, got {flags.blocks}"),
        (flags.steps > 0, f"--steps must be at least 1, got {flags.steps}"),
        (flags.lr > 0, f"--lr must be above 0, got {flags.lr}"),
        (flags.batch_size > 0, f"--batch-size must be at least 1, got {flags.batch_size}"),
    )
    started, device = time.perf_counter(), prepare(flags)
    loaded = [
        load_run(folder, ("lm", "mlm", "classifier"), device=device)
        for folder in dict.fromkeys(flags.runs)
    ]
    out = figures_folder(flags.out or loaded[0].folder / "probe")

    result = {}
    for name, group in by_position(loaded).items():
        measured = [measure(run, flags) for run in group]
        result[name] = {
            "folders": [str(run.folder) for run in group],
            "seeds": [run.config["flags"]["seed"] for run in group],
            "block_size": group[0].model.body.config.block_size,
            **{
                key: [m[key] for m in measured]
                for key in ("random", "middle", "trained", "untrained")
            },
            "example": measured[0]["example"],
        }
        trained, untrained = (
            [f"{statistics.fmean(values):.1f}" for values in zip(*result[name][kind])]
            for kind in ("trained", "untrained")
        )
        print(
            f"{name}: {'  '.join(f'{layer_name(i)} {distance}' for i, distance in enumerate(trained))}"
            f"  (untrained {', '.join(untrained)}; "
            f"always the middle {measured[0]['middle']:.1f}; random guess {measured[0]['random']:.1f})",
            flush=True,
        )

    out.mkdir(parents=True, exist_ok=True)
    print(write_table(out / "probe", result))
    write_json(
        out / "result.json",
        {
            "runs": result,
            "seconds": round(time.perf_counter() - started, 1),
            "command": shlex.join(["python", "-m", "studies.probe_position", *sys.argv[1:]]),
        },
    )
    draw(out, result)
    print(
        f"{out}: probe.png, probe.md, probe.tex and result.json; {time.perf_counter() - started:.0f} s"
    )


def measure(run, flags):
    """Distances of the guesses for each layer of a run and of its untrained double, of guessing without looking, and one
    text guess by guess."""
    body = run.model.body
    train, test = texts_of(
        run, data.load(flags.data or run.config["flags"]["data"]), flags.blocks, flags.seed
    )
    seed = run.config["flags"]["seed"]
    blank = untrained(body, seed)
    probes = fit_probes(body, *train, flags)
    guesses, truth = guess(body, probes, *test)
    found = {
        "random": random_guess(truth, body.config.block_size),
        "middle": (truth - truth.median()).abs().float().mean().item(),
        "trained": distances(guesses, truth),
        "untrained": distances(*guess(blank, fit_probes(blank, *train, flags), *test)),
    }
    sequence = (
        batching.sentences(run.tokenizer, [flags.text], body.config.block_size)[0][0]
        if flags.text
        else test[0][0][test[1][0]]
    )
    guesses, truth = guess(
        body, probes, sequence[None], torch.ones_like(sequence[None], dtype=torch.bool)
    )
    return found | {"example": {"guessed": guesses.tolist(), "true": truth.tolist()}}


def layer_name(i):
    return f"layer {i}" if i else "embeddings"


def write_table(stem, result):
    """A row for each configuration and for its untrained double, a column for each layer."""
    columns = max(len(r["trained"][0]) for r in result.values())
    rows = []
    for name, r in result.items():
        for kind, label in (("trained", name), ("untrained", f"{name}, untrained")):
            cells = [tables.spread(values, 2) for values in zip(*r[kind])]
            rows.append([label, *cells, *["–"] * (columns - len(cells)), f"{r['random'][0]:.2f}"])
    seeds = max(len(r["trained"]) for r in result.values())
    middle = ", ".join(sorted({f"{r['middle'][0]:.2f}" for r in result.values()}))
    return tables.write(
        stem,
        ["", *map(layer_name, range(columns)), "random guess"],
        rows,
        "Mean absolute distance, in tokens, between the guessed and the true position on test text"
        + f", ± sample standard deviation over {seeds} seeds" * (seeds > 1)
        + f". Always guessing the middle gives {middle}.",
    )


@styled
def draw(out, result):
    """probe.png: distance over layers for all configurations; beside it, for each, guessed against true position in one
    text."""
    figure, axes = new_figure(
        1,
        1 + len(result),
        figsize=(3.6 + 2.3 * len(result), 3.1),
        layout="constrained",
        gridspec_kw={"width_ratios": [1.7] + [1] * len(result)},
    )
    means = {}
    for i, (name, r) in enumerate(result.items()):
        layers = range(len(r["trained"][0]))
        means[name] = over_seeds(
            axes[0], layers, r["trained"], marker="o", color=f"C{i}", markersize=4, label=name
        )
        axes[0].plot(
            layers,
            [statistics.fmean(values) for values in zip(*r["untrained"])],
            ":",
            color=f"C{i}",
            linewidth=1.3,
        )
    axes[0].plot([], [], "k:", label="untrained, dotted")
    for key, words, style in (
        ("random", "random guess", "--"),
        ("middle", "always the middle", "-."),
    ):
        for level in {round(r[key][0], 2) for r in result.values()}:
            axes[0].axhline(level, color="0.4", linestyle=style, linewidth=0.9)
        axes[0].plot([], [], style, color="0.4", label=words)
    axes[0].set_xticks(range(max(len(r["trained"][0]) for r in result.values())))
    axes[0].set(
        xlabel="layer (0: embeddings)",
        ylabel="mean distance of the guess (tokens)",
        ylim=(-0.03 * axes[0].get_ylim()[1], None),
    )
    axes[0].legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3)
    for axis, (name, r) in zip(axes[1:], result.items()):
        truth, guesses = r["example"]["true"], r["example"]["guessed"]
        best = min(range(len(guesses)), key=lambda layer: means[name][layer])
        axis.plot(truth, truth, color="0.6", linewidth=0.9)
        shown = dict.fromkeys([0, best])  # what comes in, and where the position is clearest
        for layer, marker in zip(shown, "x."):
            axis.plot(
                truth,
                guesses[layer],
                marker,
                markersize=4,
                label=layer_name(layer) + ", its best" * (layer == best),
                alpha=0.8,
                color="0.55" if marker == "x" and len(shown) > 1 else "C0",
            )
        ends = (-0.03 * r["block_size"], 1.03 * r["block_size"])
        axis.set(title=name, xlabel="true position", xlim=ends, ylim=ends)
        axis.set_aspect("equal", adjustable="box")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.3), handletextpad=0.1)
    axes[1].set_ylabel("guessed position, one text")
    save(figure, out / "probe.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__.split("\n")[0])
