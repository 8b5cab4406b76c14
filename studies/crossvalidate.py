"""Compare classification recipes by cross-validation: each labelled sentence is tested once.

    python -m studies.crossvalidate --data speeches --folds 5

Few of the assignment's test sentences are unseen in training, too few to tell recipes apart. Here
training and test rows are put together, without duplicates. The sentences of the tested fold are
neither in the training rows nor in the pretraining text. Finished runs are not repeated.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import torch
import tyro
from scipy.stats import binomtest

from data import name_of
from data.files import UserError
from data.labelled import load_labelled
from lab import tables
from lab.flags import main
from lab.predictions import average_predictions
from studies.sweep import SweepFlags, finish, options, run_all

TEST = "accuracy/test"
TUNED = ("--tune", "all", "--lr", "1e-4", "--epochs", "5")
RECIPES = {  # description, module, the encoder that it needs from train_mlm.py, flags of the module
    "bayes": ("naive Bayes, words and word pairs", "baselines", "", ()),
    "likelihood": ("a decoder per class, by likelihood", "beyond.train_generative", "", ()),
    "joint": ("encoder and classifier trained jointly", "train_classifier", "", ()),
    "random": ("classifier on a frozen untrained encoder", "train_classifier", "untrained", ()),
    "frozen": ("classifier on a frozen pretrained encoder", "train_classifier", "pretrained", ()),
    "tuned": ("pretrained encoder, fine-tuned", "train_classifier", "pretrained", TUNED),
}
CAPTION = (
    "Cross-validated accuracy on the distinct labelled sentences of {}: mean ± sample standard "
    "deviation over the folds. All seeds together: by the mean of their log-probabilities. p: "
    "McNemar's exact test against naive Bayes, for each seed."
)


@dataclass
class Flags(SweepFlags):
    data: str = "speeches"  # corpus, as in the training scripts
    folds: int = 5  # number of folds, each tested once
    recipes: str = ",".join(RECIPES)  # recipes to compare, joined by commas
    pos: str = "alibi"  # position encoding of every encoder
    mlm: str = ""  # more flags for train_mlm.py: --mlm="--steps 500"
    # More flags for the decoders per class, as in --mlm; if repeated, models are averaged
    likelihood: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    seeds: int = 1  # seeds of each training; the folds are always the same
    out: str = ""  # folder of all runs (default: out/crossvalidate-DATA)


def crossvalidate(flags):
    corpus, chosen = load_labelled(flags.data), flags.recipes.split(",")
    if not set(chosen) <= set(RECIPES):
        raise UserError(f"--recipes {flags.recipes}: choose of {','.join(RECIPES)}")
    out = Path(flags.out or f"out/crossvalidate-{name_of(flags.data)}").expanduser()
    seeds, folds = range(flags.seeds), range(1, flags.folds + 1)

    # Jobs: first the encoders, then the classifiers that use them
    encoders, classifiers, runs = {}, {}, {}  # runs: {(recipe, fold, seed): folders}
    for seed, i, name in product(seeds, folds, chosen):
        _, module, state, more = RECIPES[name]
        words = options(data=flags.data, split=f"{i}/{flags.folds}")
        if module != "baselines":
            words += options(seed=seed, pos=flags.pos, threads=1)
        if state:
            steps = options(steps=0) if state == "untrained" else []
            words_of_encoder = [*words, *flags.mlm.split(), *steps]
            encoders[f"{state}-{i}-{seed}"] = "train_mlm", words_of_encoder
            more = [*more, *options(encoder=out / f"{state}-{i}-{seed}")]
        runs[name, i, seed] = []
        for k, kind in enumerate(flags.likelihood or [""] if name == "likelihood" else [""]):
            folder = f"{name}-{i}" if name == "bayes" else f"{name}-{i}-{seed}" + f"-{k}" * (k > 0)
            classifiers[folder] = module, [*words, *more, *kind.split()]
            runs[name, i, seed].append(out / folder)
    stages = [[(name, *job) for name, job in jobs.items()] for jobs in (encoders, classifiers)]
    run_all(out, stages, flags)

    # Results: accuracies by fold, means over seeds, then those of all seeds together
    answers = {key: average_predictions(folders) for key, folders in runs.items()}
    results, rows = {}, []
    for name in chosen:
        values = [fmean(answers[name, i, s].accuracies()[TEST] for s in seeds) for i in folds]
        together = ([run for s in seeds for run in runs[name, i, s]] for i in folds)
        averaged = [average_predictions(folders).accuracies()[TEST] for folders in together]
        p = []  # of McNemar's test on the rows of all folds
        for seed in seeds if "bayes" in chosen and name != "bayes" else []:
            both = ([answers[each, i, seed] for i in folds] for each in (name, "bayes"))
            ours, bayes = (torch.cat([a.predicted == a.labels for a in each]) for each in both)
            first, second = int((ours & ~bayes).sum()), int((bayes & ~ours).sum())
            p.append(binomtest(first, first + second).pvalue if first + second else 1.0)
        results[name] = {"values": values, "averaged": averaged, "p": p}
        percent, together = ([100 * value for value in each] for each in (values, averaged))
        cells = [tables.spread(percent), *(f"{v:.1f}" for v in percent), tables.spread(together)]
        rows.append([RECIPES[name][0], *cells, ", ".join(f"{value:.3g}" for value in p)])
    header = ["recipe", "accuracy (%)", *(f"fold {i}" for i in folds), "all seeds together", "p"]
    print(tables.write(out / "crossvalidate", header, rows, CAPTION.format(corpus.name)))
    n = len(corpus.fold(1, 1).test_rows)  # distinct
    finish(out, {"folds": flags.folds, "sentences": n, "accuracy": results})


if __name__ == "__main__":
    main(crossvalidate, Flags)
