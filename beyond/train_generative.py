"""Classification by likelihood: one language model per class; the most likely class is chosen.

    python -m beyond.train_generative --pos alibi --data speeches --split clean
    python -m beyond.train_generative --init-from out/lm-... --data speeches     from a decoder
    python -m beyond.train_generative --init-from out/mlm-... --data speeches    a frozen encoder

First one decoder learns all texts of the corpus. Then each class trains a copy of it, or with
--tune biases only its biases and layer norms, on the rows of the class. All classes have equal
priors.

An encoder of train_mlm.py skips the first stage and gets no noise, and each class trains only its
biases and layer norms. It reads a text four times, each time with every fourth word hidden; the
score is the sum over all hidden words (nets/generative.py).
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from data.batching import count_tokens, generator, noise_tokens, pad, send, send_mask, sentences
from data.corpus import hold_out
from data.files import hash_of
from data.labelled import Rows, accuracies, by_seen, load_labelled
from data.masking import mask_tokens
from data.tokenizer import train_tokenizer
from lab import dist
from lab.evaluation import in_words, report_predictions, say_rows
from lab.figures import name_positions
from lab.flags import CommonFlags, LoopFlags, main, model_config, require, whole_numbers
from lab.load import open_source
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.run import Run, load_weights
from lab.sources import without_flag
from model import ACTIVATIONS, POSITIONS
from nets.classifier import compute_logits
from nets.generative import GenerativeClassifier, following


@dataclass
class Flags(LoopFlags, CommonFlags):
    init_from: str = ""  # run folder of train_lm.py or train_mlm.py to start from
    members: int = 1  # models per class, trained independently and averaged
    steps: int = 1500  # updates of one decoder on all texts; an encoder has learned before
    class_steps: int = 300  # updates of each class, after the --steps shared ones
    class_lr: float | None = None  # peak learning rate of the classes: 0.0005, encoders 0.03
    tune: Literal["all", "biases"] | None = None  # what each class trains: all, encoders biases
    split: str = "full"  # clean: no test sentence in training; i/n: test on part i of n
    valid: float = 0.0  # share of the rows held out, to try settings on
    pos: Literal[tuple(POSITIONS)] = "alibi"  # position encoding
    n_head: int = 4  # attention heads per block
    n_ffn: int = 256  # width of the feed-forward layer; 0: four times --n-embd
    activation: Literal[tuple(ACTIVATIONS)] = "gelu"  # of the feed-forward layer
    lr: float = 2e-3  # peak learning rate of the shared steps
    decay: float = 1.0  # the learning rate falls to zero over this last share of the steps
    eval_every: int = 300  # steps between evaluations
    drop_words: float = 0.1  # decoders: share of the input words replaced by [UNK]
    swap_words: float = 0.3  # decoders: share of the input words replaced by other words
    rare_unknown: float = 0.3  # decoders: share of rare targets replaced by [UNK]
    label_smoothing: float = 0.05  # decoders: share of each target spread over all words

    INHERITED = ("members",)

    def __post_init__(self):
        super().__post_init__()
        require(self.accumulate * dist.size() == 1, "--accumulate, torchrun: not for classifiers")


def build(config, **options):
    """Return the untrained model of a run. options: arguments of `GenerativeClassifier`."""
    return GenerativeClassifier(config, **options)


def train(flags):
    # Data: the texts of all classes, and of each
    source = open_source(flags, "init_from", ["lm", "mlm"])
    masked = bool(source) and not source.model.body.causal
    n_shared = 0 if masked else flags.steps
    class_lr = flags.class_lr or (0.03 if masked else 5e-4)
    tune = flags.tune or ("biases" if masked else "all")
    corpus, seen, note = load_labelled(flags.data).split(flags.split)
    rows, held_out = hold_out(corpus.rows, flags.valid, key=lambda row: row[1])
    all_there = len({label for label, _ in rows}) == len(corpus.classes)
    require(all_there, f"--split {flags.split}, --valid {flags.valid}: a class has no rows left")
    tokenizer = source and source.tokenizer
    tokenizer = tokenizer or train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    vocab_size, T, seen = tokenizer.get_vocab_size(), flags.block_size, torch.tensor(seen)
    parts = {"train": rows, "valid": held_out, "test": corpus.test_rows}
    sets = {name: Rows(part, tokenizer, T) for name, part in parts.items() if part}
    texts = corpus.texts([text for _, text in held_out])
    texts, _ = sentences(tokenizer, texts, T, split=True)
    of_class = [[] for _ in corpus.classes]
    for (label, _), sequence in zip(rows, sets["train"].sequences):
        of_class[label].append(sequence)
    counts = count_tokens(torch.cat(texts), vocab_size, flags.swap_words, flags.rare_unknown)

    # Model
    config = model_config(flags, **without_flag(source, flags), vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    options = {"n_class": len(of_class), "members": flags.members, "masked": masked}
    about = {"name": "generative", "classes": corpus.classes}
    data_hash = hash_of((texts, corpus.rows, corpus.test_rows))
    run = Run(__file__, flags, "classifier", config, tokenizer, device, data_hash, options, **about)
    model = build(config, **options).to(device)
    if flags.compile:
        compile_blocks(model)
    shared = model.members_of_class[0]  # learn all texts
    if source:
        pretrained = getattr(source.model, "members", [source.model])
        for i, member in enumerate(shared):
            weights = pretrained[i % len(pretrained)].state_dict()
            load_weights(member, weights, source.folder)
    if tune == "biases" and not n_shared:
        train_only_biases(model)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    say_rows(run, corpus, sets, seen, note, model, source)

    # Loop
    total = n_shared + flags.class_steps
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, total + 1):
        if step % flags.eval_every == 0 or step == total:
            numbers, words = {}, "one model for all classes"
            if step >= n_shared:
                logits = {n: compute_logits(model, part, device) for n, part in sets.items()}
                numbers = accuracies(logits, sets, seen)
                words = in_words(numbers, sets)
            run.log(step, numbers, f"step {step:>5}  {words}", model)
            run.save(model, optimizer, step)
        if step in whole_numbers(flags.keep, "--keep"):
            run.save_weights(f"step-{step}.pt", model, step=step)
        if step == total:
            break
        run.exit_if_stopped(model, optimizer, step)  # Ctrl-C: saves a checkpoint first

        gen = generator(flags.seed, step)
        if step < n_shared:  # the models of the first class learn all texts
            trained = [(member, texts) for member in shared]
            lr = learning_rate(step, n_shared, flags.lr, flags.warmup, flags.decay)
        else:  # the models of every class learn its rows
            pairs = zip(model.members_of_class, of_class)
            trained = [(member, part) for members, part in pairs for member in members]
            lr = learning_rate(step - n_shared, flags.class_steps, class_lr, 0, 1)
            if step == n_shared:
                for members in model.members_of_class:
                    members.load_state_dict(shared.state_dict())
                optimizer.state.clear()
            if tune == "biases":
                train_only_biases(model)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        losses, n_tokens = 0.0, 0
        for member, part in trained:
            chosen = torch.randint(len(part), (flags.batch_size,), generator=gen)
            idx, mask = pad([part[i] for i in chosen])  # (B, T)
            real, smoothing = None, flags.label_smoothing
            if masked:  # single tokens, as they are hidden when a text is scored
                x, y = mask_tokens(idx, vocab_size, gen, source.config["flags"]["mask_rate"])
                real, smoothing = send_mask(mask, device), 0.0
            else:
                noise = flags.drop_words, flags.swap_words, flags.rare_unknown
                x, y = noise_tokens(idx, following(idx, mask), counts, gen, *noise)
            with autocast(flags.dtype, device):
                nats = member.loss(send(x, device), y, real, smoothing)
                loss = nats / max(1, int((y != -100).sum()))
            loss.backward()
            clip_grad_norm_(member.parameters(), flags.clip or math.inf)
            losses, n_tokens = losses + loss.detach(), n_tokens + int(mask.sum())
        optimizer.step()
        run.progress(step, total, losses / len(trained), n_tokens)

    # Results: of the last step
    best = run.load_best(model)
    logits = {n: compute_logits(model, part, device) for n, part in sets.items()}
    result = {"step": best["step"]} | accuracies(logits, sets, seen)
    title = f"Classification of {corpus.name} by likelihood, {name_positions(config)}"
    report_predictions(run, corpus, title, logits["test"], seen, result, model)
    run.say_end(f"test accuracy {result['accuracy/test']:.1%}{by_seen(result)}")


def train_only_biases(model):
    """Freeze all weights except vectors: the biases and the scales of layer norms."""
    for weight in model.parameters():
        weight.requires_grad_(weight.dim() == 1)


if __name__ == "__main__":
    main(train, Flags)
