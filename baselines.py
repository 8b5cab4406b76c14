"""Measure what counting achieves: n-gram perplexity and naive-Bayes accuracy, in a second.

    python baselines.py --data speeches [--split clean]

Text, tokens and test sets are those of train_lm.py and train_classifier.py.
"""

import lab  # noqa: F401, names a missing package  # isort: skip
import math
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from data import batching, load, name_of
from data.corpus import PAIR, words_of
from data.files import read_json, write_json
from data.labelled import by_seen
from data.text import read_text
from data.tokenizer import BOS, encode, train_tokenizer
from lab.flags import main, require
from lab.machine import code_hash, git_revision
from lab.optim import perplexity
from lab.predictions import Predictions
from nets.ngrams import KneserNey, NaiveBayes, choose_smoothing


@dataclass
class Flags:
    data: str = "toy"  # a named corpus, a .txt, a .tsv or .csv of labelled rows, or a folder
    out: str = ""  # folder; default: out/baselines-DATA, and the split if it is not full
    order: int = 5  # longest n-gram; 5 predicts from four tokens
    split: str = "full"  # test rows, as in train_classifier.py; n-grams are not affected
    tokenizer: Literal["word", "bpe"] = "word"  # word level, or byte-level BPE
    vocab_size: int = 0  # 0: every word of the training text, or 4000 BPE pieces


def count(flags):
    corpus, result = load(flags.data), {}
    require(flags.order > 0, f"--order {flags.order}: must be at least 1")
    split = "" if flags.split == "full" else "-" + flags.split.replace("/", "-of-")
    folder = Path(flags.out or f"out/baselines-{name_of(flags.data)}{split}").expanduser()
    path = folder / "config.json"
    replaces = not path.exists() or read_json(path).get("kind") == "baselines"
    require(replaces, f"--out {folder}: holds another run; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    if corpus.lines and corpus.tests:
        text = read_text(flags.data, None, flags.tokenizer, flags.vocab_size)
        result |= measure_ngrams(text, flags.order)
    if corpus.rows and corpus.test_rows:
        result |= measure_classifier(*corpus.split(flags.split), flags, folder)
    require(result, f"--data {flags.data}: no test text or test rows found; give more")
    made = dict(revision=git_revision(), code=code_hash(__file__), build={})
    made["command"] = f"python baselines.py {shlex.join(sys.argv[1:])}"
    write_json(path, dict(kind="baselines", flags=vars(flags)) | made)
    write_json(folder / "result.json", result)
    print(f"written to {folder}")


def measure_ngrams(text, longest):
    """Return the entries of result.json on n-grams of a Text, and print them."""
    V, ids = text.tokenizer.get_vocab_size(), text.streams["train"]
    models, result = [KneserNey(ids, V, k) for k in range(1, longest + 1)], {"vocab_size": V}
    print(f"{text.name}: {len(ids) - 1:,} training tokens, a vocabulary of {V:,}")
    for name in [name for name in text.streams if name != "train"]:
        stream, n = text.streams[name], len(text.streams[name]) - 1
        nats = [-model.log_probabilities(stream).sum() for model in models]
        values, unknown = [perplexity(each, n) for each in nats], batching.share_unknown([stream])
        result |= {f"perplexity/{name}@{k}-gram": value for k, value in enumerate(values, 1)}
        result |= {f"perplexity/{name}": values[-1], f"tokens/{name}": n}
        result[f"unknown/{name}"] = unknown
        result[f"bits_per_byte/{name}"] = nats[-1] / math.log(2) / text.sizes[name]
        words = ", ".join(f"{k}-gram {value:,.1f}" for k, value in enumerate(values, 1))
        hint = "; try --tokenizer bpe" if unknown > 0.2 else ""
        print(f"perplexity {name}: {words} ({n:,} tokens, {unknown:.1%} unknown{hint})")
    result |= {f"floor/{name}": best for name, best in text.floor.items() if name in result}
    return result


def measure_classifier(corpus, seen, note, flags, folder):
    """Return the entries of result.json on rows; write predictions.tsv. See `Corpus.split`."""
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    answers, majority, smoothing = answer(corpus, seen, tokenizer, str)
    result = {"smoothing": smoothing, "rows/test": len(seen)} | answers.scores()
    result |= answers.accuracies()
    result |= {f"{name}@majority": share for name, share in majority.accuracies().items()}
    result |= {f"floor/{name}": best for name, best in corpus.floor.items() if name in result}
    print(*([note] if note else []), *answers.describe(), sep="\n")
    known = f"{result['accuracy/test']:.1%}{by_seen(result)}"
    print(f"majority class {result['accuracy/test@majority']:.1%}; naive Bayes {known}")
    answers.write(folder)
    if PAIR in corpus.rows[0][1]:
        second = {"second sentence": lambda text: text.split(PAIR)[1]}
        for name, read in (second | {"overlap": read_overlap}).items():
            tokenizer = train_tokenizer("word", [read(text) for _, text in corpus.rows])
            found = answer(corpus, seen, tokenizer, read)[0].accuracies()["accuracy/test"]
            result[f"accuracy/test@{name}"] = found
            print(f"naive Bayes of the {name} alone {found:.1%}")
    return result


def answer(corpus, seen, tokenizer, read):
    """Return the Predictions of naive Bayes and of the majority class, and the smoothing. read: a
    function from the text of a row to what naive Bayes reads."""
    # With [BOS], as in the encoder: its pair with the first word tells how sentences begin
    texts = [[read(text) for _, text in rows] for rows in (corpus.rows, corpus.test_rows)]
    train, test = ([[BOS, *ids] for ids in encode(tokenizer, each)] for each in texts)
    labels, n_class = [label for label, _ in corpus.rows], len(corpus.classes)
    smoothing = choose_smoothing(train, labels, n_class)
    model = NaiveBayes(train, labels, n_class, smoothing)
    about = corpus.test_rows, corpus.classes
    scores = map(model.scores, (test, [[]] * len(test)))  # no words: shares of classes
    found = [Predictions(*about, torch.from_numpy(x), torch.tensor(seen)) for x in scores]
    return *found, smoothing


def read_overlap(text):
    """Return counts of a pair as words: the share of words in both sentences, how many only the
    first or second has, and where a negation is."""
    a, b = (set(words_of(sentence)) for sentence in text.split(PAIR))
    shared, only = round(8 * len(a & b) / len(a | b)), (min(4, len(a - b)), min(4, len(b - a)))
    negated = [bool(words & {*"no not n't nobody nothing none never".split()}) for words in (a, b)]
    return f"shared{shared} only{only[0]}first only{only[1]}second no{negated[0]}no{negated[1]}"


if __name__ == "__main__":
    main(count, Flags)
