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
from typing import ClassVar, Literal

import torch

from data import find_task
from data.batching import count_tokens, generator, noise_tokens, send
from data.text import read_text
from data.tokenizer import BOS, UNK
from lab import dist
from lab.figures import BEST, Panel, curves, name_positions, save
from lab.flags import (
    Activation,
    Body,
    CommonFlags,
    Data,
    Numbers,
    Position,
    RunFolder,
    Split,
    main,
    model_config,
    require,
    spelled,
    whole_numbers,
)
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import clip_gradients, learning_rate, make_adamw, perplexity
from lab.run import Run, RunData, load_weights
from model import POSITIONS
from nets.build import build_model


@dataclass
class Flags(CommonFlags):
    # Data
    data: Data = "toy"  # a named corpus, a .txt, a .tsv or .csv of rows, a folder, or a task
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces
    vocab_from: Data = ""  # corpus to take the vocabulary from, instead of --data
    valid: float = 0.0  # share of the lines held out to choose the best step
    split: Split = "full"  # clean: train without the test rows' sentences; i/n: without part i
    length: int = 16  # tasks: train on prompts of up to this length, test on up to 4 times as much
    couple: bool = False  # tasks: what is copied or added has the same position (copy, add)

    # Model
    body: Body = "transformer"  # a decoder, or an LSTM, which knows the order without positions
    pos: Position = "learned"  # position encoding; rope: rotary, nope: none
    n_layer: int = 4  # number of blocks
    n_head: int = 2  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 100  # width of the feed-forward layer; 0: four times --n-embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    dropout: float = 0.0  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: Activation = "relu"  # of the feed-forward layer
    init_std: float = 0.05  # standard deviation of the initial weights
    tie: bool = True  # the output layer shares the word embeddings
    members: int = 1  # models trained independently and averaged

    # Training
    init_from: RunFolder = ""  # run folder to start from: its weights, architecture and vocabulary
    steps: int = 500  # number of updates
    batch_size: int = 16  # sequences per update
    lr: float = 1e-3  # peak learning rate
    warmup: int = 0  # steps over which the learning rate rises
    decay: float = 0.5  # the learning rate falls to zero over this last share of the steps
    weight_decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # clip the gradient norm to this; 0: no limit
    label_smoothing: float = 0.0  # share of each target spread over all words
    drop_words: float = 0.0  # share of the input words replaced by [UNK]
    swap_words: float = 0.0  # share of the input words replaced by other words
    rare_unknown: float = 0.0  # share of rare targets (words seen once) replaced by [UNK]
    anchor: bool = False  # begin every block with [BOS], in training and evaluation
    graph: bool = False  # record a step on CUDA and replay it, which makes small models fast

    # Evaluation
    eval_every: int = 100  # steps between evaluations
    eval_block: Numbers = ""  # also evaluate in blocks of these lengths, for example 32,64,128
    eval_stride: int = 0  # tokens from one evaluation block to the next; 0: no overlap
    eval_train: int = 200_000  # evaluate on at most this many training tokens
    eval_test: int = 0  # evaluate at most this many of each other set; 0: all
    keep: Numbers = ""  # also keep the weights of these steps, as step-N.pt: 0,100

    INHERITED: ClassVar = ("members", "anchor")  # what --init-from keeps, beside the architecture

    def __post_init__(self):
        super().__post_init__()
        require(self.eval_stride <= self.block_size, "--eval-stride: at most --block-size")
        require(self.drop_words + self.swap_words < 1, "--drop-words, --swap-words: sum below 1")
        fits = self.body == "transformer" or self.pos == "nope"
        require(fits, f"--pos {self.pos}: an {self.body} has no positions; leave it out")
        task = find_task(self.data, self.length)
        can_couple = task and task.restarts
        require(can_couple or not self.couple, "--couple: only for --data copy or add")
        if task:
            for name in task.text_flags:
                problem = f"{spelled(name)}: --data {self.data} is a task; leave it out"
                require(getattr(self, name) == getattr(Flags, name), problem)
        else:
            problem = f"--length: --data {self.data} is a text; leave it out"
            require(self.length == Flags.length, problem)

    @classmethod
    def other_defaults(cls, typed):
        task = find_task(typed.get("data"), typed.get("length"))
        defaults = task.defaults() if task else {}
        if typed.get("body") == "lstm":
            defaults["pos"] = "nope"
        return defaults


def train(flags):
    if find_task(flags.data, flags.length):
        from lab.train_task import train_task  # another loop, only for --data copy and the like

        train_task(flags, __file__)
        return
    keep = whole_numbers(flags.keep, "--keep", most=flags.steps)
    lengths = lengths_to_evaluate(flags)

    # Data
    source = None
    tokenizer = None
    if flags.init_from:
        from lab.load import open_source  # only to start from another run

        source = open_source(flags, "init_from", ["lm"])
        tokenizer = source.tokenizer
    text = read_text(
        flags.data,
        tokenizer=tokenizer,
        kind=flags.tokenizer,
        vocab_size=flags.vocab_size,
        vocab_from=flags.vocab_from,
        valid=flags.valid,
        split=flags.split,
    )
    described = text.describe(flags.block_size)
    sets = blocks_of_sets(text, flags.block_size, flags)

    # Model
    vocab_size = text.tokenizer.get_vocab_size()
    config = model_config(flags, source, causal=True, vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    run = Run(
        flags,
        script=__file__,
        kind="lm",
        config=config,
        build={"members": flags.members},
        data=RunData(text.tokenizer, text.hash, text.corpora),
        device=device,
    )
    model = build_model("lm", config, device, members=flags.members)
    if source:
        load_weights(model, source.model.state_dict(), f"--init-from {flags.init_from}")
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    run.say_start(described, model)
    set_numbers = say_sets(run, text, sets, source)

    # Loop
    graph = None
    if flags.graph:
        from lab.graph import GraphStep  # only on CUDA

        graph = GraphStep(model, optimizer, flags, device)
    fit(run, model, optimizer, graph, text, sets, keep)

    # Results: of the best step with --valid, else of the last
    best = run.load_best(model)
    result = {"step": best["step"]}
    for length in lengths:
        numbers = evaluate_sets(model, blocks_of_sets(text, length, flags), device, flags.dtype)
        result |= say_perplexities(run, text, numbers, set_numbers, length)
    result |= set_numbers
    run.finish(result, model)
    if dist.rank() > 0:
        return  # rank 0 alone draws and prints
    draw_curve(run, text, config)
    words = ", ".join(describe_perplexity(result, name) for name in sets)
    run.say_end(f"perplexity at step {best['step']}: {words}")


def fit(run, model, optimizer, graph, text, sets, keep):
    """Train a model on a text, and evaluate it on the sets, {name: inputs and targets}. graph: what
    does the updates, or None. keep: steps whose weights are kept."""
    flags = run.flags
    device = run.device
    counts = count_words(text, flags)
    monitor = ""  # the number that chooses the weights of best.pt; "": those of the last step
    if "valid" in sets:
        monitor = "perplexity/valid"  # the step where it is lowest

    first_step = 0
    if flags.resume:
        first_step = run.resume(model, optimizer)
    dist.copy_from_rank_0(model)
    model.train()
    for step in range(first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = evaluate_sets(model, sets, device, flags.dtype)
            words = "  ".join(f"{name} {numbers[f'perplexity/{name}']:,.1f}" for name in sets)
            run.log(step, numbers, f"step {step:>5}  perplexity  {words}")
            run.save_best(model, monitor)
            run.save(model, optimizer, step)
        if step in keep:
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # after Ctrl-C, with a checkpoint

        # Batch
        x, y = draw_batch(text, counts, flags, step)  # (M * B, T), B blocks for each of M members
        n_tokens = flags.batch_size * flags.block_size  # that each member predicts
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)

        # Update
        if graph:
            loss = graph.step(x, y, n_tokens, lr)
        else:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            loss = torch.zeros((), device=device)
            dist.seed_dropout(flags.seed, step)
            # All rows at once, unless several processes or --accumulate split them
            for rows, targets in dist.my_parts(y, flags.accumulate, flags.members):
                idx = send(x[rows], device)  # `loss` sends the targets
                with autocast(flags.dtype, device):
                    nats = model.loss(idx, targets, smoothing=flags.label_smoothing)
                    part = nats / n_tokens  # a sum over the count of the whole batch
                part.backward()
                loss += part.detach()
            dist.sum_gradients(model)
            clip_gradients(model, flags.clip)
            optimizer.step()
        run.progress(step, flags.steps, loss / flags.members, n_tokens)


def count_words(text, flags):
    """Return how often each word occurs in the training text, (V,); zeros if no noise needs it."""
    vocab_size = text.tokenizer.get_vocab_size()
    if flags.swap_words or flags.rare_unknown:
        return count_tokens(text.streams["train"], vocab_size)
    return torch.zeros(vocab_size)


def draw_batch(text, counts, flags, step):
    """Return inputs and targets (M * B, T), first the B blocks of the first of M members. They
    depend on seed and step alone, so a resumed run reads the same. counts: see `count_words`."""
    gen = generator(flags.seed, step)
    x, y = text.batch(flags.block_size, flags.members * flags.batch_size, gen)
    shares = {"drop": flags.drop_words, "swap": flags.swap_words, "rare": flags.rare_unknown}
    x, y = noise_tokens(x, y, counts, gen, **shares)  # unchanged if all shares are 0
    if flags.anchor:
        x[:, 0] = BOS  # every block begins with [BOS]
    else:
        # A prompt of sample.py begins with [BOS], which blocks from anywhere hardly ever do. So the
        # first block of each member does, and the model learns what follows
        x[:: flags.batch_size, 0] = BOS
    return x, y


@torch.no_grad()
def evaluate(model, inputs, targets, device, dtype):
    """Return the perplexity of the targets that are not negative. inputs, targets (n, T)."""
    model.eval()  # without dropout; an Ensemble then averages its members on the same rows
    losses = []  # the summed loss of each batch, left on a GPU so that the CPU need not wait
    batches = list(zip(inputs.split(64), targets.split(64)))
    for x, y in dist.my_share(batches):
        idx = send(x, device)
        with autocast(dtype, device):
            losses.append(model.loss(idx, y))
    model.train()
    nats = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        nats += loss.cpu()
    n_targets = int((targets >= 0).sum())
    return perplexity(dist.all_sum(nats).item(), n_targets)


def evaluate_sets(model, sets, device, dtype):
    """Return {"perplexity/SET": ...} of all sets, {name: inputs and targets}."""
    numbers = {}
    for name, (inputs, targets) in sets.items():
        numbers[f"perplexity/{name}"] = evaluate(model, inputs, targets, device, dtype)
    return numbers


def blocks_of_sets(text, length, flags):
    """Return {name: inputs and targets (n, length)} to evaluate on all sets of a text."""
    sets = {}
    for name in text.streams:
        limit = flags.eval_train if name == "train" else flags.eval_test
        sets[name] = text.blocks(name, length, limit, flags.eval_stride, flags.anchor)
    return sets


def lengths_to_evaluate(flags):
    """Return the lengths of blocks for the results, in order: --block-size and --eval-block. Raises
    UserError for a block that the position encoding cannot read."""
    lengths = whole_numbers(flags.eval_block, "--eval-block", least=1)
    longest = flags.random_positions or flags.block_size
    if POSITIONS[flags.pos].ends:
        problem = f"--eval-block {flags.eval_block}: {flags.pos} positions end at --block-size"
        require(max(lengths, default=0) <= longest, problem)
    return sorted({flags.block_size, *lengths})


def say_sets(run, text, sets, source):
    """Print how many tokens the sets have and how many are unknown. Return {"tokens/SET": number,
    "unknown/SET": share}."""
    set_numbers = {}
    for name, (_, targets) in sets.items():
        real = targets[targets >= 0]
        unknown = (real == UNK).float().mean().item()
        hint = ""
        if unknown > 0.2 and not source:
            hint = "; try --tokenizer bpe"
        run.say(f"  {name:<9}{len(real):>8,} tokens {unknown:6.1%} out of vocabulary{hint}")
        set_numbers[f"tokens/{name}"] = len(real)
        set_numbers[f"unknown/{name}"] = unknown
    if text.note:
        run.say(f"  {text.note}")
    if len(sets) == 1:
        run.say("  note: no test set: perplexity is of the training text; try --valid 0.1")
    return set_numbers


def say_perplexities(run, text, numbers, set_numbers, length):
    """Print the perplexities of all sets, in blocks of a length. Return what result.json says of
    them. set_numbers: see `say_sets`."""
    result = {}
    for name in text.streams:
        ppl = numbers[f"perplexity/{name}"]
        key = name
        if length != run.flags.block_size:
            key = f"{name}@{length}"
        result[f"perplexity/{key}"] = ppl
        words = f"  {key:<14} perplexity {ppl:>9,.1f}"
        n_tokens = set_numbers[f"tokens/{name}"]
        is_whole = n_tokens == len(text.streams[name]) - 1  # all but [BOS]
        if is_whole and name in text.n_bytes:  # not cut by --eval-train or --eval-test
            bits = math.log2(ppl) * n_tokens / text.n_bytes[name]
            result[f"bits_per_byte/{key}"] = bits
            words += f"  {bits:.3f} bits per byte"
        floor = text.floor.get(f"perplexity/{key}")
        if floor:
            result[f"floor/perplexity/{key}"] = floor
        run.say(words)
    return result


def draw_curve(run, text, config):
    """Write curve.png: the perplexities of all sets by step, and the best possible ones."""
    floors = {}
    for name in text.streams:
        floor = text.floor.get(f"perplexity/{name}")
        if floor:
            floors[BEST + name] = floor
    values = set(floors.values())
    if len(values) == 1:  # one line for all sets
        floors = {"best possible": values.pop()}
    title = f"{run.folder.name}\nCausal LM on {text.name}, {name_positions(config)}"
    lines = run.logged({name: f"perplexity/{name}" for name in text.streams})
    panel = Panel(title, "perplexity", lines, floors, log=True)
    save(curves([panel], "step"), run.folder / "curve.png")


def describe_perplexity(result, name):
    """Return the perplexity of a set and, if the best possible one is known, its distance."""
    ppl = result[f"perplexity/{name}"]
    floor = result.get(f"floor/perplexity/{name}")
    words = f"{name} {ppl:,.1f}"
    if floor and ppl < 2 * floor:
        words += f" ({ppl / floor - 1:.0%} above the best possible, {floor:.2f})"
    elif floor:
        words += f" ({ppl / floor:,.0f} times the best possible, {floor:.2f})"
    return words


if __name__ == "__main__":
    main(train, Flags)
