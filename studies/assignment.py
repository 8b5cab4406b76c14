"""Run the whole assignment: every part, every position encoding, every figure, and a report.

    python -m studies.assignment --data speeches

Part 1 trains encoder and classifier jointly, part 2 measures the perplexity of a causal decoder,
part 3 explores ALiBi: against other encodings, on longer texts, in its three forms for an encoder.
"""

import base64
import struct
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import jinja2

import data
from data.files import write_text
from lab import tables
from lab.flags import main
from lab.load import read_result
from model import POSITIONS
from studies.sweep import SweepFlags, options, run_all

COMPARED = ("learned", "sinusoidal", "alibi", "rope", "nope")
LENGTHS = "32,64,128,256"  # of evaluation: 1, 2, 4 and 8 times the blocks of training
FORMS = ("offset", "symmetric", "one-sided", "nope")  # of ALiBi in an encoder, and without it
# The encoders that compare the forms of ALiBi: of the assignment's size, trained for 20 s each
ENCODER = options(n_layer=4, n_head=2, n_embd=64, n_ffn=100, activation="relu", head="linear")
ENCODER += options(init_std=0.05, dropout=0, lr=2e-3, warmup=40, steps=400)


@dataclass
class Flags(SweepFlags):
    data: str = "speeches"  # corpus, as in the training scripts
    out: str = "out/assignment"  # folder of all runs, figures and the report
    seeds: int = 1  # seeds of each run
    mlm_steps: int = 500  # steps of pretraining, 0.5 s each; 0: no frozen encoders
    split: Literal["full", "clean"] = "full"  # clean: train classifiers on no test sentence


def assignment(flags):
    out, corpus = Path(flags.out).expanduser(), data.load(flags.data)
    parts = ["classifier"] if corpus.test_rows else []
    parts += ["frozen"] if parts and flags.mlm_steps else []
    parts += ["lm"] if corpus.tests else []
    run_all(out, stages(flags, out, corpus, parts), flags)
    write_report(flags, out, corpus, parts)
    print(f"{out / 'report.html'}; its tables as LaTeX and Markdown in tables/")


def stages(flags, out, corpus, parts):
    """Return the jobs: trainings, classifiers on pretrained encoders, figures."""
    split, seeds = options(split=flags.split), range(flags.seeds)
    trainings, frozen = [("baselines", "baselines", options(data=flags.data) + split)], []
    for seed, pos in product(seeds, COMPARED):
        common, run = options(data=flags.data, threads=1, seed=seed, pos=pos), f"{pos}-{seed}"
        if "frozen" in parts:
            steps = options(steps=flags.mlm_steps)
            trainings.append((f"mlm-{run}", "train_mlm", common + split + steps))
            words = common + split + options(encoder=out / f"mlm-{run}")
            frozen.append((f"frozen-{run}", "train_classifier", words))
            if pos == "alibi":  # the same encoder with random weights, for comparison
                frozen.append((f"untrained-{run}", "train_classifier", [*words, "--untrained"]))
        if "lm" in parts:
            longer = [] if POSITIONS[pos].ends else options(eval_block=LENGTHS)
            trainings.append((f"lm-{run}", "train_lm", common + longer))
        if "classifier" in parts:
            trainings.append((f"classifier-{run}", "train_classifier", common + split))
            if pos == "alibi":
                trainings.append((f"likelihood-{run}", "beyond.train_generative", common + split))
    for seed, form in product(seeds, FORMS):
        how = options(pos="nope") if form == "nope" else options(pos="alibi", alibi=form)
        how = options(data=flags.data, threads=1, seed=seed) + how
        how += split if "classifier" in parts else []
        trainings.append((f"form-{form}-{seed}", "train_mlm", how + ENCODER))
    lines = [line for part in corpus.tests.values() for line in part] or corpus.texts()
    short = [f"--text={line}" for line in lines if 5 <= len(line.split()) <= 16]
    looks, figures = ["--positions", "--html", *short[:1]], []
    for part in parts:
        for run in [f"{part}-{pos}-0" for pos in COMPARED if part != "frozen"]:
            figures.append((f"maps-{run}", "attention_maps", [out / run, *looks]))
        runs = [out / f"{part}-{pos}-{seed}" for pos in COMPARED for seed in seeds]
        runs += [out / f"untrained-alibi-{seed}" for seed in seeds if part == "frozen"]
        figures.append((f"compare-{part}", "compare", [*runs, out / "baselines"]))
    return trainings, frozen, figures


def write_report(flags, out, corpus, parts):
    """Write report.html, which needs no other file and no network, and its tables into tables/."""
    found = collect_tables(flags, out, corpus, parts)
    (out / "tables").mkdir(exist_ok=True)

    def table(name, caption):
        tables.write(out / "tables" / name, *found[name], caption)
        return found[name]

    def picture(pattern):
        """Return the first PNG of a pattern as base64, and its width on paper in CSS pixels."""
        content = min(out.glob(pattern)).read_bytes()
        width = struct.unpack(">I", content[16:20])[0] * 96 // 150  # figures have 150 dpi
        return base64.b64encode(content).decode(), width

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("report.html.j2")
    how = dict(table=table, picture=picture, out=out, parts=parts, flags=flags, corpus=corpus)
    write_text(out / "report.html", template.render(**how))


def collect_tables(flags, out, corpus, parts):
    """Return {name: (header, rows)} of the report's tables, means and deviations over the seeds."""

    def row(label, run, entries):
        """Return a label and "mean ± deviation" of entries of a run's result.json."""
        names = [run] if run == "baselines" else [f"{run}-{seed}" for seed in range(flags.seeds)]
        results, cells = [read_result(out / name) for name in names], []
        for entry in entries:
            factor = 1 if entry.startswith("perplexity") else 100
            values = [factor * result[entry] for result in results if entry in result]
            cells.append(tables.spread(values) if values else "–")
        return [label, *cells]

    labels, known = {pos: POSITIONS[pos].label for pos in COMPARED}, read_result(out / "baselines")
    shares = [name for name in ("test", "seen", "unseen") if f"accuracy/{name}" in known]
    forms = [("no bias" if form == "nope" else form, f"form-{form}") for form in FORMS]
    rows = [row(*form, ["perplexity/valid", "accuracy/valid"]) for form in forms]
    found = {"forms": (["form of ALiBi", "perplexity", "words found (%)"], rows)}
    for part in [part for part in parts if part != "lm"]:
        runs = {f"{part}-{pos}": label for pos, label in labels.items()}
        runs |= {"untrained-alibi": "ALiBi, random weights"} if part == "frozen" else {}
        runs |= {"likelihood-alibi": "ALiBi, a decoder per class", "baselines": "naive Bayes"}
        rows = [row(label, run, [f"accuracy/{s}" for s in shares]) for run, label in runs.items()]
        found[part] = ["model", *(f"{name} (%)" for name in shares)], rows
    if "classifier" in parts:
        scores, run = ("precision", "recall", "f1"), "classifier-alibi"
        rows = [row(name, run, [f"{s}/{name}" for s in scores]) for name in corpus.classes]
        found["classes"] = ["class", "precision (%)", "recall (%)", "F1 (%)"], rows
    if "lm" in parts:
        entries = [f"perplexity/{name}" for name in corpus.tests]
        rows = [row(label, f"lm-{pos}", entries) for pos, label in labels.items()]
        rows.append(row("n-grams, Kneser-Ney", "baselines", entries))
        found["perplexity"] = ["model", *corpus.tests], rows
    return found


if __name__ == "__main__":
    main(assignment, Flags)
