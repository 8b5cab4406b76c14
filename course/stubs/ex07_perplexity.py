"""Exercise 7: predict the next word, and measure the perplexity of a whole set.

    loss = -mean over tokens of log p(target)        perplexity = exp(all nats / all tokens)

A target of -100 is not predicted: it counts neither in the sum nor in the number of tokens.
"""

import torch
from torch import Tensor


def next_words(ids: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """ids (N + 1,) -> inputs (n, T), targets (n, T): consecutive blocks, n = N / T rounded up.

    The target of each token is the next one, so each of the N tokens after the first is a target
    exactly once. The end of the last block is filled: inputs with 0, targets with -100.
    """
    raise NotImplementedError


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """logits (B, T, V), targets (B, T) from next_words -> the mean loss () in nats."""
    raise NotImplementedError


def perplexity(batches: list[tuple[Tensor, Tensor]]) -> Tensor | float:
    """Return the perplexity of all batches together, each (logits (B, T, V), targets (B, T))."""
    raise NotImplementedError


if __name__ == "__main__":
    inputs, targets = next_words(torch.arange(10, 18), T=4)
    print(inputs, targets, sep="\n")
    print(loss(torch.zeros(2, 4, 20), targets), perplexity([(torch.zeros(2, 4, 20), targets)]))
