"""Measure what counting achieves: n-gram perplexity and naive-Bayes accuracy, in a second.

    python baselines.py --data speeches [--split clean]

Text, tokens and test sets are those of train_lm.py and train_classifier.py.
"""

import math
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from data import batching, load, name_of
from data.files import UserError, read_json, write_json
from data.labelled import by_seen
from data.text import read_text
from data.tokenizer import BOS, encode, train_tokenizer
from lab.flags import TokenizerFlags, at_least, main
from lab.machine import code_hash, git_revision, versions
from lab.optim import perplexity
from lab.predictions import Predictions
from lab.tables import align
from nets.ngrams import KneserNey, NaiveBayes, choose_smoothing


@dataclass
class Flags(TokenizerFlags):
    data: str = "toy"  # a named corpus, a .txt, a .tsv or .csv of labelled rows, or a folder
    out: str = ""  # run folder; default: out/baselines-DATA, and the split if it is not full
    order: int = 5  # longest n-gram; 5 predicts from four tokens
    split: str = "full"  # test rows, as in train_classifier.py; n-grams are not affected
    overwrite: bool = False  # replace older baselines in --out

    def __post_init__(self):
        at_least(self, 1, "order")
        super().__post_init__()


def count(flags):
    started, corpus, result, words = time.perf_counter(), load(flags.data), {}, []
    split = "" if flags.split == "full" else "-" + flags.split.replace("/", "-of-")
    folder = Path(flags.out or f"out/baselines-{name_of(flags.data)}{split}").expanduser()
    path = folder / "config.json"
    replaces = flags.overwrite and path.exists() and read_json(path).get("kind") == "baselines"
    if folder.is_file() or (folder.exists() and any(folder.iterdir()) and not replaces):
        remedy = "choose another folder, or replace older baselines with --overwrite"
        raise UserError(f"--out {folder}: is not empty; {remedy}")
    folder.mkdir(parents=True, exist_ok=True)
    if corpus.lines and corpus.tests:
        text = read_text(flags.data, None, flags.tokenizer, flags.vocab_size)
        result |= measure_ngrams(text, flags.order)
        values = (f"{name} {result[f'perplexity/{name}']:.1f}" for name in corpus.tests)
        words.append(f"{flags.order}-gram perplexity {', '.join(values)}")
    if corpus.rows and corpus.test_rows:
        result |= measure_classifier(*corpus.split(flags.split), flags, folder)
        words.append(f"majority class {result['accuracy/test@majority']:.1%}")
        words.append(f"naive Bayes {result['accuracy/test']:.1%}{by_seen(result)}")
    if not result:
        raise UserError(f"--data {flags.data}: no test text or test rows found; give more")
    command = f"python baselines.py {shlex.join(sys.argv[1:])}".strip()
    config = {"kind": "baselines", "script": "baselines", "flags": asdict(flags), "build": {}}
    config |= {"command": command, "revision": git_revision(), "code": code_hash(__file__)}
    write_json(path, config | {"versions": versions()})
    seconds = round(time.perf_counter() - started, 2)
    write_json(folder / "result.json", result | {"seconds": seconds, "command": command})
    print(f"{'; '.join(words)}; {seconds:.1f} s, {folder}")


def measure_ngrams(text, longest):
    """Return the entries of result.json on n-grams of a Text, and print them."""
    V, ids = text.tokenizer.get_vocab_size(), text.streams["train"]
    models = {f"{order}-gram": KneserNey(ids, V, order) for order in range(1, longest + 1)}
    result, rows = (
        {"vocab_size": V},
        [("perplexity", *models, "best possible", "tokens", "unknown")],
    )
    for name, stream in text.streams.items():
        if name == "train":
            continue
        n, unknown = len(stream) - 1, batching.share_unknown([stream])
        nats = [-model.log_probabilities(stream).sum() for model in models.values()]
        found = [perplexity(each, n) for each in nats]
        result |= {f"perplexity/{name}@{order}": value for order, value in zip(models, found)}
        result |= {f"perplexity/{name}": found[-1], f"tokens/{name}": n, f"unknown/{name}": unknown}
        result[f"bits_per_byte/{name}"] = nats[-1] / math.log(2) / text.sizes[name]
        if best := text.floor.get(f"perplexity/{name}"):
            result[f"floor/perplexity/{name}"] = best
        cells = (f"{value:,.1f}" if value else "–" for value in (*found, best))
        rows.append((f"  {name}", *cells, f"{n:,}", f"{unknown:.1%}"))
    print(f"{text.name}: {len(ids) - 1:,} training tokens, a vocabulary of {V:,}")
    print(*align(rows), sep="\n")
    return result


def measure_classifier(corpus, seen, note, flags, folder):
    """Return the entries of result.json on naive Bayes and the majority class, print them, and
    write predictions.tsv. corpus, seen, note: what `Corpus.split` returns."""
    tokenizer = train_tokenizer(flags.tokenizer, corpus.texts(), flags.vocab_size)
    # With [BOS], as in the encoder: its pair with the first word tells how sentences begin
    train, test = (
        [[BOS, *ids] for ids in encode(tokenizer, [text for _, text in rows])]
        for rows in (corpus.rows, corpus.test_rows)
    )
    labels, n_class = [label for label, _ in corpus.rows], len(corpus.classes)
    smoothing = choose_smoothing(train, labels, n_class)
    model = NaiveBayes(train, labels, n_class, smoothing)
    answers, majority = (
        Predictions(corpus.test_rows, corpus.classes, torch.from_numpy(scores), torch.tensor(seen))
        for scores in map(model.scores, (test, [[]] * len(test)))  # no words: shares of classes
    )
    result = {"smoothing": smoothing, "rows/test": len(test)} | answers.scores()
    result |= {f"{name}@majority": share for name, share in majority.accuracies().items()}
    result |= answers.accuracies()
    result |= {f"floor/{name}": best for name, best in corpus.floor.items() if name in result}
    print(*([note] if note else []), *answers.describe(), sep="\n")
    answers.write(folder)
    return result


if __name__ == "__main__":
    main(count, Flags)
