"""Sentence classification: jointly from scratch, on a frozen body, or fine-tuned.

    python train_classifier.py --pos alibi --data speeches            jointly from scratch
    python train_classifier.py --encoder out/mlm-... --data speeches  on a frozen pretrained encoder
    python train_classifier.py --encoder out/mlm-... --tune all --lr 1e-4     fine-tuning it
    python train_classifier.py --init PATH --tune all --lr 2e-5       fine-tuning RoBERTa
    python train_classifier.py --data sick --block-size 64            pairs of sentences
    python train_classifier.py --data sick --target score             a score instead of a class

The features of a frozen body are computed before the first epoch, which makes epochs fast.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import sys
from dataclasses import dataclass
from typing import Literal

import torch

from data.batching import by_epoch, send, share_unknown
from data.corpus import PAIR, hold_out, sentences_of
from data.files import UserError, hash_of, sha256
from data.labelled import Rows, accuracies, balanced_loss, by_seen, load_labelled
from data.tokenizer import end_with_eos, train_tokenizer
from lab import dist
from lab.evaluation import in_words, report_predictions, report_scores, say_rows
from lab.figures import curves, name_positions, save
from lab.flags import CommonFlags, main, model_config, require
from lab.machine import autocast, compile_blocks, set_up_device
from lab.optim import learning_rate, make_adamw
from lab.run import Run, load_weights
from lab.sources import open_encoder
from model import Decoder, Encoder
from nets.classifier import Classifier, compute_features, compute_logits, pool_tokens


@dataclass
class Flags(CommonFlags):
    encoder: str = ""  # run folder of train_mlm.py or train_lm.py to start from
    init: str = ""  # RoBERTa to start from: a folder of transformers, or a name on the hub
    tune: Literal["frozen", "all"] = "frozen"  # frozen: train the head only; all: fine-tune
    untrained: bool = False  # take only the architecture of --encoder or --init
    epochs: int = 15  # passes over the training rows
    batch_size: int = 16  # sentences per update
    lr: float | None = None  # peak learning rate; default: 0.001, frozen 0.0003
    decay: float | None = None  # --lr falls over the last part of the epochs; default: 0, frozen 1
    weight_decay: float | None = None  # weight decay of matrices; default: 0.01, frozen 1
    pool: str | None = None  # mean, max, min, first, last, or several: mean+max+min if frozen
    layers: str | None = None  # last, all, or a layer's number to pool; default: last, frozen all
    n_hidden: int | None = None  # width of the hidden layer; 0: linear; default: 100, frozen 300
    n_component: int | None = None  # principal components; 0: plain features; 0, frozen 1000
    head_dropout: float | None = None  # dropout before the last layer; default: 0.5, frozen 0
    balance: Literal["none", "weights", "prior"] | None = None  # of classes; weights, frozen prior
    init_std: float = 0.1  # standard deviation of the initial weights
    causal: bool = False  # a decoder instead of an encoder, pooled at the last token
    target: Literal["class", "score"] = "class"  # score: one number a row, by squared error
    columns: str = ""  # names of a table's columns: label,text or, of pairs, label,a,b
    overlap: bool = False  # pairs: words that stand in both sentences get a vector of their own
    split: str = "full"  # clean: no test sentence in training; i/n: test on part i of n
    valid: float = 0.1  # share of the rows held out to choose the best epoch
    refit: bool = True  # retrain from scratch on all rows, for the best number of epochs

    def __post_init__(self):
        super().__post_init__()
        require(self.accumulate * dist.size() == 1, "--accumulate, torchrun: not for classifiers")
        start = self.encoder or self.init or not (self.untrained or self.tune == "all")
        require(start, "--tune all, --untrained: need --encoder or --init")

    def resolve(self, frozen, n_layer):
        """Give the flags that are None their defaults, and check them. Raises UserError."""
        pairs = dict(lr=(1e-3, 3e-4), decay=(0.0, 1.0), weight_decay=(0.01, 1.0))  # jointly, frozen
        pools = ("last", "last") if self.causal else ("mean", "mean+max+min")
        pairs |= dict(pool=pools, layers=("last", "all"), n_hidden=(100, 300))
        pairs |= dict(n_component=(0, 1000), head_dropout=(0.5, 0.0), balance=("weights", "prior"))
        given = {name: value for name, value in vars(self).items() if value is not None}
        vars(self).update({name: pair[frozen] for name, pair in pairs.items()} | given)
        known = ("last", "all", *map(str, range(n_layer + 1)))
        require(self.layers in known, f"--layers {self.layers}: must be one of {', '.join(known)}")
        require(frozen or not self.n_component, "--n-component: needs a frozen body; leave it out")
        try:
            for how in self.pool.split("+"):
                pool_tokens(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool), how)
        except ValueError as error:
            raise UserError(f"--pool {self.pool}: {error}") from None


def build(config, causal=False, **options):
    """Return the untrained model of a run. options: arguments of `Classifier`."""
    return Classifier((Decoder if causal else Encoder)(config), **options)


class Learner:
    """A new model and its training on the rows of sets["train"]."""

    def __init__(self, config, options, source, sets, flags, device):
        self.flags, self.device, self.sets = flags, device, sets
        self.rows = rows = sets["train"]
        self.model = model = build(config, **options).to(device)
        if flags.compile:
            compile_blocks(model)
        if source and not flags.untrained:
            own = model.body.state_dict()  # with segments, which the source may lack
            load_weights(model.body, own | source.model.body.state_dict(), source.folder)
        frozen = source and flags.tune == "frozen"
        self.trained = model.head if frozen else model
        model.body.requires_grad_(not frozen)
        of = {name: compute_features(model, rows, device) for name, rows in sets.items() if frozen}
        if model.n_component:
            model.fit_projection(of["train"])
        self.features = {name: model.project(features) for name, features in of.items()}
        if rows.labels.is_floating_point():  # the mean answer needs no training
            torch.nn.init.constant_(model.head[-1].bias, rows.labels.mean())
        self.balance = [x.to(device) for x in rows.balance(options["n_class"], flags.balance)]
        self.optimizer = make_adamw(model, flags.lr, flags.weight_decay)
        self.per_epoch = -(-len(rows) // flags.batch_size)
        self.last = flags.epochs * self.per_epoch  # --lr falls until this step
        self.order = by_epoch(len(rows), flags.batch_size, flags.seed, rows.batches, first=1)

    def answer(self):
        """Return the logits {set: (N, n_class)} of all rows."""
        model, device, features = self.model, self.device, self.features
        return {n: compute_logits(model, r, device, features.get(n)) for n, r in self.sets.items()}

    def update(self, step):
        """Train on one batch. Return its loss and the number of tokens."""
        flags, device, chosen = self.flags, self.device, self.order(step)  # (B,)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.last, flags.lr, 0, flags.decay)
        with autocast(flags.dtype, device):
            if self.features:
                logits = self.model.head(self.features["train"][send(chosen, device)])
            else:
                idx, mask = self.rows.batch(chosen)  # (B, T)
                logits = self.model(send(idx, device), send(mask, device))  # (B, n_class)
            loss = balanced_loss(logits, send(self.rows.labels[chosen], device), self.balance)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss, sum(self.rows.lengths[i] for i in chosen.tolist())


def train(flags):
    # Data
    source = open_encoder(flags, ["mlm", "lm"], head=False)
    flags.causal = source.model.body.causal if source else flags.causal
    corpus = load_labelled(flags.data, flags.target, flags.columns)
    corpus, seen, note = corpus.split(flags.split)
    kept, held_out = corpus.rows, corpus.valid_rows
    if not held_out:
        label, text = (lambda row: row[0]), (lambda row: row[1])
        kept, held_out = hold_out(kept, flags.valid, key=text, name=flags.data, kind=label)
    tokenizer = source and source.tokenizer
    tokenizer = tokenizer or train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    is_pair = PAIR in corpus.rows[0][1]
    require(is_pair or not flags.overlap, "--overlap: needs pairs of sentences; leave it out")
    if is_pair and flags.causal:  # read at its end, as GPT reads pairs (Radford et al. 2018)
        tokenizer = end_with_eos(tokenizer)
    more = dict(vocab_size=tokenizer.get_vocab_size())
    if is_pair and not flags.init and not (source and flags.tune == "frozen"):  # RoBERTa has none
        more["n_segment"] = 4 if flags.overlap else 2
    config = model_config(flags, source, causal=flags.causal, **more)
    parts = {"train": kept, "valid": held_out, "test": corpus.test_rows}
    sets = {name: Rows(rows, tokenizer, config.block_size) for name, rows in parts.items()}
    seen = torch.tensor(seen)  # (N,)

    # Model
    device = set_up_device(flags.device, flags.threads, flags.seed, config.n_embd)
    name = "" if not source else "tuned" if flags.tune == "all" else "frozen"
    flags.resolve(name == "frozen", config.n_layer)
    options = {name: getattr(flags, name) for name in ("causal", "pool", "layers", "n_hidden")}
    options |= dict(n_class=len(corpus.classes) or 1, dropout=flags.head_dropout)
    options |= dict(n_component=min(flags.n_component, len(kept)))
    encoder = sha256(source.folder / "best.pt") if flags.encoder else ""  # frozen, it is data too
    digest = hash_of((corpus.rows, corpus.test_rows, tokenizer.to_str(), encoder))
    about = dict(read={"data": corpus}, name=name, classes=corpus.classes)
    run = Run(__file__, flags, "classifier", config, tokenizer, device, digest, options, **about)
    learner = Learner(config, options, source, sets, flags, device)
    say_rows(run, corpus, sets, seen, note, learner.model, source)

    metric = "accuracy" if corpus.classes else "pearson"

    # Search: accuracy on all sets after every epoch, the best epoch by the validation rows alone
    run.load_checkpoint(learner.trained, learner.optimizer)  # with --resume
    for step in range(run.first_step, learner.last + 1):
        epoch, rest = divmod(step, learner.per_epoch)
        if epoch and not rest:
            logits = learner.answer()
            loss = balanced_loss(logits["valid"], sets["valid"].labels, learner.balance)
            numbers = accuracies(logits, sets, seen) | {"loss/valid": loss.item()}
            words = f"epoch {epoch:>5}  {in_words(numbers, sets)}"
            run.log(epoch, numbers, words, learner.model, f"{metric}/valid")
            run.save(learner.trained, learner.optimizer, step)
        if step == learner.last:
            break
        run.exit_if_stopped(learner.trained, learner.optimizer, step)  # Ctrl-C: saves first
        run.progress(step, learner.last, *learner.update(step))
    best = next(line for line in run.lines if line["step"] == run.best[0])
    epoch, enough = best["step"], best[f"{metric}/train"] - 0.05

    # Retrain on all rows: as long, and longer while far fewer training rows are right
    epochs, behind = 0, False
    if flags.refit:
        words = f"retraining from scratch on all {len(corpus.rows):,} rows, at least as long"
        run.say(f"best epoch on the validation rows: {epoch}; {words}")
        torch.manual_seed(flags.seed)
        sets["train"] = Rows(corpus.rows, tokenizer, config.block_size)
        learner = Learner(config, options, source, sets, flags, device)
        n, run.bar = learner.per_epoch, None  # a new progress bar
        while epochs < epoch or (behind and epochs < flags.epochs):
            for step in range(epochs * n, (epochs + 1) * n):
                if run.asked:
                    run.say("stopped; the search is saved: --resume retrains again", sys.stderr)
                    raise SystemExit(128 + run.asked)
                run.progress(step, epoch * n, *learner.update(step))
            epochs += 1
            now = accuracies(learner.answer(), sets, seen) if epochs >= epoch else best
            behind = bool(corpus.classes) and now[f"{metric}/train"] < enough
        run.save_weights("best.pt", learner.model, step=epoch)
    else:
        run.load_best(learner.model)

    # Results
    logits = learner.answer()
    result = {"epoch": epoch, "unknown/test": share_unknown(sets["test"].sequences)}
    result |= accuracies(logits, sets, seen) | {f"{metric}/valid": best[f"{metric}/valid"]}
    known = set(sentences_of(corpus.rows))
    new = torch.tensor([known.isdisjoint(text.split(PAIR)) for _, text in corpus.test_rows])
    if is_pair and new.any() and corpus.classes:
        right = logits["test"].argmax(-1)[new] == sets["test"].labels[new]
        result["accuracy/new"] = share = right.double().mean().item()
        run.say(f"{share:.1%} of the {len(right):,} test rows whose sentences both are new")
    what = "Classification" if corpus.classes else "Scores"
    title = f"{what} of {corpus.name} ({name or 'jointly'}), {name_positions(config)}"
    report = report_predictions if corpus.classes else report_scores
    report(run, corpus, title, logits["test"], seen, result, learner.model)
    possible, names = corpus.floor.get("accuracy/test"), ("train", "valid", "test")
    marks = {"final model, test": result[f"{metric}/test"]} if flags.refit else {}
    marks |= {"best possible": possible} if possible else {}
    left = run.logged({name: f"{metric}/{name}" for name in (*names, "seen", "unseen")})
    right = run.logged({name: f"loss/{name}" for name in names})
    panels = [(f"{run.folder.name}\n{title}", metric, left, marks, False)]
    panels += [("", "loss", right, {}, False)]
    save(curves(panels, "epoch of the search"), run.folder / "curve.png")
    if behind:
        shares = f"{result['accuracy/train']:.1%} of the training rows right, that of the search "
        shares += f"{best['accuracy/train']:.1%}"
        run.say(f"note: the final model gets only {shares}; to keep the latter, add --no-refit")
    words = f"test accuracy {result['accuracy/test']:.1%}" if corpus.classes else "test "
    words += by_seen(result) if corpus.classes else in_words(result, ["test"])
    words += f", the best possible is {possible:.1%}" if possible else ""
    words += f", after {epochs or epoch} epoch" + "s" * ((epochs or epoch) > 1)
    run.say_end(words + " on all training rows" * flags.refit)


if __name__ == "__main__":
    main(train, Flags)
