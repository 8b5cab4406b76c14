"""Compare speed and memory: of position encodings, of other implementations, over length.

    python bench.py --sizes small                       # `make bench` installs transformers too
    python bench.py --lengths 128 512 2048 --no-rivals
    python bench.py --device cuda --compile --sizes roberta-base gpt2-small

Each model takes turns with poslab's learned positions on the same batches, so that other work on
the machine slows both: "x ours" is the median ratio of two turns (of CPU time on one thread).
Memory: the peak while it is built and trained for two steps, on a CPU only under Linux.
"""

import ctypes
import importlib.util
import math
import re
import statistics
import sys
import time
from collections import namedtuple
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import torch
import torch.nn as nn
import torch.nn.functional as F

from data.files import write_json
from lab.flags import main
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import make_adamw
from model import POSITIONS, Config, Decoder, Encoder, LanguageModel

Size = namedtuple("Size", "n_layer n_embd n_head n_ffn activation vocab_size batch_size block_size")
SIZES = {
    "tiny": Size(1, 16, 2, 64, "gelu", 50, 2, 8),
    "assignment": Size(4, 64, 2, 100, "relu", 6000, 16, 32),
    "small": Size(6, 384, 6, 1536, "gelu", 8000, 8, 256),
    "base": Size(12, 768, 12, 3072, "gelu", 30_000, 4, 128),
    "roberta-base": Size(12, 768, 12, 3072, "gelu", 50_265, 32, 512),
    "gpt2-small": Size(12, 768, 12, 3072, "gelu", 50_257, 16, 1024),
}
HEADER = f"{'':20} training tokens/s  x ours  evaluation  x ours     memory      weights"
LINE = "{:20}{train:18,.0f}{train_ratio:8.2f}{eval:12,.0f}{eval_ratio:8.2f}{memory:8,.0f} MB{n:13,}"


@dataclass
class Flags:
    sizes: tuple[Literal[tuple(SIZES)], ...] = ("assignment", "small", "base")  # models and batches
    tasks: tuple[Literal["masked", "causal"], ...] = ("masked", "causal")  # LMs
    positions: tuple[Literal[tuple(POSITIONS)], ...] = tuple(POSITIONS)  # poslab's
    lengths: tuple[int, ...] = ()  # of blocks, with as many tokens per step
    rivals: bool = True  # also measure the other implementations
    repeats: int = 5  # turns per pair, of at least 0.3 s
    threads: int = 1  # CPU threads; 0: all cores
    device: Literal["cpu", "cuda"] = "cpu"  # where to compute
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # as in the training scripts
    compile: bool = False  # torch.compile every implementation
    out: str = ""  # JSON file to write all numbers to


def bench(flags):
    device, rows = set_up_device(flags.device, flags.threads, 0, 768), []
    for name, task in product(flags.sizes, flags.tasks):
        tokens = SIZES[name].batch_size * SIZES[name].block_size
        for T in flags.lengths or [SIZES[name].block_size]:
            size = SIZES[name]._replace(block_size=T, batch_size=max(1, tokens // T))
            print(f"\n{name}, {task} LM: {size.batch_size} x {T} tokens\n{HEADER}", flush=True)
            for row in compare(size, task, flags, device):
                rows.append({"size": name, "length": T, "task": task} | row)
                print(LINE.format(row["model"], **row), flush=True)
                if flags.out:  # after each row, so that an interrupted table is kept
                    write_json(flags.out, rows)


def compare(size, task, flags, device):
    """Yield {"model", "n": weights, "memory": MB, "train": tokens/s, "train_ratio", ...}."""
    builders = {f"poslab {pos}": (poslab, pos) for pos in flags.positions}
    if flags.rivals and task == "causal":
        builders["plain GPT"] = (plain_gpt,)
    if flags.rivals and importlib.util.find_spec("transformers"):
        builders["GPT-2" if task == "causal" else "RoBERTa"] = (hugging_face,)
        hugging_face(SIZES["tiny"], task)  # imports what would count as memory
    ours, _ = contestant(size, task, (poslab, "learned"), flags, device)
    steps = {phase: math.ceil(0.3 / max(1e-4, ours(phase, 2))) for phase in ("train", "eval")}
    for name, builder in builders.items():
        theirs, row = contestant(size, task, builder, flags, device)
        for phase, n in steps.items():
            turns = [(ours(phase, n), theirs(phase, n)) for _ in range(flags.repeats)]
            row[phase] = size.batch_size * size.block_size / statistics.median(b for _, b in turns)
            row[f"{phase}_ratio"] = statistics.median(b / a for a, b in turns)
        yield {"model": name} | row


def contestant(size, task, builder, flags, device):
    """Return a function of phase and n, to the seconds per step of n steps, and {"n", "memory"}."""
    torch.manual_seed(0)
    before, on_gpu = memory(device, reset=True), device.type == "cuda"
    model, loss_of = builder[0](size, task, *builder[1:])
    model.to(device)
    if flags.compile and builder[0] is poslab:
        compile_blocks(model)
    elif flags.compile:
        loss_of = torch.compile(loss_of)
    batches = [[part.to(device) for part in batch] for batch in make_batches(size, task)]
    optimizer = make_adamw(model, 1e-4, 0.01)
    clock = time.perf_counter if on_gpu or torch.get_num_threads() > 1 else time.process_time

    def seconds(phase, n):
        # poslab chooses its kernel itself (nets/kernels.py); the others may have cuDNN's
        torch.backends.cuda.enable_cudnn_sdp(builder[0] is not poslab)
        model.train(phase == "train")
        started = clock()
        for i in range(n):
            with autocast(flags.dtype, device), torch.set_grad_enabled(phase == "train"):
                loss = loss_of(*batches[i % 4])
            if phase == "train":
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        loss.item()  # waits for the GPU
        return (clock() - started) / n

    seconds("train", 2)
    n = sum(parameter.numel() for parameter in model.parameters())
    return seconds, {"n": n, "memory": memory(device) - before}


def memory(device, reset=False):
    """Return the peak of memory in MB since the last reset, or 0 where it is not known."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats() if reset else None
        return torch.cuda.max_memory_allocated() / 2**20
    if sys.platform != "linux":
        return 0
    if reset:
        ctypes.CDLL(None).malloc_trim(0)  # using freed memory again would raise no peak
        Path("/proc/self/clear_refs").write_text("5")  # 5: the peak
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def make_batches(size, task):
    """Return four pairs of ids and targets (B, T); -100 where nothing is predicted."""
    gen, B, T = torch.Generator().manual_seed(0), size.batch_size, size.block_size
    blocks = torch.randint(5, size.vocab_size, (4, B, T + 1), generator=gen)  # below 5: special ids
    idx, targets = blocks[..., :-1], blocks[..., 1:]
    if task == "masked":
        order = torch.rand(4, B * T, generator=gen).argsort(1).view(4, B, T)
        masked = order < max(1, round(0.15 * B * T))
        targets, idx = idx.masked_fill(~masked, -100), idx.masked_fill(masked, 2)  # [MASK]
    return list(zip(idx.contiguous(), targets.contiguous()))


# ------------------------------------------- implementations: a model and a function to its loss


def poslab(size, task, pos):
    """An encoder of RoBERTa's shape (post-norm, its head), or a decoder of GPT-2's."""
    shape = size._asdict() | dict(pos=pos, init_std=0.02)
    del shape["batch_size"]
    if task == "causal":
        model = LanguageModel(Decoder(Config(**shape)))
    else:
        model = LanguageModel(Encoder(Config(**shape, head="roberta", norm_first=False)))
    return model, lambda idx, targets: model.loss(idx, targets) / (targets != -100).sum()


def plain_gpt(size, task):
    """GPT-2 of PyTorch's own layers."""
    C, how = size.n_embd, dict(activation=size.activation, batch_first=True, norm_first=True)
    layer = nn.TransformerEncoderLayer(C, size.n_head, size.n_ffn, 0.0, **how)
    blocks = nn.TransformerEncoder(layer, size.n_layer, nn.LayerNorm(C), enable_nested_tensor=False)
    words, places = nn.Embedding(size.vocab_size, C), nn.Embedding(size.block_size, C)
    nn.init.normal_(words.weight, std=0.02)
    torch.backends.mha.set_fastpath_enabled(False)  # in evaluation, it holds all T x T scores

    def loss(idx, targets):
        future = nn.Transformer.generate_square_subsequent_mask(idx.size(1), idx.device)
        h = blocks(words(idx) + places.weight, future, is_causal=True)  # (B, T, C)
        return F.cross_entropy((h @ words.weight.T).flatten(0, 1), targets.flatten())

    return nn.ModuleList([words, places, blocks]), loss


def hugging_face(size, task):
    """transformers' RoBERTa or GPT-2 without dropout. Both compute the logits of all tokens."""
    import transformers as hf

    shape = dict(num_hidden_layers=size.n_layer, num_attention_heads=size.n_head)
    shape |= dict(vocab_size=size.vocab_size, hidden_size=size.n_embd)
    T, width, act = size.block_size, size.n_ffn, size.activation
    if task == "causal":
        shape |= dict(n_inner=width, activation_function=act, max_position_embeddings=T)
        off = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=3, eos_token_id=4)
        model = hf.GPT2LMHeadModel(hf.GPT2Config(**shape, **off))
        # As `labels` alone, GPT-2 would shift targets that are shifted already
        return model, lambda idx, y: model(idx, labels=y, shift_labels=y).loss
    shape |= dict(intermediate_size=width, hidden_act=act, max_position_embeddings=T + 2)
    off = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = hf.RobertaForMaskedLM(hf.RobertaConfig(**shape, **off))
    return model, lambda idx, y: model(idx, labels=y).loss


if __name__ == "__main__":
    main(bench, Flags)
