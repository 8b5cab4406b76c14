"""Read the position of every word back out of a model's layers (Haviv et al. 2022, section 5).

    python -m studies.probe_position out/lm-speeches-nope-0 out/lm-speeches-alibi-0

For every layer a small network, the probe, learns to tell from the frozen state of a word where the
word stands. Its error on new text shows how much of the position the layer holds. The same is done
with an untrained model of the same configuration.

Three numbers say how good the probe is. A layer that knows nothing gets the number in brackets:

    argmax   distance from the likeliest position to the true one, as in the source (random guess)
    median   distance from the median of the probe's distribution (always the middle)
    nats     cross-entropy of the true position (log of the number of positions)
"""

import math
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import data
from data import batching
from lab import tables
from lab.command import main
from lab.figures import new_figure, over_seeds, save, styled
from lab.flags import flag
from lab.optim import learning_rate
from model import LanguageModel
from studies.probes import ProbeFlags, measure_runs, n_seeds, styles, texts_of
from studies.report import finish


@dataclass
class FitFlags(ProbeFlags):
    """the training of the probes"""

    blocks: int = flag(1500, "blocks to train on; a quarter as many test the probes", at_least=4)
    steps: int = flag(3000, "updates of each probe", at_least=1)
    batch_size: int = flag(1024, "words per update", at_least=1)
    lr: float = flag(2e-3, "peak learning rate of the probes; it falls to zero", above=0)
    seed: int = flag(0, "seed of the probes, the blocks and the untrained model")


@dataclass
class Flags(FitFlags):
    text: str = flag("", "text of the scatter plots (default: the first of the test text)")
    out: str = flag("", "folder of the results (default: probe/ in the first run's folder)")


def probe(flags):
    started = time.perf_counter()
    out, result = measure_runs(flags, ("lm", "mlm", "classifier"), "probe", measure)
    tables_of_scores = [write_table(out, result, *score) for score in SCORES]
    print("\n".join(tables_of_scores))
    draw(out, result)
    finish(out, started, {"runs": result}, ("probe.png", "argmax, median and nats as .md and .tex"))


def measure(run, flags):
    """Return the scores of the probes of each layer, trained and untrained.

    {"data": the corpus, "trained" and "untrained": {score: a number per layer}, "nothing": {score:
    that of a layer that knows nothing}, "example": the guesses for one text}.
    """
    body, seed = run.model.body, run.config["flags"]["seed"]
    corpus = data.load(flags.data or run.config["flags"]["data"])
    train, test = texts_of(run, corpus, flags.blocks, flags.seed)
    blank, T = untrained(body, seed), body.config.block_size
    probes = fit_probes(body, *train, flags)
    readings, truth = read_positions(body, probes, *test)
    readings_of_blank, _ = read_positions(blank, fit_probes(blank, *train, flags), *test)

    text = test[0][0][test[1][0]]
    if flags.text:
        text = batching.sentences(run.tokenizer, [flags.text], T)[0][0]
    whole = torch.ones_like(text[None], dtype=torch.bool)
    example, true = read_positions(body, probes, text[None], whole)
    return {
        "data": corpus.name,
        "trained": scores(readings, truth),
        "untrained": scores(readings_of_blank, truth),
        "nothing": {
            "argmax": random_guess(truth, T),
            "median": (truth - truth.median()).abs().float().mean().item(),
            "nats": math.log(T),
        },
        "example": {"guessed": [r["median"].tolist() for r in example], "true": true.tolist()},
    }


# ---------------------------------------------------------------------------- probes


class Probe(nn.Module):
    """Linear, ReLU, linear, without biases and with Xavier's initial weights.

    States are divided by `scale`, because layers differ in scale by orders of magnitude.
    """

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


@torch.no_grad()
def states_of(body, idx, mask, device):
    """Return (n_layer + 1, N, C): the states of the N real tokens of idx, mask (B, T).

    The embeddings come first. Padding is left out.
    """
    parts = []
    for rows, real in zip(idx.split(64), mask.split(64)):
        rows, real = rows.to(device), real.to(device)
        _, states = body(rows, None if real.all() else real, need_states=True)
        parts.append(torch.stack(states)[:, real])
    return torch.cat(parts, dim=1)


def fit_probes(body, idx, mask, flags):
    """Train a probe for each layer on the positions of the real tokens of idx, mask (B, T)."""
    body.eval().requires_grad_(False)
    device = body.embedding.weight.device
    positions = torch.arange(idx.size(1)).expand_as(idx)[mask].to(device)  # (N,)
    probes = []
    for states in states_of(body, idx, mask, device):  # (N, C)
        torch.manual_seed(flags.seed)
        scale = states.pow(2).mean().sqrt().item()
        probe = Probe(states.size(1), body.config.block_size, scale).to(device)
        optimizer = torch.optim.Adam(probe.parameters(), lr=flags.lr)
        for step in range(flags.steps):
            gen = batching.generator("probe batch", flags.seed, step)
            which = torch.randint(len(states), (flags.batch_size,), generator=gen).to(device)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, flags.steps, flags.lr, 0, 1.0)
            loss = F.cross_entropy(probe(states[which]), positions[which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        probes.append(probe)
    return probes


@torch.no_grad()
def read_positions(body, probes, idx, mask):
    """Return what the probes tell of each of the N real tokens, and their true positions (N,).

    The first is {"argmax": position (N,), "median": position (N,), "nats": loss (N,)} per layer.
    """
    truth = torch.arange(idx.size(1)).expand_as(idx)[mask]  # (N,)
    readings = []
    for probe, states in zip(probes, states_of(body, idx, mask, body.embedding.weight.device)):
        log_p = probe(states).log_softmax(-1).cpu()  # (N, n_position)
        nats = -log_p.gather(1, truth[:, None]).squeeze(1)
        below = (log_p.exp().cumsum(-1) < 0.5).sum(-1).clamp(max=log_p.size(1) - 1)
        readings.append({"argmax": log_p.argmax(-1), "median": below, "nats": nats})
    return readings, truth


def untrained(body, seed):
    """Return a body of the same configuration with random weights."""
    torch.manual_seed(seed)
    return LanguageModel(type(body)(body.config)).body.to(body.embedding.weight.device)


def scores(readings, truth):
    """Return {"argmax", "median": mean distance in tokens, "nats": mean loss}, a list of layers
    each."""
    return {
        "argmax": [(r["argmax"] - truth).abs().float().mean().item() for r in readings],
        "median": [(r["median"] - truth).abs().float().mean().item() for r in readings],
        "nats": [r["nats"].mean().item() for r in readings],
    }


def random_guess(truth, n_position):
    """Return the expected error of a random position; (n^2 - 1) / 3n if all are as frequent."""
    return (torch.arange(n_position)[:, None] - truth).abs().float().mean().item()


# ---------------------------------------------------------------------------- results


def layer_name(i):
    return f"layer {i}" if i else "embeddings"


SCORES = (  # name, what the caption says, what the column of a layer that knows nothing says
    ("argmax", "Mean distance in tokens from the probe's likeliest position", "random guess"),
    ("median", "Mean distance in tokens from the probe's median position", "always the middle"),
    ("nats", "Cross-entropy of the probe in nats", "log T"),
)


def write_table(out, result, score, words, nothing):
    """Write one of SCORES as .md and .tex, with two rows per configuration and a column per layer;
    return the Markdown."""
    columns = max(len(r["trained"][0][score]) for r in result.values())
    rows = []
    for label, r in result.items():
        level = f"{r['nothing'][0][score]:.2f}"
        for kind, name in (("trained", label), ("untrained", f"{label}, untrained")):
            cells = [tables.spread(values, 2) for values in by_layer(r, kind, score)]
            rows.append([name, *cells, *["–"] * (columns - len(cells)), level])
    seeds = n_seeds(result)
    spread = f", ± sample standard deviation over {seeds} seeds" * (seeds > 1)
    header = ["positions", *map(layer_name, range(columns)), nothing]
    return tables.write(out / score, header, rows, f"{words}, on test text{spread}.")


def by_layer(r, kind, score):
    """Return the values of the seeds for each layer."""
    return list(zip(*(seed[score] for seed in r[kind])))


@styled
def draw(out, result):
    """Draw probe.png: the median's distance over layers, and the guesses for one text at the best
    layer."""
    figure, (left, *right) = new_figure(
        1,
        1 + len(result),
        figsize=(3.8 + 2.1 * len(result), 3.3),
        gridspec_kw={"width_ratios": [1.8] + [1] * len(result)},
    )
    n_layers = max(len(r["trained"][0]["median"]) for r in result.values())
    for (r, style), axis in zip(styles(result), right):
        seeds = [seed["median"] for seed in r["trained"]]
        means = over_seeds(left, range(len(seeds[0])), seeds, **style)
        blank = [statistics.fmean(values) for values in by_layer(r, "untrained", "median")]
        left.plot(range(len(blank)), blank, ":", color=style["color"], linewidth=1.3)
        best = min(range(len(means)), key=means.__getitem__)
        true, guessed = r["example"][0]["true"], r["example"][0]["guessed"][best]
        axis.plot(true, true, color="0.6", linewidth=0.9)
        axis.plot(true, guessed, "o", markersize=3, alpha=0.8, color=style["color"])
        ends = (-0.03 * r["block_size"], 1.03 * r["block_size"])
        axis.set(xlabel="true position", xlim=ends, ylim=ends, aspect="equal")
        axis.set_title(f"{style['label']}, {layer_name(best)}", fontsize=8)
    left.plot([], [], "k:", label="untrained model")
    for level in sorted({round(r["nothing"][0]["median"], 1) for r in result.values()}):
        left.axhline(level, color="0.6", linewidth=0.9)
        left.text(
            0.02,
            level,
            "always the middle",
            transform=left.get_yaxis_transform(),
            fontsize=7,
            color="0.4",
            va="bottom",
        )
    left.set_xticks(range(n_layers), ["embed-\ndings", *map(str, range(1, n_layers))])
    left.set_ylim(-0.03 * left.get_ylim()[1], 1.05 * left.get_ylim()[1])
    left.set(xlabel="layer that the probe reads", ylabel="distance from the true position (tokens)")
    left.set_title("All test text", fontsize=9)
    right[0].set_ylabel("guessed position, one text")
    corpora = ", ".join(sorted({name for r in result.values() for name in r["data"]}))
    figure.suptitle(f"Which layers know a word's position? Probes on {corpora}")
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=8)
    save(figure, out / "probe.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__)
