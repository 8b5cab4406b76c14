"""Read positions back out of the layers of causal models, and test whether word order matters.

    python -m studies.probe out/lm-speeches-nope-0 out/lm-speeches-alibi-0 --order
    python -m studies.probe out/nope --layers 1,2 --kept 0,100

A small network, the probe, learns to predict a token's position from its frozen state in a layer
(Haviv et al. 2022, section 5). Its error on test text, the distance from the median of its
distribution, shows how much of the position the layer holds. guesses.png shows these medians in one
text (their figure 3). --order: the last token of a block is predicted while only the last k tokens
before it keep their order (their appendix).
"""

import math
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

from data import batching
from data.corpus import Corpus
from data.leaks import hold_out
from data.text import load_parts
from data.tokenizer import BOS
from lab import figures, tables
from lab.flags import main, require, whole_numbers
from lab.load import read_run
from lab.machine import set_up_device
from lab.optim import learning_rate
from lab.rows import group_runs, read_finished_run
from nets.build import build_model
from nets.classifier import read_states
from nets.ensemble import members_of
from studies.sweep import finish

KEPT_IN_ORDER = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders; those that differ in the seed are averaged
    data: str = ""  # corpus to read; '': each run's own
    layers: str = ""  # layers to probe, as 0,2; 0: the embeddings; '': all
    kept: str = ""  # steps that --keep kept, to probe too, as 0,100
    order: bool = False  # also test the use of word order
    blocks: int = 1500  # blocks to train probes on; a quarter as many test them
    order_blocks: int = 1000  # blocks of the order test
    steps: int = 3000  # updates of each probe
    batch_size: int = 1024  # tokens per update
    lr: float = 2e-3  # peak learning rate of the probes; it falls to zero
    seed: int = 0  # seed of the probes, the blocks and the shuffling
    out: str = ""  # folder of the results; '': probe/ in the first run's folder


def probe(flags):
    device = set_up_device()
    out = Path(flags.out or Path(flags.runs[0]) / "probe").expanduser()
    results = {}  # label of a row: what `measure` returns for each of its runs
    for row in group_runs([read_finished_run(folder) for folder in flags.runs]):
        results[row.label] = [measure(run.folder, flags, device) for run in row.runs]
    out.mkdir(parents=True, exist_ok=True)
    write_errors(out / "median", results)
    if flags.order:
        write_order(out / "order", results)
    draw(out / "probe.png", results)
    draw_guesses(out / "guesses.png", results)
    finish(out, {"runs": results})


# ---------------------------------------------------------------------------------- 1. Measurements
def measure(folder, flags, device):
    """Return {"probe": {weights: error per layer}, "guesses": positions guessed in one text,
    "nothing": error without states, ...}."""
    print(f"measuring {folder}", flush=True)
    run = read_run(folder, ("lm",), device)
    run_flags = run.config["flags"]
    if flags.data:
        corpus, *_ = load_parts(flags.data)
    else:
        corpus, *_ = load_parts(run_flags["data"], run_flags["vocab_from"], run_flags["split"])
    tests = [*chain.from_iterable(corpus.tests.values())]
    kept, _ = hold_out(corpus.lines, run_flags["valid"])  # what the run was trained on
    kept = Corpus("", kept).texts(without=tests)
    T = run.model.body.config.block_size
    layers = chosen_layers(flags, run.model.body.config.n_layer)
    bodies = load_bodies(run, flags)

    gen = batching.generator("probe", flags.seed)
    train, _ = blocks_of(run, kept, flags.blocks, gen)  # (N, T)
    gen = batching.generator("probe test", flags.seed)
    test, _ = blocks_of(run, tests, flags.blocks // 4, gen)
    truth = torch.arange(T).repeat(len(test))
    errors = {}
    guesses = {}
    for name, body in bodies.items():
        body.eval().requires_grad_(False)
        guesses[name] = guess_positions(body, layers, train, test, flags)
        errors[name] = [mean_distance(positions, truth) for positions in guesses[name]]
    best = errors["trained"].index(min(errors["trained"]))
    result = {
        "folder": str(folder),
        "seed": run_flags["seed"],
        "data": corpus.name,
        "layers": layers,
        "probe": errors,
        "guesses": {"layer": layers[best], "positions": guesses["trained"][best][:T].tolist()},
        "nothing": mean_distance(truth.median(), truth),  # the best constant answer: the middle
    }
    if flags.order:
        result["order"] = order_test(run, tests, flags)
    return result


def chosen_layers(flags, n_layer):
    """Return the layers of --layers that a model has, by default all. 0: its embeddings."""
    layers = whole_numbers(flags.layers, "--layers") or range(n_layer + 1)
    return [layer for layer in layers if layer <= n_layer]


def load_bodies(run, flags):
    """Return {name of the weights: body}: untrained, at the steps of --kept, and trained."""
    body = run.model.body
    device = batching.device_of(body)
    torch.manual_seed(run.config["flags"]["seed"])  # the initial weights of the run
    untrained = build_model("lm", body.config, device, **run.config["build"])
    bodies = {"untrained": untrained.body}
    for step in whole_numbers(flags.kept, "--kept"):
        bodies[f"step {step}"] = read_run(run.folder, device=device, step=step).model.body
    bodies["trained"] = body
    return bodies


def blocks_of(run, lines, n, gen):
    """Return n blocks of running text, inputs and targets (n, T)."""
    ids = batching.stream(run.tokenizer, lines)
    T = run.model.body.config.block_size
    require(len(ids) > T, f"--data: too little training or test text for blocks of {T} tokens")
    x, y = batching.random_blocks(ids, T, n, gen)
    if run.config["flags"]["anchor"]:
        x[:, 0] = BOS
    return x, y


def guess_positions(body, layers, train, test, flags):
    """Return for each layer the median positions (n * T,) of a probe on blocks test (n, T). It
    learns on blocks train (N, T)."""
    states = states_of_tokens(body, train, layers)
    test_states = states_of_tokens(body, test, layers)
    probes = [fit(of_layer, test.size(1), flags) for of_layer in states]
    return [median(network, of_layer) for network, of_layer in zip(probes, test_states)]


@torch.no_grad()
def states_of_tokens(body, idx, layers):
    """Return the states (len(layers), N * T, C) of the tokens of idx (N, T)."""
    parts = []
    for rows in idx.split(64):
        states = read_states(body, rows.to(batching.device_of(body)))
        chosen = [states[layer].flatten(0, 1) for layer in layers]  # of each layer (64 * T, C)
        parts.append(torch.stack(chosen))
    return torch.cat(parts, dim=1)


def fit(states, T, flags):
    """Return a function from states (N, C) to logits (N, T), trained on states of blocks of T."""
    N, C = states.shape
    device = states.device
    positions = torch.arange(T, device=device).repeat(N // T)
    torch.manual_seed(flags.seed)
    first = nn.Linear(C, 2 * C, bias=False)
    second = nn.Linear(2 * C, T, bias=False)
    nn.init.xavier_uniform_(first.weight)
    nn.init.xavier_uniform_(second.weight)
    network = nn.Sequential(first, nn.ReLU(), second).to(device)
    scale = max(states.pow(2).mean().sqrt().item(), 1e-8)  # layers differ by orders of magnitude
    optimizer = torch.optim.Adam(network.parameters(), lr=flags.lr)
    for step in range(flags.steps):
        gen = batching.generator("probe batch", flags.seed, step)
        rows = torch.randint(N, (flags.batch_size,), generator=gen).to(device)
        lr = learning_rate(step, flags.steps, flags.lr, warmup=0, decay=1.0)
        optimizer.param_groups[0]["lr"] = lr
        loss = F.cross_entropy(network(states[rows] / scale), positions[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda states: network(states / scale)


@torch.no_grad()
def median(network, states):
    """Return the median positions (N,) of a probe's distributions on states (N, C)."""
    probabilities = network(states).softmax(-1)  # (N, T)
    return (probabilities.cumsum(-1) < 0.5).sum(-1).cpu()


def mean_distance(positions, truth):
    """Return the mean distance between positions (N,) or (), and the true ones (N,)."""
    return (positions - truth).abs().float().mean().item()


@torch.no_grad()
def order_test(run, lines, flags):
    """Return {"kept": values of k, "shuffled": loss in nats of the last token for each}."""
    model = members_of(run.model)[0]  # of an ensemble, one
    T = run.model.body.config.block_size
    gen = batching.generator("order", flags.seed)
    x, y = blocks_of(run, lines, flags.order_blocks, gen)  # (N, T)
    order = torch.rand(x.shape, generator=gen)
    if run.config["flags"]["anchor"]:
        order[:, 0] = -1  # shuffled tokens stay behind the anchor
    last = torch.full_like(y, -100)
    last[:, -1] = y[:, -1]
    kept = [k for k in KEPT_IN_ORDER if k < T] + [T]
    means = []
    for k in kept:
        shuffled = shuffle_all_but_last(x, order, k)
        losses = []
        for inputs, targets in zip(shuffled.split(64), last.split(64)):
            losses.append(model.losses(inputs.to(run.device), targets).cpu())
        means.append(torch.cat(losses).mean().item())
    return {"kept": kept, "shuffled": means}


def shuffle_all_but_last(x, order, k):
    """Return x (N, T) with the first T - k tokens of each row sorted by `order` (N, T)."""
    n = x.size(1) - k
    shuffled = x[:, :n].gather(1, order[:, :n].argsort(1))
    return torch.cat([shuffled, x[:, n:]], dim=1)


# ----------------------------------------------------------------------------- 2. Tables and figure
def write_errors(stem, results):
    """Write and print the table of the probes' errors by layer."""
    layers = set()
    for runs in results.values():
        layers.update(runs[0]["layers"])
    layers = sorted(layers)
    rows = []
    for label, runs in results.items():
        for weights in runs[0]["probe"]:
            errors = zip(*(run["probe"][weights] for run in runs))  # per layer, then seed
            cells = {}
            for layer, of_seeds in zip(runs[0]["layers"], errors):
                cells[layer] = tables.spread(of_seeds, 2)
            row = [label, weights, *(cells.get(layer, "–") for layer in layers)]
            rows.append([*row, f"{runs[0]['nothing']:.2f}"])
    headings = [f"layer {layer}" for layer in layers]
    if 0 in layers:
        headings[0] = "embeddings"
    header = ["positions", "weights", *headings, "always the middle"]
    caption = "Mean distance in tokens from the probe's median position on test text, ± over seeds."
    print(tables.write(stem, header, rows, caption, left=2))


def write_order(stem, results):
    """Write and print the table of the order test."""
    kept = max((runs[0]["order"]["kept"] for runs in results.values()), key=len)
    rows = []
    for label, runs in results.items():
        losses = zip(*(run["order"]["shuffled"] for run in runs))  # per k, then seed
        cells = [tables.spread(of_seeds, 2) for of_seeds in losses]
        missing = ["–"] * (len(kept) - len(cells))  # of shorter blocks; the last k is all
        rows.append([label, *cells[:-1], *missing, cells[-1]])
    header = ["positions", *(f"last {k}" for k in kept[:-1]), "all"]
    caption = "Loss in nats of the last token when only the last k keep their order."
    print(tables.write(stem, header, rows, caption))


def draw(path, results):
    """Draw the probes' errors over the layers, with the same scale for all rows."""
    panels = []
    for label, runs in results.items():
        lines = {}
        for weights in runs[0]["probe"]:
            errors = [run["probe"][weights] for run in runs]  # per seed, then layer
            lines[weights] = (runs[0]["layers"], errors)
        dashed = {"always the middle": runs[0]["nothing"]}
        panels.append(figures.Panel(label, "error (tokens)", lines, dashed))
    figure = figures.curves(panels, "layer")
    highest = max(axis.get_ylim()[1] for axis in figure.axes)
    for axis in figure.axes:
        axis.set_ylim(0, highest)
    figures.save(figure, path)


@figures.styled()
def draw_guesses(path, results):
    """Draw guessed against true positions in the first test block: of the first run of each row,
    trained, in its best layer."""
    columns = min(len(results), 3)
    rows = math.ceil(len(results) / 3)
    figure, axes = figures.new_figure(rows, columns, (2.1 * columns, 2.6 * rows), squeeze=False)
    styles = figures.line_styles(results)
    for axis, (label, runs) in zip(axes.flat, results.items()):
        guesses = runs[0]["guesses"]
        T = len(guesses["positions"])
        layer = f"layer {guesses['layer']}"
        if guesses["layer"] == 0:
            layer = "embeddings"
        axis.axline((0, 0), slope=1, color="0.6", linewidth=0.9)  # right guesses
        axis.plot(guesses["positions"], ".", color=styles[label]["color"])
        axis.set(title=f"{label}\n{layer}", xlabel="true position", ylabel="guessed position")
        axis.set(aspect="equal", xlim=(-2, T + 1), ylim=(-2, T + 1))
    for axis in axes.flat[len(results) :]:
        axis.remove()
    figures.save(figure, path)


if __name__ == "__main__":
    main(probe, Flags)
