"""The whole assignment in one command: every part, every position, every figure, and a report to write from.

    python -m studies.assignment --data speeches

Part 1 classifies jointly from scratch, part 2 measures the perplexity of a causal decoder, part 3 compares four
answers to "where is this token?"; beside them stand a frozen pretrained encoder and the baselines. Each run
is a folder of its own; one that is finished is not run again, so an interrupted assignment goes on where it was.
"""

import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import data
from data.files import write_text
from lab.command import main
from lab.errors import require
from lab.flags import flag
from lab.machine import git_revision
from lab.records import read_metrics, read_result
from studies.jobs import run_all

POSITIONS = ("learned", "sinusoidal", "alibi", "nope")
SENTENCES = (
    "This is a test sentence",
    (
        "We have come a long way together, and the work that lies before us asks for patience, courage and the help of "
        "every one of our neighbors."
    ),
)


@dataclass
class Flags:
    data: str = flag("speeches", "corpus, as in the training scripts")
    out: str = flag("out/assignment", "folder of all runs, figures and the report")
    seeds: int = flag(1, "how many seeds of each run, 0, 1, ...")
    jobs: int = flag(0, "runs at a time, each on one thread; 0: one a core")
    mlm_steps: int = flag(
        500, "updates of the pretraining, each about half a second; 0: no pretraining"
    )
    split: str = flag(
        "full",
        "clean: leave out of classification's training what stands in its test set",
        ("full", "clean"),
    )


def assignment(flags):
    require(
        (0 < flags.seeds <= 1000, f"--seeds must be from 1 to 1000, got {flags.seeds}"),
        (flags.jobs >= 0, f"--jobs must not be negative, got {flags.jobs}"),
        (flags.mlm_steps >= 0, f"--mlm-steps must not be negative, got {flags.mlm_steps}"),
    )
    corpus = data.load(flags.data)
    out, started = Path(flags.out), time.perf_counter()
    common = ["--data", flags.data, "--threads", "1"]
    split = ["--split", flags.split]
    has_rows, has_text = bool(corpus.rows and corpus.test_rows), bool(corpus.lines and corpus.tests)

    # What to run: (folder, script, its flags); the second list needs the first.
    first, second = [["baselines", "baselines", ["--data", flags.data, *split]]], []
    for seed in map(str, range(flags.seeds)):
        for pos in POSITIONS:
            choice = ["--pos", pos, "--seed", seed]
            if has_rows and flags.mlm_steps:
                first.append(
                    [
                        f"mlm-{pos}-{seed}",
                        "train_mlm",
                        common + choice + split + ["--steps", str(flags.mlm_steps)],
                    ]
                )
                second.append(
                    [
                        f"frozen-{pos}-{seed}",
                        "train_classifier",
                        common + choice + split + ["--encoder", str(out / f"mlm-{pos}-{seed}")],
                    ]
                )
            if has_text:
                first.append([f"lm-{pos}-{seed}", "train_lm", common + choice])
            if has_rows:
                first.append(
                    [f"classifier-{pos}-{seed}", "train_classifier", common + choice + split]
                )
    parts = [
        part
        for part, wanted in (
            ("classifier", has_rows),
            ("frozen", has_rows and flags.mlm_steps),
            ("lm", has_text),
        )
        if wanted
    ]
    drawn = [f"{part}-{pos}-0" for pos in POSITIONS for part in parts if part != "frozen"]
    texts = [word for sentence in SENTENCES for word in ("--text", sentence)]
    maps = [
        [f"{name}/maps", "attention_maps", [str(out / name), *texts, "--positions"]]
        for name in drawn
    ]
    compared = [
        [
            f"compare-{part}",
            "compare",
            [str(out / f"{part}-{pos}-{seed}") for pos in POSITIONS for seed in range(flags.seeds)]
            + [str(out / "baselines")],
        ]
        for part in parts
    ]

    run_all(out, (first, second, maps + compared), flags.jobs)
    write_report(out, flags, corpus, parts, drawn)
    print(
        f"{out / 'report.md'}: report with {len(list(out.glob('**/*.png')))} figures; {time.perf_counter() - started:.0f} s"
    )


# ---------------------------------------------------------------------------- the report


def write_report(out, flags, corpus, parts, drawn):
    """report.md: what a write-up needs, with every figure linked."""
    results = {
        path.parent.name: read_result(path.parent) for path in sorted(out.glob("*/result.json"))
    }
    base = results["baselines"]
    text = [
        f"# The assignment on {corpus.name}",
        f"Made by `{shlex.join(['python', 'assignment.py', *sys.argv[1:]])}` at revision {git_revision()}; "
        f"seeds {', '.join(map(str, range(flags.seeds)))}. Tables of single runs show seed 0. "
        "Every folder beside this file is one run: its command stands in `result.json`, its settings in `config.json`.",
    ]
    if "classifier" in parts:
        text += [
            "## Part 1: classification, encoder and classifier trained jointly",
            f"{len(corpus.rows):,} training rows"
            + (
                " before those that stand in the test set were removed"
                if flags.split == "clean"
                else ""
            )
            + f", {len(corpus.test_rows):,} test rows. {sum(corpus.seen()):,} of the test rows also stand in the "
            "training rows, so that accuracy on all of them is partly memory: look at the unseen ones. "
            "The best epoch is chosen on held-out training rows.",
            "Test accuracy (%) after each epoch:",
            epochs_table(out, "accuracy/test", 100),
            (out / "compare-classifier" / "compare.md").read_text(encoding="utf-8"),
            picture("compare-classifier/compare.png", "Accuracy over epochs"),
            picture("classifier-alibi-0/confusion.png", "Confusion on the test rows, ALiBi"),
            parameters_table(results, "classifier"),
        ]
    if "frozen" in parts:
        text += [
            "### The same with a frozen encoder, pretrained as a masked language model",
            (out / "compare-frozen" / "compare.md").read_text(encoding="utf-8"),
            picture("compare-frozen/compare.png", "Accuracy on frozen features"),
            *[picture(f"mlm-{pos}-0/curve.png", f"Pretraining, {pos}") for pos in POSITIONS],
        ]
    if "lm" in parts:
        text += [
            "## Part 2: causal language modelling",
            "Perplexity every 100 steps (whole sets, every token once):",
        ]
        text += [f"**{pos}**\n\n" + steps_table(out / f"lm-{pos}-0") for pos in POSITIONS]
        text += [parameters_table(results, "lm")]
        text += [
            "## Part 3: exploration, where is this token?",
            (out / "compare-lm" / "compare.md").read_text(encoding="utf-8"),
            picture("compare-lm/compare.png", "Perplexity over steps"),
        ]
        ngrams = ", ".join(f"{name} {base[f'perplexity/{name}']:.1f}" for name in corpus.tests)
        text += [f"What to beat: a modified Kneser-Ney n-gram model reaches {ngrams}."]
    text += [
        "## Attention maps",
        "Rows are the words that look, columns the words looked at; every row sums to 1. "
        "The sanity report of each run stands in its `maps/maps.json`.",
    ]
    text += [
        picture(str(path.relative_to(out)), path.parent.parent.name + ": " + path.stem)
        for name in drawn
        for path in sorted((out / name / "maps").glob("map-*.png"))
    ]
    text += [
        "## Positions",
        *[
            picture(str(path.relative_to(out)), name)
            for name in drawn
            for path in sorted((out / name / "maps").glob("positions*.png"))
        ],
    ]
    write_text(out / "report.md", "\n\n".join(text) + "\n")


def picture(path, words):
    return f"![{words}]({path})\n\n*{words}*"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def epochs_table(out, name, factor):
    """One row an epoch, one column a position."""
    columns = [[m[name] for m in read_metrics(out / f"classifier-{pos}-0")] for pos in POSITIONS]
    return table(
        ["epoch", *POSITIONS],
        [
            [i + 1, *(f"{factor * value:.1f}" for value in row)]
            for i, row in enumerate(zip(*columns))
        ],
    )


def steps_table(folder):
    """One row an evaluation, one column a set."""
    metrics = read_metrics(folder)
    names = [name for name in metrics[0] if name.startswith("perplexity/")]
    return table(
        ["step", *(name.removeprefix("perplexity/") for name in names)],
        [[m["step"], *(f"{m[name]:,.1f}" for name in names)] for m in metrics],
    )


def parameters_table(results, part):
    """Parameters by part of the model, one column a position."""
    counts = [results[f"{part}-{pos}-0"]["parameters"] for pos in POSITIONS]
    return "Parameters:\n\n" + table(
        ["part", *POSITIONS],
        [[name, *(f"{count[name]:,}" for count in counts)] for name in counts[0]],
    )


if __name__ == "__main__":
    main(assignment, Flags, __doc__.split("\n")[0])
