"""Read positions back out of the layers of trained models, and test whether word order matters.

    python -m studies.probe out/lm-speeches-nope-0 out/lm-speeches-alibi-0 --order
    python -m studies.probe out/nope --layers 1,2 --kept all

A small network, the probe, learns to predict a token's position from its frozen state in a layer
(Haviv et al. 2022, section 5). Its error on test text shows how much of the position the layer
holds, beside an untrained model; --kept: also at steps that the training kept. Scores:

    argmax   distance from the likeliest position to the true one, as in the source
    median   distance from the median of the probe's distribution
    nats     cross-entropy of the true position

--order: the last token of a block is predicted while only the last k tokens before it keep their
order (their appendix). A model that has not learned order would not notice.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro

import data
from compare import group, read
from data import batching
from data.batching import device_of
from data.corpus import hold_out
from data.files import UserError
from data.tokenizer import BOS
from lab import tables
from lab.figures import line_colors, new_figure, over_seeds, save, styled
from lab.flags import main, whole_numbers
from lab.load import read_run
from lab.machine import set_up_device
from lab.optim import learning_rate
from model import LanguageModel
from nets.ensemble import members_of
from studies.sweep import finish

SCORES = {  # caption; what a layer that knows nothing does
    "argmax": ("Mean distance in tokens from the probe's likeliest position", "random guess"),
    "median": ("Mean distance in tokens from the probe's median position", "always the middle"),
    "nats": ("Cross-entropy of the probe in nats", "entropy of positions"),
}
SEGMENTS = 8  # parts of a block over which its losses are averaged
KEPT_IN_ORDER = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders; those that differ in the seed are averaged
    data: str = ""  # corpus to read (default: each run's own)
    labels: str = ""  # names of the configurations, joined by commas (default: what differs)
    layers: str = ""  # layers to probe, as 0,2; 0: the embeddings (default: all)
    kept: str = ""  # kept steps to probe too, as 0,100; all: all of them
    order: bool = False  # also test the use of word order, in causal models
    blocks: int = 1500  # blocks to train probes on; a quarter as many test them
    order_blocks: int = 1000  # blocks of the order test
    steps: int = 3000  # updates of each probe
    batch_size: int = 1024  # tokens per update
    lr: float = 2e-3  # peak learning rate of the probes; it falls to zero
    seed: int = 0  # seed of the probes, the blocks and the shuffling
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"  # where to compute
    out: str = ""  # folder of the results (default: probe/ in the first run's folder)


def probe(flags):
    device, results = set_up_device(flags.device), {}
    out = Path(flags.out or Path(flags.runs[0]) / "probe").expanduser()
    for row in group([read(Path(folder).expanduser()) for folder in flags.runs], flags.labels):
        results[row.label] = [measure(run.folder, flags, device) for run in row.runs]
    out.mkdir(parents=True, exist_ok=True)
    how = f"Probes: {flags.steps:,} steps on {flags.blocks:,} blocks."
    print(*(write_table(out, results, score, how) for score in SCORES), sep="\n")
    draw(out, results)
    if flags.order:
        print(write_order(out, results))
    finish(out, {"runs": results})


def measure(folder, flags, device):
    """Return {"probe": {state: {score: a number per layer}}, ...} of a run. The states are
    "untrained", the kept steps and "trained"."""
    print(f"measuring {folder}", flush=True)
    run = read_run(folder, ("lm", "mlm", "classifier"), device)
    body, seed = run.model.body, run.config["flags"]["seed"]
    corpus = data.load(flags.data or run.config["flags"]["data"])
    known, T = range(body.config.n_layer + 1), body.config.block_size
    layers = [i for i in whole_numbers(flags.layers, "--layers") or known if i in known]

    torch.manual_seed(seed)
    bodies = {"untrained": LanguageModel(type(body)(body.config)).body.to(device)}
    for step in kept_steps(run.folder, flags.kept):
        bodies[f"step {step}"] = read_run(folder, device=device, step=step).model.body
    bodies["trained"] = body
    train, test = texts_of(run, corpus, flags.blocks, flags.seed)
    at_train, truth = (torch.arange(i.size(1)).expand_as(i)[mask] for i, mask in (train, test))
    found = {}
    for state, each in bodies.items():
        each.eval().requires_grad_(False)
        to_learn, to_test = (states_of_tokens(each, *texts, layers) for texts in (train, test))
        probes = [fit(states, at_train, T, flags) for states in to_learn]
        of_layers = [scores(probe, states, truth) for probe, states in zip(probes, to_test)]
        found[state] = {score: [each[score] for each in of_layers] for score in SCORES}
    about = {"folder": str(folder), "seed": seed, "data": corpus.name, "layers": layers}
    order = {"order": order_test(run, corpus, flags)} if flags.order else {}
    return about | {"probe": found, "nothing": scores_of_nothing(truth, T)} | order


def kept_steps(folder, asked):
    """Return the steps of --kept. Raises UserError where the run did not keep them."""
    kept = sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt"))
    chosen = kept if asked == "all" else whole_numbers(asked, "--kept")
    if asked and not (chosen and set(chosen) <= set(kept)):
        raise UserError(f"--kept {asked}: {folder} kept {kept}; train it with --keep and the steps")
    return chosen


def texts_of(run, corpus, n, seed):
    """Return sequences to train and to test probes on, two pairs idx, mask (N, T): blocks of
    running text for a causal model, padded sentences for an encoder, as in their training."""
    gen, T = batching.generator, run.model.body.config.block_size
    if run.kind == "lm":
        train, _ = blocks_of(run, corpus, "training", n, gen("probe", seed))
        test, _ = blocks_of(run, corpus, "test", n // 4, gen("probe test", seed))
        return [(idx, torch.ones_like(idx, dtype=torch.bool)) for idx in (train, test)]
    tests = [line for part in corpus.tests.values() for line in part]
    lines, held_out = corpus.texts(), tests or [text for _, text in corpus.test_rows]
    if not held_out:
        lines, held_out = hold_out(lines, 0.2, seed=0)
    pairs = []
    for part, count in ((lines, n), (held_out, n // 4)):
        sequences, _ = batching.sentences(run.tokenizer, part, T)
        chosen = torch.randperm(len(sequences), generator=gen("probe", seed))[:count]
        pairs.append(batching.pad([sequences[i] for i in chosen]))
    return pairs


def blocks_of(run, corpus, part, n, gen):
    """Return n blocks of running text, inputs and targets (n, T), of the training or test text."""
    T, tests = run.model.body.config.block_size, corpus.tests.values()
    lines = corpus.lines if part == "training" else [line for each in tests for line in each]
    ids = batching.stream(run.tokenizer, lines)
    if len(ids) <= T:
        raise UserError(f"--data {corpus.name}: too little {part} text for blocks of {T} tokens")
    x, y = batching.random_blocks(ids, T, n, gen)
    if run.config["flags"].get("anchor"):
        x[:, 0] = BOS
    return x, y


# ---------------------------------------------------------------------------- the probe


@torch.no_grad()
def states_of_tokens(body, idx, mask, layers):
    """Return the states (len(layers), N, C) of the N real tokens of idx, mask (B, T)."""
    device, end = device_of(body), 0
    found = torch.empty(len(layers), int(mask.sum()), body.config.n_embd, device=device)
    for rows, real in zip(idx.to(device).split(64), mask.to(device).split(64)):
        _, states = body(rows, None if real.all() else real, need_states=True)
        begin, end = end, end + int(real.sum())
        found[:, begin:end] = torch.stack([states[layer] for layer in layers])[:, real]
    return found


def fit(states, positions, n_position, flags):
    """Return a probe, trained on states (N, C) at positions (N,): linear, ReLU, linear, without
    biases. It maps states (N, C) to logits (N, n_position)."""
    C, device, positions = states.size(1), states.device, positions.to(states.device)
    torch.manual_seed(flags.seed)
    layers = nn.Linear(C, 2 * C, bias=False), nn.Linear(2 * C, n_position, bias=False)
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(device)
    scale = max(states.pow(2).mean().sqrt().item(), 1e-8)  # layers differ by orders of magnitude
    optimizer = torch.optim.Adam(network.parameters(), lr=flags.lr)
    for step in range(flags.steps):
        gen = batching.generator("probe batch", flags.seed, step)
        which = torch.randint(len(states), (flags.batch_size,), generator=gen).to(device)
        optimizer.param_groups[0]["lr"] = learning_rate(step, flags.steps, flags.lr, 0, 1.0)
        loss = F.cross_entropy(network(states[which] / scale), positions[which])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return lambda states: network(states / scale)


@torch.no_grad()
def scores(probe, states, truth):
    """Return {score: mean over N tokens} of a probe on states (N, C) at positions truth (N,)."""
    log_p = probe(states).log_softmax(-1).cpu()  # (N, n_position)
    median = (log_p.exp().cumsum(-1) < 0.5).sum(-1)
    return {
        "argmax": (log_p.argmax(-1) - truth).abs().float().mean().item(),
        "median": (median - truth).abs().float().mean().item(),
        "nats": -log_p.gather(1, truth[:, None]).mean().item(),
    }


def scores_of_nothing(truth, n_position):
    """Return the scores of a probe that knows only how often each of the positions (N,) occurs."""
    return {
        "argmax": (torch.arange(n_position)[:, None] - truth).abs().float().mean().item(),
        "median": (truth - truth.median()).abs().float().mean().item(),
        "nats": torch.special.entr(truth.bincount().double() / len(truth)).sum().item(),
    }


def write_table(out, results, score, how):
    """Write a score as .md and .tex: a row per configuration and state, a column per layer."""
    words, nothing = SCORES[score]
    layers = sorted({layer for runs in results.values() for layer in runs[0]["layers"]})
    rows = []
    for label, runs in results.items():
        for state in runs[0]["probe"]:
            seeds = zip(*(run["probe"][state][score] for run in runs))  # a tuple per layer
            cells = dict(zip(runs[0]["layers"], (tables.spread(values, 2) for values in seeds)))
            last = f"{runs[0]['nothing'][score]:.2f}"
            rows.append([label, state, *(cells.get(layer, "–") for layer in layers), last])
    header = ["positions", "weights", *(f"layer {i}" if i else "embeddings" for i in layers)]
    caption = f"{words}, on test text. Mean ± sample standard deviation over seeds. {how}"
    return tables.write(out / score, [*header, nothing], rows, caption, left=2)


@styled()
def draw(out, results):
    """Draw probe.png: distance over layers, a panel per configuration."""
    n = len(results)
    figure, axes = new_figure(1, n, figsize=(2.4 * n + 1.2, 3), squeeze=False, sharey=True)
    for (label, color), axis in zip(line_colors(results).items(), axes[0]):
        runs = results[label]
        for i, state in enumerate(states := list(runs[0]["probe"])):
            shade = color if state == "trained" else str(0.85 - 0.6 * i / len(states))
            seeds = [run["probe"][state]["median"] for run in runs]
            over_seeds(axis, runs[0]["layers"], seeds, label=state, marker=".", color=shade)
        axis.axhline(runs[0]["nothing"]["median"], color="0.6", linewidth=0.9, linestyle="--")
        axis.set(title=label, xlabel="layer (0: embeddings)", ylim=(0, None))
    axes[0][0].set_ylabel("distance from the true position\n(tokens; dashed: always the middle)")
    axes[0][-1].legend(fontsize=7)
    save(figure, out / "probe.png")


# ---------------------------------------------------------------------------- the order test


@torch.no_grad()
def order_test(run, corpus, flags):
    """Return {"kept": values of k, "shuffled": loss of the last token for each, "segments": loss in
    each part of the block with nothing shuffled}, in nats per token."""
    model, T = members_of(run.model)[0], run.model.body.config.block_size  # of an ensemble, one
    gen = batching.generator("order", flags.seed)
    x, y = blocks_of(run, corpus, "test", flags.order_blocks, gen)  # (N, T)
    order = torch.rand(x.shape, generator=gen)
    if run.config["flags"].get("anchor"):
        order[:, 0] = -1  # shuffled tokens stay behind the anchor

    def losses(inputs, targets):
        parts = zip(inputs.split(64), targets.split(64))
        return torch.cat([model.losses(a.to(run.device), b).cpu() for a, b in parts])

    segments = losses(x, y).view(-1, T).mean(0).tensor_split(min(SEGMENTS, T))
    last = torch.full_like(y, -100)
    last[:, -1] = y[:, -1]
    kept = [k for k in KEPT_IN_ORDER if k < T] + [T]
    shuffled = [losses(shuffle_all_but_last(x, order, k), last).mean().item() for k in kept]
    return {"kept": kept, "shuffled": shuffled, "segments": [s.mean().item() for s in segments]}


def shuffle_all_but_last(x, order, k):
    """Return x (N, T) with the first T - k tokens of each row sorted by `order` (N, T)."""
    n = x.size(1) - k
    return torch.cat([x[:, :n].gather(1, order[:, :n].argsort(1)), x[:, n:]], dim=1)


def write_order(out, results):
    """Write order.md and .tex; return the Markdown."""
    kept = max((runs[0]["order"]["kept"] for runs in results.values()), key=len)
    rows = []
    for label, runs in results.items():
        losses = zip(*(run["order"]["shuffled"] for run in runs))
        cells = [tables.spread(values, 2) for values in losses]
        rows.append([label, *cells[:-1], *["–"] * (len(kept) - len(cells)), cells[-1]])
    header = ["positions", *(f"last {k}" for k in kept[:-1]), "all"]
    caption = "Loss in nats of the last token when only the last tokens before it keep their order."
    return tables.write(out / "order", header, rows, caption)


if __name__ == "__main__":
    main(probe, Flags)
