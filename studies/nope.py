"""Show that decoders without position encodings learn positions: Haviv et al. 2022, scaled down.

    python -m studies.nope --size quick
    python -m studies.nope --data path/to/wikitext-2 --size laptop

Causal models with each position encoding, with and without an anchor (every block begins with
[BOS]), of several depths and lengths; and masked models. Then studies.probe: which layers know
positions, when they learn them, and whether word order is used. Finished runs are not repeated.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import data
from data.files import UserError, write_text
from lab.flags import main
from model import POSITIONS
from studies.sweep import SweepFlags, options, run_all

COMPARED = ("nope", "learned", "sinusoidal", "alibi", "rope")
PAIR = ("nope", "learned")  # have --seeds seeds, and are compared in every respect

# depths: numbers of layers, lengths: of blocks; the main model has the second and the first.
# keep: the steps whose weights show when positions are learned. probe: flags of all probes.
# fmt: off
SIZES = {
    "quick": dict(
        depths=(1, 2), n_embd=64, n_head=4, lengths=(32,), tokens=512, steps=800, lr=3e-3,
        vocab_size=0, eval_test=4000, keep="0,50,100,200,400,800",
        probe=dict(blocks=600, steps=400),
        mlm=dict(steps=800, batch_size=32, lr=2e-3)),
    "laptop": dict(
        depths=(2, 3, 4), n_embd=64, n_head=4, lengths=(64, 128), tokens=2048, steps=2000,
        lr=3e-3, vocab_size=2000, eval_test=40_000, keep="0,100,200,400,700,1000,1500,2000",
        probe=dict(blocks=1500, steps=2000),
        mlm=dict(steps=8000, batch_size=32, lr=2e-3)),
    "full": dict(
        depths=(4, 6, 12), n_embd=384, n_head=8, lengths=(256, 512), tokens=16_384,
        steps=10_000, lr=1e-3, vocab_size=8000, eval_test=0,
        keep="0,250,500,1000,2000,4000,7000,10000",
        probe=dict(blocks=3000, steps=6000),
        mlm=dict(steps=10_000, batch_size=128, lr=5e-4)),
}
# fmt: on
REPORT = (  # heading, table
    ("Which layers know a token's position?", "probe/median"),
    ("NoPE of other depths", "probe-depth/median"),
    ("When do they learn it?", "probe-kept/median"),
    ("Does the order of the words matter?", "probe/order"),
    ("Perplexity", "compare/compare"),
    ("Train short, test long", "compare/train-short-test-long"),
    ("Perplexity of NoPE by depth", "compare-depth/compare"),
    ("Perplexity by length of the blocks", "compare-length/compare"),
    ("Masked language models", "compare-masked/compare"),
)


@dataclass
class Flags(SweepFlags):
    data: str = "toy"  # corpus, as in the training scripts
    size: Literal["quick", "laptop", "full"] = "laptop"  # minutes; an hour; a night, or a GPU
    seeds: int = 3  # seeds of NoPE and of learned positions
    seeds_beside: int = 1  # seeds of all other models
    out: str = "out/study-nope"  # folder of all runs, figures and the report


def study(flags):
    out, size, corpus = Path(flags.out).expanduser(), SIZES[flags.size], data.load(flags.data)
    if not (corpus.lines and corpus.tests):
        raise UserError(f"--data {flags.data}: no running text with a test set; choose another")
    depth, T = size["depths"][1], size["lengths"][0]

    def models(*axes):
        """Return (pos, n_layer, length of blocks, anchor, seed) of all combinations."""
        found = []
        for pos, n_layer, length, anchor in product(*axes):
            is_main = pos in PAIR and (n_layer, length) == (depth, T)
            n = flags.seeds if is_main else flags.seeds_beside
            found += [(pos, n_layer, length, anchor, seed) for seed in range(n)]
        return found

    main_models = models(PAIR, [depth], [T], [False]) + models(COMPARED, [depth], [T], [True])
    nope = models(["nope"], [depth], [T], [False, True])
    depths = models(["nope"], size["depths"], [T], [False, True])
    lengths = models(PAIR, [depth], size["lengths"], [True])
    jobs = {folder_of(m): causal_job(flags, size, *m) for m in main_models + depths + lengths}
    masked = {
        f"mlm-{pos}-{seed}": (pos, seed) for pos in PAIR for seed in range(flags.seeds_beside)
    }
    jobs |= {folder: masked_job(flags, size, *model) for folder, model in masked.items()}

    def look(name, chosen, *more):
        """Return the job that measures or compares models."""
        module = "studies.probe" if name.startswith("probe") else "compare"
        return name, module, [*(out / folder_of(model) for model in chosen), *more]

    probe = options(**size["probe"])
    probed = [model for model in main_models if model[3] or model[0] == "nope"]
    looks = [
        look("probe", probed, *probe, "--order"),
        look("probe-depth", [model for model in depths if model[1] != depth], *probe),
        look("probe-kept", nope, *probe, "--kept", "all"),
        look("compare", main_models),
        look("compare-depth", depths),
        look("compare-length", lengths),
        ("compare-masked", "compare", [out / folder for folder in masked]),
    ]
    run_all(out, [[(name, *job) for name, job in jobs.items()], looks], flags)
    report = "# Models without positions still learn positions\n"
    for heading, table in REPORT:
        figure = table.replace("median", "probe")
        report += f"\n## {heading}\n\n{(out / f'{table}.md').read_text('utf-8')}"
        report += f"\n![{heading}]({figure}.png)\n" if (out / f"{figure}.png").exists() else ""
    write_text(out / "report.md", report)
    print(out / "report.md")


def folder_of(model):
    pos, n_layer, length, anchor, seed = model
    return f"lm-{pos}-{n_layer}-{length}{'-anchor' * anchor}-{seed}"


def causal_job(flags, size, pos, n_layer, length, anchor, seed):
    steps, is_main = size["steps"], (n_layer, length) == (size["depths"][1], size["lengths"][0])
    more = dict(batch_size=size["tokens"] // length, lr=size["lr"], steps=steps)
    more |= dict(warmup=steps // 20, eval_every=steps // 4)
    more |= dict(eval_train=size["eval_test"] or 100_000, eval_test=size["eval_test"])
    if is_main and pos == "nope":
        more["keep"] = size["keep"]
    if is_main and not POSITIONS[pos].ends:
        more["eval_block"] = ",".join(str(length * factor) for factor in (2, 4, 8))
    words = common(flags, size, pos, n_layer, length, seed, **more)
    return "train_lm", words + ["--anchor"] * anchor


def masked_job(flags, size, pos, seed):
    more = dict(dropout=0, mask_rate=0.15, init_std=0.05) | size["mlm"]
    more |= dict(warmup=more["steps"] // 20, eval_every=more["steps"] // 8)
    shape = size["depths"][1], size["lengths"][0]
    return "train_mlm", common(flags, size, pos, *shape, seed, **more)


def common(flags, size, pos, n_layer, length, seed, **more):
    bpe = dict(tokenizer="bpe", vocab_size=size["vocab_size"]) if size["vocab_size"] else {}
    shape = dict(n_layer=n_layer, n_embd=size["n_embd"], n_head=size["n_head"])
    shape |= dict(n_ffn=4 * size["n_embd"], block_size=length, activation="gelu")
    return options(data=flags.data, threads=1, pos=pos, seed=seed, **bpe, **shape, **more)


if __name__ == "__main__":
    main(study, Flags)
