"""Masked language modelling: pretrain an encoder by masking and predicting words of a sentence.

    python train_mlm.py --pos alibi --data speeches
    python train_mlm.py --data my.txt --n-layer 4 --n-embd 128 --lr 1e-3
    python train_mlm.py --init-from out/mlm-wikitext2-alibi-0 --data speeches
    python train_mlm.py --data wikitext2 --next-sentence       BERT's second task, for pairs

The perplexity is of masked words, with both sides visible: not comparable with train_lm.py's.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from typing import Literal

from torch.nn.utils import clip_grad_norm_

from data.batching import generator, length_batches, pad, send, send_mask, share_unknown
from data.masking import mask_tokens
from data.sentences import pair_batches, pair_up, read_sentences
from data.tokenizer import word_starts
from lab import dist
from lab.evaluation import measure_masked, require_targets
from lab.figures import curves, name_positions, save
from lab.flags import MaskFlags, TrainFlags, main, model_config, require, whole_numbers
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.run import Run, load_weights
from lab.sources import open_encoder, say_unknown
from model import ACTIVATIONS, HEADS, Encoder, LanguageModel
from nets.pairs import NextSentence


@dataclass
class Flags(MaskFlags, TrainFlags):
    n_layer: int = 1  # number of blocks
    n_embd: int = 1024  # width of the hidden states
    n_head: int = 8  # attention heads per block
    n_ffn: int = 256  # width of the feed-forward layer; 0: four times --n-embd
    init_std: float = 0.01  # standard deviation of the initial weights
    activation: Literal[tuple(ACTIVATIONS)] = "gelu"  # of the feed-forward layer
    dropout: float = 0.2  # dropout of embeddings and sublayer outputs
    steps: int = 800  # number of updates
    batch_size: int = 32  # sequences per update
    lr: float = 1.5e-4  # peak learning rate
    warmup: int = 100  # steps over which the learning rate rises
    decay: float = 1.0  # the learning rate falls to zero over this last share of the steps
    head: Literal[HEADS] = "roberta"  # output head, from hidden states to words
    beta2: float = 0.98  # decay of Adam's second moment
    zero_mask: bool = False  # the input vector of [MASK] is zero (zero-CLAP)
    omit_mask: bool = False  # [MASK] cannot be predicted, and output words have no bias
    valid: float = 0.05  # share of the lines held out to choose the best step
    split: str = "full"  # clean: train without the test rows' sentences; i/n: without part i
    next_sentence: bool = False  # read pairs of lines; also tell whether the second one follows
    init: str = ""  # RoBERTa to start from: a folder of transformers, or a name on the hub

    def __post_init__(self):
        super().__post_init__()
        require(0 < self.valid < 1, "--valid: must be above 0 and below 1")
        require(0 <= self.beta2 < 1, "--beta2: must be at least 0 and below 1")


def build(config, next_sentence=False):
    """Return the untrained model of a run."""
    return (NextSentence if next_sentence else LanguageModel)(Encoder(config))


def fixed_batches(sequences, vocab_size, masking):
    """Return batches to measure on. Their masks depend on neither seed nor step. masking: the last
    arguments of `mask_tokens`."""
    batches = []
    for rows in length_batches([len(sequence) for sequence in sequences], 64):
        idx, real = pad([sequences[i] for i in rows])  # (B, T)
        gen = generator("validation masks", *rows.tolist())
        inputs, labels = mask_tokens(idx, vocab_size, gen, *masking)
        batches.append((inputs, real, labels, {}))
    return batches


def evaluate(model, batches, device, dtype, pairs=(), follows=()):
    """Return the numbers of metrics.jsonl, measured on fixed batches, and for pairs of ids on
    whether they follow, (N,)."""
    nats, hits, count = measure_masked(model, batches, device, dtype)
    numbers = {"loss/valid": nats / count, "accuracy/valid": hits / count}
    numbers["perplexity/valid"] = perplexity(nats, count)
    if len(pairs):
        right, parts = 0, zip(range(0, len(pairs), 64), follows.split(64))
        for i, some in parts:
            idx, mask = (send(x, device) for x in pad(pairs[i : i + 64]))  # (B, T)
            right += model.eval().tell(idx, mask, some.to(device))
        numbers["accuracy/next"] = right / len(pairs)
        model.train()
    beta = model.head.beta  # of CLAP
    return numbers if beta is None else numbers | {"beta": beta.item()}


def train(flags):
    # Data: sentences, or the blocks of a prepared folder
    source = open_encoder(flags, ["mlm"])
    vocabulary = source and source.tokenizer, flags.tokenizer, flags.vocab_size, flags.vocab_from
    how = flags.valid, flags.split, flags.next_sentence
    text = read_sentences(flags.data, flags.block_size, *vocabulary, *how)
    vocab_size = text.tokenizer.get_vocab_size()
    masking = flags.mask_rate, flags.mask_unit, word_starts(text.tokenizer)
    batch_of, valid, follows = text.batches(flags.batch_size, flags.seed), text.valid, ()
    if flags.next_sentence:
        fits = isinstance(text.train, list) and min(len(text.train), len(text.valid)) > 2
        require(fits, "--next-sentence: give a text, with 3 lines or more to train and to hold out")
        batch_of = pair_batches(text.train, flags.block_size, flags.batch_size, flags.seed)
        valid, follows = pair_up(text.valid, flags.block_size, generator("validation pairs"))
    pairs, valid = valid[: len(follows)], fixed_batches(valid, vocab_size, masking)
    require_targets(valid, f"--data {flags.data}: no word of the held-out lines")

    # Model
    more = dict(vocab_size=vocab_size) | (dict(n_segment=2) if flags.next_sentence else {})
    config = model_config(flags, source, **more)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    build_with = {"next_sentence": True} if flags.next_sentence else {}
    about = text.tokenizer, device, text.hash, build_with, text.read
    run = Run(__file__, flags, "mlm", config, *about)
    model = build(config, **build_with).to(device)
    if source:
        load_weights(model, source.model.state_dict(), source.folder)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay, flags.beta2)
    if text.note:
        run.say(text.note)
    sizes = f"{len(text.train):,} training sequences ({text.n_tokens:,} tokens)"
    run.say_start(f"{text.name}: {sizes}, {len(text.valid):,} for validation", model)
    if text.n_long:
        run.say(f"  {text.n_long} lines are longer than --block-size and were split")
    say_unknown(run, "held-out", share_unknown(text.valid), source)

    # Loop
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = evaluate(model, valid, device, flags.dtype, pairs, follows)
            run.log(step, numbers, f"step {step:>5}  {in_words(numbers)}", model, "loss/valid")
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        idx, real, *follow = batch_of(step)  # (B, T), with --next-sentence (B,)
        gen = generator(flags.seed, "masks", step)  # masks depend on seed and step alone
        inputs, labels = mask_tokens(idx, vocab_size, gen, *masking)  # (B, T)
        count = max(1, (labels != -100).sum().item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.micro_batches(labels, flags.accumulate, flags.seed, step):
            with autocast(flags.dtype, device):
                mask = send_mask(real[rows], device)
                read = send(inputs[rows], device), send(targets, device), mask
                if follow:
                    words, second = model.both_losses(*read, send(follow[0][rows], device))
                    loss = words / count + second / len(idx)
                else:
                    loss = model.loss(*read) / count
            loss.backward()
            total += loss.detach()
        dist.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.progress(step, flags.steps, total, int(real.sum()))

    # Results
    best = run.load_best(model)
    run.finish({"step": best["step"]} | {name: best[name] for name in numbers}, model)
    title = f"Masked LM on {text.name}, {name_positions(config)}"
    ppl, accuracy = ({"held-out lines": f"{name}/valid"} for name in ("perplexity", "accuracy"))
    panels = [(f"{run.folder.name}\n{title}", "perplexity (log scale)", run.logged(ppl), {}, True)]
    panels += [("", "accuracy", run.logged(accuracy), {}, False)]
    if "beta" in best:
        panels += [("CLAP head", "beta", run.logged({"beta": "beta"}), {}, False)]
    save(curves(panels, "step"), run.folder / "curve.png")
    run.say_end(f"{in_words(best)} on held-out lines at step {best['step']}")


def in_words(numbers):
    """Return the numbers of an evaluation in words."""
    ppl, accuracy = numbers["perplexity/valid"], numbers["accuracy/valid"]
    more = f", next sentence {numbers['accuracy/next']:.1%}" if "accuracy/next" in numbers else ""
    return f"masked-LM perplexity {ppl:,.1f}, accuracy {accuracy:.1%}{more}"


if __name__ == "__main__":
    main(train, Flags)
