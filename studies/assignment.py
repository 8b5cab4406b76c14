"""Run the whole assignment: every part, every position encoding, every figure, and a report.

    python -m studies.assignment --data speeches

Part 1 trains encoder and classifier jointly, part 2 measures the perplexity of a causal decoder,
part 3 compares four position encodings. A frozen pretrained encoder and the baselines are added
for comparison. Each run is a folder of its own. An interrupted assignment continues where it was.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import data
from lab import tables
from lab.command import main
from lab.figures import POSITION_NAMES
from lab.flags import flag
from lab.records import read_metrics, read_result
from studies.jobs import JobFlags, options, run_all
from studies.report import picture, read_table, write_report

POSITIONS = ("learned", "sinusoidal", "alibi", "nope")
NAMES = [POSITION_NAMES[pos] for pos in POSITIONS]


@dataclass
class Flags(JobFlags):
    data: str = flag("speeches", "corpus, as in the training scripts")
    out: str = flag("out/assignment", "folder of all runs, figures and the report")
    seeds: int = flag(1, "seeds of each run", at_least=1, at_most=1000)
    mlm_steps: int = flag(500, "steps of pretraining, 0.5 s each; 0: none", at_least=0)
    split: str = flag(
        "full", "clean: train the classifiers on no sentence of the test set", ("full", "clean")
    )


def assignment(flags):
    started, out = time.perf_counter(), Path(flags.out)
    corpus = data.load(flags.data)
    parts = ["classifier", "frozen"] if corpus.rows and corpus.test_rows else []
    if not flags.mlm_steps:
        parts = parts[:1]
    if corpus.lines and corpus.tests:
        parts.append("lm")

    # Jobs: trainings, classifiers on pretrained encoders, figures
    split = options(split=flags.split)
    trainings = [("baselines", "baselines", [*options(data=flags.data), *split])]
    frozen = []
    for seed in range(flags.seeds):
        for pos in POSITIONS:
            common = options(data=flags.data, threads=1, pos=pos, seed=seed)
            encoder = f"mlm-{pos}-{seed}"
            if "frozen" in parts:
                steps = options(steps=flags.mlm_steps)
                trainings.append((encoder, "train_mlm", [*common, *split, *steps]))
                arguments = [*common, *split, *options(encoder=out / encoder)]
                frozen.append((f"frozen-{pos}-{seed}", "train_classifier", arguments))
            if "lm" in parts:
                trainings.append((f"lm-{pos}-{seed}", "train_lm", common))
            if "classifier" in parts:
                job = (f"classifier-{pos}-{seed}", "train_classifier", [*common, *split])
                trainings.append(job)
    drawn = [f"{part}-{pos}-0" for pos in POSITIONS for part in parts if part != "frozen"]
    figures = [(f"{name}/maps", "attention_maps", [out / name, "--positions"]) for name in drawn]
    for part in parts:
        runs = [out / f"{part}-{pos}-{seed}" for pos in POSITIONS for seed in range(flags.seeds)]
        figures.append((f"compare-{part}", "compare", [*runs, out / "baselines"]))
    run_all(out, (trainings, frozen, figures), flags.jobs)

    # Report
    sections = []
    if "classifier" in parts:
        sections += classification(out, flags, corpus)
    if "frozen" in parts:
        sections += frozen_encoder(out)
    if "lm" in parts:
        sections += language_model(out, corpus)
    sections += attention(out, drawn)
    seeds = ", ".join(map(str, range(flags.seeds)))
    about = (
        f"Seeds: {seeds}. Tables of single runs show seed 0. Every folder beside this file is a "
        "run, with its settings in `config.json` and its command and results in `result.json`."
    )
    write_report(out, f"The assignment on {corpus.name}", [about, *sections])
    n_figures = len(list(out.glob("**/*.png")))
    seconds = time.perf_counter() - started
    print(f"{out / 'report.md'}: report with {n_figures} figures; {seconds:.0f} s")


# ---------------------------------------------------------------------------- the report


def classification(out, flags, corpus):
    removed = ", without those that appear in the test set" if flags.split == "clean" else ""
    return [
        "## Part 1: classification, encoder and classifier trained jointly",
        f"Training rows: {len(corpus.rows):,}{removed}. Test rows: {len(corpus.test_rows):,}, of "
        f"which {sum(corpus.seen()):,} also appear in the training set. Accuracy on those is "
        "partly memory, so the accuracy on unseen test rows is the fairer number. The best epoch "
        "is chosen on held-out training rows.",
        "Test accuracy (%) after each epoch:",
        epochs_table(out),
        read_table(out / "compare-classifier" / "compare.md"),
        picture("compare-classifier/compare.png", "Accuracy over epochs"),
        picture("classifier-alibi-0/confusion.png", "Confusion matrix of the test rows, ALiBi"),
        "Parameters of the parts of the model:",
        parameters_table(out, "classifier"),
    ]


def frozen_encoder(out):
    curves = [
        picture(f"mlm-{pos}-0/curve.png", f"Pretraining, {name}")
        for pos, name in zip(POSITIONS, NAMES)
    ]
    return [
        "### A frozen encoder, pretrained as a masked language model",
        read_table(out / "compare-frozen" / "compare.md"),
        picture("compare-frozen/compare.png", "Accuracy of classifiers on frozen encoders"),
        *curves,
    ]


def language_model(out, corpus):
    parts = [
        "## Part 2: causal language modelling",
        "Perplexity of the whole sets during training:",
    ]
    for pos, name in zip(POSITIONS, NAMES):
        parts += [f"**{name}**", steps_table(out / f"lm-{pos}-0")]
    ngrams = read_result(out / "baselines")
    values = ", ".join(f"{name} {ngrams[f'perplexity/{name}']:.1f}" for name in corpus.tests)
    return [
        *parts,
        "Parameters of the parts of the model:",
        parameters_table(out, "lm"),
        "## Part 3: four position encodings",
        read_table(out / "compare-lm" / "compare.md"),
        picture("compare-lm/compare.png", "Perplexity over steps"),
        f"For comparison, a modified Kneser-Ney n-gram model has a perplexity of {values}.",
    ]


def attention(out, drawn):
    maps = [
        (path.stem, picture(path.relative_to(out).as_posix(), f"{name}: {path.stem}"))
        for name in drawn
        for path in sorted((out / name / "maps").glob("*.png"))
    ]
    return [
        "## Attention maps",
        "Rows are queries, columns are keys, and every row sums to 1. The checks of each run "
        "are in its `maps/maps.json`.",
        *[words for stem, words in maps if not stem.startswith("positions")],
        "## Position encodings",
        *[words for stem, words in maps if stem.startswith("positions")],
    ]


def epochs_table(out):
    """Return the test accuracy of the classifiers: a row per epoch, a column per encoding."""
    runs = [read_metrics(out / f"classifier-{pos}-0") for pos in POSITIONS]
    columns = [[f"{100 * line['accuracy/test']:.1f}" for line in run] for run in runs]
    rows = [[str(i + 1), *cells] for i, cells in enumerate(zip(*columns))]
    return tables.markdown(["epoch", *NAMES], rows)


def steps_table(folder):
    """Return the perplexities of a run: a row per evaluation, a column per set."""
    lines = read_metrics(folder)
    names = [name for name in lines[0] if name.startswith("perplexity/")]
    rows = [[str(line["step"]), *(f"{line[name]:,.1f}" for name in names)] for line in lines]
    return tables.markdown(["step", *(name.removeprefix("perplexity/") for name in names)], rows)


def parameters_table(out, part):
    """Return the numbers of parameters: a row per part of the model, a column per encoding."""
    counts = [read_result(out / f"{part}-{pos}-0")["parameters"] for pos in POSITIONS]
    rows = [[name, *(f"{count[name]:,}" for count in counts)] for name in counts[0]]
    return tables.markdown(["part", *NAMES], rows)


if __name__ == "__main__":
    main(assignment, Flags, __doc__)
