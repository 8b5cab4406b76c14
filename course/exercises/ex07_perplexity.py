"""Exercise 7: predict the next word, and measure the perplexity of a whole set.

    loss = -mean over tokens of log p(target)        perplexity = exp(all nats / all tokens)

A target of -100 is not predicted: it counts neither in the sum nor in the number of tokens. Two
targets with probabilities 1/2 and 1/8 have the loss (log 2 + log 8) / 2 = 1.386, perplexity 4.

40 minutes, medium. Ids and targets are int64, logits float32. Gradients must flow to the logits.
Sources: Bengio et al. 2003, 1.1 (model and perplexity); -100 is ignore_index of F.cross_entropy.
"""

import torch
import torch.nn.functional as F


def next_words(ids: torch.Tensor, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids (N + 1,) -> inputs (n, T), targets (n, T): consecutive blocks, n = N / T rounded up.

    The target of each token is the next one, so each of the N tokens after the first is a target
    exactly once. The end of the last block is filled, inputs with 0, targets with -100: for T = 2,
    [5, 6, 7, 8] gives inputs [[5, 6], [7, 0]] and targets [[6, 7], [8, -100]].
    """
    x, y = ids[:-1], ids[1:]
    rest = -len(y) % T
    inputs = F.pad(x, (0, rest), value=0)
    targets = F.pad(y, (0, rest), value=-100)
    return inputs.view(-1, T), targets.view(-1, T)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """logits (B, T, V), targets (B, T) from next_words -> the mean loss () in nats."""
    real = targets != -100
    nats = -logits.log_softmax(-1)[real].gather(1, targets[real][:, None])
    return nats.mean()


def perplexity(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor | float:
    """Return the perplexity of all batches together, each (logits (B, T, V), targets (B, T))."""
    n_tokens = [(targets != -100).sum() for _, targets in batches]
    nats = sum(loss(*batch) * n for batch, n in zip(batches, n_tokens))
    return torch.exp(nats / sum(n_tokens))
