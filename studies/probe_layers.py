"""Measure which layers of a frozen encoder tell the classes apart, and what pretraining adds.

    python -m studies.probe_layers out/encoder --data speeches --split clean

train_classifier.py reads the frozen states of each layer alone and of all together. It also reads
those of encoders with the same configuration and vocabulary but random weights (--untrained).
Several seeds each. Finished runs are not repeated.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from data import name_of
from lab import tables
from lab.command import main
from lab.comparison.configurations import mean_and_deviation, with_values
from lab.figures import POSITION_COLORS, new_figure, save, styled
from lab.flags import flag
from lab.load import read_run
from lab.records import read_result
from studies.jobs import JobFlags, options, run_all
from studies.probes import corpus_of
from studies.report import finish

ENCODERS = {"pretrained": [], "untrained": ["--untrained"]}  # flags of train_classifier.py


@dataclass
class Flags(JobFlags):
    run: str = flag("", "run folder of train_mlm.py", positional=True)
    data: str = flag("", "labelled corpus (default: the run's own)")
    split: str = flag("full", "as in train_classifier.py")
    seeds: int = flag(3, "seeds of the classifiers", at_least=1, at_most=1000)
    out: str = flag("", "folder of all runs (default: out/layers-RUN)")


def probe(flags):
    source, started = read_run(flags.run, ("mlm",)), time.perf_counter()
    out = Path(flags.out or f"out/layers-{source.folder.name}")
    corpus = corpus_of(source, flags.data)
    layers = [*map(str, range(source.model.body.config.n_layer + 1)), "all"]

    common = options(encoder=source.folder, data=corpus, split=flags.split, threads=1)
    jobs = [
        (
            f"{kind}-layer-{layer}-{seed}",
            "train_classifier",
            [*common, *more, *options(layers=layer, seed=seed)],
        )
        for kind, more in ENCODERS.items()
        for layer in layers
        for seed in range(flags.seeds)
    ]
    run_all(out, (jobs,), flags)

    # Results: percentages of all seeds by "pretrained/layer-1/test"
    runs = {name: read_result(out / name) for name, _, _ in jobs}
    parts = [p for p in ("test", "unseen") if all(f"accuracy/{p}" in r for r in runs.values())]
    values = {
        f"{kind}/layer-{layer}/{part}": [
            100 * runs[f"{kind}-layer-{layer}-{seed}"][f"accuracy/{part}"]
            for seed in range(flags.seeds)
        ]
        for kind in ENCODERS
        for layer in layers
        for part in parts
    }
    title = f"{source.folder.name}, data {name_of(corpus)}"
    color = POSITION_COLORS[source.model.body.config.pos]
    draw(out, title, color, layers, values, parts[-1])
    print(write_table(out, source.folder.name, flags, layers, values, parts))
    result = {name: with_values(percentages) for name, percentages in values.items()}
    finish(flags, out, started, result, ("layers.md", "layers.tex", "layers.png"))


def write_table(out, run_name, flags, layers, values, parts):
    """Write layers.md and layers.tex, and return the Markdown."""
    columns = [(kind, part) for kind in ENCODERS for part in parts]
    rows = [
        [
            "embeddings" if layer == "0" else layer,
            *(tables.spread(values[f"{kind}/layer-{layer}/{part}"]) for kind, part in columns),
        ]
        for layer in layers
    ]
    caption = (
        f"Accuracy of classifiers on the frozen states of {run_name} and of untrained encoders of "
        f"the same configuration, --split {flags.split}"
    )
    if flags.seeds > 1:
        caption += f": mean ± sample standard deviation over {flags.seeds} seeds"
    header = ["layer", *((kind, f"{part} (%)") for kind, part in columns)]
    return tables.write(out / "layers", header, rows, caption + ".")


@styled()
def draw(out, title, color, layers, values, part):
    """Draw layers.png: accuracy over layers, dotted for the untrained encoder."""
    figure, axis = new_figure(figsize=(0.6 * len(layers) + 2.8, 3))
    last = len(layers) - 1
    for i, kind in enumerate(ENCODERS):
        points = [values[f"{kind}/layer-{layer}/{part}"] for layer in layers]
        means, deviations = zip(*map(mean_and_deviation, points))
        deviations = [deviation or 0.0 for deviation in deviations]
        filling = color if kind == "pretrained" else "white"
        style = dict(capsize=3, color=color, markerfacecolor=filling)
        line = "o-" if kind == "pretrained" else "o:"
        axis.errorbar(range(last), means[:-1], deviations[:-1], fmt=line, label=kind, **style)
        axis.errorbar([last + 0.4 + 0.2 * i], means[-1:], deviations[-1:], fmt="s", **style)
    axis.set_xticks([*range(last), last + 0.5], ["embed-\ndings", *layers[1:-1], "all\nlayers"])
    rows = "unseen test rows" if part == "unseen" else "test rows"
    axis.set(xlabel="layer that the classifier reads", ylabel=f"accuracy, {rows} (%)")
    axis.set_title(title, parse_math=False)
    axis.legend(title="encoder", fontsize=8)
    save(figure, out / "layers.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__)
