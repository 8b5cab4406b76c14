"""Read sentence pairs: a folder of parallel files, line by line translations of each other."""

from dataclasses import dataclass
from pathlib import Path

from data.corpus import Corpus, name_of
from data.files import UserError, read_lines


@dataclass
class Pairs:
    """Pairs (sentence in the first language, its translation in the second)."""

    name: str
    languages: tuple[str, str]
    train: list[tuple[str, str]]
    valid: list[tuple[str, str]]  # for choosing a checkpoint; may be empty
    tests: dict[str, list[tuple[str, str]]]  # name of a test set -> its pairs

    def texts(self):
        """Return all training sentences of both languages. They make the vocabulary."""
        texts = []
        for pair in self.train:
            texts += pair
        return texts

    def corpus(self):
        """Return the text as a Corpus, in which the sentences are no longer paired."""
        tests = {}
        for name, pairs in self.tests.items():
            for side, language in enumerate(self.languages):
                tests[f"{name}-{language}"] = [pair[side] for pair in pairs]
        return Corpus(self.name, self.texts(), tests)


def find_languages(folder):
    """Return the endings of the files train.LANGUAGE, sorted."""
    files = folder.glob("train.*")
    return tuple(sorted(file.suffix[1:] for file in files if file.stem == "train"))


def read_parallel(name):
    """Return the Pairs in a folder of two languages: train.en and train.fr are translations, as are
    val (or valid, dev) and test sets of any name. Raises UserError naming the line."""
    folder = Path(name).expanduser()
    languages = find_languages(folder)
    if len(languages) != 2:
        files = ", ".join(f"train.{language}" for language in languages) or "no train.LANGUAGE"
        raise UserError(f"--data {name}: holds {files}; give toy, or train.en and train.fr")
    first, second = languages
    in_both = {path.stem for path in folder.glob(f"*.{first}")}
    in_both &= {path.stem for path in folder.glob(f"*.{second}")}
    sets = {}
    for stem in sorted(in_both):
        sets[stem] = read_translations(folder / f"{stem}.{first}", folder / f"{stem}.{second}")
    train = sets.pop("train")
    valid = []
    for stem in ("val", "valid", "dev"):
        valid += sets.pop(stem, [])
    return Pairs(name_of(name), languages, train, valid, sets)


def read_translations(first, second):
    """Return [(line of the first file, the same line of the second), ...], without empty lines.
    Raises UserError for files of different lengths, and a line that is empty in one of them."""
    firsts = [line.strip() for line in read_lines(first)]
    seconds = [line.strip() for line in read_lines(second)]
    if len(firsts) != len(seconds):
        lengths = f"{len(seconds):,} lines, but {first} has {len(firsts):,}"
        remedy = "they must be translations, and a carriage return inside a line ends it"
        raise UserError(f"{second}: {lengths}; {remedy}")
    pairs = []
    for number, (a, b) in enumerate(zip(firsts, seconds), start=1):
        if a and b:
            pairs.append((a, b))
        elif a or b:
            empty = first if b else second
            raise UserError(
                f"{empty}:{number}: empty, but not in the other file; complete the line"
            )
    return pairs
