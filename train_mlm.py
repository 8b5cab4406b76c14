"""Masked language modelling: pretrain an encoder by masking and predicting words of a sentence.

    python train_mlm.py --pos alibi --data speeches
    python train_mlm.py --data my.txt --n-layer 4 --n-embd 128 --lr 1e-3
    python train_mlm.py --init-from out/mlm-wikitext2-alibi-0 --data speeches
    python train_mlm.py --data wikitext2 --next-sentence       BERT's second task, for pairs

The perplexity is of masked words, with both sides visible: not comparable with train_lm.py's.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
from dataclasses import dataclass
from typing import Literal

import torch

from data.batching import generator, length_batches, pad, send, send_mask, share_unknown
from data.leaks import RUN
from data.masking import mask_tokens
from data.sentences import pair_batches, pair_up, read_in_order, read_sentences
from data.tokenizer import word_starts
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
    Split,
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


@dataclass
class Flags(CommonFlags):
    # Data
    data: Data = "toy"  # a named corpus, a .txt, a .tsv or .csv of labelled rows, or a folder
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces
    vocab_from: Data = ""  # corpus to take the vocabulary from, instead of --data
    valid: float = 0.05  # share of the lines held out to choose the best step
    split: Split = "full"  # clean: train without the test rows' sentences; i/n: without part i

    # Model
    pos: Position = "learned"  # position encoding; rope: rotary, nope: none
    n_layer: int = 1  # number of blocks
    n_head: int = 8  # attention heads per block
    n_embd: int = 1024  # width of the hidden states
    n_ffn: int = 256  # width of the feed-forward layer; 0: four times --n-embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    dropout: float = 0.2  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: Activation = "gelu"  # of the feed-forward layer
    init_std: float = 0.01  # standard deviation of the initial weights
    head: Head = "roberta"  # output head, from hidden states to words
    zero_mask: bool = False  # the input vector of [MASK] is zero (zero-CLAP)
    omit_mask: bool = False  # [MASK] cannot be predicted, and output words have no bias

    # Training
    init_from: RunFolder = ""  # run folder to start from: its weights, architecture and vocabulary
    init: str = ""  # RoBERTa to start from: a folder of transformers, or a name on the hub
    mask_rate: float = 0.3  # share of tokens to predict
    mask_unit: Literal["token", "word", "span"] = "token"  # what is masked together
    next_sentence: bool = False  # read pairs of lines; also tell whether the second one follows
    steps: int = 800  # number of updates
    batch_size: int = 32  # sequences per update
    lr: float = 1.5e-4  # peak learning rate
    warmup: int = 100  # steps over which the learning rate rises
    decay: float = 1.0  # the learning rate falls to zero over this last share of the steps
    weight_decay: float = 0.01  # weight decay of matrices
    beta2: float = 0.98  # decay of Adam's second moment
    clip: float = 1.0  # clip the gradient norm to this; 0: no limit

    # Evaluation
    eval_every: int = 100  # steps between evaluations
    keep: Numbers = ""  # also keep the weights of these steps, as step-N.pt: 0,100

    def __post_init__(self):
        super().__post_init__()
        require(0 < self.mask_rate < 1, "--mask-rate: must be above 0 and below 1")
        require(0 < self.valid < 1, "--valid: must be above 0 and below 1")
        require(0 <= self.beta2 < 1, "--beta2: must be at least 0 and below 1")


def train(flags):
    keep = whole_numbers(flags.keep, "--keep", most=flags.steps)

    # Data: sentences, or the blocks of a prepared folder
    source = None
    tokenizer = None
    if flags.init or flags.init_from:
        from lab.sources import open_encoder  # only to start from other weights

        source = open_encoder(flags, "init_from", ["mlm"])
        tokenizer = source.tokenizer
    read = read_sentences
    if flags.next_sentence:
        read = read_in_order
    text = read(
        flags.data,
        flags.block_size,
        tokenizer=tokenizer,
        kind=flags.tokenizer,
        vocab_size=flags.vocab_size,
        vocab_from=flags.vocab_from,
        valid=flags.valid,
        split=flags.split,
    )
    held_out = hold_out_lines(text, flags)

    # Model
    options = {"vocab_size": text.tokenizer.get_vocab_size()}
    build = {}
    if flags.next_sentence:
        options["n_segment"] = 2
        build["next_sentence"] = True
    config = model_config(flags, source, **options)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    run = Run(
        flags,
        script=__file__,
        kind="mlm",
        config=config,
        build=build,
        data=RunData(text.tokenizer, text.hash, text.corpora),
        device=device,
    )
    model = build_model("mlm", config, device, **build)
    if source:
        load_weights(model, source.model.state_dict(), source.folder)
    if flags.compile:
        compile_blocks(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay, flags.beta2)
    say_data(run, text, model, source)

    # Loop
    fit(run, model, optimizer, text, held_out, keep)

    # Results: of the best step
    best = run.load_best(model)
    names = [name for name in best if name not in ("tokens", "loss/train")]
    run.finish({name: best[name] for name in names}, model)
    if dist.rank() > 0:
        return  # rank 0 alone draws and prints
    draw_curves(run, text, config)
    run.say_end(f"{describe_numbers(best)} on held-out lines at step {best['step']}")


def fit(run, model, optimizer, text, held_out, keep):
    """Train a model on sentences, and evaluate it on held-out lines. keep: steps whose weights are
    kept."""
    flags = run.flags
    device = run.device
    vocab_size = text.tokenizer.get_vocab_size()
    starts = word_starts(text.tokenizer)  # (V,)
    batch_of = batches_of(text, flags)

    first_step = 0
    if flags.resume:
        first_step = run.resume(model, optimizer)
    dist.copy_from_rank_0(model)
    model.train()
    for step in range(first_step, flags.steps + 1):
        if step % flags.eval_every == 0 or step == flags.steps:
            numbers = evaluate(model, held_out, device, flags.dtype)
            run.log(step, numbers, f"step {step:>5}  {describe_numbers(numbers)}")
            run.save_best(model, "loss/valid")
            run.save(model, optimizer, step)
        if step in keep:
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == flags.steps:
            break
        run.exit_if_stopped(model, optimizer, step)  # after Ctrl-C, with a checkpoint

        # Batch: it and its masks depend on seed and step alone
        if flags.next_sentence:
            idx, real, follows = batch_of(step)  # (B, T), (B, T), (B,)
        else:
            idx, real = batch_of(step)  # (B, T)
        gen = generator(flags.seed, "masks", step)
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        n_masked = max(1, int((labels != -100).sum()))

        # Update
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        dist.seed_dropout(flags.seed, step)
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in dist.my_parts(labels, flags.accumulate):
            x = send(inputs[rows], device)
            y = send(targets, device)
            mask = send_mask(real[rows], device)
            with autocast(flags.dtype, device):
                if flags.next_sentence:
                    after = send(follows[rows], device)
                    nats, pair_nats = model.both_losses(x, y, mask, after)
                    part = nats / n_masked + pair_nats / len(idx)
                else:
                    part = model.loss(x, y, mask) / n_masked  # the count of the whole batch
            part.backward()
            loss += part.detach()
        dist.sum_gradients(model)
        clip_gradients(model, flags.clip)
        optimizer.step()
        run.progress(step, flags.steps, loss, int(real.sum()))


def batches_of(text, flags):
    """Return a function of step -> idx, mask (B, T), and with --next-sentence follows (B,)."""
    if flags.next_sentence:
        return pair_batches(text.train, flags.block_size, flags.batch_size, flags.seed)
    return text.batches(flags.batch_size, flags.seed)


@dataclass
class HeldOut:
    """The held-out lines, to measure on."""

    batches: list  # of masked words, see `measure_masked`
    pairs: list  # with --next-sentence, pairs of held-out lines
    follows: torch.Tensor  # (N,) long: 1 where the second line of a pair follows


def hold_out_lines(text, flags):
    """Return the HeldOut lines of a text. Raises UserError if there are too few."""
    sequences = text.valid
    pairs = []
    follows = torch.tensor([])
    if flags.next_sentence:
        is_text = isinstance(text.train, list)  # not the blocks of a prepared folder
        enough = is_text and min(len(text.train), len(text.valid)) > 2
        problem = "--next-sentence: give a text, with 3 lines or more to train and to hold out"
        require(enough, problem)
        gen = generator("validation pairs")
        pairs, follows = pair_up(text.valid, flags.block_size, gen)
        sequences = pairs
    batches = fixed_batches(sequences, text.tokenizer, flags)
    require_targets(batches, f"--data {flags.data}: no word of the held-out lines")
    return HeldOut(batches, pairs, follows)


def fixed_batches(sequences, tokenizer, flags):
    """Return batches of masked words, whose masks depend on neither seed nor step."""
    vocab_size = tokenizer.get_vocab_size()
    starts = word_starts(tokenizer)
    batches = []
    for rows in length_batches([len(sequence) for sequence in sequences], 64):
        idx, real = pad([sequences[i] for i in rows])  # (B, T)
        gen = generator("validation masks", *rows.tolist())
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        batches.append((inputs, real, labels, {}))
    return batches


def evaluate(model, held_out, device, dtype):
    """Return the numbers of metrics.jsonl, measured on HeldOut lines."""
    nats, hits, count = measure_masked(model, held_out.batches, device, dtype)
    numbers = {
        "loss/valid": nats / count,
        "accuracy/valid": hits / count,
        "perplexity/valid": perplexity(nats, count),
    }
    if held_out.pairs:
        numbers["accuracy/next"] = next_accuracy(model, held_out.pairs, held_out.follows, device)
    if hasattr(model.head, "beta"):  # of CLAP
        numbers["beta"] = model.head.beta.item()
    return numbers


def next_accuracy(model, pairs, follows, device):
    """Return the share of pairs of which the model tells rightly whether the second line follows,
    follows (N,)."""
    model.eval()
    right = 0
    for start in range(0, len(pairs), 64):
        idx, mask = pad(pairs[start : start + 64])  # (B, T)
        labels = follows[start : start + 64].to(device)
        right += model.tell(send(idx, device), send(mask, device), labels)
    model.train()
    return right / len(pairs)


def say_data(run, text, model, source):
    """Print what is trained on, and how much of it is truncated or unknown."""
    if text.note:
        run.say(text.note)
    sizes = f"{len(text.train):,} training sequences ({text.n_tokens:,} tokens)"
    run.say_start(f"{text.name}: {sizes}, {len(text.valid):,} for validation", model)
    if text.n_long:
        run.say(f"  {text.n_long} lines are longer than --block-size and were split")
    if text.share_seen:
        overlap = f"{RUN} consecutive words with a training line"
        run.say(f"  {text.share_seen:.1%} of the held-out lines share {overlap}")
    run.say_unknown("held-out", share_unknown(text.valid), source)


def draw_curves(run, text, config):
    """Write curve.png: perplexity and accuracy by step, and the scalar of a CLAP head."""
    title = f"{run.folder.name}\nMasked LM on {text.name}, {name_positions(config)}"
    ppl = run.logged({"held-out lines": "perplexity/valid"})
    accuracy = run.logged({"held-out lines": "accuracy/valid"})
    beta = run.logged({"beta": "beta"})
    panels = [Panel(title, "perplexity", ppl, log=True), Panel("", "accuracy", accuracy)]
    if beta:
        panels.append(Panel("CLAP head", "beta", beta))
    save(curves(panels, "step"), run.folder / "curve.png")


def describe_numbers(numbers):
    """Return the numbers of an evaluation in words."""
    ppl = numbers["perplexity/valid"]
    accuracy = numbers["accuracy/valid"]
    words = f"masked-LM perplexity {ppl:,.1f}, accuracy {accuracy:.1%}"
    if "accuracy/next" in numbers:
        words += f", next sentence {numbers['accuracy/next']:.1%}"
    return words


if __name__ == "__main__":
    main(train, Flags)
