"""Eight encodings of relative positions, which came after those of model.py: options of --pos.

They read offsets i - j or, if `reads_content`, compare contents too. All blocks share the trained
parts of one encoding. The file is loaded when --pos asks for one of them.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import POSITIONS, NoPE, position_angles


def offsets(i, j):
    """Return how far keys j are before queries i, negative after them: (1 or B, 1, T, S)."""
    d = i[..., :, None] - j[..., None, :]
    return d.view(-1, 1, *d.shape[-2:])


def look_up(scores, index):
    """scores (B, H, T, N), index (1 or B, 1, T, S) below N -> their entries (B, H, T, S)."""
    return scores.gather(-1, index.expand(*scores.shape[:2], -1, -1))


class Shaw(NoPE):
    """q_i · (k_j + a[i - j]) / sqrt(D), with a trained vector a per head and offset; offsets are
    clipped at 16 (Shaw et al. 2018, equation 4). Their vectors on the values (equation 3) are left
    out: in their table 3 they add nothing to those on the keys."""

    label, color, reads_content = "Shaw", "#CCBB44", True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(2 * 16 + 1, config.n_embd)

    def bias(self, q, k, i, j, attention):
        H, D = q.size(1), q.size(-1)
        vectors = self.vectors.weight.view(-1, H, D).permute(1, 2, 0)  # (H, D, 33)
        return look_up(q @ vectors / math.sqrt(D), offsets(i, j).clamp(-16, 16) + 16)


class T5Bias(NoPE):
    """A trained number per head and bucket of distances (Raffel et al. 2020, section 2.1, and their
    code). A decoder has 32 buckets: distances 0 to 15, then 16 that grow in proportion, the last
    one from about 113 on. An encoder has 16 for keys up to the query and 16 for later ones, of
    which 8 hold one distance each. (T5 adds the numbers to scores not divided by sqrt(D).)"""

    label, color = "T5's bias", "#AA3377"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.table, self.causal = nn.Embedding(32, config.n_head), causal

    def buckets(self, d):
        """Return the bucket of each offset d."""
        n = 32 if self.causal else 16  # of one side
        far = d.clamp(min=0) if self.causal else d.abs()
        steps = (far / (n // 2)).clamp(min=1).log() / math.log(128 / (n // 2))
        large = (n // 2 + (steps * (n // 2)).long()).clamp(max=n - 1)
        bucket = torch.where(far < n // 2, far, large)
        return bucket if self.causal else bucket + n * (d < 0)

    def bias(self, q, k, i, j):
        return self.table(self.buckets(offsets(i, j)[:, 0])).movedim(-1, 1)  # (1 or B, H, T, S)


class DeBERTa(NoPE):
    """Disentangled attention (He et al. 2021, equation 4): content and position each have queries
    and keys. With r[d] a trained vector per offset d, clipped at block_size, the scores are

        (q_i · W_k r[i - j] + k_j · W_q r[j - i] + q_i · k_j) / sqrt(3D)

    where W_q and W_k are those that make the layer's own q and k from the content, and r passes a
    layer norm, both as in the authors' second version."""

    label, color, reads_content = "DeBERTa", "#332288", True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(2 * config.block_size, config.n_embd)
        self.norm = nn.LayerNorm(config.n_embd, config.norm_eps)

    def turn(self, q, k, i, j):
        return q / math.sqrt(3), k

    def bias(self, q, k, i, j, attention):
        n = len(self.vectors.weight)  # offsets -n / 2 to n / 2 - 1
        q_r, k_r, _ = attention.heads(self.norm(self.vectors.weight)[None])  # (1, H, n, D)
        of_query = look_up(q @ k_r.mT, (offsets(i, j) + n // 2).clamp(0, n - 1))  # (B, H, T, S)
        of_key = look_up(k @ q_r.mT, (offsets(j, i) + n // 2).clamp(0, n - 1))  # (B, H, S, T)
        return (of_query + of_key.mT / math.sqrt(3)) / math.sqrt(q.size(-1))


class KERPLE(NoPE):
    """-r1 log(1 + r2 |i - j|), with r1 and r2 > 0 trained per head, which start as in the authors'
    code (Chi et al. 2022, the logarithmic form)."""

    label, color = "KERPLE", "#EE7733"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.r1 = nn.Parameter(2 * torch.rand(config.n_head))
        self.r2 = nn.Parameter(torch.rand(config.n_head))

    def bias(self, q, k, i, j):
        r1, r2 = (r.abs()[:, None, None] for r in (self.r1, self.r2))
        return -r1 * torch.log1p(r2 * offsets(i, j).abs())


class FIRE(NoPE):
    """f(log(1 + c (i - j)) / log(1 + c max(i, L))): a small network f reads the distance as a share
    of the longest one, for the first L queries as a share of L. c and L are trained and positive; L
    starts at a quarter of block_size, as in the authors' code (Li et al. 2024)."""

    label, color = "FIRE", "#CC3311"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ValueError("pos=fire: divides by the query's position, so it needs a decoder")
        self.c, self.stretch = (nn.Parameter(torch.tensor(x)) for x in (0.1, 1.0))
        self.start = config.block_size / 4
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, config.n_head))

    def bias(self, q, k, i, j):
        longest = torch.maximum(i, (self.stretch * self.start).abs())[..., :, None]  # (.., T, 1)
        distance, longest = (torch.log1p((self.c * x).abs()) for x in (offsets(i, j), longest))
        share = distance[:, 0] / longest.clamp(min=1e-6)  # (1 or B, T, S)
        return self.net(share[..., None].to(self.net[0].weight.dtype)).movedim(-1, 1)


class CoPE(NoPE):
    """Contextual positions (Golovneva et al. 2024): the gate sigmoid(q_i · k_j / sqrt(D)) decides
    whether key j counts. The position of j is the sum of gates from it to i, and adds q_i · e[p] /
    sqrt(D) to the score; e is trained for p = 0, 1, ..., block_size - 1, and in proportion between.
    Positions that are given only tell which keys are before a query."""

    label, color, reads_content = "CoPE", "#009988", True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ValueError("pos=cope: counts the tokens before a query, so it needs a decoder")
        self.vectors = nn.Embedding(config.block_size, config.n_embd // config.n_head)

    def bias(self, q, k, i, j, attention):
        q, most = q / math.sqrt(q.size(-1)), len(self.vectors.weight) - 1
        gates = (q @ k.mT).sigmoid().float() * (offsets(i, j) >= 0)  # (B, H, T, S)
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=most)
        below, scores = p.floor().long(), q @ self.vectors.weight.T  # (B, H, T, block_size)
        above = look_up(scores, (below + 1).clamp(max=most))
        return torch.lerp(look_up(scores, below), above, (p - below).to(q.dtype))


class Forget(NoPE):
    """The sum of log f_t over the tokens j < t <= i (the Forgetting Transformer, Lin et al. 2025).

    The gate f_t = sigmoid(w · k_t + b), w and b per head, is near 1 at first: little is forgotten.
    In the paper it reads the layer's input, which a cache does not keep, not the head's key, and
    each layer has its own w and b. Positions that are given do not count."""

    label, color, reads_content = "Forget gates", "#222222", True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ValueError("pos=forget: forgets what is before a query, so it needs a decoder")
        self.w = nn.Parameter(torch.zeros(config.n_head, config.n_embd // config.n_head))
        self.b = nn.Parameter(torch.full((config.n_head,), 4.0))  # f = 0.98

    def bias(self, q, k, i, j, attention):
        gates = (k * self.w[:, None]).sum(-1) + self.b[:, None]  # (B, H, S)
        total = F.logsigmoid(gates.float()).cumsum(-1)
        return (total[:, :, -q.size(2) :, None] - total[:, :, None]).to(q.dtype)


class PoPE(NoPE):
    """The sum over channels c of |q_c| |k_c| cos((i - j) / 10000^(c / D) - delta_c) / sqrt(D), with
    |x| = log(1 + e^x) and a trained delta_c per head, at first 0: content alone makes the lengths,
    position alone the angles (Gopalakrishnan et al. 2025). q and k get 2D channels. The paper clips
    delta_c to -2 pi to 0, where all angles are; at 0, where it starts, that stops its gradient."""

    label, color = "PoPE", "#997700"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.delta = nn.Parameter(torch.zeros(config.n_head, config.n_embd // config.n_head))

    def turn(self, q, k, i, j):
        D, delta = q.size(-1), self.delta[:, None]  # (H, 1, D)

        def polar(x, angles):  # (B, H, T, D), (1 or B, 1 or H, T, D) -> (B, H, T, 2D)
            size, parts = F.softplus(x), (angles.cos(), angles.sin())
            return torch.cat([size * part.to(x.dtype) for part in parts], dim=-1)

        i, j = (position_angles(at.view(-1, 1, at.size(-1)), 2 * D) for at in (i, j))
        return math.sqrt(2) * polar(q, i), polar(k, j + delta)  # attention divides by sqrt(2D)


POSITIONS |= dict(shaw=Shaw, t5=T5Bias, deberta=DeBERTa, kerple=KERPLE)
POSITIONS |= dict(fire=FIRE, cope=CoPE, forget=Forget, pope=PoPE)
