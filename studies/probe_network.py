"""The probe: a small network that learns to predict a word's position from its state.

As in Haviv et al. 2022, section 5, with the scores that `scores` explains.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from data import batching
from lab.flags import flag
from lab.optim import learning_rate
from model import LanguageModel
from nets.device import device_of
from studies.probes import ProbeFlags


@dataclass
class FitFlags(ProbeFlags):
    """the training of the probes"""

    blocks: int = flag(1500, "blocks to train on; a quarter as many test the probes", at_least=4)
    steps: int = flag(3000, "updates of each probe", at_least=1)
    batch_size: int = flag(1024, "words per update", at_least=1)
    lr: float = flag(2e-3, "peak learning rate of the probes; it falls to zero", above=0)
    seed: int = flag(0, "seed of the probes, the blocks and the untrained model")

    @property
    def budget(self):
        """The training of the probes in words, for captions: their errors depend on it."""
        return f"Probes: {self.steps:,} steps on {self.blocks:,} blocks."


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
def states_of_tokens(body, idx, mask):
    """Return embeddings and states (n_layer + 1, N, C) of the N real tokens of idx, mask (B, T)."""
    device, config, end = device_of(body), body.config, 0
    found = torch.empty(config.n_layer + 1, int(mask.sum()), config.n_embd, device=device)
    for rows, real in zip(idx.split(64), mask.split(64)):
        rows, real = rows.to(device), real.to(device)
        _, states = body(rows, None if real.all() else real, need_states=True)
        begin, end = end, end + int(real.sum())
        found[:, begin:end] = torch.stack(states)[:, real]
    return found


def fit_probes(body, idx, mask, flags):
    """Train a probe for each layer on the positions of the real tokens of idx, mask (B, T)."""
    body.eval().requires_grad_(False)
    device = device_of(body)
    positions = torch.arange(idx.size(1)).expand_as(idx)[mask].to(device)  # (N,)
    probes = []
    for states in states_of_tokens(body, idx, mask):  # (N, C)
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
    for probe, states in zip(probes, states_of_tokens(body, idx, mask)):
        log_p = probe(states).log_softmax(-1).cpu()  # (N, n_position)
        nats = -log_p.gather(1, truth[:, None]).squeeze(1)
        median = (log_p.exp().cumsum(-1) < 0.5).sum(-1)
        readings.append({"argmax": log_p.argmax(-1), "median": median, "nats": nats})
    return readings, truth


def untrained(body, seed):
    """Return a body of the same configuration with random weights."""
    torch.manual_seed(seed)
    return LanguageModel(type(body)(body.config)).body.to(device_of(body))


def scores(readings, truth):
    """Return {"argmax", "median": mean distance in tokens, "nats": mean loss} of each layer."""
    return {
        "argmax": [(r["argmax"] - truth).abs().float().mean().item() for r in readings],
        "median": [(r["median"] - truth).abs().float().mean().item() for r in readings],
        "nats": [r["nats"].mean().item() for r in readings],
    }


def middle_of(positions):
    """Return the mean distance in tokens of always guessing the middle of the positions (N,)."""
    return (positions - positions.median()).abs().float().mean().item()


def entropy_of(positions):
    """Return the entropy in nats of positions (N,): the loss of a probe that knows only how often
    each one occurs. It is log T for blocks of T tokens, and lower for sentences."""
    shares = positions.bincount().double() / len(positions)
    return torch.special.entr(shares).sum().item()


def layer_name(i):
    return f"layer {i}" if i else "embeddings"
