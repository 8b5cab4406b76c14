"""Compare classification recipes by cross-validation: each labelled sentence is tested once.

    python -m studies.crossvalidate --data speeches --folds 5

Training and test rows are put together, without duplicates. The sentences of the tested fold are
neither in the training rows nor in the pretraining text. Finished runs are not repeated.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import torch

from data import name_of
from data.labelled import load_labelled
from lab import tables
from lab.flags import main, require
from lab.predictions import read_predictions
from studies.sweep import SweepFlags, finish, options, run_all

TUNED = ("--tune", "all", "--lr", "1e-4", "--epochs", "5")
RECIPES = {  # description, module, the encoder that it needs from train_mlm.py, flags of the module
    "bayes": ("naive Bayes, words and word pairs", "baselines", "", ()),
    "joint": ("encoder and classifier trained jointly", "train_classifier", "", ()),
    "random": ("classifier on a frozen untrained encoder", "train_classifier", "untrained", ()),
    "frozen": ("classifier on a frozen pretrained encoder", "train_classifier", "pretrained", ()),
    "tuned": ("pretrained encoder, fine-tuned", "train_classifier", "pretrained", TUNED),
}


@dataclass
class Flags(SweepFlags):
    data: str = "speeches"  # corpus, as in the training scripts
    folds: int = 5  # number of folds, each tested once
    recipes: str = ",".join(RECIPES)  # recipes to compare, joined by commas
    pos: str = "alibi"  # position encoding of every encoder
    mlm: str = ""  # more flags for train_mlm.py: --mlm="--steps 500"
    seeds: int = 1  # seeds of each training; the folds are always the same
    out: str = ""  # folder of all runs (default: out/crossvalidate-DATA)


def crossvalidate(flags):
    corpus, chosen = load_labelled(flags.data), flags.recipes.split(",")
    require(set(chosen) <= set(RECIPES), f"--recipes {flags.recipes}: not of {','.join(RECIPES)}")
    out = Path(flags.out or f"out/crossvalidate-{name_of(flags.data)}").expanduser()
    seeds, folds = range(flags.seeds), range(1, flags.folds + 1)

    # Jobs: first the encoders, then the classifiers that use them
    encoders, classifiers, runs = {}, {}, {}  # runs: {(recipe, fold, seed): folder}
    for seed, i, name in product(seeds, folds, chosen):
        _, module, state, more = RECIPES[name]
        words = options(data=flags.data, split=f"{i}/{flags.folds}")
        if module != "baselines":
            words += options(seed=seed, pos=flags.pos, threads=1)
        if state:
            steps = options(steps=0) if state == "untrained" else []
            encoders[f"{state}-{i}-{seed}"] = "train_mlm", [*words, *flags.mlm.split(), *steps]
            more = [*more, *options(encoder=out / f"{state}-{i}-{seed}")]
        folder = f"{name}-{i}" if name == "bayes" else f"{name}-{i}-{seed}"
        classifiers[folder] = module, [*words, *more]
        runs[name, i, seed] = out / folder
    stages = [[(name, *job) for name, job in jobs.items()] for jobs in (encoders, classifiers)]
    run_all(out, stages, flags)

    # Results: accuracies by fold, means over seeds, then those of all seeds together
    results, rows = {}, []
    for name in chosen:
        values = [fmean(accuracy([runs[name, i, s]]) for s in seeds) for i in folds]
        averaged = [accuracy([runs[name, i, s] for s in seeds]) for i in folds]
        results[name] = {"values": values, "averaged": averaged}
        percent, together = ([100 * value for value in each] for each in (values, averaged))
        cells = [tables.spread(percent), *(f"{v:.1f}" for v in percent), tables.spread(together)]
        rows.append([RECIPES[name][0], *cells])
    header = ["recipe", "accuracy (%)", *(f"fold {i}" for i in folds), "all seeds together"]
    caption = f"Accuracy on the distinct labelled sentences of {corpus.name}, ± over the folds. "
    caption += "All seeds together: by the mean of their log-probabilities."
    print(tables.write(out / "crossvalidate", header, rows, caption))
    n = len(corpus.fold(1, 1).test_rows)  # distinct
    finish(out, {"folds": flags.folds, "sentences": n, "accuracy": results})


def accuracy(folders):
    """Return the accuracy of runs with the same test rows together: they answer with the class of
    the highest mean log-probability. Raises UserError for other test rows."""
    tables = [read_predictions(folder) for folder in folders]
    classes, _, gold, *_ = tables[0]
    for folder, table in zip(folders, tables):
        require(table[:3] == tables[0][:3], f"{folder}: has other test rows; leave it out")
    logs = torch.tensor([p for *_, p, _ in tables]).double().clamp(min=1e-9).log().mean(0)
    right = logs.argmax(1) == torch.tensor([classes.index(label) for label in gold])  # (N,)
    return right.double().mean().item()


if __name__ == "__main__":
    main(crossvalidate, Flags)
