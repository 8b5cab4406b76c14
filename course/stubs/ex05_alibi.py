"""Exercise 5: ALiBi, a penalty on distance that is added to the scores (Press et al. 2022).

n heads have the slopes m = 2^(-8k/n), k = 1, ..., n, if n is a power of two. For another n: the
slopes of the largest power of two below n, then every second slope of the next power (the first,
the third, ...) until there are n. The bias of query i (row) and key j (column):

    causal       -m (i - j) for j <= i, and -inf for j > i
    symmetric    -m |i - j|, for encoders
    offset       -m (|i - j| - 0.5) for j > i, else -m |i - j|: left and right differ
"""

import torch
from torch import Tensor


def slopes(n_head: int) -> Tensor:
    """Return the (n_head,) slopes."""
    raise NotImplementedError


def causal_bias(n_head: int, T: int) -> Tensor:
    """Return the causal bias (n_head, T, T)."""
    raise NotImplementedError


def encoder_bias(n_head: int, T: int, offset: bool) -> Tensor:
    """Return the bias (n_head, T, T) of an encoder, symmetric or with the offset."""
    raise NotImplementedError


if __name__ == "__main__":
    torch.set_printoptions(precision=3)
    print(slopes(8), slopes(6), causal_bias(2, 4), encoder_bias(2, 4, True), sep="\n")
