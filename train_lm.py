"""Causal language modelling: predict each word from those before it.

    python train_lm.py --pos alibi --data speeches
    python train_lm.py --pos rope --data my.txt --valid 0.1 --steps 2000
    python train_lm.py --resume --out out/lm-speeches-alibi-0

Measures the perplexity of every test set. The defaults are the assignment's base setting: 500 steps
of 16 blocks of 32 tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.utils import clip_grad_norm_

from data.batching import consecutive_blocks, fraction_unknown, generator, random_blocks
from data.noise import count_tokens, noise_tokens
from data.streams import read_text
from data.tokenizer import BOS
from lab import processes
from lab.command import main
from lab.errors import UserError, require
from lab.figures import BEST, name_positions
from lab.flags import (
    ContinueFlags,
    NoiseFlags,
    ProcessFlags,
    TrainFlags,
    flag,
    model_config,
    share,
    was_given,
    whole_numbers,
)
from lab.limits import LARGEST
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.report import Curves, above_floor, draw_curve, say_start
from lab.run import Run
from lab.sources import check_rows, load_init_from, open_prepared
from model import Decoder, LanguageModel
from nets.device import send
from nets.ensemble import Ensemble


@dataclass
class Flags(TrainFlags, NoiseFlags, ContinueFlags, ProcessFlags):
    members: int = flag(1, "models trained independently and averaged", at_least=1, at_most=1000)
    tie: bool = flag(True, "the output layer shares the word embeddings")
    anchor: bool = flag(False, "begin every block with [BOS], in training and evaluation")
    valid: float = share(0.0, "share of the lines held out to choose the best step")
    split: str = flag("full", "clean: train without the test rows' sentences; i/n: without part i")
    eval_block: str = flag("", "also evaluate in blocks of these lengths, for example 32,64,128")
    eval_stride: int = flag(
        0, "tokens from one evaluation block to the next; 0: no overlap", at_least=0
    )
    eval_train: int = flag(200_000, "evaluate on at most this many training tokens", at_least=1)
    eval_test: int = flag(0, "evaluate at most this many of each other set; 0: all", at_least=0)


@torch.no_grad()
def evaluate(model, ids, block_size, device, flags, batch_size=64):
    """Return the loss in nats, summed over the stream ids (N + 1,): each of its N tokens is
    predicted exactly once.

    The stream is cut into consecutive blocks. As in training, the first prediction of a block sees
    only one token, unless --eval-stride lets the blocks overlap.
    """
    model.eval()
    stride = min(flags.eval_stride, block_size)
    inputs, targets = consecutive_blocks(ids, block_size, stride, flags.anchor)  # (n, T)
    batches = list(zip(inputs.split(batch_size), targets.split(batch_size)))
    losses = [torch.zeros(())]  # so that a process without batches has a sum
    for x, y in processes.my_share(batches):
        with autocast(flags, device):
            losses.append(model.loss(send(x, device), y))
    model.train()
    nats = sum(loss.cpu().double() for loss in losses)  # only here the CPU waits for a GPU
    return processes.all_sum(nats).item()


def train(flags):
    # Data: each set is one long stream of ids that begins with [BOS]
    source = load_init_from(flags, "lm")
    resolve(flags, source)
    prepared = open_prepared(flags, source)
    check_rows(flags, source, prepared)
    text = prepared or read_text(flags, source and source.tokenizer)
    ids, vocab_size = text.streams["train"], text.tokenizer.get_vocab_size()
    problem = f"--block-size {flags.block_size}: the training text has only {len(ids) - 1} tokens"
    require((len(ids) > flags.block_size, f"{problem}; use a smaller block"))
    counts = count_tokens(ids, vocab_size, flags.swap_words, flags.rare_unknown)
    n_eval = {name: flags.eval_test or len(stream) for name, stream in text.streams.items()}
    n_eval["train"] = flags.eval_train
    streams = {name: stream[: n_eval[name] + 1] for name, stream in text.streams.items()}

    # Model
    config = model_config(flags, source, causal=True, vocab_size=vocab_size)
    device = set_up_device(flags, config)
    run = Run("lm", flags, config, text.tokenizer, device, members=flags.members)
    members = [LanguageModel(Decoder(config)) for _ in range(flags.members)]
    model = (Ensemble(members) if flags.members > 1 else members[0]).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        model.load_state_dict(source.model.state_dict())
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    say_start(run, f"{text.name}: {len(ids) - 1:,} training tokens", model)
    for name, stream in streams.items():
        unknown = f"{fraction_unknown(stream[1:]):6.1%} out of vocabulary"
        run.say(f"  {name:<9}{len(stream) - 1:>8,} tokens {unknown}")
    if text.note:
        run.say(f"  {text.note}")
    if len(streams) == 1:
        remedy = f"{'prepare it' if prepared else 'try'} with --valid 0.1"
        run.say(f"  note: no test set: perplexity is measured on the training text; {remedy}")

    # Loop
    def measure():
        numbers = {}
        for name, stream in streams.items():
            nats = evaluate(model, stream, flags.block_size, device, flags)
            numbers[f"perplexity/{name}"] = perplexity(nats, len(stream) - 1)
        words = "  ".join(f"{name} {numbers[f'perplexity/{name}']:,.1f}" for name in streams)
        return numbers, f"perplexity  {words}"

    monitor = "perplexity/valid" if "valid" in streams else ""
    n_rows, n_tokens = flags.members * flags.batch_size, flags.batch_size * flags.block_size
    for step in run.steps(model, optimizer, measure, monitor):
        gen = generator(flags.seed, step)  # the batch depends on seed and step alone
        x, y = random_blocks(ids, flags.block_size, n_rows, gen)  # (n_rows, T)
        x, y = noise_tokens(x, y, counts, gen, *flags.noise)
        every = 1 if flags.anchor else flags.batch_size  # without --anchor, one block per member
        x[::every, 0] = BOS  # so that the model learns how a prompt begins
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in processes.micro_batches(flags, step, y, flags.members):
            with autocast(flags, device):
                nats = model.loss(send(x[rows], device), targets, smoothing=flags.label_smoothing)
                loss = nats / n_tokens
            loss.backward()
            total += loss.detach()
        processes.sum_gradients(model)
        for member in members:
            clip_grad_norm_(member.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.record_step(step, total / flags.members, n_tokens)

    # Results
    best, result = run.load_best(model), {}
    for length in sorted({flags.block_size, *whole_numbers(flags, "eval_block")}):
        for name, stream in streams.items():
            key = name if length == flags.block_size else f"{name}@{length}"
            nats = evaluate(model, stream, length, device, flags)
            result[f"perplexity/{key}"] = ppl = perplexity(nats, len(stream) - 1)
            words = f"  {key:<14} perplexity {ppl:>9,.1f}"
            if len(stream) == len(text.streams[name]):  # the size in bytes is of the whole text
                result[f"bits_per_byte/{key}"] = bits = nats / math.log(2) / text.sizes[name]
                words += f"  {bits:.3f} bits per byte"
            run.say(words)
    for name, stream in streams.items():
        result[f"tokens/{name}"] = len(stream) - 1
        result[f"unknown/{name}"] = fraction_unknown(stream[1:])
    result |= {f"floor/{key}": value for key, value in text.floor.items() if key in result}
    run.finish(result, model)
    keys = {name: f"perplexity/{name}" for name in streams}
    best_of = {BEST + n: text.floor[k] for n, k in keys.items() if k in text.floor}
    title = f"Causal LM on {text.name}, {name_positions(config)}"
    draw_curve(run, [Curves(title, "perplexity (log scale)", keys, best_of, log=True)])
    words = [f"{name} {result[key]:.1f}{above_floor(result, key)}" for name, key in keys.items()]
    run.say_end(f"perplexity at step {best['step']}: {', '.join(words)}")


def resolve(flags, source):
    """Give --members its value in the run to start from. Raises UserError."""
    members = source.config.get("members", 1) if source else flags.members
    if was_given(flags, "members") and members != flags.members:
        problem = f"--init-from {flags.init_from} has {members}"
        raise UserError(f"--members {flags.members}: {problem}; leave --members out")
    flags.members = members
    T, stride, where = flags.block_size, flags.eval_stride, f"--eval-block {flags.eval_block}"
    lengths = whole_numbers(flags, "eval_block")
    problem = f"{where}: learned positions end at --block-size {T}"
    within = flags.pos != "learned" or all(length <= T for length in lengths)
    require(
        (stride <= T, f"--eval-stride {stride}: must be at most --block-size {T}"),
        (all(0 < n <= LARGEST for n in lengths), f"{where}: must be from 1 to {LARGEST:,}"),
        (within, f"{problem}; use another --pos to go beyond"),
    )


if __name__ == "__main__":
    main(train, Flags, __doc__)
