"""Check the exercises in a folder, and name the mistakes.

    python -m course.check answers/
    python -m course.check answers/ alibi     one exercise (or its number: 5), with the numbers
    python -m course.check answers/ --json    for other programs
    python -m course.check answers/ --language zh    messages in Chinese

The exit code is 1 unless all are done.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from course.judge import find_answers, report
from course.language import languages
from lab.flags import main, require

LanguageName = Literal[tuple(languages())]


@dataclass
class Flags:
    folder: Positional[Path]  # with your answers, from course.start
    names: Positional[tuple[str, ...]] = ()  # exercises by name or number; none: all here
    json: bool = False  # print the verdict on each function as JSON
    language: LanguageName = "en"  # of the messages; each has a table, course/mistakes.LANGUAGE.md


def check(flags):
    paths = find_answers(flags.folder, flags.names)
    require(paths, f"{flags.folder}: has no exercises; python -m course.start writes them")
    if not report(paths, bool(flags.names), flags.json, flags.language):
        raise SystemExit(1)


if __name__ == "__main__":
    main(check, Flags)
