"""Check your answers, and name the mistakes.

    python check.py
    python check.py attention     one exercise (or its number: 2), with the numbers

The exit code is 1 unless all are done.
"""

import sys
from pathlib import Path

from course.judge import find_answers, report


def check(words):
    if any(word.startswith("-") for word in words):
        sys.exit(__doc__)
    try:
        paths = find_answers(Path(__file__).resolve().parent, words)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if not report(paths, with_numbers=bool(words)):
        raise SystemExit(1)


if __name__ == "__main__":
    check(sys.argv[1:])
