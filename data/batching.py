"""Turn ids into tensors: one long stream for causal models, padded sentences for encoders.

The order of the data depends only on the seed and the step (see `generator`). So a resumed run
reads what an uninterrupted one reads, and evaluating more often changes nothing.
"""

import functools
import hashlib
import math

import torch

from data.tokenizer import BOS, PAD, UNK, encode, frame


def generator(*numbers):
    """Return a torch.Generator for these numbers, e.g. generator(seed, step).

    The same numbers always give the same stream; neighbouring numbers give unrelated streams.
    """
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))  # CPUs use 32 bits


# ---------------------------------------------------------------------------- streams


def stream(tokenizer, lines):
    """Encode all lines as one (N + 1,) tensor: [BOS], then the N tokens of the text."""
    ids = [i for line in encode(tokenizer, [line + "\n" for line in lines]) for i in line]
    return torch.tensor([BOS, *ids])


def random_blocks(ids, block_size, batch_size, gen):
    """Draw blocks from anywhere in ids: inputs and targets (B, T), targets one token later."""
    starts = torch.randint(len(ids) - block_size, (batch_size, 1), generator=gen)
    blocks = ids[starts + torch.arange(block_size + 1)]  # (B, T + 1)
    return blocks[:, :-1], blocks[:, 1:]


def consecutive_blocks(ids, block_size, stride=0, anchor=False):
    """Cut ids (N + 1,) into inputs and targets (n, T), each of the N tokens a target exactly once.

    Each block begins `stride` tokens after the one before. 0 means block_size: blocks do not
    overlap. If they do, only the last `stride` tokens of each later block are targets, the others
    are -100. So the model sees at least block_size - stride tokens before each of these targets.
    anchor: every block begins with [BOS], in place of its first token.
    """
    stride, count = stride or block_size, len(ids) - 1
    n = 1 + max(0, math.ceil((count - block_size) / stride))
    length = (n - 1) * stride + block_size
    inputs, targets = torch.full((length,), PAD), torch.full((length,), -100)
    inputs[:count], targets[:count] = ids[:-1], ids[1:]
    inputs = inputs.unfold(0, block_size, stride)  # (n, T)
    targets = targets.unfold(0, block_size, stride).clone()
    targets[1:, : block_size - stride] = -100
    return anchored(inputs) if anchor else inputs, targets


def anchored(inputs):
    """Return inputs (B, T) with [BOS] in place of the first token of each row.

    The token is still a target where it was one, and the model can count from [BOS].
    """
    inputs = inputs.clone()
    inputs[:, 0] = BOS
    return inputs


# ---------------------------------------------------------------------------- sentences


def sentences(tokenizer, texts, block_size, split=False):
    """Encode each text as a tensor of at most block_size ids that begins with [BOS] (see `frame`).

    A longer text is cut or, with `split`, becomes several sequences, so that nothing is lost.
    Returns (list of tensors, number of longer texts).
    """
    room = block_size - len(frame(tokenizer, []))
    out, n_long = [], 0
    for ids in encode(tokenizer, texts):
        n_long += len(ids) > room
        starts = range(0, max(1, len(ids)), room) if split else (0,)
        out += [torch.tensor(frame(tokenizer, ids[i : i + room])) for i in starts]
    return out, n_long


def pad(sequences):
    """Pad sequences to idx (B, T), T the longest, and mask (B, T), True on real tokens."""
    idx = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return idx, torch.arange(idx.size(1)) < lengths[:, None]


def join(firsts, seconds):
    """Join pairs of sentences, two lists of tensors, into one sequence per pair.

    Returns idx, mask (B, T) as `pad` does, and {"languages": 0 or 1, "positions": counted from 0 in
    each sentence}, both (B, T).
    """
    idx, mask = pad([torch.cat(pair) for pair in zip(firsts, seconds)])
    begins = torch.tensor([len(first) for first in firsts])[:, None]
    t = torch.arange(idx.size(1))
    languages = (t >= begins).long()
    # Positions of padding could exceed a learned table.
    positions = (t - begins * languages).masked_fill(~mask, 0)
    return idx, mask, {"languages": languages, "positions": positions}


def separate(firsts, seconds):
    """Return the same sentences one by one, all of the first language before those of the second.

    Returns idx, mask (2B, T) and {"languages": (2B, T)}.
    """
    idx, mask = pad([*firsts, *seconds])
    languages = (torch.arange(len(idx)) >= len(firsts)).long()[:, None].expand_as(idx)
    return idx, mask, {"languages": languages}


def length_batches(lengths, batch_size, gen=None):
    """Return the indices 0..n-1, each once, as batches of similar length.

    Without a generator, sequences and batches are sorted by length. With one, sequences of nearly
    equal length are mixed, and the batches are shuffled.
    """
    lengths = torch.as_tensor(lengths, dtype=torch.float)
    noise = 0 if gen is None else 2 * torch.rand(len(lengths), generator=gen)
    batches = list(torch.argsort(lengths + noise, stable=True).split(batch_size))
    if gen is not None:
        batches = [batches[i] for i in torch.randperm(len(batches), generator=gen)]
    return batches


def by_epoch(n_items, batch_size, seed, make, first=0):
    """Return a function that maps a step to its batch. make(batch_size, gen) returns the batches of
    one epoch, which hold each of the n_items once. first: number of the first epoch."""
    n = math.ceil(n_items / batch_size)

    @functools.lru_cache(maxsize=1)  # the batches of the current epoch are kept
    def batches(epoch):
        return make(batch_size, generator(seed, "epoch", first + epoch))

    return lambda step: batches(step // n)[step % n]


def fraction_unknown(ids):
    """Return the share of ids that are unknown to the vocabulary."""
    return (ids == UNK).float().mean().item()


def share_unknown(sequences):
    """Return the share of unknown words in sequences, without the [BOS] that begins each."""
    return fraction_unknown(torch.cat([ids[1:] for ids in sequences]))
