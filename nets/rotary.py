"""Rotary positions of some of the channels, or stretched for longer texts."""

import math

import torch

from model import Rotary, position_angles


class ScaledRotary(Rotary):
    """rope_share below 1 leaves the last channels of a head as they are. To read texts s =
    rope_factor times as long as block_size, rope_scale changes the angles:

    linear  i / s in place of i (Chen et al. 2023)
    ntk     base * s^(D / (D - 2)) in place of the base: only the slowest pair of channels gets s
            times slower (bloc97 2023)
    yarn    pairs that turn at most once within block_size get s times slower, those that turn 32
            times stay, others are between; scores grow by (0.1 ln s + 1)^2 (Peng et al. 2024)
    """

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.scale = config.rope_scale
        self.factor = config.rope_factor
        self.block_size = config.block_size
        self.n_turned = 2 * round(config.rope_share * self.D / 2)  # channels of a head
        least = 4 if self.scale == "ntk" else 2
        if not least <= self.n_turned <= self.D:
            raise ValueError(f"rope_share must be of {least} to {self.D} channels of a head")

    def angles(self, i):
        """Return the angles (..., n_turned / 2) of positions i."""
        n, s = self.n_turned, self.factor
        if self.scale == "ntk":
            return position_angles(i, n, self.base * s ** (n / (n - 2)))
        angles = position_angles(i, n, self.base)
        if self.scale == "linear":
            return angles / s
        if self.scale == "yarn":
            end = i.new_tensor(self.block_size)
            turns = position_angles(end, n, self.base) / (2 * math.pi)  # (n_turned / 2,)
            kept = ((turns - 1) / (32 - 1)).clamp(0, 1)
            return angles * (kept + (1 - kept) / s)
        return angles

    def turn(self, q, k, i, j):
        if self.scale == "yarn":
            q = q * (0.1 * math.log(self.factor) + 1) ** 2
        n = self.n_turned
        if n == self.D:
            return super().turn(q, k, i, j)
        turned_q, turned_k = super().turn(q[..., :n], k[..., :n], i, j)
        q = torch.cat([turned_q, q[..., n:]], dim=-1)  # (B, H, T, D)
        k = torch.cat([turned_k, k[..., n:]], dim=-1)  # (B, H, S, D)
        return q, k
