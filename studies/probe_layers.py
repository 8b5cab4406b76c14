"""Which layers of a frozen encoder tell the classes apart, and what pretraining adds over an untrained one of the same size.

    python -m studies.probe_layers out/encoder --data speeches --split clean

For every layer alone and for all together, train_classifier.py is run on the frozen states, of the run and of an
encoder with the same flags and no training; several seeds each. A run that is finished is not run again.
"""

import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from data.files import write_json
from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import new_figure, save, styled
from lab.flags import flag
from lab.load import load_run
from lab.records import read_result
from studies.jobs import run_all

KINDS = {"pretrained": "pretrained", "untrained": "untrained, the same size"}


@dataclass
class Flags:
    run: str = flag("", "run folder of train_mlm.py", positional=True)
    data: str = flag("", "labelled corpus (default: the run's own)")
    split: str = flag("full", "as in train_classifier.py")
    seeds: int = flag(3, "seeds of the classifiers and of the untrained encoders")
    out: str = flag("", "folder of all runs (default: out/layers-RUN)")
    jobs: int = flag(0, "runs at a time, each on one thread; 0: one a core")


def probe(flags):
    require(
        (0 < flags.seeds <= 1000, f"--seeds must be from 1 to 1000, got {flags.seeds}"),
        (flags.jobs >= 0, f"--jobs must not be negative, got {flags.jobs}"),
    )
    source, started = load_run(flags.run, ("mlm",)), time.perf_counter()
    out, settings = Path(flags.out or f"out/layers-{source.folder.name}"), source.config["flags"]
    data, n_layer = flags.data or settings["data"], source.model.body.config.n_layer
    layers = [str(layer) for layer in range(n_layer + 1)] + ["all"]

    # The untrained encoders have the architecture of the run, and new weights.
    same = [
        word
        for name in (
            "pos",
            "alibi",
            "window",
            "n_layer",
            "n_head",
            "n_embd",
            "n_ffn",
            "block_size",
            "activation",
            "init_std",
            "head",
            "tokenizer",
            "vocab_size",
        )
        for word in (f"--{name.replace('_', '-')}", settings[name])
    ]
    same += [
        "--norm-first" if settings["norm_first"] else "--no-norm-first",
        "--data",
        data,
        "--split",
        flags.split,
        "--steps",
        "0",
        "--threads",
        "1",
    ]
    encoders = [
        (f"untrained-{seed}", "train_mlm", [*same, "--seed", seed]) for seed in range(flags.seeds)
    ]
    classifiers = [
        (
            f"{kind}-layer-{layer}-{seed}",
            "train_classifier",
            [
                "--encoder",
                source.folder if kind == "pretrained" else out / f"untrained-{seed}",
                "--data",
                data,
                "--split",
                flags.split,
                "--layers",
                layer,
                "--seed",
                seed,
                "--threads",
                "1",
            ],
        )
        for kind in KINDS
        for layer in layers
        for seed in range(flags.seeds)
    ]
    run_all(out, (encoders, classifiers), flags.jobs)

    # Results
    read = {name: read_result(out / name) for name, _, _ in classifiers}
    part = next(
        name
        for name in ("accuracy/unseen", "accuracy/test")
        if all(name in result for result in read.values())
    )
    result, rows, lines = {}, [], {kind: [] for kind in KINDS}
    for layer in layers:
        cells = []
        for kind in KINDS:
            for column in ("test", "unseen"):
                values = [
                    100
                    * read[f"{kind}-layer-{layer}-{seed}"].get(f"accuracy/{column}", float("nan"))
                    for seed in range(flags.seeds)
                ]
                mean, deviation = (
                    statistics.fmean(values),
                    statistics.stdev(values) if len(values) > 1 else 0.0,
                )
                cells.append(tables.spread(values))
                result[f"{kind}/layer-{layer}/{column}"] = {
                    "mean": mean,
                    "deviation": deviation,
                    "values": values,
                }
                if f"accuracy/{column}" == part:
                    lines[kind].append((mean, deviation))
        rows.append(["embeddings" if layer == "0" else layer, *cells])
    caption = (
        f"Accuracy of classifiers on the frozen states of {source.folder.name} and of untrained encoders, "
        f"--split {flags.split}: mean ± sample standard deviation over {flags.seeds} "
        f"seed{'s' * (flags.seeds > 1)} of the classifier."
    )
    text = tables.write(
        out / "layers",
        [
            "layer",
            *(
                f"{words}, {column} (%)"
                for words in KINDS.values()
                for column in ("test", "unseen")
            ),
        ],
        rows,
        caption,
    )
    write_json(
        out / "result.json",
        result | {"command": shlex.join(["python", "-m", "studies.probe_layers", *sys.argv[1:]])},
    )
    draw(out, layers, lines, part)
    print(text)
    print(
        f"{out}: layers.md, layers.tex, layers.png and result.json; {time.perf_counter() - started:.0f} s"
    )


@styled
def draw(out, layers, lines, part):
    """layers.png: accuracy over layers, "all" apart at the right."""
    figure, axis = new_figure(figsize=(0.6 * len(layers) + 2.4, 3))
    for color, (kind, points) in enumerate(lines.items()):
        xs = list(range(len(layers) - 1))
        means, deviations = zip(*points)
        axis.errorbar(
            xs,
            means[:-1],
            deviations[:-1],
            fmt="o-",
            capsize=3,
            color=f"C{color}",
            label=KINDS[kind],
        )
        axis.errorbar(
            [len(layers) - 0.5 + 0.1 * color],
            means[-1:],
            deviations[-1:],
            fmt="s",
            capsize=3,
            color=f"C{color}",
        )
    axis.set_xticks(
        [*range(len(layers) - 1), len(layers) - 0.45], ["embed-\ndings", *layers[1:-1], "all"]
    )
    axis.set(
        xlabel="state that is pooled, by block",
        ylabel=f"accuracy, {part.removeprefix('accuracy/')} rows (%)",
    )
    axis.legend(frameon=False)
    save(figure, out / "layers.png")


if __name__ == "__main__":
    main(probe, Flags, __doc__.split("\n")[0])
