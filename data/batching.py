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
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))  # CPUs use 32 bits


def stream(tokenizer, lines):
    """Encode all lines as one (N + 1,) tensor: [BOS], then the N tokens of the text."""
    ids = [i for line in encode(tokenizer, [line + "\n" for line in lines]) for i in line]
    return torch.tensor([BOS, *ids])


def random_blocks(ids, block_size, batch_size, gen):
    """Draw blocks from anywhere in ids: inputs and targets (B, T), targets one token later."""
    starts = torch.randint(len(ids) - block_size, (batch_size, 1), generator=gen)
    blocks = ids[starts + torch.arange(block_size + 1)].long()  # (B, T + 1); on disk, ids are short
    return blocks[:, :-1], blocks[:, 1:]


def consecutive_blocks(ids, block_size, stride=0, anchor=False):
    """Cut ids (N + 1,) into inputs and targets (n, T), each of the N tokens a target exactly once.

    Each block begins `stride` tokens after the one before (0: block_size). If blocks overlap, only
    the last `stride` tokens of each later one are targets, the others are -100. anchor: [BOS]
    takes the place of each block's first token, which is still a target."""
    stride, count = stride or block_size, len(ids) - 1
    n = 1 + max(0, math.ceil((count - block_size) / stride))
    length = (n - 1) * stride + block_size
    inputs, targets = torch.full((length,), PAD), torch.full((length,), -100)
    inputs[:count], targets[:count] = ids[:-1], ids[1:]
    inputs = inputs.unfold(0, block_size, stride).clone()  # (n, T)
    targets = targets.unfold(0, block_size, stride).clone()
    targets[1:, : block_size - stride] = -100
    if anchor:
        inputs[:, 0] = BOS
    return inputs, targets


def sentences(tokenizer, texts, block_size, split=False):
    """Return (each text as a tensor of at most block_size ids, see `frame`, number of longer ones);
    these are cut or, with `split`, become several tensors."""
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


def length_batches(lengths, batch_size, gen=None):
    """Return the indices 0..n-1, each once, as batches of similar length: sorted by it or, with a
    generator, sequences of nearly equal length mixed and the batches shuffled."""
    lengths = torch.as_tensor(lengths, dtype=torch.float)
    noise = 0 if gen is None else 2 * torch.rand(len(lengths), generator=gen)
    batches = list(torch.argsort(lengths + noise, stable=True).split(batch_size))
    if gen is not None:
        batches = [batches[i] for i in torch.randperm(len(batches), generator=gen)]
    return batches


def by_epoch(n_items, batch_size, seed, make, first=0):
    """Return a function of step -> batch. make(batch_size, gen) returns the batches of an epoch, in
    which each of the n_items is once. first: number of the first epoch."""
    n = math.ceil(n_items / batch_size)

    @functools.lru_cache(maxsize=1)  # the batches of the current epoch are kept
    def batches(epoch):
        return make(batch_size, generator(seed, "epoch", first + epoch))

    return lambda step: batches(step // n)[step % n]


def share_unknown(sequences):
    """Return the share of unknown words in sequences, without the [BOS] that begins each."""
    return (torch.cat([ids[1:] for ids in sequences]) == UNK).float().mean().item()


def noise_tokens(idx, targets, counts, gen, drop=0.0, swap=0.0, rare=0.0):
    """Return idx and targets, both (B, T), with noise against memorising a small text (Xie et al.
    2017, section 3); special tokens stay. drop: the share of the words in idx that becomes [UNK].
    swap: the share that becomes another token, drawn by its frequency, counts (V,). rare: the share
    of targets that occur once in training and become [UNK], to learn where unknown words are."""
    words = idx >= len(SPECIAL)
    dice = torch.rand(idx.shape, generator=gen)
    idx = torch.where(words & (dice < drop), UNK, idx)
    swapped = words & (dice >= drop) & (dice < drop + swap)
    if swap:
        draws = torch.multinomial(counts.double(), idx.numel(), replacement=True, generator=gen)
        idx = idx.masked_scatter(swapped, draws)
    once = (targets >= len(SPECIAL)) & (counts[targets.clamp(min=0)] == 1)
    targets = torch.where(once & (torch.rand(targets.shape, generator=gen) < rare), UNK, targets)
    return idx, targets


def count_tokens(ids, vocab_size, swap=1.0, rare=1.0):
    """Return how often each token occurs in ids, a stream: (V,); zeros if nothing needs that."""
    if not (swap or rare):
        return torch.zeros(vocab_size)
    return sum(part.long().bincount(minlength=vocab_size) for part in ids.split(2**22))


GPUS = ("cuda",)  # they keep computing while the host prepares the next batch


def device_of(model):
    """Return the device of a model's weights."""
    return next(model.parameters()).device


def is_gpu(device):
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
    return None if is_gpu(device) and mask.all() else send(mask, device)
