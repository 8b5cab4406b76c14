"""Measure what counting achieves: n-gram perplexity and naive-Bayes accuracy, in a second.

    python baselines.py --data speeches
    python baselines.py --data speeches --text wikitext2    mix in the n-grams of a larger text
    python baselines.py --data speeches --split clean       train on no sentence of the test set

Text, tokens and test sets are those of train_lm.py and train_classifier.py, so the numbers
compare directly.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import data
from data import NAMES, batching
from data.corpus import hold_out, parse_fold
from data.files import write_json
from data.noise import noise_tokens
from data.tokenizer import BOS, check_vocab_size, encode, train_tokenizer
from lab.command import main, typed_command
from lab.errors import require
from lab.flags import TokenizerFlags, flag, script_of, typed
from lab.folder import name_folder, open_folder
from lab.machine import git_revision, versions
from lab.optim import perplexity
from lab.predictions import Predictions, label_of_seen
from nets.naive_bayes import NaiveBayes, choose_smoothing
from nets.ngrams import KneserNey, Mixture, mixing_weight


@dataclass
class Flags(TokenizerFlags):
    data: str = flag("toy", f"corpus: {', '.join(NAMES)}, or a path, as in train_classifier.py")
    out: str = flag("", "run folder (default: out/baselines-DATA, and the split if it is not full)")
    rare_unknown: float = flag(
        0.0, "n-grams: share of the words seen once that become [UNK]", at_least=0, at_most=1
    )
    text: str = flag(
        "",
        "a larger text, as in --data; its n-grams are mixed with those of --data, "
        "weighted by their fit to held-out lines",
    )
    order: int = flag(5, "longest n-gram; 5 predicts from four tokens", at_least=1, at_most=10)
    split: str = flag("full", "test rows, as in train_classifier.py; n-grams are not affected")
    overwrite: bool = flag(False, "delete the run in --out and start again")
    resume = False  # without a type, so it is not a flag


def count(flags):
    started = time.perf_counter()
    check_vocab_size(flags.tokenizer, flags.vocab_size)
    parse_fold(flags.split)
    corpus = data.load(flags.data)
    running = bool(corpus.lines and corpus.tests)
    asked = typed(flags, "text", "rare_unknown")
    problem = f"{asked}: for n-grams, but --data {flags.data} has no test text"
    require((running or not asked, f"{problem}; leave it out"))
    larger = data.load(flags.text, "--text").lines if flags.text else []
    parts = hold_out(corpus.lines, 0.1, seed=0) if larger else ()  # kept, held out
    labelled = bool(corpus.rows and corpus.test_rows)
    problem = f"--text {flags.text}: --data {flags.data} has too few lines to hold some out"
    remedy = "give a larger corpus"
    require(
        (larger or not flags.text, f"--text {flags.text}: no running text found; give another"),
        (all(parts), f"{problem} for mixing; leave --text out"),
        (running or labelled, f"--data {flags.data}: no test text or test rows found; {remedy}"),
    )
    split = corpus.split(flags.split) if labelled else ()
    folder = name_folder(flags, "baselines")
    open_folder(folder, flags)

    result, summary, test = {}, [], None
    if running:
        result |= measure_ngrams(corpus, larger, parts, flags)
        values = (f"{name} {result[f'perplexity/{name}']:.1f}" for name in corpus.tests)
        summary.append(f"{flags.order}-gram perplexity {', '.join(values)}")
    if labelled:
        numbers, test = measure_classifier(*split, flags)
        result |= numbers
        summary.append(f"naive Bayes accuracy {result['accuracy/test']:.1%}")
        if "accuracy/unseen" in result:
            summary[-1] += f", {result['accuracy/unseen']:.1%} on unseen sentences"
    config = {"kind": "baselines", "script": script_of(flags), "flags": asdict(flags)}
    config |= {"revision": git_revision(), "versions": versions()}
    write_json(folder / "config.json", config)
    if test:
        test.write(folder)
    seconds = time.perf_counter() - started
    cost = {"seconds": round(seconds, 2), "cpu_seconds": round(time.process_time(), 2)}
    write_json(folder / "result.json", result | cost | {"command": typed_command(flags)})
    print(f"{'; '.join(summary)}; {seconds:.1f} s, {folder}")


def measure_ngrams(corpus, larger, parts, flags):
    """Return the entries of result.json on n-grams up to --order.

    larger: the lines of --text. parts: the lines of --data, kept and held out to choose the weight.
    """
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    vocab_size = tokenizer.get_vocab_size()
    ids = with_rare_unknown(batching.stream(tokenizer, corpus.lines), vocab_size, flags)
    streams = {name: batching.stream(tokenizer, lines) for name, lines in corpus.tests.items()}
    n_tokens = {name: len(stream) - 1 for name, stream in streams.items()}
    unknown = {name: batching.fraction_unknown(s[1:]) for name, s in streams.items()}
    result = {"vocab_size": vocab_size, **named("tokens/", n_tokens), **named("unknown/", unknown)}

    def measure(model, label):
        """Print and return the perplexity of every test set, and return its nats."""
        nats = {name: -model.log_probabilities(stream).sum() for name, stream in streams.items()}
        values = {name: perplexity(nats[name], n_tokens[name]) for name in streams}
        print_row(label, [f"{value:,.1f}" for value in values.values()])
        return values, nats

    print(f"{corpus.name}: {len(ids) - 1:,} training tokens, a vocabulary of {vocab_size:,}")
    print_row("perplexity", streams)
    for order in range(1, flags.order + 1):
        model = KneserNey(ids, vocab_size, order)
        values, nats = measure(model, f"  {order}-gram")
        result |= {f"perplexity/{name}@{order}-gram": value for name, value in values.items()}
    result |= named("perplexity/", values)
    for name, lines in corpus.tests.items():
        n_bytes = sum(len(line.encode()) + 1 for line in lines)
        result[f"bits_per_byte/{name}"] = nats[name] / math.log(2) / n_bytes
    if flags.text:
        mixture = mix_ngrams(model, larger, parts, tokenizer, flags)
        label = f"  + {1 - mixture.weight:.0%} {Path(flags.text).stem}"
        values, _ = measure(mixture, label)
        result |= {f"perplexity/{name}@mixed": value for name, value in values.items()}
        result["weight"] = mixture.weight

    # The floor holds for word tokens with the full vocabulary only.
    floor = {name: value for name, value in corpus.floor.items() if name in result}
    if floor and flags.tokenizer == "word" and not flags.vocab_size:
        result |= named("floor/", floor)
        print_row("  best possible", [f"{value:,.1f}" for value in floor.values()])
    print_row("tokens", [f"{n:,}" for n in n_tokens.values()])
    print_row("out of vocabulary", [f"{share:.1%}" for share in unknown.values()])
    return result


def mix_ngrams(model, larger, parts, tokenizer, flags):
    """Return the Mixture of a model of --data and one of --text that suits held-out lines best."""
    wide = KneserNey(batching.stream(tokenizer, larger), model.vocab_size, flags.order)
    kept, held = (batching.stream(tokenizer, part) for part in parts)
    kept = with_rare_unknown(kept, model.vocab_size, flags)
    narrow = KneserNey(kept, model.vocab_size, flags.order)
    return Mixture((model, wide), mixing_weight((narrow, wide), held))


def with_rare_unknown(ids, vocab_size, flags):
    """Return ids with the share --rare-unknown of its words that occur once replaced by [UNK]."""
    counts = ids.bincount(minlength=vocab_size)
    return noise_tokens(ids, ids, counts, batching.generator(0), rare=flags.rare_unknown)[1]


def measure_classifier(corpus, seen, note, flags):
    """Return the entries of result.json on naive Bayes, and its Predictions of the test rows.

    corpus, seen, note: what `Corpus.split` returns.
    """
    seen = torch.tensor(seen)
    if note:
        print(note)
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    # With [BOS], as in the encoder: its pair with the first word tells how sentences begin.
    sentences, test = (
        [[BOS, *ids] for ids in encode(tokenizer, [text for _, text in rows])]
        for rows in (corpus.rows, corpus.test_rows)
    )
    labels, n_class = [label for label, _ in corpus.rows], len(corpus.classes)
    smoothing = choose_smoothing(sentences, labels, n_class)
    model = NaiveBayes(sentences, labels, n_class, smoothing)
    scores = torch.from_numpy(model.scores(test))  # (N, n_class)
    predictions = Predictions(corpus.test_rows, corpus.classes, scores, seen)
    shares = predictions.accuracies()
    prior = torch.from_numpy(model.scores([[]] * len(test)))  # knows the classes, but no words
    majority = Predictions(corpus.test_rows, corpus.classes, prior, seen).accuracies()

    result, floor = {"smoothing": smoothing} | predictions.scores(), corpus.floor
    best = ["best possible"] if "accuracy/test" in floor else []
    print_row("accuracy", ["test rows", "majority class", "naive Bayes", *best])
    parts = {
        "test": ("all", len(seen)),
        "seen": (label_of_seen(flags.split == "clean"), int(seen.sum())),
        "unseen": ("unseen", int((~seen).sum())),
    }
    for name, (label, n) in parts.items():
        key = f"accuracy/{name}"
        if key in shares:
            values = {f"{key}@majority": majority[key], key: shares[key]}
            values |= {f"floor/{key}": floor[key]} if key in floor else {}
            result |= values
            print_row("  " + label, [f"{n:,}", *(f"{value:.1%}" for value in values.values())])
    print_row("macro-F1", ["", "", f"{result['macro_f1/test']:.1%}"])
    return result, predictions


def named(prefix, values):
    """Return the dictionary with a prefix before every key."""
    return {prefix + key: value for key, value in values.items()}


def print_row(label, values):
    """Print one line of a table with columns of a fixed width."""
    print(f"{label:<24}" + "".join(f"{value:>15}" for value in values))


if __name__ == "__main__":
    main(count, Flags, __doc__)
