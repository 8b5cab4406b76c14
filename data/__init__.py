"""Text in, tensors out: corpora, tokenizers, batches and masks. `data.load` opens any corpus."""

import sys
from difflib import get_close_matches
from pathlib import Path

from data import shards
from data.corpora import pairs, pydocs, rows, speeches, text, toy, wikitext
from data.download import download_files
from data.files import DataError, printable

NAMED = {
    "toy": toy.load,
    "pydocs": pydocs.load,
    "speeches": lambda: load_downloaded("speeches", speeches),
    "wikitext2": lambda: load_downloaded("wikitext2", wikitext),
    "toy-pairs": lambda: pairs.load_pairs("toy").corpus(),
}
NAMES = tuple(NAMED)
UNLABELLED = ("pydocs", "wikitext2", "toy-pairs")  # the NAMES without labelled rows
READERS = {".txt": text.load, ".tsv": rows.load, ".csv": rows.load}


def load(name, flag_name="--data"):
    """Return the Corpus of a name in NAMES, or at a path. flag_name: where the name was given.

    Raises DataError naming the file, the line and the remedy. A path is one of:
        a folder in the assignment's form: train_CLS.tsv, test_CLS.tsv, train_LM.txt, test_LM_*.txt
        a folder in WikiText's form: train.txt, valid.txt, test.txt
        a folder of two languages: train.en and train.fr (unpaired here; see corpora/pairs.py)
        a .txt: the last tenth becomes the test set (see corpora/text.py)
        a .tsv or .csv of labels and texts: a fifth becomes test rows (see corpora/rows.py)
    """
    if name in NAMED:
        return NAMED[name]()
    path = Path(name)
    if shards.is_prepared(path):
        raise DataError(
            f"{flag_name} {name}: holds tokens of beyond.prepare, "
            "which only train_lm.py and train_mlm.py can read; give the text itself"
        )
    if path.is_dir():  # its files tell its form
        if pairs.is_parallel(path):
            return pairs.load_pairs(path).corpus()
        return (wikitext if (path / "train.txt").exists() else speeches).load(path)
    if path.suffix.lower() in READERS:
        if flag_name == "--data":
            note_test_sets(path)
        return READERS[path.suffix.lower()](path)
    if path.exists():
        raise DataError(
            f"{flag_name} {name}: only folders, .txt, .tsv and .csv files can be read; "
            "rename or convert the file"
        )
    near = get_close_matches(str(name), NAMES, 1)
    remedy = f"did you mean {near[0]}?" if near else f"the names are {', '.join(NAMES)}"
    raise DataError(f"{flag_name} {name}: no such corpus, folder or file; {remedy}")


def load_downloaded(name, corpus):
    """Return the Corpus of a module, whose missing files are downloaded into data/NAME first."""
    return corpus.load(download_files(Path(__file__).parent / name, corpus.FILES, corpus.MIRRORS))


def name_of(corpus):
    """Return the name of a corpus for folders and titles: that in NAMES, or of the file or folder.
    `speeches` and a folder of that name have the same."""
    path = Path(corpus).resolve()
    return path.stem if path.suffix.lower() in (*READERS, ".jsonl") else path.name


def note_test_sets(path):
    """Print a note on stderr if a single file is the training part of a folder with test sets."""
    if path.stem.startswith("train_") and any(path.parent.glob("test_*")):
        note = "its test sets are in the same folder; give the folder to measure on them"
        print(printable(f"note: --data {path}: {note}"), file=sys.stderr)
