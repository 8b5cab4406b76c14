"""Ids to tensors: one long stream for causal models, padded sentences of similar length for encoders.

The order of the data is a function of the seed and the step alone (see `generator`), so a resumed run sees
exactly what it would have seen, and evaluating more often changes nothing.
"""

import hashlib

import torch

from data.tokenizer import BOS, PAD, encode, frame


def generator(*numbers):
    """A torch.Generator for these numbers, e.g. generator(seed, step): reproducible, and far apart for neighbours."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


# ---------------------------------------------------------------------------- streams


def stream(tokenizer, lines):
    """All lines as one (N + 1,) tensor: [BOS], then the N tokens of the text."""
    ids = [i for line in encode(tokenizer, [line + "\n" for line in lines]) for i in line]
    return torch.tensor([BOS, *ids])


def random_blocks(ids, block_size, batch_size, gen):
    """inputs and targets (B, T): blocks that start anywhere in the stream, targets one token later."""
    starts = torch.randint(len(ids) - block_size, (batch_size, 1), generator=gen)
    blocks = ids[starts + torch.arange(block_size + 1)]  # (B, T + 1)
    return blocks[:, :-1], blocks[:, 1:]


def consecutive_blocks(ids, block_size, stride=0):
    """inputs and targets (n, T) that cover the stream in order: each token but [BOS] is a target exactly once.

    Each block begins `stride` tokens after the one before (0: where that one ends). With a smaller stride than
    block_size, blocks overlap and only their last `stride` tokens are targets (the first block's are all), so
    that each is predicted from at least block_size - stride tokens. Other targets, and padding at the end, are -100.
    """
    stride, count = stride or block_size, len(ids) - 1
    n = 1 + max(0, -(-(count - block_size) // stride))
    length = (n - 1) * stride + block_size
    inputs, targets = torch.full((length,), PAD), torch.full((length,), -100)
    inputs[:count], targets[:count] = ids[:-1], ids[1:]
    inputs, targets = (
        inputs.unfold(0, block_size, stride),
        targets.unfold(0, block_size, stride).clone(),
    )  # (n, T)
    targets[1:, : block_size - stride] = -100
    return inputs, targets


# ---------------------------------------------------------------------------- sentences


def sentences(tokenizer, texts, block_size, split=False):
    """Each text as a tensor of ids that starts with [BOS] (see `frame`) and has at most block_size tokens.

    With `split`, a longer text becomes several sequences and nothing is lost (pretraining); otherwise it is
    cut. Returns (list of tensors, how many texts were longer).
    """
    room = block_size - len(frame(tokenizer, []))
    out, long = [], 0
    for ids in encode(tokenizer, texts):
        long += len(ids) > room
        starts = range(0, max(1, len(ids)), room) if split else (0,)
        out += [torch.tensor(frame(tokenizer, ids[i : i + room])) for i in starts]
    return out, long


def pad(sequences):
    """Sequences of any lengths -> idx (B, T) filled with [PAD], mask (B, T) True on real tokens, T the longest."""
    idx = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return idx, torch.arange(idx.size(1)) < lengths[:, None]


def join(firsts, seconds):
    """Sentence pairs, two lists of tensors -> idx, mask (B, T) as `pad` gives them, each pair one sequence, and
    {"languages": 0 or 1, "positions": restarted with the second sentence}, both (B, T)."""
    idx, mask = pad([torch.cat(pair) for pair in zip(firsts, seconds)])
    begins, t = torch.tensor([len(first) for first in firsts])[:, None], torch.arange(idx.size(1))
    languages = (t >= begins).long()
    positions = (t - begins * languages).masked_fill(
        ~mask, 0
    )  # padding may stand beyond a learned table
    return idx, mask, {"languages": languages, "positions": positions}


def apart(firsts, seconds):
    """The same sentences each by itself: idx, mask (2B, T), first all of the first language, and {"languages": (2B, T)}."""
    idx, mask = pad([*firsts, *seconds])
    languages = (torch.arange(len(idx)) >= len(firsts)).long()[:, None].expand_as(idx)
    return idx, mask, {"languages": languages}


def length_batches(lengths, batch_size, gen=None):
    """Indices 0..n-1 as batches of similar length, every index once.

    With a generator, neighbours are drawn anew and the batches come in random order; without, by length.
    """
    lengths = torch.as_tensor(lengths, dtype=torch.float)
    noise = 0 if gen is None else 2 * torch.rand(len(lengths), generator=gen)
    batches = list(torch.argsort(lengths + noise, stable=True).split(batch_size))
    if gen is not None:
        batches = [batches[i] for i in torch.randperm(len(batches), generator=gen)]
    return batches


class RandomBatches:
    """Indices 0..n-1 in random order as batches, every index once. One permutation is in memory: 8 bytes an index, so
    0.8 GB for 1e8."""

    def __init__(self, n, batch_size, gen):
        self.order, self.batch_size = torch.randperm(n, generator=gen), batch_size

    def __getitem__(self, i):
        return self.order[i * self.batch_size : (i + 1) * self.batch_size]


def to(device, tensors):
    """The same dictionary of tensors on a device, without waiting for what it is doing."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}


def fraction_unknown(ids, unk):
    """Share of tokens the vocabulary does not hold."""
    return (ids == unk).float().mean().item()
