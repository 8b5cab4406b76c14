"""Classification by likelihood: one decoder per class; the most likely class is chosen.

    python -m beyond.train_generative --pos alibi --data speeches --split clean
    python -m beyond.train_generative --init-from out/lm-... --data speeches

First one decoder learns all texts of the corpus. Then each class trains a copy of it on the rows of
the class. All classes have equal priors.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from data.batching import count_tokens, generator, noise_tokens, pad, send, sentences
from data.files import hash_of
from data.labelled import Rows, accuracies, by_seen, load_labelled
from data.tokenizer import train_tokenizer
from lab import dist
from lab.evaluation import in_words, report_predictions, say_rows
from lab.figures import name_positions
from lab.flags import CommonFlags, LoopFlags, main, model_config, require, whole_numbers
from lab.load import open_source
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.run import Run, load_weights
from model import ACTIVATIONS, POSITIONS
from nets.classifier import compute_logits
from nets.generative import GenerativeClassifier, following


@dataclass
class Flags(LoopFlags, CommonFlags):
    init_from: str = ""  # run folder of train_lm.py to start from
    members: int = 1  # decoders per class, trained independently and averaged
    steps: int = 1500  # updates of one decoder on all texts
    class_steps: int = 300  # updates of each class, after the --steps shared ones
    class_lr: float = 5e-4  # peak learning rate of the classes
    split: str = "full"  # clean: no test sentence in training; i/n: test on part i of n
    pos: Literal[tuple(POSITIONS)] = "alibi"  # position encoding
    n_head: int = 4  # attention heads per block
    n_ffn: int = 256  # width of the feed-forward layer; 0: four times --n-embd
    activation: Literal[tuple(ACTIVATIONS)] = "gelu"  # of the feed-forward layer
    lr: float = 2e-3  # peak learning rate of the shared steps
    decay: float = 1.0  # the learning rate falls to zero over this last share of the steps
    eval_every: int = 300  # steps between evaluations
    drop_words: float = 0.1  # share of the input words replaced by [UNK]
    swap_words: float = 0.3  # share of the input words replaced by other words
    rare_unknown: float = 0.3  # share of rare targets replaced by [UNK]
    label_smoothing: float = 0.05  # share of each target spread over all words

    INHERITED = ("members",)


build = GenerativeClassifier  # makes the untrained model of a run, here and in lab/load.py


def train(flags):
    # Data: the texts of all classes, and of each
    require(flags.accumulate * dist.size() == 1, "--accumulate, torchrun: not for classifiers")
    source = open_source(flags, "init_from", ["lm"])
    corpus, seen, note = load_labelled(flags.data).split(flags.split)
    tokenizer = source and source.tokenizer
    tokenizer = tokenizer or train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    vocab_size, T, seen = tokenizer.get_vocab_size(), flags.block_size, torch.tensor(seen)
    sets = {"train": Rows(corpus.rows, tokenizer, T), "test": Rows(corpus.test_rows, tokenizer, T)}
    texts, _ = sentences(tokenizer, corpus.texts(), T, split=True)
    of_class = [[] for _ in corpus.classes]
    for (label, _), sequence in zip(corpus.rows, sets["train"].sequences):
        of_class[label].append(sequence)
    require(all(of_class), f"--split {flags.split}: a class has no training rows; add some")
    counts = count_tokens(torch.cat(texts), vocab_size, flags.swap_words, flags.rare_unknown)

    # Model
    config = model_config(flags, source, causal=True, vocab_size=vocab_size)
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    options = {"n_class": len(of_class), "members": flags.members}
    about = dict(read={"data": corpus}, name="generative", classes=corpus.classes)
    data_hash = hash_of((texts, corpus.rows, corpus.test_rows))
    run = Run(__file__, flags, "classifier", config, tokenizer, device, data_hash, options, **about)
    model = build(config, **options).to(device)
    if flags.compile:
        compile_blocks(model)
    shared = model.members_of_class[0]  # learn all texts
    if source:
        pretrained = getattr(source.model, "members", [source.model])
        for i, member in enumerate(shared):
            load_weights(member, pretrained[i % len(pretrained)].state_dict(), source.folder)
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    say_rows(run, corpus, sets, seen, note, model, source)

    # Loop
    total = flags.steps + flags.class_steps
    run.load_checkpoint(model, optimizer)  # with --resume
    for step in range(run.first_step, total + 1):
        if step % flags.eval_every == 0 or step == total:
            numbers, words = {}, "one model for all classes"
            if step >= flags.steps:
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
        if step < flags.steps:  # the decoders of the first class learn all texts
            trained = [(member, texts) for member in shared]
            lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        else:  # the decoders of every class learn its rows
            pairs = zip(model.members_of_class, of_class)
            trained = [(member, part) for members, part in pairs for member in members]
            lr = learning_rate(step - flags.steps, flags.class_steps, flags.class_lr, 0, 1)
            if step == flags.steps:
                for members in model.members_of_class:
                    members.load_state_dict(shared.state_dict())
                optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        losses, n_tokens = 0.0, 0
        for member, part in trained:
            chosen = torch.randint(len(part), (flags.batch_size,), generator=gen)
            idx, mask = pad([part[i] for i in chosen])  # (B, T)
            noise = flags.drop_words, flags.swap_words, flags.rare_unknown
            x, y = noise_tokens(idx, following(idx, mask), counts, gen, *noise)
            with autocast(flags.dtype, device):
                nats = member.loss(send(x, device), y, smoothing=flags.label_smoothing)
                loss = nats / int((y != -100).sum())
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


if __name__ == "__main__":
    main(train, Flags)
