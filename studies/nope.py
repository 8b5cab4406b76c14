"""Show that decoders without position encodings learn positions: Haviv et al. 2022, scaled down.

    python -m studies.nope --size quick
    python -m studies.nope --data path/to/wikitext-2 --size laptop

Decoders with each position encoding, with and without an anchor (every block begins with [BOS]),
and of several depths. Then studies.probe: which layers know positions, when they learn them, and
whether word order is used. Finished runs are not repeated. studies.grid has other sizes and
lengths, and encoders.
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

# depths: numbers of layers, the main model has the second. tokens: of a step.
# keep: the steps whose weights show when positions are learned. probe: flags of all probes.
# fmt: off
SIZES = {
    "quick": dict(
        depths=(1, 2), n_embd=64, n_head=4, block_size=32, tokens=512, steps=800, lr=3e-3,
        vocab_size=0, eval_test=4000, keep="0,50,100,200,400,800",
        probe=dict(blocks=600, steps=400)),
    "laptop": dict(
        depths=(2, 3, 4), n_embd=64, n_head=4, block_size=64, tokens=2048, steps=2000, lr=3e-3,
        vocab_size=2000, eval_test=40_000, keep="0,100,200,400,700,1000,1500,2000",
        probe=dict(blocks=1500, steps=2000)),
    "full": dict(
        depths=(4, 6, 12), n_embd=384, n_head=8, block_size=256, tokens=16_384, steps=10_000,
        lr=1e-3, vocab_size=8000, eval_test=0, keep="0,250,500,1000,2000,4000,7000,10000",
        probe=dict(blocks=3000, steps=6000)),
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
    main_depth = trainings.depth

    plain = trainings.add_decoders(PAIR, [main_depth], [False])
    anchored = trainings.add_decoders(COMPARED, [main_depth], [True])
    depths = trainings.add_decoders(["nope"], trainings.size["depths"], [False, True])
    nope = trainings.add_decoders(["nope"], [main_depth], [False])
    nope_anchored = trainings.add_decoders(["nope"], [main_depth], [True])

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
        self.jobs = {}  # folder: Job

    def add_decoders(self, encodings, depths, anchors):
        """Add the jobs of all combinations and of their seeds; return the folders."""
        folders = []
        for pos, n_layer, anchor in product(encodings, depths, anchors):
            is_main = n_layer == self.depth
            seeds = self.flags.seeds_beside
            if is_main and pos in PAIR:
                seeds = self.flags.seeds
            name = f"lm-{pos}-{n_layer}"
            if anchor:
                name += "-anchor"
            for seed in range(seeds):
                words = self.words_of_model(pos, n_layer, seed) + self.words_of_training()
                if is_main:
                    words += self.words_of_main(pos)
                if anchor:
                    words.append("--anchor")
                self.jobs[f"{name}-{seed}"] = Job(f"{name}-{seed}", "train_lm", words)
                folders.append(self.out / f"{name}-{seed}")
        return folders

    def words_of_model(self, pos, n_layer, seed):
        """Return the flags of a model and of its data."""
        words = options(data=self.flags.data, threads=1, pos=pos, seed=seed)
        if self.size["vocab_size"]:
            words += options(tokenizer="bpe", vocab_size=self.size["vocab_size"])
        C = self.size["n_embd"]
        words += options(n_layer=n_layer, n_embd=C, n_head=self.size["n_head"], n_ffn=4 * C)
        return words + options(block_size=self.size["block_size"], activation="gelu")

    def words_of_training(self):
        """Return the flags of the steps and of their evaluations."""
        steps = self.size["steps"]
        n_test = self.size["eval_test"]
        return options(
            batch_size=self.size["tokens"] // self.size["block_size"],
            lr=self.size["lr"],
            steps=steps,
            warmup=steps // 20,
            eval_every=steps // 4,
            eval_train=n_test or 100_000,
            eval_test=n_test,
        )

    def words_of_main(self, pos):
        """Return the flags that only models of the main depth have."""
        words = []
        if pos == "nope":
            words += options(keep=self.size["keep"])
        if not POSITIONS[pos].ends:
            T = self.size["block_size"]
            words += options(eval_block=f"{2 * T},{4 * T},{8 * T}")
        return words


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
