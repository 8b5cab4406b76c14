"""Exercise 4: sinusoids, one vector for each position (Vaswani et al. 2017, 3.5).

    channel 2i is sin(t / 10000^(2i / C)), channel 2i + 1 is cos(t / 10000^(2i / C))

for the positions t = 0, ..., T - 1 and i = 0, ..., C / 2 - 1.
"""

import torch
from torch import Tensor


def sinusoids(T: int, n_embd: int) -> Tensor:
    """Return the (T, C) table; C = n_embd is even."""
    raise NotImplementedError


if __name__ == "__main__":
    torch.set_printoptions(precision=3)
    print(sinusoids(4, 6))
