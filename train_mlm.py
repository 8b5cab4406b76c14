"""Masked language modelling: pretrain an encoder by hiding words of a sentence and predicting them.

    python train_mlm.py --pos alibi --data speeches

Its perplexity is that of hidden words with both sides visible; it cannot be compared with train_lm.py's.
With --causal the same stack predicts every next word of the same sentences instead.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import data
from data import batching, masking, shards
from data.corpus import hold_out
from data.tokenizer import train_tokenizer, word_starts
from lab import processes
from lab.checkpoint import read_checkpoint
from lab.command import main
from lab.errors import require
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
from lab.machine import autocast, compile_blocks, prepare
from lab.optim import learning_rate, make_optimizer, perplexity
from lab.parameters import count_parameters
from lab.run import Run
from lab.sources import prepared_of, roberta_of, source_of
from model import Decoder, LanguageModel
from nets.two_languages import make_encoder


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags, ContinueFlags, SpreadFlags):
    init: str = flag(
        "",
        "folder of a Hugging Face RoBERTa to continue from: its weights, architecture and vocabulary",
    )
    n_layer: int = flag(1, "number of blocks")
    n_embd: int = flag(1024, "width")
    n_head: int = flag(8, "attention heads a block")
    init_std: float = flag(0.01, "standard deviation of the initial weights")
    n_ffn: int = flag(256, "width of the feed-forward layer; 0: four times the width")
    activation: str = flag("gelu", "of the feed-forward layer", ("relu", "gelu"))
    dropout: float = flag(0.2, "of embeddings and sublayer outputs")
    head: str = flag("roberta", "from hidden states to words", ("roberta", "clap", "linear"))
    unit_embd: bool = flag(
        None, "L2-normalise token embeddings before the transformer (default: with --head clap)"
    )
    scale_embd: bool = flag(
        False, "multiply token embeddings by sqrt(n_embd); --pos sinusoidal always does"
    )
    zero_mask: bool = flag(False, "[MASK] enters as the zero vector (zero-CLAP)")
    causal: bool = flag(
        False,
        "predict each next word instead, of every sentence by itself after [BOS]; "
        "train_lm.py lets sentences follow one another in blocks, and measures test sets",
    )
    mask_rate: float = flag(0.3, "share of tokens to predict")
    mask_unit: str = flag(
        "token",
        "what is hidden together: tokens, whole words, or spans of about three tokens",
        masking.UNITS,
    )
    split: str = flag(
        "full",
        "full; clean: leave out of the pretraining text what stands in the classification test set; "
        "i/n: cross-validation, part i of n is the test set and is not trained on",
    )
    steps: int = flag(800, "number of updates")
    batch_size: int = flag(32, "sentences an update")
    lr: float = flag(1.5e-4, "peak learning rate")
    warmup: int = flag(100, "steps in which the learning rate rises")
    decay: float = flag(
        1.0, "share of the steps, at the end, in which the learning rate falls to zero; 0: never"
    )
    beta2: float = flag(0.98, "second-moment decay of Adam")
    weight_decay: float = flag(0.01, "of matrices")
    clip: float = flag(1.0, "largest gradient norm; 0: no limit")
    valid: float = flag(0.05, "share of the lines held out to choose the best checkpoint")
    eval_every: int = flag(100, "steps between evaluations")


def task(idx, mask, gen, flags, vocab_size, starts):
    """idx, mask (B, T) -> (inputs, labels) (B, T): masked words to be found, or with --causal every next word."""
    if flags.causal:
        labels = idx.masked_fill(~mask, -100).roll(-1, dims=1)
        labels[:, -1] = -100
        return idx, labels
    return masking.mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)


def validation_set(sequences, flags, vocab_size, starts):
    """Batches (inputs, mask, labels) whose masks depend on neither the seed nor the step: with the same tokenizer and
    masking flags, two runs are measured on the same hidden words."""
    batches = []
    for rows in batching.length_batches([len(s) for s in sequences], 64):
        idx, mask = batching.pad([sequences[i] for i in rows])
        gen = batching.generator("validation masks", *rows.tolist())
        inputs, labels = task(idx, mask, gen, flags, vocab_size, starts)
        batches.append((inputs, mask, labels))
    return batches


@torch.no_grad()
def evaluate(model, batches, device, flags):
    """(nats, hits, count) summed over all tokens of the batches that are to be predicted."""
    model.eval()
    nats, hits, count = 0.0, 0, 0
    for inputs, mask, labels in processes.mine(batches):
        with autocast(flags, device):
            h = model.body(inputs.to(device), mask.to(device))
            logits = model.head(h[labels.to(device) != -100]).float()  # (tokens to predict, V)
        wanted = labels[labels != -100].to(device)
        nats += F.cross_entropy(logits, wanted, reduction="sum").item()
        hits += (logits.argmax(-1) == wanted).sum().item()
        count += len(wanted)
    model.train()
    return processes.add(torch.tensor([nats, hits, count], dtype=torch.float64)).tolist()


def train(flags):
    kind = "lm" if flags.causal else "mlm"
    require(
        (
            not (flags.init and (flags.init_from or flags.vocab_from)),
            f"--init {flags.init}: brings its weights and vocabulary along; leave --init-from and --vocab-from out",
        ),
        (
            not (flags.init and flags.causal),
            f"--init {flags.init}: RoBERTa sees both sides of a word; leave --causal out",
        ),
    )
    source = roberta_of(flags) if flags.init else source_of(flags, kind)
    check(flags, source)

    # Data: sentences, the validation part held out before anything is trained; or the blocks of a folder of prepare.py,
    # which stay on disk.
    prepared = prepared_of(flags, source)
    name, tokenizer, sequences, valid_sequences, n_long = (
        read_prepared(flags, prepared) if prepared else read(flags, source)
    )
    lengths = None if prepared else [len(sequence) for sequence in sequences]
    starts = word_starts(tokenizer)

    # Model
    config = (
        source.model.body.config
        if source
        else model_config(
            flags,
            vocab_size=tokenizer.get_vocab_size(),
            unit_embd=flags.head == "clap" if flags.unit_embd is None else flags.unit_embd,
        )
    )
    device = prepare(flags, config.n_embd)
    run = Run(kind, flags, config, tokenizer, device, name="clm" if flags.causal else "")
    model = LanguageModel((Decoder if flags.causal else make_encoder)(config)).to(device)
    if flags.compile:
        compile_blocks(model)
    if source:
        model.load_state_dict(source.model.state_dict())
    optimizer = make_optimizer(model, flags.lr, flags.weight_decay, (0.9, flags.beta2))
    what = "next-word" if flags.causal else "masked-LM"
    valid_batches = validation_set(valid_sequences, flags, config.vocab_size, starts)
    run.say(
        f"{name}: {len(sequences):,} training sequences ({sequences.tokens if prepared else sum(lengths):,} tokens), "
        f"{len(valid_sequences):,} for validation, {config.vocab_size:,} entries in the vocabulary; "
        f"{count_parameters(model)['total']:,} parameters, pos={config.pos}, head={config.head}, on {device}"
    )
    if n_long:
        run.say(f"  {n_long} lines are longer than --block-size {flags.block_size} and were split")

    # Loop
    loss_of = processes.spread(model)
    first, more = run.restore(model, optimizer)
    best, tokens = more.get("best", math.inf), more.get("tokens", 0)
    batches_an_epoch = -(-len(sequences) // flags.batch_size)
    losses, batches = more.get("losses", []), None  # losses since the last evaluation
    model.train()
    for step in run.interruptible(range(first, flags.steps + 1)):
        if run.is_due(step):
            nats, hits, count = evaluate(model, valid_batches, device, flags)
            numbers = {
                "loss/valid": nats / count,
                "perplexity/valid": perplexity(nats, count),
                "accuracy/valid": hits / count,
            }
            beta = {"beta": model.head.beta.item()} if flags.head == "clap" else {}
            run.log(
                step,
                tokens=tokens,
                **numbers,
                **({"loss/train": torch.stack(losses).mean().item()} if losses else {}),
                **beta,
            )
            losses = []
            run.say(
                f"step {step:>6}  {what} perplexity {numbers['perplexity/valid']:>9,.1f}  "
                f"accuracy {numbers['accuracy/valid']:6.1%}"
            )
            if numbers["loss/valid"] < best:
                best = numbers["loss/valid"]
                run.save("best.pt", model=model.state_dict(), step=step, **numbers)
            run.save_checkpoint(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        run.stop_if_asked(model, optimizer, step, best=best, tokens=tokens, losses=losses)
        if step == flags.steps:
            break
        epoch, position = divmod(step, batches_an_epoch)
        if batches is None or position == 0:
            order = batching.generator(flags.seed, "epoch", epoch)
            batches = (
                batching.RandomBatches(len(sequences), flags.batch_size, order)
                if prepared
                else batching.length_batches(lengths, flags.batch_size, order)
            )
        idx, mask = batching.pad([sequences[i] for i in batches[position]])
        inputs, labels = task(
            idx,
            mask,
            batching.generator(flags.seed, "masks", step),
            flags,
            config.vocab_size,
            starts,
        )
        lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss, count = 0.0, max(1, (labels != -100).sum().item())
        # All of them, unless several processes share them out
        for rows, wanted in processes.parts(loss_of, labels, flags, step):
            with autocast(flags, device):
                part = (
                    loss_of(
                        targets=wanted,
                        **batching.to(device, {"idx": inputs[rows], "mask": mask[rows]}),
                    )
                    / count
                )
            part.backward()
            loss += part.detach()
        if flags.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), flags.clip)
        optimizer.step()
        losses.append(processes.add(loss))
        tokens += int(mask.sum())
        run.progress(step + 1, flags.steps, loss, lr, tokens - more.get("tokens", 0))

    # Results
    if processes.leave():
        return
    best_weights = read_checkpoint(run.folder / "best.pt", device)
    result = {
        name: best_weights[name] for name in ("loss/valid", "perplexity/valid", "accuracy/valid")
    }
    run.finish(
        {"step": best_weights["step"], "vocab_size": config.vocab_size, **result}, model, tokens
    )
    draw(run)
    run.say(
        f"{what} perplexity {result['perplexity/valid']:.1f}, accuracy {result['accuracy/valid']:.1%} on held-out lines "
        f"at step {best_weights['step']}; {run.seconds():.0f} s, {run.folder}"
    )


def read(flags, source):
    """(name, tokenizer, training sequences, validation sequences, how many lines were split) of a text."""
    corpus = data.load(flags.data)
    vocabulary = data.load(flags.vocab_from) if flags.vocab_from else corpus
    vocabulary, _, left_out = vocabulary.split(
        flags.split
    )  # the corpus whose test rows are to stay unknown
    corpus = corpus if flags.vocab_from else vocabulary
    if left_out and processes.first():
        print(left_out)
    texts, held_out = hold_out(
        corpus.texts(), flags.valid, seed=0
    )  # every run of this corpus is measured on the same lines
    texts = list(dict.fromkeys(texts))  # a sentence of both files is trained on once an epoch
    held_out = list(dict.fromkeys(held_out))
    require(
        (
            texts and held_out,
            f"--data {flags.data}: {len(texts) + len(held_out)} lines are too few to hold out "
            f"--valid {flags.valid} of them; give more text or a larger --valid",
        )
    )
    tokenizer = (
        source.tokenizer
        if source
        else train_tokenizer(flags.tokenizer, vocabulary.texts(), flags.vocab_size)
    )
    sequences, n_long = batching.sentences(tokenizer, texts, flags.block_size, split=True)
    valid_sequences, _ = batching.sentences(tokenizer, held_out, flags.block_size, split=True)
    return corpus.name, tokenizer, sequences, valid_sequences, n_long


def read_prepared(flags, prepared):
    """The same of a folder of prepare.py: full blocks, in which lines run on."""
    streams = prepared.streams
    valid = streams.get("valid") or streams.get("wiki-valid")
    require(
        (
            valid,
            f"--data {flags.data}: was prepared without a validation set, which chooses the best checkpoint; "
            "prepare it with --valid 0.01",
        )
    )
    blocks = shards.Blocks(streams["train"], prepared.tokenizer, flags.block_size)
    return (
        prepared.name,
        prepared.tokenizer,
        blocks,
        list(shards.Blocks(valid, prepared.tokenizer, flags.block_size)),
        0,
    )


def check(flags, source):
    require(
        (
            not flags.causal
            or (flags.mask_rate, flags.mask_unit, flags.zero_mask)
            == (Flags.mask_rate, Flags.mask_unit, Flags.zero_mask),
            "--causal hides no words; leave --mask-rate, --mask-unit and --zero-mask out",
        ),
        (
            not source or source.config.get("members", 1) == 1,
            f"--init-from {flags.init_from}: is an ensemble; give a run of one model",
        ),
        *step_checks(flags),
        (0 <= flags.beta2 < 1, f"--beta2 must be at least 0 and below 1, got {flags.beta2}"),
        (
            0 < flags.mask_rate < 1,
            f"--mask-rate must be above 0 and below 1, got {flags.mask_rate}",
        ),
        (0 < flags.valid < 1, f"--valid must be above 0 and below 1, got {flags.valid}"),
        (
            flags.block_size > 1,
            f"--block-size must be at least 2 ([BOS] and a word), got {flags.block_size}",
        ),
    )


def draw(run):
    """curve.png: perplexity and accuracy over steps; with the CLAP head also beta."""
    from lab import figures

    metrics = run.metrics()
    steps = [m["step"] for m in metrics]
    title = f"{'Causal' if run.flags.causal else 'Masked'} LM, held-out lines"
    panels = [
        (
            title,
            "perplexity (log scale)",
            {run.flags.pos: (steps, [m["perplexity/valid"] for m in metrics])},
            {},
            True,
        ),
        (
            title,
            f"share of {'next' if run.flags.causal else 'hidden'} words found",
            {run.flags.pos: (steps, [m["accuracy/valid"] for m in metrics])},
            {},
            False,
        ),
    ]
    if "beta" in metrics[-1]:
        panels.append(
            ("CLAP head", "beta", {"beta": (steps, [m["beta"] for m in metrics])}, {}, False)
        )
    figures.curves(run.folder / "curve.png", panels, "step")


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
