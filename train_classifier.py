"""Sentence classification: jointly from scratch, on a frozen body, or fine-tuned.

    python train_classifier.py --pos alibi --data speeches              jointly from scratch (the assignment's part 1)
    python train_classifier.py --encoder out/mlm-... --data speeches    on a frozen pretrained encoder
    python train_classifier.py --encoder out/mlm-... --tune all         fine-tuning it
    python train_classifier.py --encoder out/lm-...                     on a causal decoder, from the last word's state
    python train_classifier.py --init roberta-base --tune all           on RoBERTa; with --untrained the same
                                                                        from random weights

With a frozen encoder every sentence's features are computed once and kept, so that an epoch costs next to nothing.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import data
from data import batching
from data.corpus import hold_out
from data.tokenizer import UNK, train_tokenizer
from lab.command import main
from lab.errors import UserError, require
from lab.flags import ModelFlags, RunFlags, TokenizerFlags, adopt, flag, model_config
from lab.limits import LARGEST
from lab.load import load_run
from lab.machine import autocast, compile_blocks, prepare
from lab.optim import learning_rate, make_optimizer
from lab.parameters import count_parameters
from lab.run import Run
from lab.sources import roberta_of
from model import Decoder
from nets.classifier import Classifier
from nets.ensemble import Ensemble
from nets.two_languages import make_encoder


@dataclass
class Flags(RunFlags, ModelFlags, TokenizerFlags):
    init_std: float = flag(0.1, "standard deviation of the initial weights")
    encoder: str = flag(
        "",
        "run folder of train_mlm.py or train_lm.py; its architecture and tokenizer replace the flags'",
    )
    init: str = flag("", "folder of a Hugging Face RoBERTa, instead of --encoder")
    tune: str = flag(
        "frozen",
        "what is trained of --encoder or --init: nothing but the classifier, or all",
        ("frozen", "all"),
    )
    untrained: bool = flag(
        False,
        "random weights in the architecture of --encoder or --init, with its tokenizer: "
        "what did pretraining add?",
    )
    causal: bool = flag(False, "no word sees a later one: a decoder, as runs of train_lm.py are")
    pool: str = flag(
        "",
        "how tokens become one vector: mean, max, min, first, last, joined by + "
        "(empty: mean; frozen: mean+max+min; decoder: last)",
    )
    layers: str = flag(
        "",
        "states that are pooled: last, all, or one by number, 0 being the embeddings "
        "(empty: last; frozen: all)",
    )
    split: str = flag(
        "full",
        "full; clean: leave out of training what stands in the test set; "
        "i/n: cross-validation, part i of n is the test set and is not trained on",
    )
    epochs: int = flag(15, "passes over the training rows")
    batch_size: int = flag(16, "sentences an update")
    lr: float = flag(-1.0, "peak learning rate; -1: 0.001, frozen: 0.0003")
    decay: float = flag(
        -1.0,
        "share of the epochs, at the end, in which the learning rate falls to zero; "
        "-1: 0 (never), frozen: 1",
    )
    weight_decay: float = flag(-1.0, "of matrices; -1: 0.01, frozen: 1")
    n_component: int = flag(
        -1,
        "principal components of the frozen features that the classifier sees; "
        "0: the features as they are; -1: 1000 (frozen only)",
    )
    n_hidden: int = flag(
        -1, "width of the classifier's hidden layer; 0: a linear classifier; -1: 100, frozen: 300"
    )
    head_dropout: float = flag(
        -1.0, "of what the classifier's last layer reads; -1: 0.5, frozen: 0"
    )
    balance: str = flag(
        "",
        "what makes up for classes of unequal size: none, weights in the loss, or prior: "
        "twice the logarithm of a class's share, added to its logit in training "
        "(empty: weights; frozen: prior)",
        ("", "none", "weights", "prior"),
    )
    valid: float = flag(0.1, "share of the training rows held out to choose the best epoch")
    refit: bool = flag(
        True,
        "train anew on all training rows for as many epochs as proved best; "
        "--no-refit: keep the weights of the best epoch",
    )


# What a flag that is not given means: trained with the encoder, on a frozen one. docs/results.md says how they were chosen.
OTHERWISE = {
    "pool": ("mean", "mean+max+min"),
    "layers": ("last", "all"),
    "lr": (1e-3, 3e-4),
    "decay": (0.0, 1.0),
    "weight_decay": (0.01, 1.0),
    "n_component": (0, 1000),
    "n_hidden": (100, 300),
    "head_dropout": (0.5, 0.0),
    "balance": ("weights", "prior"),
}


class Rows:
    """Labelled sentences as tensors, batched by length."""

    def __init__(self, rows, tokenizer, block_size):
        self.sequences, self.n_long = batching.sentences(
            tokenizer, [text for _, text in rows], block_size
        )
        self.labels = torch.tensor([label for label, _ in rows], dtype=torch.long)
        self.lengths = [len(sequence) for sequence in self.sequences]

    def __len__(self):
        return len(self.sequences)

    def batch(self, which):
        """idx and mask (B, T) of some of them."""
        return batching.pad([self.sequences[i] for i in which])


@torch.no_grad()
def predict(model, rows, device, features=None):
    """(N,) the class given to each row, in evaluation mode; from the cached features when there are any."""
    model.eval()
    answers = torch.zeros(len(rows), dtype=torch.long)
    for which in batching.length_batches(rows.lengths, 256):
        if features is not None:
            logits = model.head(features[which.to(device)])
        else:
            idx, mask = rows.batch(which)
            logits = model(idx.to(device), mask.to(device))
        answers[which] = logits.argmax(-1).cpu()
    model.train()
    return answers


@torch.no_grad()
def all_features(model, rows, device):
    """(N, n_features) of every row, each computed once."""
    model.eval()
    features = None
    for which in batching.length_batches(rows.lengths, 256):
        idx, mask = rows.batch(which)
        part = model.features(idx.to(device), mask.to(device))
        features = (
            torch.zeros(len(rows), part.size(1), device=device) if features is None else features
        )
        features[which.to(device)] = part
    model.train()
    return features


def train(flags):
    # The body: a pretrained one brings its tokenizer and architecture along.
    check(flags)
    source = pretrained(flags)
    frozen = bool(source) and flags.tune == "frozen"

    # Data
    corpus = data.load(flags.data)
    require(
        (
            corpus.rows and corpus.test_rows,
            f"--data {flags.data}: holds no labelled rows; give a corpus with train_CLS.tsv or a .tsv",
        )
    )
    corpus, seen, left_out = corpus.split(flags.split)
    seen = torch.tensor(seen)
    if left_out:
        print(left_out)
    kept, held_out = hold_out(corpus.rows, flags.valid, 0, key=lambda row: row[1])
    require(
        (
            kept and held_out,
            f"--valid {flags.valid}: leaves no rows to {'validate' if kept else 'train'} on; "
            "choose another share",
        )
    )
    tokenizer = (
        source.tokenizer
        if source
        else train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    )
    config = (
        source.model.body.config
        if source
        else model_config(flags, vocab_size=tokenizer.get_vocab_size())
    )
    sets = {
        name: Rows(part, tokenizer, config.block_size)
        for name, part in (("train", kept), ("valid", held_out), ("test", corpus.test_rows))
    }

    # Model
    device = prepare(flags, config.n_embd)
    adopt(flags, config, f"--encoder {flags.encoder}" if flags.encoder else "")
    flags.pool = flags.pool or (
        "last" if flags.causal else ""
    )  # the only state that has seen every word
    for name, choices in OTHERWISE.items():
        if getattr(flags, name) in ("", -1):
            setattr(flags, name, choices[frozen])
    require(
        (
            flags.layers in ("last", "all")
            or flags.layers.isdigit()
            and int(flags.layers) <= config.n_layer,
            f"--layers {flags.layers}: must be last, all, or a number from 0 to {config.n_layer}, "
            "the blocks of the encoder",
        )
    )
    how = dict(
        n_class=len(corpus.classes),
        pool=flags.pool,
        layers=flags.layers,
        n_hidden=flags.n_hidden,
        dropout=flags.head_dropout,
        n_component=min(flags.n_component, len(kept)),
    )
    run = Run(
        "classifier",
        flags,
        config,
        tokenizer,
        device,
        name="frozen" if frozen else "tuned" if source else "",
        classifier=how,
        classes=corpus.classes,
        body="decoder" if flags.causal else "encoder",
    )
    model, features, optimizer, balance = start(config, how, source, sets, flags, device)
    run.say(
        f"{corpus.name}: {len(kept):,} training rows, {len(held_out):,} for validation, {len(seen):,} test rows of which "
        f"{int(seen.sum()):,} also stand in the training data; {count_parameters(model)['total']:,} parameters, "
        f"{sum(p.numel() for p in model.parameters() if p.requires_grad):,} of them trained"
    )
    for name, rows in sets.items():
        if rows.n_long:
            run.say(
                f"  {rows.n_long} of {len(rows)} {name} sentences are longer than --block-size {config.block_size} "
                "and were cut"
            )
    unknown = {
        name: batching.fraction_unknown(torch.cat(rows.sequences), UNK)
        for name, rows in sets.items()
    }
    if unknown["train"] > 0.1:
        run.say(
            f"  note: {unknown['train']:.0%} of the training words are unknown to "
            f"{source.folder if source else 'the vocabulary'}; pretrain it on text of the same kind (--data)"
        )

    # Loop: accuracy on all sets after every epoch; the best epoch is chosen by the validation rows alone.
    trained = model.head if frozen else model
    epochs_done, more = run.restore(trained, optimizer)
    best, best_epoch, best_weights = more.get("best", (-1.0, 0, {}))
    batches_done = more.get("batches_done", 0)  # of an epoch in which a signal came
    run.first_step = epochs_done * -(-len(kept) // flags.batch_size) + batches_done
    for epoch in run.interruptible(range(epochs_done + 1, flags.epochs + 1)):

        def stop_if_asked(batches_done):
            run.stop_if_asked(
                trained,
                optimizer,
                epoch - 1,
                best=(best, best_epoch, best_weights),
                batches_done=batches_done,
            )

        train_epoch(
            epoch,
            flags.epochs,
            model,
            sets["train"],
            features.get("train"),
            optimizer,
            balance,
            flags,
            run,
            batches_done,
            stop_if_asked,
        )
        batches_done = 0
        numbers = accuracies(
            {
                name: predict(model, rows, device, features.get(name)) == rows.labels
                for name, rows in sets.items()
            },
            seen,
        )
        run.log(epoch, **numbers)
        run.say(
            f"epoch {epoch:>2}  accuracy  train {numbers['accuracy/train']:6.1%}  valid {numbers['accuracy/valid']:6.1%}  "
            f"test {numbers['accuracy/test']:6.1%}{seen_and_unseen(numbers)}"
        )
        if numbers["accuracy/valid"] > best:
            best, best_epoch = numbers["accuracy/valid"], epoch
            best_weights = {name: weight.clone() for name, weight in trained.state_dict().items()}
        run.save_checkpoint(trained, optimizer, epoch, best=(best, best_epoch, best_weights))

    # Refit: with the number of epochs known, the held-out rows need not be missed any longer. The learning rate goes as before.
    if flags.refit:
        run.beside = ", the last, but nothing of the final training"
        run.say(
            f"epoch {best_epoch} was best on the validation rows; "
            f"training anew on all {len(corpus.rows):,} training rows, from new weights"
        )
        torch.manual_seed(flags.seed)
        sets["train"] = Rows(corpus.rows, tokenizer, config.block_size)
        model, features, optimizer, balance = start(config, how, source, sets, flags, device)
        for epoch in range(1, best_epoch + 1):
            train_epoch(
                epoch,
                flags.epochs,
                model,
                sets["train"],
                features.get("train"),
                optimizer,
                balance,
                flags,
                run,
            )
    else:
        trained.load_state_dict(best_weights)
    run.save("best.pt", model=model.state_dict(), step=best_epoch)

    # Results
    answers = {
        name: predict(model, rows, device, features.get(name)) for name, rows in sets.items()
    }
    result = accuracies({name: answers[name] == sets[name].labels for name in sets}, seen) | {
        "accuracy/valid": best
    }
    confusion = torch.zeros(len(corpus.classes), len(corpus.classes), dtype=torch.long)
    confusion.index_put_((sets["test"].labels, answers["test"]), torch.tensor(1), accumulate=True)
    floor = {f"floor/{name}": value for name, value in corpus.floor.items() if name in result}
    run.finish(
        {
            "epoch": best_epoch,
            **result,
            "classes": corpus.classes,
            "confusion": confusion.tolist(),
            **floor,
            "unknown/test": unknown["test"],
        },
        model,
        sum(sets["train"].lengths) * (flags.epochs + best_epoch * flags.refit),
    )
    draw(run, confusion, corpus, config.pos)
    best_possible = ""
    if "accuracy/test" in corpus.floor:
        best_possible = (
            f" ({100 * (corpus.floor['accuracy/test'] - result['accuracy/test']):.1f} points "
            f"below the best possible {corpus.floor['accuracy/test']:.1%})"
        )
    run.say(
        f"test accuracy {result['accuracy/test']:.1%}{best_possible} "
        f"after {best_epoch} epoch{'s' * (best_epoch > 1)}{' on all training rows' if flags.refit else ''}"
        f"{seen_and_unseen(result)}; {run.seconds():.0f} s, {run.folder}"
    )


def pretrained(flags):
    """The run of --encoder, or the RoBERTa of --init, with a body to classify with; None without either."""
    if flags.init:
        return roberta_of(flags, head=False)
    if not flags.encoder:
        return None
    source = load_run(flags.encoder, ("mlm", "lm"), flag_name="--encoder")
    require(
        (
            not isinstance(source.model, Ensemble),
            f"--encoder {flags.encoder}: is an ensemble, but a classifier has one body; train one with --members 1",
        ),
        (
            source.model.body.causal or not flags.causal,
            f"--causal: --encoder {flags.encoder} is an encoder; give a run of train_lm.py, or leave --causal out",
        ),
    )
    flags.causal = source.model.body.causal
    before = source.config["flags"]
    if flags.split not in ("full", before.get("split")) and same_data(before["data"], flags.data):
        remedy = (
            f"pretrain it with --split {flags.split} too"
            if "split" in before
            else "train_lm.py has no --split, so give a run on other text, or --split full"
        )
        raise UserError(
            f"--split {flags.split}: {flags.encoder} was pretrained on text that holds test sentences; "
            f"{remedy}"
        )
    return source


def start(config, how, source, sets, flags, device):
    """A fresh model and what its training needs: (model, cached features of each set
    if the encoder is frozen, optimizer, balance: weights of the classes in the loss and what is added to their logits)."""
    model = Classifier((Decoder if flags.causal else make_encoder)(config), **how).to(device)
    if flags.compile:
        compile_blocks(model)
    features = {}
    if source:
        if not flags.untrained:
            model.body.load_state_dict(source.model.body.state_dict())
        if flags.tune == "frozen":
            model.body.requires_grad_(False)
            features = {name: all_features(model, rows, device) for name, rows in sets.items()}
            if model.n_component:
                model.fit_projection(features["train"])
            features = {name: model.project(part) for name, part in features.items()}
    counts = sets["train"].labels.bincount(minlength=how["n_class"]).clamp(min=1).to(device)
    weights, prior = torch.ones_like(counts), torch.zeros_like(counts)
    if flags.balance == "weights":
        weights = counts.sum() / len(counts) / counts
    if (
        flags.balance == "prior"
    ):  # weights hardly matter once every row is learned by heart; this does (Menon et al. 2021)
        prior = 2 * (counts / counts.sum()).log()
    return (
        model,
        features,
        make_optimizer(model, flags.lr, flags.weight_decay),
        (weights.float(), prior),
    )


def train_epoch(
    epoch,
    epochs,
    model,
    rows,
    features,
    optimizer,
    balance,
    flags,
    run,
    batches_done=0,
    before_each=lambda batches_done: None,
):
    """Every row once, in an order that only the seed and the epoch decide, without those of batches done earlier; the
    learning rate falls over all `epochs`."""
    frozen, (weights, prior) = features is not None, balance
    model.train(not frozen)
    model.head.train()
    batches = batching.length_batches(
        rows.lengths, flags.batch_size, batching.generator(flags.seed, "epoch", epoch)
    )
    for position, which in enumerate(batches[batches_done:], start=batches_done):
        before_each(position)
        step = (epoch - 1) * len(batches) + position
        lr = learning_rate(step, epochs * len(batches), flags.lr, 0, flags.decay)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with autocast(flags, run.device):
            if frozen:
                logits = model.head(features[which.to(run.device)])
            else:
                idx, mask = rows.batch(which)
                logits = model(idx.to(run.device), mask.to(run.device))
            loss = F.cross_entropy(logits + prior, rows.labels[which].to(run.device), weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.progress(
            step + 1,
            epochs * len(batches),
            loss,
            lr,
            (step + 1) * flags.batch_size * sum(rows.lengths) // len(rows),
        )


def same_data(a, b):
    """Whether two values of --data are the same name or place."""
    return a == b or Path(a).resolve() == Path(b).resolve()


def accuracies(right, seen):
    """{"accuracy/train": ..., "accuracy/seen": ...} from a (N,) bool for each set; seen marks test rows that stand in the
    training data."""
    numbers = {f"accuracy/{name}": hits.float().mean().item() for name, hits in right.items()}
    for name, part in (("seen", right["test"][seen]), ("unseen", right["test"][~seen])):
        if len(part):
            numbers[f"accuracy/{name}"] = part.float().mean().item()
    return numbers


def seen_and_unseen(numbers):
    """In words, the seen and unseen part of a test accuracy, where both exist."""
    parts = [
        f"{name} {numbers[f'accuracy/{name}']:6.1%}"
        for name in ("seen", "unseen")
        if f"accuracy/{name}" in numbers
    ]
    return f"  ({', '.join(parts)})" if len(parts) == 2 else ""


def check(flags):
    pools, given = flags.pool.split("+") if flags.pool else [], flags.encoder or flags.init
    require(
        (flags.epochs > 0, f"--epochs must be at least 1, got {flags.epochs}"),
        (
            0 < flags.batch_size <= LARGEST,
            f"--batch-size must be at least 1 and at most {LARGEST:,}, got {flags.batch_size}",
        ),
        (
            flags.lr > 0 or flags.lr == -1,
            f"--lr must be above 0, or -1 for the default, got {flags.lr}",
        ),
        (
            0 <= flags.decay <= 1 or flags.decay == -1,
            f"--decay must be from 0 to 1, or -1 for the default, got {flags.decay}",
        ),
        (
            flags.weight_decay >= 0 or flags.weight_decay == -1,
            f"--weight-decay must not be negative, or -1 for the default, got {flags.weight_decay}",
        ),
        (
            flags.block_size > 1,
            f"--block-size must be at least 2 ([BOS] and a word), got {flags.block_size}",
        ),
        (0 < flags.valid < 1, f"--valid must be above 0 and below 1, got {flags.valid}"),
        (
            flags.n_component >= -1,
            f"--n-component must be at least 0, or -1 for the default, got {flags.n_component}",
        ),
        (
            flags.n_component < 1 or given and flags.tune == "frozen",
            f"--n-component {flags.n_component}: only frozen features can be turned; leave it out or give --encoder",
        ),
        (
            flags.n_hidden >= -1,
            f"--n-hidden must be at least 0, or -1 for the default, got {flags.n_hidden}",
        ),
        (
            0 <= flags.head_dropout < 1 or flags.head_dropout == -1,
            f"--head-dropout must be at least 0 and below 1, or -1 for the default, got {flags.head_dropout}",
        ),
        (
            all(part in Classifier.POOLS for part in pools),
            f"--pool {flags.pool}: must be of {', '.join(Classifier.POOLS)}, joined by +",
        ),
        (
            not (flags.encoder and flags.init),
            f"--encoder {flags.encoder} and --init {flags.init}: each brings a model; give one of them",
        ),
        (
            given or flags.tune == "frozen",
            "--tune all: there is nothing to fine-tune without --encoder or --init",
        ),
        (
            given or not flags.untrained,
            "--untrained: is for the architecture of --encoder or --init; without them all weights are random anyway",
        ),
        (
            not (flags.init and flags.causal),
            f"--causal: --init {flags.init} is an encoder; leave --causal out",
        ),
    )


def draw(run, confusion, corpus, pos):
    """curve.png: accuracy after every epoch. confusion.png: true against given class on the test rows."""
    from lab import figures

    metrics = run.metrics()
    epochs = [m["step"] for m in metrics]
    lines = {
        label: (epochs, [100 * m[f"accuracy/{name}"] for m in metrics])
        for name, label in (
            ("train", "train"),
            ("valid", "validation"),
            ("test", "test"),
            ("seen", "test, seen in training"),
            ("unseen", "test, unseen"),
        )
        if f"accuracy/{name}" in metrics[-1]
    }
    best = (
        {"best possible": 100 * corpus.floor["accuracy/test"]}
        if "accuracy/test" in corpus.floor
        else {}
    )
    title = f"Classification, pos={pos}" + ": the search for the epoch" * run.flags.refit
    figures.curves(run.folder / "curve.png", [(title, "accuracy (%)", lines, best, False)], "epoch")
    figures.confusion(run.folder / "confusion.png", confusion.tolist(), corpus.classes)


if __name__ == "__main__":
    main(train, Flags, __doc__.split("\n")[0])
