"""Compare RoBERTa, ALiBi and the CLAP head by masked-LM perplexity: EIFY/fairseq, scaled down.

    python -m studies.clap --size quick
    python -m studies.clap --data path/to/wikitext-2 --size laptop
    python -m studies.clap --data path/to/wikitext-2 --steps 40000 --choose-lr --only baseline,alibi

Five configurations with the same data, budget and masks; options of the original comparison; and
controls, since it uses dropout in some configurations only. Each run is a folder of its own.
Finished runs are not repeated.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from data import name_of
from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import (
    POSITION_COLORS,
    legend_below,
    new_figure,
    over_seeds,
    plain_log_ticks,
    save,
    styled,
)
from lab.flags import flag, known_names
from lab.records import read_metrics, read_result
from studies.jobs import StudyFlags, options, run_all, typed_flags
from studies.report import finish

ROBERTA = "--head roberta --dropout 0.1 --attn-dropout 0.1"
ZERO_CLAP = "--pos alibi --head clap --zero-mask --dropout 0"
CONFIGURATIONS = {
    "baseline": f"--pos learned {ROBERTA}",
    "sinusoidal": f"--pos sinusoidal {ROBERTA}",
    "alibi": f"--pos alibi {ROBERTA}",
    "learned-clap": "--pos learned --head clap --dropout 0 --attn-dropout 0.1",
    "zero-clap": f"{ZERO_CLAP} --attn-dropout 0",
}
# Options of the original comparison, as it has them: plain embeddings are neither normalised nor
# have a layer norm, nor are the head's; scaled ones come with attention dropout. One-sided is ours.
VARIANTS = {
    "alibi, symmetric": f"--pos alibi --alibi symmetric {ROBERTA}",
    "alibi, one-sided": f"--pos alibi --alibi one-sided {ROBERTA}",
    "sinusoidal, unscaled embeddings": f"--pos sinusoidal --unscaled {ROBERTA}",
    "zero-clap, attention dropout": f"{ZERO_CLAP} --attn-dropout 0.1",
    "zero-clap, mask no output": f"{ZERO_CLAP} --attn-dropout 0 --omit-mask",
    "zero-clap, plain embeddings": f"{ZERO_CLAP} --attn-dropout 0 --head plain-clap",
    "zero-clap, scaled embeddings": f"{ZERO_CLAP} --attn-dropout 0.1 --scale-embd",
    "zero-clap, one-sided": f"{ZERO_CLAP} --attn-dropout 0 --alibi one-sided",
}
# The original gives dropout to RoBERTa's head alone. These show what is left without it.
WITHOUT = "--head roberta --dropout 0 --attn-dropout 0"
CONTROLS = {
    "baseline, no dropout": f"--pos learned {WITHOUT}",
    "alibi, no dropout": f"--pos alibi {WITHOUT}",
    "alibi, no dropout, one-sided": f"--pos alibi --alibi one-sided {WITHOUT}",
    "alibi, no dropout, zero mask": f"--pos alibi --zero-mask {WITHOUT}",
    "learned-clap, no dropout": "--pos learned --head clap --dropout 0 --attn-dropout 0",
}
ALL = CONFIGURATIONS | VARIANTS | CONTROLS
# Names in figures and in the comparison
NAMES = {
    "baseline": "baseline (learned)",
    "alibi": "ALiBi",
    "learned-clap": "learned-CLAP",
    "zero-clap": "zero-CLAP (ALiBi)",
    "baseline, no dropout": "baseline without dropout",
    "alibi, no dropout": "ALiBi without dropout",
    "alibi, no dropout, one-sided": "one-sided ALiBi without dropout",
    "alibi, no dropout, zero mask": "ALiBi without dropout, zero mask",
    "learned-clap, no dropout": "learned-CLAP without dropout",
}
# As in the original: post-norm, GELU, tied weights, byte-level BPE, 15% masked, Adam (0.9, 0.98),
# no clipping, a linear warm-up over 8% of the steps and a linear decay.
COMMON = (
    "--no-norm-first --activation gelu --tokenizer bpe --mask-rate 0.15 --beta2 0.98 "
    "--weight-decay 0.01 --clip 0 --decay 1 --init-std 0.02"
)
# fmt: off
SIZES = {
    "quick": dict(vocab_size=1000, n_layer=2, n_embd=64, n_head=4, n_ffn=256, block_size=32,
                  batch_size=32, lr=2e-3, steps=800),
    # Many small updates: with fewer, the RoBERTa head only learns word frequencies.
    "laptop": dict(vocab_size=2000, n_layer=2, n_embd=64, n_head=4, n_ffn=256, block_size=64,
                   batch_size=16, lr=2e-3, init_std=0.05, valid=0.03, steps=4000),
    "full": dict(vocab_size=8000, n_layer=6, n_embd=384, n_head=6, n_ffn=1536, block_size=256,
                 batch_size=64, lr=5e-4, steps=12000),
}
# fmt: on
FACTORS = (0.5, 1, 2)  # of the learning rate, for --choose-lr


@dataclass
class Flags(StudyFlags):
    steps: int = flag(0, "updates of each run", shown="as --size says", at_least=0)
    only: str = flag("", "configurations to train, joined by commas, with all seeds", shown="all")
    choose_lr: bool = flag(
        False, "first try half and twice the learning rate, in runs as long as --size says"
    )
    out: str = flag("out/study-clap", "folder of all runs, figures and tables")


def study(flags):
    started, out = time.perf_counter(), Path(flags.out)
    size = SIZES[flags.size]
    steps = flags.steps or size["steps"]
    by_slug = {slug(name): name for name in ALL}
    chosen = known_names(flags, "only", by_slug) if flags.only else by_slug
    names = [by_slug[each] for each in chosen]

    # Jobs: the first seed of all, then the second
    rates = choose_rates(out, names, flags) if flags.choose_lr else dict.fromkeys(names, size["lr"])
    several = names if flags.only else CONFIGURATIONS  # these have all seeds
    seeds = {name: range(flags.seeds if name in several else 1) for name in names}
    pairs = [(name, seed) for seed in range(flags.seeds) for name in names if seed in seeds[name]]
    jobs = [
        training(name, seed, folder(name, seed), flags, steps, rates[name]) for name, seed in pairs
    ]
    main_ones = [name for name in names if name in CONFIGURATIONS]
    folders = [out / folder(name, seed) for name in main_ones for seed in seeds[name]]
    labels = ",".join(NAMES.get(name, name) for name in main_ones)
    comparison = ("compare", "compare", [*folders, *options(labels=labels)])
    run_all(out, (jobs, [comparison] if folders else []), flags)

    # Results
    results = {
        name: [read_result(out / folder(name, seed)) for seed in seeds[name]] for name in names
    }
    draw(out, name_of(flags.data), seeds)
    print(write_table(out, name_of(flags.data), results, rates))
    numbers = {
        name: {"perplexity": [r["perplexity/valid"] for r in each], "lr": rates[name]}
        for name, each in results.items()
    }
    files = ("clap.png", "clap.md", "clap.tex", *(["compare/"] if folders else []))
    finish(flags, out, started, numbers, files)


def training(name, seed, where, flags, steps, lr):
    """Return the job that trains a configuration into the folder `where`."""
    size = SIZES[flags.size] | {"steps": steps, "lr": lr}
    schedule = dict(warmup=steps * 8 // 100, eval_every=max(1, steps // 20))
    common = [*COMMON.split(), *options(data=flags.data, threads=1, **schedule, **size)]
    return where, "train_mlm", [*common, *ALL[name].split(), *options(seed=seed)]


def choose_rates(out, names, flags):
    """Return {name: learning rate}: the best of three on held-out lines, after --size's steps.

    Raises UserError if training diverges with all three.
    """
    size = SIZES[flags.size]
    trials = {(name, f): f"lr-{f:g}-{folder(name, 0)}" for name in names for f in FACTORS}
    jobs = [
        training(name, 0, trial, flags, size["steps"], f * size["lr"])
        for (name, f), trial in trials.items()
    ]
    run_all(out, (jobs,), flags, may_diverge=True)
    rates = {}
    for name in names:
        where = {f: out / trials[name, f] for f in FACTORS}
        ended = [f for f in FACTORS if (where[f] / "result.json").exists()]
        problem = f"--choose-lr: {slug(name)} diverges with each learning rate"
        require((ended, f"{problem}; name the others in --only"))
        found = {f: read_result(where[f])["perplexity/valid"] for f in ended}
        rates[name] = size["lr"] * min(found, key=found.get)
    return rates


def slug(name):
    return name.replace(", ", "-").replace(" ", "-")


def folder(name, seed):
    return f"{slug(name)}-{seed}"


def write_table(out, data_name, results, rates):
    """Write clap.md and clap.tex, and return the Markdown."""
    header = ["configuration", "perplexity", "accuracy (%)", "learning rate"]
    header += ["parameters", "tokens/s", "seeds"]
    rows = [
        [
            name,
            tables.spread([r["perplexity/valid"] for r in each], 2),
            tables.spread([100 * r["accuracy/valid"] for r in each]),
            f"{rates[name]:g}",
            f"{each[0]['parameters']['total']:,}",
            f"{statistics.median(map(speed, each)):,.0f}",
            str(len(each)),
        ]
        for name, each in results.items()
    ]
    caption = (
        "Masked-LM perplexity and share of masked tokens predicted correctly, on held-out lines of "
        f"{data_name}: mean ± sample standard deviation over the seeds. Tokens per second of CPU "
        "time, evaluation included: median of the seeds."
    )
    return tables.write(out / "clap", header, rows, caption)


def speed(result):
    """Return tokens per second of processor time, which other processes do not change."""
    return result["tokens_per_second"] * result["seconds"] / result["cpu_seconds"]


@styled()
def draw(out, data_name, seeds):
    """Draw clap.png: perplexity over steps, and beta of the CLAP heads.

    Colors are position encodings. Lines are solid with the RoBERTa head, dashed with the CLAP
    head, and dotted for the controls. The options are in the table alone, if others are drawn.
    """
    figure, axes = new_figure(1, 2, figsize=(8.4, 3.7), gridspec_kw={"width_ratios": [1.5, 1]})
    values = []
    for i, name in enumerate([name for name in seeds if name not in VARIANTS] or seeds):
        logs = [read_metrics(out / folder(name, seed)) for seed in seeds[name]]
        given = typed_flags(ALL[name].split())
        line = "-" if given["head"] == "roberta" else "--"
        style = dict(
            color=POSITION_COLORS[given["pos"]], linestyle=line, label=NAMES.get(name, name)
        )
        if name not in CONFIGURATIONS:
            style |= dict(linestyle=":", linewidth=1, marker="^vDos"[i % 5], markersize=3)
        steps = [entry["step"] for entry in logs[0]]
        for axis, key in zip(axes, ("perplexity/valid", "beta")):
            if key in logs[0][0]:
                ys = [[entry[key] for entry in log] for log in logs]
                means = over_seeds(axis, steps, ys, **style)
                values += means[len(means) // 8 :] if axis is axes[0] else []
    axes[0].set_yscale("log")
    axes[0].set_ylim(0.95 * min(values), 1.05 * max(values))
    plain_log_ticks(axes[0])
    axes[0].set(xlabel="step", ylabel="masked-LM perplexity (log scale)")
    axes[1].set(xlabel="step", ylabel="beta of the CLAP head")
    for axis in axes:
        axis.locator_params("x", nbins=5)
    figure.suptitle(f"Masked LM on {data_name}: position encodings and output heads")
    legend_below(figure, *axes[0].get_legend_handles_labels())
    save(figure, out / "clap.png")


if __name__ == "__main__":
    main(study, Flags, __doc__)
