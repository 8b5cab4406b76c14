"""Check the exercises in a folder, and name the mistakes.

python -m course.check answers/
python -m course.check answers/ alibi     # one exercise, with the first difference
python -m course.check answers/ --watch   # again whenever a file is saved
"""

from dataclasses import dataclass

import torch

from course.exercises import answers_in, chosen, make_sheets
from course.report import keep_reporting
from lab.command import main
from lab.flags import flag


@dataclass
class Flags:
    folder: str = flag(None, "folder with your answers, from course.start", positional=True)
    names: list[str] = flag(
        (), "exercises, by name or number (default: all)", positional=True, shown="all"
    )
    watch: bool = flag(False, "check again whenever a file is saved, until Ctrl-C")
    seconds: int = flag(20, "time for each function", at_least=1, at_most=3600)


def check(flags):
    torch.set_num_threads(1)  # for tiny tensors
    folder, names = answers_in(flags.folder), chosen(flags.names)
    again = f"python -m course.start {folder} writes it again"
    keep_reporting(folder, make_sheets(names), flags, f"python -m course.check {folder}", again)


if __name__ == "__main__":
    main(check, Flags, __doc__)
