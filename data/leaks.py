"""Keep test text out of the training text.

A score says what a model has learned only if the model never saw the test sentences. They leak in
three ways, and this file closes each of them:

- A corpus repeats itself: `hold_out` keeps all copies of a text on one side.
- The files of a corpus overlap: --split clean removes every test sentence from the training data,
  labelled and unlabelled. --split i/n does so for part i of a cross-validation.
- A model starts from another run, or from a vocabulary, made with other text: every run and every
  prepared folder lists the hashes of what it has read, so that lab/run.py can compare them.
"""

import random
import re
import unicodedata
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from data.corpus import copy_key, sentences_of
from data.files import UserError, whole_file

RUN = 12  # consecutive words that two different sentences hardly share by chance
SHORTEST = 5  # words of a test sentence that is also found inside a longer text

# Scripts without spaces: Thai and Lao, Burmese, Khmer, Japanese and Chinese
UNSPACED = "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff\U00020000-\U0003ffff]"


# --split


def split_corpus(corpus, split):
    """Return (corpus, seen, note) for a --split: full, clean or i/n.

    seen: for each test row whether it was a training row. note: what was removed. Raises UserError
    for another split, and if no rows are left."""
    if split == "full":
        return corpus, corpus.seen(), ""
    whole = corpus
    if split != "clean":
        i, n = parse_part(split)
        whole = make_fold(corpus, i, n)
    cleaned = remove_test_sentences(whole)
    if not (cleaned.rows and cleaned.test_rows):
        raise UserError(f"--split {split}: leaves no rows to train or test on; use --split full")
    note = (
        f"--split {split}: {len(cleaned.test_rows)} test rows; removed with their sentences: "
        f"{len(whole.rows) - len(cleaned.rows)} of {len(whole.rows)} training rows and "
        f"{len(whole.lines) - len(cleaned.lines)} of {len(whole.lines)} lines of text"
    )
    return cleaned, whole.seen(), note


def parse_part(split):
    """Return i and n of a --split i/n. Raises UserError unless 1 <= i <= n and n > 1."""
    i, _, n = split.partition("/")
    if i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n) > 1:
        return int(i), int(n)
    raise UserError(f"--split {split}: expected full, clean, or a part like 1/5")


def make_fold(corpus, i, n):
    """Return a Corpus whose test set is part i, from 1, of n parts of the distinct labelled
    sentences, and whose training rows are the others."""
    distinct = {}
    for label, text in corpus.rows + corpus.test_rows:
        distinct[copy_key(text)] = label, text
    dealt = sorted(distinct.values(), key=lambda row: row[1])
    random.Random(0).shuffle(dealt)
    rows = [row for place, row in enumerate(dealt) if place % n != i - 1]
    lines = corpus.lines
    if corpus.lines_are_rows():
        lines = sentences_of(rows)
    # The floor is known only for the corpus's own test set
    return replace(corpus, rows=rows, lines=lines, test_rows=dealt[i - 1 :: n], floor={})


def remove_test_sentences(corpus):
    """Return a Corpus without the lines, training and validation rows that are the sentence of a
    test row, or contain one of at least five words. Case, spaces and punctuation do not count."""
    test_sentences = {tuple(words_of(text)) for _, text in corpus.test_rows}
    texts = set(corpus.lines)
    texts.update(text for _, text in corpus.rows + corpus.valid_rows)
    leaks = find_leaks(texts, test_sentences)
    return replace(
        corpus,
        lines=[line for line in corpus.lines if line not in leaks],
        rows=[row for row in corpus.rows if row[1] not in leaks],
        valid_rows=[row for row in corpus.valid_rows if row[1] not in leaks],
        removed=leaks | {text for _, text in corpus.test_rows},
    )


def find_leaks(texts, sentences):
    """Return the set of texts that are or contain one of the sentences, a set of word tuples."""
    lengths = {len(sentence) for sentence in sentences if len(sentence) >= SHORTEST}
    leaks = set()
    for text in texts:
        words = tuple(words_of(text))
        if words in sentences or contains(words, sentences, lengths):
            leaks.add(text)
    return leaks


def contains(words, sentences, lengths):
    """Return whether a run of words of one of the lengths is among the sentences."""
    for n in lengths:
        for start in range(len(words) - n + 1):
            if words[start : start + n] in sentences:
                return True
    return False


def words_of(text):
    """Return the lower-case words of a text, without punctuation. If it has none, return its marks.
    In scripts without spaces (Thai, Lao, Burmese, Khmer, Japanese, Chinese) a letter is a word."""
    letters = unicodedata.normalize("NFC", text.lower())
    # P and S: punctuation and symbols of any script. \W would also split words at vowel signs
    marks = [letter for letter in set(letters) if unicodedata.category(letter)[0] in "PS"]
    plain = letters.translate(dict.fromkeys(map(ord, marks), " "))
    words = re.sub(UNSPACED, r" \g<0> ", plain).split()
    return words or text.split()


# --valid


def hold_out(items, share, seed=0, key=lambda item: item, name="", kind=lambda item: ""):
    """Split items into (kept, held out), about `share` of the distinct texts of each kind. All
    copies of a text are on one side, and both sides keep the order of the items.

    key, kind: functions that return the text of an item, and its kind (of copies, that of the last
    one counts). name: the value of --data, to raise UserError if a side is empty."""
    keys = [copy_key(key(item)) for item in items]
    as_typed = {}  # key -> (text with single spaces, its kind)
    for text_key, item in zip(keys, items):
        as_typed[text_key] = " ".join(key(item).split()), kind(item)
    # Sorted first, so that the same texts in another order give the same split
    texts = sorted(as_typed, key=as_typed.get)
    random.Random(seed).shuffle(texts)
    groups = {}
    for text_key in texts:
        _, kind_of_text = as_typed[text_key]
        groups.setdefault(kind_of_text, []).append(text_key)

    held_out = set()
    start = 0
    for group in groups.values():
        end = start + len(group)
        # Round the sums, not each group: else groups of a few texts would give none at all
        n_held_out = round(share * end) - round(share * start)
        held_out.update(group[:n_held_out])
        start = end
    if name and not 0 < len(held_out) < len(texts):
        problem = f"--data {name}: too little text to hold out --valid {share}"
        raise UserError(f"{problem}; give a larger --valid, or more text")
    kept_items = [item for text_key, item in zip(keys, items) if text_key not in held_out]
    held_out_items = [item for text_key, item in zip(keys, items) if text_key in held_out]
    return kept_items, held_out_items


def find_overlaps(held_out, kept):
    """Return the held-out texts that share RUN consecutive words with a kept one. Case, spaces and
    punctuation do not count."""
    runs = set()
    for text in held_out:
        runs |= runs_of(text)
    seen = set()  # the runs that are also in a kept text
    for text in kept:
        seen |= runs_of(text) & runs
    return [text for text in held_out if runs_of(text) & seen]


def runs_of(text):
    """Return the set of all RUN consecutive words of a text, as tuples."""
    words = words_of(text)
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


# What a run or a prepared folder was made with


def hashes(texts):
    """Return a hash of each text as uint64 (N,). Texts that differ only in case, spaces and
    punctuation have the same hash."""
    digests = []
    for text in texts:
        words = " ".join(words_of(text))
        digests.append(blake2b(words.encode(), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), "<u8")


def write_hashes(folder, arrays):
    """Write sentences.npy: the hashes in some arrays, sorted, each once."""
    with whole_file(Path(folder) / "sentences.npy") as file:
        np.save(file, np.unique(np.concatenate([hashes([]), *arrays])))


def read_hashes(folder):
    """Return the hashes of sentences.npy (N,)."""
    return np.load(Path(folder).expanduser() / "sentences.npy")
