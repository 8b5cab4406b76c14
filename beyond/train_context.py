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
import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from data.batching import (
    by_epoch,
    generator,
    length_batches,
    pad,
    send_all,
    sentences,
    share_unknown,
)
from data.corpus import Corpus
from data.files import hash_of
from data.masking import mask_tokens
from data.pairs import PAIR_VIEWS, join, load_pairs, mask_pairs, separate
from data.threads import THREAD_VIEWS, Forest, read_forests
from data.tokenizer import train_tokenizer, word_starts
from lab import dist
from lab.figures import Panel, curves, name_positions, save
from lab.flags import (
    Activation,
    CommonFlags,
    Data,
    Head,
    Numbers,
    Position,
    RunFolder,
    main,
    model_config,
    require,
    whole_numbers,
)
from lab.machine import autocast, compile_blocks, set_up_device
from lab.masked import measure_masked, require_targets
from lab.optim import clip_gradients, learning_rate, make_adamw, perplexity
from lab.run import Run, RunData, load_weights
from nets.build import build_model

DEFAULTS = {  # of the flags that are None
    "tlm": dict(batch_size=32, lr=3e-3, init_std=0.05, valid=0.05, eval_every=250),
    # With smaller initial weights, the words of a kind start too alike to be told apart
    "threads": dict(batch_size=8, lr=4e-3, init_std=0.125, valid=0.1, eval_every=150),
}


@dataclass
class Flags(CommonFlags):
    # Data
    data: Data = "toy"  # toy, pairs (a folder), or threads (a .jsonl of posts)
    task: Literal["tlm", "threads"] | None = None  # the context: a translation, or ancestors
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces
    valid: float | None = None  # share held out to choose the best step: 0.05, threads 0.1
    ancestors: int = 8  # read at most this many nearest ancestors of a comment

    # Model
    ancestor_positions: Literal["none", "learned", "sinusoidal"] = "learned"  # their distances
    pos: Position = "learned"  # position encoding; rope: rotary, nope: none
    n_layer: int = 2  # number of blocks
    n_head: int = 4  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 100  # width of the feed-forward layer; 0: four times --n-embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    dropout: float = 0.0  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: Activation = "gelu"  # of the feed-forward layer
    init_std: float | None = None  # of the initial weights: 0.05, threads 0.125
    head: Head = "linear"  # output head, from hidden states to words

    # Training
    init_from: RunFolder = ""  # run of train_mlm.py to start from, or with tlm one of this script
    mask_rate: float = 0.3  # share of tokens to predict
    mask_unit: Literal["token", "word", "span"] = "token"  # what is masked together
    pair_rate: float = 0.8  # share of the updates that read the context
    steps: int = 1500  # number of updates
    batch_size: int | None = None  # pairs or trees per update: 32, threads 8
    lr: float | None = None  # peak learning rate: 0.003, threads 0.004
    warmup: int = 100  # steps over which the learning rate rises
    decay: float = 0.5  # the learning rate falls to zero over this last share of the steps
    weight_decay: float = 0.01  # weight decay of matrices
    clip: float = 1.0  # clip the gradient norm to this; 0: no limit

    # Evaluation
    eval_every: int | None = None  # steps between evaluations: 250, threads 150
    keep: Numbers = ""  # also keep the weights of these steps, as step-N.pt: 0,100

    def __post_init__(self):
        if self.task is None:  # the command line has not been read
            return
        for name, default in DEFAULTS[self.task].items():
            if getattr(self, name) is None:
                setattr(self, name, default)
        require(0 < self.mask_rate < 1, "--mask-rate: must be above 0 and below 1")
        super().__post_init__()


@dataclass
class Batch:
    """What an update reads, before words are masked."""

    idx: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T)
    n_tokens: int  # that are read, with those of the context


class Translations:
    """Sentence pairs. A set is one language of the validation or test pairs."""

    views = PAIR_VIEWS  # name -> in words
    with_context = "paired"  # the view in which the model reads the context

    def __init__(self, flags, tokenizer=None):
        pairs = load_pairs(flags.data, flags.valid)
        training = list(dict.fromkeys(pairs.train))  # without copies
        self.name = pairs.name
        self.hash = hash_of(pairs)
        self.texts = list(itertools.chain(*training))
        if tokenizer is None:
            tokenizer = train_tokenizer(flags.tokenizer, self.texts, flags.vocab_size)
        self.tokenizer = tokenizer
        self.block_size = flags.block_size
        self.pair_rate = flags.pair_rate
        self.sets = self.mask_sets(pairs, flags)  # set -> {view: batches}
        self.firsts, self.seconds = self.encode(training)
        lengths = [len(a) + len(b) for a, b in zip(self.firsts, self.seconds)]
        make_epoch = partial(length_batches, lengths)
        self.rows_of = by_epoch(len(training), flags.batch_size, flags.seed, make_epoch)

    def encode(self, pairs):
        """Return the sentences of the first language and those of the second, as tensors of ids."""
        first, _ = sentences(self.tokenizer, [a for a, _ in pairs], self.block_size)
        second, _ = sentences(self.tokenizer, [b for _, b in pairs], self.block_size)
        return first, second

    def mask_sets(self, pairs, flags):
        """Return {set: {view: batches}} of the validation and test pairs."""
        vocab_size = self.tokenizer.get_vocab_size()
        starts = word_starts(self.tokenizer)
        sets = {}
        for part, held_out in ({"valid": pairs.valid} | pairs.tests).items():
            sides = self.encode(held_out)
            for side, language in enumerate(pairs.languages):
                sets[f"{part}-{language}"] = mask_pairs(
                    sides, side, vocab_size, starts, flags.mask_rate, flags.mask_unit
                )
        return sets

    def draw(self, step, gen):
        """Return the Batch of a step: pairs as one sequence each, or sentences alone."""
        is_paired = torch.rand((), generator=gen) < self.pair_rate
        rows = self.rows_of(step)
        firsts = [self.firsts[i] for i in rows]
        seconds = [self.seconds[i] for i in rows]
        if is_paired:
            idx, mask, context = join(firsts, seconds)
        else:
            idx, mask, context = separate(firsts, seconds)
        return TranslationBatch(idx, mask, int(mask.sum()), context)


@dataclass
class TranslationBatch(Batch):
    """context: {name: (B, T)} that the encoder also reads of each token."""

    context: dict[str, torch.Tensor]

    def context_of(self, rows):
        """Return what the model reads of some rows, beside their tokens."""
        return {name: tensor[rows] for name, tensor in self.context.items()}


class Threads:
    """Comment trees. The sets are "valid" and "test"."""

    views = THREAD_VIEWS
    with_context = "ancestors"

    def __init__(self, flags, tokenizer=None):
        self.name, self.tokenizer, forests, self.hash = read_forests(
            flags.data,
            tokenizer,
            flags.tokenizer,
            flags.vocab_size,
            valid=flags.valid,
            block_size=flags.block_size,
            n_ancestors=flags.ancestors,
        )
        vocab_size = self.tokenizer.get_vocab_size()
        starts = word_starts(self.tokenizer)
        self.sets = {}  # set -> {view: batches}
        for name in ("valid", "test"):
            self.sets[name] = forests[name].mask_comments(
                vocab_size, starts, flags.mask_rate, flags.mask_unit
            )
        self.pair_rate = flags.pair_rate
        self.forest = forests["train"]
        self.texts = self.forest.texts
        n_pieces = len(self.forest.pieces)
        self.rows_of = by_epoch(n_pieces, flags.batch_size, flags.seed, self.forest.batches)

    def draw(self, step, gen):
        """Return the Batch of a step: comments with their ancestors, or alone."""
        comments = self.rows_of(step).tolist()
        is_alone = torch.rand((), generator=gen) < 1 - self.pair_rate
        idx, mask = pad([self.forest.sequences[row] for row in comments])
        n_tokens = int(mask.sum())
        if not is_alone:
            ancestors = set()
            for row in comments:
                ancestors.update(self.forest.chains[row])
            n_tokens += sum(len(self.forest.sequences[row]) for row in ancestors)
        return CommentBatch(idx, mask, n_tokens, comments, self.forest, is_alone)


@dataclass
class CommentBatch(Batch):
    """Comments of a Forest, to be read with their ancestors or alone."""

    comments: list[int]
    forest: Forest
    is_alone: bool

    def context_of(self, rows):
        """Return what the model reads of some rows, beside their tokens."""
        if self.is_alone:
            return {}
        comments = torch.tensor(self.comments)[rows].tolist()
        return self.forest.above(comments, self.forest.chains)


def train(flags):
    require(flags.task, "--task: give tlm or threads")
    keep = whole_numbers(flags.keep, "--keep", most=flags.steps)

    # Data
    source = None
    tokenizer = None
    if flags.init_from:
        from lab.load import read_run  # only to start from another run

        source = read_run(flags.init_from, ["mlm"])
        tokenizer = source.tokenizer
    if flags.task == "tlm":
        texts = Translations(flags, tokenizer)
        kind = "mlm"
        name = "tlm"  # of the folder
        build = {"two_languages": True}
    else:
        texts = Threads(flags, tokenizer)
        kind = "thread"
        name = "thread"
        build = {"n_ancestors": flags.ancestors, "ancestor_positions": flags.ancestor_positions}
    for part, views in texts.sets.items():
        require_targets(views["alone"], f"--data {flags.data}: no word of {part}")

    # Model
    config = model_config(flags, source, vocab_size=texts.tokenizer.get_vocab_size())
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    corpora = {"data": Corpus(texts.name, texts.texts)}
    run = Run(
        flags,
        script=__file__,
        kind=kind,
        config=config,
        build=build,
        data=RunData(texts.tokenizer, texts.hash, corpora),
        device=device,
        name=name,
    )
    model = build_model(kind, config, device, **build)
    if source:
        start_from(model, source, flags.task)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    say_data(run, texts, model, source)

    # Loop
    fit(run, model, optimizer, texts, keep)

    # Results: of the best step
    best = run.load_best(model)
    result = {"step": best["step"]}
    for part, views in texts.sets.items():
        numbers = evaluate(model, part, views, device, flags)
        alone = numbers[f"perplexity/{part}-alone"]
        with_context = numbers[f"perplexity/{part}-{texts.with_context}"]
        result |= numbers
        result[f"gain/{part}"] = math.log(alone / with_context)  # nats saved per word
    run.finish(result, model)
    if dist.rank() > 0:
        return  # rank 0 alone draws and prints
    draw_curves(run, texts, config)
    for part in texts.sets:
        saved = f"the context saves {result[f'gain/{part}']:.3f} nats per word"
        run.say(f"  {describe_perplexities(result, part, texts.views)}; {saved}")
    run.say_end(f"masked-LM perplexity at step {best['step']}")


def start_from(model, source, task):
    """Give a model the weights of the source run."""
    if task == "tlm":
        torch.nn.init.zeros_(model.body.languages.weight)  # if the source has no languages
        weights = model.state_dict() | source.model.state_dict()
        load_weights(model, weights, source.folder)
    else:
        model.body.start_from(source.model.body)
        model.head.load_state_dict(source.model.head.state_dict())


def fit(run, model, optimizer, texts, keep):
    """Train a model on Translations or Threads. keep: steps whose weights are kept."""
    flags = run.flags
    device = run.device
    vocab_size = texts.tokenizer.get_vocab_size()
    starts = word_starts(texts.tokenizer)  # (V,)

    first_step = 0
    if flags.resume:
        first_step = run.resume(model, optimizer)
    dist.copy_from_rank_0(model)
    model.train()
    for step in range(first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = evaluate_valid(model, texts, device, flags)
            valid = valid_sets(texts)
            words = "   ".join(describe_perplexities(numbers, name, texts.views) for name in valid)
            run.log(step, numbers, f"step {step:>5}  perplexity  {words}")
            run.save_best(model, "loss/valid")
            run.save(model, optimizer, step)
        if step in keep:
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # after Ctrl-C, with a checkpoint

        # Batch: it, its context and its masks depend on seed and step alone
        gen = generator(flags.seed, "masks", step)
        batch = texts.draw(step, gen)
        inputs, labels = mask_tokens(  # (B, T)
            batch.idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts
        )
        n_masked = max(1, int((labels != -100).sum()))

        # Update
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        dist.seed_dropout(flags.seed, step)
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.my_parts(labels, flags.accumulate):
            x = {"idx": inputs[rows], "mask": batch.mask[rows], **batch.context_of(rows)}
            x = send_all(x, device)
            with autocast(flags.dtype, device):
                part = model.loss(targets=targets, **x) / n_masked  # the count of the whole batch
            part.backward()
            loss += part.detach()
        dist.sum_gradients(model)
        clip_gradients(model, flags.clip)
        optimizer.step()
        run.progress(step, flags.steps, loss, batch.n_tokens)


def valid_sets(texts):
    """Return the names of the validation sets."""
    return [name for name in texts.sets if name.startswith("valid")]


def evaluate(model, name, views, device, flags):
    """Return {"perplexity/NAME-VIEW": ..., "accuracy/NAME-VIEW": ..., "tokens/NAME": ...}."""
    numbers = {}
    for view, batches in views.items():
        nats, hits, count = measure_masked(model, batches, device, flags.dtype)
        numbers[f"perplexity/{name}-{view}"] = perplexity(nats, count)
        numbers[f"tokens/{name}"] = int(count)
        numbers[f"accuracy/{name}-{view}"] = hits / count
    return numbers


def evaluate_valid(model, texts, device, flags):
    """Return the numbers of all validation sets, and "loss/valid": the loss with the context and
    that without it, weighted by how often each is trained."""
    numbers = {}
    loss = 0.0
    names = valid_sets(texts)
    for name in names:
        numbers |= evaluate(model, name, texts.sets[name], device, flags)
        with_context = math.log(numbers[f"perplexity/{name}-{texts.with_context}"])
        alone = math.log(numbers[f"perplexity/{name}-alone"])
        loss += flags.pair_rate * with_context / len(names)
        loss += (1 - flags.pair_rate) * alone / len(names)
    return numbers | {"loss/valid": loss}


def say_data(run, texts, model, source):
    """Print what is trained on, and how many words of the other sets are unknown."""
    run.say_start(texts.name, model)
    for name, views in texts.sets.items():
        sequences = []
        for inputs, mask, _, _ in views["alone"]:
            for ids, is_real in zip(inputs, mask):
                sequences.append(ids[is_real])
        run.say_unknown(name, share_unknown(sequences), source)


def draw_curves(run, texts, config):
    """Write curve.png: the perplexities of each validation set, by step."""
    title = f"{run.folder.name}\n{texts.name}, {name_positions(config)}"
    panels = []
    for name in valid_sets(texts):
        lines = run.logged(
            {words: f"perplexity/{name}-{view}" for view, words in texts.views.items()}
        )
        panels.append(Panel(title, f"perplexity, {name}", lines, log=True))
    save(curves(panels, "step"), run.folder / "curve.png")


def describe_perplexities(numbers, name, views):
    """Return the perplexities of a set in words. views: {name of a view: it in words}."""
    parts = []
    for view, words in views.items():
        ppl = numbers[f"perplexity/{name}-{view}"]
        parts.append(f"{ppl:,.2f} {words}")
    return f"{name} {', '.join(parts)}"


if __name__ == "__main__":
    main(train, Flags)
