"""Rotary positions, and the place to add an encoding, which becomes an option of --pos.

To add one, write a class with the places where it acts (see NoPE in model.py) and add it to
POSITIONS. docs/architecture.md has an example with its test, nets/relative.py has eight more.
"""

import math

import torch

from model import POSITIONS, NoPE, position_angles


class Rotary(NoPE):
    """Turn q and k by angles that grow with the position: q k^T then depends on the distance.

    rope_share below 1 leaves the last channels of a head as they are. To read texts s = rope_factor
    times as long as block_size, rope_scale changes the angles:

    linear  i / s in place of i (Chen et al. 2023)
    ntk     base * s^(D / (D - 2)) in place of the base: only the slowest pair of channels gets s
            times slower (bloc97 2023)
    yarn    pairs that turn at most once within block_size get s times slower, those that turn 32
            times stay, others are between; scores grow by (0.1 ln s + 1)^2 (Peng et al. 2024)
    """

    label, color = "rotary", "#228833"
    SCALES = ("none", "linear", "ntk", "yarn")

    def __init__(self, config, causal):
        super().__init__(config, causal)
        D, self.config = config.n_embd // config.n_head, config
        self.n_turned = 2 * round(config.rope_share * D / 2)
        if D % 2:
            raise ValueError("n_embd / n_head must be even: pos=rope rotates pairs of channels")
        if config.rope_scale not in self.SCALES:
            raise ValueError(f"rope_scale must be one of {', '.join(self.SCALES)}")
        least = 4 if config.rope_scale == "ntk" else 2
        if not least <= self.n_turned <= D:
            raise ValueError(f"rope_share must be of {least} to {D} channels: a head has {D}")

    def angles(self, i):
        """Return the angles (..., n_turned / 2) of positions i."""
        n, s, c = self.n_turned, self.config.rope_factor, self.config
        base = c.rope_base * s ** (n / (n - 2)) if c.rope_scale == "ntk" else c.rope_base
        angles = position_angles(i, n, base)
        if c.rope_scale == "linear":
            angles = angles / s
        if c.rope_scale == "yarn":
            turns = position_angles(i.new_tensor(c.block_size), n, base) / (2 * math.pi)
            kept = ((turns - 1) / (32 - 1)).clamp(0, 1)  # (n_turned / 2,)
            angles = angles * (kept + (1 - kept) / s)
        return angles

    def turn(self, q, k, i, j):
        if self.config.rope_scale == "yarn":
            q = q * (0.1 * math.log(self.config.rope_factor) + 1) ** 2
        if q.shape == k.shape:  # turning both at once takes half the calls
            at = torch.stack([i, j]).view(2, -1, q.size(2))  # (2, 1 or B, T)
            return rotate(torch.stack([q, k]), self.angles(at)).unbind()
        return rotate(q, self.angles(i)), rotate(k, self.angles(j))


def rotate(x, angles):
    """Rotate channels (n, n + N) of x (..., H, T, D) by angles (..., T, N) (Su et al. 2021,
    equation 34; they pair channels 2n and 2n + 1). Channels from 2N on stay as they are."""
    cos, sin = (part.to(x.dtype).unsqueeze(-3) for part in (angles.cos(), angles.sin()))
    n = 2 * cos.size(-1)
    a, b = x[..., :n].chunk(2, dim=-1)  # 2 of (B, H, T, N)
    turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    return turned if n == x.size(-1) else torch.cat([turned, x[..., n:]], dim=-1)


def spread(idx, mask, most, random):
    """Return positions below `most` for texts idx (B, T), mask (B, T) or None: (T,) or (B, T).

    random: a sorted sample, for training (Ruoss et al. 2023). Else each text is spread evenly: at
    positions 0, 1, 2, ... all tokens would be closer together than in training."""
    T = idx.size(1)
    if random:
        return torch.randperm(most, device=idx.device)[:T].sort().values
    lengths = T if mask is None else mask.sum(1, keepdim=True)  # (B, 1)
    at = torch.arange(T, device=idx.device)
    return at if T > most else (at * most // lengths).clamp(max=most - 1)


POSITIONS["rope"] = Rotary
POSITIONS |= dict.fromkeys("shaw t5 deberta kerple fire cope forget pope".split())
