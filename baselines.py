"""Measure what counting achieves: n-gram perplexity and naive-Bayes accuracy, in a second.

    python baselines.py --data speeches [--split clean]

Text, tokens and test sets are those of train_lm.py and train_classifier.py.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from data import batching, load, name_of
from data.corpus import PAIR
from data.files import read_json, write_json
from data.labelled import by_seen
from data.leaks import split_corpus, words_of
from data.text import read_text
from data.tokenizer import BOS, encode, train_tokenizer
from lab.flags import Data, Folder, Split, main, require
from lab.machine import code_hash, git_revision
from lab.optim import perplexity
from lab.predictions import Predictions
from nets.ngrams import KneserNey, NaiveBayes, choose_smoothing

NEGATIONS = {"no", "not", "n't", "nobody", "nothing", "none", "never"}


@dataclass
class Flags:
    data: Data = "toy"  # a named corpus, a .txt, a .tsv or .csv of labelled rows, or a folder
    out: Folder = ""  # folder; '': out/baselines-DATA, and the split if it is not full
    order: int = 5  # longest n-gram; 5 predicts from four tokens
    split: Split = "full"  # test rows, as in train_classifier.py; n-grams are not affected
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces


def count(flags):
    require(flags.order > 0, f"--order {flags.order}: must be at least 1")
    corpus = load(flags.data)
    folder = open_folder(flags)
    result = {}
    if corpus.lines and corpus.tests:
        text = read_text(flags.data, None, flags.tokenizer, flags.vocab_size)
        result |= measure_ngrams(text, flags.order)
    if corpus.rows and corpus.test_rows:
        corpus, seen, note = split_corpus(corpus, flags.split)
        if note:
            print(note)
        result |= measure_classifier(corpus, seen, flags, folder)
    require(result, f"--data {flags.data}: no test text or test rows found; give more")
    config = {
        "kind": "baselines",
        "flags": vars(flags),
        "revision": git_revision(),
        "code": code_hash(__file__),
        "build": {},
        "command": f"python baselines.py {shlex.join(sys.argv[1:])}",
    }
    write_json(folder / "config.json", config)
    write_json(folder / "result.json", result)
    print(f"written to {folder}")


def open_folder(flags):
    """Make the folder of the results and return it. Raises UserError if it holds a trained run."""
    default = f"out/baselines-{name_of(flags.data)}"
    if flags.split != "full":
        default += "-" + flags.split.replace("/", "-of-")
    folder = Path(flags.out or default).expanduser()
    path = folder / "config.json"
    if path.exists():
        is_baseline = read_json(path).get("kind") == "baselines"
        require(is_baseline, f"--out {folder}: holds another run; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def measure_ngrams(text, longest):
    """Return the entries of result.json on n-grams of a Text, and print them."""
    ids = text.streams["train"]
    V = text.tokenizer.get_vocab_size()
    print(f"{text.name}: {len(ids) - 1:,} training tokens, a vocabulary of {V:,}")
    models = [KneserNey(ids, V, order) for order in range(1, longest + 1)]
    result = {"vocab_size": V}
    for name, stream in text.streams.items():
        if name == "train":
            continue
        n = len(stream) - 1  # without [BOS]
        unknown = batching.share_unknown([stream])
        nats = [-model.log_probabilities(stream).sum() for model in models]
        words = []
        for order in range(1, longest + 1):
            value = perplexity(nats[order - 1], n)
            result[f"perplexity/{name}@{order}-gram"] = value
            words.append(f"{order}-gram {value:,.1f}")
        result[f"perplexity/{name}"] = perplexity(nats[-1], n)  # of the longest n-grams
        result[f"tokens/{name}"] = n
        result[f"unknown/{name}"] = unknown
        result[f"bits_per_byte/{name}"] = nats[-1] / math.log(2) / text.n_bytes[name]
        hint = "; try --tokenizer bpe" if unknown > 0.2 else ""
        counts = f"{n:,} tokens, {unknown:.1%} unknown{hint}"
        print(f"perplexity {name}: {', '.join(words)} ({counts})")
    return result | floors(text, result)


def floors(data, result):
    """Return the best possible values of the numbers in result, where a Text or Corpus has them."""
    return {f"floor/{name}": best for name, best in data.floor.items() if name in result}


def measure_classifier(corpus, seen, flags, folder):
    """Return the entries of result.json on rows, and print them; write predictions.tsv. seen: for
    each test row whether it was a training row."""
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    bayes, majority, smoothing = classify(corpus, seen, tokenizer)
    result = {"smoothing": smoothing, "rows/test": len(seen)}
    result |= bayes.scores() | bayes.accuracies()
    for name, share in majority.accuracies().items():
        result[f"{name}@majority"] = share
    result |= floors(corpus, result)
    print("\n".join(bayes.describe()))
    accuracy = f"{result['accuracy/test']:.1%}{by_seen(result)}"
    print(f"majority class {result['accuracy/test@majority']:.1%}; naive Bayes {accuracy}")
    bayes.write(folder)
    if PAIR in corpus.rows[0][1]:
        result |= measure_parts_of_pairs(corpus, seen)
    return result


def measure_parts_of_pairs(corpus, seen):
    """Return the accuracies of naive Bayes that reads only a part of each pair, and print them."""
    result = {}
    for name, part_of in (("second sentence", second_sentence), ("overlap", describe_overlap)):
        rows = [(label, part_of(text)) for label, text in corpus.rows]
        test_rows = [(label, part_of(text)) for label, text in corpus.test_rows]
        tokenizer = train_tokenizer("word", [text for _, text in rows])
        parts = replace(corpus, rows=rows, test_rows=test_rows)
        bayes, _, _ = classify(parts, seen, tokenizer)
        accuracy = bayes.accuracies()["accuracy/test"]
        result[f"accuracy/test@{name}"] = accuracy
        print(f"naive Bayes of the {name} alone {accuracy:.1%}")
    return result


def classify(corpus, seen, tokenizer):
    """Return the Predictions of naive Bayes and of the majority class for the test rows of a
    Corpus, and the smoothing of naive Bayes."""
    train = read_ids(tokenizer, corpus.rows)
    test = read_ids(tokenizer, corpus.test_rows)
    labels = [label for label, _ in corpus.rows]
    n_class = len(corpus.classes)
    smoothing = choose_smoothing(train, labels, n_class)
    model = NaiveBayes(train, labels, n_class, smoothing)
    seen = torch.tensor(seen)
    no_words = [[]] * len(test)  # leave only the shares of the classes
    predictions = []
    for sentences in (test, no_words):
        scores = torch.from_numpy(model.scores(sentences))  # (N, n_class)
        predictions.append(Predictions(corpus.test_rows, corpus.classes, scores, seen))
    return *predictions, smoothing


def read_ids(tokenizer, rows):
    """Return the ids of each row's text, a list. They begin with [BOS] as in the encoder: its pair
    with the first word shows how sentences begin."""
    texts = [text for _, text in rows]
    return [[BOS, *ids] for ids in encode(tokenizer, texts)]


def second_sentence(text):
    """Return the second sentence of a pair."""
    return text.split(PAIR)[1]


def describe_overlap(text):
    """Return counts of a pair as words: the share of words in both sentences, how many only the
    first or second has, and where a negation is."""
    first, second = text.split(PAIR)
    a = set(words_of(first))
    b = set(words_of(second))
    shared = round(8 * len(a & b) / len(a | b))
    only_a = min(4, len(a - b))
    only_b = min(4, len(b - a))
    negated_a = bool(a & NEGATIONS)
    negated_b = bool(b & NEGATIONS)
    return f"shared{shared} only{only_a}first only{only_b}second no{negated_a}no{negated_b}"


if __name__ == "__main__":
    main(count, Flags)
