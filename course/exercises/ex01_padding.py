"""Exercise 1: sentences of different lengths in one batch.

T is the length of the longest. The tokens come first, then padding with the id PAD.
"""

import torch

from course.judge import Task

PAD = 0


def pad(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """sequences: B tensors of ids -> idx (B, T) long, mask (B, T) bool, True on real tokens."""
    idx = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD)
    lengths = torch.tensor([[len(sequence)] for sequence in sequences])
    return idx, torch.arange(idx.size(1)) < lengths


if __name__ == "__main__":
    idx, mask = pad([torch.tensor([7, 8, 9]), torch.tensor([5])])
    print(idx, mask, sep="\n")

# ---- only for the check


def pad_cases(gen):
    for lengths in ([3, 5, 2], [4, 1], [2, 6, 6, 3]):
        yield ([torch.randint(5, 50, (n,), generator=gen) for n in lengths],)


TASKS = [Task(pad, pad_cases, "idx", "mask")]
