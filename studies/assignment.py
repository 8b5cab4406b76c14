"""Run the whole assignment: every part, every position encoding, every figure, and a report.

    python -m studies.assignment --data speeches

Part 1 trains encoder and classifier jointly, part 2 measures the perplexity of a causal decoder,
part 3 explores ALiBi: against other encodings, on longer texts, in its three forms for an encoder.
"""

import base64
import struct
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Literal

import jinja2

import data
from data.files import write_text
from lab.flags import Data, Folder, main
from model import POSITIONS
from studies.sweep import Job, SweepFlags, options, run_all

COMPARED = ("learned", "sinusoidal", "alibi", "rope", "nope")
LENGTHS = "32,64,128,256"  # of evaluation: 1, 2, 4 and 8 times the blocks of training
FORMS = ("offset", "symmetric", "one-sided", "nope")  # of ALiBi in an encoder, and without it
# The encoders that compare the forms of ALiBi: of the assignment's size, trained for 20 s each
ENCODER = options(n_layer=4, n_head=2, n_embd=64, n_ffn=100, activation="relu", head="linear")
ENCODER += options(init_std=0.05, dropout=0, lr=2e-3, warmup=40, steps=400)


@dataclass
class Flags(SweepFlags):
    data: Data = "speeches"  # corpus, as in the training scripts
    out: Folder = "out/assignment"  # folder of all runs, figures and the report
    seeds: int = 1  # seeds of each run
    mlm_steps: int = 500  # steps of pretraining, 0.5 s each; 0: no frozen encoders
    split: Literal["full", "clean"] = "full"  # clean: train classifiers on no test sentence


def assignment(flags):
    out = Path(flags.out).expanduser()
    corpus = data.load(flags.data)
    parts = []
    if corpus.test_rows:
        parts.append("classifier")
        if flags.mlm_steps:
            parts.append("frozen")
    if corpus.tests:
        parts.append("lm")
    trainings, frozen = training_jobs(flags, out, parts)
    analyses = attention_jobs(out, corpus, parts) + comparison_jobs(flags, out, parts)
    run_all(out, [trainings, frozen, analyses], flags)
    write_report(flags, out, corpus, parts)
    print(f"{out / 'report.html'}; its tables as LaTeX and Markdown in compare-*/")


def training_jobs(flags, out, parts):
    """Return the jobs of all trainings, and those of classifiers on the encoders of the former."""
    split = options(split=flags.split)
    trainings = [Job("baselines", "baselines", options(data=flags.data) + split)]
    frozen = []
    for seed, pos in product(range(flags.seeds), COMPARED):
        run = f"{pos}-{seed}"
        common = options(data=flags.data, threads=1, seed=seed, pos=pos)
        if "frozen" in parts:
            pretraining = common + split + options(steps=flags.mlm_steps)
            trainings.append(Job(f"mlm-{run}", "train_mlm", pretraining))
            words = common + split + options(encoder=out / f"mlm-{run}")
            frozen.append(Job(f"frozen-{run}", "train_classifier", words))
            if pos == "alibi":  # the same encoder with random weights, for comparison
                untrained = [*words, "--untrained"]
                frozen.append(Job(f"untrained-{run}", "train_classifier", untrained))
        if "lm" in parts:
            words = list(common)
            if not POSITIONS[pos].ends:
                words += options(eval_block=LENGTHS)
            trainings.append(Job(f"lm-{run}", "train_lm", words))
        if "classifier" in parts:
            trainings.append(Job(f"classifier-{run}", "train_classifier", common + split))
    for seed, form in product(range(flags.seeds), FORMS):
        if form == "nope":
            words = options(pos="nope")
        else:
            words = options(pos="alibi", alibi=form)
        words += options(data=flags.data, threads=1, seed=seed)
        if "classifier" in parts:
            words += split
        trainings.append(Job(f"form-{form}-{seed}", "train_mlm", words + ENCODER))
    return trainings, frozen


def attention_jobs(out, corpus, parts):
    """Return the jobs that draw the attention of the first seed to a short line of the corpus."""
    lines = [*chain.from_iterable(corpus.tests.values())] or corpus.texts()
    short = [line for line in lines if 5 <= len(line.split()) <= 16]
    words = ["--positions", "--html"]
    if short:
        words.append(f"--text={short[0]}")
    jobs = []
    for part in parts:
        if part == "frozen":
            continue
        for pos in COMPARED:
            run = f"{part}-{pos}-0"
            jobs.append(Job(f"maps-{run}", "attention_maps", [out / run, *words]))
    return jobs


def comparison_jobs(flags, out, parts):
    """Return the jobs that compare all runs of a part."""
    labels = {}  # part: {name of its runs: label}
    for part in parts:
        labels[part] = {f"{part}-{pos}": POSITIONS[pos].label for pos in COMPARED}
    labels["form"] = {f"form-{form}": form for form in FORMS}
    labels["form"]["form-nope"] = "no bias"
    if "frozen" in parts:
        labels["frozen"]["untrained-alibi"] = "ALiBi (random weights)"
    jobs = []
    for part, label_of in labels.items():
        runs = [out / f"{name}-{seed}" for name, seed in product(label_of, range(flags.seeds))]
        if part != "form":
            runs.append(out / "baselines")
        words = [*runs, *options(labels=",".join(label_of.values()), prefix=f"{part}-")]
        jobs.append(Job(f"compare-{part}", "compare", words))
    return jobs


def write_report(flags, out, corpus, parts):
    """Write report.html, which needs no other file and no network."""

    def picture(pattern):
        """Return the first PNG of a pattern as base64, and its width on paper in CSS pixels."""
        content = min(out.glob(pattern)).read_bytes()
        width = struct.unpack(">I", content[16:20])[0] * 96 // 150  # figures have 150 dpi
        return base64.b64encode(content).decode(), width

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("report.html.j2")
    page = template.render(picture=picture, out=out, parts=parts, flags=flags, corpus=corpus)
    write_text(out / "report.html", page)


if __name__ == "__main__":
    main(assignment, Flags)
