"""Sentence pairs as tensors: joined or separate, and with words masked in one of the sentences."""

from dataclasses import replace

import torch

from data.batching import generator, pad
from data.corpora import toy_pairs
from data.leaks import hold_out
from data.masking import mask_tokens
from data.parallel import read_parallel

# View -> its name in words
PAIR_VIEWS = dict(alone="alone", paired="beside its translation", mispaired="beside a wrong one")


def load_pairs(name, valid=None):
    """Return the Pairs called toy, English and Lami, or in a folder of two languages. valid: the
    share of training pairs to hold out if the folder has no val; None: none. Raises UserError."""
    if name == "toy":
        pairs = toy_pairs.load_pairs()
    else:
        pairs = read_parallel(name)
    if valid is not None and not pairs.valid:
        kept, held_out = hold_out(pairs.train, valid, key=lambda pair: pair[0], name=name)
        pairs = replace(pairs, train=kept, valid=held_out)
    return pairs


def join(firsts, seconds):
    """Join pairs of sentences, two lists of tensors, into one sequence per pair: idx, mask (B, T),
    and {"languages": 0 or 1, "at": the position, from 0 in each sentence}, both (B, T)."""
    idx, mask = pad([torch.cat(pair) for pair in zip(firsts, seconds)])
    begins = torch.tensor([len(first) for first in firsts])[:, None]  # (B, 1) of the second one
    t = torch.arange(idx.size(1))
    languages = (t >= begins).long()  # (B, T)
    at = t - begins * languages
    at = at.masked_fill(~mask, 0)  # padding could exceed a learned table
    return idx, mask, {"languages": languages, "at": at}


def separate(firsts, seconds):
    """Return the sentences one by one, the first language first: idx, mask, languages (2B, T)."""
    idx, mask = pad([*firsts, *seconds])
    is_second = torch.arange(len(idx)) >= len(firsts)  # (2B,)
    languages = is_second.long()[:, None].expand_as(idx)
    return idx, mask, {"languages": languages}


def mask_pairs(sides, side, vocab_size, starts, rate, unit):
    """Return {view: batches} in which the same words are masked in each view of PAIR_VIEWS.

    sides: the sentences of both languages, two lists of sequences. side: 0 or 1, whose words are
    masked. mispaired: beside the translation of a sentence of about its length. A batch is (inputs,
    mask, labels, extra): three (B, T), and by name what else the model reads."""
    lengths = torch.tensor([len(sequence) for sequence in sides[0]])
    order = torch.argsort(lengths, stable=True)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)  # the next shorter sentence, of the shortest the longest
    batches = {view: [] for view in PAIR_VIEWS}
    for rows in order.split(64):
        idx, mask = pad([sides[side][i] for i in rows])  # (B, T)
        gen = generator("masks of side", side, *rows.tolist())
        inputs, labels = mask_tokens(idx, vocab_size, gen, rate, unit, starts)
        batches["alone"].append((inputs, mask, labels, {"languages": torch.full_like(idx, side)}))
        masked = [row[is_real] for row, is_real in zip(inputs, mask)]
        for view, translations in (("paired", rows), ("mispaired", partner[rows])):
            others = [sides[1 - side][i] for i in translations]
            if side == 0:
                joined, joined_mask, extra = join(masked, others)
            else:
                joined, joined_mask, extra = join(others, masked)
            # The labels move with their words, to where these stand in the joined sequence
            is_masked_side = joined_mask & (extra["languages"] == side)
            joined_labels = torch.full_like(joined, -100)
            joined_labels = joined_labels.masked_scatter(is_masked_side, labels[mask])
            batches[view].append((joined, joined_mask, joined_labels, extra))
    return batches
