"""Compare classification recipes by cross-validation: each labelled sentence is tested once.

    python -m studies.crossvalidate --data speeches --folds 5

Training and test rows are put together, without duplicates. The sentences of the tested fold are
neither in the training rows nor in the pretraining text. Finished runs are not repeated.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from data import name_of
from data.labelled import load_labelled
from data.leaks import make_fold
from lab import tables
from lab.flags import Data, Folder, main, require
from lab.predictions import read_predictions
from studies.sweep import Job, SweepFlags, finish, options, run_all


class Recipe(NamedTuple):
    """A way to classify."""

    description: str
    module: str = "train_classifier"
    encoder: str = ""  # that it needs from train_mlm.py: "", untrained or pretrained
    words: tuple = ()  # flags of the module


RECIPES = {
    "bayes": Recipe("naive Bayes, words and word pairs", "baselines"),
    "joint": Recipe("encoder and classifier trained jointly"),
    "random": Recipe("classifier on a frozen untrained encoder", encoder="untrained"),
    "frozen": Recipe("classifier on a frozen pretrained encoder", encoder="pretrained"),
    "tuned": Recipe(
        "pretrained encoder, fine-tuned",
        encoder="pretrained",
        words=("--tune", "all", "--lr", "1e-4", "--epochs", "5"),
    ),
}


@dataclass
class Flags(SweepFlags):
    data: Data = "speeches"  # corpus, as in the training scripts
    folds: int = 5  # number of folds, each tested once
    recipes: str = ",".join(RECIPES)  # recipes to compare, joined by commas
    pos: str = "alibi"  # position encoding of every encoder
    mlm: str = ""  # more flags for train_mlm.py: --mlm="--steps 500"
    seeds: int = 1  # seeds of each training; the folds are always the same
    out: Folder = ""  # folder of all runs; '': out/crossvalidate-DATA


def crossvalidate(flags):
    corpus = load_labelled(flags.data)
    names = flags.recipes.split(",")
    problem = f"--recipes {flags.recipes}: not of {','.join(RECIPES)}"
    require(set(names) <= set(RECIPES), problem)
    out = Path(flags.out or f"out/crossvalidate-{name_of(flags.data)}").expanduser()
    encoders, classifiers, runs = make_jobs(flags, names, out)
    run_all(out, [encoders, classifiers], flags)
    results = measure(flags, names, runs)
    write_table(out / "crossvalidate", results, flags.folds, corpus.name)
    n = len(make_fold(corpus, 1, 1).test_rows)  # distinct
    finish(out, {"folds": flags.folds, "sentences": n, "accuracy": results})


def make_jobs(flags, names, out):
    """Return the jobs of the encoders and of the classifiers, and {(recipe, fold, seed): folder of
    the classifier}."""
    encoders = {}  # folder: job; recipes share encoders, and seeds share naive Bayes
    classifiers = {}
    runs = {}
    for seed, fold, name in product(range(flags.seeds), range(1, flags.folds + 1), names):
        recipe = RECIPES[name]
        words = options(data=flags.data, split=f"{fold}/{flags.folds}")
        folder = f"{name}-{fold}"
        if recipe.module != "baselines":
            words += options(seed=seed, pos=flags.pos, threads=1)
            folder += f"-{seed}"
        own_words = list(recipe.words)
        if recipe.encoder:
            encoder = f"{recipe.encoder}-{fold}-{seed}"
            pretraining = words + flags.mlm.split()
            if recipe.encoder == "untrained":
                pretraining += options(steps=0)
            encoders[encoder] = Job(encoder, "train_mlm", pretraining)
            own_words += options(encoder=out / encoder)
        classifiers[folder] = Job(folder, recipe.module, words + own_words)
        runs[name, fold, seed] = out / folder
    return list(encoders.values()), list(classifiers.values()), runs


def measure(flags, names, runs):
    """Return {recipe: {"values": mean accuracy over seeds in each fold, "averaged": accuracy of all
    seeds together in each fold}}. runs: {(recipe, fold, seed): folder}."""
    results = {}
    for name in names:
        values = []
        averaged = []
        for fold in range(1, flags.folds + 1):
            folders = [runs[name, fold, seed] for seed in range(flags.seeds)]
            values.append(fmean(accuracy([folder]) for folder in folders))
            averaged.append(accuracy(folders))
        results[name] = {"values": values, "averaged": averaged}
    return results


def write_table(stem, results, n_fold, corpus_name):
    """Write and print the table of the results of `measure`."""
    rows = []
    for name, result in results.items():
        values = [100 * value for value in result["values"]]
        averaged = [100 * value for value in result["averaged"]]
        folds = [f"{value:.1f}" for value in values]
        row = [RECIPES[name].description, tables.spread(values), *folds, tables.spread(averaged)]
        rows.append(row)
    numbers = [f"fold {i}" for i in range(1, n_fold + 1)]
    header = ["recipe", "accuracy (%)", *numbers, "all seeds together"]
    caption = f"Accuracy on the distinct labelled sentences of {corpus_name}, ± over the folds. "
    caption += "All seeds together: by the mean of their log-probabilities."
    print(tables.write(stem, header, rows, caption))


def accuracy(folders):
    """Return the accuracy of runs with the same test rows together: they answer with the class of
    the highest mean log-probability. Raises UserError for other test rows."""
    logs = []  # of each run (N, n_class)
    expected = read_predictions(folders[0])[:3]  # classes, texts, gold
    for folder in folders:
        *rows, _, probabilities, _ = read_predictions(folder)
        require(tuple(rows) == tuple(expected), f"{folder}: has other test rows; leave it out")
        logs.append(torch.tensor(probabilities).double().clamp(min=1e-9).log())
    classes, _, gold = expected
    answers = torch.stack(logs).mean(0).argmax(1)  # (N,)
    right = answers == torch.tensor([classes.index(label) for label in gold])
    return right.double().mean().item()


if __name__ == "__main__":
    main(crossvalidate, Flags)
