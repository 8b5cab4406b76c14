"""Rotary positions of some of the channels, or stretched for longer texts."""

import math

import torch

from model import ConfigError, Rotary, position_angles


class ScaledRotary(Rotary):
    """rope_share below 1 leaves some channels of a head as they are. Of rope_speeds

    all      the first channels turn, at all speeds (GPT-NeoX)
    fastest  the pairs turn that are the fastest of a whole head, at the same speeds as there; the
             slow ones, whose angles only long texts make large, stay (p-RoPE, Barbero et al. 2025)

    To read texts s = rope_factor times as long as block_size, rope_scale changes the angles:

    linear  i / s in place of i (Chen et al. 2023)
    ntk     base * s^(D / (D - 2)) in place of the base: only the slowest pair of channels gets s
            times slower (bloc97 2023)
    yarn    the fast pairs stay, the slow ones get s times slower, others are between, see
            `kept`; scores grow by (0.1 ln s + 1)^2 (Peng et al. 2024)
    """

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.scale = config.rope_scale
        self.factor = config.rope_factor
        self.block_size = config.block_size
        self.n_turned = 2 * round(config.rope_share * self.D / 2)  # channels of a head
        self.keeps_fastest = config.rope_speeds == "fastest"
        if self.keeps_fastest and self.scale != "none":
            raise ConfigError("rope_speeds=fastest: not with rope_scale")
        least = 4 if self.scale == "ntk" else 2
        if not least <= self.n_turned <= self.D:
            raise ConfigError(f"rope_share must be of {least} to {self.D} channels of a head")

    def angles(self, i):
        """Return the angles (..., n_turned / 2) of positions i; of the fastest (..., D/2)."""
        n, s = self.n_turned, self.factor
        if self.keeps_fastest:
            turned = torch.arange(self.D // 2, device=i.device) < n // 2
            return position_angles(i, self.D, self.base) * turned
        if self.scale == "ntk":
            return position_angles(i, n, self.base * s ** (n / (n - 2)))
        angles = position_angles(i, n, self.base)
        if self.scale == "linear":
            return angles / s
        if self.scale == "yarn":
            kept = self.kept(i.device)
            return angles * (kept + (1 - kept) / s)
        return angles

    def kept(self, device):
        """Return which share of its speed each pair keeps in YaRN, beside that of s times slower
        angles, (n_turned / 2,): 1 up to the pair that turns 32 times within block_size, 0 from the
        pair that turns once, between them linear in the pair's number. So do the authors' code
        (`find_correction_range`) and transformers; the paper's formula (section 3.2) is linear in
        the turns, and slows even the fastest pair of a short block."""
        first = max(0, math.floor(self.pair_that_turns(32)))
        last = min(self.n_turned - 1, math.ceil(self.pair_that_turns(1)))
        if first == last:
            last += 0.001  # as they do: a step in place of a ramp
        number = torch.arange(self.n_turned // 2, device=device)
        return 1 - ((number - first) / (last - first)).clamp(0, 1)

    def pair_that_turns(self, times):
        """Return the number, with a fraction, of the pair that turns so often in block_size."""
        speed = 2 * math.pi * times / self.block_size  # = base ** (-2 number / n_turned)
        return -math.log(speed) / math.log(self.base) * self.n_turned / 2

    def turn(self, q, k, i, j):
        if self.scale == "yarn":
            q = q * (0.1 * math.log(self.factor) + 1) ** 2
        n = self.n_turned
        if n == self.D or self.keeps_fastest:
            return super().turn(q, k, i, j)
        turned_q, turned_k = super().turn(q[..., :n], k[..., :n], i, j)
        q = torch.cat([turned_q, q[..., n:]], dim=-1)  # (B, H, T, D)
        k = torch.cat([turned_k, k[..., n:]], dim=-1)  # (B, H, S, D)
        return q, k
