"""Show that models without positions learn positions: Haviv et al. 2022, scaled down.

    python -m studies.nope --size quick
    python -m studies.nope --data path/to/wikitext-2 --size laptop

Four position encodings, as causal models of several sizes and lengths and as masked models. Then
studies.probe_position, studies.probe_order, and perplexity beyond the trained length.

Each run is a folder of its own. Finished runs are not repeated.
"""

import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import data
from lab import tables
from lab.command import main
from lab.errors import require
from lab.figures import POSITION_NAMES
from lab.flags import flag
from lab.records import read_result
from studies.jobs import StudyFlags, options, run_all
from studies.report import finish, perplexity, picture, read_table, write_report

POSITIONS = ("nope", "learned", "sinusoidal", "alibi")  # in the order of the paper's tables

# models: (n_layer, n_embd, n_head), of which the second is probed.
# lengths: block sizes besides block_size, for the second model.
# fmt: off
SIZES = {
    "quick": dict(models=((1, 32, 2), (2, 64, 4), (4, 64, 4)), block_size=32, lengths=(16, 64),
                  tokens=512, steps=600, lr=2e-3, vocab_size=0, eval_test=4000,
                  mlm=dict(steps=800, batch_size=32, lr=2e-3)),
    "laptop": dict(models=((2, 32, 4), (3, 64, 4), (4, 96, 4)), block_size=64, lengths=(32, 128),
                   tokens=1024, steps=1200, lr=2e-3, vocab_size=2000, eval_test=40_000,
                   mlm=dict(steps=4000, batch_size=16, lr=2e-3)),
    "full": dict(models=((4, 256, 8), (6, 384, 8), (12, 512, 8)), block_size=256,
                 lengths=(128, 512), tokens=16_384, steps=10_000, lr=1e-3, vocab_size=8000,
                 eval_test=0, mlm=dict(steps=10_000, batch_size=128, lr=5e-4)),
}
# fmt: on


@dataclass
class Flags(StudyFlags):
    seeds_beside: int = flag(
        0, "seeds of the others", shown="as --seeds, quick: 1", at_least=0, at_most=1000
    )
    out: str = flag("out/study-nope", "folder of all runs, figures and the report")


def study(flags):
    started, out, size = time.perf_counter(), Path(flags.out), SIZES[flags.size]
    corpus = data.load(flags.data)
    problem = f"--data {flags.data}: no running text with a test set found; give another corpus"
    require((corpus.lines and corpus.tests, problem))
    beside = flags.seeds_beside or (1 if flags.size == "quick" else flags.seeds)
    probed, T = size["models"][1], size["block_size"]

    # Jobs: the probed model first, then the other sizes, the other lengths, the masked models
    many, few = range(flags.seeds), range(beside)
    jobs = [causal_job(flags, size, pos, probed, T, seed) for seed in many for pos in POSITIONS]
    probed_folders = [out / name for name, _, _ in jobs]
    variants = [(model, T) for model in size["models"] if model != probed]
    variants += [(probed, length) for length in size["lengths"]]
    jobs += [
        causal_job(flags, size, pos, model, length, seed)
        for model, length in variants
        for seed in few
        for pos in POSITIONS
    ]
    jobs += [masked_job(flags, size, pos, seed) for seed in few for pos in POSITIONS]
    masked_folders = [out / f"mlm-{pos}-{seed}" for pos in POSITIONS for seed in few]
    names = options(labels=",".join(POSITION_NAMES[pos] for pos in POSITIONS))
    looks = [
        ("probe", "studies.probe_position", probed_folders),
        ("order", "studies.probe_order", probed_folders),
        ("compare", "compare", [*probed_folders, *names]),
        ("compare-mlm", "compare", [*masked_folders, *names]),
    ]
    run_all(out, (jobs, looks), flags.jobs, cost)

    # Results: for every encoding, perplexities of the seeds by size, by length, and masked
    result = {}
    for pos in POSITIONS:
        by_model = {
            (model, length): [
                perplexity(read_result(out / causal_name(pos, model, length, seed)), corpus.tests)
                for seed in (many if (model, length) == (probed, T) else few)
            ]
            for model, length in [(probed, T), *variants]
        }
        result[pos] = {
            "sizes": [by_model[model, T] for model in size["models"]],
            "lengths": [by_model[probed, length] for length in sorted({T, *size["lengths"]})],
            "masked": [read_result(out / f"mlm-{pos}-{seed}")["perplexity/valid"] for seed in few],
        }
    written = write_tables(out, corpus.name, size, result, flags.seeds, beside)
    write_report(out, "Models without positions still learn positions", report_parts(out, written))
    print("\n".join(written))
    numbers = {f"perplexity/{pos}": numbers for pos, numbers in result.items()}
    finish(out, started, {"tests": list(corpus.tests), **numbers}, ("report.md", "its tables"))


# ---------------------------------------------------------------------------- jobs


def common_flags(flags, size, pos, model, seed):
    n_layer, n_embd, n_head = model
    common = dict(data=flags.data, threads=1, activation="gelu", pos=pos, seed=seed)
    if size["vocab_size"]:
        common |= dict(tokenizer="bpe", vocab_size=size["vocab_size"])
    return common | dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, n_ffn=4 * n_embd)


def causal_name(pos, model, length, seed):
    return f"lm-{pos}-{model[0]}x{model[1]}-{length}-{seed}"


def causal_job(flags, size, pos, model, length, seed):
    steps, T = size["steps"], size["block_size"]
    training = dict(
        block_size=length,
        batch_size=size["tokens"] // length,
        lr=size["lr"],
        steps=steps,
        warmup=steps // 20,
        eval_every=steps // 4,
        eval_train=size["eval_test"] or 100_000,
        eval_test=size["eval_test"],
    )
    if (model, length) == (size["models"][1], T) and pos != "learned":
        training["eval_block"] = ",".join(str(T * factor) for factor in (2, 4, 8))
    arguments = options(**common_flags(flags, size, pos, model, seed), **training)
    return causal_name(pos, model, length, seed), "train_lm", arguments


def masked_job(flags, size, pos, seed):
    steps = size["mlm"]["steps"]
    training = size["mlm"] | dict(
        block_size=size["block_size"],
        dropout=0,
        mask_rate=0.15,
        init_std=0.05,
        warmup=steps // 20,
        eval_every=steps // 8,
    )
    common = common_flags(flags, size, pos, size["models"][1], seed)
    return f"mlm-{pos}-{seed}", "train_mlm", options(**common, **training)


def cost(arguments):
    """Estimate the floating-point operations of a training, or of a probe."""
    if "--n-embd" not in arguments:
        return 1e12
    given = dict(zip(arguments[::2], arguments[1::2]))
    n_layer, n_embd, *tokens = (
        int(given[f"--{name}"])
        for name in ("n-layer", "n-embd", "steps", "batch-size", "block-size")
    )
    return 6 * (12 * n_layer * n_embd**2 + 4000 * n_embd) * math.prod(tokens)


# ---------------------------------------------------------------------------- results


def write_tables(out, data_name, size, result, seeds, beside):
    """Write sizes, lengths and masked as .md and .tex; return the Markdown of the three."""
    (n_layer, n_embd, _), T = size["models"][1], size["block_size"]
    lengths = sorted({T, *size["lengths"]})
    probed = f"{n_layer} layers, {n_embd} wide"
    how = (
        f"Data {data_name}, {size['steps']:,} steps of {size['tokens']:,} tokens. Mean ± sample "
        f"standard deviation, {seeds} seeds of {probed} with {T} tokens, {beside} of the others. "
        "The best mean of each column is bold."
    )
    models = [f"{a} layer{'s' * (a > 1)}, {b} wide" for a, b, _ in size["models"]]
    about = {  # name: (columns, caption)
        "sizes": (models, f"Test perplexity by model size, blocks of {T} tokens. {how}"),
        "lengths": (
            [f"{length} tokens" for length in lengths],
            f"Test perplexity by block length in training and evaluation, {probed}. {how}",
        ),
        "masked": (
            ["masked-LM perplexity"],
            f"Masked-LM perplexity on held-out lines of {data_name}, {probed}, seeds: {beside}. "
            "An encoder without positions sees a bag of words.",
        ),
    }
    written = []
    for name, (columns, caption) in about.items():
        cells = {pos: r[name] if name != "masked" else [r[name]] for pos, r in result.items()}
        rows = [
            [POSITION_NAMES[pos], *(tables.spread(values, 2) for values in cells[pos])]
            for pos in cells
        ]
        for i in range(len(columns)):
            means = [statistics.fmean(cells[pos][i]) for pos in cells]
            row = rows[means.index(min(means))]
            row[i + 1] = f"**{row[i + 1]}**"
        written.append(tables.write(out / name, ["positions", *columns], rows, caption))
    return written


def report_parts(out, written):
    sizes, lengths, masked = written
    return [
        "## Causal language models",
        sizes,
        lengths,
        picture("compare/compare.png", "Perplexity over steps"),
        "## Train short, test long",
        picture("compare/train-short-test-long.png", "Perplexity at longer blocks"),
        "## Which layers know a word's position?",
        read_table(out / "probe" / "probe.md"),
        picture("probe/probe.png", "Error of the position probe in every layer"),
        "## Does the order of the words matter?",
        read_table(out / "order" / "order.md"),
        picture("order/order.png", "Loss with shuffled words, and along the block"),
        "## Masked language models",
        masked,
        picture("compare-mlm/compare.png", "Masked-LM perplexity over steps"),
    ]


if __name__ == "__main__":
    main(study, Flags, __doc__)
