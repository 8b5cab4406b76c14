"""Sentence pairs: the same sentences in two languages, for models that read or write both."""

from dataclasses import dataclass, field
from pathlib import Path

from data.corpora import lami, toy
from data.corpus import Corpus, hold_out
from data.files import DataError, read_lines

VALID = ("val", "valid", "dev")


@dataclass
class Pairs:
    """Each part is a list of (sentence in the first language, its translation in the second)."""

    name: str
    languages: tuple[str, str]
    train: list[tuple[str, str]]
    # To choose a checkpoint by; empty where the corpus has none
    valid: list[tuple[str, str]] = field(default_factory=list)
    tests: dict[str, list[tuple[str, str]]] = field(
        default_factory=dict
    )  # name of a test set -> its pairs

    def texts(self):
        """All training sentences of both languages. Vocabularies come from here, never from a test."""
        return [sentence for pair in self.train for sentence in pair]

    def corpus(self):
        """The same text without the knowledge which sentences belong together."""
        tests = {
            f"{name}-{language}": list(side)
            for name, part in self.tests.items()
            for language, side in zip(self.languages, zip(*part))
        }
        return Corpus(self.name, self.texts(), tests)


def load_pairs(name, languages=""):
    """The pairs of that name, or at that path. Raises DataError with the file, the line and the remedy.

    name: toy (the generated corpus in English and in Lami, see lami.py) | a folder of parallel files: train.en and train.fr,
    whose n-th lines are translations of each other, the same for val (or valid, dev), and any other name as a test set |
    a .tsv of `source<TAB>target` rows, a tenth of the distinct sources held out as the test set.

    languages: "fr-en" names the folder's two endings, source first; needed only where there are more than two, or to turn them
    round. For a .tsv they are names, and nothing is turned; toy can be turned.
    """
    path, pair = Path(name), tuple(languages.split("-")) if languages else ()
    if languages and (len(pair) != 2 or not all(pair) or pair[0] == pair[1]):
        raise DataError(
            f"--languages {languages}: must be two different names joined by a hyphen, like en-fr"
        )
    if name == "toy":
        return toy_pairs(pair or ("english", "lami"))
    if path.is_dir():
        return folder_pairs(path, pair)
    if path.suffix == ".tsv":
        rows = read_pair_rows(path)
        train, heldout = hold_out(rows, 0.1, 0, key=lambda row: row[0])
        if not (train and heldout):
            raise DataError(
                f"{path}: {len(rows)} pairs are too few to hold out a tenth as the test set; give more"
            )
        return Pairs(path.stem, pair or ("source", "target"), train, [], {"heldout": heldout})
    if path.exists():
        raise DataError(
            f"--data {name}: pairs are read from folders and .tsv files; rename or convert the file"
        )
    raise DataError(
        f"--data {name}: no such pairs, folder or file; give toy, a folder of train.en and train.fr, "
        "or a .tsv of source<TAB>target"
    )


def toy_pairs(languages):
    if set(languages) != {"english", "lami"}:
        raise DataError(f"--languages {'-'.join(languages)}: toy has english-lami and lami-english")
    corpus = toy.generate()

    def both(sentences):
        pairs = [(sentence, lami.translate(sentence)) for sentence in sentences]
        return pairs if languages[0] == "english" else [pair[::-1] for pair in pairs]

    train = both(corpus["lines"] + [text for _, text in corpus["rows"]])
    return Pairs(
        "toy",
        languages,
        train,
        [],
        {"test": both([text for texts in corpus["tests"].values() for text in texts])},
    )


def training_languages(folder):
    return sorted(path.suffix[1:] for path in folder.glob("train.*") if path.stem == "train")


def is_parallel(folder):
    """Whether a folder holds the same training text in two languages, and none in the form of another corpus."""
    return len(training_languages(folder)) == 2 and not any(
        (folder / name).exists() for name in ("train.txt", "train_LM.txt", "train_CLS.tsv")
    )


def folder_pairs(folder, languages):
    """train.LANGUAGE in two languages, and every other name that stands there in both."""
    found = training_languages(folder)
    if not languages and len(found) != 2:
        if len(found) > 2:
            example = f"{found[0]}-{found[1]}"
            raise DataError(
                f"{folder}: train in {', '.join(found)}; choose two, for example --languages {example}"
            )
        there = f"only train.{found[0]}" if found else "no train file"
        raise DataError(
            f"{folder}: {there}; a folder of pairs has train.en and train.fr, or other two endings"
        )
    languages = languages or tuple(found)
    names = {
        path.stem
        for path in folder.glob(f"*.{languages[0]}")
        if (folder / f"{path.stem}.{languages[1]}").exists()
    }
    parts = {
        name: read_parallel(*(folder / f"{name}.{language}" for language in languages))
        for name in ["train", *sorted(names - {"train"})]
    }
    valid = next((parts.pop(name) for name in VALID if name in parts), [])
    return Pairs(folder.resolve().name, languages, parts.pop("train"), valid, parts)


def read_parallel(first, second):
    """[(line of the first file, the same line of the second), ...], lines that are empty in both left out.

    Raises DataError for a line that is empty in one of them, and where one file has more lines.
    """
    sides = [[line.strip() for line in read_lines(path)] for path in (first, second)]
    if len(sides[0]) != len(sides[1]):
        raise DataError(
            f"{second}: {len(sides[1]):,} lines, but {first} has {len(sides[0]):,}; "
            "the n-th lines of both must be translations of each other"
        )
    for number, pair in enumerate(zip(*sides), start=1):
        if bool(pair[0]) != bool(pair[1]):
            empty, full = (first, second) if pair[1] else (second, first)
            raise DataError(
                f"{empty}:{number}: empty, but {full.name} has a sentence there; "
                "complete the line or remove it from both files"
            )
    return [pair for pair in zip(*sides) if pair[0]]


def read_pair_rows(path):
    """[(source, target), ...] of a file of `source<TAB>target` lines. Raises DataError for a line without exactly one tab
    or with an empty side."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        sides = [side.strip() for side in line.split("\t")]
        if len(sides) != 2:
            raise DataError(
                f"{path}:{number}: {'no tab' if len(sides) == 1 else 'more than one tab'}; "
                "each line must be a sentence, a tab, and its translation"
            )
        if not all(sides):
            raise DataError(
                f"{path}:{number}: no sentence {'after' if sides[0] else 'before'} the tab; "
                "complete the line or remove it"
            )
        rows.append(tuple(sides))
    return rows
