"""What the probes of positions have in common: flags, runs grouped by configuration, labels."""

from dataclasses import dataclass

import torch

from data import batching
from data.corpus import hold_out
from lab.errors import require
from lab.figures import POSITION_NAMES, line_colors
from lab.flags import flag
from lab.folder import figures_folder
from lab.load import by_position, read_run
from lab.machine import set_up_device


@dataclass
class ProbeFlags:
    """the runs"""

    runs: list[str] = flag(
        None, "run folders; runs that differ only in the seed are averaged", positional=True
    )
    data: str = flag("", "corpus to read (default: the run's own)")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def measure_runs(flags, kinds, subfolder, measure):
    """Measure every run, and group the runs that differ only in the seed.

    measure(run, flags) returns {name: number or list}. Returns (folder for the results,
    {label: {"folders", "seeds", "data", "block_size", **{name: [value of each seed]}}}).
    """
    device = set_up_device(flags)
    loaded = [read_run(folder, kinds, device=device) for folder in dict.fromkeys(flags.runs)]
    out = figures_folder(flags.out or loaded[0].folder / subfolder)
    result = {}
    for label, runs in by_position(loaded).items():
        measured = [measure(run, flags) for run in runs]
        result[POSITION_NAMES.get(label, label)] = {
            "folders": [str(run.folder) for run in runs],
            "seeds": [run.config["flags"]["seed"] for run in runs],
            "block_size": runs[0].model.body.config.block_size,
            **{name: [each[name] for each in measured] for name in measured[0]},
        }
    out.mkdir(parents=True, exist_ok=True)
    return out, result


def n_seeds(result):
    """Return the largest number of seeds of a configuration."""
    return max(len(r["seeds"]) for r in result.values())


def styles(result):
    """Yield for each configuration (its result, the style of its line)."""
    colors = line_colors(result)
    for i, (label, r) in enumerate(result.items()):
        style = dict(color=colors[label], marker="os^Dv"[i % 5], markersize=3.5, linewidth=1.3)
        yield r, style | {"label": label}


def texts_of(run, corpus, n, seed):
    """Return sequences to train and to test probes on, two pairs idx, mask (N, T).

    A causal model reads blocks of running text, an encoder padded sentences, as in its training.
    Raises UserError for too little text.
    """
    T = run.model.body.config.block_size
    tests = [line for part in corpus.tests.values() for line in part]
    if run.kind == "lm":
        pairs = []
        for lines, count, key in ((corpus.lines, n, "probe"), (tests, n // 4, "probe test")):
            ids = batching.stream(run.tokenizer, lines)
            problem = f"too little text for blocks of {T} tokens; give another corpus"
            require((len(ids) > T + 1, f"--data {corpus.name}: {problem}"))
            gen = batching.generator(key, seed)
            blocks, _ = batching.random_blocks(ids, T, max(1, count), gen)
            if run.config["flags"].get("anchor"):
                blocks = batching.anchored(blocks)
            pairs.append((blocks, torch.ones_like(blocks, dtype=torch.bool)))
        return tuple(pairs)
    lines, held_out = corpus.texts(), tests or [text for _, text in corpus.test_rows]
    if not held_out:
        lines, held_out = hold_out(lines, 0.2, seed=0)
    pairs = []
    for part, count in ((lines, n), (held_out, max(1, n // 4))):
        sequences, _ = batching.sentences(run.tokenizer, part, T)
        chosen = torch.randperm(len(sequences), generator=batching.generator("probe", seed))[:count]
        require((len(chosen) > 0, f"--data {corpus.name}: no sentences found; give another corpus"))
        pairs.append(batching.pad([sequences[i] for i in chosen]))
    return tuple(pairs)
