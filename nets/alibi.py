"""ALiBi on some of the heads; the others attend without positions."""

import math

import torch
import torch.nn as nn

from model import ALiBi, ConfigError, NoPE, alibi_slopes
from nets.relative import offsets


class FewHeads(ALiBi):
    """ALiBi on the first alibi_heads, with the slopes of so many heads (as in x-transformers)."""

    def __init__(self, config, causal):
        super().__init__(config, causal)
        n_without = count_others(config)
        slopes = torch.cat([alibi_slopes(config.alibi_heads), torch.zeros(n_without)])  # (H,)
        self.slopes = nn.Buffer(slopes, persistent=False)


class HardALiBi(NoPE):
    """Of the first alibi_heads, head h = 1, 2, ... sees only the last h tokens, in place of a
    penalty (Jelassi et al. 2024). They compose n-grams; the others find the same n-gram again."""

    label = "Hard-ALiBi"
    color = ALiBi.color

    def __init__(self, config, causal):
        super().__init__(config, causal)
        n_without = count_others(config)
        widths = [*range(1, config.alibi_heads + 1), *[math.inf] * n_without]
        self.widths = nn.Buffer(torch.tensor(widths), persistent=False)  # (H,)

    def bias(self, i, j):
        too_far = offsets(i, j).abs() >= self.widths[:, None, None]  # (1 or B, H, T, S)
        return torch.where(too_far, -math.inf, 0.0)


def count_others(config):
    """Return how many heads have no ALiBi. Raises ConfigError if that is less than none."""
    n_others = config.n_head - config.alibi_heads
    if n_others < 0:
        raise ConfigError(f"alibi_heads must be at most n_head={config.n_head}")
    return n_others
