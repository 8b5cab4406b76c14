"""Models without positions still learn positions: the comparisons of Haviv et al. 2022, scaled down.

    python -m studies.nope --size quick
    python -m studies.nope --data path/to/wikitext-2 --size laptop

Four position choices as causal models of several sizes and lengths and as masked models; then probe_position.py,
probe_order.py, and perplexity at lengths beyond the trained one. Each run is a folder of its own; one that is finished
is not run again.
"""

import math
import shlex
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import data
from data.files import write_json, write_text
from lab import tables
from lab.command import main
from lab.errors import require
from lab.flags import flag
from lab.machine import git_revision
from lab.records import read_result
from studies.jobs import run_all

POSITIONS = ("nope", "learned", "sinusoidal", "alibi")  # in the order of the source's tables

# models: (n_layer, n_embd, n_head), the middle one is looked into; lengths: beside the middle one's block_size.
SIZES = {
    "quick": dict(
        models=((1, 32, 2), (2, 64, 4), (4, 64, 4)),
        block_size=32,
        lengths=(16, 64),
        tokens=512,
        steps=600,
        lr=2e-3,
        vocab_size=0,
        eval_test=4000,
        mlm=dict(steps=800, batch_size=32, lr=2e-3),
    ),
    "laptop": dict(
        models=((2, 32, 4), (3, 64, 4), (4, 96, 4)),
        block_size=64,
        lengths=(32, 128),
        tokens=1024,
        steps=1200,
        lr=2e-3,
        vocab_size=2000,
        eval_test=40_000,
        mlm=dict(steps=4000, batch_size=16, lr=2e-3),
    ),
    "full": dict(
        models=((4, 256, 8), (6, 384, 8), (12, 512, 8)),
        block_size=256,
        lengths=(128, 512),
        tokens=16_384,
        steps=10_000,
        lr=1e-3,
        vocab_size=8000,
        eval_test=0,
        mlm=dict(steps=10_000, batch_size=128, lr=5e-4),
    ),
}


@dataclass
class Flags:
    data: str = flag("toy", "corpus, as in the training scripts")
    size: str = flag(
        "laptop",
        "of models and budget: quick (minutes), laptop (about an hour with WikiText-2), "
        "full (a GPU or a night)",
        tuple(SIZES),
    )
    seeds: int = flag(3, "how many seeds of the middle model, 0, 1, ...")
    seeds_beside: int = flag(
        0, "how many seeds of the other models, lengths and the masked models; 0: as many; quick: 1"
    )
    out: str = flag("out/study-nope", "folder of all runs, figures and the report")
    jobs: int = flag(0, "runs at a time, each on one thread; 0: one a core")


def study(flags):
    require(
        (0 < flags.seeds <= 1000, f"--seeds must be from 1 to 1000, got {flags.seeds}"),
        (flags.jobs >= 0, f"--jobs must not be negative, got {flags.jobs}"),
        (
            0 <= flags.seeds_beside <= 1000,
            f"--seeds-beside must be from 0 to 1000, got {flags.seeds_beside}",
        ),
    )
    size, out, started = SIZES[flags.size], Path(flags.out), time.perf_counter()
    corpus = data.load(flags.data)
    require(
        (
            corpus.lines and corpus.tests,
            f"--data {flags.data}: holds no running text with a test set; give another corpus",
        )
    )
    beside = flags.seeds_beside or (1 if flags.size == "quick" else flags.seeds)
    middle, T = size["models"][1], size["block_size"]
    common = [
        "--data",
        flags.data,
        "--threads",
        "1",
        "--activation",
        "gelu",
        *(["--tokenizer", "bpe", "--vocab-size", size["vocab_size"]] if size["vocab_size"] else []),
    ]

    def lm(pos, model, block, seed):
        n_layer, n_embd, n_head = model
        longer = (
            []
            if (model, block) != (middle, T) or pos == "learned"
            else ["--eval-block", ",".join(str(T * factor) for factor in (2, 4, 8))]
        )
        return (
            causal(pos, model, block, seed),
            "train_lm",
            [
                *common,
                "--pos",
                pos,
                "--n-layer",
                n_layer,
                "--n-embd",
                n_embd,
                "--n-head",
                n_head,
                "--n-ffn",
                4 * n_embd,
                "--block-size",
                block,
                "--batch-size",
                size["tokens"] // block,
                "--lr",
                size["lr"],
                "--warmup",
                size["steps"] // 20,
                "--steps",
                size["steps"],
                "--eval-every",
                size["steps"] // 4,
                "--eval-train",
                size["eval_test"] or 100_000,
                "--eval-test",
                size["eval_test"],
                *longer,
                "--seed",
                seed,
            ],
        )

    def mlm(pos, seed):
        n_layer, n_embd, n_head = middle
        more = [
            word
            for name, value in size["mlm"].items()
            for word in (f"--{name.replace('_', '-')}", value)
        ]
        return (
            f"mlm-{pos}-{seed}",
            "train_mlm",
            [
                *common,
                "--pos",
                pos,
                "--n-layer",
                n_layer,
                "--n-embd",
                n_embd,
                "--n-head",
                n_head,
                "--n-ffn",
                4 * n_embd,
                "--block-size",
                T,
                "--dropout",
                0,
                "--mask-rate",
                0.15,
                "--init-std",
                0.05,
                "--warmup",
                size["mlm"]["steps"] // 20,
                "--eval-every",
                size["mlm"]["steps"] // 8,
                *more,
                "--seed",
                seed,
            ],
        )

    # What to run: the middle model first, since the probes look into it.
    models = [lm(pos, middle, T, seed) for seed in range(flags.seeds) for pos in POSITIONS]
    others = [
        lm(pos, model, T, seed)
        for seed in range(beside)
        for model in size["models"]
        if model != middle
        for pos in POSITIONS
    ]
    others += [
        lm(pos, middle, block, seed)
        for seed in range(beside)
        for block in size["lengths"]
        for pos in POSITIONS
    ]
    others += [mlm(pos, seed) for seed in range(beside) for pos in POSITIONS]
    folders = [out / name for name, _, _ in models]
    looks = [
        ("probe", "studies.probe_position", folders),
        ("order", "studies.probe_order", folders),
        ("compare", "compare", [*folders, "--labels", ",".join(POSITIONS)]),
        (
            "compare-mlm",
            "compare",
            [
                *(out / f"mlm-{pos}-{seed}" for pos in POSITIONS for seed in range(beside)),
                "--labels",
                ",".join(POSITIONS),
            ],
        ),
    ]
    run_all(out, (models + others, looks), flags.jobs, cost)
    write_report(out, flags, size, corpus, beside, started)


def causal(pos, model, block, seed):
    return f"lm-{pos}-{model[0]}x{model[1]}-{block}-{seed}"


def cost(arguments):
    """Roughly, floating-point operations of a training; of a probe, those of a small one."""
    if "--n-embd" not in arguments:
        return 1e12
    given = dict(zip(arguments[::2], arguments[1::2]))
    weights = 12 * int(given["--n-layer"]) * int(given["--n-embd"]) ** 2 + 4000 * int(
        given["--n-embd"]
    )
    return (
        6
        * weights
        * int(given["--steps"])
        * int(given["--batch-size"])
        * int(given["--block-size"])
    )


# ---------------------------------------------------------------------------- the report


def perplexity(result, tests):
    """Of all test sets together."""
    nats = sum(result[f"tokens/{name}"] * math.log(result[f"perplexity/{name}"]) for name in tests)
    return math.exp(nats / sum(result[f"tokens/{name}"] for name in tests))


def write_report(out, flags, size, corpus, beside, started):
    """report.md, the three tables as .md and .tex, and result.json."""
    middle, T, tests = size["models"][1], size["block_size"], list(corpus.tests)

    def measured(pos, model, block):
        seeds = flags.seeds if (model, block) == (middle, T) else beside
        return [
            perplexity(read_result(out / causal(pos, model, block, seed)), tests)
            for seed in range(seeds)
        ]

    def table(stem, names, columns, caption):
        """columns: for each position, a list of values over the seeds for each name."""
        rows = [
            [pos, *(tables.spread(values, 2) for values in of_pos)]
            for pos, of_pos in zip(POSITIONS, columns)
        ]
        for j in range(len(names)):
            best = min(range(len(POSITIONS)), key=lambda i: statistics.fmean(columns[i][j]))
            rows[best][j + 1] = f"**{rows[best][j + 1]}**"
        return tables.write(out / stem, ["positions", *names], rows, caption)

    lengths = sorted({T, *size["lengths"]})
    by_size = [[measured(pos, model, T) for model in size["models"]] for pos in POSITIONS]
    by_length = [[measured(pos, middle, block) for block in lengths] for pos in POSITIONS]
    masked = [
        [[read_result(out / f"mlm-{pos}-{seed}")["perplexity/valid"] for seed in range(beside)]]
        for pos in POSITIONS
    ]
    how = (
        f"on {corpus.name}, {size['steps']:,} steps of {size['tokens']:,} tokens; mean ± sample standard deviation, "
        f"{flags.seeds} seeds of the middle column, {beside} of the others. The best of each column is bold"
    )
    names = [
        f"{n_layer} layer{'s' * (n_layer > 1)}, {n_embd} wide"
        for n_layer, n_embd, _ in size["models"]
    ]
    size_table = table(
        "sizes",
        names,
        by_size,
        f"Perplexity of all test sets by model size, blocks of {T} tokens, {how}.",
    )
    length_table = table(
        "lengths",
        [f"{block} tokens" for block in lengths],
        by_length,
        "Perplexity of all test sets by the length of the blocks in training and evaluation, "
        f"{middle[0]} layers, {middle[1]} wide, {how.replace('middle column', f'column of {T}')}.",
    )
    masked_table = table(
        "masked",
        ["masked-LM perplexity"],
        masked,
        f"Masked-LM perplexity on held-out lines, {middle[0]} layers, {middle[1]} wide, "
        f"{size['mlm']['steps']:,} steps; {beside} seed{'s' * (beside > 1)}. "
        "An encoder without positions sees a bag of words.",
    )
    parts = [
        "# Models without positions still learn positions",
        f"Made by `{shlex.join(['python', 'study_nope.py', *sys.argv[1:]])}` at revision {git_revision()}.",
        "## Causal language models",
        size_table,
        length_table,
        "![Perplexity over steps](compare/compare.png)",
        "## Train short, test long",
        "![Perplexity at longer blocks](compare/train-short-test-long.png)",
        "## Where is the position?",
        (out / "probe" / "probe.md").read_text(encoding="utf-8"),
        "![Position probe](probe/probe.png)",
        "## Does the order matter?",
        (out / "order" / "order.md").read_text(encoding="utf-8"),
        "![Order](order/order.png)",
        "## Masked language models",
        masked_table,
        "![Masked LM over steps](compare-mlm/compare.png)",
    ]
    write_text(out / "report.md", "\n\n".join(parts) + "\n")
    write_json(
        out / "result.json",
        {
            "seconds": round(time.perf_counter() - started, 1),
            "command": shlex.join(["python", "-m", "studies.nope", *sys.argv[1:]]),
            "tests": tests,
            **{
                f"perplexity/{pos}": {
                    "sizes": by_size[i],
                    "lengths": by_length[i],
                    "masked": masked[i][0],
                }
                for i, pos in enumerate(POSITIONS)
            },
        },
    )
    for stem in ("sizes", "lengths", "masked"):
        print((out / f"{stem}.md").read_text(encoding="utf-8"))
    print(
        f"{out / 'report.md'}: tables, figures and result.json; {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main(study, Flags, __doc__.split("\n")[0])
