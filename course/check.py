"""Check the exercises in a folder, and name the mistakes.

python -m course.check answers/
python -m course.check answers/ alibi     # one exercise, with the first difference
"""

from dataclasses import dataclass

from course.exercises import answers_in, chosen, make_sheets
from course.report import report
from lab.command import main
from lab.flags import flag


@dataclass
class Flags:
    folder: str = flag(None, "folder with your answers, from course.start", positional=True)
    names: list[str] = flag(
        (), "exercises, by name or number (default: all)", positional=True, shown="all"
    )


def check(flags):
    folder, names = answers_in(flags.folder), chosen(flags.names)
    again = f"python -m course.start {folder} writes it again"
    command = f"python -m course.check {folder}"
    report(folder, make_sheets(names), len(flags.names), command, again)


if __name__ == "__main__":
    main(check, Flags, __doc__)
