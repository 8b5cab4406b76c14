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
from lab.flags import main
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
    print(f"{out / 'report.html'}; its tables as LaTeX and Markdown in compare-*/")


def stages(flags, out, corpus, parts):
    """Return the jobs: trainings, classifiers on pretrained encoders, figures and tables."""
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
    for seed, form in product(seeds, FORMS):
        how = options(pos="nope") if form == "nope" else options(pos="alibi", alibi=form)
        how += options(data=flags.data, threads=1, seed=seed) + split * ("classifier" in parts)
        trainings.append((f"form-{form}-{seed}", "train_mlm", how + ENCODER))
    return trainings, frozen, looks(flags, out, corpus, parts)


def looks(flags, out, corpus, parts):
    """Return the jobs that draw attention, and those that compare all runs of a part."""
    lines = [line for part in corpus.tests.values() for line in part] or corpus.texts()
    short = [f"--text={line}" for line in lines if 5 <= len(line.split()) <= 16]
    drawn = [f"{part}-{pos}-0" for part in parts if part != "frozen" for pos in COMPARED]
    how = ["--positions", "--html", *short[:1]]
    jobs = [(f"maps-{run}", "attention_maps", [out / run, *how]) for run in drawn]
    rows = {part: {f"{part}-{pos}": POSITIONS[pos].label for pos in COMPARED} for part in parts}
    rows["form"] = {f"form-{form}": form.replace("nope", "no bias") for form in FORMS}
    if "frozen" in parts:
        rows["frozen"]["untrained-alibi"] = "ALiBi (random weights)"
    for part, labels in rows.items():
        runs = [out / f"{name}-{seed}" for name in labels for seed in range(flags.seeds)]
        runs += [out / "baselines"] if part != "form" else []
        words = [*runs, *options(labels=",".join(labels.values()))]
        jobs.append((f"compare-{part}", "compare", words))
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
    how = dict(picture=picture, out=out, parts=parts, flags=flags, corpus=corpus)
    write_text(out / "report.html", template.render(**how))


if __name__ == "__main__":
    main(assignment, Flags)
