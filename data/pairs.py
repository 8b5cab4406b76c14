"""Sentence pairs: the same sentences in two languages, and words masked in one of them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from data.batching import generator, pad
from data.corpora import check_set_name
from data.corpus import Corpus, hold_out, hold_out_valid
from data.files import UserError, hash_of, read_lines
from data.masking import mask_tokens

# View -> its name in words
PAIR_VIEWS = dict(alone="alone", paired="beside its translation", mispaired="beside a wrong one")


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
        return [sentence for pair in self.train for sentence in pair]

    def corpus(self):
        """Return the text as a Corpus, in which the sentences are no longer paired."""
        tests = {
            f"{name}-{language}": list(side)
            for name, part in self.tests.items()
            for language, side in zip(self.languages, zip(*part))
        }
        return Corpus(self.name, self.texts(), tests)

    def hash(self):
        """Return the sha256 of all pairs."""
        return hash_of([self.languages, self.train, self.valid, self.tests])


def load_pairs(name, languages="", valid=0.0):
    """Return the Pairs of a name or at a path. Raises UserError naming file, line and remedy.

    It is toy, English and Lami (see corpora/toy_pairs.py); or a folder in which the n-th lines of
    train.en and train.fr are translations of each other, and those of val (or valid, dev) and of
    test sets of any other name; or a .tsv of `source<TAB>target` rows, of which a tenth of the
    distinct sources becomes the test set. languages: "fr-en" names two endings, source first.
    valid: the share of the training pairs to hold out if there are none for validation."""
    path, pair = Path(name).expanduser(), tuple(languages.split("-")) if languages else ()
    if pair and (len(pair) != 2 or not all(pair)):
        raise UserError(f"--languages {languages}: expected two names joined by a hyphen: en-fr")
    if name == "toy":
        from data.corpora import toy, toy_pairs

        sides, pair = {"english": str, "lami": toy_pairs.translate}, pair or ("english", "lami")
        if set(pair) != set(sides):
            raise UserError(f"--languages {languages}: toy has english-lami and lami-english")
        texts = toy.load().texts(), sum(toy.load().tests.values(), [])
        train, test = ([tuple(sides[end](text) for end in pair) for text in x] for x in texts)
        pairs = Pairs("toy", pair, train, [], {"test": test})
    elif path.is_dir():
        pairs = read_folder(path, pair)
    elif path.suffix.lower() == ".tsv" and path.exists():
        rows = [tuple(map(str.strip, line.split("\t"))) for line in read_lines(path)]
        if bad := [n for n, row in enumerate(rows, 1) if len(row) != 2 or not all(row)]:
            raise UserError(f"{path}:{bad[0]}: expected a sentence, a tab and its translation")
        train, test = hold_out(rows, 0.1, key=lambda row: row[0])
        if not (train and test):
            raise UserError(f"{path}: too few pairs to hold out a tenth for testing; give more")
        pairs = Pairs(path.stem, pair or ("source", "target"), train, [], {"test": test})
    else:
        expected = "toy, a folder of train.en and train.fr, or a .tsv of source<TAB>target"
        raise UserError(f"--data {name}: no such pairs; give {expected}")
    if valid and not pairs.valid:
        pairs.train, pairs.valid = hold_out_valid(pairs.train, valid, name, lambda pair: pair[0])
    return pairs


def find_languages(folder):
    """Return the endings of the files train.LANGUAGE."""
    return tuple(sorted(p.suffix[1:] for p in folder.glob("train.*") if p.stem == "train"))


def read_folder(folder, languages):
    """Return the Pairs of train.LANGUAGE and of every other name that exists in both languages."""
    found = find_languages(folder)
    if not languages and len(found) != 2:
        remedy = "choose two, as in --languages en-fr" if found[2:] else "add train.en and train.fr"
        problem = f"has train in {', '.join(found) or 'no language'}, expected two"
        raise UserError(f"{folder}: {problem}; {remedy}")
    languages = languages or found
    first, second = ({p.stem for p in folder.glob(f"*.{ending}")} for ending in languages)
    # train.lc.en is the training text in another version
    names = {name for name in first & second if name.split(".")[0] != "train"}
    parts = {}
    for name in ("train", *sorted(names)):
        parts[name] = read_parallel(*(folder / f"{name}.{ending}" for ending in languages))
    train = parts.pop("train")
    valid = [pair for name in ("val", "valid", "dev") for pair in parts.pop(name, [])]
    for name in parts:
        check_set_name(name, folder / f"{name}.{languages[0]}")
    return Pairs(folder.resolve().name, languages, train, valid, parts)


def read_parallel(first, second):
    """Return [(line of the first file, the same line of the second), ...], without empty lines."""
    ours, theirs = ([line.strip() for line in read_lines(path)] for path in (first, second))
    if (n := len(ours)) != (m := len(theirs)):
        raise UserError(f"{second}: {m:,} lines, but {first} has {n:,}; they must be translations")
    for number, (a, b) in enumerate(zip(ours, theirs), start=1):
        if bool(a) != bool(b):
            empty = second if a else first
            raise UserError(f"{empty}:{number}: empty, but not the other file; complete the line")
    return [pair for pair in zip(ours, theirs) if pair[0]]


def join(firsts, seconds):
    """Join pairs of sentences, two lists of tensors, into one sequence per pair. Returns idx, mask
    (B, T) as `pad` does, and {"languages": 0 or 1, "at": the position, counted from 0 in each
    sentence}, both (B, T)."""
    idx, mask = pad([torch.cat(pair) for pair in zip(firsts, seconds)])
    begins = torch.tensor([len(first) for first in firsts])[:, None]
    t = torch.arange(idx.size(1))
    languages = (t >= begins).long()
    at = (t - begins * languages).masked_fill(~mask, 0)  # padding could exceed a learned table
    return idx, mask, {"languages": languages, "at": at}


def separate(firsts, seconds):
    """Return the same sentences one by one, all of the first language before those of the second:
    idx, mask (2B, T) and {"languages": (2B, T)}."""
    idx, mask = pad([*firsts, *seconds])
    languages = (torch.arange(len(idx)) >= len(firsts)).long()[:, None].expand_as(idx)
    return idx, mask, {"languages": languages}


def mask_pairs(sides, side, vocab_size, starts, rate, unit):
    """Return {view: batches} in which the same words of one of two sides, lists of sequences, are
    masked, whatever the seed: alone, beside the whole translation, and beside that of another
    sentence of about its length. A batch is (inputs, mask, labels, more): the first three (B, T),
    and `more` what else the model reads, by the names of its arguments."""
    order = torch.argsort(torch.tensor([len(sequence) for sequence in sides[0]]), stable=True)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    batches = {view: [] for view in PAIR_VIEWS}
    for rows in order.split(64):
        idx, mask = pad([sides[side][i] for i in rows])
        gen = generator("masks of side", side, *rows.tolist())
        inputs, labels = mask_tokens(idx, vocab_size, gen, rate, unit, starts)
        batches["alone"].append((inputs, mask, labels, {"languages": torch.full_like(idx, side)}))
        masked = [row[real] for row, real in zip(inputs, mask)]
        for view, others in (("paired", rows), ("mispaired", partner[rows])):
            others = [sides[1 - side][i] for i in others]
            joined, joined_mask, more = join(*((masked, others) if side == 0 else (others, masked)))
            mine = joined_mask & (more["languages"] == side)
            wanted = torch.full_like(joined, -100).masked_scatter(mine, labels[mask])
            batches[view].append((joined, joined_mask, wanted, more))
    return batches
