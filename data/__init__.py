"""Corpora (one file each), tokenizers, batches and masks. `load` is the door."""

import sys
from pathlib import Path

from data import shards
from data.corpora import pairs, pydocs, speeches, toy, wikitext
from data.corpus import Corpus, hold_out, normal
from data.files import DataError, printable, read_rows, read_text

NAMES = ("toy", "pydocs", "speeches", "wikitext2", "toy-pairs")


def load(name):
    """The corpus of that name, or at that path. Raises DataError with the file, the line and the remedy.

    name: toy | pydocs | speeches | wikitext2 | toy-pairs (toy in two languages, see pairs.py) | a folder in the
    assignment's form (train_CLS.tsv, test_CLS.tsv, train_LM.txt, test_LM_*.txt) | a folder of train.txt, valid.txt and
    test.txt (WikiText's form) | a folder of train.en and train.fr (the text of both languages, as pairs.py has them) |
    a .txt, the new lines of its last tenth held out as the test set | a .tsv of `label<TAB>text` rows, a fifth of them
    held out as test rows.
    """
    path = Path(name)
    if name == "toy":
        return Corpus("toy", **toy.generate())
    if name == "pydocs":
        return pydocs.load()
    if name == "speeches":
        return speeches.load(speeches.download())
    if name == "wikitext2":
        return wikitext.load(wikitext.download())
    if name == "toy-pairs":
        return pairs.load_pairs("toy").corpus()
    if shards.is_prepared(path):
        raise DataError(
            f"--data {name}: holds tokens of prepare.py, which only train_lm.py and train_mlm.py can read; "
            "give the text itself"
        )
    if path.is_dir() and pairs.is_parallel(path):
        return pairs.load_pairs(path).corpus()
    if path.is_dir():
        return (wikitext if (path / "train.txt").exists() else speeches).load(path)
    if (
        path.suffix in (".txt", ".tsv")
        and path.stem.startswith("train_")
        and [*path.parent.glob("test_*")]
    ):
        print(
            printable(
                f"note: --data {name}: its test sets lie beside it; give the folder to measure on them"
            ),
            file=sys.stderr,
        )
    if path.suffix == ".txt":
        lines = read_text(path)
        cut = len(lines) - max(1, len(lines) // 10)
        if cut < 1:
            raise DataError(
                f"{path}: a single line cannot be split into training and test text; break it into lines"
            )
        known = {normal(line) for line in lines[:cut]}
        heldout = [line for line in lines[cut:] if normal(line) not in known]
        if not heldout:
            raise DataError(
                f"{path}: every line of its last tenth also stands before; give a text that repeats itself less"
            )
        return Corpus(path.stem, lines[:cut], {"heldout": heldout})
    if path.suffix == ".tsv":
        labelled = read_rows(path)
        classes = sorted({label for label, _ in labelled})
        if not 2 <= len(classes) <= max(2, len(labelled) // 4):
            raise DataError(
                f"{path}: {len(classes)} different labels in {len(labelled)} rows; the label stands before the "
                "tab, and at least two classes of several rows each are needed"
            )
        rows, test_rows = hold_out(
            [(classes.index(label), text) for label, text in labelled],
            0.2,
            0,
            key=lambda row: row[1],
        )
        return Corpus(path.stem, [text for _, text in rows], {}, rows, test_rows, classes)
    if path.exists():
        raise DataError(
            f"--data {name}: only folders, .txt and .tsv files can be read; rename or convert the file"
        )
    raise DataError(f"--data {name}: no such corpus, folder or file; names are {', '.join(NAMES)}")
