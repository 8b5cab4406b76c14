"""The named corpora: a module here with `load()`, which returns a Corpus, is a name for --data.
Also reading files and folders of any form, and downloads checked by sha256."""

from pathlib import Path

import torch

from data.corpus import NAMES, Corpus, normalize
from data.files import UserError, read_non_empty_lines, sha256


def read(name, flag="--data"):
    """Return the Corpus at a path: a folder in the assignment's form (train_CLS.tsv, test_CLS.tsv,
    train_LM.txt, test_LM_*.txt), WikiText's (train.txt, valid.txt, test.txt) or of two languages
    (train.en, train.fr); a .txt; a .tsv or .csv of labels and texts; hf:NAME. Raises UserError."""
    from data import hub
    from data.corpora import sick, speeches, wikitext2  # these need this module
    from data.labelled import read_table
    from data.pairs import find_languages, load_pairs
    from data.text import find_task

    path = Path(name).expanduser()
    if str(name).startswith("hf:"):
        return hub.read(name)
    if find_task(name):
        raise UserError(f"{flag} {name}: a task, which only train_lm.py reads; give a text")
    if (path / "meta.json").exists():
        raise UserError(f"{flag} {name}: holds prepared tokens, for train_lm.py; give the text")
    if (path / "SICK_train.txt").exists():
        return sick.read(path)
    if (path / "train.txt").exists():
        return wikitext2.read(path)
    if len(find_languages(path)) == 2:
        return load_pairs(path).corpus()
    if path.is_dir():
        return speeches.read(path)
    reader = {".txt": read_txt, ".tsv": read_table, ".csv": read_table}.get(path.suffix.lower())
    if not (reader and path.exists()):
        remedy = f"give one, or a name: {', '.join(NAMES)}"
        raise UserError(f"{flag} {name}: no folder, .txt, .tsv or .csv; {remedy}")
    return reader(path)


def read_txt(path):
    """Return the Corpus of a text with a sentence or paragraph per line; the new lines of its last
    tenth become the test set. Raises UserError if there are none."""
    lines = read_non_empty_lines(path)
    cut = len(lines) - max(1, len(lines) // 10)
    training = {normalize(line) for line in lines[:cut]}
    test = [line for line in lines[cut:] if normalize(line) not in training]
    if not (training and test):
        raise UserError(f"{path}: no line of the last tenth is new, to test on; give more lines")
    return Corpus(path.stem, lines[:cut], {"test": test})


def download(name, files, mirrors):
    """Return the folder data/NAME with files {name: sha256}, each downloaded from the first mirror
    that delivers it. Raises UserError if none does, and for a file with another sha256."""
    folder = Path(__file__).parents[1] / name
    for file, digest in files.items():
        path, problems = folder / file, []
        path.parent.mkdir(parents=True, exist_ok=True)
        for mirror in mirrors:
            if not path.exists():
                print(f"downloading {path} ...", flush=True)
                try:  # the file gets its name when it is complete and its sha256 is right
                    torch.hub.download_url_to_file(mirror + file, path, digest, progress=False)
                except (OSError, RuntimeError) as error:  # RuntimeError: another sha256
                    problems.append(f"{mirror.split('/')[2]}: {error!s:.80}")
        if not path.exists():
            remedy = "check the network, or give a folder with the files: --data PATH"
            raise UserError(f"{path}: cannot be downloaded ({'; '.join(problems)}); {remedy}")
        if sha256(path) != digest:
            raise UserError(f"{path}: its sha256 is not the pinned one; delete the file")
    return folder
