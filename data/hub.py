"""Read data sets of the Hugging Face Hub, and folders in its forms: --data hf:NAME or hf:FOLDER.

hf:stanfordnlp/imdb   hf:nyu-mll/glue:subset=mrpc   hf:NAME:text=review,label=stars
"""

import logging
import sys
from pathlib import Path

from data.corpus import PAIR, Corpus, name_of
from data.files import UserError, normalize_characters, strip_invisible
from data.leaks import hold_out
from data.tables import NAMES, find_columns, make_corpus


def read_hub(name):
    """Return the Corpus of a data set's splits train, validation and test. Its columns are those
    named behind it, or have a usual name (tables.NAMES) or type. Without a test set, the validation
    set or a fifth of the rows is one. Raises UserError if it cannot be loaded or has no text."""
    place, _, words = name.removeprefix("hf:").partition(":")
    named = {}  # what a column holds -> its name, as typed
    for word in words.split(","):
        if word:
            key, _, value = word.partition("=")
            named[key] = value
    subset = named.pop("subset", None)
    splits = load_splits(name, place, subset)
    kinds = splits["train"].features
    columns = choose_columns(name, named, kinds)
    words = [f"{role}={column}" for role, column in columns.items()]
    print(f"note: --data {name}:", *words, file=sys.stderr)

    if splits["train"].info.builder_name == "csv":
        splits = load_splits(name, place, subset, **cells_as_typed(columns, kinds))
    train = read_split(name, splits, "train", columns)
    valid = read_split(name, splits, "validation", columns)
    test = read_split(name, splits, "test", columns)
    if not train:
        raise UserError(f"--data {name}: no row of train has all of {', '.join(columns.values())}")
    if not test:  # GLUE's test sets have no labels
        test = valid
        valid = []
    if not test:
        train, test = hold_out(
            train,
            0.2,
            key=lambda row: row["text"],
            name=name,
            kind=lambda row: row.get("label", ""),
        )
    if is_text(columns):
        return Corpus(name_of(name), lines_of(train), {"test": lines_of(test)})
    return make_corpus(f"--data {name}", name_of(name), train, test, valid)


def load_splits(name, place, subset, **options):
    """Return {split: rows} of a data set. options: of its loader. Raises UserError if it cannot be
    loaded."""
    try:
        import datasets  # an extra: most data needs neither this library nor its start-up time
    except ImportError:
        raise UserError(f'--data {name}: needs datasets; pip install -e ".[hub]"') from None
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # offline, five lines of retries
    folder = Path(place).expanduser()
    if folder.exists():
        place = str(folder.resolve())  # only an absolute path is surely no name: "csv" is one
    try:
        splits = datasets.load_dataset(place, subset, **options)
        splits["train"]
    except Exception as error:  # of many kinds: an unknown name, offline, no split train
        problem = str(error.__cause__ or error).split("\n")[0]
        problem = f"cannot be loaded ({problem:.200}); check the name and the network"
        raise UserError(f"--data {name}: {problem}") from None
    return splits


def choose_columns(name, named, kinds):
    """Return {what a column holds: its name}: those `named`, then those with a usual name, then the
    one of the type of classes or strings. kinds: {name of a column: its type}. Raises UserError for
    a column that does not exist, without a text, and for two that fit."""
    names = list(kinds)
    form = f"write {', '.join(NAMES)}=COLUMN; the columns are {', '.join(names)}"
    for role, column in named.items():
        if role not in NAMES or column not in kinds:
            raise UserError(f"--data {name}: {role}={column} cannot be read; {form}")
    fits = {}  # what a column holds -> the names of the columns that fit
    free = set(names)
    lower_case = {role: column.lower() for role, column in named.items()}
    for role, places in find_columns(names, lower_case).items():
        fits[role] = [names[place] for place in places]
        if role in named:
            fits[role] = [named[role]]
        free -= set(fits[role])
    labels = fits.get("label", [])
    if "label" not in named and labels and "float" in dtype_of(kinds[labels[0]]):
        fits.setdefault("score", fits.pop("label"))
    classes = [column for column in names if hasattr(kinds[column], "names")]
    strings = [column for column in names if dtype_of(kinds[column]) == "string"]
    fits.setdefault("label", [column for column in classes if column in free])
    fits.setdefault("text", [column for column in strings if column in free])
    columns = {}
    for role, several in fits.items():
        if len(several) > 1:
            problem = f"the columns {' and '.join(several)} both fit {role}"
            raise UserError(f"--data {name}: {problem}; choose one: {form}")
        if several:
            columns[role] = several[0]
    if "text" not in columns:
        raise UserError(f"--data {name}: no text cannot be read; {form}")
    return columns


def cells_as_typed(columns, kinds):
    """Return options that read the cells of a .csv as typed. Without them None, NA and null would
    be empty cells, and the labels 0 and 1 would be 0.0 and 1.0 if a cell is empty."""
    import datasets  # loaded already, see load_splits

    features = {}
    for column in columns.values():
        kind = kinds[column]
        if not hasattr(kind, "names"):  # the classes that a data set declares keep their names
            kind = datasets.Value("string")
        features[column] = kind
    return {"features": datasets.Features(features), "na_filter": False}


def dtype_of(kind):
    """Return the name of a column's type; "" for lists, which have none."""
    return str(getattr(kind, "dtype", ""))


def is_text(columns):
    """Return whether a data set is running text: it has neither labels nor scores."""
    return not columns.keys() & {"label", "score"}


def read_split(name, splits, split, columns):
    """Return the rows of a split as `tables.read_rows` does, without those with an empty cell. Of
    running text, a row may have several lines."""
    if split not in splits:
        return []
    records = splits[split]
    kinds = records.features
    rows = []
    for cells in records:
        row = {role: spell(kinds[column], cells[column]) for role, column in columns.items()}
        if "label" in row:
            row["label"] = strip_invisible(row["label"])
        if not all(row.values()):
            continue
        if not is_text(columns):
            sentences = [one_line(row["text"])]
            if "text2" in row:
                sentences.append(one_line(row.pop("text2")))
            row["text"] = PAIR.join(sentences)
        rows.append(row)
    n_empty = len(records) - len(rows)
    if n_empty and not is_text(columns):
        note = f"left out {n_empty:,} rows of {split} with an empty {' or '.join(columns.values())}"
        print(f"note: --data {name}: {note}", file=sys.stderr)
    return rows


def one_line(text):
    """Return a text on one line, without the [EOS] that separates the sentences of a pair."""
    return " ".join(text.replace("[EOS]", " ").split())


def spell(kind, value):
    """Return a cell in words; "": an empty one, or the label -1, which means none."""
    if hasattr(kind, "names"):
        if value is None or value < 0:
            return ""
        return kind.names[value]
    if value is None:
        return ""
    return normalize_characters(str(value)).strip()


def lines_of(rows):
    """Return the lines of the texts of rows."""
    return "\n".join(row["text"] for row in rows).split("\n")
