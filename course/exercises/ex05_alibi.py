"""Exercise 5: ALiBi, a penalty on distance that is added to the scores (Press et al. 2022).

n heads have the slopes m = 2^(-8k/n), k = 1, ..., n, if n is a power of two. For another n: the
slopes of the largest power of two below n, then every second slope of the next power (the first,
the third, ...) until there are n. The bias of query i (row) and key j (column):

    causal       -m (i - j) for j <= i, and -inf for j > i
    symmetric    -m |i - j|, for encoders
    offset       -m (|i - j| - 0.5) for j > i, else -m |i - j|: left and right differ

For n = 2 the slopes are [1/16, 1/256]; for n = 3 they are [1/16, 1/256, 1/4]. For m = 1/16 and
T = 2 the causal bias is [[0, -inf], [-1/16, 0]].

40 minutes, medium. Slopes and biases are float32.
"""

import torch


def slopes(n_head: int) -> torch.Tensor:
    """Return the (n_head,) slopes."""
    power = 2 ** (n_head.bit_length() - 1)
    first = 2.0 ** (-8 * torch.arange(1, power + 1) / power)
    further = 2.0 ** (-8 * torch.arange(1, 2 * power + 1) / (2 * power))
    return torch.cat([first, further[0::2]])[:n_head]


def causal_bias(n_head: int, T: int) -> torch.Tensor:
    """Return the causal bias (n_head, T, T)."""
    m = slopes(n_head)[:, None, None]
    distance = torch.arange(T)[:, None] - torch.arange(T)  # i - j
    return (-m * distance).masked_fill(distance < 0, -torch.inf)


def encoder_bias(n_head: int, T: int, offset: bool) -> torch.Tensor:
    """Return the bias (n_head, T, T) of an encoder, symmetric or with the offset."""
    m = slopes(n_head)[:, None, None]
    distance = torch.arange(T)[:, None] - torch.arange(T)  # i - j
    return -m * (distance.abs() - 0.5 * offset * (distance < 0))
