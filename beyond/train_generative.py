"""Classification by likelihood: one language model per class; the most likely class is chosen.

    python -m beyond.train_generative --pos alibi --data speeches --split clean
    python -m beyond.train_generative --init-from out/lm-... --data speeches     from a decoder
    python -m beyond.train_generative --init-from out/mlm-... --data speeches    a frozen encoder

First one decoder learns all texts of the corpus. Then each class trains a copy of it, or with
--tune biases only its biases and layer norms, on the rows of the class. All classes have equal
priors.

An encoder of train_mlm.py skips the first stage and gets no noise, and each class trains only its
biases and layer norms. It reads a text four times, each time with every fourth word hidden; the
score is the sum over all hidden words.
"""

import math
from dataclasses import dataclass, fields

import torch
from torch.nn.utils import clip_grad_norm_

from data.batching import generator, pad, sentences
from data.corpus import hold_out
from data.labelled import Rows, accuracies, by_seen, describe_seen, load_labelled
from data.masking import mask_tokens
from data.noise import count_tokens, noise_tokens
from data.tokenizer import train_tokenizer
from lab.command import main
from lab.errors import require
from lab.figures import name_positions
from lab.flags import NoiseFlags, TrainFlags, flag, model_config, resolve_pairs, share, typed
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.report import report_predictions, say_start, say_unknown
from lab.run import Run
from lab.sources import load_init_from
from nets.device import send, send_mask
from nets.ensemble import members_of
from nets.features import compute_logits
from nets.generative import GenerativeClassifier, following


def either(decoder, encoder, help, choices=None, **limits):
    """Return a flag with one default for decoders and another for encoders."""
    shown = f"{decoder} for decoders, {encoder} for encoders"
    return flag(None, help, choices, shown=shown, pair=(decoder, encoder), **limits)


@dataclass
class Flags(TrainFlags, NoiseFlags):
    init_from: str = flag("", "run folder of train_lm.py or train_mlm.py to start from")
    members: int = flag(1, "models per class, trained independently and averaged", at_least=1)
    steps: int = either(1500, 0, "updates of one model on all texts", at_least=0)
    class_steps: int = flag(300, "updates of each class, after the --steps shared ones", at_least=1)
    class_lr: float = either(
        5e-4, 0.03, "peak learning rate of the classes; it falls to zero", above=0
    )
    tune: str = either("all", "biases", "what each class trains separately", ("all", "biases"))
    split: str = flag("full", "clean: no test sentence in training; i/n: test on part i of n")
    valid: float = share(0.0, "share of rows held out, to try settings on")
    pos: str = "alibi"
    n_head: int = 4
    n_ffn: int = 256
    activation: str = "gelu"
    lr: float = 2e-3
    decay: float = 1.0
    eval_every: int = 300
    drop_words: float = 0.1
    swap_words: float = 0.3
    rare_unknown: float = 0.3
    label_smoothing: float = 0.05


def train(flags):
    # Data
    source = load_init_from(flags, "lm", "mlm")
    masked = bool(source) and not source.model.body.causal
    complete(flags, masked)
    corpus = load_labelled(flags.data)
    corpus, seen, note = corpus.split(flags.split)
    rows, held_out = hold_out(corpus.rows, flags.valid, 0, key=lambda row: row[1])
    labels = {label for label, _ in rows}
    empty = [name for c, name in enumerate(corpus.classes) if c not in labels]
    problem = f"--split {flags.split}, --valid {flags.valid}: leave no training rows of"
    require((not empty, f"{problem} {', '.join(empty)}; choose others"))
    if source:
        tokenizer = source.tokenizer
    else:
        tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    config = model_config(flags, source, not masked, vocab_size=vocab_size)
    parts = {"train": rows, "valid": held_out, "test": corpus.test_rows}
    sets = {name: Rows(part, tokenizer, config.block_size) for name, part in parts.items() if part}
    seen = torch.tensor(seen)
    texts = corpus.texts([text for _, text in held_out])
    texts, _ = sentences(tokenizer, texts, config.block_size, split=True)
    counts = count_tokens(torch.cat(texts), vocab_size, flags.swap_words, flags.rare_unknown)
    of_class = [[] for _ in corpus.classes]
    for (label, _), sequence in zip(rows, sets["train"].sequences):
        of_class[label].append(sequence)

    # Model
    device = set_up_device(flags, config)
    head = {"n_class": len(corpus.classes), "members": flags.members, "masked": masked}
    described = {"classifier": head, "classes": corpus.classes, "body": "generative"}
    run = Run("classifier", flags, config, tokenizer, device, "generative", **described)
    model = GenerativeClassifier(config, **head).to(device)
    if flags.compile:
        compile_blocks(model)
    shared = model.members_of_class[0]
    if source:
        weights = members_of(source.model)
        for i, member in enumerate(shared):
            member.load_state_dict(weights[i % len(weights)].state_dict())
    if flags.tune == "biases" and not flags.steps:
        model.train_only_biases()
    optimizer = make_adamw(model, flags.lr, flags.weight_decay)
    if note:
        run.say(note)
    n = f"{len(rows):,} training rows and {len(texts):,} texts, {len(corpus.test_rows):,} test rows"
    say_start(run, f"{corpus.name}: {n} ({describe_seen(seen, note)})", model)
    for name in ("train", "test"):
        say_unknown(run, name, sets[name].unknown(), source)

    # Loop
    step, logits = -1, {}  # the step last begun, and the latest answers: used by measure()

    def answer():
        return {name: compute_logits(model, part, device) for name, part in sets.items()}

    def measure():
        if step < flags.steps:
            return {}, "one model for all classes"
        logits.update(answer())
        numbers = accuracies(logits, sets, seen)
        words = "  ".join(f"{name} {numbers[f'accuracy/{name}']:6.1%}" for name in sets)
        return numbers, f"accuracy  {words}{by_seen(numbers)}"

    for step in run.steps(model, optimizer, measure):
        gen = generator(flags.seed, step)
        if step < flags.steps:  # the models of the first class learn all texts
            trained = [(member, texts) for member in shared]
            lr = learning_rate(step, flags.steps, flags.lr, flags.warmup, flags.decay)
        else:  # the models of every class learn its rows
            pairs = zip(model.members_of_class, of_class)
            trained = [(member, part) for members, part in pairs for member in members]
            lr = learning_rate(step - flags.steps, flags.class_steps, flags.class_lr, 0, 1)
            if step == flags.steps:
                model.copy_to_classes()
                optimizer.state.clear()
            if flags.tune == "biases":
                model.train_only_biases()
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        total, n_tokens = 0.0, 0
        for member, part in trained:
            chosen = torch.randint(len(part), (flags.batch_size,), generator=gen)
            idx, mask = pad([part[i] for i in chosen])  # (B, T)
            if masked:  # single tokens, as they are hidden when a text is scored
                x, y = mask_tokens(idx, vocab_size, gen, source.config["flags"]["mask_rate"])
                real = send_mask(mask, device)
            else:
                x, y = noise_tokens(idx, following(idx, mask), counts, gen, *flags.noise)
                real = None
            with autocast(flags, device):
                nats = member.loss(send(x, device), y, real, flags.label_smoothing)
                loss = nats / max(1, int((y != -100).sum()))
            loss.backward()
            clip_grad_norm_(member.parameters(), flags.clip or math.inf)
            total, n_tokens = total + loss.detach(), n_tokens + int(mask.sum())
        optimizer.step()
        run.record_step(step, total / len(trained), n_tokens)

    # Results
    run.load_best(model)  # the weights of the last step
    logits = logits or answer()
    result = accuracies(logits, sets, seen)
    title = f"Classification of {corpus.name} by likelihood, {name_positions(config)}"
    report_predictions(run, corpus, title, logits["test"], seen, result, model)
    run.say_end(f"test accuracy {result['accuracy/test']:.1%}{by_seen(result)}")


def complete(flags, masked):
    """Set the defaults of the flags made by `either`. For an encoder, set all noise to 0. Raises
    UserError if a noise flag was given."""
    resolve_pairs(flags, masked)
    if masked:
        noise = [field.name for field in fields(NoiseFlags)]
        where = f"--init-from {flags.init_from} is an encoder, which is trained by masking"
        asked = typed(flags, *noise)
        require((not asked, f"{asked}: {where}; leave that out"))
        for name in noise:
            setattr(flags, name, 0.0)


if __name__ == "__main__":
    main(train, Flags, __doc__)
