"""Real English without a download: the help texts that ship with every CPython."""

import re
from pydoc_data.topics import topics

from data.corpus import Corpus


def load():
    """Return the Corpus of prose paragraphs; every tenth topic is in the test set.

    Code, grammar and tables are left out. The topics depend on the Python version, so only compare
    numbers of the same version.
    """
    lines, test = [], []
    for number, (_, text) in enumerate(sorted(topics.items())):
        prose = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if is_prose(part)]
        (test if number % 10 == 9 else lines).extend(prose)
    training = set(lines)
    return Corpus("pydocs", lines, {"test": [line for line in test if line not in training]})


def is_prose(paragraph):
    """Return whether a paragraph is mostly words and reads like a sentence."""
    words = re.findall(r"[A-Za-z]+", paragraph)
    symbols = re.findall(r"[^\w\s.,;:'\"()-]", paragraph)
    return len(words) >= 8 and len(symbols) < len(words) / 8 and paragraph.rstrip()[-1] in ".:;)"
