"""Read positions back out of the layers of causal models, and test whether word order matters.

    python -m studies.probe out/lm-speeches-nope-0 out/lm-speeches-alibi-0 --order
    python -m studies.probe out/nope --layers 1,2 --kept 0,100

A small network, the probe, learns to predict a token's position from its frozen state in a layer
(Haviv et al. 2022, section 5). Its error on test text, the distance from the median of its
distribution, shows how much of the position the layer holds. --order: the last token of a block is
predicted while only the last k tokens before it keep their order (their appendix).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

import compare
from data import batching
from data.corpus import Corpus, hold_out
from data.text import load_parts
from data.tokenizer import BOS
from lab import figures, tables
from lab.flags import main, require, whole_numbers
from lab.load import read_run
from lab.machine import set_up_device
from lab.optim import learning_rate
from model import LanguageModel
from nets.ensemble import members_of
from studies.sweep import finish

KEPT_IN_ORDER = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders; those that differ in the seed are averaged
    data: str = ""  # corpus to read (default: each run's own)
    layers: str = ""  # layers to probe, as 0,2; 0: the embeddings (default: all)
    kept: str = ""  # steps that --keep kept, to probe too, as 0,100
    order: bool = False  # also test the use of word order
    blocks: int = 1500  # blocks to train probes on; a quarter as many test them
    order_blocks: int = 1000  # blocks of the order test
    steps: int = 3000  # updates of each probe
    batch_size: int = 1024  # tokens per update
    lr: float = 2e-3  # peak learning rate of the probes; it falls to zero
    seed: int = 0  # seed of the probes, the blocks and the shuffling
    out: str = ""  # folder of the results (default: probe/ in the first run's folder)


def probe(flags):
    device, results = set_up_device(), {}
    out = Path(flags.out or Path(flags.runs[0]) / "probe").expanduser()
    for row in compare.group([compare.read(folder) for folder in flags.runs], ""):
        results[row.label] = [measure(run.folder, flags, device) for run in row.runs]
    out.mkdir(parents=True, exist_ok=True)
    layers = sorted({layer for runs in results.values() for layer in runs[0]["layers"]})
    header, rows, panels = [f"layer {i}" if i else "embeddings" for i in layers], [], []
    for label, runs in results.items():
        own, middle, lines = runs[0]["layers"], runs[0]["nothing"], {}
        for weights in runs[0]["probe"]:
            errors = [run["probe"][weights] for run in runs]  # per seed, then layer
            cells = dict(zip(own, (tables.spread(each, 2) for each in zip(*errors))))
            rows.append([label, weights, *(cells.get(i, "–") for i in layers), f"{middle:.2f}"])
            lines[weights] = own, errors
        panels.append((label, "distance in tokens", lines, {"always the middle": middle}, False))
    header = ["positions", "weights", *header, "always the middle"]
    caption = "Mean distance in tokens from the probe's median position on test text, ± over seeds."
    print(tables.write(out / "median", header, rows, caption, left=2))
    if flags.order:
        kept, rows = max((runs[0]["order"]["kept"] for runs in results.values()), key=len), []
        for label, runs in results.items():
            losses = zip(*(run["order"]["shuffled"] for run in runs))
            cells = [tables.spread(each, 2) for each in losses]
            rows.append([label, *cells[:-1], *["–"] * (len(kept) - len(cells)), cells[-1]])
        header = ["positions", *(f"last {k}" for k in kept[:-1]), "all"]
        caption = "Loss in nats of the last token when only the last k keep their order."
        print(tables.write(out / "order", header, rows, caption))
    figure = figures.curves(panels, "layer")
    for axis in figure.axes:
        axis.set_ylim(0, max(axis.get_ylim()[1] for axis in figure.axes))
    figures.save(figure, out / "probe.png")
    finish(out, {"runs": results})


def measure(folder, flags, device):
    """Return {"probe": {weights: error per layer}, "nothing": error without states, ...}."""
    print(f"measuring {folder}", flush=True)
    run = read_run(folder, ("lm",), device)
    body, then = run.model.body, run.config["flags"]
    own = () if flags.data else (then["vocab_from"], then["split"])
    corpus, *_ = load_parts(flags.data or then["data"], *own)
    known, T = range(body.config.n_layer + 1), body.config.block_size
    layers = [i for i in whole_numbers(flags.layers, "--layers") or known if i in known]

    torch.manual_seed(then["seed"])
    bodies = {"untrained": LanguageModel(type(body)(body.config)).body.to(device)}
    for step in whole_numbers(flags.kept, "--kept"):
        bodies[f"step {step}"] = read_run(folder, device=device, step=step).model.body
    bodies["trained"] = body
    gen, n, found = batching.generator, flags.blocks, {}
    tests = [line for lines in corpus.tests.values() for line in lines]
    kept, _ = hold_out(corpus.lines, then["valid"])  # what the run was trained on
    train, _ = blocks_of(run, Corpus("", kept).texts(tests), n, gen("probe", flags.seed))  # (n, T)
    test, _ = blocks_of(run, tests, n // 4, gen("probe test", flags.seed))
    truth = torch.arange(T).repeat(len(test))
    nothing = mean_distance(truth.median(), truth)  # the best constant answer: the middle
    for name, each in bodies.items():
        each.eval().requires_grad_(False)
        to_learn, to_test = (states_of_tokens(each, idx, layers) for idx in (train, test))
        probes = [fit(states, T, flags) for states in to_learn]
        answers = [median(probe, states) for probe, states in zip(probes, to_test)]
        found[name] = [mean_distance(answer, truth) for answer in answers]
    about = {"folder": str(folder), "seed": then["seed"], "data": corpus.name, "layers": layers}
    order = {"order": order_test(run, tests, flags)} if flags.order else {}
    return about | {"probe": found, "nothing": nothing} | order


def blocks_of(run, lines, n, gen):
    """Return n blocks of running text, inputs and targets (n, T)."""
    ids, T = batching.stream(run.tokenizer, lines), run.model.body.config.block_size
    require(len(ids) > T, f"--data: too little training or test text for blocks of {T} tokens")
    x, y = batching.random_blocks(ids, T, n, gen)
    if run.config["flags"]["anchor"]:
        x[:, 0] = BOS
    return x, y


@torch.no_grad()
def states_of_tokens(body, idx, layers):
    """Return the states (len(layers), N * T, C) of the tokens of idx (N, T)."""
    device, found = batching.device_of(body), []
    for rows in idx.split(64):
        _, states = body(rows.to(device), need_states=True)
        found.append(torch.stack([states[layer].flatten(0, 1) for layer in layers]))
    return torch.cat(found, dim=1)


def fit(states, T, flags):
    """Return a function from states (N, C) to logits (N, T), trained on states of blocks of T."""
    (N, C), device = states.shape, states.device
    positions = torch.arange(T, device=device).repeat(N // T)
    torch.manual_seed(flags.seed)
    layers = nn.Linear(C, 2 * C, bias=False), nn.Linear(2 * C, T, bias=False)
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(device)
    scale = max(states.pow(2).mean().sqrt().item(), 1e-8)  # layers differ by orders of magnitude
    optimizer = torch.optim.Adam(network.parameters(), lr=flags.lr)
    for step in range(flags.steps):
        gen = batching.generator("probe batch", flags.seed, step)
        which = torch.randint(N, (flags.batch_size,), generator=gen).to(device)
        optimizer.param_groups[0]["lr"] = learning_rate(step, flags.steps, flags.lr, 0, 1.0)
        loss = F.cross_entropy(network(states[which] / scale), positions[which])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda states: network(states / scale)


@torch.no_grad()
def median(probe, states):
    """Return the median positions (N,) of a probe's distributions on states (N, C)."""
    return (probe(states).softmax(-1).cumsum(-1) < 0.5).sum(-1).cpu()


def mean_distance(positions, truth):
    """Return the mean distance between positions (N,) or (), and the true ones (N,)."""
    return (positions - truth).abs().float().mean().item()


@torch.no_grad()
def order_test(run, lines, flags):
    """Return {"kept": values of k, "shuffled": loss in nats of the last token for each}."""
    model, T = members_of(run.model)[0], run.model.body.config.block_size  # of an ensemble, one
    gen = batching.generator("order", flags.seed)
    x, y = blocks_of(run, lines, flags.order_blocks, gen)  # (N, T)
    order = torch.rand(x.shape, generator=gen)
    if run.config["flags"]["anchor"]:
        order[:, 0] = -1  # shuffled tokens stay behind the anchor
    last = torch.cat([torch.full_like(y[:, 1:], -100), y[:, -1:]], dim=1)
    kept, shuffled = [k for k in KEPT_IN_ORDER if k < T] + [T], []
    for k in kept:
        parts = zip(shuffle_all_but_last(x, order, k).split(64), last.split(64))
        losses = torch.cat([model.losses(a.to(run.device), b).cpu() for a, b in parts])
        shuffled.append(losses.mean().item())
    return {"kept": kept, "shuffled": shuffled}


def shuffle_all_but_last(x, order, k):
    """Return x (N, T) with the first T - k tokens of each row sorted by `order` (N, T)."""
    n = x.size(1) - k
    return torch.cat([x[:, :n].gather(1, order[:, :n].argsort(1)), x[:, n:]], dim=1)


if __name__ == "__main__":
    main(probe, Flags)
