"""Show that decoders without position encodings learn positions: Haviv et al. 2022, scaled down.

    python -m studies.nope --size quick
    python -m studies.nope --data path/to/wikitext-2 --size laptop

Causal models with each position encoding, with and without an anchor (every block begins with
[BOS]), of several depths and lengths; and masked models. Then, with studies.probe_position and
other probes: which layers know positions, when they learn them, which head does it, and why.

Each run is a folder of its own. Finished runs are not repeated.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import data
from lab import tables
from lab.command import main
from lab.comparison.lengths import joint_perplexity
from lab.errors import require
from lab.figures import POSITION_NAMES
from lab.flags import flag
from lab.records import read_result
from studies.jobs import StudyFlags, options, run_all, typed_flags
from studies.report import finish, picture, read_table, write_report

COMPARED = ("nope", "learned", "sinusoidal", "alibi", "rope")
PAIR = ("nope", "learned")  # have --seeds seeds, and are compared in every respect
ANCHORS = (False, True)  # whether every block begins with [BOS]

# depths: numbers of layers, of which the second is the main model. lengths: of blocks; the main
# model has the first.
# keep: the steps whose weights show when positions are learned. probe: flags of all probes.
# fmt: off
SIZES = {
    "quick": dict(
        depths=(1, 2), n_embd=64, n_head=4, lengths=(32,), tokens=512, steps=800, lr=3e-3,
        vocab_size=0, eval_test=4000, keep=(0, 50, 100, 200, 400, 800),
        probe=dict(blocks=600, steps=400),
        mlm=dict(steps=800, batch_size=32, lr=2e-3)),
    "laptop": dict(
        depths=(2, 3, 4), n_embd=64, n_head=4, lengths=(64, 128), tokens=2048, steps=2000,
        lr=3e-3, vocab_size=2000, eval_test=40_000,
        keep=(0, 100, 200, 400, 700, 1000, 1500, 2000),
        probe=dict(blocks=1500, steps=2000),
        mlm=dict(steps=8000, batch_size=32, lr=2e-3)),
    "full": dict(
        depths=(4, 6, 12), n_embd=384, n_head=8, lengths=(256, 512), tokens=16_384,
        steps=10_000, lr=1e-3, vocab_size=8000, eval_test=0,
        keep=(0, 250, 500, 1000, 2000, 4000, 7000, 10_000),
        probe=dict(blocks=3000, steps=6000),
        mlm=dict(steps=10_000, batch_size=128, lr=5e-4)),
}
# fmt: on


@dataclass
class Flags(StudyFlags):
    seeds: int = flag(3, "seeds of NoPE and of learned positions", at_least=1, at_most=1000)
    seeds_beside: int = flag(1, "seeds of all other models", at_least=1, at_most=1000)
    out: str = flag("out/study-nope", "folder of all runs, figures and the report")


@dataclass(frozen=True)
class Model:
    """A causal model of the study, trained with several seeds."""

    pos: str
    n_layer: int
    length: int
    anchor: bool
    seeds: int

    def name(self, seed):
        anchor = "-anchor" if self.anchor else ""
        return f"lm-{self.pos}-{self.n_layer}-{self.length}{anchor}-{seed}"

    def names(self):
        return [self.name(seed) for seed in range(self.seeds)]

    @property
    def label(self):
        return POSITION_NAMES[self.pos] + " + anchor" * self.anchor


def study(flags):
    started, out, size = time.perf_counter(), Path(flags.out), SIZES[flags.size]
    corpus = data.load(flags.data)
    problem = f"--data {flags.data}: no running text with a test set found; give another corpus"
    require((corpus.lines and corpus.tests, problem))
    n_layer, T = main_shape(size)
    few = flags.seeds_beside

    # The main model with each encoding, then NoPE of other depths, then other lengths of block
    main_models = [
        Model(pos, n_layer, T, anchor, flags.seeds if pos in PAIR else few)
        for pos in COMPARED
        for anchor in ANCHORS
        if anchor or pos in PAIR
    ]
    depths = [Model("nope", n, T, a, few) for n in size["depths"] if n != n_layer for a in ANCHORS]
    lengths = [Model(p, n_layer, n, True, few) for n in size["lengths"] if n != T for p in PAIR]
    models = [*main_models, *depths, *lengths]
    jobs = [causal_job(flags, size, model, seed) for model in models for seed in range(model.seeds)]
    jobs += [masked_job(flags, size, pos, seed) for seed in range(few) for pos in PAIR]

    # What is looked at: the main models, those with the anchor beside NoPE, NoPE alone, its depths
    nope = [model for model in main_models if model.pos == "nope"]
    probed = [nope[0], *(model for model in main_models if model.anchor)]
    looks = [
        ("probe", "studies.probe_position", [*runs(out, probed), *options(**size["probe"])]),
        ("depth", "studies.probe_position", [*runs(out, depths), *options(**size["probe"])]),
        ("emergence", "studies.emergence", [*runs(out, nope), *options(**size["probe"])]),
        ("anchor", "studies.anchor_head", [*runs(out, nope), *options(**size["probe"])]),
        ("averages", "studies.averages", runs(out, nope)),
        ("order", "studies.probe_order", runs(out, probed)),
        ("compare", "compare", runs(out, main_models)),
    ]
    run_all(out, (jobs, looks), flags, lambda _, arguments: cost(arguments, jobs[0][-1]))

    # Results: the perplexity of all test sets together, of every seed of every model
    result = {
        model: [joint_perplexity(read_result(out / name), corpus.tests) for name in model.names()]
        for model in models
    }
    masked = {
        pos: [read_result(out / f"mlm-{pos}-{seed}")["perplexity/valid"] for seed in range(few)]
        for pos in PAIR
    }
    written = write_tables(out, corpus.name, size, result, masked)
    title = "Models without positions still learn positions"
    write_report(flags, out, title, report_parts(out, written))
    print("\n".join(written))
    numbers = {f"perplexity/{model.name('SEED')}": values for model, values in result.items()}
    numbers |= {f"masked perplexity/{pos}": values for pos, values in masked.items()}
    numbers |= {"tests": list(corpus.tests)}
    finish(flags, out, started, numbers, ("report.html", "report.md", "its tables"))


# ---------------------------------------------------------------------------- jobs


def causal_job(flags, size, model, seed):
    steps, is_main = size["steps"], (model.n_layer, model.length) == main_shape(size)
    training = common_flags(flags, size, model.pos, model.n_layer, model.length, seed) | dict(
        batch_size=size["tokens"] // model.length,
        lr=size["lr"],
        steps=steps,
        warmup=steps // 20,
        eval_every=steps // 4,
        eval_train=size["eval_test"] or 100_000,
        eval_test=size["eval_test"],
    )
    if is_main and model.pos == "nope":
        training["keep"] = ",".join(map(str, size["keep"]))
    if is_main and model.pos != "learned":
        training["eval_block"] = ",".join(str(model.length * factor) for factor in (2, 4, 8))
    anchor = ["--anchor"] if model.anchor else []
    return model.name(seed), "train_lm", [*options(**training), *anchor]


def masked_job(flags, size, pos, seed):
    steps = size["mlm"]["steps"]
    n_layer, length = main_shape(size)
    training = common_flags(flags, size, pos, n_layer, length, seed) | dict(
        dropout=0, mask_rate=0.15, init_std=0.05, warmup=steps // 20, eval_every=steps // 8
    )
    return f"mlm-{pos}-{seed}", "train_mlm", options(**training | size["mlm"])


def runs(out, models):
    """Return the run folders of models, and flags that name them, as the looks take them."""
    depths = {model.n_layer for model in models}
    labels = [f"{m.label} {m.n_layer} layers" if len(depths) > 1 else m.label for m in models]
    folders = [out / name for model in models for name in model.names()]
    return [*folders, *options(labels=",".join(labels))]


def common_flags(flags, size, pos, n_layer, length, seed):
    common = dict(data=flags.data, threads=1, activation="gelu", pos=pos, seed=seed)
    if size["vocab_size"]:
        common |= dict(tokenizer="bpe", vocab_size=size["vocab_size"])
    width = dict(n_head=size["n_head"], n_embd=size["n_embd"], n_ffn=4 * size["n_embd"])
    return common | width | dict(n_layer=n_layer, block_size=length)


def main_shape(size):
    """Return depth and length of block of the main model."""
    return size["depths"][1], size["lengths"][0]


def cost(arguments, first):
    """Estimate the FLOPs of a training; a look takes about as long as the first one."""
    given = typed_flags(arguments if "--n-embd" in arguments else first)
    n_layer, n_embd, *tokens = (
        int(given[name]) for name in ("n_layer", "n_embd", "steps", "batch_size", "block_size")
    )
    return 6 * (12 * n_layer * n_embd**2 + 4000 * n_embd) * math.prod(tokens)


# ---------------------------------------------------------------------------- results


def write_tables(out, data_name, size, result, masked):
    """Write encodings, depths, lengths and masked as .md and .tex; return the Markdown of all."""
    n_layer, T = main_shape(size)
    shape = f"{n_layer} layers, blocks of {T}"
    spread = "± is the sample standard deviation over seeds."
    budget = f"{size['steps']:,} steps of {size['tokens']:,} tokens"
    how = f"Data {data_name}, width {size['n_embd']}, {budget}. {spread}"
    by_shape = {(m.pos, m.n_layer, m.length, m.anchor): values for m, values in result.items()}

    def row(name, *keys):
        found = [by_shape.get(key) for key in keys]
        return [name, *(tables.spread(values, 2) if values else "–" for values in found)]

    encodings = tables.write(
        out / "encodings",
        ["positions", "no anchor", "anchor"],
        [row(POSITION_NAMES[p], *((p, n_layer, T, a) for a in ANCHORS)) for p in COMPARED],
        f"Test perplexity by position encoding, {shape}. {how}",
    )
    depths = tables.write(
        out / "depths",
        ["NoPE", "no anchor", "anchor"],
        [
            row(f"{n} layer{'s' * (n > 1)}", *(("nope", n, T, a) for a in ANCHORS))
            for n in size["depths"]
        ],
        f"Test perplexity of NoPE by depth, blocks of {T}. {how}",
    )
    lengths = tables.write(
        out / "lengths",
        ["positions", *(f"{length} tokens" for length in size["lengths"])],
        [row(POSITION_NAMES[p], *((p, n_layer, n, True) for n in size["lengths"])) for p in PAIR],
        f"Test perplexity by length of the blocks, with anchor, {n_layer} layers. {how}",
    )
    budget = f"{size['mlm']['steps']:,} steps of {size['mlm']['batch_size']} sequences"
    of_masked = tables.write(
        out / "masked",
        ["positions", "masked-LM perplexity"],
        [[POSITION_NAMES[p], tables.spread(values, 2)] for p, values in masked.items()],
        f"Masked-LM perplexity on held-out lines of {data_name}, {shape}, {budget}. An encoder "
        f"without positions sees a bag of words. {spread}",
    )
    return encodings, depths, lengths, of_masked


def report_parts(out, written):
    encodings, depths, lengths, masked = written
    scores = [read_table(out / "probe" / f"{name}.md") for name in ("median", "argmax", "nats")]
    return [
        "## Which layers know a word's position?",
        scores[0],
        picture("probe/probe.png", "Position probe of every layer"),
        *scores[1:],
        "## NoPE of other depths",
        read_table(out / "depth" / "median.md"),
        "## When do they learn it?",
        read_table(out / "emergence" / "emergence.md"),
        picture("emergence/emergence.png", "Position probe over the steps of the training"),
        "## Which head does it?",
        read_table(out / "anchor" / "anchor.md"),
        picture("anchor/anchor.png", "Attention on the first token"),
        "## Why do untrained models know some of it?",
        read_table(out / "averages" / "averages.md"),
        picture("averages/averages.png", "Squared length of the first attention's output"),
        "## Perplexity",
        encodings,
        depths,
        lengths,
        picture("compare/compare.png", "Perplexity over steps"),
        "## Train short, test long",
        read_table(out / "compare" / "train-short-test-long.md"),
        picture("compare/train-short-test-long.png", "Perplexity at longer blocks"),
        "## Does the order of the words matter?",
        read_table(out / "order" / "order.md"),
        picture("order/order.png", "Loss with shuffled words, and along the block"),
        "## Masked language models",
        masked,
    ]


if __name__ == "__main__":
    main(study, Flags, __doc__)
