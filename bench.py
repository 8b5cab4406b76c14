"""Compare speed and memory of position encodings and other implementations, also over length.

    python bench.py --sizes base --lengths 128 512 2048  # `make bench` installs transformers too

Each model trains in turns with poslab's learned positions on the same batches: "x ours" is the
median ratio of two turns; on a GPU in bfloat16 and compiled, else of CPU time on one thread.
Memory: the peak while a model is built and trained for two steps; on a CPU, this needs Linux.
"""

import ctypes
import resource
import time
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Literal

import torch
import torch.nn as nn

from lab.flags import main
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import make_adamw
from model import POSITIONS, Config, Decoder, Encoder, LanguageModel

try:
    from transformers import GPT2Config, GPT2LMHeadModel, RobertaConfig, RobertaForMaskedLM
except ImportError:
    GPT2Config = None

Size = namedtuple("Size", "n_layer n_embd n_head n_ffn activation vocab_size batch_size block_size")
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
        models = {f"poslab {pos}": partial(poslab, pos=pos) for pos in POSITIONS}
        models |= {"plain GPT": plain_gpt} if task == "causal" else {}
        models |= {"GPT-2" if task == "causal" else "RoBERTa": hugging_face} if GPT2Config else {}
        n_tokens = SIZES[name].batch_size * SIZES[name].block_size
        for T in flags.lengths or [SIZES[name].block_size]:
            size = SIZES[name]._replace(block_size=T, batch_size=max(1, n_tokens // T))
            print(f"\n{name}, {task} LM: {size.batch_size} x {T} tokens")
            print(" " * 22, "  tokens/s  x ours     memory      weights")
            ours, *_ = contestant(poslab, size, task, device)
            n = 1 + int(0.3 / ours(2))
            for label, build in models.items():
                try:
                    theirs, memory, n_weights = contestant(build, size, task, device)
                except ValueError as error:  # an encoding for decoders alone
                    print(f"{label:20} {error}")
                    continue
                turns = [(ours(n), theirs(n)) for _ in range(TURNS)]
                speed = size.batch_size * T / median(b for _, b in turns)
                ratio = median(b / a for a, b in turns)
                print(f"{label:20}{speed:12,.0f}{ratio:8.2f}{memory:8,.0f} MB{n_weights:13,}")


def peak_memory(device):
    """Return the peak memory so far in MB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def contestant(build, size, task, device):
    """Return a function from n to the seconds per step of n steps; the memory; the weights."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        ctypes.CDLL(None).malloc_trim(0)  # using freed memory again would raise no peak
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before = peak_memory(device)
    torch.manual_seed(0)
    batches = [[part.to(device) for part in batch] for batch in make_batches(size, task)]
    model, loss_of = build(size, task)
    if device.type == "cuda" and isinstance(model, LanguageModel):
        compile_blocks(model)
    elif device.type == "cuda":
        model.compile()
    optimizer = make_adamw(model.to(device), 1e-4, 0.01)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def seconds(n):
        # poslab chooses its kernel itself (nets/attention.py); the others may have cuDNN's
        torch.backends.cuda.enable_cudnn_sdp(not isinstance(model, LanguageModel))
        started = clock()
        for i in range(n):
            with autocast("auto", device):
                loss = loss_of(*batches[i % 4])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()  # waits for the GPU
        return (clock() - started) / n

    seconds(2)
    return seconds, peak_memory(device) - before, sum(p.numel() for p in model.parameters())


def make_batches(size, task):
    """Return four pairs of ids and targets (B, T); -100 where nothing is predicted."""
    B, T = size.batch_size, size.block_size
    blocks = torch.randint(5, size.vocab_size, (4, B, T + 1))  # below 5: special ids
    idx, targets = blocks[..., :-1], blocks[..., 1:]
    if task == "masked":
        masked = torch.rand(4, B * T).argsort(1).view(4, B, T) < max(1, round(0.15 * B * T))
        targets, idx = idx.masked_fill(~masked, -100), idx.masked_fill(masked, 2)  # [MASK]
    return list(zip(idx.contiguous(), targets.contiguous()))


def poslab(size, task, pos="learned"):
    """Return a model of RoBERTa's or GPT-2's shape, and a function from ids and targets to loss."""
    shape = size._asdict() | dict(pos=pos, init_std=0.02)
    shape |= dict(head="roberta", norm_first=False) if task == "masked" else {}
    del shape["batch_size"]
    model = LanguageModel((Encoder if task == "masked" else Decoder)(Config(**shape)))
    return model, lambda idx, targets: model.loss(idx, targets) / (targets != -100).sum()


def plain_gpt(size, task):
    """GPT-2 of PyTorch's own layers."""
    C, how = size.n_embd, dict(activation=size.activation, batch_first=True, norm_first=True)
    layer = nn.TransformerEncoderLayer(C, size.n_head, size.n_ffn, 0.0, **how)
    blocks = nn.TransformerEncoder(layer, size.n_layer, nn.LayerNorm(C), enable_nested_tensor=False)
    words, places = nn.Embedding(size.vocab_size, C), nn.Embedding(size.block_size, C)
    nn.init.normal_(words.weight, std=0.02)

    def loss(idx, targets):
        future = nn.Transformer.generate_square_subsequent_mask(idx.size(1), idx.device)
        h = blocks(words(idx) + places.weight, future, is_causal=True)  # (B, T, C)
        return nn.functional.cross_entropy((h @ words.weight.T).flatten(0, 1), targets.flatten())

    return nn.ModuleList([words, places, blocks]), loss


def hugging_face(size, task):
    """transformers' RoBERTa or GPT-2 without dropout. Both compute the logits of all tokens."""
    shape = dict(num_hidden_layers=size.n_layer, num_attention_heads=size.n_head)
    shape |= dict(vocab_size=size.vocab_size, hidden_size=size.n_embd)
    shape["max_position_embeddings"] = size.block_size + 2  # RoBERTa counts from 2
    if task == "causal":
        shape |= dict(n_inner=size.n_ffn, activation_function=size.activation)
        off = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=3, eos_token_id=4)
        model = GPT2LMHeadModel(GPT2Config(**shape, **off))
        # As `labels` alone, GPT-2 would shift targets that are shifted already
        return model, lambda idx, y: model(idx, labels=y, shift_labels=y).loss
    shape |= dict(intermediate_size=size.n_ffn, hidden_act=size.activation)
    off = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = RobertaForMaskedLM(RobertaConfig(**shape, **off))
    return model, lambda idx, y: model(idx, labels=y).loss


if __name__ == "__main__":
    main(bench, Flags)
