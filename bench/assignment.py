"""What the assignment costs here and in the usual per-head implementation: CPU seconds of whole processes, side by side.

    python -m bench.assignment --data speeches

tests/per_head.py does the same work the straightforward way: one linear layer a head, every sentence padded to the
block, all logits at once. The two run in turn, so that a change of the machine's speed meets both.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from data.files import write_json
from lab.command import main
from lab.errors import UserError, require
from lab.flags import flag

HERE = Path(__file__).parents[1]


@dataclass
class Flags:
    data: str = flag("toy", "corpus, as in the training scripts")
    out: str = flag("", "also write the figures here, as JSON")
    repeats: int = flag(3, "times each command is run")


def bench(flags):
    require((flags.repeats > 0, f"--repeats must be at least 1, got {flags.repeats}"))
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for task, script, more in (
            ("lm", "train_lm.py", []),
            ("classifier", "train_classifier.py", ["--no-refit"]),
        ):
            ours, theirs = [], []
            for i in range(flags.repeats):
                ours.append(
                    cpu_seconds(
                        [
                            HERE / script,
                            "--data",
                            flags.data,
                            "--seed",
                            str(i),
                            "--out",
                            f"{scratch}/{task}-{i}",
                            *more,
                        ]
                    )
                )
                theirs.append(cpu_seconds([HERE / "bench" / "per_head.py", task, flags.data]))
            rows[task] = compared(ours, theirs)
            print(
                f"{task:<12} poslab {rows[task]['poslab']:7.1f} s   per head {rows[task]['per_head']:7.1f} s   "
                f"ratio {rows[task]['ratio']:.2f}  (CPU, medians of {flags.repeats})",
                flush=True,
            )

        encoder = f"{scratch}/encoder"
        cpu_seconds(
            [HERE / "train_mlm.py", "--data", flags.data, "--steps", "100", "--out", encoder]
        )
        joint, frozen = [], []
        for i in range(flags.repeats):
            joint.append(epoch_seconds(["--data", flags.data, "--out", f"{scratch}/joint-{i}"]))
            frozen.append(
                epoch_seconds(
                    ["--data", flags.data, "--out", f"{scratch}/frozen-{i}", "--encoder", encoder]
                )
            )
        rows["epoch"] = {
            "joint": statistics.median(joint),
            "frozen": statistics.median(frozen),
            "ratio": statistics.median(f / j for f, j in zip(frozen, joint)),
        }
        print(
            f"{'epoch':<12} frozen {rows['epoch']['frozen']:7.3f} s   joint    {rows['epoch']['joint']:7.3f} s   "
            f"ratio {rows['epoch']['ratio']:.2f}  (wall)"
        )
    if flags.out:
        write_json(Path(flags.out), rows)


def compared(ours, theirs):
    """Medians, and the median of the ratios pair by pair."""
    return {
        "poslab": statistics.median(ours),
        "per_head": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs)),
    }


def cpu_seconds(arguments):
    """User and system time of one finished command, start-up included. UserError with its last line when it fails."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, encoding="utf-8"
    )
    after = os.times()
    if done.returncode:
        raise UserError(
            f"{Path(arguments[0]).name} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        )
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def epoch_seconds(arguments):
    """Median wall time between the lines train_classifier.py prints after its epochs."""
    command = [
        sys.executable,
        str(HERE / "train_classifier.py"),
        *map(str, arguments),
        "--no-refit",
    ]
    stamps = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        for line in process.stdout:
            if re.match(r"epoch +\d+ ", line):
                stamps.append(time.perf_counter())
    return statistics.median(b - a for a, b in zip(stamps, stamps[1:]))


if __name__ == "__main__":
    main(bench, Flags, __doc__.split("\n")[0])
