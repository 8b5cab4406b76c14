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
from lab.flags import Data, Folder, main, require
from model import POSITIONS
from studies.sweep import Job, SweepFlags, options, run_all

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
    data: Data = "toy"  # corpus, as in the training scripts
    size: Literal["quick", "laptop", "full"] = "laptop"  # minutes; an hour; a night, or a GPU
    seeds: int = 3  # seeds of NoPE and of learned positions
    seeds_beside: int = 1  # seeds of all other models
    out: Folder = "out/study-nope"  # folder of all runs, figures and the report


def study(flags):
    out = Path(flags.out).expanduser()
    corpus = data.load(flags.data)
    require(corpus.lines and corpus.tests, f"--data {flags.data}: no running text with a test set")
    trainings = Trainings(flags, out)
    depth = trainings.depth
    T = trainings.length

    plain = trainings.add_decoders(PAIR, [depth], [T], [False])
    anchored = trainings.add_decoders(COMPARED, [depth], [T], [True])
    depths = trainings.add_decoders(["nope"], trainings.size["depths"], [T], [False, True])
    lengths = trainings.add_decoders(PAIR, [depth], trainings.size["lengths"], [True])
    nope = trainings.add_decoders(["nope"], [depth], [T], [False])
    nope_anchored = trainings.add_decoders(["nope"], [depth], [T], [True])
    masked = trainings.add_masked()

    main_nope = nope + nope_anchored
    other_depths = [run for run in depths if run not in main_nope]
    probe = options(**trainings.size["probe"])
    keep = trainings.size["keep"]
    analyses = [
        Job("probe", "studies.probe", [*nope, *anchored, *probe, "--order"]),
        Job("probe-depth", "studies.probe", [*other_depths, *probe]),
        Job("probe-kept", "studies.probe", [*main_nope, *probe, "--kept", keep]),
        Job("compare", "compare", plain + anchored),
        Job("compare-depth", "compare", depths),
        Job("compare-length", "compare", lengths),
        Job("compare-masked", "compare", masked),
    ]
    run_all(out, [trainings.jobs.values(), analyses], flags)
    write_report(out)


class Trainings:
    """The jobs that train models. A model that several comparisons need is trained once."""

    def __init__(self, flags, out):
        self.flags = flags
        self.out = out
        self.size = SIZES[flags.size]
        self.depth = self.size["depths"][1]  # of the main model
        self.length = self.size["lengths"][0]
        self.jobs = {}  # folder: Job

    def add_decoders(self, encodings, depths, lengths, anchors):
        """Add the jobs of all combinations and of their seeds; return the folders."""
        folders = []
        for pos, n_layer, length, anchor in product(encodings, depths, lengths, anchors):
            is_main = (n_layer, length) == (self.depth, self.length)
            seeds = self.flags.seeds_beside
            if is_main and pos in PAIR:
                seeds = self.flags.seeds
            name = f"lm-{pos}-{n_layer}-{length}"
            if anchor:
                name += "-anchor"
            for seed in range(seeds):
                words = self.words(pos, n_layer, length, seed)
                words += self.words_of_decoder(pos, length, is_main)
                if anchor:
                    words.append("--anchor")
                self.jobs[f"{name}-{seed}"] = Job(f"{name}-{seed}", "train_lm", words)
                folders.append(self.out / f"{name}-{seed}")
        return folders

    def words_of_decoder(self, pos, length, is_main):
        """Return the flags of decoders alone. is_main: of the main model's depth and length."""
        steps = self.size["steps"]
        n_test = self.size["eval_test"]
        words = options(
            batch_size=self.size["tokens"] // length,
            lr=self.size["lr"],
            steps=steps,
            warmup=steps // 20,
            eval_every=steps // 4,
            eval_train=n_test or 100_000,
            eval_test=n_test,
        )
        if is_main and pos == "nope":
            words += options(keep=self.size["keep"])
        if is_main and not POSITIONS[pos].ends:
            words += options(eval_block=f"{2 * length},{4 * length},{8 * length}")
        return words

    def add_masked(self):
        """Add the jobs of masked models; return the folders."""
        flags_of_mlm = dict(dropout=0, mask_rate=0.15, init_std=0.05) | self.size["mlm"]
        steps = flags_of_mlm["steps"]
        schedule = options(**flags_of_mlm, warmup=steps // 20, eval_every=steps // 8)
        folders = []
        for pos, seed in product(PAIR, range(self.flags.seeds_beside)):
            name = f"mlm-{pos}-{seed}"
            words = self.words(pos, self.depth, self.length, seed) + schedule
            self.jobs[name] = Job(name, "train_mlm", words)
            folders.append(self.out / name)
        return folders

    def words(self, pos, n_layer, length, seed):
        """Return the flags of every model."""
        words = options(data=self.flags.data, threads=1, pos=pos, seed=seed)
        if self.size["vocab_size"]:
            words += options(tokenizer="bpe", vocab_size=self.size["vocab_size"])
        C = self.size["n_embd"]
        words += options(n_layer=n_layer, n_embd=C, n_head=self.size["n_head"], n_ffn=4 * C)
        return words + options(block_size=length, activation="gelu")


def write_report(out):
    """Write report.md, all tables with their figures."""
    report = "# Models without positions still learn positions\n"
    for heading, table in REPORT:
        report += f"\n## {heading}\n\n{(out / f'{table}.md').read_text('utf-8')}"
        figure = table.replace("median", "probe")
        if (out / f"{figure}.png").exists():
            report += f"\n![{heading}]({figure}.png)\n"
    write_text(out / "report.md", report)
    print(out / "report.md")


if __name__ == "__main__":
    main(study, Flags)
