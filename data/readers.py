"""Choose the reader of --data: the one place that knows all forms of data.

| form | reader |
|---|---|
| a name in NAMES | `load()` of data/corpora/NAME.py |
| a .txt | `read_text_file`, here |
| a .tsv or .csv of labels and texts, or a .txt with a header of them | data/tables.py |
| hf:NAME, a data set of the Hugging Face Hub | data/hub.py |
| a folder in the assignment's form (train_CLS.tsv, train_LM.txt, ...) | data/corpora/speeches.py |
| a folder of SICK or WikiText (SICK_train.txt, train.txt) | data/corpora/sick.py, wikitext2.py |
| a folder of two languages (train.en, train.fr) | data/parallel.py |
| a task that makes its lines (copy, recall, ...) | data/tasks.py, by `find_task` |

Three forms have scripts of their own, which call their readers: folders of `python -m data.prepare`
(data/text.py), sentence pairs (data/pairs.py) and comment trees (data/threads.py).

A reader imports nothing above it. Readers are imported inside the branch that needs them, so that a
run on a text of one's own loads neither the toy grammar nor the other formats.
"""

import importlib
import pkgutil
from functools import cache
from pathlib import Path

from data.corpus import Corpus, copy_key
from data.files import UserError, decode, read_bytes, read_non_empty_lines, strip_invisible

# The named corpora: one module of data/corpora each
MODULES = pkgutil.iter_modules([str(Path(__file__).parent / "corpora")])
NAMES = tuple(module.name.replace("_", "-") for module in MODULES)

# The names in data.tasks.TASKS
TASK_NAMES = ("copy", "reverse", "recall", "flipflop", "count", "sort", "add", "parity")


def load(name, flag="--data"):
    """Return the Corpus of a name in NAMES or at a path. flag: its name in messages. Raises
    UserError for anything else, and for test sets whose names are taken."""
    if not str(name).strip():  # as a path, it would be the working folder
        raise UserError(f"{flag} {str(name)!r}: is empty; give a path or a name")
    dashed = str(name).replace("_", "-")
    if dashed in NAMES:
        module = importlib.import_module(f"data.corpora.{dashed.replace('-', '_')}")
        corpus = module.load()
    else:
        corpus = read_path(name, flag)
    for test in corpus.tests:  # results have perplexity/valid, and perplexity/NAME@64
        if test in ("train", "valid") or "@" in test:
            raise UserError(f"{flag} {name}: no test set may be {test} or have @; rename its file")
    return corpus


@cache
def find_task(name, length=None):
    """Return the `data.tasks.Task` of a name, or None for other data. length: of its longest
    training prompts, a number or as it is typed. The same call returns the same task."""
    if name not in TASK_NAMES:
        return None
    from data.tasks import TASKS

    if str(length).isdecimal():
        return TASKS[name](int(length))
    return TASKS[name]()


def read_path(name, flag):
    """Return the Corpus at a path, or of hf:NAME. Raises UserError."""
    path = Path(name).expanduser()
    ending = path.suffix.lower()
    if str(name).startswith("hf:"):
        from data.hub import read_hub

        return read_hub(name)
    if name in TASK_NAMES:
        raise UserError(f"{flag} {name}: a task, which only train_lm.py reads; give a text")
    if (path / "meta.json").exists():
        raise UserError(f"{flag} {name}: holds prepared tokens, for train_lm.py; give the text")
    if path.is_dir():
        return read_folder(path)
    if path.exists() and ending == ".txt" and not is_table(path):
        return read_text_file(path)
    if path.exists() and ending in (".txt", ".tsv", ".csv"):
        from data.tables import read_table

        return read_table(path)
    remedy = f"give one, or a name: {', '.join(NAMES)}"
    remedy += f"; or to train_lm.py a task: {', '.join(TASK_NAMES)}"
    raise UserError(f"{flag} {name}: no folder, .txt, .tsv or .csv; {remedy}")


def is_table(path):
    """Return whether a .txt begins with tab-separated names of columns, of labels and texts: SNLI,
    MultiNLI and MRPC have such files."""
    cells = first_cells(path)
    if len(cells) == 1:
        return False
    from data.tables import find_columns

    return {"label", "text"} <= find_columns(cells, {}).keys()


def first_cells(path):
    """Return the tab-separated cells of the first line of a file. Raises UserError."""
    first_line, _, _ = read_bytes(path).partition(b"\n")
    return [strip_invisible(cell) for cell in decode(path, first_line).split("\t")]


def read_folder(folder):
    """Return the Corpus in a folder, which its files tell. Raises UserError."""
    if (folder / "SICK_train.txt").exists():
        from data.corpora.sick import read_sick

        return read_sick(folder)
    if (folder / "train.txt").exists():
        from data.corpora.wikitext2 import read_wikitext

        return read_wikitext(folder)
    from data.parallel import find_languages, read_parallel

    if len(find_languages(folder)) == 2:
        return read_parallel(folder).corpus()
    from data.corpora.speeches import read_assignment

    return read_assignment(folder)


def read_text_file(path):
    """Return the Corpus of a text with a sentence or paragraph per line. The new lines of its last
    tenth become the test set. Raises UserError if there are none."""
    lines = read_non_empty_lines(path)
    cut = len(lines) - max(1, len(lines) // 10)
    training = {copy_key(line) for line in lines[:cut]}
    test = [line for line in lines[cut:] if copy_key(line) not in training]
    if not (training and test):
        raise UserError(f"{path}: no line of the last tenth is new, to test on; give more lines")
    return Corpus(path.stem, lines[:cut], {"test": test})
