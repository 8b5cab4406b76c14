"""Check the exercises in this folder, and name the mistakes.

python check.py             # a line per exercise
python check.py alibi       # one exercise (or its number: 5), with the first difference
python check.py --watch     # again whenever a file is saved
"""

import argparse
import sys
from pathlib import Path

import torch

from course.report import keep_reporting, title


def check():
    """Check the answers beside this file, which course/handout.py copies into a handout."""
    here = Path(__file__).resolve().parent
    sheets = torch.load(here / "course" / "sheets.pt", weights_only=True)
    numbers = {str(int(file[2:4])): title(file) for file in sheets}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=", ".join(numbers.values()))
    parser.add_argument("--watch", action="store_true", help="until Ctrl-C")
    parser.add_argument("--seconds", type=int, default=20, help="time for each function (20)")
    flags = parser.parse_args()
    if flags.seconds < 1:
        parser.error(f"--seconds {flags.seconds}: must be at least 1")
    wanted = [numbers.get(name, name) for name in flags.names]
    if unknown := set(wanted) - set(numbers.values()):
        known = ", ".join(numbers.values())
        parser.error(f"{', '.join(unknown)}: no such exercise; there are {known}")
    chosen = {file: sheet for file, sheet in sheets.items() if title(file) in wanted or not wanted}
    torch.set_num_threads(1)  # for tiny tensors
    keep_reporting(here, chosen, flags, "python check.py", "take it from the handout again")


if __name__ == "__main__":
    try:
        check()
    except KeyboardInterrupt:
        sys.exit(130)
