"""Compare the CPU time of the assignment's trainings with a plain per-head implementation.

    python -m bench.assignment --data speeches

bench/per_head.py does the same work in the straightforward way: one linear layer per head, every
sentence padded to the block size, all logits at once. The two take turns, so that other work on the
machine slows both.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from data.files import write_json
from data.labelled import load_labelled
from lab.command import main
from lab.errors import UserError
from lab.flags import flag
from lab.folder import check_folder_of

PARTS = (("lm", "train_lm", ()), ("classifier", "train_classifier", ("--no-refit",)))


@dataclass
class Flags:
    data: str = flag("toy", "corpus, as in the training scripts")
    out: str = flag("", "JSON file to write all numbers to")
    repeats: int = flag(3, "runs of each command; the medians are printed", at_least=1)


def bench(flags):
    check_folder_of(flags.out)
    load_labelled(flags.data)  # the classifiers come last: complain about a corpus without rows now
    rows, data = {}, ("--data", flags.data)
    with tempfile.TemporaryDirectory() as scratch:
        for part, script, more in PARTS:
            ours, theirs = [], []
            for i in range(flags.repeats):
                out = f"{scratch}/{part}-{i}"
                ours.append(cpu_seconds(script, *data, "--seed", i, "--out", out, *more))
                theirs.append(cpu_seconds("bench.per_head", part, flags.data))
            rows[part] = compare(part, "CPU time", poslab=ours, per_head=theirs)

        encoder, joint, frozen = f"{scratch}/encoder", [], []
        cpu_seconds("train_mlm", *data, "--steps", 100, "--out", encoder)
        for i in range(flags.repeats):
            joint.append(epoch_seconds(*data, "--out", f"{scratch}/joint-{i}"))
            out = f"{scratch}/frozen-{i}"
            frozen.append(epoch_seconds(*data, "--out", out, "--encoder", encoder))
        rows["epoch"] = compare("epoch", "wall time", frozen=frozen, joint=joint)
    if flags.out:
        write_json(flags.out, rows)


def compare(part, clock, **seconds):
    """Print and return the medians of two lists of seconds, and that of their ratios by pair."""
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(*seconds.values()))
    shown = "   ".join(f"{name} {median:.3f} s" for name, median in medians.items())
    print(f"{part:<12}{shown}   ratio {ratio:.2f}   (medians of {clock})", flush=True)
    return medians | {"ratio": ratio}


def command(module, *arguments):
    return [sys.executable, "-m", module, *map(str, arguments)]


def cpu_seconds(module, *arguments):
    """Return user and system time of a command. Raise UserError if it fails."""
    before = os.times()
    done = subprocess.run(command(module, *arguments), capture_output=True, encoding="utf-8")
    after = os.times()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{module} failed: {last}")
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def epoch_seconds(*arguments):
    """Return the median wall time between the lines that train_classifier.py prints per epoch."""
    stamps, run = [], command("train_classifier", *arguments, "--no-refit")
    with subprocess.Popen(run, stdout=subprocess.PIPE, encoding="utf-8") as process:
        for line in process.stdout:
            if re.match(r"epoch +\d+ ", line):
                stamps.append(time.perf_counter())
    return statistics.median(b - a for a, b in zip(stamps, stamps[1:]))


if __name__ == "__main__":
    main(bench, Flags, __doc__)
