"""Is NoPE comparable "at all sizes and lengths"? Four position encodings, scaled down.

    python -m studies.grid --size quick
    python -m studies.grid --data path/to/wikitext-2

Haviv et al. 2022 train decoders without an anchor, in several sizes and in blocks of several
lengths, and find models without positions (NoPE) slightly behind the others. Encoders without
positions stay far behind. Here, every cell of the grid and every kind of encoder has
several seeds, and the difference of NoPE from each other encoding is tested.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import data
from lab import tables
from lab.flags import Data, Folder, main, require
from lab.rows import Row, read_finished_run
from lab.significance import compare_seeds
from model import POSITIONS
from studies.sweep import Job, SweepFlags, finish, options, run_all

OTHERS = ("learned", "alibi", "rope")
ENCODINGS = ("nope", *OTHERS)

# widths and lengths make the grid, tokens: of a step; lm and masked: flags of each decoder and of
# each encoder; model: of both
# fmt: off
SIZES = {
    "quick": dict(
        widths=(16, 32), lengths=(8, 32), tokens=256,
        model=dict(n_layer=2, n_head=2),
        lm=dict(steps=200, warmup=20, lr=3e-3, eval_test=4000),
        masked=dict(n_embd=32, block_size=32, batch_size=16, steps=400, warmup=20, lr=2e-3)),
    "laptop": dict(
        widths=(32, 64, 96), lengths=(32, 128), tokens=2048,
        model=dict(n_layer=3, n_head=4, tokenizer="bpe", vocab_size=2000),
        lm=dict(steps=600, warmup=50, lr=3e-3, eval_every=600, eval_train=5000, eval_test=60_000),
        masked=dict(n_embd=64, block_size=64, batch_size=16, steps=4000, warmup=200, lr=2e-3,
                    eval_every=1000)),
    "full": dict(
        widths=(128, 256, 512), lengths=(128, 512), tokens=16_384,
        model=dict(n_layer=6, n_head=8, tokenizer="bpe", vocab_size=8000),
        lm=dict(steps=1500, warmup=100, lr=1e-3, dropout=0.1, eval_every=500, eval_train=20_000),
        masked=dict(n_embd=256, block_size=128, batch_size=128, steps=10_000, warmup=500, lr=5e-4,
                    eval_every=2000)),
}
# fmt: on
CAPTION = """Perplexity, of all test sets together, by width and by length of the blocks, ± over
seeds; how far NoPE's is above each other one's, and p of a paired t-test over seeds."""
CAPTION_MASKED = """Masked-LM perplexity of encoders on the masked words of valid, ± over seeds;
how far NoPE's is above each other one's, and p of a paired t-test over seeds."""


@dataclass
class Flags(SweepFlags):
    data: Data = "toy"  # corpus, as in the training scripts
    size: Literal["quick", "laptop", "full"] = "laptop"  # minutes; an hour and a half; for a GPU
    seeds: int = 3  # seeds of each model
    out: Folder = "out/study-grid"  # folder of all runs and tables


def study(flags):
    out = Path(flags.out).expanduser()
    corpus = data.load(flags.data)
    require(corpus.lines and corpus.tests, f"--data {flags.data}: no running text with a test set")
    size = SIZES[flags.size]
    run_all(out, [decoders(flags, size) + encoders(flags, size)], flags)

    header = ["width", "blocks", *(POSITIONS[pos].label for pos in ENCODINGS)]
    header += [f"NoPE against {POSITIONS[pos].label}" for pos in OTHERS]
    rows = []
    for width, length in product(size["widths"], size["lengths"]):
        cells = compare_encodings(out, f"lm-{width}-{length}", f"joint@{length}", flags.seeds)
        rows.append([str(width), str(length), *cells])
    print(tables.write(out / "grid", header, rows, CAPTION, left=2))

    cells = compare_encodings(out, "masked", "perplexity/valid", flags.seeds)
    print(tables.write(out / "masked", header[2:], [cells], CAPTION_MASKED, left=0))
    finish(out, {"grid": rows, "masked": cells})


def decoders(flags, size):
    """Return the jobs that train a decoder for each cell of the grid, encoding and seed."""
    jobs = []
    cells = product(range(flags.seeds), size["widths"], size["lengths"], ENCODINGS)
    for seed, width, length, pos in cells:
        words = words_of_model(flags, size, pos, seed)
        words += options(n_embd=width, n_ffn=4 * width, block_size=length)
        words += options(batch_size=size["tokens"] // length, **size["lm"])
        jobs.append(Job(f"lm-{width}-{length}-{pos}-{seed}", "train_lm", words))
    return jobs


def encoders(flags, size):
    """Return the jobs that train an encoder for each encoding and seed."""
    jobs = []
    for seed, pos in product(range(flags.seeds), ENCODINGS):
        words = words_of_model(flags, size, pos, seed)
        n_ffn = 4 * size["masked"]["n_embd"]
        words += options(n_ffn=n_ffn, dropout=0, mask_rate=0.15, init_std=0.05, **size["masked"])
        jobs.append(Job(f"masked-{pos}-{seed}", "train_mlm", words))
    return jobs


def words_of_model(flags, size, pos, seed):
    """Return the flags that decoders and encoders share."""
    words = options(data=flags.data, threads=1, pos=pos, seed=seed, activation="gelu")
    return words + options(**size["model"])


def compare_encodings(out, name, number, seeds):
    """Return cells: a number of the runs `name`-ENCODING-SEED for each encoding, and NoPE's
    difference from each other one."""
    rows = {}
    for pos in ENCODINGS:
        runs = [read_finished_run(out / f"{name}-{pos}-{seed}") for seed in range(seeds)]
        rows[pos] = Row(POSITIONS[pos].label, runs)
    cells = [tables.spread(rows[pos].values(number)) for pos in ENCODINGS]
    for pos in OTHERS:
        tested = compare_seeds([rows["nope"], rows[pos]], [number])
        if tested:
            cells.append(f"{tested[0].difference} (p = {tested[0].p:.1g})")
        else:  # a single seed
            cells.append("–")
    return cells


if __name__ == "__main__":
    main(study, Flags)
