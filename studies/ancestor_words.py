"""Measure how much the words of a comment's ancestors help, without a network that reads them.

    python -m studies.ancestor_words out/thread-cmv-learned-0 out/thread-cmv-learned-1

Many masked words also occur in an ancestor. A cache makes use of that (Kuhn & De Mori 1990): the
model reads the comment alone and gives a share of its probability to the words of the ancestors, by
frequency. The share is chosen on the validation trees. The result is compared with a cache of
another tree's ancestors, and with the model that reads the ancestors.
"""

import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from data.masked_comments import VIEWS, fixed_batches, read_forests
from data.tokenizer import BOS, UNK, word_starts
from lab import tables
from lab.command import main
from lab.comparison.finished import check_finished, configuration_of
from lab.errors import require
from lab.flags import flag
from lab.folder import figures_folder
from lab.load import read_run
from lab.machine import set_up_device
from lab.records import read_config
from nets.device import send_all
from studies.report import finish

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)  # of the cache in the probability
CACHES = {"cache of its ancestors": "chains", "cache of another tree's": "others"}


@dataclass
class Flags:
    """the runs"""

    runs: list[str] = flag(
        None, "run folders of beyond.train_thread, seeds to average", positional=True
    )
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))
    out: str = flag("", "folder of the results (default: ancestors/ in the first run's folder)")


def study(flags):
    started, device = time.perf_counter(), set_up_device(flags)
    folders = list(dict.fromkeys(map(Path, flags.runs)))
    check_same_but_seed(folders)
    measured = [measure(read_run(folder, ("thread",), device=device)) for folder in folders]
    out = figures_folder(flags.out or folders[0] / "ancestors")
    out.mkdir(parents=True, exist_ok=True)
    print(write_table(out / "ancestors", measured))
    numbers = {"runs": dict(zip(map(str, folders), measured))}
    finish(flags, out, started, numbers, ("ancestors.md", "ancestors.tex"))


def check_same_but_seed(folders):
    """Raise UserError for runs that are not finished, or that differ in more than the seed."""
    configs = [read_config(folder) for folder in folders]
    for folder, config in zip(folders, configs):
        check_finished(folder, config)
        same = configuration_of(config)[0] == configuration_of(configs[0])[0]
        require((same, f"{folder}: differs from {folders[0]} in more than the seed; leave it out"))


def measure(run):
    """Return {name: [perplexity of all masked words, and of those that an ancestor has]} of the
    three views and two caches on the test trees, "count": [number of words] of both, and the share
    of each cache."""
    _, _, forests, _ = read_forests(Namespace(**run.config["flags"]), run.tokenizer)
    nats, again, caches = losses_of(run, forests["test"])
    valid, _, known = losses_of(run, forests["valid"])
    problem = f"{run.folder}: no masked word of the test trees also occurs in an ancestor"
    require((again.any(), f"{problem}; train on more trees, or with a larger --test"))
    found = {"count": [len(again), int(again.sum())]}
    for view, words in VIEWS.items():
        found[words] = perplexities(nats[view], again)
    for words in CACHES:
        share = min(SHARES, key=lambda s: mixed(valid["alone"], known[words], s).mean())
        found[words] = perplexities(mixed(nats["alone"], caches[words], share), again)
        found[f"share of the {words}"] = share
    return found


@torch.no_grad()
def losses_of(run, forest):
    """Return ({view: losses in nats (N,)}, whether each word stands in an ancestor (N,),
    {cache: its probability of each word (N,)}) for the N masked words of a forest."""
    nats, again = {view: [] for view in VIEWS}, []
    caches = {words: [] for words in CACHES}
    flags, size = Namespace(**run.config["flags"]), run.tokenizer.get_vocab_size()
    fixed = fixed_batches(forest, flags, size, word_starts(run.tokenizer))
    for rows, inputs, mask, labels, views in fixed:
        words = send_all({"idx": inputs, "mask": mask}, run.device)
        for view, read in views.items():
            losses = run.model.losses(targets=labels, **words, **send_all(read, run.device))
            nats[view].append(losses.cpu().double())
        again.append(forest.repeated(rows, labels))
        for name, chains in CACHES.items():
            caches[name] += frequencies(forest, rows, labels, getattr(forest, chains))
    nats = {view: torch.cat(parts) for view, parts in nats.items()}
    return nats, torch.cat(again), {name: torch.tensor(each) for name, each in caches.items()}


def frequencies(forest, rows, labels, chains):
    """Return the frequency of each target of these comments, labels (B, T), in their `chains`."""
    found = []
    for row, words in zip(rows, labels.tolist()):
        above = Counter(i for a in chains[row] for i in forest.sequences[a].tolist())
        del above[BOS], above[UNK]
        total = max(1, above.total())
        found += [above[word] / total for word in words if word != -100]
    return found


def mixed(nats, cache, share):
    """Return the losses (N,) of (1 - share) * exp(-nats) + share * cache, all (N,)."""
    return -torch.log((1 - share) * torch.exp(-nats) + share * cache)


def perplexities(nats, again):
    return [nats.mean().exp().item(), nats[again].mean().exp().item()]


def write_table(stem, measured):
    """Write ancestors.md and ancestors.tex, and return the Markdown."""
    rows = [
        [name, *(tables.spread(values, 1) for values in zip(*(run[name] for run in measured)))]
        for name in (*VIEWS.values(), *CACHES)
    ]
    n, n_again = measured[0]["count"]
    header = ["read", f"{n:,} masked words", f"{n_again:,} that an ancestor has"]
    caption = "Perplexity of masked words on the test trees; a cache is added to the comment alone"
    spread = ", ± sample standard deviation over the runs" * (len(measured) > 1)
    return tables.write(stem, header, rows, caption + spread + ".")


if __name__ == "__main__":
    main(study, Flags, __doc__)
