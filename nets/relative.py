"""Eight encodings of relative positions, which came after those of model.py: options of --pos.

Most read offsets i - j; the subclasses of ContentBias also read what the tokens contain. All
blocks share the trained parts of one encoding, as in T5, DeBERTa and KERPLE. In the papers of Shaw,
CoPE and the forget gates each block has its own; so has FIRE, which is called FIRE-S if blocks
share. To add an encoding, write a class with the places where it acts (see NoPE in model.py) and
add it to POSITIONS: docs/architecture.md has an example.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from model import POSITIONS, ALiBi, ConfigError, NoPE, alibi_slopes, position_angles


def offsets(i, j):
    """Return how far keys j are before queries i, negative after them: (1 or B, 1, T, S)."""
    d = i[..., :, None] - j[..., None, :]
    return d.view(-1, 1, *d.shape[-2:])


def look_up(scores, index):
    """scores (B, H, T, N), index (1 or B, 1, T, S) below N -> their entries (B, H, T, S)."""
    return scores.gather(-1, index.expand(*scores.shape[:2], -1, -1))


class ContentBias(NoPE):
    """The base of encodings whose bias depends on what the tokens contain, so that every layer has
    its own. AddContent adds it to the scores."""

    def content_bias(self, q, k, i, j, attention):
        """Return a float (B, H, T, S). q (B, H, T, D) and k (B, H, S, D) are given as turned, and
        the layer's Attention."""
        raise NotImplementedError


class AddContent:
    """Replaces Attention.mix: also adds the bias of a ContentBias."""

    def mix(self, q, k, v, where):
        if not isinstance(where.positions, ContentBias):  # a block without positions (nope_every)
            return super().mix(q, k, v, where)
        q, k = where.positions.turn(q, k, where.i, where.j)
        bias = where.positions.content_bias(q, k, where.i, where.j, self)
        return self.attend(q, k, v, bias + where.bias)


class OneSided(ALiBi):
    """ALiBi in an encoder where half of the heads see only j <= i, half only j >= i; both halves
    have the slopes of H / 2 heads."""

    FORMS = ("one-sided",)

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if config.n_head % 2:
            raise ConfigError(f"n_head must be even: alibi=one-sided, got {config.n_head}")
        half = config.n_head // 2
        self.slopes = nn.Buffer(alibi_slopes(half).repeat(2), persistent=False)  # (H,)
        sides = torch.tensor([1] * half + [-1] * half)  # heads that see the past, the future
        self.sides = nn.Buffer(sides, persistent=False)  # (H,)

    def bias(self, i, j):
        hidden = self.sides[:, None, None] * offsets(i, j) < 0  # (1 or B, H, T, S)
        return super().bias(i, j).masked_fill(hidden, -math.inf)


class Shaw(ContentBias):
    """q_i · (k_j + a[i - j]) / sqrt(D), with a trained vector a per head and offset; offsets are
    clipped at 16 (Shaw et al. 2018, equation 4). Their vectors on the values (equation 3) are left
    out: in their table 3 they add nothing to those on the keys."""

    label = "Shaw"
    color = "#CCBB44"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(2 * 16 + 1, config.n_embd)

    def content_bias(self, q, k, i, j, attention):
        H, D = q.size(1), q.size(-1)
        vectors = self.vectors.weight.view(-1, H, D).permute(1, 2, 0)  # (H, D, 33)
        scores = q @ vectors / math.sqrt(D)  # (B, H, T, 33)
        return look_up(scores, offsets(i, j).clamp(-16, 16) + 16)


class T5Bias(NoPE):
    """A trained number per head and bucket of distances (Raffel et al. 2020, section 2.1, and their
    code). A decoder has 32 buckets: distances 0 to 15, then 16 that grow in proportion, the last
    one from about 113 on. An encoder has 16 for keys up to the query and 16 for later ones, of
    which 8 hold one distance each. (T5 adds the numbers to scores not divided by sqrt(D).)"""

    label = "T5's bias"
    color = "#AA3377"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.table = nn.Embedding(32, config.n_head)
        self.causal = causal

    def buckets(self, d):
        """Return the bucket of each offset d."""
        if self.causal:
            return self.one_side(d.clamp(min=0), 32)
        return self.one_side(d.abs(), 16) + 16 * (d < 0)

    def one_side(self, distance, n):
        """Return the bucket of each distance, one of n: the first half of them hold one distance
        each, the others grow in proportion up to 128."""
        half = n // 2
        steps = (distance / half).clamp(min=1).log() / math.log(128 / half)
        large = (half + (steps * half).long()).clamp(max=n - 1)
        return torch.where(distance < half, distance, large)

    def bias(self, i, j):
        d = offsets(i, j)[:, 0]  # (1 or B, T, S)
        return self.table(self.buckets(d)).movedim(-1, 1)  # (1 or B, H, T, S)


class DeBERTa(ContentBias):
    """Disentangled attention (He et al. 2021, equation 4): content and position each have queries
    and keys. With r[d] a trained vector per offset d, clipped at block_size, the scores are

        (q_i · W_k r[i - j] + k_j · W_q r[j - i] + q_i · k_j) / sqrt(3D)

    where W_q and W_k are those that make the layer's own q and k from the content, and r passes a
    layer norm, both as in the authors' second version. Their code and that of transformers read
    r[i - j] in the second product too."""

    label = "DeBERTa"
    color = "#332288"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(2 * config.block_size, config.n_embd)
        self.norm = nn.LayerNorm(config.n_embd, config.norm_eps)

    def turn(self, q, k, i, j):
        return q / math.sqrt(3), k

    def content_bias(self, q, k, i, j, attention):
        n = len(self.vectors.weight)  # offsets -n / 2 to n / 2 - 1
        q_r, k_r, _ = attention.heads(self.norm(self.vectors.weight)[None])  # (1, H, n, D)
        of_query = look_up(q @ k_r.mT, (offsets(i, j) + n // 2).clamp(0, n - 1))  # (B, H, T, S)
        of_key = look_up(k @ q_r.mT, (offsets(j, i) + n // 2).clamp(0, n - 1))  # (B, H, S, T)
        # `turn` has divided q by sqrt(3) already, but not k
        return (of_query + of_key.mT / math.sqrt(3)) / math.sqrt(q.size(-1))


class KERPLE(NoPE):
    """-r1 log(1 + r2 |i - j|), with r1 and r2 > 0 trained per head, which start as in the authors'
    code (Chi et al. 2022, the logarithmic form)."""

    label = "KERPLE"
    color = "#EE7733"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.r1 = nn.Parameter(2 * torch.rand(config.n_head))
        self.r2 = nn.Parameter(torch.rand(config.n_head))

    def bias(self, i, j):
        r1 = self.r1.abs()[:, None, None]  # (H, 1, 1)
        r2 = self.r2.abs()[:, None, None]
        return -r1 * torch.log1p(r2 * offsets(i, j).abs())  # (1 or B, H, T, S)


class FIRE(NoPE):
    """f(log(1 + c (i - j)) / log(1 + c max(i, L))): a small network f reads the distance as a share
    of the longest one, for the first L queries as a share of L. c and L are trained and positive; L
    starts at a quarter of block_size, as in the authors' code (Li et al. 2024)."""

    label = "FIRE"
    color = "#CC3311"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ConfigError("pos=fire: divides by the query's position, so it needs a decoder")
        self.c = nn.Parameter(torch.tensor(0.1))
        self.start = config.block_size / 4
        self.stretch = nn.Parameter(torch.tensor(1.0))  # L = stretch * start
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, config.n_head))

    def bias(self, i, j):
        L = (self.stretch * self.start).abs()
        distance = self.log(offsets(i, j)[:, 0])  # (1 or B, T, S)
        longest = self.log(torch.maximum(i, L)[..., :, None])  # (T, 1) or (B, T, 1)
        share = distance / longest.clamp(min=1e-6)  # (1 or B, T, S)
        share = share[..., None].to(self.net[0].weight.dtype)  # (1 or B, T, S, 1)
        return self.net(share).movedim(-1, 1)  # (1 or B, H, T, S)

    def log(self, x):
        """Return log(1 + c x)."""
        return torch.log1p((self.c * x).abs())


class CoPE(ContentBias):
    """Contextual positions (Golovneva et al. 2024): the gate sigmoid(q_i · k_j / sqrt(D)) decides
    whether key j counts. The position of j is the sum of gates from it to i, and adds q_i · e[p] /
    sqrt(D) to the score; e is trained for p = 0, 1, ..., block_size - 1, and in proportion between.
    Positions that are given do not count. The division of q_i · e[p] by sqrt(D) is that of the
    authors' repository (without --cope-nodiv); the code printed in the paper does not divide it."""

    label = "CoPE"
    color = "#009988"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ConfigError("pos=cope: counts the tokens before a query, so it needs a decoder")
        self.vectors = nn.Embedding(config.block_size, config.n_embd // config.n_head)

    def content_bias(self, q, k, i, j, attention):
        q = q / math.sqrt(q.size(-1))
        last = len(self.vectors.weight) - 1  # position
        n_past = k.size(2) - q.size(2)
        gates = (q @ k.mT).sigmoid().float().tril(n_past)  # (B, H, T, S), 0 after the query
        p = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)  # sums from j to i
        below = p.floor().long()
        above = (below + 1).clamp(max=last)
        scores = q @ self.vectors.weight.T  # (B, H, T, block_size)
        score_below = look_up(scores, below)  # (B, H, T, S)
        score_above = look_up(scores, above)
        return torch.lerp(score_below, score_above, (p - below).to(q.dtype))


class Forget(ContentBias):
    """The sum of log f_t over the tokens j < t <= i (the Forgetting Transformer, Lin et al. 2025).

    The gate f_t = sigmoid(w · k_t + b), w and b per head, begins at 0.98: little is forgotten; the
    authors' begins at 0.5 (b = 0). In the paper it reads the layer's input, which a cache does not
    keep, not the head's key. Positions that are given do not count."""

    label = "Forget gates"
    color = "#222222"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        if not causal:
            raise ConfigError("pos=forget: forgets what is before a query, so it needs a decoder")
        self.w = nn.Parameter(torch.zeros(config.n_head, config.n_embd // config.n_head))
        self.b = nn.Parameter(torch.full((config.n_head,), 4.0))  # f = 0.98

    def content_bias(self, q, k, i, j, attention):
        gates = (k * self.w[:, None]).sum(-1) + self.b[:, None]  # (B, H, S)
        total = F.logsigmoid(gates.float()).cumsum(-1)  # (B, H, S), of the tokens up to each
        of_queries = total[:, :, -q.size(2) :]  # (B, H, T)
        return (of_queries[:, :, :, None] - total[:, :, None]).to(q.dtype)  # (B, H, T, S)


class PoPE(NoPE):
    """The sum over channels c of |q_c| |k_c| cos((i - j) / 10000^(c / D) - delta_c) / sqrt(D), with
    |x| = log(1 + e^x) and a trained delta_c per head, at first 0: content alone makes the lengths,
    position alone the angles (Gopalakrishnan et al. 2025). q and k get 2D channels. The paper clips
    delta_c to -2 pi to 0, where all angles are; at 0, where it starts, that stops its gradient."""

    label = "PoPE"
    color = "#997700"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.delta = nn.Parameter(torch.zeros(config.n_head, config.n_embd // config.n_head))

    def turn(self, q, k, i, j):
        D = q.size(-1)
        # position_angles gives half as many angles as channels, and PoPE needs one per channel
        angles_q = position_angles(i.view(-1, 1, i.size(-1)), 2 * D)  # (1 or B, 1, T, D)
        angles_k = position_angles(j.view(-1, 1, j.size(-1)), 2 * D) + self.delta[:, None]
        q = math.sqrt(2) * from_polar(q, angles_q)  # attention will divide by sqrt(2D)
        return q, from_polar(k, angles_k)


def from_polar(x, angles):
    """x (B, H, T, D), angles (1 or B, 1 or H, T, D) -> (B, H, T, 2D), for each channel of x the two
    coordinates of a vector of length softplus(x)."""
    length = F.softplus(x)
    return torch.cat([length * angles.cos().to(x.dtype), length * angles.sin().to(x.dtype)], dim=-1)


class PadValues:
    """Replaces Attention.attend: PoPE's q and k are twice as wide as v, and kernels need one
    width."""

    def attend(self, q, k, v, bias):
        D = v.size(-1)
        missing = max(0, q.size(-1) - D)  # 0 in a block without positions
        v = F.pad(v, (0, missing))  # (B, H, S, 2D)
        return super().attend(q, k, v, bias)[..., :D]


# ------------------------------------------------------------------------- The choices of --pos
POSITIONS["shaw"] = Shaw
POSITIONS["t5"] = T5Bias
POSITIONS["deberta"] = DeBERTa
POSITIONS["kerple"] = KERPLE
POSITIONS["fire"] = FIRE
POSITIONS["cope"] = CoPE
POSITIONS["forget"] = Forget
POSITIONS["pope"] = PoPE
