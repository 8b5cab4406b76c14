"""WikiText (Merity et al. 2017): Wikipedia articles, in a folder of train.txt, valid.txt and test.txt, already tokenised.

What its tokeniser has taken apart is put together again, so that its words look like any other text's.
"""

from pathlib import Path

from data.corpus import Corpus
from data.files import read_text

REPAIRS = ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "[UNK]"))


def load(folder):
    """The corpus: the lines of train.txt, and valid.txt and test.txt as test sets. Raises DataError as the readers do."""
    parts = {name: [repair(line) for line in read_text(Path(folder) / f"{name}.txt")] for name in ("train", "valid", "test")}
    return Corpus(Path(folder).resolve().name, parts.pop("train"), {"wiki-" + name: lines for name, lines in parts.items()})


def repair(line):
    for old, new in REPAIRS:
        line = line.replace(old, new)
    return line.strip()
