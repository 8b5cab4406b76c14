"""Sentence pairs with masked words, to measure what a translation adds."""

import torch

from data import batching
from data.batching import generator
from data.masking import mask_tokens

VIEWS = {"alone": "alone", "paired": "beside its translation", "mispaired": "beside a wrong one"}


def masked_test_set(sides, side, flags, vocab_size, starts):
    """Return {view: batches of (inputs, mask, labels, where)}: words of one side's sentences are
    masked, the same in each view.

    sides: the sequences of both languages. alone: a sentence by itself. paired: beside its
    translation, without masks. mispaired: beside that of another sentence of about its length. The
    masks depend on neither the seed nor the step.
    """
    order = torch.argsort(torch.tensor([len(sequence) for sequence in sides[0]]), stable=True)
    partner = torch.empty_like(order)
    partner[order] = order.roll(1)
    batches = {view: [] for view in VIEWS}

    for rows in order.split(64):
        idx, mask = batching.pad([sides[side][i] for i in rows])
        gen = generator("masks of side", side, *rows.tolist())
        inputs, labels = mask_tokens(idx, vocab_size, gen, flags.mask_rate, flags.mask_unit, starts)
        batches["alone"].append((inputs, mask, labels, {"languages": torch.full_like(idx, side)}))
        masked = [row[real] for row, real in zip(inputs, mask)]
        for view, others in (("paired", rows), ("mispaired", partner[rows])):
            others = [sides[1 - side][i] for i in others]
            pair = (masked, others) if side == 0 else (others, masked)
            joined, joined_mask, where = batching.join(*pair)  # (B, T)
            mine = joined_mask & (where["languages"] == side)
            wanted = torch.full_like(joined, -100).masked_scatter(mine, labels[mask])
            batches[view].append((joined, joined_mask, wanted, where))
    return batches
