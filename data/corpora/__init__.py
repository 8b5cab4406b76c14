"""The named corpora: a module here with `load()`, which returns a Corpus, is a name for --data.
Also what they share: reading files and folders of any form, and downloads checked by sha256."""

from difflib import get_close_matches
from pathlib import Path

import torch

from data.corpus import NAMES, Corpus, normalize
from data.files import UserError, read_non_empty_lines, sha256


def read(name, flag="--data"):
    """Return the Corpus at a path. Raises UserError naming file, line and remedy. It is one of:

    a folder in the assignment's form: train_CLS.tsv, test_CLS.tsv, train_LM.txt, test_LM_*.txt
    a folder in WikiText's form: train.txt, valid.txt, test.txt
    a folder of two languages: train.en and train.fr (unpaired here; see data/pairs.py)
    a .txt, or a .tsv or .csv of labels and texts (see data/labelled.py)
    """
    from data.corpora import speeches, wikitext2  # these need this module
    from data.labelled import read_table
    from data.pairs import find_languages, load_pairs

    path = Path(name).expanduser()
    reader = {".txt": read_txt, ".tsv": read_table, ".csv": read_table}.get(path.suffix.lower())
    if (path / "meta.json").exists():
        problem = "holds prepared tokens, for train_lm.py and train_mlm.py; give the text itself"
    elif path.is_dir() and (path / "train.txt").exists():
        return wikitext2.read(path)
    elif path.is_dir() and len(find_languages(path)) == 2:
        return load_pairs(path).corpus()
    elif path.is_dir():
        return speeches.read(path)
    elif path.exists() and reader:
        return reader(path)
    elif path.exists():
        problem = "only folders, .txt, .tsv and .csv files can be read; rename or convert the file"
    else:
        near = get_close_matches(str(name), NAMES, 1)
        remedy = f"did you mean {near[0]}?" if near else f"the names are {', '.join(NAMES)}"
        problem = f"no such corpus, folder or file; {remedy}"
    raise UserError(f"{flag} {name}: {problem}")


def read_txt(path):
    """Return the Corpus of a text with a sentence or paragraph per line; the new lines of its last
    tenth become the test set. Raises UserError if there are none."""
    lines = read_non_empty_lines(path)
    cut = len(lines) - max(1, len(lines) // 10)
    training = {normalize(line) for line in lines[:cut]}
    test = [line for line in lines[cut:] if normalize(line) not in training]
    if not (training and test):
        problem = "no line of the last tenth is new" if training else "a single line"
        raise UserError(f"{path}: {problem}, so there is no test text; give more lines")
    return Corpus(path.stem, lines[:cut], {"test": test})


def download(name, files, mirrors):
    """Return the folder data/NAME, with its missing files {name: sha256} downloaded, each from the
    first mirror, an address that ends with /, that delivers it. Raises UserError if none does, and
    for an existing file with another sha256."""
    folder = Path(__file__).parents[1] / name
    folder.mkdir(exist_ok=True)
    for file, digest in files.items():
        path, problems = folder / file, []
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


def check_set_name(name, path):
    """Raise UserError if results could not name a test set: in blocks of 64 tokens, its perplexity
    is perplexity/NAME@64."""
    if name in ("train", "valid") or "@" in name:
        raise UserError(f"{path}: a test set may not be {name} or contain @; rename the file")
