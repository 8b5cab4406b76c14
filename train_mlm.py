"""Masked language modelling: pretrain an encoder by masking and predicting words of a sentence.

    python train_mlm.py --pos alibi --data speeches
    python train_mlm.py --data my.txt --n-layer 4 --n-embd 128 --lr 1e-3
    python train_mlm.py --init-from out/mlm-wikitext2-alibi-0 --data speeches

The perplexity is measured on masked words, with both sides visible. With --causal, the same stack
predicts every next word of single sentences; train_lm.py reads one long stream instead.
Neither perplexity is comparable with that of train_lm.py.
"""

import math
from dataclasses import dataclass

from torch.nn.utils import clip_grad_norm_

from data.batching import generator, length_batches, pad, share_unknown
from data.masking import mask_tokens
from data.streams import read_blocks, read_sentences
from data.tokenizer import word_starts
from lab import processes
from lab.command import main
from lab.errors import require
from lab.evaluation import measure_masked, require_targets
from lab.figures import name_positions
from lab.flags import ContinueFlags, MaskFlags, ProcessFlags, TrainFlags, flag, model_config, typed
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw, perplexity
from lab.report import Curves, draw_curve, say_start, say_unknown
from lab.run import Run
from lab.sources import load_init, load_init_from, open_prepared
from model import Decoder, LanguageModel
from nets.device import send, send_mask
from nets.two_languages import make_encoder


@dataclass
class Flags(MaskFlags, TrainFlags, ContinueFlags, ProcessFlags):
    n_layer: int = 1
    n_embd: int = 1024
    n_head: int = 8
    n_ffn: int = 256
    init_std: float = 0.01
    activation: str = "gelu"
    dropout: float = 0.2
    steps: int = 800
    batch_size: int = 32
    lr: float = 1.5e-4
    warmup: int = 100
    decay: float = 1.0
    head: str = "roberta"
    beta2: float = flag(0.98, "decay of Adam's second moment", at_least=0, below=1)
    scale_embd: bool = flag(False, "multiply word vectors by sqrt(n_embd)")
    unscaled: bool = flag(False, "with --pos sinusoidal: do not multiply by sqrt(n_embd)")
    zero_mask: bool = flag(False, "the input vector of [MASK] is zero (zero-CLAP)")
    omit_mask: bool = flag(False, "[MASK] cannot be predicted, and output words have no bias")
    causal: bool = flag(False, "instead of masking, predict every next word of a sentence")
    valid: float = flag(0.05, "share of lines held out to choose the best step", above=0, below=1)
    split: str = flag("full", "clean: train without the test rows' sentences; i/n: without part i")
    init: str = flag("", "folder of a Hugging Face RoBERTa to start from")


def make_task(idx, real, gen, flags, vocab_size, starts):
    """Return inputs and labels (B, T) of idx, real (B, T): masked words to predict, or with
    --causal every next word. real: True on tokens, not on padding. starts: see `word_starts`."""
    if not flags.causal:
        return mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
    labels = idx.masked_fill(~real, -100).roll(-1, dims=1)
    labels[:, -1] = -100
    return idx, labels


def fixed_batches(sequences, flags, vocab_size, starts):
    """Return batches for `measure_masked`. Their masks depend on neither the seed nor the step, so
    runs are measured on the same masked words."""
    batches = []
    for rows in length_batches([len(sequence) for sequence in sequences], 64):
        idx, real = pad([sequences[i] for i in rows])  # (B, T)
        gen = generator("validation masks", *rows.tolist())
        inputs, labels = make_task(idx, real, gen, flags, vocab_size, starts)
        batches.append((inputs, real, labels, {}))  # {}: no other inputs of the model
    return batches


def train(flags):
    # Data: sentences, or the blocks of a prepared folder
    kind = "lm" if flags.causal else "mlm"
    source = load_init(flags) if flags.init else load_init_from(flags, kind)
    check(flags, source)
    prepared, T = open_prepared(flags, source), flags.block_size
    if prepared:
        text = read_blocks(prepared, T)
    else:
        text = read_sentences(flags, source and source.tokenizer)
    vocab_size, starts = text.tokenizer.get_vocab_size(), word_starts(text.tokenizer)
    valid = fixed_batches(text.valid, flags, vocab_size, starts)
    all_labels = (labels for _, _, labels, _ in valid)
    require_targets(all_labels, f"--data {flags.data}: no word of the held-out lines")

    # Model
    unit_embd = flags.head == "clap"  # word vectors of length 1
    config = model_config(flags, source, flags.causal, vocab_size=vocab_size, unit_embd=unit_embd)
    device = set_up_device(flags, config)
    run = Run(kind, flags, config, text.tokenizer, device, name="clm" if flags.causal else "")
    model = LanguageModel((Decoder if flags.causal else make_encoder)(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        model.load_state_dict(source.model.state_dict())
    optimizer = make_adamw(model, flags.lr, flags.weight_decay, flags.beta2)
    if text.note:
        run.say(text.note)
    sizes = f"{len(text.train):,} training sequences ({text.n_tokens:,} tokens)"
    say_start(run, f"{text.name}: {sizes}, {len(text.valid):,} for validation", model)
    if text.n_long:
        run.say(f"  {text.n_long} lines are longer than --block-size {T} and were split")
    if source:
        say_unknown(run, "held-out", share_unknown(text.valid), source)

    # Loop
    task = "next-word" if flags.causal else "masked-LM"

    def measure():
        nats, hits, count = measure_masked(model, valid, device, flags)
        numbers = {"loss/valid": nats / count, "accuracy/valid": hits / count}
        numbers["perplexity/valid"] = perplexity(nats, count)
        if flags.head.endswith("clap"):
            numbers["beta"] = model.head.beta.item()
        return numbers, in_words(task, numbers)

    batch_of = text.batches(flags.batch_size, flags.seed)
    for step in run.steps(model, optimizer, measure, monitor="loss/valid"):
        idx, real = batch_of(step)  # (B, T)
        gen = generator(flags.seed, "masks", step)  # masks depend on seed and step alone
        inputs, labels = make_task(idx, real, gen, flags, vocab_size, starts)
        count = max(1, (labels != -100).sum().item())
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        optimizer.zero_grad()
        total = 0.0
        # All rows at once, unless several processes or --accumulate split them
        for rows, targets in processes.micro_batches(flags, step, labels):
            with autocast(flags, device):
                mask = send_mask(real[rows], device)
                loss = model.loss(send(inputs[rows], device), targets, mask) / count
            loss.backward()
            total += loss.detach()
        processes.sum_gradients(model)
        clip_grad_norm_(model.parameters(), flags.clip or math.inf)
        optimizer.step()
        run.record_step(step, total, int(real.sum()))

    # Results
    best = run.load_best(model)
    names = ("loss/valid", "perplexity/valid", "accuracy/valid")
    run.finish({name: best[name] for name in names}, model)
    title = f"{'Causal' if flags.causal else 'Masked'} LM on {text.name}, "
    title += name_positions(config)
    panels = [
        Curves(title, "perplexity (log scale)", {"held-out lines": "perplexity/valid"}, log=True),
        Curves("", "accuracy", {"held-out lines": "accuracy/valid"}),
    ]
    if flags.head.endswith("clap"):
        panels += [Curves("CLAP head", "beta", {"beta": "beta"})]
    draw_curve(run, panels)
    run.say_end(f"{in_words(task, best)} on held-out lines at step {best['step']}")


def in_words(task, numbers):
    """Return the numbers of an evaluation in words."""
    ppl, accuracy = numbers["perplexity/valid"], numbers["accuracy/valid"]
    return f"{task} perplexity {ppl:,.1f}, accuracy {accuracy:.1%}"


def check(flags, source):
    """Raise UserError for flags that contradict each other or the run to start from."""
    with_causal = typed(flags, "mask_rate", "mask_unit", "zero_mask") if flags.causal else ""
    with_init = typed(flags, "init_from", "causal") if flags.init else ""
    ensemble = source and source.config.get("members", 1) > 1
    unused = flags.unscaled and flags.pos != "sinusoidal" and not source
    remedy = "add that, or leave --unscaled out"
    require(
        (not ensemble, f"--init-from {flags.init_from}: is an ensemble; give a run of one model"),
        (not with_causal, f"--causal masks no words; leave {with_causal} out"),
        (not unused, f"--unscaled: has no effect without --pos sinusoidal; {remedy}"),
        (not with_init, f"--init {flags.init}: brings an encoder; leave {with_init} out"),
    )


if __name__ == "__main__":
    main(train, Flags, __doc__)
