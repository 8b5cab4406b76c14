"""Sentence classification: jointly from scratch, on a frozen body, or fine-tuned.

    python train_classifier.py --pos alibi --data speeches            jointly from scratch
    python train_classifier.py --encoder out/mlm-... --data speeches  on a frozen pretrained encoder
    python train_classifier.py --encoder out/mlm-... --tune all --lr 1e-4     fine-tuning it
    python train_classifier.py --init PATH --tune all --lr 2e-5       fine-tuning RoBERTa
    python train_classifier.py --data sick --block-size 64            pairs of sentences
    python train_classifier.py --data sick --target score             a score instead of a class

A run searches for the best epoch on held-out rows, then retrains from scratch on all rows. The
features of a frozen body are computed before the first epoch, which makes epochs fast.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
import sys
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import torch

from data.batching import by_epoch, send, share_unknown
from data.corpus import PAIR
from data.files import hash_of, sha256
from data.labelled import Rows, accuracies, balanced_loss, by_seen, load_labelled
from data.leaks import hold_out, split_corpus
from data.tokenizer import end_with_eos, train_tokenizer
from lab import dist
from lab.classification import (
    beside_majority,
    draw_search,
    format_metrics,
    measure_new_pairs,
    measure_scores,
    report_classes,
    report_scores,
    say_rows,
)
from lab.figures import name_positions, save
from lab.flags import (
    Activation,
    CommonFlags,
    Data,
    Position,
    RunFolder,
    Split,
    main,
    model_config,
    require,
)
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.run import Run, RunData, load_weights
from nets.build import build_model
from nets.classifier import compute_features, compute_logits

Balance = Literal["none", "weights", "prior"]  # see `Rows.balance`

# Defaults of the flags that are None: of a body that is trained too, and of a frozen one, whose
# head can be large, since it trains in seconds
TRAINED = {
    "lr": 1e-3,
    "decay": 0.0,
    "weight_decay": 0.01,
    "pool": "mean",
    "layers": "last",
    "n_hidden": 100,
    "n_component": 0,
    "head_dropout": 0.5,
    "balance": "weights",
}
FROZEN = {
    "lr": 3e-4,
    "decay": 1.0,
    "weight_decay": 1.0,
    "pool": "mean+max+min",
    "layers": "all",
    "n_hidden": 300,
    "n_component": 1000,
    "head_dropout": 0.0,
    "balance": "prior",
}
POOLS = ("mean", "max", "min", "first", "last")  # of `pool_tokens`
TOLERANCE = 0.05  # by which retraining may lower the accuracy on training rows


@dataclass
class Flags(CommonFlags):
    # Data
    data: Data = "toy"  # a named corpus, a .tsv or .csv of labelled rows, or a folder
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces
    target: Literal["class", "score"] = "class"  # score: one number a row, by squared error
    columns: str = ""  # names of a table's columns: label,text or, of pairs, label,a,b
    overlap: bool = False  # pairs: words that stand in both sentences get a vector of their own
    split: Split = "full"  # clean: no test sentence in training; i/n: test on part i of n
    valid: float = 0.1  # share of the rows held out to choose the best epoch

    # Body: a new one, or that of a run
    pos: Position = "learned"  # position encoding; rope: rotary, nope: none
    n_layer: int = 4  # number of blocks
    n_head: int = 2  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 100  # width of the feed-forward layer; 0: four times --n-embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    dropout: float = 0.0  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: Activation = "relu"  # of the feed-forward layer
    init_std: float = 0.1  # standard deviation of the initial weights
    causal: bool = False  # a decoder instead of an encoder, pooled at the last token
    encoder: RunFolder = ""  # run folder of train_mlm.py or train_lm.py to start from
    init: str = ""  # RoBERTa to start from: a folder of transformers, or a name on the hub
    tune: Literal["frozen", "all"] = "frozen"  # frozen: train the head only; all: fine-tune
    untrained: bool = False  # take only the architecture of --encoder or --init

    # Head: what it reads of the body's states, and its layers
    pool: str | None = None  # mean, max, min, first or last; None: mean, frozen mean+max+min
    layers: str | None = None  # last, all, or a layer's number to pool; None: last, frozen all
    n_component: int | None = None  # principal components; 0: plain states; None: 0, frozen 1000
    n_hidden: int | None = None  # width of the hidden layer; 0: linear; None: 100, frozen 300
    head_dropout: float | None = None  # dropout before the last layer; None: 0.5, frozen 0

    # Training
    epochs: int = 15  # passes over the training rows
    batch_size: int = 16  # sentences per update
    lr: float | None = None  # peak learning rate; None: 0.001, frozen 0.0003
    decay: float | None = None  # --lr falls over this last share of steps; None: 0, frozen 1
    weight_decay: float | None = None  # weight decay of matrices; None: 0.01, frozen 1
    balance: Balance | None = None  # of unequal classes in the loss; None: weights, frozen prior
    refit: bool = True  # retrain from scratch on all rows, for the best number of epochs

    def __post_init__(self):
        super().__post_init__()
        require(self.accumulate * dist.size() == 1, "--accumulate, torchrun: not for classifiers")
        needs_body = self.untrained or self.tune == "all"
        has_body = self.encoder or self.init
        require(has_body or not needs_body, "--tune all, --untrained: need --encoder or --init")

    @property
    def regime(self):
        """How the body is trained: "jointly" from scratch, not ("frozen"), or further ("tuned")."""
        if not (self.encoder or self.init):
            return "jointly"
        if self.tune == "all":
            return "tuned"
        return "frozen"

    def set_defaults(self):
        """Give the flags that are None the defaults of the regime."""
        if self.causal and self.pool is None:
            self.pool = "last"  # the only token that has read the whole sentence
        defaults = FROZEN if self.regime == "frozen" else TRAINED
        for name, default in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, default)

    def check_head(self, n_layer):
        """Raise UserError if the head cannot read a body of n_layer blocks."""
        layers = ["last", "all", *map(str, range(n_layer + 1))]
        problem = f"--layers {self.layers}: must be one of {', '.join(layers)}"
        require(self.layers in layers, problem)
        problem = f"--pool {self.pool}: must be {', '.join(POOLS)}, or several joined by +"
        require(set(self.pool.split("+")) <= set(POOLS), problem)
        has_projection = self.n_component > 0
        problem = "--n-component: needs a frozen body; leave it out"
        require(self.regime == "frozen" or not has_projection, problem)


class Learner:
    """A model, and what trains it on the rows of sets["train"].

    sets: {"train", "valid", "test": Rows}. features: what the head reads of them if the body is
    frozen, {set: (N, C)}, else {}."""

    def __init__(self, model, sets, features, flags, device):
        rows = sets["train"]
        self.model = model
        self.sets = sets
        self.features = features
        self.flags = flags
        self.device = device
        self.trained = model.head if features else model  # the module that a checkpoint holds
        weights, prior = rows.balance(model.head[-1].out_features, flags.balance)
        self.balance = (weights.to(device), prior.to(device))
        self.optimizer = make_adamw(model, flags.lr, flags.weight_decay)
        self.epoch_steps = math.ceil(len(rows) / flags.batch_size)
        self.steps = flags.epochs * self.epoch_steps
        self.batch_of = by_epoch(len(rows), flags.batch_size, flags.seed, rows.batches, first=1)

    def update(self, step):
        """Train on one batch. Return its loss and its number of tokens."""
        flags = self.flags
        rows = self.sets["train"]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.steps, flags.lr, 0, flags.decay)
        chosen = self.batch_of(step)  # (B,), numbers of rows
        labels = send(rows.labels[chosen], self.device)  # (B,)
        with autocast(flags.dtype, self.device):
            if self.features:
                features = self.features["train"][send(chosen, self.device)]  # (B, C)
                logits = self.model.head(features)  # (B, n_class)
            else:
                idx, mask = rows.batch(chosen)  # (B, T)
                logits = self.model(send(idx, self.device), send(mask, self.device))
            loss = balanced_loss(logits, labels, self.balance)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        n_tokens = sum(rows.lengths[i] for i in chosen.tolist())
        return loss, n_tokens

    def compute_logits(self):
        """Return the logits {set: (N, n_class)} of all rows."""
        logits = {}
        for name, rows in self.sets.items():
            features = self.features.get(name)
            logits[name] = compute_logits(self.model, rows, self.device, features)
        return logits


def make_learner(config, options, source, sets, flags, device):
    """Return the Learner of a new model, which starts from the weights of `source`, if any."""
    model = make_model(config, options, source, flags, device)
    features = {}
    if flags.regime == "frozen":
        model.body.requires_grad_(False)
        features = compute_head_inputs(model, sets, device)
    labels = sets["train"].labels
    if labels.is_floating_point():  # the mean score needs no training
        torch.nn.init.constant_(model.head[-1].bias, labels.mean())
    return Learner(model, sets, features, flags, device)


def make_model(config, options, source, flags, device):
    """Return a new classifier, whose body has the weights of `source` unless --untrained."""
    model = build_model("classifier", config, device, **options)
    if flags.compile:
        compile_blocks(model)
    if source and not flags.untrained:
        weights = model.body.state_dict()  # with vectors of segments, which the source may lack
        weights.update(source.model.body.state_dict())
        load_weights(model.body, weights, source.folder)
    return model


def compute_head_inputs(model, sets, device):
    """Return what the head reads of all rows, {set: (N, n_component or n_features)}."""
    features = {name: compute_features(model, rows, device) for name, rows in sets.items()}
    if model.n_component:
        model.fit_projection(features["train"])
    return {name: model.project(part) for name, part in features.items()}


def train(flags):
    # Data
    source = None
    if flags.encoder or flags.init:
        from lab.sources import open_encoder  # only to start from other weights

        source = open_encoder(flags, "encoder", ["mlm", "lm"], head=False)
        flags.causal = source.model.body.causal
    flags.set_defaults()
    corpus = load_labelled(flags.data, flags.target, flags.columns)
    corpus, seen, note = split_corpus(corpus, flags.split)
    seen = torch.tensor(seen)  # (N,), of the test rows
    kept, held_out = split_valid(corpus, flags)
    is_pair = PAIR in corpus.rows[0][1]
    require(is_pair or not flags.overlap, "--overlap: needs pairs of sentences; leave it out")
    tokenizer = choose_tokenizer(corpus, is_pair, source, flags)
    config = choose_config(tokenizer, is_pair, source, flags)
    sets = {
        "train": Rows(kept, tokenizer, config.block_size),
        "valid": Rows(held_out, tokenizer, config.block_size),
        "test": Rows(corpus.test_rows, tokenizer, config.block_size),
    }

    # Model
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    flags.check_head(config.n_layer)
    options = {
        "causal": flags.causal,
        "pool": flags.pool,
        "layers": flags.layers,
        "n_hidden": flags.n_hidden,
        "n_class": len(corpus.classes) or 1,  # a score is one number
        "dropout": flags.head_dropout,
        "n_component": min(flags.n_component, len(kept)),
    }
    digest = hash_data(corpus, tokenizer, source, flags)
    run = Run(
        flags,
        script=__file__,
        kind="classifier",
        config=config,
        build=options,
        data=RunData(tokenizer, digest, {"data": corpus}, corpus.classes),
        device=device,
        name="" if flags.regime == "jointly" else flags.regime,
    )
    learner = make_learner(config, options, source, sets, flags, device)
    say_rows(run, corpus, sets, seen, note, learner.model, source)

    # Search for the best epoch on the validation rows, retrain on all rows, and report
    best = search(run, learner, seen)
    n_epochs = best["step"]
    if flags.refit:
        run.say(
            f"best epoch on the validation rows: {n_epochs}; retraining from scratch on all "
            f"{len(corpus.rows):,} rows, at least as long"
        )
        torch.manual_seed(flags.seed)
        sets["train"] = Rows(corpus.rows, tokenizer, config.block_size)
        learner = make_learner(config, options, source, sets, flags, device)
        n_epochs = refit(run, learner, seen, best)
    else:
        run.load_best(learner.model)
    report(run, learner, corpus, seen, best, n_epochs)


def split_valid(corpus, flags):
    """Return the rows to train on in the search, and those that choose the best epoch."""
    if corpus.valid_rows:
        return corpus.rows, corpus.valid_rows
    label, text = itemgetter(0), itemgetter(1)
    return hold_out(corpus.rows, flags.valid, key=text, name=flags.data, kind=label)


def choose_tokenizer(corpus, is_pair, source, flags):
    """Return the tokenizer of `source`, or a new one of the training text."""
    if source:
        tokenizer = source.tokenizer
    else:
        tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    if is_pair and flags.causal:  # read at its end, as GPT reads pairs (Radford et al. 2018)
        tokenizer = end_with_eos(tokenizer)
    return tokenizer


def choose_config(tokenizer, is_pair, source, flags):
    """Return the Config of the body, whose vectors of segments tell the sentences of a pair."""
    values = {"vocab_size": tokenizer.get_vocab_size()}
    # RoBERTa has no segments, and a frozen body could not learn them
    if is_pair and not flags.init and flags.regime != "frozen":
        values["n_segment"] = 4 if flags.overlap else 2
    return model_config(flags, source, causal=flags.causal, **values)


def hash_data(corpus, tokenizer, source, flags):
    """Return a hash of what --resume needs unchanged: rows, tokenizer and pretrained weights."""
    encoder = ""
    if flags.encoder:
        encoder = sha256(source.folder / "best.pt")
    return hash_of((corpus.rows, corpus.test_rows, tokenizer.to_str(), encoder))


def search(run, learner, seen):
    """Train for --epochs, with an evaluation on all sets after each. Return the line of
    metrics.jsonl of the best epoch, which the validation rows alone choose."""
    sets = learner.sets
    first_step = 0
    if run.flags.resume:
        first_step = run.resume(learner.trained, learner.optimizer)
    for step in range(first_step, learner.steps + 1):
        if step > 0 and step % learner.epoch_steps == 0:
            epoch = step // learner.epoch_steps
            logits = learner.compute_logits()
            loss = balanced_loss(logits["valid"], sets["valid"].labels, learner.balance)
            numbers = accuracies(logits, sets, seen)
            numbers["loss/valid"] = loss.item()
            monitor = "accuracy/valid" if "accuracy/valid" in numbers else "pearson/valid"
            run.log(epoch, numbers, f"epoch {epoch:>5}  {format_metrics(numbers, sets)}")
            run.save_best(learner.model, monitor)
            run.save(learner.trained, learner.optimizer, step)
        if step == learner.steps:
            break
        run.exit_if_stopped(learner.trained, learner.optimizer, step)  # Ctrl-C: saves first
        loss, n_tokens = learner.update(step)
        run.progress(step, learner.steps, loss, n_tokens)
    return run.best


def refit(run, learner, seen, best):
    """Train on all rows: as long as the search did until its best epoch, then up to --epochs while
    far fewer training rows are right. Return the number of epochs."""
    best_epoch = best["step"]
    run.close_bar()  # that of the search
    for epoch in range(1, learner.flags.epochs + 1):
        for step in range((epoch - 1) * learner.epoch_steps, epoch * learner.epoch_steps):
            if run.stop_signal:  # Ctrl-C
                run.say("stopped; the search is saved: --resume retrains again", file=sys.stderr)
                raise SystemExit(128 + run.stop_signal)
            loss, n_tokens = learner.update(step)
            run.progress(step, best_epoch * learner.epoch_steps, loss, n_tokens)
        if epoch >= best_epoch:
            numbers = accuracies(learner.compute_logits(), learner.sets, seen)
            if not falls_behind(numbers, best):
                break
    run.save_weights("best.pt", learner.model, step=best_epoch)
    return epoch


def falls_behind(numbers, best):
    """Return whether far fewer training rows are right than at the best epoch of the search."""
    if "accuracy/train" not in best:  # scores
        return False
    return numbers["accuracy/train"] < best["accuracy/train"] - TOLERANCE


def report(run, learner, corpus, seen, best, n_epochs):
    """Measure the final model, which was trained for n_epochs, and write and print the result.

    seen: see `Corpus.split`. best: the line of metrics.jsonl of the best epoch of the search."""
    flags = learner.flags
    test = learner.sets["test"]
    logits = learner.compute_logits()
    numbers = accuracies(logits, learner.sets, seen)
    result = {"epoch": best["step"], "unknown/test": share_unknown(test.sequences), **numbers}
    target = "Classification" if corpus.classes else "Scores"
    positions = name_positions(learner.model.body.config)
    title = f"{run.folder.name}\n{target} of {corpus.name} ({flags.regime}), {positions}"

    # Answers to the test rows. The accuracy or correlation on the validation rows is that of the
    # search: the final model may have trained on them
    if corpus.classes:
        metric = "accuracy"
        result["accuracy/valid"] = best["accuracy/valid"]
        if PAIR in corpus.rows[0][1]:
            result.update(measure_new_pairs(run, corpus, logits["test"], test.labels))
        report_classes(run, corpus, logits["test"], seen, result, learner.model, title)
        words = f"test accuracy {result['accuracy/test']:.1%}{by_seen(result)}"
        words += f", {beside_majority(result['accuracy/test'], test.labels, corpus.classes)}"
    else:
        metric = "pearson"
        result["pearson/valid"] = best["pearson/valid"]
        result.update(measure_scores(run, corpus, logits["test"]))
        report_scores(run, corpus, logits["test"], seen, result, learner.model, title)
        words = f"test {format_metrics(result, ['test'])}"

    # Curves of the search
    dashed = {}
    if flags.refit:
        dashed["final model, test"] = result[f"{metric}/test"]
    best_possible = corpus.floor.get("accuracy/test")
    if best_possible:
        dashed["best possible"] = best_possible
        words += f", the best possible is {best_possible:.1%}"
    save(draw_search(run, metric, dashed, title), run.folder / "curve.png")

    # The result in a line
    if falls_behind(numbers, best):
        run.say(
            f"note: the final model gets only {numbers['accuracy/train']:.1%} of the training rows "
            f"right, that of the search {best['accuracy/train']:.1%}; "
            "to keep the latter, add --no-refit"
        )
    epochs = "1 epoch" if n_epochs == 1 else f"{n_epochs} epochs"
    words += f", after {epochs}"
    if flags.refit:
        words += " on all training rows"
    run.say_end(words)


if __name__ == "__main__":
    main(train, Flags)
