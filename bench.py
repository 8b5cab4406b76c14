"""Compare speed and memory of position encodings and other implementations, also over length.

    python bench.py --sizes base --lengths 128 512 2048  # `make bench` installs transformers too

Each model trains in turns with poslab's learned positions on the same batches: "x ours" is the
median ratio of two turns; on a GPU in bfloat16 and compiled, else of CPU time on one thread.
Memory: the peak while a model is built and trained for two steps; on a CPU, this needs Linux.
"""

import ctypes
import resource
import time
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import torch
import torch.nn as nn

from lab.flags import main
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import make_adamw
from model import POSITIONS, LanguageModel
from nets.build import Options, build_model

try:
    from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForMaskedLM
except ImportError:
    GPT2Config = None


class Size(NamedTuple):
    """A model and its batches."""

    n_layer: int
    n_embd: int
    n_head: int
    n_ffn: int
    activation: str
    vocab_size: int
    batch_size: int
    block_size: int


SIZES = {
    "assignment": Size(4, 64, 2, 100, "relu", 6000, 16, 32),
    "small": Size(6, 384, 6, 1536, "gelu", 8000, 8, 256),
    "base": Size(12, 768, 12, 3072, "gelu", 30_000, 4, 128),
    "gpu": Size(12, 768, 12, 3072, "gelu", 50_257, 32, 512),
}
TURNS = 5  # per model, of at least 0.3 s


@dataclass
class Flags:
    sizes: tuple[Literal[tuple(SIZES)], ...] = ("assignment", "small", "base")  # models and batches
    lengths: tuple[int, ...] = ()  # of blocks, with as many tokens per step


def bench(flags):
    device = set_up_device("auto", threads=1)
    for name, task in product(flags.sizes, ("masked", "causal")):
        size = SIZES[name]
        n_tokens = size.batch_size * size.block_size
        for T in flags.lengths or [size.block_size]:
            resized = size._replace(block_size=T, batch_size=max(1, n_tokens // T))
            print(f"\n{name}, {task} LM: {resized.batch_size} x {T} tokens")
            compare_models(resized, task, device)


def compare_models(size, task, device):
    """Print a table of all models of a size: their speed, memory and number of weights."""
    print(" " * 22, "  tokens/s  x ours     memory      weights")
    learned = Contestant(build_poslab, size, task, device)
    n = 1 + int(0.3 / learned.time_steps(2))  # steps per turn
    for label, build in builders(task).items():
        try:
            model = Contestant(build, size, task, device)
        except ValueError as error:  # an encoding for decoders alone
            print(f"{label:20} {error}")
            continue
        times = []  # seconds per step
        ratios = []
        for _ in range(TURNS):
            ours = learned.time_steps(n)
            theirs = model.time_steps(n)
            times.append(theirs)
            ratios.append(theirs / ours)
        speed = size.batch_size * size.block_size / median(times)
        speeds = f"{speed:12,.0f}{median(ratios):8.2f}"
        print(f"{label:20}{speeds}{model.memory:8,.0f} MB{model.n_weights:13,}")


def builders(task):
    """Return {label: function from size, task and device to a model and its loss}."""
    models = {f"poslab {pos}": partial(build_poslab, pos=pos) for pos in POSITIONS}
    if task == "causal":
        models["plain GPT"] = build_plain_gpt
    if GPT2Config is not None:
        name = "GPT-2" if task == "causal" else "RoBERTa"
        models[name] = build_hugging_face
    return models


class Contestant:
    """A model that trains on four batches again and again.

    memory: MB at the peak, while it is built and trained for two steps.
    """

    def __init__(self, build, size, task, device):
        self.device = device
        reset_peak_memory(device)
        before = peak_memory(device)
        torch.manual_seed(0)
        self.batches = []
        for idx, targets in make_batches(size, task):
            self.batches.append((idx.to(device), targets.to(device)))
        self.model, self.loss = build(size, task, device)
        if device.type == "cuda" and isinstance(self.model, LanguageModel):
            compile_blocks(self.model)
        elif device.type == "cuda":
            self.model.compile()
        self.optimizer = make_adamw(self.model.to(device), 1e-4, 0.01)
        self.time_steps(2)
        self.memory = peak_memory(device) - before
        self.n_weights = sum(p.numel() for p in self.model.parameters())

    def time_steps(self, n):
        """Train for n steps; return the seconds per step, on a CPU those of the process."""
        # poslab chooses its kernel itself (nets/kernels.py); the others may have cuDNN's
        torch.backends.cuda.enable_cudnn_sdp(not isinstance(self.model, LanguageModel))
        clock = time.process_time if self.device.type == "cpu" else time.perf_counter
        started = clock()
        for i in range(n):
            with autocast("auto", self.device):
                loss = self.loss(*self.batches[i % 4])
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        loss.item()  # waits for the GPU
        return (clock() - started) / n


def reset_peak_memory(device):
    """Make the present memory the peak; on a CPU, this needs Linux."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)  # using freed memory again would raise no peak
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak


def peak_memory(device):
    """Return the peak memory so far in MB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def make_batches(size, task):
    """Return four pairs of ids and targets (B, T); -100 where nothing is predicted."""
    B = size.batch_size
    T = size.block_size
    blocks = torch.randint(5, size.vocab_size, (4, B, T + 1))  # below 5: special ids
    idx = blocks[..., :-1]
    targets = blocks[..., 1:]
    if task == "masked":
        n_masked = max(1, round(0.15 * B * T))
        is_masked = torch.rand(4, B * T).argsort(1).view(4, B, T) < n_masked
        targets = idx.masked_fill(~is_masked, -100)
        idx = idx.masked_fill(is_masked, 2)  # [MASK]
    return list(zip(idx.contiguous(), targets.contiguous()))


def build_poslab(size, task, device, pos="learned"):
    """Return a model of RoBERTa's or GPT-2's shape, and a function from ids and targets to loss."""
    options = size._asdict()
    del options["batch_size"]
    if task == "masked":
        options.update(head="roberta", norm_first=False)
        kind = "mlm"
    else:
        kind = "lm"
    model = build_model(kind, Options(**options, pos=pos, init_std=0.02), device)

    def loss(idx, targets):
        return model.loss(idx, targets) / (targets != -100).sum()

    return model, loss


def build_plain_gpt(size, task, device):
    """Return GPT-2 made of PyTorch's own layers, and its loss."""
    C = size.n_embd
    layer = nn.TransformerEncoderLayer(
        C,
        size.n_head,
        size.n_ffn,
        dropout=0.0,
        activation=size.activation,
        batch_first=True,
        norm_first=True,
    )
    blocks = nn.TransformerEncoder(layer, size.n_layer, nn.LayerNorm(C), enable_nested_tensor=False)
    words = nn.Embedding(size.vocab_size, C)
    places = nn.Embedding(size.block_size, C)
    nn.init.normal_(words.weight, std=0.02)

    def loss(idx, targets):
        future = nn.Transformer.generate_square_subsequent_mask(idx.size(1), idx.device)
        h = blocks(words(idx) + places.weight, future, is_causal=True)  # (B, T, C)
        logits = h @ words.weight.T  # (B, T, V)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return nn.ModuleList([words, places, blocks]), loss


def build_hugging_face(size, task, device):
    """Return transformers' RoBERTa or GPT-2 without dropout, and its loss. Both compute the logits
    of all tokens."""
    shape = dict(
        num_hidden_layers=size.n_layer,
        num_attention_heads=size.n_head,
        hidden_size=size.n_embd,
        vocab_size=size.vocab_size,
        max_position_embeddings=size.block_size + 2,  # RoBERTa counts from 2
    )
    if task == "causal":
        config = GPT2Config(
            **shape,
            n_inner=size.n_ffn,
            activation_function=size.activation,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=3,
            eos_token_id=4,
        )
        model = GPT2LMHeadModel(config)
        # As `labels` alone, GPT-2 would shift targets that are shifted already
        return model, lambda idx, targets: model(idx, labels=targets, shift_labels=targets).loss
    config = RobertaConfig(
        **shape,
        intermediate_size=size.n_ffn,
        hidden_act=size.activation,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = RobertaForMaskedLM(config)
    return model, lambda idx, targets: model(idx, labels=targets).loss


if __name__ == "__main__":
    main(bench, Flags)
