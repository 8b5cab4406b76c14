"""Combine classifiers: predict the class with the highest mean log-probability."""

import re

from lab.comparison.configurations import Reference, mean_and_deviation
from lab.errors import require
from lab.predictions import average_predictions


def answer_together(configurations, out):
    """Return what all configurations answer together, as a Reference with a value for each seed.

    A single configuration answers with all its seeds at once. The answers are written to
    out/together-SEED/predictions.tsv. Raises UserError for a single run and if the configurations
    share no seed, and DataError for runs without predictions or with other test rows.
    """
    first, *others = configurations
    lone = not others and len(first.runs) == 1
    require((not lone, "--together: a single run cannot be averaged; name more runs"))
    groups = {"": list(first.folders.values())}
    if others:
        shared = [seed for seed in first.folders if all(seed in c.folders for c in others)]
        groups = {seed: [c.folders[seed] for c in configurations] for seed in shared}
    problem = "--together: the configurations share no seed; give runs with the same seeds"
    require((groups, problem))

    folders, numbers = {}, []
    for seed, members in groups.items():
        predictions = average_predictions(members)
        folders[seed] = out / re.sub(r"\W+", "-", f"together-{seed}").strip("-")
        folders[seed].mkdir(parents=True, exist_ok=True)
        predictions.write(folders[seed])
        macro_f1 = {"macro_f1/test": predictions.scores()["macro_f1/test"]}
        numbers.append(predictions.accuracies() | macro_f1)
    spread = {name: mean_and_deviation([each[name] for each in numbers]) for name in numbers[0]}
    return Reference(
        "together" if others else f"together ({len(first.runs)} runs)",
        {name: mean for name, (mean, _) in spread.items()},
        style=(0, (3, 1, 1, 1)),
        folders=folders,
        deviations={name: deviation for name, (_, deviation) in spread.items()},
        seeds=", ".join(groups) or first.seeds,
    )
