"""Compare classification recipes by cross-validation: each labelled sentence is tested once.

    python -m studies.crossvalidate --data speeches --folds 5

Few of the assignment's test sentences are unseen in training, too few to tell recipes apart. Here
training and test rows are put together, and duplicates are removed. The sentences of the tested
fold are neither in the training rows nor in the pretraining text.

Each run is a folder of its own. Finished runs are not repeated.
"""

import itertools
import shlex
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from data import name_of
from data.labelled import load_labelled
from lab import tables
from lab.command import main
from lab.comparison import mcnemar
from lab.comparison.configurations import with_values
from lab.errors import UserError, require
from lab.figures import new_figure, save, styled
from lab.flags import flag, known_names
from lab.predictions import average_predictions
from model import POSITIONS
from studies.jobs import JobFlags, options, run_all
from studies.report import finish

CLASSIFIER = "train_classifier"
# name: (description, module, the encoder it needs from train_mlm.py, flags of the module)
RECIPES = {
    "bayes": ("naive Bayes, words and word pairs", "baselines", "", ()),
    "likelihood": ("a decoder per class, by likelihood", "beyond.train_generative", "", ()),
    "joint": ("encoder and classifier trained jointly", CLASSIFIER, "", ()),
    "random": ("classifier on a frozen untrained encoder", CLASSIFIER, "untrained", ()),
    "frozen": ("classifier on a frozen pretrained encoder", CLASSIFIER, "pretrained", ()),
    "tuned": (
        "pretrained encoder, fine-tuned",
        CLASSIFIER,
        "pretrained",
        ("--tune", "all", "--lr", "1e-4", "--epochs", "5"),
    ),
}


@dataclass
class Flags(JobFlags):
    data: str = flag("speeches", "corpus, as in the training scripts")
    folds: int = flag(5, "number of folds, each tested once", at_least=2)
    recipes: str = flag(",".join(RECIPES), "recipes to compare, joined by commas")
    pos: str = flag("alibi", "position encoding of every encoder", POSITIONS)
    mlm: str = flag("", "more flags for train_mlm.py, in quotes: '--steps 500'")
    likelihood: list[str] = flag(
        (), "more flags for the decoders per class, in quotes; if repeated, models are averaged"
    )
    seeds: int = flag(1, "seeds of each training; the folds are always the same", at_least=1)
    out: str = flag("", "folder of all runs (default: out/crossvalidate-DATA)")


def crossvalidate(flags):
    started = time.perf_counter()
    chosen, corpus = known_names(flags, "recipes", RECIPES), load_labelled(flags.data)
    n_distinct = len(corpus.fold(1, 1).test_rows)
    problem = f"--folds {flags.folds}: {flags.data} has only {n_distinct} distinct labelled rows"
    require((flags.folds <= n_distinct, f"{problem}; give fewer"))
    mlm = in_quotes("--mlm", flags.mlm)
    kinds = [in_quotes("--likelihood", text) for text in flags.likelihood or [""]]
    out = Path(flags.out or f"out/crossvalidate-{name_of(flags.data)}")
    seeds, folds = range(flags.seeds), range(1, flags.folds + 1)

    # Jobs: first the encoders, then the classifiers that use them
    encoders, classifiers = {}, {}  # {folder: (module, flags)}
    folders = defaultdict(list)  # {(recipe, fold, seed): runs that answer together}
    for seed, i in itertools.product(seeds, folds):
        split = options(data=flags.data, split=f"{i}/{flags.folds}")
        common = [*split, *options(seed=seed, pos=flags.pos, threads=1)]
        for state in sorted({RECIPES[name][2] for name in chosen} - {""}):
            steps = options(steps=0) if state == "untrained" else []
            encoders[folder(state, i, seed)] = "train_mlm", [*common, *mlm, *steps]
        for name in chosen:
            _, module, state, more = RECIPES[name]
            encoder = options(encoder=out / folder(state, i, seed)) if state else []
            given = split if module == "baselines" else [*common, *more, *encoder]
            for k, kind in enumerate(kinds if name == "likelihood" else [[]]):
                classifiers[folder(name, i, seed, k)] = module, [*given, *kind]
                folders[name, i, seed].append(out / folder(name, i, seed, k))
    stages = [[(name, *job) for name, job in jobs.items()] for jobs in (encoders, classifiers)]
    run_all(out, stages, flags)

    def answer(name, fold, seeds):
        """Return the Predictions of a recipe on a fold, those of several seeds averaged."""
        runs = [run for seed in seeds for run in folders[name, fold, seed]]
        return average_predictions(list(dict.fromkeys(runs)))  # naive Bayes has one for all seeds

    def accuracy(*which):
        return answer(*which).accuracies()["accuracy/test"]

    # Results
    result = {}
    for name in chosen:
        values = [statistics.fmean(accuracy(name, i, [seed]) for seed in seeds) for i in folds]
        averaged = [accuracy(name, i, seeds) for i in folds]
        result[name] = with_values(values) | {"averaged": averaged}
    draw(out, corpus.name, result)
    tests = compare_with_bayes(chosen, folds, seeds, answer)
    print(write_table(out, corpus.name, n_distinct, result, flags.seeds, mcnemar.describe(tests)))
    numbers = {f"accuracy/{name}": r for name, r in result.items()} | {"mcnemar": tests}
    files = ("crossvalidate.md", "crossvalidate.tex", "crossvalidate.png")
    about = {"folds": flags.folds, "seeds": flags.seeds, "sentences": n_distinct}
    finish(flags, out, started, about | numbers, files)


def folder(name, fold, seed, kind=0):
    """Return the folder of a run. Naive Bayes has no seeds; kind: which --likelihood."""
    run = f"{name}-{fold}" if name == "bayes" else f"{name}-{fold}-{seed}"
    return f"{run}-{kind}" if kind else run


def compare_with_bayes(chosen, folds, seeds, answer):
    """Return McNemar's test of each recipe against naive Bayes, on the rows of all folds."""
    if "bayes" not in chosen:
        return []

    def rows(name, seed):
        found = [answer(name, i, [seed]) for i in folds]
        pairs = [zip(one.labels.tolist(), one.predicted.tolist()) for one in found]
        return [("", *pair) for fold in pairs for pair in fold]

    bayes = rows("bayes", 0)
    return [
        {
            "first": RECIPES[name][0],
            "second": RECIPES["bayes"][0],
            "results": [
                {"seed": str(seed)} | mcnemar.compare_rows(rows(name, seed), bayes)
                for seed in seeds
            ],
        }
        for name in chosen
        if name != "bayes"
    ]


def in_quotes(name, text):
    """Return the flags in the text of the flag `name`. UserError for an open quotation in it."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"{name} {text}: {error}; close the quotation") from None


def write_table(out, data_name, n_distinct, result, seeds, tested):
    """Write crossvalidate.md and .tex, and return the Markdown."""
    n = len(next(iter(result.values()))["values"])
    header = ["recipe", "accuracy (%)", *(f"fold {i + 1}" for i in range(n)), "seeds averaged"]
    rows = []
    for name, r in result.items():
        percent, averaged = ([100 * v for v in r[key]] for key in ("values", "averaged"))
        cells = [tables.spread(percent), *(f"{v:.1f}" for v in percent), tables.spread(averaged)]
        rows.append([RECIPES[name][0], *cells])
    averaged = "Last column: of all seeds together, by the mean of their log-probabilities. "
    if seeds == 1:  # nothing to average
        header, rows, averaged = header[:-1], [row[:-1] for row in rows], ""
    caption = (
        f"Accuracy on {n_distinct:,} distinct labelled sentences of {data_name}, {n}-fold "
        "cross-validation: mean ± sample standard deviation over the folds "
        f"({seeds} seed{'s' * (seeds > 1)} each). {averaged}The sentences of a tested fold are "
        "removed from its training rows and its pretraining text."
    )
    return tables.write(out / "crossvalidate", header, rows, caption, more=tested)


@styled()
def draw(out, data_name, result):
    """Draw crossvalidate.png: a dot for each fold, and a bar at their mean."""
    figure, axis = new_figure(figsize=(6, 0.45 * len(result) + 1.1))
    for row, r in enumerate(result.values()):
        shares = [100 * v for v in r["values"]]
        axis.plot(shares, [row] * len(shares), "o", markersize=4, alpha=0.6, color="0.4")
        axis.plot([100 * r["mean"]], [row], "|", markersize=18, markeredgewidth=2, color="0.2")
    axis.set_yticks(range(len(result)), [RECIPES[name][0] for name in result])
    axis.set_ylim(len(result) - 0.5, -0.5)
    axis.set_xlabel("accuracy (%); dots: folds, bar: their mean")
    axis.set_title(f"Classification of {data_name}, cross-validation", loc="left")
    save(figure, out / "crossvalidate.png")


if __name__ == "__main__":
    main(crossvalidate, Flags, __doc__)
