"""Causal language modelling: predict each word from those before it.

    python train_lm.py --pos alibi --data speeches
    python train_lm.py --pos rope --data my.txt --valid 0.1 --steps 2000
    python train_lm.py --data copy --pos alibi        a task: copy, reverse, recall, ...
    python train_lm.py --resume --out out/lm-speeches-alibi-0

Measures the perplexity of every test set, and for a task (data/tasks.py) the accuracy of its
answers by length. The defaults are those of a task, or the assignment's base setting: 500 steps of
16 blocks of 32 tokens.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.utils import clip_grad_norm_

from data import batching
from data.batching import generator, send
from data.text import find_task, read_text
from data.tokenizer import BOS, UNK
from lab import dist
from lab.figures import BEST, curves, name_positions, save
from lab.flags import TrainFlags, main, model_config, require, spelled, whole_numbers
from lab.load import open_source
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.run import Run, load_weights
from model import POSITIONS, Decoder, LanguageModel


@dataclass
class Flags(TrainFlags):
    members: int = 1  # models trained independently and averaged
    graph: bool = False  # record a step on CUDA and replay it, which makes small models fast
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
    length: int = 16  # tasks: train on prompts of up to this length, test on up to 4 times as much

    INHERITED: ClassVar = ("members", "anchor")  # what --init-from keeps, beside the architecture

    def __post_init__(self):
        super().__post_init__()
        task = find_task(self.data, self.length)
        for name in task.of_texts if task else ["length"]:
            problem = f"--data {self.data} is {'a task' if task else 'a text'}; leave it out"
            require(getattr(self, name) == getattr(Flags, name), f"{spelled(name)}: {problem}")
        require(self.eval_stride <= self.block_size, "--eval-stride: at most --block-size")
        require(self.drop_words + self.swap_words < 1, "--drop-words, --swap-words: sum below 1")
        lengths = whole_numbers(self.eval_block, "--eval-block") or [1]
        longest = self.random_positions or self.block_size
        ends = lengths[0] < 1 or POSITIONS[self.pos].ends and lengths[-1] > longest
        problem = f"{self.pos} positions end at --block-size" if lengths[0] else "at least 1"
        require(not ends, f"--eval-block {self.eval_block}: {problem}")


def build(config, members=1):
    """Return the untrained model of a run: a decoder, or an ensemble of them."""
    if members == 1:
        return LanguageModel(Decoder(config))
    from nets.ensemble import Ensemble

    return Ensemble([LanguageModel(Decoder(config)) for _ in range(members)])


@torch.no_grad()
def evaluate(model, inputs, targets, metric, device, flags):
    """Return {"perplexity": of the targets that are not negative}; if metric is "accuracy" also the
    share of them that get the highest probability. inputs, targets (n, T)."""
    model.eval()
    sums = [torch.zeros(2)]  # so that a process without batches has a sum
    for x, y in dist.my_share(list(zip(inputs.split(64), targets.split(64)))):
        x = send(x, device)
        with autocast(flags.dtype, device):
            nats, hits = model.loss(x, y), torch.zeros((), device=device)
            if metric == "accuracy":
                hits = (model(x).argmax(-1) == send(y, device)).sum()
        sums.append(torch.stack([nats, hits.float()]))
    model.train()
    sums = sum(part.cpu().double() for part in sums)  # only here the CPU waits for a GPU
    nats, hits = dist.all_sum(sums).tolist()
    n = int((targets >= 0).sum())
    found = {"perplexity": perplexity(nats, n), "accuracy": hits / n}
    return found if metric == "accuracy" else {metric: found[metric]}


def train(flags):
    # Data: running text, or a task that makes its lines
    source = open_source(flags, "init_from", ["lm"])
    text = find_task(flags.data, flags.length) or read_text(
        flags.data,
        source and source.tokenizer,
        kind=flags.tokenizer,
        vocab_size=flags.vocab_size,
        vocab_from=flags.vocab_from,
        valid=flags.valid,
        split=flags.split,
    )
    described, vocab_size = text.describe(flags.block_size), text.tokenizer.get_vocab_size()
    noise = flags.swap_words, flags.rare_unknown
    counts = batching.count_tokens(text.streams.get("train"), vocab_size, *noise)

    def blocks(name, length):  # inputs and targets (n, T), to evaluate
        most = flags.eval_train if name == "train" else flags.eval_test
        return text.blocks(name, length, most, flags.eval_stride, flags.anchor)

    sets = {name: blocks(name, flags.block_size) for name in text.streams}

    # Model
    config = model_config(flags, source, causal=True, vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    options = {"members": flags.members}
    run = Run(__file__, flags, "lm", config, text.tokenizer, device, text.hash, options, text.read)
    model = build(config, **options).to(device)
    if source:
        load_weights(model, source.model.state_dict(), f"--init-from {flags.init_from}")
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    run.say_start(described, model)
    about = {}
    for name, (_, targets) in sets.items():
        targets = targets[targets >= 0]
        about[f"tokens/{name}"] = n = len(targets)
        about[f"unknown/{name}"] = share = (targets == UNK).float().mean().item()
        hint = "; try --tokenizer bpe" if share > 0.2 and not source else ""
        run.say(f"  {name:<9}{n:>8,} tokens {share:6.1%} out of vocabulary{hint}")
    if text.note:
        run.say(f"  {text.note}")
    if len(sets) == 1:
        run.say("  note: no test set: perplexity is of the training text; try --valid 0.1")

    def update(x, y, n_tokens, lr):  # x, y (n_rows, T)
        for group in optimizer.param_groups:
            group["lr"] = lr
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
        return total / flags.members

    # Loop
    if flags.graph:
        from lab.graph import Graph

        update = Graph(update, device, flags.accumulate)
    keys = {name: f"{text.metric}/{name}" for name in sets}
    monitor = "perplexity/valid" if "valid" in sets else ""
    n_rows = flags.members * flags.batch_size
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = {}
            for name, of_set in sets.items():
                found = evaluate(model, *of_set, text.metric, device, flags)
                numbers |= {f"{metric}/{name}": value for metric, value in found.items()}
            words = "  ".join(f"{name} {in_words(numbers, key)}" for name, key in keys.items())
            run.log(step, numbers, f"step {step:>5}  {text.metric}  {words}", model, monitor)
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, step)  # the batch depends on seed and step alone
        x, y = text.batch(flags.block_size, n_rows, gen)  # (n_rows, T)
        x, y = batching.noise_tokens(x, y, counts, gen, flags.drop_words, *noise)
        every = 1 if flags.anchor else flags.batch_size  # without --anchor, one block per member
        x[::every, 0] = BOS  # so that the model learns how a prompt begins
        n_tokens = int((y >= 0).sum()) // flags.members  # to predict
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        run.progress(step, flags.steps, update(x, y, n_tokens, lr), n_tokens)

    # Results: of the best step with --valid, else of the last
    best = run.load_best(model)
    result = {"step": best["step"]}
    for length in sorted({flags.block_size, *whole_numbers(flags.eval_block, "--eval-block")}):
        for name in sets:
            key = name if length == flags.block_size else f"{name}@{length}"
            found = evaluate(model, *blocks(name, length), text.metric, device, flags)
            result |= {f"{metric}/{key}": value for metric, value in found.items()}
            words = f"  {key:<14} perplexity {found['perplexity']:>9,.1f}"
            n = about[f"tokens/{name}"]
            if name in text.sizes and n == len(text.streams[name]) - 1:  # the size of all of it
                bits = math.log2(found["perplexity"]) * n / text.sizes[name]
                result[f"bits_per_byte/{key}"] = bits
                words += f"  {bits:.3f} bits per byte"
            if "accuracy" in found:
                words += f"  accuracy {found['accuracy']:6.1%}"
            run.say(words)
    result |= about | {f"floor/{key}": value for key, value in text.floor.items() if key in result}
    run.finish(result, model)
    floors = {BEST + name: text.floor[key] for name, key in keys.items() if key in text.floor}
    if len(set(floors.values())) == 1:
        floors = {BEST.strip(", "): floors.popitem()[1]}
    title = f"{run.folder.name}\nCausal LM on {text.name}, {name_positions(config)}"
    log = text.metric == "perplexity"
    panel = (title, text.metric + " (log scale)" * log, run.logged(keys), floors, log)
    save(curves([panel], "step"), run.folder / "curve.png")
    words = [f"{name}{':' * (not log)} {in_words(result, key)}" for name, key in keys.items()]
    end = f"perplexity at step {best['step']}" if log else "accuracy of the answers"
    run.say_end(f"{end}: {', '.join(words)}")


def in_words(numbers, key):
    """Return an accuracy in percent, or a perplexity and, in a result that has the best possible
    one, how far it is above."""
    if key.startswith("accuracy"):
        return f"{numbers[key]:.1%}"
    words, floor = f"{numbers[key]:,.1f}", numbers.get(f"floor/{key}")
    if floor:
        words += f" ({numbers[key] / floor - 1:.0%} above the best possible, {floor:.2f})"
    return words


if __name__ == "__main__":
    main(train, Flags)
