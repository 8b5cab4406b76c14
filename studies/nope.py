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
from data.files import write_text
from lab.flags import main, require
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
    require(corpus.lines and corpus.tests, f"--data {flags.data}: no running text with a test set")
    depth, T, jobs = size["depths"][1], size["lengths"][0], {}
    bpe = dict(tokenizer="bpe", vocab_size=size["vocab_size"]) if size["vocab_size"] else {}
    shape = dict(n_embd=size["n_embd"], n_head=size["n_head"], n_ffn=4 * size["n_embd"])

    def words(pos, n_layer, length, seed, more):
        of = dict(threads=1, pos=pos, seed=seed, **bpe, n_layer=n_layer, **shape)
        return options(data=flags.data, **of, block_size=length, activation="gelu", **more)

    def train(*axes):
        """Add a job per (pos, n_layer, length of blocks, anchor) and seed; return the folders."""
        folders = []
        for pos, n_layer, length, anchor in product(*axes):
            is_main, steps, test = (n_layer, length) == (depth, T), size["steps"], size["eval_test"]
            more = dict(batch_size=size["tokens"] // length, lr=size["lr"], steps=steps)
            more |= dict(warmup=steps // 20, eval_every=steps // 4)
            more |= dict(eval_train=test or 100_000, eval_test=test)
            if is_main and pos == "nope":
                more["keep"] = size["keep"]
            if is_main and not POSITIONS[pos].ends:
                more["eval_block"] = f"{2 * length},{4 * length},{8 * length}"
            for seed in range(flags.seeds if is_main and pos in PAIR else flags.seeds_beside):
                name = f"lm-{pos}-{n_layer}-{length}{'-anchor' * anchor}-{seed}"
                flag = ["--anchor"] * anchor
                jobs[name] = name, "train_lm", words(pos, n_layer, length, seed, more) + flag
                folders.append(out / name)
        return folders

    plain = train(PAIR, [depth], [T], [False])
    anchored = train(COMPARED, [depth], [T], [True])
    depths = train(["nope"], size["depths"], [T], [False, True])
    lengths = train(PAIR, [depth], size["lengths"], [True])
    nope = train(["nope"], [depth], [T], [False])
    both = nope + train(["nope"], [depth], [T], [True])
    more = dict(dropout=0, mask_rate=0.15, init_std=0.05) | size["mlm"]
    more |= dict(warmup=more["steps"] // 20, eval_every=more["steps"] // 8)
    masked = {f"mlm-{pos}-{n}": (pos, n) for pos in PAIR for n in range(flags.seeds_beside)}
    for name, (pos, n) in masked.items():
        jobs[name] = name, "train_mlm", words(pos, depth, T, n, more)
    how = options(**size["probe"])
    looks = [
        ("probe", "studies.probe", [*nope, *anchored, *how, "--order"]),
        ("probe-depth", "studies.probe", [*(run for run in depths if run not in both), *how]),
        ("probe-kept", "studies.probe", [*both, *how, "--kept", size["keep"]]),
        ("compare", "compare", plain + anchored),
        ("compare-depth", "compare", depths),
        ("compare-length", "compare", lengths),
        ("compare-masked", "compare", [out / name for name in masked]),
    ]
    run_all(out, [jobs.values(), looks], flags)
    report = "# Models without positions still learn positions\n"
    for heading, table in REPORT:
        figure = table.replace("median", "probe")
        report += f"\n## {heading}\n\n{(out / f'{table}.md').read_text('utf-8')}"
        report += f"\n![{heading}]({figure}.png)\n" if (out / f"{figure}.png").exists() else ""
    write_text(out / "report.md", report)
    print(out / "report.md")


if __name__ == "__main__":
    main(study, Flags)
