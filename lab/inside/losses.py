"""The loss of each word of a text, as training computes it."""

from typing import NamedTuple

import torch

from data import batching
from data.files import UserError
from data.tokenizer import MASK, SPECIAL, UNK, token_strings


class Block(NamedTuple):
    """Rows of inputs in which a model predicts some words."""

    words: torch.Tensor  # (N,), the targets that are not -100, row by row
    inputs: torch.Tensor  # (n, T)
    targets: torch.Tensor  # (n, T)


def word_losses(run, lines):
    """Return [(word, loss in nats)] of the words that a run predicts in lines of text."""
    if run.kind == "lm":
        blocks = [sequence_block(run, lines)]
    else:
        blocks = masked_blocks(run, lines)
    if not blocks:
        raise UserError("losses: no word of the text is known; give other words")
    losses = []
    for block in blocks:
        for x, y in zip(block.inputs.split(64), block.targets.split(64)):
            losses += run.model.losses(x.to(run.device), y).tolist()
    words = torch.cat([block.words for block in blocks])
    return list(zip(token_strings(run.tokenizer, words), losses))


def sequence_block(run, lines):
    """Return a Block with the lines as one text, in which a causal LM predicts every word."""
    ids = batching.stream(run.tokenizer, lines)
    stride = min(run.config["flags"].get("eval_stride", 0), run.block_size)
    inputs, targets = batching.consecutive_blocks(ids, run.block_size, stride, run.anchor)
    return Block(ids[1:], inputs, targets)


def masked_blocks(run, lines):
    """Return a Block for each line with words that a masked LM knows. Each row masks one of them.
    Longer lines than --block-size make several Blocks."""
    blocks = []
    n_unknown = 0
    sequences, _ = batching.sentences(run.tokenizer, lines, run.block_size, split=True)
    for ids in sequences:  # (T,)
        n_unknown += int((ids == UNK).sum())
        places = (ids >= len(SPECIAL)).nonzero()  # (N, 1)
        if len(places) == 0:
            continue
        is_masked = torch.arange(len(ids)) == places  # (N, T), the masked word of each row
        inputs = torch.where(is_masked, MASK, ids)
        targets = torch.where(is_masked, ids, -100)
        blocks.append(Block(ids[places.squeeze(1)], inputs, targets))
    if n_unknown:
        run.note(f"{n_unknown:,} unknown words are not predicted, so they are left out")
    return blocks
