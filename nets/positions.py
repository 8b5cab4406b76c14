"""Further position encodings, an option of --pos each.

To add one, write a class with the places where it acts (see NoPE in model.py) and add it to
POSITIONS. For example a trained bias per head and distance, as T5 has (Raffel et al. 2020, section
2.1), but without T5's buckets:

    class Distances(NoPE):
        label, color = "bias per distance", "#AA3377"

        def __init__(self, config, causal):
            super().__init__(config, causal)
            self.table = nn.Embedding(2 * 32 + 1, config.n_head)

        def bias(self, q, k, i, j):
            d = (i[..., :, None] - j[..., None, :]).clamp(-32, 32)  # (T, S) or (B, T, S)
            bias = self.table(d + 32).movedim(-1, -3)  # (H, T, S) or (B, H, T, S)
            return bias.view(-1, *bias.shape[-3:])

    POSITIONS["distances"] = Distances
"""

import torch

from model import POSITIONS, NoPE, position_angles


class Rotary(NoPE):
    """Turn q and k by angles that grow with the position: q k^T then depends on the distance."""

    label, color = "rotary", "#228833"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if config.n_embd // config.n_head % 2:
            raise ValueError("n_embd / n_head must be even: pos=rope rotates pairs of channels")

    def turn(self, q, k, i, j):
        D = q.size(-1)
        return rotate(q, position_angles(i, D)), rotate(k, position_angles(j, D))


def rotate(x, angles):
    """Rotate channels (n, n + D/2) of x (B, H, T, D) by angles (T, D/2) or (B, T, D/2) (Su et al.
    2021, equation 34; they pair channels 2n and 2n + 1)."""
    angles = angles[:, None] if angles.dim() == 3 else angles  # for all heads
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    a, b = x.chunk(2, dim=-1)  # 2 of (B, H, T, D/2)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


POSITIONS["rope"] = Rotary
