"""Repeat the numbers in README.md and docs that take under two minutes, and name those that drift.

    python -m studies.check_numbers --data speeches

Each check runs a command of a page and compares the numbers it prints with those on the page. Exits
with 1 if one has drifted. Other processors and libraries round differently, so small differences
are allowed; a classifier, which chooses its best epoch, may differ by more.
"""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from lab.command import main
from lab.errors import require
from lab.flags import ROOT, flag


@dataclass(frozen=True)
class Check:
    """Numbers of a page, and the command that prints them.

    stated, printed: text of the page and of the output, with {name} for each number. There may be
    more space between words. percent: by how much the numbers may differ.
    """

    page: str
    stated: str
    command: str
    printed: str
    percent: float = 1.0


CHECKS = (
    Check(
        "README.md",
        "train {train}, hbush {hbush}, obama {obama}, wbush {wbush}; 24 s",
        "train_lm.py --pos alibi --data DATA",
        "perplexity at step 500: train {train}, hbush {hbush}, obama {obama}, wbush {wbush};",
    ),
    Check(
        "README.md",
        "test accuracy {all}% (seen {seen}%, unseen {unseen}%), after 9 epochs",
        "train_classifier.py --pos alibi --data DATA",
        "test accuracy {all}% (seen {seen}%, unseen {unseen}%), after",
        percent=11.0,  # of 54.8 points: the 6 that README grants to machines
    ),
    Check(
        "README.md",
        "5-gram model, which only counts, reaches {o}, {h} and {w}.",
        "baselines.py --data DATA",
        "5-gram perplexity hbush {h}, obama {o}, wbush {w};",
    ),
    Check(
        "docs/results.md",
        "| naive Bayes | {all} | {seen} | {unseen} |",
        "baselines.py --data DATA",
        "all 750 {m1}% {all}% seen in training 551 {m2}% {seen}% unseen 199 {m3}% {unseen}%",
    ),
    Check(
        "docs/results.md",
        "| the same with `--rare-unknown 0.3` | {o} | {h} | {w} |",
        "baselines.py --data DATA --rare-unknown 0.3",
        "5-gram perplexity hbush {h}, obama {o}, wbush {w};",
    ),
    Check(
        "README.md",
        "prints a masked-LM perplexity near {words},",
        "train_mlm.py --pos alibi --n-embd 128 --n-layer 2 --lr 1e-3 --init-std 0.05 --steps 600",
        "perplexity {words}, accuracy {accuracy}% on held-out lines",
        percent=5.0,
    ),
    Check(
        "docs/positions.md",
        "the encoder of `make demo` | 16.9 ± 0.6 | 16.9 ± 0.7 | {words} ± 0.6 |",
        "train_mlm.py --pos alibi --alibi one-sided --n-embd 128 --n-layer 2 --lr 1e-3 "
        "--init-std 0.05 --steps 600",
        "perplexity {words}, accuracy {accuracy}% on held-out lines",
        percent=10.0,
    ),
)


@dataclass
class Flags:
    data: str = flag("speeches", "the speeches: a name, or the folder that holds them")


def check_all(flags):
    wrong, started = 0, time.perf_counter()
    for command in dict.fromkeys(check.command for check in CHECKS):
        words = shlex.split(command.replace("DATA", shlex.quote(flags.data)))
        print(f"python {shlex.join(words)}", flush=True)
        output = run(words)
        for check in CHECKS:
            if check.command == command:
                problem = compare(check, output)
                print(f"  {problem or 'ok'}: {check.page}: {check.stated}", flush=True)
                wrong += bool(problem)
    seconds = time.perf_counter() - started
    print(f"{len(CHECKS) - wrong} of {len(CHECKS)} hold; {seconds:.0f} s")
    if wrong:
        sys.exit(1)


def run(words):
    """Return what a script prints, which leaves nothing behind. Raises UserError if it fails."""
    script, *rest = words
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *rest, "--out", f"{folder}/run"],
            capture_output=True,
            encoding="utf-8",
        )
    require((not done.returncode, f"{shlex.join(words)} failed: {done.stderr.strip()[-300:]}"))
    return done.stdout


def compare(check, output):
    """Return in words which numbers of the output differ from those of the page, or ""."""
    page = (ROOT / check.page).read_text(encoding="utf-8")
    stated = numbers(check.stated, page, check.page)
    printed = numbers(check.printed, output, f"the output of {check.command}")
    drifted = [
        f"{stated[name]:g} is {printed[name]:g}"
        for name in stated
        if abs(printed[name] - stated[name]) > check.percent / 100 * stated[name]
    ]
    return f"DRIFTED, {', '.join(drifted)}" if drifted else ""


def numbers(words, text, where):
    """Return {name: number} at the places {name} of some words where they first stand in a text.
    Raises UserError, beginning with `where`, if they do not."""
    pattern = re.escape(words).replace(r"\ ", r"\s+")
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d[\\d,]*(?:\\.\\d+)?)", pattern)
    found = re.search(pattern, text)
    require((found, f"{where}: {words!r} not found; correct CHECKS in studies/check_numbers.py"))
    return {name: float(value.replace(",", "")) for name, value in found.groupdict().items()}


if __name__ == "__main__":
    main(check_all, Flags, __doc__)
