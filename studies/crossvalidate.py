"""Classification recipes compared by cross-validation: every distinct labelled sentence is a test row once.

    python -m studies.crossvalidate --data speeches --folds 5

The assignment's own test set has few sentences that do not also stand in the training data, too few to tell recipes apart.
Here training and test rows are put together, doubles are dropped, and what is tested stands in no training row and
no pretraining text. Each run is a folder of its own; one that is finished is not run again.
"""

import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import data
from data.files import write_json
from lab import tables
from lab.command import main
from lab.errors import UserError, require
from lab.figures import new_figure, save, styled
from lab.flags import flag
from lab.records import read_result
from studies.jobs import run_all

# name: (what it is, whether it needs an encoder of train_mlm.py, the flags of train_classifier.py)
RECIPES = {
    "bayes": ("naive Bayes, words and word pairs", "", ()),
    "joint": ("encoder and classifier trained jointly", "", ()),
    "random": ("classifier on a frozen untrained encoder", "untrained", ()),
    "frozen": ("classifier on a frozen pretrained encoder", "pretrained", ()),
    "tuned": (
        "pretrained encoder, fine-tuned",
        "pretrained",
        ("--tune", "all", "--lr", "1e-4", "--epochs", "5"),
    ),
}


@dataclass
class Flags:
    data: str = flag("speeches", "corpus, as in the training scripts")
    folds: int = flag(5, "parts of the cross-validation")
    recipes: str = flag(",".join(RECIPES), "which of them, joined by commas")
    pos: str = flag("alibi", "of every encoder", ("learned", "sinusoidal", "alibi", "rope", "nope"))
    mlm: str = flag("", "more flags for train_mlm.py, in quotes, e.g. '--steps 500'")
    seed: int = flag(0, "of the trainings; the parts are always the same")
    out: str = flag("", "folder of all runs (default: out/crossvalidate-DATA)")
    jobs: int = flag(0, "runs at a time, each on one thread; 0: one a core")


def crossvalidate(flags):
    chosen = [name.strip() for name in flags.recipes.split(",")]
    require(
        (flags.folds > 1, f"--folds must be at least 2, got {flags.folds}"),
        (flags.jobs >= 0, f"--jobs must not be negative, got {flags.jobs}"),
        (
            all(name in RECIPES for name in chosen),
            f"--recipes {flags.recipes}: must be of {', '.join(RECIPES)}, joined by commas",
        ),
    )
    corpus = data.load(flags.data)
    n_rows = len(corpus.rows + corpus.test_rows)
    require(
        (
            corpus.rows and corpus.test_rows,
            f"--data {flags.data}: holds no labelled rows; give a corpus with train_CLS.tsv or a .tsv",
        ),
        (
            flags.folds <= max(2, n_rows),
            f"--folds {flags.folds}: {flags.data} has only {n_rows} labelled rows; give fewer",
        ),
    )
    try:
        mlm = shlex.split(flags.mlm)
    except ValueError as error:
        raise UserError(f"--mlm {flags.mlm}: {error}; close the quotation") from None
    out, started = (
        Path(flags.out or f"out/crossvalidate-{Path(flags.data).resolve().stem}"),
        time.perf_counter(),
    )

    # What to run: encoders first, since the rest needs them.
    encoders, classifiers = [], []
    for i in range(1, flags.folds + 1):
        split = ["--data", flags.data, "--split", f"{i}/{flags.folds}"]
        common = [*split, "--seed", flags.seed, "--pos", flags.pos, "--threads", "1"]
        for state in sorted({RECIPES[name][1] for name in chosen} - {""}):
            steps = ["--steps", "0"] if state == "untrained" else []
            encoders.append((f"{state}-{i}", "train_mlm", [*common, *mlm, *steps]))
        for name in chosen:
            _, state, more = RECIPES[name]
            if name == "bayes":
                classifiers.append((f"bayes-{i}", "baselines", split))
            else:
                classifiers.append(
                    (
                        f"{name}-{i}",
                        "train_classifier",
                        [*common, *more, *(["--encoder", out / f"{state}-{i}"] if state else [])],
                    )
                )
    run_all(out, (encoders, classifiers), flags.jobs)

    # Results
    n_distinct = sum(
        len(corpus.split(f"{i}/{flags.folds}")[0].test_rows) for i in range(1, flags.folds + 1)
    )
    values = {
        name: [read_result(out / f"{name}-{i}")["accuracy/test"] for i in range(1, flags.folds + 1)]
        for name in chosen
    }
    result = {
        name: {"mean": statistics.fmean(v), "deviation": statistics.stdev(v), "values": v}
        for name, v in values.items()
    }
    caption = (
        f"Accuracy on {n_distinct:,} distinct labelled sentences of {corpus.name}, {flags.folds}-fold cross-validation: "
        "mean ± sample standard deviation over the parts. No part's sentences are trained or pretrained on when it is "
        "the test set."
    )
    text = tables.write(
        out / "crossvalidate",
        ["recipe", "accuracy (%)", *(f"part {i}" for i in range(1, flags.folds + 1))],
        [
            [
                RECIPES[name][0],
                tables.spread([100 * v for v in vs]),
                *(f"{100 * v:.1f}" for v in vs),
            ]
            for name, vs in values.items()
        ],
        caption,
    )
    write_json(
        out / "result.json",
        {
            "folds": flags.folds,
            "sentences": n_distinct,
            **{f"accuracy/{name}": r for name, r in result.items()},
            "command": shlex.join(["python", "-m", "studies.crossvalidate", *sys.argv[1:]]),
        },
    )
    draw(out, result)
    print(text)
    print(
        f"{out}: crossvalidate.md, crossvalidate.tex, crossvalidate.png and result.json; "
        f"{time.perf_counter() - started:.0f} s"
    )


@styled
def draw(out, result):
    """crossvalidate.png: a dot for each part and a bar at the mean."""
    figure, axis = new_figure(figsize=(6, 0.45 * len(result) + 0.9))
    for row, (name, r) in enumerate(result.items()):
        axis.plot(
            [100 * v for v in r["values"]],
            [row] * len(r["values"]),
            "o",
            markersize=4,
            alpha=0.7,
            color=f"C{row}",
        )
        axis.plot([100 * r["mean"]], [row], "|", markersize=18, markeredgewidth=2, color=f"C{row}")
    axis.set_yticks(range(len(result)), [RECIPES[name][0] for name in result])
    axis.set_ylim(len(result) - 0.5, -0.5)
    axis.set(xlabel="accuracy (%): a dot for each part left out, the bar is their mean")
    save(figure, out / "crossvalidate.png")


if __name__ == "__main__":
    main(crossvalidate, Flags, __doc__.split("\n")[0])
