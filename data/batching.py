"""Turn ids into tensors: one long stream for causal models, padded sentences for encoders.

The order of the data depends on seed and step alone, so a resumed run reads the same.
"""

import functools
import hashlib
import math

import torch

from data.tokenizer import BOS, PAD, SPECIAL, UNK, encode, frame


def generator(*numbers):
    """Return a torch.Generator for these numbers, e.g. (seed, step); neighbours are unrelated."""
    digest = hashlib.sha256(repr(numbers).encode()).digest()
    seed = int.from_bytes(digest[:7], "big")
    return torch.Generator().manual_seed(seed)


def stream(tokenizer, lines):
    """Encode all lines as one (N + 1,) tensor: [BOS], then the N tokens of the text."""
    ids = [BOS]
    for line_ids in encode(tokenizer, [line + "\n" for line in lines]):
        ids += line_ids
    return torch.tensor(ids)


def hash_ids(parts):
    """Return the sha256 of tensors of ids and of their lengths, in hexadecimal."""
    digest = hashlib.sha256()
    for ids in parts:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.numpy().tobytes())
    return digest.hexdigest()


def random_blocks(ids, block_size, batch_size, gen):
    """Draw blocks from anywhere in ids: inputs and targets (B, T), targets one token later."""
    starts = torch.randint(len(ids) - block_size, (batch_size, 1), generator=gen)
    places = starts + torch.arange(block_size + 1)  # (B, T + 1)
    blocks = ids[places].long()  # on disk, ids are shorter integers
    return blocks[:, :-1], blocks[:, 1:]


def consecutive_blocks(ids, block_size, stride=0, anchor=False):
    """Cut ids (N + 1,) into inputs and targets (n, T), each of the N tokens a target exactly once.

    Each block begins `stride` tokens after the one before (0: block_size). If blocks overlap, only
    the last `stride` tokens of each later one are targets, the others are -100. anchor: [BOS]
    takes the place of each block's first token, which is still a target."""
    stride = stride or block_size
    count = len(ids) - 1
    n = 1 + max(0, math.ceil((count - block_size) / stride))
    length = (n - 1) * stride + block_size  # the last block is padded to its end
    inputs = torch.full((length,), PAD)
    inputs[:count] = ids[:-1]
    targets = torch.full((length,), -100)
    targets[:count] = ids[1:]
    inputs = inputs.unfold(0, block_size, stride).clone()  # (n, T), which overlap no more in memory
    targets = targets.unfold(0, block_size, stride).clone()
    targets[1:, : block_size - stride] = -100  # targets of the block before
    if anchor:
        inputs[:, 0] = BOS
    return inputs, targets


def sentences(tokenizer, texts, block_size, split=False):
    """Return (each text as a tensor of at most block_size ids, see `frame`, number of longer ones);
    these are cut or, with `split`, become several tensors."""
    room = block_size - len(frame(tokenizer, []))  # for [BOS], and perhaps [EOS]
    sequences = []
    n_long = 0
    for ids in encode(tokenizer, texts):
        if len(ids) > room:
            n_long += 1
        starts = [0]
        if split:
            starts = range(0, max(1, len(ids)), room)  # also an empty text is a sequence
        for start in starts:
            sequences.append(torch.tensor(frame(tokenizer, ids[start : start + room])))
    return sequences, n_long


def pad(sequences):
    """Pad sequences to idx (B, T), T the longest, and mask (B, T), True on real tokens."""
    idx = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return idx, torch.arange(idx.size(1)) < lengths[:, None]


def length_batches(lengths, batch_size, gen=None):
    """Return the indices 0..n-1, each once, as batches of similar length: sorted by it or, with a
    generator, sequences of nearly equal length mixed and the batches shuffled."""
    lengths = torch.as_tensor(lengths, dtype=torch.float)
    if gen is None:
        return list(torch.argsort(lengths, stable=True).split(batch_size))
    noise = 2 * torch.rand(len(lengths), generator=gen)  # mixes lengths that differ by up to 2
    batches = torch.argsort(lengths + noise, stable=True).split(batch_size)
    return [batches[i] for i in torch.randperm(len(batches), generator=gen)]


def by_epoch(n_items, batch_size, seed, make, first=0):
    """Return a function of step -> batch. make(batch_size, gen) returns the batches of an epoch, in
    which each of the n_items is once. first: number of the first epoch."""
    n_batches = math.ceil(n_items / batch_size)

    @functools.lru_cache(maxsize=1)  # the batches of the current epoch are kept
    def make_epoch(epoch):
        return make(batch_size, generator(seed, "epoch", first + epoch))

    def batch(step):
        epoch, i = divmod(step, n_batches)
        return make_epoch(epoch)[i]

    return batch


def share_unknown(sequences):
    """Return the share of unknown words in sequences, without the [BOS] that begins each."""
    ids = torch.cat([sequence[1:] for sequence in sequences])
    return (ids == UNK).float().mean().item()


def noise_tokens(idx, targets, counts, gen, drop=0.0, swap=0.0, rare=0.0):
    """Return idx and targets, both (B, T), with noise against memorising a small text (Xie et al.
    2017, section 3); special tokens stay. drop: the share of the words in idx that becomes [UNK].
    swap: the share that becomes another token, drawn by its frequency, counts (V,). rare: the share
    of targets that occur once in training and become [UNK], to learn where unknown words are."""
    is_word = idx >= len(SPECIAL)  # (B, T)
    dice = torch.rand(idx.shape, generator=gen)
    idx = torch.where(is_word & (dice < drop), UNK, idx)
    if swap:
        is_swapped = is_word & (dice >= drop) & (dice < drop + swap)
        draws = torch.multinomial(counts.double(), idx.numel(), replacement=True, generator=gen)
        idx = idx.masked_scatter(is_swapped, draws)
    is_once = (targets >= len(SPECIAL)) & (counts[targets.clamp(min=0)] == 1)  # clamp: -100
    is_unknown = is_once & (torch.rand(targets.shape, generator=gen) < rare)
    targets = torch.where(is_unknown, UNK, targets)
    return idx, targets


def count_tokens(ids, vocab_size):
    """Return how often each token occurs in ids, a stream: (V,)."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for part in ids.split(2**22):  # in parts, as a text on disk may be larger than the memory
        counts += part.long().bincount(minlength=vocab_size)
    return counts


GPUS = ("cuda",)  # they keep computing while the host prepares the next batch


def device_of(model):
    """Return the device of a model's weights."""
    return next(model.parameters()).device


def is_gpu(device):
    """Return whether a device computes while the host goes on."""
    return torch.device(device).type in GPUS


def send(tensor, device):
    """Copy a tensor to a device. For a GPU it is pinned first, so the CPU does not have to wait."""
    if is_gpu(device) and tensor.device.type == "cpu":
        tensor = tensor.contiguous().pin_memory()  # strides of 0 cannot be pinned
    return tensor.to(device, non_blocking=True)


def send_all(tensors, device):
    """Copy the tensors of a dictionary."""
    return {name: send(tensor, device) for name, tensor in tensors.items()}


def send_mask(mask, device):
    """Copy a mask (B, T); None for a GPU if it hides nothing, as flash attention takes no mask."""
    if is_gpu(device) and mask.all():
        return None
    return send(mask, device)
