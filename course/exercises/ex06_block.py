"""Exercise 6: a pre-norm block (GPT-2, Radford et al. 2019; Xiong et al. 2020).

x = x + dropout(attention(norm1(x)))
x = x + dropout(feed_forward(norm2(x)))
"""

from collections.abc import Callable

import torch

from course.judge import Task


def block(
    x: torch.Tensor,  # (B, T, C)
    norm1: Callable,  # each of these maps (B, T, C) to (B, T, C)
    attention: Callable,
    norm2: Callable,
    feed_forward: Callable,
    dropout: Callable,
) -> torch.Tensor:
    """Return the (B, T, C) output of the block. Do not change x itself."""
    y = x + dropout(attention(norm1(x)))
    return y + dropout(feed_forward(norm2(y)))


if __name__ == "__main__":
    same = torch.nn.Identity()
    print(block(torch.ones(1, 1, 2), same, same, same, same, same))  # 4, 4

# ---- only for the check


def block_cases(gen):
    for B, T, C in ((5, 8, 6), (3, 4, 7)):
        yield tuple(torch.randn(size, generator=gen) for size in ((B, T, C), (4, C, C), (C,)))


def measure_block(ask, x, weights, keep):
    """Call a block whose four parts are made from weights (4, C, C); dropout multiplies by keep."""
    parts = [lambda x, w=w: (x @ w).tanh() for w in weights]
    return ask(x, *parts, lambda x: x * keep)


TASKS = [Task(block, block_cases, "output", measure=measure_block)]
