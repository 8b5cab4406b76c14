"""Causal language modelling: predict each word from those before it.

    python train_lm.py --pos alibi --data speeches
    python train_lm.py --pos rope --data my.txt --valid 0.1 --steps 2000
    python train_lm.py --resume --out out/lm-speeches-alibi-0

Measures the perplexity of every test set. The defaults are the assignment's base setting: 500 steps
of 16 blocks of 32 tokens.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.utils import clip_grad_norm_

from data import batching
from data.batching import generator, send, share_unknown
from data.text import read_text
from data.tokenizer import BOS
from lab import dist
from lab.figures import BEST, curves, name_positions, save
from lab.flags import TrainFlags, at_least, main, model_config, require, whole_numbers
from lab.load import open_source
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.run import Run, load_weights
from model import POSITIONS, Decoder, LanguageModel


@dataclass
class Flags(TrainFlags):
    members: int = 1  # models trained independently and averaged
    tie: bool = True  # the output layer shares the word embeddings
    anchor: bool = False  # begin every block with [BOS], in training and evaluation
    valid: float = 0.0  # share of the lines held out to choose the best step
    split: str = "full"  # clean: train without the test rows' sentences; i/n: without part i
    eval_block: str = ""  # also evaluate in blocks of these lengths, for example 32,64,128
    eval_stride: int = 0  # tokens from one evaluation block to the next; 0: no overlap
    eval_train: int = 200_000  # evaluate on at most this many training tokens
    eval_test: int = 0  # evaluate at most this many of each other set; 0: all
    drop_words: float = 0.0  # share of the input words replaced by [UNK]
    swap_words: float = 0.0  # share of the input words replaced by other words
    rare_unknown: float = 0.0  # share of rare targets (words seen once) replaced by [UNK]
    label_smoothing: float = 0.0  # share of each target spread over all words

    INHERITED: ClassVar = ("members", "anchor")  # what --init-from keeps, beside the architecture

    def __post_init__(self):
        super().__post_init__()
        at_least(self, 0, "eval_stride", "eval_test", "drop_words", "swap_words", "rare_unknown")
        at_least(self, 1, "members", "eval_train")
        require(self.eval_stride <= self.block_size, "--eval-stride: at most --block-size")
        require(self.drop_words + self.swap_words < 1, "--drop-words, --swap-words: sum below 1")
        lengths = whole_numbers(self.eval_block, "--eval-block") or [1]
        ends = lengths[0] < 1 or POSITIONS[self.pos].ends and lengths[-1] > self.block_size
        problem = f"{self.pos} positions end at --block-size" if lengths[0] else "at least 1"
        require(not ends, f"--eval-block {self.eval_block}: {problem}")


def build(config, members=1):
    """Return the untrained model of a run: a decoder, or an ensemble of them."""
    if members == 1:
        return LanguageModel(Decoder(config))
    from nets.ensemble import Ensemble

    return Ensemble([LanguageModel(Decoder(config)) for _ in range(members)])


@torch.no_grad()
def evaluate(model, ids, block_size, device, flags):
    """Return the perplexity of the stream ids (N + 1,): each of its N tokens is predicted once.
    The stream is cut into consecutive blocks. As in training, the first prediction of a block sees
    only one token, unless --eval-stride lets the blocks overlap."""
    model.eval()
    stride = min(flags.eval_stride, block_size)
    inputs, targets = batching.consecutive_blocks(ids, block_size, stride, flags.anchor)  # (n, T)
    losses = [torch.zeros(())]  # so that a process without batches has a sum
    for x, y in dist.my_share(list(zip(inputs.split(64), targets.split(64)))):
        with autocast(flags.dtype, device):
            losses.append(model.loss(send(x, device), y))
    model.train()
    nats = sum(loss.cpu().double() for loss in losses)  # only here the CPU waits for a GPU
    return perplexity(dist.all_sum(nats).item(), len(ids) - 1)


def train(flags):
    # Data: each set is one long stream of ids that begins with [BOS]
    source = open_source(flags, "init_from", ["lm"])
    text = read_text(
        flags.data,
        source and source.tokenizer,
        kind=flags.tokenizer,
        vocab_size=flags.vocab_size,
        vocab_from=flags.vocab_from,
        valid=flags.valid,
        split=flags.split,
    )
    ids, vocab_size = text.streams["train"], text.tokenizer.get_vocab_size()
    problem = f"--block-size {flags.block_size}: the training text has only {len(ids) - 1} tokens"
    require(len(ids) > flags.block_size, f"{problem}; use a smaller block")
    counts = batching.count_tokens(ids, vocab_size, flags.swap_words, flags.rare_unknown)
    most = {name: flags.eval_test or len(stream) for name, stream in text.streams.items()}
    most["train"] = flags.eval_train
    streams = {name: stream[: most[name] + 1] for name, stream in text.streams.items()}

    # Model
    config = model_config(flags, source, vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    options = {"members": flags.members}
    run = Run(__file__, flags, "lm", config, text.tokenizer, device, text.hash, options)
    model = build(config, **options).to(device)
    if source:
        load_weights(model, source.model.state_dict(), f"--init-from {flags.init_from}")
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    run.say_start(f"{text.name}: {len(ids) - 1:,} training tokens", model)
    for name, stream in streams.items():
        unknown = f"{share_unknown([stream]):6.1%} out of vocabulary"
        run.say(f"  {name:<9}{len(stream) - 1:>8,} tokens {unknown}")
    if text.note:
        run.say(f"  {text.note}")
    if len(streams) == 1:
        run.say("  note: no test set: perplexity is of the training text; try --valid 0.1")

    # Loop
    monitor = "perplexity/valid" if "valid" in streams else ""
    n_rows, n_tokens = flags.members * flags.batch_size, flags.batch_size * flags.block_size
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            ppl = {
                n: evaluate(model, s, flags.block_size, device, flags) for n, s in streams.items()
            }
            words = "  ".join(f"{name} {value:,.1f}" for name, value in ppl.items())
            numbers = {f"perplexity/{name}": value for name, value in ppl.items()}
            run.log(step, numbers, f"step {step:>5}  perplexity  {words}", model, monitor)
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, step)  # the batch depends on seed and step alone
        x, y = batching.random_blocks(ids, flags.block_size, n_rows, gen)  # (n_rows, T)
        noise = flags.drop_words, flags.swap_words, flags.rare_unknown
        x, y = batching.noise_tokens(x, y, counts, gen, *noise)
        every = 1 if flags.anchor else flags.batch_size  # without --anchor, one block per member
        x[::every, 0] = BOS  # so that the model learns how a prompt begins
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        parts = dist.micro_batches(y, flags.accumulate, flags.seed, step, flags.members)
        for rows, targets in parts:
            with autocast(flags.dtype, device):
                nats = model.loss(send(x[rows], device), targets, smoothing=flags.label_smoothing)
                loss = nats / n_tokens
            loss.backward()
            total += loss.detach()
        dist.sum_gradients(model)
        for member in getattr(model, "members", [model]):
            clip_grad_norm_(member.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.progress(step, flags.steps, total / flags.members, n_tokens)

    # Results: of the best step with --valid, else of the last
    best = run.load_best(model)
    result = {"step": best["step"]}
    for length in sorted({flags.block_size, *whole_numbers(flags.eval_block, "--eval-block")}):
        for name, stream in streams.items():
            key = name if length == flags.block_size else f"{name}@{length}"
            result[f"perplexity/{key}"] = ppl = evaluate(model, stream, length, device, flags)
            words = f"  {key:<14} perplexity {ppl:>9,.1f}"
            if len(stream) == len(text.streams[name]):  # the size in bytes is of the whole text
                bits = math.log2(ppl) * (len(stream) - 1) / text.sizes[name]
                result[f"bits_per_byte/{key}"] = bits
                words += f"  {bits:.3f} bits per byte"
            run.say(words)
    for name, stream in streams.items():
        result[f"tokens/{name}"] = len(stream) - 1
        result[f"unknown/{name}"] = share_unknown([stream])
    result |= {f"floor/{key}": value for key, value in text.floor.items() if key in result}
    run.finish(result, model)
    keys = {name: f"perplexity/{name}" for name in streams}
    floors = {BEST + name: text.floor[key] for name, key in keys.items() if key in text.floor}
    title = f"{run.folder.name}\nCausal LM on {text.name}, {name_positions(config)}"
    panel = (title, "perplexity (log scale)", run.logged(keys), floors, True)
    save(curves([panel], "step"), run.folder / "curve.png")
    words = [f"{name} {result[key]:.1f}{above_floor(result, key)}" for name, key in keys.items()]
    run.say_end(f"perplexity at step {best['step']}: {', '.join(words)}")


def above_floor(result, key):
    """Return in words how far a perplexity is above the best possible, "" if that is unknown."""
    floor = result.get(f"floor/{key}")
    return f" ({result[key] / floor - 1:.0%} above the best possible, {floor:.2f})" if floor else ""


if __name__ == "__main__":
    main(train, Flags)
