"""Sentence pairs: the same sentences in two languages."""

from dataclasses import dataclass, replace
from pathlib import Path

from data.corpora import lami, toy
from data.corpus import Corpus, check_set_name, hold_out, hold_out_valid
from data.files import DataError, read_lines

VALID_NAMES = ("val", "valid", "dev")


@dataclass
class Pairs:
    """Pairs (sentence in the first language, its translation in the second)."""

    name: str
    languages: tuple[str, str]
    train: list[tuple[str, str]]
    # For choosing a checkpoint; may be empty
    valid: list[tuple[str, str]]
    # Name of a test set -> its pairs
    tests: dict[str, list[tuple[str, str]]]

    def texts(self):
        """Return all training sentences of both languages. They make the vocabulary."""
        return [sentence for pair in self.train for sentence in pair]

    def with_valid(self, flags):
        """Return these pairs if some are for validation, else with the share --valid of the
        training pairs held out for it. Raises DataError for a needless --valid or too few pairs."""
        if self.valid:
            if "valid" in getattr(flags, "given", ()):
                problem = f"--data {flags.data} has pairs for validation"
                raise DataError(f"--valid {flags.valid}: {problem}; leave --valid out")
            return self
        train, valid = hold_out_valid(self.train, flags, key=lambda pair: pair[0])
        return replace(self, train=train, valid=valid)

    def corpus(self):
        """Return the text as a Corpus, in which the sentences are no longer paired."""
        tests = {
            f"{name}-{language}": list(side)
            for name, part in self.tests.items()
            for language, side in zip(self.languages, zip(*part))
        }
        return Corpus(self.name, self.texts(), tests)


def load_pairs(name, languages=""):
    """Return the Pairs of a name or at a path. Raises DataError naming file, line and remedy.

    name is one of:
        toy: the generated corpus in English and in Lami (see lami.py)
        a folder of parallel files: the n-th lines of train.en and train.fr are translations of each
            other. The same holds for val (or valid, dev) and for test sets of any other name
        a .tsv of `source<TAB>target` rows: a tenth of the distinct sources becomes the test set

    languages: "fr-en" names the folder's two endings, source first. It is needed to choose from
    more than two, or to reverse the order. Toy can be reversed as well; for a .tsv these are only
    names.
    """
    path, pair = Path(name), tuple(languages.split("-")) if languages else ()
    if languages and (len(pair) != 2 or not all(pair) or pair[0] == pair[1]):
        raise DataError(
            f"--languages {languages}: expected two different names joined by a hyphen, like en-fr"
        )
    if name == "toy":
        return make_toy(pair or ("english", "lami"))
    if path.is_dir():
        return load_folder(path, pair)
    if path.suffix.lower() == ".tsv":
        rows = read_pair_rows(path)
        train, test = hold_out(rows, 0.1, seed=0, key=lambda row: row[0])
        if not (train and test):
            raise DataError(
                f"{path}: too few pairs ({len(rows)}) to hold out a tenth for testing; give more"
            )
        return Pairs(path.stem, pair or ("source", "target"), train, [], {"test": test})
    if path.exists():
        raise DataError(
            f"--data {name}: pairs are read from folders and .tsv files; rename or convert the file"
        )
    raise DataError(
        f"--data {name}: no such pairs, folder or file; "
        "give toy, a folder of train.en and train.fr, or a .tsv of source<TAB>target"
    )


def make_toy(languages):
    """Return the toy corpus and its translation as Pairs."""
    if set(languages) != {"english", "lami"}:
        raise DataError(f"--languages {'-'.join(languages)}: toy has english-lami and lami-english")
    corpus = toy.load()

    def translate(sentences):
        pairs = [(sentence, lami.translate(sentence)) for sentence in sentences]
        return pairs if languages[0] == "english" else [pair[::-1] for pair in pairs]

    tests = [text for lines in corpus.tests.values() for text in lines]
    return Pairs("toy", languages, translate(corpus.texts()), [], {"test": translate(tests)})


def find_languages(folder):
    """Return the endings of the files train.LANGUAGE."""
    return sorted(path.suffix[1:] for path in folder.glob("train.*") if path.stem == "train")


def is_parallel(folder):
    """Return whether a folder holds training text in two languages, and no other form of corpus."""
    other_forms = ("train.txt", "train_LM.txt", "train_CLS.tsv")
    return len(find_languages(folder)) == 2 and not any(
        (folder / name).exists() for name in other_forms
    )


def load_folder(folder, languages):
    """Return the Pairs of train.LANGUAGE and of every other name that exists in both languages."""
    found = find_languages(folder)
    if not languages and len(found) != 2:
        if len(found) > 2:
            remedy = f"choose two, for example --languages {found[0]}-{found[1]}"
            raise DataError(f"{folder}: train in {', '.join(found)}; {remedy}")
        problem = f"only train.{found[0]}" if found else "no train file"
        remedy = "a folder of pairs has train.en and train.fr, or two other endings"
        raise DataError(f"{folder}: {problem}; {remedy}")
    languages = languages or tuple(found)
    names = {
        path.stem
        for path in folder.glob(f"*.{languages[0]}")
        if (folder / f"{path.stem}.{languages[1]}").exists()
        and not path.stem.startswith("train.")  # the training text in another version
    }
    parts = {
        name: read_parallel(*(folder / f"{name}.{language}" for language in languages))
        for name in ["train", *sorted(names - {"train"})]
    }
    valid = [pair for name in VALID_NAMES for pair in parts.pop(name, [])]
    train = parts.pop("train")
    for name in parts:
        check_set_name(name, folder / f"{name}.{languages[0]}")
    return Pairs(folder.resolve().name, languages, train, valid, parts)


def read_parallel(first, second):
    """Return [(line of the first file, the same line of the second), ...], without empty lines."""
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
    """Return [(source, target), ...] of a file of `source<TAB>target` lines."""
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
