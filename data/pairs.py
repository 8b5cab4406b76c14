"""Sentence pairs: the same sentences in two languages, and words masked in one of them."""

from dataclasses import dataclass
from pathlib import Path

import torch

from data.batching import generator, pad
from data.corpora import toy, toy_pairs
from data.corpus import Corpus, hold_out, name_of
from data.files import UserError, read_lines
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
        sides = ((*each, i) for each in self.tests.items() for i in (0, 1))
        tests = {f"{n}-{self.languages[i]}": [pair[i] for pair in part] for n, part, i in sides}
        return Corpus(self.name, self.texts(), tests)


def load_pairs(name, valid=0.0):
    """Return the Pairs called toy, English and Lami, or in a folder of two languages: line by line,
    train.en and train.fr are translations, as are val (or valid, dev) and test sets of any name.
    valid: the share of training pairs to hold out without val. Raises UserError naming the line."""
    if name == "toy":
        corpus, languages = toy.load(), ("english", "lami")
        parts = {"train": corpus.texts(), "test": sum(corpus.tests.values(), [])}
        parts = {n: [(x, toy_pairs.translate(x)) for x in part] for n, part in parts.items()}
    else:
        path = Path(name).expanduser()
        languages = find_languages(path)
        if len(languages) != 2:
            found = ", ".join(f"train.{end}" for end in languages) or "no train.LANGUAGE"
            raise UserError(f"--data {name}: holds {found}; give toy, or train.en and train.fr")
        first, second = ({p.stem for p in path.glob(f"*.{end}")} for end in languages)
        files = {n: [path / f"{n}.{end}" for end in languages] for n in sorted(first & second)}
        parts = {n: read_parallel(*both) for n, both in files.items()}
    train = parts.pop("train")
    held = [pair for part in ("val", "valid", "dev") for pair in parts.pop(part, [])]
    if valid and not held:
        train, held = hold_out(train, valid, key=lambda pair: pair[0], name=name)
    return Pairs(name_of(name), languages, train, held, parts)


def find_languages(folder):
    """Return the endings of the files train.LANGUAGE."""
    return tuple(sorted(p.suffix[1:] for p in folder.glob("train.*") if p.stem == "train"))


def read_parallel(first, second):
    """Return [(line of the first file, the same line of the second), ...], without empty lines."""
    ours, theirs = ([line.strip() for line in read_lines(path)] for path in (first, second))
    if (n := len(ours)) != (m := len(theirs)):
        raise UserError(f"{second}: {m:,} lines, but {first} has {n:,}; they must be translations")
    for number, (a, b) in enumerate(zip(ours, theirs), start=1):
        if bool(a) != bool(b):
            empty = f"{second if a else first}:{number}"
            raise UserError(f"{empty}: empty, but not in the other file; complete the line")
    return [pair for pair in zip(ours, theirs) if pair[0]]


def join(firsts, seconds):
    """Join pairs of sentences, two lists of tensors, into one sequence per pair: idx, mask (B, T),
    and {"languages": 0 or 1, "at": the position, from 0 in each sentence}, both (B, T)."""
    idx, mask = pad([torch.cat(pair) for pair in zip(firsts, seconds)])
    begins = torch.tensor([len(first) for first in firsts])[:, None]
    t = torch.arange(idx.size(1))
    languages = (t >= begins).long()
    at = (t - begins * languages).masked_fill(~mask, 0)  # padding could exceed a learned table
    return idx, mask, {"languages": languages, "at": at}


def separate(firsts, seconds):
    """Return the sentences one by one, the first language first: idx, mask, languages (2B, T)."""
    idx, mask = pad([*firsts, *seconds])
    languages = (torch.arange(len(idx)) >= len(firsts)).long()[:, None].expand_as(idx)
    return idx, mask, {"languages": languages}


def mask_pairs(sides, side, vocab_size, starts, rate, unit):
    """Return {view: batches} in which the same words of one of two sides, lists of sequences, are
    masked: alone, beside the translation, and beside that of a sentence of about its length. A
    batch is (inputs, mask, labels, more): three (B, T), and by name what else the model reads."""
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
