"""Check your answers, and name the mistakes.

    python check.py
    python check.py attention        one exercise (or its number: 2), with the numbers
    python check.py --language zh    messages in Chinese

The exit code is 1 unless all are done.
"""

import argparse
import sys
from pathlib import Path

from course.judge import find_answers, report
from course.language import languages


def check(flags):
    sys.stdout.reconfigure(errors="backslashreplace")  # letters that the terminal lacks
    try:
        paths = find_answers(Path(__file__).resolve().parent, flags.names)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if not report(paths, with_numbers=bool(flags.names), language=flags.language):
        raise SystemExit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--language", choices=languages(), default="en")
    check(parser.parse_args())
