"""RoBERTa, ALiBi and the CLAP head compared by masked-LM perplexity: the comparison of EIFY/fairseq, scaled down.

    python -m studies.clap --size quick
    python -m studies.clap --data path/to/wikitext-2 --size laptop

Five configurations on the same data, with the same budget and the same masks, and four options that its author found
to make no difference. Each run is a folder of its own; one that is finished is not run again.
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
from lab.figures import new_figure, over_seeds, plain_log_ticks, save, styled
from lab.flags import flag
from lab.records import read_metrics, read_result
from studies.jobs import run_all

CONFIGURATIONS = {
    "baseline": "--pos learned --head roberta --dropout 0.1 --attn-dropout 0.1",
    "sinusoidal": "--pos sinusoidal --head roberta --dropout 0.1 --attn-dropout 0.1",
    "alibi": "--pos alibi --head roberta --dropout 0.1 --attn-dropout 0.1",
    "learned-clap": "--pos learned --head clap --dropout 0 --attn-dropout 0.1",
    "zero-clap": "--pos alibi --head clap --zero-mask --dropout 0 --attn-dropout 0",
}
# What the author found to make no visible difference; one seed each.
OPTIONS = {
    "alibi, symmetric": "--pos alibi --alibi symmetric --head roberta --dropout 0.1 --attn-dropout 0.1",
    "zero-clap, attention dropout": "--pos alibi --head clap --zero-mask --dropout 0 --attn-dropout 0.1",
    "zero-clap, plain embeddings": "--pos alibi --head clap --zero-mask --dropout 0 --attn-dropout 0 --no-unit-embd",
    "zero-clap, scaled embeddings": "--pos alibi --head clap --zero-mask --dropout 0 --attn-dropout 0 --scale-embd",
}
# Post-norm, GELU, tied, byte-level BPE, 15% masked, Adam (0.9, 0.98), no clipping, linear warm-up over 8% and decay, as there.
COMMON = (
    "--no-norm-first --activation gelu --tokenizer bpe --mask-rate 0.15 --beta2 0.98 --weight-decay 0.01 --clip 0 "
    "--decay 1 --init-std 0.02"
)
SIZES = {
    "quick": dict(
        vocab_size=1000,
        n_layer=2,
        n_embd=64,
        n_head=4,
        n_ffn=256,
        block_size=32,
        batch_size=32,
        lr=2e-3,
        steps=800,
    ),
    # Many small updates: the RoBERTa head needs them to get beyond guessing by frequency.
    "laptop": dict(
        vocab_size=2000,
        n_layer=2,
        n_embd=64,
        n_head=4,
        n_ffn=256,
        block_size=64,
        batch_size=16,
        lr=2e-3,
        init_std=0.05,
        valid=0.03,
        steps=4000,
    ),
    "full": dict(
        vocab_size=8000,
        n_layer=6,
        n_embd=384,
        n_head=6,
        n_ffn=1536,
        block_size=256,
        batch_size=64,
        lr=5e-4,
        steps=12000,
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
    seeds: int = flag(3, "how many seeds of the five configurations, 0, 1, ...")
    steps: int = flag(0, "updates of each run; 0: what --size says")
    out: str = flag("out/study-clap", "folder of all runs, figures and the report")
    jobs: int = flag(0, "runs at a time, each on one thread; 0: one a core")


def study(flags):
    require(
        (0 < flags.seeds <= 1000, f"--seeds must be from 1 to 1000, got {flags.seeds}"),
        (flags.jobs >= 0, f"--jobs must not be negative, got {flags.jobs}"),
        (flags.steps >= 0, f"--steps must not be negative, got {flags.steps}"),
    )
    size, out, started = (
        SIZES[flags.size] | ({"steps": flags.steps} if flags.steps else {}),
        Path(flags.out),
        time.perf_counter(),
    )
    common = [
        *COMMON.split(),
        "--data",
        flags.data,
        "--threads",
        "1",
        "--warmup",
        size["steps"] * 8 // 100,
        "--eval-every",
        max(1, size["steps"] // 20),
    ]
    common += [
        word for name, value in size.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    seeds = {name: list(range(flags.seeds)) for name in CONFIGURATIONS} | {
        name: [0] for name in OPTIONS
    }
    jobs = [
        (folder(name, seed), "train_mlm", [*common, *words.split(), "--seed", seed])
        for name, words in (CONFIGURATIONS | OPTIONS).items()
        for seed in seeds[name]
    ]
    jobs.sort(key=lambda job: job[2][-1])  # the first seed of all, then the second
    compared = (
        "compare",
        "compare",
        [
            *(out / folder(name, seed) for name in CONFIGURATIONS for seed in seeds[name]),
            "--labels",
            ",".join(CONFIGURATIONS),
        ],
    )
    run_all(out, (jobs, [compared]), flags.jobs)

    # Results
    results = {
        name: [read_result(out / folder(name, seed)) for seed in numbers]
        for name, numbers in seeds.items()
    }
    rows = [
        [
            name,
            tables.spread([r["perplexity/valid"] for r in each], 2),
            tables.spread([100 * r["accuracy/valid"] for r in each]),
            f"{each[0]['parameters']['total']:,}",
            f"{statistics.median(map(speed, each)):,.0f}",
            str(len(each)),
        ]
        for name, each in results.items()
    ]
    caption = (
        f"Masked-LM perplexity and share of hidden tokens found on held-out lines of {Path(flags.data).stem}, "
        "mean ± sample standard deviation over the seeds; tokens per second of processor time, evaluation included, "
        "median of the seeds."
    )
    text = tables.write(
        out / "clap",
        ["configuration", "perplexity", "found (%)", "parameters", "tokens/s", "seeds"],
        rows,
        caption,
    )
    draw(out, seeds)
    write_json(
        out / "result.json",
        {
            "seconds": round(time.perf_counter() - started, 1),
            "command": shlex.join(["python", "-m", "studies.clap", *sys.argv[1:]]),
            **{
                name: {"perplexity": [r["perplexity/valid"] for r in each]}
                for name, each in results.items()
            },
        },
    )
    print(text)
    print(
        f"{out}: clap.png, clap.md, clap.tex, compare/ and result.json; {time.perf_counter() - started:.0f} s"
    )


def speed(result):
    """Tokens a second of processor time, which unlike the clock's does not change with what else the machine is doing."""
    return result["tokens_per_second"] * result["seconds"] / result["cpu_seconds"]


def folder(name, seed):
    return f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"


@styled
def draw(out, seeds):
    """clap.png: perplexity over steps, the options dotted; beta over steps for the CLAP heads."""
    figure, axes = new_figure(
        1, 2, figsize=(8.4, 3.6), layout="constrained", gridspec_kw={"width_ratios": [1.5, 1]}
    )
    values = []
    for i, name in enumerate(seeds):
        logs = [read_metrics(out / folder(name, seed)) for seed in seeds[name]]
        steps = [line["step"] for line in logs[0]]
        family = list(CONFIGURATIONS).index(name.partition(",")[0])
        style = (
            dict(color=f"C{family}", linestyle="-")
            if name in CONFIGURATIONS
            else dict(color=f"C{family}", linestyle=(":", "--", "-.")[i % 3], linewidth=1)
        )
        for axis, key in ((axes[0], "perplexity/valid"), (axes[1], "beta")):
            if key in logs[0][0]:
                means = over_seeds(
                    axis, steps, [[line[key] for line in log] for log in logs], label=name, **style
                )
                if axis is axes[0]:
                    values += means[len(means) // 8 :]
    axes[0].set_yscale("log")
    axes[0].set_ylim(0.95 * min(values), 1.05 * max(values))
    plain_log_ticks(axes[0])
    axes[0].set(xlabel="step", ylabel="masked-LM perplexity (log scale)")
    axes[1].set(xlabel="step", ylabel="beta of the CLAP head")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    save(figure, out / "clap.png")


if __name__ == "__main__":
    main(study, Flags, __doc__.split("\n")[0])
