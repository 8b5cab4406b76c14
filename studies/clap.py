"""Compare RoBERTa, ALiBi and the CLAP head by masked-LM perplexity: EIFY/fairseq, scaled down.

    python -m studies.clap --size quick
    python -m studies.clap --data path/to/wikitext-2 --steps 40000 --lr 1e-3 --only baseline,alibi

The five models of the original, with the same data, budget and masks; its variants; and controls of
the dropout.
"""

from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Literal

from lab.flags import main, require
from studies.sweep import Job, SweepFlags, options, run_all

ROBERTA = "--head roberta --dropout 0.1 --attn-dropout 0.1"
WITHOUT = "--head roberta --dropout 0 --attn-dropout 0"  # the original gives dropout to it alone
ZERO_CLAP = "--pos alibi --head clap --zero-mask --dropout 0"
PLAIN_CLAP = "--head plain-clap --dropout 0 --attn-dropout 0.1"
ALL = {
    # The five models of the original
    "baseline": f"--pos learned {ROBERTA}",
    "sinusoidal": f"--pos sinusoidal --no-scale-words {ROBERTA}",
    "alibi": f"--pos alibi {ROBERTA}",
    "learned-clap": "--pos learned --head clap --dropout 0 --attn-dropout 0.1",
    "zero-clap": f"{ZERO_CLAP} --omit-mask --attn-dropout 0",
    # Its variants
    "learned-clap-plain": f"--pos learned {PLAIN_CLAP}",
    "zero-clap-plain": f"--pos alibi --zero-mask --omit-mask {PLAIN_CLAP}",
    "zero-clap-attention-dropout": f"{ZERO_CLAP} --omit-mask --attn-dropout 0.1",
    "alibi-symmetric": f"--pos alibi --alibi symmetric {ROBERTA}",
    # Ours
    "sinusoidal-scaled": f"--pos sinusoidal {ROBERTA}",
    "alibi-one-sided": f"--pos alibi --alibi one-sided {ROBERTA}",
    "zero-clap-mask-output": f"{ZERO_CLAP} --attn-dropout 0",
    "zero-clap-one-sided": f"{ZERO_CLAP} --attn-dropout 0 --alibi one-sided",
    "baseline-no-dropout": f"--pos learned {WITHOUT}",
    "alibi-no-dropout": f"--pos alibi {WITHOUT}",
    "alibi-no-dropout-one-sided": f"--pos alibi --alibi one-sided {WITHOUT}",
    "alibi-no-dropout-zero-mask": f"--pos alibi --zero-mask {WITHOUT}",
    "learned-clap-no-dropout": "--pos learned --head clap --dropout 0 --attn-dropout 0",
}
CONFIGURATIONS = list(ALL)[:5]
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


@dataclass
class Flags(SweepFlags):
    data: str = "toy"  # corpus, as in the training scripts
    size: Literal["quick", "laptop", "full"] = "laptop"  # minutes; an hour; a night, or a GPU
    seeds: int = 3  # seeds of the five configurations, or of those in --only
    steps: int = 0  # updates of each run; 0: as --size says
    only: str = ""  # configurations to train, joined by commas; '': all
    lr: float = 0.0  # peak learning rate of each run; 0: as --size says
    out: str = "out/study-clap"  # folder of all runs, figures and tables


def study(flags):
    out = Path(flags.out).expanduser()
    names = list(ALL)
    with_all_seeds = CONFIGURATIONS
    if flags.only:
        names = flags.only.split(",")
        with_all_seeds = names
    require(set(names) <= set(ALL), f"--only {flags.only}: choose of {','.join(ALL)}")

    size = dict(SIZES[flags.size])
    if flags.steps:
        size["steps"] = flags.steps
    if flags.lr:
        size["lr"] = flags.lr
    steps = size["steps"]
    schedule = dict(warmup=steps * 8 // 100, eval_every=max(1, steps // 20))
    common = [*COMMON.split(), *options(data=flags.data, threads=1, **schedule, **size)]

    jobs = []
    runs = {name: [] for name in names}  # configuration: its run folders
    for seed, name in product(range(flags.seeds), names):  # the first seed of all, then the second
        if seed == 0 or name in with_all_seeds:
            words = [*common, *ALL[name].split(), *options(seed=seed)]
            jobs.append(Job(f"{name}-{seed}", "train_mlm", words))
            runs[name].append(out / f"{name}-{seed}")
    words = [*chain.from_iterable(runs.values()), "--labels", ",".join(names)]
    run_all(out, [jobs, [Job("compare", "compare", words)]], flags)
    print((out / "compare" / "compare.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(study, Flags)
