"""Sentence classification: jointly from scratch, on a frozen body, or fine-tuned.

    python train_classifier.py --pos alibi --data speeches            jointly from scratch
    python train_classifier.py --encoder out/mlm-... --data speeches  on a frozen pretrained encoder
    python train_classifier.py --encoder out/mlm-... --tune all --lr 1e-4     fine-tuning it
    python train_classifier.py --encoder out/lm-...                   on a frozen causal decoder
    python train_classifier.py --init PATH --tune all --lr 2e-5       fine-tuning RoBERTa

The features of a frozen body are computed before the first epoch, which makes epochs fast.
"""

from dataclasses import dataclass

import torch

from data.batching import by_epoch
from data.corpus import hold_out_valid
from data.labelled import Rows, accuracies, balanced_loss, by_seen, describe_seen, load_labelled
from data.tokenizer import train_tokenizer
from lab.command import main
from lab.errors import require
from lab.figures import name_positions
from lab.flags import CommonFlags, flag, model_config, resolve_pairs
from lab.limits import LARGEST
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.predictions import label_of_seen
from lab.report import Curves, draw_curve, report_predictions, say_start, say_unknown
from lab.run import Run
from lab.sources import load_encoder, sha256_of
from model import Decoder
from nets.classifier import Classifier
from nets.device import send
from nets.features import compute_features, compute_logits
from nets.two_languages import make_encoder

BALANCE = ("none", "weights", "prior")


def either(joint, frozen, help, choices=None, **limits):
    """Return a flag whose default depends on whether the body is frozen."""
    shown = f"{joint} jointly, {frozen} frozen"
    return flag(None, help, choices, shown=shown, pair=(joint, frozen), **limits)


@dataclass
class Flags(CommonFlags):
    encoder: str = flag("", "run folder of train_mlm.py or train_lm.py to start from")
    init: str = flag("", "folder of a Hugging Face RoBERTa to start from")
    tune: str = flag("frozen", "frozen: train the head only; all: fine-tune", ("frozen", "all"))
    untrained: bool = flag(False, "take only the architecture of --encoder or --init")
    epochs: int = flag(15, "passes over the training rows", at_least=1)
    batch_size: int = flag(16, "sentences per update", at_least=1, at_most=LARGEST)
    lr: float = either(0.001, 0.0003, "peak learning rate", above=0)
    decay: float = either(
        0.0, 1.0, "share of the epochs, at the end, over which --lr falls", at_least=0, at_most=1
    )
    weight_decay: float = either(0.01, 1.0, "weight decay of matrices", at_least=0)
    pool: str = either("mean", "mean+max+min", "pooling: mean, max, min, first, last, joined by +")
    layers: str = either("last", "all", "states to pool: last, all, or the number of a layer")
    n_hidden: int = either(100, 300, "width of the hidden layer; 0: linear", at_least=0)
    n_component: int = either(0, 1000, "principal components; 0: features as they are", at_least=0)
    head_dropout: float = either(0.5, 0.0, "dropout before the last layer", at_least=0, below=1)
    balance: str = either("weights", "prior", "correction for classes of unequal size", BALANCE)
    block_size: int = flag(32, "longest sentence, in tokens, with [BOS]", at_least=2)
    init_std: float = 0.1
    causal: bool = flag(False, "a decoder instead of an encoder, pooled at the last token")
    split: str = flag("full", "clean: no test sentence in training; i/n: test on part i of n")
    valid: float = flag(0.1, "share of rows held out to choose the best epoch", above=0, below=1)
    refit: bool = flag(True, "retrain from scratch on all rows, for the best number of epochs")


def train(flags):
    # Data
    source = load_encoder(flags)
    corpus = load_labelled(flags.data)
    corpus, seen, note = corpus.split(flags.split)
    kept, held_out = hold_out_valid(corpus.rows, flags, key=lambda row: row[1])
    if source:
        tokenizer = source.tokenizer
    else:
        tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    config = model_config(flags, source, flags.causal, vocab_size=tokenizer.get_vocab_size())
    parts = {"train": kept, "valid": held_out, "test": corpus.test_rows}
    sets = {name: Rows(rows, tokenizer, config.block_size) for name, rows in parts.items()}
    seen = torch.tensor(seen)  # (N,)

    # Model
    device = set_up_device(flags, config)
    frozen = bool(source) and flags.tune == "frozen"
    resolve(flags, frozen, config.n_layer)
    options = {"n_class": len(corpus.classes), "pool": flags.pool, "layers": flags.layers}
    options |= {"n_hidden": flags.n_hidden, "dropout": flags.head_dropout}
    options |= {"n_component": min(flags.n_component, len(kept))}
    body = "decoder" if flags.causal else "encoder"
    about = {"classifier": options, "classes": corpus.classes, "body": body}
    about |= {"encoder_sha256": "" if flags.untrained else sha256_of(source)}
    name = "frozen" if frozen else "tuned" if source else ""
    run = Run("classifier", flags, config, tokenizer, device, name, **about)
    model, features, optimizer, balance = start(config, options, source, sets, flags, device)
    say_data(run, corpus, note, sets, seen, model, source)

    def logits_of_sets():  # of the current model: retraining replaces it
        return {n: compute_logits(model, rows, device, features.get(n)) for n, rows in sets.items()}

    # Search: accuracy on all sets after every epoch, the best epoch by the validation rows alone
    def measure():
        logits = logits_of_sets()
        loss = balanced_loss(logits["valid"], sets["valid"].labels, balance)
        numbers = accuracies(logits, sets, seen) | {"loss/valid": loss.item()}
        words = "  ".join(f"{n} {numbers[f'accuracy/{n}']:6.1%}" for n in sets)
        return numbers, f"accuracy  {words}{by_seen(numbers)}"

    run.count_in_epochs(flags.epochs, sets["train"].n_batches(flags.batch_size))
    trained = model.head if frozen else model
    steps = run.steps(trained, optimizer, measure, "accuracy/valid", model)
    fit(steps, model, sets["train"], features, optimizer, balance, flags, run)
    epoch, valid = run.best

    # Retrain: with the number of epochs known, the held-out rows can be trained on too
    if flags.refit:
        next_part = f"retraining from scratch on all {len(corpus.rows):,} rows, at least as long"
        run.say(f"best epoch on the validation rows: {epoch}; {next_part}")
        torch.manual_seed(flags.seed)
        sets["train"] = Rows(corpus.rows, tokenizer, config.block_size)
        model, features, optimizer, balance = start(config, options, source, sets, flags, device)
        steps = run.retrain(optimizer, sets["train"].n_batches(flags.batch_size), measure)
        fit(steps, model, sets["train"], features, optimizer, balance, flags, run)
        run.save("best.pt", model=model.state_dict(), step=epoch)
    else:
        run.load_best(model)

    # Results
    logits = logits_of_sets()
    result = {"epoch": epoch, "unknown/test": sets["test"].unknown()}
    result |= accuracies(logits, sets, seen) | {"accuracy/valid": valid}
    how = {"frozen": "frozen ", "tuned": "fine-tuned ", "": ""}[name]
    how += "random " * flags.untrained
    title = f"Classification of {corpus.name}\n{how}{body}, {name_positions(config)}"
    report_predictions(run, corpus, title, logits["test"], seen, result, model)
    possible = corpus.floor.get("accuracy/test")
    draw(run, title, possible)
    words = f"test accuracy {result['accuracy/test']:.1%}{by_seen(result)}"
    words += f", the best possible is {possible:.1%}" if possible else ""
    epochs = run.retrained or epoch
    words += f", after {epochs} epoch" + ("s" if epochs > 1 else "")
    words += " on all training rows" if flags.refit else ""
    run.say_end(words)


def start(config, options, source, sets, flags, device):
    """Return a new model, {set: projected features} if its body is frozen, optimizer, balance."""
    model = Classifier((Decoder if flags.causal else make_encoder)(config), **options).to(device)
    if flags.compile:
        compile_blocks(model)
    if source and not flags.untrained:
        model.body.load_state_dict(source.model.body.state_dict())
    features = {}
    if source and flags.tune == "frozen":
        model.body.requires_grad_(False)
        features = {name: compute_features(model, rows, device) for name, rows in sets.items()}
        if model.n_component:
            model.fit_projection(features["train"])
        features = {name: model.project(part) for name, part in features.items()}
    balance = [part.to(device) for part in sets["train"].balance(options["n_class"], flags.balance)]
    return model, features, make_adamw(model, flags.lr, flags.weight_decay), balance


def fit(steps, model, rows, features, optimizer, balance, flags, run):
    """Train for the given steps: every row once per epoch, in an order that depends on seed and
    epoch alone. The learning rate falls over all --epochs, even if there are fewer steps."""
    n = rows.n_batches(flags.batch_size)
    rows_of = by_epoch(len(rows), flags.batch_size, flags.seed, rows.batches, first=1)
    for step in steps:
        chosen = rows_of(step)  # (B,)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, flags.epochs * n, flags.lr, 0, flags.decay)
        with autocast(flags, run.device):
            if features:
                logits = model.head(features["train"][send(chosen, run.device)])  # (B, n_class)
            else:
                idx, mask = rows.batch(chosen)  # (B, T)
                logits = model(send(idx, run.device), send(mask, run.device))
            loss = balanced_loss(logits, send(rows.labels[chosen], run.device), balance)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.record_step(step, loss, sum(rows.lengths[i] for i in chosen.tolist()))


def resolve(flags, frozen, n_layer):
    """Give the flags made by `either` their defaults. Raises UserError."""
    if flags.causal and flags.pool is None:
        flags.pool = "last"  # the only state that has seen every word
    resolve_pairs(flags, frozen)
    layers, pools = ["last", "all", *map(str, range(n_layer + 1))], Classifier.POOLS
    allowed = all(part in pools for part in flags.pool.split("+"))
    problem = f"--n-component {flags.n_component}: needs a frozen body"
    remedy = "leave it out, or give --encoder without --tune all"
    require(
        (flags.layers in layers, f"--layers {flags.layers}: must be one of {', '.join(layers)}"),
        (allowed, f"--pool {flags.pool}: must be one or more of {', '.join(pools)}, joined by +"),
        (frozen or not flags.n_component, f"{problem}; {remedy}"),
    )


def say_data(run, corpus, note, sets, seen, model, source):
    """Print the sizes of data and model, and how much was truncated or is unknown."""
    if note:
        run.say(note)
    n = {name: f"{len(rows):,}" for name, rows in sets.items()}
    sizes = f"{n['train']} training rows, {n['valid']} for validation, {n['test']} test rows"
    say_start(run, f"{corpus.name}: {sizes} ({describe_seen(seen, note)})", model)
    for name, rows in sets.items():
        if rows.n_long:
            long = f"{rows.n_long} of {n[name]} {name} sentences are longer than --block-size"
            run.say(f"  {long} {model.body.config.block_size} and were truncated")
    for name in ("train", "test"):
        say_unknown(run, name, sets[name].unknown(), source)


def draw(run, title, possible):
    """Draw accuracy and loss over epochs as curve.png."""
    names = {"train": "train", "valid": "validation", "test": "test"}
    seen = label_of_seen(run.flags.split == "clean")
    names |= {"seen": f"test, {seen}", "unseen": "test, unseen"}
    lines = {label: f"accuracy/{name}" for name, label in names.items()}
    left = Curves(title, "accuracy", lines, {"best possible": possible} if possible else {})
    right = Curves("", "loss", {label: f"loss/{name}" for name, label in names.items()})
    draw_curve(run, [left, right], "epoch of the search")


if __name__ == "__main__":
    main(train, Flags, __doc__)
