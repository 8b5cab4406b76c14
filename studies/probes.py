"""The common parts of the position probes: flags, runs grouped by configuration, labels."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

import data
from data import batching
from data.corpus import hold_out
from lab import tables
from lab.comparison.configurations import make_configurations
from lab.comparison.finished import read_finished
from lab.comparison.labels import in_label, set_labels
from lab.errors import require
from lab.figures import COLORS, POSITION_COLORS
from lab.flags import flag
from lab.folder import figures_folder
from lab.inside.answers import losses_of_blocks
from lab.load import read_run
from lab.machine import set_up_device
from studies.report import finish


@dataclass
class ProbeFlags:
    """the runs"""

    runs: list[str] = flag(
        None, "run folders; runs that differ only in the seed are averaged", positional=True
    )
    data: str = flag("", "corpus to read (default: the run's own)")
    labels: str = flag("", "names of the configurations, joined by commas (default: what differs)")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


@dataclass
class Measured:
    """Measurements of each configuration, whose runs differ only in the seed."""

    flags: ProbeFlags
    started: float
    out: Path  # folder for the results
    # {label: {"folders", "seeds", "data", "pos", "block_size", **{name: [value of each seed]}}}
    results: dict

    @property
    def spread(self):
        """Return the words of a caption for the ± of its numbers, "" for single runs."""
        several = sorted({len(r["seeds"]) for r in self.results.values()} - {1})
        counts = " or ".join(map(str, several))
        return f", ± sample standard deviation over {counts} seeds" if several else ""

    @property
    def corpora(self):
        """Return the names of the corpora that were read."""
        return ", ".join(sorted({name for r in self.results.values() for name in r["data"]}))

    def with_styles(self):
        """Yield each configuration with the style of its line: a color for each encoding, and other
        dashes where several configurations have the same one."""
        drawn = Counter()
        for i, (label, r) in enumerate(self.results.items()):
            nth, marker = drawn[r["pos"]], "os^Dv"[i % 5]
            drawn[r["pos"]] += 1
            color = COLORS[i % len(COLORS)] if nth > 3 else POSITION_COLORS[r["pos"]]
            dashes = ("-", "--", "-.", (0, (6, 1, 1, 1)))[nth % 4]
            style = dict(color=color, linestyle=dashes, marker=marker, label=label)
            yield r, style | dict(markersize=3.5, linewidth=1.3)

    def finish(self, *files):
        finish(self.flags, self.out, self.started, {"runs": self.results}, files)


def measure_runs(flags, kinds, subfolder, measure, check=lambda label, runs: None):
    """Return the Measured runs. measure(run, corpus, flags) returns {name: number or list}.

    check(label, runs) may refuse a configuration before anything is measured.
    """
    started, device = time.perf_counter(), set_up_device(flags)
    folders = list(dict.fromkeys(map(Path, flags.runs)))
    loaded = {folder: read_run(folder, kinds, device=device) for folder in folders}
    out = figures_folder(flags.out or folders[0] / subfolder)
    groups = {
        label: [loaded[folder] for folder in configuration.folders.values()]
        for label, configuration in labelled(folders, flags.labels).items()
    }
    for label, runs in groups.items():
        check(label, runs)
    results = {}
    for label, runs in groups.items():
        measured = []
        for run in runs:
            print(f"measuring {run.folder}", flush=True)
            corpus = data.load(corpus_of(run, flags.data))
            measured.append({"data": corpus.name} | measure(run, corpus, flags))
        config = runs[0].model.body.config
        results[label] = {
            "folders": [str(run.folder) for run in runs],
            "seeds": [run.config["flags"]["seed"] for run in runs],
            "pos": config.pos,
            "block_size": config.block_size,
            **{name: [each[name] for each in measured] for name in measured[0]},
        }
    out.mkdir(parents=True, exist_ok=True)
    return Measured(flags, started, out, results)


def corpus_of(run, asked):
    """Return the --data that was asked for or, without one, that of the run. Raises UserError if
    the run's is no longer there, as on another machine."""
    own = run.config["flags"]["data"]
    problem = f"{run.folder}: was trained on --data {own}, which is not here"
    found = asked or own in data.NAMES or Path(own).exists()
    require((found, f"{problem}; name it with --data"))
    return asked or own


def labelled(folders, labels=""):
    """Return {label: Configuration} of finished runs: their position encodings, or if these are not
    enough all that differs, or the names of --labels."""
    found = make_configurations([read_finished(folder) for folder in folders])
    set_labels(found, labels)
    positions = [in_label("pos", c.runs[0].settings["pos"]) for c in found]
    if len(set(positions)) == len(found) and not labels:
        return dict(zip(positions, found))
    return {configuration.label: configuration for configuration in found}


def loss_of(model, idx):
    """Return the loss in nats per token of the words in blocks idx (N, T), but the first ones."""
    return losses_of_blocks(model, idx[:, :-1], idx[:, 1:]).mean().item()


def layer_cells(seeds, columns):
    """Return "mean ± deviation" of each layer over the seeds, each a list over layers; "–" for
    layers that the model lacks."""
    cells = [tables.spread(values, 2) for values in zip(*seeds)]
    return cells + ["–"] * (columns - len(cells))


def middles(results):
    """Return the words of a caption for the distance of a guess that is always the middle."""
    found = sorted({f"{r['middle'][0]:.2f}" for r in results.values()})
    return f"Always guessing the middle gives {', '.join(found)}."


def mark_middle(axis, distance):
    """Draw the distance of a guess that is always the middle as a line with its name."""
    axis.axhline(distance, color="0.6", linewidth=0.9)
    how = dict(xycoords=axis.get_yaxis_transform(), fontsize=7, color="0.4", ha="right")
    above = dict(xytext=(0, 3), textcoords="offset points")  # of the markers on the line
    axis.annotate("always the middle", (0.98, distance), **above, **how)


def count_ticks(axis, most):
    """Put ticks at 1, 2, 4, ... on a log axis of numbers of words."""
    ticks = [2**power for power in range(most.bit_length())]
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.minorticks_off()


def blocks_of(run, corpus, part, n, gen):
    """Return n blocks of running text, inputs and targets (n, T), as in the run's training.

    part: training or test, of the corpus. Raises UserError for too little text.
    """
    T, tests = run.model.body.config.block_size, corpus.tests.values()
    lines = corpus.lines if part == "training" else [line for each in tests for line in each]
    ids = batching.stream(run.tokenizer, lines)
    problem = f"too little {part} text for blocks of {T} tokens; give another corpus"
    require((len(ids) > T, f"--data {corpus.name}: {problem}"))
    x, y = batching.random_blocks(ids, T, n, gen)
    return (batching.anchored(x) if run.config["flags"].get("anchor") else x), y


def texts_of(run, corpus, n, seed):
    """Return sequences to train and to test probes on, two pairs idx, mask (N, T).

    A causal model reads blocks of running text, an encoder padded sentences, as in its training.
    Raises UserError for too little text.
    """
    if run.kind == "lm":
        train, _ = blocks_of(run, corpus, "training", n, batching.generator("probe", seed))
        test, _ = blocks_of(run, corpus, "test", n // 4, batching.generator("probe test", seed))
        return [(idx, torch.ones_like(idx, dtype=torch.bool)) for idx in (train, test)]
    tests = [line for part in corpus.tests.values() for line in part]
    lines, held_out = corpus.texts(), tests or [text for _, text in corpus.test_rows]
    if not held_out:
        lines, held_out = hold_out(lines, 0.2, seed=0)
    pairs = []
    for part, count in ((lines, n), (held_out, n // 4)):
        sequences, _ = batching.sentences(run.tokenizer, part, run.model.body.config.block_size)
        chosen = torch.randperm(len(sequences), generator=batching.generator("probe", seed))[:count]
        require((len(chosen) > 0, f"--data {corpus.name}: no sentences found; give another corpus"))
        pairs.append(batching.pad([sequences[i] for i in chosen]))
    return pairs
