"""Causal language modelling: predict each word from those before it, and measure the perplexity of every test set.

    python train_lm.py --pos alibi --data speeches

The defaults are the assignment's base setting: 500 steps of 16 blocks of 32 tokens. `make recipe-decoder` shows
what the flags of `Recipe` make of the same text.
"""

import math
from dataclasses import dataclass

import torch

import data
from data import batching
from data.corpus import hold_out, normal
from data.masking import noise_tokens
from data.tokenizer import BOS, UNK, train_tokenizer
from lab import processes
from lab.checkpoint import read_checkpoint
from lab.command import main
from lab.errors import UserError, require
from lab.flags import (
    ContinueFlags,
    ModelFlags,
    RunFlags,
    SpreadFlags,
    TokenizerFlags,
    flag,
    model_config,
    step_checks,
)
from lab.limits import LARGEST
from lab.machine import autocast, compile_blocks, prepare
from lab.optim import learning_rate, make_optimizer, perplexity
from lab.parameters import count_parameters
from lab.run import Run
from lab.sources import prepared_of, source_of
from model import Decoder, LanguageModel
from nets.ensemble import Ensemble


@dataclass
class Recipe:
    """what helps on a small text; all off by default"""

    drop_words: float = flag(0.0, "share of the words read in training that become [UNK]")
    swap_words: float = flag(
        0.0, "share of the words read in training that become another word of the text"
    )
    rare_unknown: float = flag(
        0.0, "of the words to predict that the training text holds once, share that becomes [UNK]"
    )
    label_smoothing: float = flag(0.0, "share of each target given to all words alike")
    members: int = flag(
        1, "models trained side by side, each on its own batches; their probabilities are averaged"
    )
    eval_stride: int = flag(
        0,
        "evaluation blocks begin so many tokens apart and overlap, "
        "each predicting only its last ones; 0: no overlap",
    )


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags, Recipe, ContinueFlags, SpreadFlags):
    steps: int = flag(500, "number of updates")
    batch_size: int = flag(16, "blocks an update")
    lr: float = flag(1e-3, "peak learning rate")
    warmup: int = flag(0, "steps in which the learning rate rises")
    decay: float = flag(
        0.5, "share of the steps, at the end, in which the learning rate falls to zero; 0: never"
    )
    weight_decay: float = flag(0.01, "of matrices")
    clip: float = flag(1.0, "largest gradient norm; 0: no limit")
    tie: bool = flag(True, "the output layer shares the word embeddings")
    valid: float = flag(
        0.0,
        "share of the training lines held out to choose the best checkpoint; 0: none, the last is kept",
    )
    eval_every: int = flag(100, "steps between evaluations")
    eval_block: str = flag(
        "", "also evaluate with blocks of these lengths at the end, e.g. 32,64,128"
    )
    eval_train: int = flag(200_000, "evaluate on at most so many tokens of the training text")
    eval_test: int = flag(
        0, "evaluate on at most so many tokens of each test set; 0: on whole sets"
    )


def evaluate(model, ids, block_size, device, flags, batch_size=64):
    """Summed loss in nats over the stream ids (N + 1,), each of its N tokens predicted exactly once.

    The stream is cut into consecutive blocks, as in training: the first word of a block sees only one before it,
    unless --eval-stride lets them overlap.
    """
    model.eval()
    inputs, targets = batching.consecutive_blocks(
        ids, block_size, min(flags.eval_stride, block_size)
    )
    nats = 0.0
    with torch.no_grad(), autocast(flags, device):
        for x, y in processes.mine(list(zip(inputs.split(batch_size), targets.split(batch_size)))):
            nats += model.loss(x.to(device), y.to(device)).item()
    model.train()
    return processes.add(torch.tensor(nats, dtype=torch.float64)).item()


def train(flags):
    source = source_of(flags, "lm")
    if source:
        flags.members = source.config.get("members", 1)
    eval_blocks = check(flags)

    # Data: one long stream of ids a set, beginning with [BOS].
    name, tokenizer, whole, sizes, floor = read(flags, source)
    ids, held_out = whole["train"], flags.valid and "valid" in whole
    # Counting takes a second for each gigabyte of text, and only these two look at the result.
    counts = (
        ids.bincount(minlength=tokenizer.get_vocab_size())
        if flags.swap_words or flags.rare_unknown
        else torch.zeros(tokenizer.get_vocab_size())
    )
    require(
        (
            len(ids) > flags.block_size + 1,
            f"--block-size {flags.block_size}: the training text has only {len(ids) - 1} tokens; use a smaller block",
        )
    )
    streams = {
        name: part[: (flags.eval_train if name == "train" else flags.eval_test or len(part)) + 1]
        for name, part in whole.items()
    }
    n_bytes = {name: sizes[name] for name in sizes if len(streams[name]) == len(whole[name])}

    # Model
    config = (
        source.model.body.config
        if source
        else model_config(flags, vocab_size=tokenizer.get_vocab_size())
    )
    device = prepare(flags, config.n_embd)
    run = Run("lm", flags, config, tokenizer, device, members=flags.members)
    members = [LanguageModel(Decoder(config)) for _ in range(flags.members)]
    model = (Ensemble(members) if flags.members > 1 else members[0]).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        model.load_state_dict(source.model.state_dict())
    optimizer = make_optimizer(model, flags.lr, flags.weight_decay)
    run.say(
        f"{name}: {len(ids) - 1:,} training tokens, {config.vocab_size:,} entries in the vocabulary; "
        f"{count_parameters(model)['total']:,} parameters, pos={config.pos}, on {device}"
    )
    if len(streams) == 1:
        run.say(
            "  note: this text has no test set, so all is measured on what is trained on; --valid 0.1 holds out a tenth"
        )
    for name, part in streams.items():
        run.say(
            f"  {name:<9}{len(part) - 1:>8,} tokens  "
            f"{100 * batching.fraction_unknown(part[1:], UNK):4.1f}% out of vocabulary"
        )

    # Loop
    loss_of = processes.spread(model)
    first, more = run.restore(model, optimizer)
    best = more.get("best", math.inf)
    tokens_a_step = flags.batch_size * flags.block_size
    losses = more.get("losses", [])  # since the last evaluation
    model.train()
    for step in run.interruptible(range(first, flags.steps + 1)):
        if run.is_due(step):
            numbers = {"loss/train": torch.stack(losses).mean().item()} if losses else {}
            losses = []
            for name, part in streams.items():
                numbers[f"perplexity/{name}"] = perplexity(
                    evaluate(model, part, flags.block_size, device, flags), len(part) - 1
                )
            run.log(step, tokens=step * tokens_a_step, **numbers)
            run.say(
                f"step {step:>5}  perplexity  "
                + "  ".join(f"{name} {numbers[f'perplexity/{name}']:,.1f}" for name in streams)
            )
            if not held_out or numbers["perplexity/valid"] < best:
                best = numbers.get("perplexity/valid", best)
                run.save("best.pt", model=model.state_dict(), step=step)
            run.save_checkpoint(model, optimizer, step, best=best, losses=losses)
        run.stop_if_asked(model, optimizer, step, best=best, losses=losses)
        if step == flags.steps:
            break
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        gen = batching.generator(flags.seed, step)
        x, y = batching.random_blocks(ids, flags.block_size, flags.members * flags.batch_size, gen)
        x, y = noise_tokens(
            x, y, counts, gen, flags.drop_words, flags.swap_words, flags.rare_unknown
        )
        x[:: flags.batch_size, 0] = BOS  # one block begins with nothing before it, as a prompt does
        optimizer.zero_grad()
        loss = 0.0
        # All of them, unless several processes share them out
        for rows, wanted in processes.parts(loss_of, y, flags, step, flags.members):
            with autocast(flags, device):
                part = loss_of(
                    x[rows].to(device, non_blocking=True), wanted, smoothing=flags.label_smoothing
                ) / (tokens_a_step * flags.members)
            part.backward()
            loss += part.detach()
        if flags.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip)
        optimizer.step()
        losses.append(processes.add(loss))
        run.progress(step + 1, flags.steps, loss, lr, (step + 1 - first) * tokens_a_step)

    # Results
    best_weights = processes.from_first(lambda: read_checkpoint(run.folder / "best.pt", device))
    model.load_state_dict(best_weights["model"])
    if best_weights["step"] != flags.steps:
        run.say(
            f"step {best_weights['step']} was best on the held-out lines; what follows is of its weights"
        )
    result = {"step": best_weights["step"], "vocab_size": config.vocab_size}
    for block in eval_blocks:
        at = "" if block == flags.block_size else f"@{block}"
        for name, part in streams.items():
            nats = evaluate(model, part, block, device, flags)
            result[f"perplexity/{name}{at}"] = perplexity(nats, len(part) - 1)
            if name in n_bytes:
                result[f"bits_per_byte/{name}{at}"] = nats / math.log(2) / n_bytes[name]
    for name, part in streams.items():
        result[f"tokens/{name}"] = len(part) - 1
        result[f"unknown/{name}"] = batching.fraction_unknown(part[1:], UNK)
    if processes.leave():
        return
    run.finish(
        result | {f"floor/{name}": value for name, value in floor.items() if name in result},
        model,
        flags.steps * tokens_a_step,
    )
    draw(run, streams, floor)
    for block in eval_blocks:
        at = "" if block == flags.block_size else f"@{block}"
        for name in streams:
            run.say(
                f"  {name:<9} in blocks of {block:<5} perplexity {result[f'perplexity/{name}{at}']:>9,.1f}"
                + (
                    f"   {result[f'bits_per_byte/{name}{at}']:.3f} bits per byte"
                    if f"bits_per_byte/{name}{at}" in result
                    else ""
                )
            )
    words = ", ".join(
        f"{name} {result[f'perplexity/{name}']:.1f}" + above(result, floor, f"perplexity/{name}")
        for name in streams
    )
    run.say(
        f"perplexity at step {best_weights['step']}: {words}; {run.seconds():.0f} s, {run.folder}"
    )


def read(flags, source):
    """What to train and measure on: (name, tokenizer, {set: its tokens as one stream that begins with [BOS]},
    {set: its bytes}, {metric: the lowest possible value, where it is known}). A folder of prepare.py stays on disk, and
    its streams are read as they are needed."""
    prepared = prepared_of(flags, source)
    if prepared:
        return prepared.name, prepared.tokenizer, prepared.streams, prepared.bytes, {}
    corpus = data.load(flags.data)
    require(
        (
            corpus.lines,
            f"--data {flags.data}: holds no running text to model; "
            "give a corpus with train_LM.txt or a .txt",
        )
    )
    lines, held_out = (
        hold_out(corpus.lines, flags.valid, seed=0) if flags.valid else (corpus.lines, [])
    )
    held = {
        normal(line) for line in held_out
    }  # as unknown to the vocabulary as the words of a test set are
    texts = [
        text
        for text in (data.load(flags.vocab_from) if flags.vocab_from else corpus).texts()
        if normal(text) not in held
    ]
    tokenizer = (
        source.tokenizer if source else train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    )
    sets = {"train": lines} | ({"valid": held_out} if held_out else {}) | corpus.tests
    whole = {name: batching.stream(tokenizer, part) for name, part in sets.items()}
    sizes = {name: sum(len(line.encode()) + 1 for line in part) for name, part in sets.items()}
    # The floor counts every word as a token; with another vocabulary it bounds nothing.
    floor = (
        corpus.floor
        if flags.tokenizer == "word" and not (flags.vocab_size or flags.vocab_from or source)
        else {}
    )
    return corpus.name, tokenizer, whole, sizes, floor


def above(result, floor, name):
    """How far a perplexity is from the lowest possible, where that is known."""
    if name not in floor:
        return ""
    times = result[name] / floor[name]
    return f" ({f'{times - 1:.0%} above the' if times < 10 else f'{times:.0f} times the'} floor of {floor[name]:.2f})"


def check(flags):
    """The lengths to evaluate at. UserError for flags that cannot work."""
    try:
        blocks = [int(block) for block in flags.eval_block.split(",") if block]
    except ValueError:
        raise UserError(
            f"--eval-block {flags.eval_block}: must be lengths joined by commas, like 32,64,128"
        ) from None
    require(
        *step_checks(flags),
        *(
            (
                0 <= getattr(flags, name) < 1,
                f"--{name.replace('_', '-')} must be at least 0 and below 1, got {getattr(flags, name)}",
            )
            for name in ("drop_words", "swap_words", "label_smoothing")
        ),
        (
            flags.drop_words + flags.swap_words < 1,
            f"--drop-words and --swap-words must be below 1 together, got {flags.drop_words + flags.swap_words:g}",
        ),
        (
            0 <= flags.rare_unknown <= 1,
            f"--rare-unknown must be from 0 to 1, got {flags.rare_unknown}",
        ),
        (
            0 < flags.members <= 1000,
            f"--members must be at least 1 and at most 1000, got {flags.members}",
        ),
        (
            0 <= flags.eval_stride <= flags.block_size,
            f"--eval-stride must be from 0 to --block-size {flags.block_size}, got {flags.eval_stride}",
        ),
        (
            flags.init_from or flags.alibi == "offset",
            f"--alibi {flags.alibi}: is for encoders, a decoder has the causal form; leave it out",
        ),
        (flags.eval_train > 0, f"--eval-train must be at least 1, got {flags.eval_train}"),
        (flags.eval_test >= 0, f"--eval-test must not be negative, got {flags.eval_test}"),
        (0 <= flags.valid < 1, f"--valid must be at least 0 and below 1, got {flags.valid}"),
        (
            all(0 < block <= LARGEST for block in blocks),
            f"--eval-block lengths must be at least 1 and at most {LARGEST:,}, got {flags.eval_block}",
        ),
        (
            flags.pos != "learned" or all(block <= flags.block_size for block in blocks),
            f"--eval-block {flags.eval_block}: learned positions end at --block-size {flags.block_size}; "
            "use --pos alibi, sinusoidal, rope or nope to go beyond the trained length",
        ),
    )
    return sorted({flags.block_size, *blocks})


def draw(run, streams, floor):
    """curve.png: perplexity over steps, on a log axis since it starts near the size of the vocabulary."""
    from lab import figures

    metrics = [m for m in run.metrics() if "perplexity/train" in m]
    lines = {
        name: ([m["step"] for m in metrics], [m[f"perplexity/{name}"] for m in metrics])
        for name in streams
    }
    floors = {
        f"floor {name}": floor[f"perplexity/{name}"]
        for name in streams
        if f"perplexity/{name}" in floor
    }
    figures.curves(
        run.folder / "curve.png",
        [(f"Causal LM, pos={run.flags.pos}", "perplexity (log scale)", lines, floors, True)],
        "step",
    )


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
