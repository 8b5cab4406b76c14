"""Predict masked words with their context: a translation, or the comments above in a thread.

    python -m beyond.train_context --task tlm --data pairs/ --pos rope
    python -m beyond.train_context --task threads --data threads.jsonl --ancestors 4

tlm: translation language modelling (Lample & Conneau 2019, section 3). A pair is one sequence,
[BOS] a sentence [BOS] its translation (nets/two_languages.py).
threads: a post and its comments form a tree. An encoder reads every text that has replies once and
averages its states. Another one reads a comment with masked words, and its cross-attention the
vectors of the comment's ancestors (ThreadReader in nets/seq2seq.py).

Afterwards the same masked words are predicted three times: with their context, alone, and with the
context of another sentence.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from data import batching
from data.batching import by_epoch, generator, pad, send_all, sentences
from data.corpus import Corpus
from data.files import hash_of
from data.masking import mask_tokens
from data.pairs import PAIR_VIEWS, join, load_pairs, mask_pairs, separate
from data.threads import THREAD_VIEWS, read_forests
from data.tokenizer import train_tokenizer, word_starts
from lab import dist
from lab.evaluation import measure_masked, require_targets
from lab.figures import curves, name_positions, save
from lab.flags import CommonFlags, LoopFlags, MaskFlags, main, model_config, require, whole_numbers
from lab.load import read_run
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.run import Run, load_weights
from lab.sources import say_unknown
from model import ACTIVATIONS, LanguageModel
from nets.seq2seq import ThreadReader
from nets.two_languages import TwoLanguageEncoder

DEFAULTS = {  # of the flags that are None
    "tlm": dict(batch_size=32, lr=3e-3, init_std=0.05, valid=0.05, eval_every=250),
    # With smaller initial weights, the words of a kind start too alike to be told apart
    "threads": dict(batch_size=8, lr=4e-3, init_std=0.125, valid=0.1, eval_every=150),
}


@dataclass
class Flags(MaskFlags, LoopFlags, CommonFlags):
    data: str = "toy"  # toy, pairs (a folder), or threads (a .jsonl of posts)
    task: Literal["tlm", "threads"] | None = None  # the context: a translation, or ancestors
    init_from: str = ""  # run of train_mlm.py to start from, or with tlm one of this script
    pair_rate: float = 0.8  # share of the updates that read the context
    ancestors: int = 8  # read at most this many nearest ancestors of a comment
    ancestor_positions: Literal["none", "learned", "sinusoidal"] = "learned"  # their distances
    valid: float | None = None  # share held out to choose the best step: 0.05, threads 0.1
    batch_size: int | None = None  # pairs or trees per update: 32, threads 8
    lr: float | None = None  # peak learning rate: 0.003, threads 0.004
    init_std: float | None = None  # of the initial weights: 0.05, threads 0.125
    eval_every: int | None = None  # steps between evaluations: 250, threads 150
    n_layer: int = 2  # number of blocks
    n_head: int = 4  # attention heads per block
    activation: Literal[tuple(ACTIVATIONS)] = "gelu"  # of the feed-forward layer
    steps: int = 1500  # number of updates
    warmup: int = 100  # steps over which the learning rate rises

    def __post_init__(self):
        if self.task:  # else the command line has not been read
            for name, default in DEFAULTS[self.task].items():
                setattr(self, name, default if getattr(self, name) is None else getattr(self, name))
            super().__post_init__()


def build(config, task, n_ancestors=0, ancestor_positions="none"):
    """Return the untrained model of a run."""
    if task == "tlm":
        return LanguageModel(TwoLanguageEncoder(config))
    return LanguageModel(ThreadReader(config, n_ancestors, ancestor_positions))


def read_translations(flags, tokenizer):
    """Return (Corpus of the training texts, tokenizer, hash, {set: {view: batches}}, draw).

    A set is one language of the validation or test pairs. draw: function of step and generator ->
    idx, mask (B, T), the number of tokens that are read, and a function of rows -> their context.
    """
    pairs = load_pairs(flags.data, flags.valid)
    kept, sets = list(dict.fromkeys(pairs.train)), {}
    texts = [text for pair in kept for text in pair]
    tokenizer = tokenizer or train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    how = tokenizer.get_vocab_size(), word_starts(tokenizer), flags.mask_rate, flags.mask_unit

    def encode(part):
        return [sentences(tokenizer, side, flags.block_size)[0] for side in zip(*part)]

    for part, found in ({"valid": pairs.valid} | pairs.tests).items():
        for side, language in enumerate(pairs.languages):
            sets[f"{part}-{language}"] = mask_pairs(encode(found), side, *how)
    sides = encode(kept)
    lengths = [len(a) + len(b) for a, b in zip(*sides)]
    make = partial(batching.length_batches, lengths)
    rows_of = by_epoch(len(kept), flags.batch_size, flags.seed, make)

    def draw(step, gen):
        paired = torch.rand((), generator=gen) < flags.pair_rate
        chosen = ([side[i] for i in rows_of(step)] for side in sides)
        idx, mask, more = (join if paired else separate)(*chosen)
        n_tokens = int(mask.sum())
        return idx, mask, n_tokens, lambda rows: {name: x[rows] for name, x in more.items()}

    return Corpus(pairs.name, texts), tokenizer, hash_of(pairs), sets, draw


def read_threads(flags, tokenizer):
    """Return the same of comment trees."""
    how = dict(valid=flags.valid, block_size=flags.block_size, n_ancestors=flags.ancestors)
    vocabulary = tokenizer, flags.tokenizer, flags.vocab_size
    name, tokenizer, forests, data_hash = read_forests(flags.data, *vocabulary, **how)
    how = tokenizer.get_vocab_size(), word_starts(tokenizer), flags.mask_rate, flags.mask_unit
    sets = {part: forests[part].mask_comments(*how) for part in ("valid", "test")}
    forest = forests["train"]
    rows_of = by_epoch(len(forest.pieces), flags.batch_size, flags.seed, forest.batches)

    def draw(step, gen):
        comments, alone = rows_of(step), torch.rand((), generator=gen) < 1 - flags.pair_rate
        idx, mask = pad([forest.sequences[row] for row in comments])
        above = set() if alone else {a for row in comments.tolist() for a in forest.chains[row]}
        n_tokens = int(mask.sum()) + sum(len(forest.sequences[a]) for a in above)

        def context(rows):
            return {} if alone else forest.above(comments[rows].tolist(), forest.chains)

        return idx, mask, n_tokens, context

    return Corpus(name, forest.texts), tokenizer, data_hash, sets, draw


def evaluate(model, name, views, device, flags):
    """Return {"perplexity/NAME-VIEW": ..., "accuracy/NAME-VIEW": ..., "tokens/NAME": ...}."""
    numbers = {}
    for view, batches in views.items():
        nats, hits, n = measure_masked(model, batches, device, flags.dtype)
        numbers |= {f"perplexity/{name}-{view}": perplexity(nats, n), f"tokens/{name}": int(n)}
        numbers[f"accuracy/{name}-{view}"] = hits / n
    return numbers


def train(flags):
    # Data
    require(flags.task, "--task: give tlm or threads")
    source = read_run(flags.init_from, ["mlm"]) if flags.init_from else None
    tlm = flags.task == "tlm"
    read = read_translations if tlm else read_threads
    corpus, tokenizer, data_hash, sets, draw = read(flags, source and source.tokenizer)
    words_of, helped = (PAIR_VIEWS, "paired") if tlm else (THREAD_VIEWS, "ancestors")
    vocab_size, starts = tokenizer.get_vocab_size(), word_starts(tokenizer)
    for n, views in sets.items():
        require_targets(views["alone"], f"--data {flags.data}: no word of {n}")
    valid = [n for n in sets if n.startswith("valid")]

    # Model
    config = model_config(flags, source, vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    options = {"task": flags.task, "n_ancestors": flags.ancestors}
    options |= {"ancestor_positions": flags.ancestor_positions}
    kind, about = "mlm" if tlm else "thread", dict(read={"data": corpus}, name="tlm" * tlm)
    run = Run(__file__, flags, kind, config, tokenizer, device, data_hash, options, **about)
    model = build(config, **options).to(device)
    if source and tlm:
        torch.nn.init.zeros_(model.body.languages.weight)  # if the source has no languages
        load_weights(model, model.state_dict() | source.model.state_dict(), source.folder)
    elif source:
        model.body.start_from(source.model.body)
        model.head.load_state_dict(source.model.head.state_dict())
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    run.say_start(corpus.name, model)
    for n, views in sets.items():
        rows = [row for inputs, mask, *_ in views["alone"] for row in zip(inputs, mask)]
        say_unknown(run, n, batching.share_unknown([ids[real] for ids, real in rows]), source)

    # Loop
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers, loss = {}, 0.0
            for n in valid:
                numbers |= evaluate(model, n, sets[n], device, flags)
                # Weight both losses by how often each is trained
                for view, weight in ((helped, flags.pair_rate), ("alone", 1 - flags.pair_rate)):
                    loss += weight * math.log(numbers[f"perplexity/{n}-{view}"]) / len(valid)
            words = "   ".join(in_words(numbers, n, words_of) for n in valid)
            numbers["loss/valid"] = loss
            run.log(step, numbers, f"step {step:>5}  perplexity  {words}", model, "loss/valid")
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, "masks", step)
        idx, mask, n_tokens, context = draw(step, gen)  # (B, T)
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        count = max(1, (labels != -100).sum().item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.micro_batches(labels, flags.accumulate, flags.seed, step):
            read = {"idx": inputs[rows], "mask": mask[rows], **context(rows)}
            with autocast(flags.dtype, device):
                loss = model.loss(targets=targets, **send_all(read, device)) / count
            loss.backward()
            total += loss.detach()
        dist.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.progress(step, flags.steps, total, n_tokens)

    # Results: of the best step
    best = run.load_best(model)
    result = {"step": best["step"]}
    for n, views in sets.items():
        result |= evaluate(model, n, views, device, flags)
        alone, with_context = (result[f"perplexity/{n}-{view}"] for view in ("alone", helped))
        result[f"gain/{n}"] = math.log(alone / with_context)  # nats saved per word
    run.finish(result, model)
    title, panels = f"{run.folder.name}\n{corpus.name}, {name_positions(config)}", []
    for n in valid:
        keys = {words: f"perplexity/{n}-{view}" for view, words in words_of.items()}
        panels.append((title, f"perplexity, {n} (log scale)", run.logged(keys), {}, True))
    save(curves(panels, "step"), run.folder / "curve.png")
    for n in sets:
        saved = f"the context saves {result[f'gain/{n}']:.3f} nats per word"
        run.say(f"  {in_words(result, n, words_of)}; {saved}")
    run.say_end(f"masked-LM perplexity at step {best['step']}")


def in_words(numbers, name, words_of):
    """Return the perplexities of a set in words."""
    found = {words: numbers[f"perplexity/{name}-{view}"] for view, words in words_of.items()}
    return f"{name} " + ", ".join(f"{value:,.2f} {words}" for words, value in found.items())


if __name__ == "__main__":
    main(train, Flags)
