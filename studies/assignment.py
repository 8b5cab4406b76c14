"""Run the whole assignment: every part, every position encoding, every figure, and a report.

    python -m studies.assignment --data speeches

Part 1 trains encoder and classifier jointly, part 2 measures the perplexity of a causal decoder,
part 3 explores ALiBi: against other position encodings, on longer texts, in its three forms for an
encoder. A frozen pretrained encoder, a decoder per class and the baselines are added for
comparison. Each run is a folder of its own. The same command resumes an interrupted assignment. The
report, report.md and report.html, comes last.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import data
from lab.command import main
from lab.flags import flag
from studies.assignment_report import report_parts
from studies.assignment_runs import COMPARED, FORMS, LENGTHS, Runs
from studies.jobs import JobFlags, options, run_all, typed_flags
from studies.report import literal, write_report

# The encoders that compare the forms of ALiBi: of the assignment's size, trained for 20 s each
ENCODER = options(n_layer=4, n_head=2, n_embd=64, n_ffn=100, activation="relu", head="linear")
ENCODER += options(init_std=0.05, dropout=0, lr=2e-3, warmup=40, steps=400)
SECONDS = {"beyond.train_generative": 130, "train_classifier": 35, "train_lm": 25}  # of one core


@dataclass
class Flags(JobFlags):
    data: str = flag("speeches", "corpus, as in the training scripts")
    out: str = flag("out/assignment", "folder of all runs, figures and the report")
    seeds: int = flag(1, "seeds of each run", at_least=1, at_most=1000)
    mlm_steps: int = flag(500, "steps of pretraining, 0.5 s each; 0: none", at_least=0)
    split: str = flag(
        "full", "clean: train the classifiers on no sentence of the test set", ("full", "clean")
    )


def seconds(module, arguments):
    """Estimate how long a job takes; a figure about 8 s."""
    if module == "train_mlm":
        each = 0.05 if "--n-layer" in arguments else 0.5
        return each * int(typed_flags(arguments)["steps"])
    return SECONDS.get(module, 8)


def assignment(flags):
    started, out = time.perf_counter(), Path(flags.out)
    corpus, seen = data.load(flags.data), []
    parts = ["classifier", "frozen"] if corpus.test_rows else []
    if not flags.mlm_steps:
        parts = parts[:1]
    if corpus.tests:
        parts.append("lm")

    # Jobs: trainings, classifiers on pretrained encoders, figures
    split = options(split=flags.split)
    trainings = [("baselines", "baselines", [*options(data=flags.data), *split])]
    frozen = []
    for seed in range(flags.seeds):
        same = options(data=flags.data, threads=1, seed=seed)
        for pos in COMPARED:
            common = [*same, *options(pos=pos)]
            encoder = f"mlm-{pos}-{seed}"
            if "frozen" in parts:
                steps = options(steps=flags.mlm_steps)
                trainings.append((encoder, "train_mlm", [*common, *split, *steps]))
                arguments = [*common, *split, *options(encoder=out / encoder)]
                frozen.append((f"frozen-{pos}-{seed}", "train_classifier", arguments))
                if pos == "alibi":  # the same encoder with random weights, for comparison
                    control = [*arguments, "--untrained"]
                    frozen.append((f"untrained-{pos}-{seed}", "train_classifier", control))
            if "lm" in parts:
                longer = options(eval_block=",".join(map(str, LENGTHS))) if pos != "learned" else []
                trainings.append((f"lm-{pos}-{seed}", "train_lm", [*common, *longer]))
            if "classifier" in parts:
                job = (f"classifier-{pos}-{seed}", "train_classifier", [*common, *split])
                trainings.append(job)
        if "classifier" in parts:
            how = [*same, *options(pos="alibi"), *split]
            trainings.append((f"likelihood-alibi-{seed}", "beyond.train_generative", how))
        for form in FORMS:
            how = options(pos="nope") if form == "nope" else options(pos="alibi", alibi=form)
            how += split if "classifier" in parts else []
            trainings.append((f"form-{form}-{seed}", "train_mlm", [*same, *how, *ENCODER]))
    drawn = [f"{part}-{pos}-0" for part in parts if part != "frozen" for pos in COMPARED]
    maps = ["--positions", "--html", *example(corpus)]
    figures = [(f"maps-{name}", "attention_maps", [out / name, *maps]) for name in drawn]
    for part in parts:
        runs = [out / f"{part}-{pos}-{seed}" for pos in COMPARED for seed in range(flags.seeds)]
        figures.append((f"compare-{part}", "compare", [*runs, out / "baselines"]))
    run_all(out, (trainings, frozen, figures), flags, seconds)

    # Report
    if "classifier" in parts:
        corpus, seen, _ = corpus.split(flags.split)
    runs = Runs(out, corpus, seen, flags.split, flags.seeds, parts)
    written = report_parts(runs)
    write_report(flags, out, f"The assignment on {literal(corpus.name)}", written)
    n_figures = sum(part.startswith("![") for part in written)
    more = f"{n_figures} figures; as report.md too, tables as LaTeX in tables/"
    print(f"{out / 'report.html'}: report with {more}; {time.perf_counter() - started:.0f} s")


def example(corpus):
    """Return --text and a short test sentence that no row of the training data has, or [] where
    attention_maps.py has to choose."""
    rows = [text for (_, text), seen in zip(corpus.test_rows, corpus.seen()) if not seen]
    lines = rows or [line for part in corpus.tests.values() for line in part]
    short = next((line for line in lines if 5 <= len(line.split()) <= 16), "")
    return [f"--text={short}"] if short else []


if __name__ == "__main__":
    main(assignment, Flags, __doc__)
