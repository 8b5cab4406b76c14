"""Exercise 1: sentences of different lengths in one batch.

T is the length of the longest. The tokens come first, then padding with the id 0, which is [PAD]
and never a word. [7, 8, 9] and [5] become idx [[7, 8, 9], [5, 0, 0]] and mask [[True, True, True],
[True, False, False]].

15 minutes, easy. Ids are int64, the mask is bool.
"""

import torch


def pad(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """sequences: B tensors of ids -> idx (B, T) long, mask (B, T) bool, True on real tokens."""
    idx = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=0)
    lengths = torch.tensor([[len(sequence)] for sequence in sequences])
    return idx, torch.arange(idx.size(1)) < lengths
