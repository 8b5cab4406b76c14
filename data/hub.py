"""Data sets of the Hugging Face Hub, and folders in its forms: --data hf:NAME or hf:FOLDER.

hf:stanfordnlp/imdb   hf:nyu-mll/glue:subset=mrpc   hf:NAME:text=review,label=stars
"""

import logging
import sys
from pathlib import Path

from data.corpus import PAIR, Corpus, hold_out, name_of
from data.files import UserError, clean
from data.labelled import COLUMNS, NAMES, corpus_of


def read(name):
    """Return the Corpus of a data set's splits train, validation and test. Columns are those named
    behind it, or have a usual name (labelled.NAMES) or type: the first of classes and the first of
    strings. Raises UserError if it cannot be loaded or has no text."""
    try:
        import datasets
    except ImportError:
        raise UserError(f'--data {name}: needs datasets; pip install -e ".[hub]"') from None
    place, _, words = name.removeprefix("hf:").partition(":")
    called = dict(word.partition("=")[::2] for word in words.split(",") if word)
    subset, folder = called.pop("subset", None), Path(place).expanduser()
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # offline, five lines of retries
    try:  # only an absolute path is surely no name: "csv" is one
        found = datasets.load_dataset(str(folder.resolve()) if folder.exists() else place, subset)
        kinds = found["train"].features
    except Exception as error:  # of many kinds: an unknown name, offline, no split train
        problem = str(error.__cause__ or error).split("\n")[0]
        problem = f"cannot be loaded ({problem:.200}); check the name and the network"
        raise UserError(f"--data {name}: {problem}") from None
    wrong = [f"{k}={n}" for k, n in called.items() if k not in NAMES or n not in kinds]
    usual = [(COLUMNS.get(n.lower()), n) for n in kinds]
    usual += [("label", n) for n in kinds if hasattr(kinds[n], "names")]
    types = {n: str(getattr(kind, "dtype", "")) for n, kind in kinds.items()}  # lists have none
    usual += [("text", n) for n in kinds if types[n] == "string"]
    for what, n in usual:
        what = "score" if what == "label" and "float" in types[n] else what
        if what and n not in called.values():
            called.setdefault(what, n)
    if wrong or "text" not in called:
        form = f"write {', '.join(NAMES)}=COLUMN; the columns are {', '.join(kinds)}"
        raise UserError(f"--data {name}: {', '.join(wrong) or 'no text'} cannot be read; {form}")
    print(f"note: --data {name}:", *(f"{k}={n}" for k, n in called.items()), file=sys.stderr)
    is_text = not called.keys() & {"label", "score"}

    def rows_of(split):
        rows = []
        for cells in found.get(split, ()):
            row = {what: spell(kinds[n], cells[n]) for what, n in called.items()}
            if all(row.values()):  # none has a label in GLUE's test sets
                pair = [row["text"], *([row.pop("text2")] if "text2" in row else [])]
                one_line = (" ".join(t.replace("[EOS]", " ").split()) for t in pair)
                rows.append(row if is_text else row | {"text": PAIR.join(one_line)})
        return rows

    train, valid, test = map(rows_of, ("train", "validation", "test"))
    valid, test = (valid, test) if test else ([], valid)
    if not test:
        how = dict(key=lambda row: row["text"], kind=lambda row: row.get("label", ""))
        train, test = hold_out(train, 0.2, name=name, **how)
    if is_text:
        texts = ("\n".join(row["text"] for row in rows) for rows in (train, test))
        lines, tests = (text.split("\n") for text in texts)
        return Corpus(name_of(name), lines, {"test": tests})
    return corpus_of(f"--data {name}", name_of(name), train, test, valid)


def spell(kind, value):
    """Return a cell in words; "": an empty one, or the label -1, which means none."""
    if hasattr(kind, "names"):
        return kind.names[value] if value is not None and value >= 0 else ""
    return clean("" if value is None else str(value)).strip()
