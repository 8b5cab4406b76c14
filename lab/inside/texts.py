"""Turn texts, as they are typed, into what a run reads: [BOS] in front, unknown words as [UNK].

Notes on stdout name unknown words and texts that are cut.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from data import batching
from data.corpus import PAIR
from data.files import UserError, printable
from data.tokenizer import BOS, EOS, MASK, UNK, frame, token_strings
from lab.predictions import read_predictions
from nets.seq2seq import ancestor_inputs

MOST_UNKNOWN = 30  # words that a note names
MOST_READ = 256  # tokens of a map, where positions do not end


class Encoded(NamedTuple):
    """Texts as a run reads them."""

    ids: list  # of each text a tensor (T,)
    words: list  # of each text a list of T tokens as they are shown
    typed: list  # of each text the number of its tokens before it was cut


def are_several(value):
    """Return whether a value holds texts: a list, a column of a table such as a pandas Series, or
    what else yields one text after another. A tuple is a pair."""
    if isinstance(value, str | bytes | tuple | Mapping):
        return False
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) == 1  # a table has 2


def list_texts(run, values):
    """Return the texts that a caller gave, one by one or as lists of them, as a list of strings. A
    pair (a, b) becomes "a [EOS] b". Raises UserError if one is no text, or if there is none."""
    texts = []
    for value in values:
        if are_several(value):
            texts.extend(value)
        else:
            texts.append(value)
    if not texts:
        raise UserError("no text is given; give a string, or a list of strings")
    for number, text in enumerate(texts):
        if isinstance(text, tuple) and len(text) == 2 and all(isinstance(a, str) for a in text):
            if not reads_pairs(run):
                problem = "is a pair, but this run was not trained on pairs"
                raise UserError(
                    f"{printable(repr(text), 80)}: {problem}; for two texts, give a list"
                )
            texts[number] = PAIR.join(text)
        elif not isinstance(text, str):
            value = f"{printable(repr(text), 80)} ({type(text).__name__})"
            problem = "is no text; give a string, or a list of strings"
            raise UserError(f"text {number + 1} of {len(texts):,}: {value} {problem}")
    return texts


def reads_pairs(run):
    """Return whether a run was trained on pairs of sentences."""
    if run.model.body.config.n_segment or run.config["build"].get("two_languages"):
        return True
    # A frozen body and RoBERTa's have no vectors of segments; their test rows tell
    if run.kind != "classifier" or not (run.folder / "predictions.tsv").exists():
        return False
    return any(PAIR in text for text in read_predictions(run.folder).texts)


def most_tokens(run):
    """Return how many tokens of a text are looked at. Encodings without an end read on where
    training ended; a classifier's texts are cut there, as in training."""
    if run.half.positions.ends or run.kind == "classifier":
        return run.block_size
    return max(run.block_size, MOST_READ)


def encode_texts(run, texts, most=None, masked=None):
    """Return the texts as Encoded.

    A star marks an unknown word, which is shown as it was typed; … ends a text that is cut to
    `most` tokens. masked: whether texts, to be answered, must have a [MASK] or must not; None: they
    need no answer. Raises UserError for a text that the run cannot read."""
    n_framing = len(frame(run.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
    room = run.block_size - n_framing
    encoded = Encoded([], [], [])
    all_unknown = []
    n_cut = 0
    for text in texts:
        encoding = run.tokenizer.encode(text, add_special_tokens=False)
        ids = encoding.ids
        check_text(run, text, ids, masked)
        if masked is not None and most is None:
            check_length(run, text, ids, room)
        encoded.typed.append(len(ids) + n_framing)
        words = token_strings(run.tokenizer, ids)
        for n, unknown in find_unknown(text, encoding).items():
            words[n] = unknown + "*"
            all_unknown.append(unknown)
        if most is not None and len(ids) > most - n_framing:
            ids = ids[: most - n_framing]
            words = words[: most - n_framing]
            words[-1] += " …"
            n_cut += 1
        words = ["[BOS]", *words]
        if n_framing > 1:
            words.append("[EOS]")
        encoded.ids.append(torch.tensor(frame(run.tokenizer, ids), device=run.device))
        encoded.words.append(words)
    if all_unknown:
        note_unknown(run, all_unknown)
    if n_cut:
        run.note(f"{n_cut:,} of {len(texts):,} texts are cut to {most} tokens")
    return encoded


def find_unknown(text, encoding):
    """Return {place: word as it was typed} of the unknown words in the Encoding of a text."""
    unknown = {}
    for n, (start, end) in enumerate(encoding.offsets):
        typed = text[start:end]
        if encoding.ids[n] == UNK and typed != "[UNK]":
            unknown[n] = typed
    return unknown


def note_unknown(run, words):
    """Note unknown words, the first of them if there are many."""
    named = words[:MOST_UNKNOWN]
    if len(words) > MOST_UNKNOWN:
        named.append("…")
    run.note(f"unknown words, read as [UNK]: {' '.join(named)}")


def check_text(run, text, ids, masked):
    """Raise UserError for a text without words, or with or without a [MASK], see encode_texts."""
    problem = ""
    if run.kind != "lm" and not set(ids) - {BOS, EOS}:
        problem = "contains no words; give a sentence"
    elif masked is True and MASK not in ids:
        problem = "no [MASK] found; put one where a word is missing"
    elif masked is False and MASK in ids:
        problem = "has a [MASK]; runs of train_mlm.py and beyond.train_seq2seq fill it"
    if problem:
        raise UserError(f"text {text[:80]!r}: {problem}")


def check_length(run, text, ids, room):
    """Raise UserError for a text that is longer than learned positions. A causal LM continues it:
    it reads the last tokens."""
    if run.half.positions.ends and run.kind != "lm" and len(ids) > room:
        problem = f"has {len(ids)} tokens, but learned positions end at {room}; shorten it"
        raise UserError(f"text {text[:80]!r}: {problem}")


def padded_batches(run, texts):
    """Yield {"idx": (B, T), "mask": (B, T)} of texts, cut to --block-size as in training."""
    ids = encode_texts(run, texts, most=run.block_size).ids
    for start in range(0, len(ids), 256):
        idx, mask = batching.pad(ids[start : start + 256])
        yield batching.send_all({"idx": idx, "mask": mask}, run.device)


def nearest_ancestors(run, texts):
    """Return those of the texts above a comment, from the post to its parent, that a thread reader
    reads."""
    return texts[-run.config["build"]["n_ancestors"] :]


def inputs_of_ancestors(run, ids):
    """Return what a thread reader reads of the texts above a comment. ids: of each a tensor."""
    texts, texts_mask = batching.pad(ids)
    return batching.send_all(ancestor_inputs(texts, texts_mask), run.device)


def number_gaps(run, ids):
    """Return ids (T,) with [S0], [S1], ... in place of each [MASK] if the run fills gaps."""
    first = run.first_gap
    if first is None:
        return ids
    if (ids >= first).any():
        raise UserError("text: [S0], [S1], ... number the gaps; write [MASK] for each gap")
    is_gap = ids == MASK
    most = run.model.body.config.vocab_size - first
    if is_gap.sum() > most:
        raise UserError(f"{run.folder}: was trained with {most} gaps; use fewer [MASK]s")
    sentinels = first + torch.arange(len(ids), device=ids.device)
    return ids.masked_scatter(is_gap, sentinels)
