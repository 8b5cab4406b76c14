"""The transformer, to be read from top to bottom.

Attention alone does not know the order of the tokens. Positions enter in exactly three places, the
three methods of a position encoding. NoPE uses none; a decoder then has only its causal mask.

Shapes: B sequences of T tokens, C = n_embd channels, H heads of D = C / H channels, V words;
queries attend to S keys. Masks are boolean, True = may attend. Negative targets are ignored.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.nn as nn
import torch.nn.functional as F

from data.batching import send
from nets.attention import Attention, choose_flex, shared_bias
from nets.loss import LinearCrossEntropySum, linear_cross_entropy, not_ignored


# ------------------------------------------------------------------------------------ 1. Config
@dataclass
class Architecture:
    """The options that every training script has as flags (lab/flags.py)."""

    pos: str = "learned"  # one of POSITIONS
    n_layer: int = 4  # number of blocks
    n_head: int = 2  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 0  # width of the feed-forward layer; 0: four times n_embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    dropout: float = 0.0  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    activation: str = "gelu"  # of the feed-forward layer, one of ACTIVATIONS
    alibi: str = "offset"  # form of ALiBi in an encoder, one of ALiBi.FORMS
    rope_share: float = 1.0  # share of each head's channels that rotary positions turn
    rope_base: float = 10000.0  # base of the rotary angles; a larger one turns more slowly
    rope_scale: str = "none"  # one of Rotary.SCALES: adapt rotary positions to longer texts, which
    rope_factor: float = 1.0  # are this many times as long as block_size
    nope_every: int = 0  # every n-th block attends without rotations and biases; 0: none
    random_positions: int = 0  # train on sorted random positions below this; 0: on 0, 1, 2, ...
    log_scale: bool = False  # scale queries by s log t, s trained per head (scalable softmax)
    window: int = 0  # attend only to tokens fewer than this many positions away; 0: all
    attn_block: int = 0  # attend only within blocks of this many positions; 0: everywhere
    global_tokens: int = 0  # beside window or attn_block, these first tokens see and are seen
    random_keys: int = 0  # beside them, also about this many random keys per block_size
    init_std: float = 0.05  # standard deviation of the initial weights


@dataclass
class Config(Architecture):
    """All architecture options. Raises ValueError for values that do not fit together."""

    vocab_size: int = 5000
    norm_eps: float = 1e-5  # added to the variance in every layer norm
    head: str = "linear"  # one of HEADS
    tie: bool = True  # the head uses the embedding's word vectors
    zero_mask: bool = False  # the mask token enters as the zero vector (zero-CLAP)
    omit_mask: bool = False  # the mask token is not an output word; output words have no bias
    mask_id: int = 2  # id of the mask token
    n_segment: int = 0  # vectors for pairs of sentences, 2 or 4, see nets/pairs.py; 0: none

    def __post_init__(self):
        self.n_ffn = self.n_ffn or 4 * self.n_embd
        options = dict(pos=POSITIONS, alibi=ALiBi.FORMS, head=HEADS, activation=ACTIVATIONS)
        for name, allowed in options.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}")
        if self.n_head < 1 or self.n_embd < 1 or self.n_embd % self.n_head:
            raise ValueError(f"n_head must divide n_embd, got {self.n_head} and {self.n_embd}")
        if self.head == "clap" and not self.tie:
            raise ValueError("head=clap compares with the token embeddings: it needs tie")


HEADS = ("linear", "roberta", "clap")
ACTIVATIONS = dict(gelu=nn.GELU, relu=nn.ReLU)


# --------------------------------------------------------------------------------- 2. Positions
class NoPE(nn.Module):
    """No position encoding, and the base of all others, which override the places where they act.
    i (T,) or (B, T) are the positions of the queries, j (S,) or (B, S) those of the keys."""

    label, color = "NoPE", "#777777"  # in figures
    ends = False  # whether it cannot go beyond block_size
    reads_content = False  # whether `bias` reads q and k; else all blocks share one

    def __init__(self, config, causal):
        """Raise ValueError for a Config that the encoding cannot use."""
        super().__init__()

    def embed(self, x, i):
        """Place 1: token vectors x (B, T, C) -> (B, T, C), with vectors added."""
        return x

    def turn(self, q, k, i, j):
        """Place 2: q (B, H, T, D) and k (B, H, S, D) -> the same, rotated or scaled."""
        return q, k

    def bias(self, q, k, i, j, attention=None):
        """Place 3: return a float (1 or B, 1 or H, T, S) to add to the scores, or None. Only if
        `reads_content`, q and k are given, as turned, and the layer's Attention."""

    def flex(self):
        """Return f(score, b, h, i, j) -> score with the bias, with which a GPU does without a table
        (see nets/attention.py); None: it needs the table."""


class Learned(NoPE):
    """A trained vector per position."""

    label, color, ends = "learned", "#4477AA", True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(config.random_positions or config.block_size, config.n_embd)

    def embed(self, x, i):
        if i.dim() == 1 and len(i) > (n := len(self.vectors.weight)):
            raise ValueError(f"learned positions end at block_size={n}, got {len(i)} tokens")
        return x + self.vectors(i)


class Sinusoidal(NoPE):
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5)."""

    label, color = "sinusoidal", "#66CCEE"

    def embed(self, x, i):
        C = x.size(-1)  # token vectors must be as large as the sinusoids (section 3.4)
        return x * math.sqrt(C) + sinusoids(i, C).to(x.dtype)


class ALiBi(NoPE):
    """A penalty on the distance of query i and key j, with a slope m per head (Press et al. 2022).

    causal      -m (i - j)
    symmetric   -m |i - j|
    offset      -m (|i - j| - 0.5 [j > i]), so a later key counts as half a token nearer
    one-sided   half of the heads see only j <= i, half only j >= i; slopes of H / 2 heads
    """

    label, color = "ALiBi", "#EE6677"
    FORMS = ("offset", "symmetric", "one-sided")  # of an encoder

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.form, half = "causal" if causal else config.alibi, config.n_head // 2
        slopes = alibi_slopes(config.n_head)
        if self.form == "one-sided":
            if config.n_head % 2:
                raise ValueError(f"n_head must be even: alibi=one-sided, got {config.n_head}")
            slopes = alibi_slopes(half).repeat(2)
        self.slopes = nn.Buffer(slopes, persistent=False)  # (H,)
        sides = [1] * half + [-1] * (config.n_head - half)  # heads that see the past, the future
        self.sides = nn.Buffer(torch.tensor(sides), persistent=False)  # (H,)

    def bias(self, q, k, i, j):
        d = (i[..., :, None] - j[..., None, :]).unsqueeze(-3)  # (1, T, S) or (B, 1, T, S)
        bias = self.penalize(0.0, self.slopes[:, None, None], self.sides[:, None, None], d)
        return bias.view(-1, *bias.shape[-3:])

    def flex(self):
        slopes, sides = self.slopes, self.sides
        return lambda score, b, h, i, j: self.penalize(score, slopes[h], sides[h], i - j)

    def penalize(self, score, slope, side, d):
        """Return the score minus slope times distance; d = i - j is positive for the past."""
        far = d.abs() - 0.5 * (d < 0) if self.form == "offset" else d.abs()
        score = score - slope * far
        return torch.where(side * d < 0, -math.inf, score) if self.form == "one-sided" else score


class Options(dict):
    """Classes by name; None: nets/relative.py adds the class when it is asked for."""

    def __getitem__(self, name):
        if super().__getitem__(name) is None:
            import nets.relative  # noqa: F401
        return super().__getitem__(name)


POSITIONS = Options(learned=Learned, sinusoidal=Sinusoidal, alibi=ALiBi, nope=NoPE)


def position_angles(i, D, base=10000.0):
    """Return (..., D/2) angles i / base^(2n / D) of positions i. A larger n turns more slowly."""
    return i[..., None] * base ** (-torch.arange(0, D, 2, device=i.device) / D)


def sinusoids(i, C):
    """Return (..., C) sines and cosines of the angles of positions i."""
    angles = position_angles(i, C)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :C]  # C may be odd


def alibi_slopes(n_head):
    """Return the (n_head,) slopes m of Press et al. 2022, section 3.

    For a power of two n: 2^(-8/n), 2^(-16/n), ..., 2^(-8). For other n, as in the authors' code:
    the slopes of the largest power of two below n, then every second slope of the next power."""
    n = 2 ** int(math.log2(n_head))  # the other heads have slopes between these
    steps = [k + 1 for k in range(n)] + [k + 0.5 for k in range(n_head - n)]
    return torch.tensor([2 ** (-8 * step / n) for step in steps])


# ------------------------------------------------------------------------------- 3. Transformer
class Block(nn.Module):
    """Attention moves information between tokens; the feed-forward layer works on each alone."""

    def __init__(self, config, cross, causal):
        super().__init__()
        C, self.norm_first = config.n_embd, config.norm_first
        self.norm1, self.attention = nn.LayerNorm(C, config.norm_eps), Attention(config, causal)
        if cross:
            self.cross_norm = nn.LayerNorm(C, config.norm_eps)
            self.cross_attention = Attention(config)
        self.norm2 = nn.LayerNorm(C, config.norm_eps)
        up, down = nn.Linear(C, config.n_ffn), nn.Linear(config.n_ffn, C)
        act = ACTIVATIONS[config.activation]()
        self.feed_forward = nn.Sequential(OrderedDict(up=up, act=act, down=down))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, cross=None, picked=None, **args):
        """x (B, T, C) -> (B, T, C) and the attention weights; with cross, those of both attentions.
        args, cross: arguments of the self- and the cross-attention. picked (N,): indices into the
        B * T tokens, the only ones that the feed-forward layer reads, -> (N, C)."""
        pre = self.norm_first  # normalise the input of each sublayer, or the sum after it
        a, weights = self.attention(self.norm1(x) if pre else x, **args)
        x = x + self.dropout(a) if pre else self.norm1(x + self.dropout(a))
        if cross:
            a, cross_weights = self.cross_attention(self.cross_norm(x) if pre else x, **cross)
            x = x + self.dropout(a) if pre else self.cross_norm(x + self.dropout(a))
            weights = weights, cross_weights
        if picked is not None:
            x = x.flatten(0, 1).index_select(0, picked)  # (B, T, C) -> (N, C)
        a = self.feed_forward(self.norm2(x) if pre else x)
        x = x + self.dropout(a) if pre else self.norm2(x + self.dropout(a))
        return x, weights


class Transformer(nn.Module):
    """Token ids to hidden states. With cross, every block also reads a memory."""

    causal = False

    def __init__(self, config, cross=False):
        super().__init__()
        C, self.config = config.n_embd, config
        self.embedding = nn.Embedding(config.vocab_size, C)
        self.segments = import_module("nets.pairs").Segments(config) if config.n_segment else None
        self.positions = POSITIONS[config.pos](config, self.causal)
        # Post-norm starts from a normalised embedding (BERT), but CLAP from the vectors themselves
        plain = config.norm_first or config.head == "clap"
        self.embedding_norm = nn.Identity() if plain else nn.LayerNorm(C, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config, cross, self.causal) for _ in range(config.n_layer)
        )
        self.norm = nn.LayerNorm(C, config.norm_eps) if config.norm_first else nn.Identity()

    def forward(self, idx, mask=None, need_weights=False, need_states=False, picked=None, **more):
        """idx (B, T) long -> h (B, T, C), or with picked (N,) these of the B * T tokens, (N, C).
        mask (B, T): True on tokens, False on padding after them. more: see `inputs_of_blocks`.
        need_weights: return (h, maps), n_layer maps (B, H, T, T), with a memory pairs of maps.
        need_states: return (h, states), the n_layer + 1 states before, between and after blocks."""
        x, args, cross, past = self.inputs_of_blocks(idx, mask, need_weights, **more)
        maps, states = [], [x]
        for block, own, kept in zip(self.blocks, args, past):
            last = block is self.blocks[-1]  # only here tokens may be left out: none reads them
            x, weights = block(x, cross, picked if last else None, past=kept, **own)
            maps.append(weights)
            states.append(x)
        h = self.norm(x)
        if need_weights:
            return h, maps
        return (h, states) if need_states else h

    def inputs_of_blocks(
        self, idx, mask, need_weights, at=None, extra=None, memory=None, memory_mask=None, past=None
    ):
        """Return the embeddings (B, T, C) and what each block and its attentions read beside them.
        at (T,) or (B, T): positions; None: 0, 1, 2, ... extra (B, T, C): added to the token
        vectors. memory (B, S, C), memory_mask (B, S): what the cross-attention reads, without
        positions; each row of the mask needs a True. past: n_layer dictionaries that keep keys and
        values: idx continues what they hold, and at has the positions of all S tokens."""
        T, config, n = idx.size(1), self.config, len(self.blocks)
        if config.random_positions and at is None:
            at = nets.positions.spread(idx, mask, config.random_positions, self.training)
        j = torch.arange(T, device=idx.device) if at is None else at  # of keys
        i = j[..., -T:]  # of queries
        x = self.positions.embed(self.token_vectors(idx), i)  # Place 1
        x = self.dropout(self.embedding_norm(x if extra is None else x + extra))

        def read_with(pos):  # Places 2 and 3, and what is hidden
            kernel = choose_flex(self, pos, T, mask) if at is None and not need_weights else None
            bias = None if kernel else shared_bias(self, pos, i, j, mask)
            return dict(where=(pos, i, j), bias=bias, need_weights=need_weights, kernel=kernel)

        args = [read_with(self.positions)] * n
        if every := config.nope_every:  # Yang et al. 2025, "RNoPE"
            args[every - 1 :: every] = [read_with(NoPE(config, self.causal))] * (n // every)
        cross = {} if memory is None else dict(memory=memory, need_weights=need_weights)
        if memory_mask is not None:
            hidden = ~memory_mask[:, None, None]  # (B, 1, 1, S)
            cross["bias"] = x.new_zeros(()).masked_fill(hidden, -math.inf)
        return x, args, cross, past or [None] * n

    def token_vectors(self, idx):
        """idx (B, T) -> (B, T, C), without positions."""
        x = self.embedding(idx)  # (B, T, C)
        if self.config.head == "clap":
            x = F.normalize(x, dim=-1)
        if self.config.zero_mask:
            x = x * (idx != self.config.mask_id)[:, :, None]
        return x + self.segments(idx) if self.segments else x


class Encoder(Transformer):
    """Every token sees every other token."""


class Decoder(Transformer):
    """A token sees itself and the tokens before it."""

    causal = True


# ------------------------------------------------------------------------------------- 4. Heads
class LMHead(nn.Module):
    """Hidden states to words: h W^T + b. RoBERTa transforms h first; CLAP learns only a scalar."""

    def __init__(self, config, embedding):
        super().__init__()
        C, V = config.n_embd, config.vocab_size
        self.transform = nn.Sequential()  # empty: h stays as it is
        if config.head == "roberta":
            self.transform.extend([nn.Linear(C, C), nn.GELU(), nn.LayerNorm(C, config.norm_eps)])
        self.words = embedding if config.tie else nn.Embedding(V, C)
        self.beta = nn.Parameter(torch.ones(())) if config.head == "clap" else None
        if config.omit_mask:  # exp(-1e4) = 0: the mask token is never predicted
            self.bias = nn.Buffer(-1e4 * (torch.arange(V) == config.mask_id), persistent=False)
        else:
            self.bias = None if config.head == "clap" else nn.Parameter(torch.zeros(V))

    def project(self, h):
        """h (..., C) -> what F.linear reads: features (..., C), weight (V, C), bias (V,)."""
        if self.beta is not None:  # CLAP
            return self.beta * h, F.normalize(self.words.weight, dim=-1), self.bias
        return self.transform(h), self.words.weight, self.bias

    def forward(self, h):
        """h (..., C) -> logits (..., V)."""
        return F.linear(*self.project(h))


# ----------------------------------------------------------------------------- 5. LanguageModel
class LanguageModel(nn.Module):
    """A head on an Encoder (masked LM) or a Decoder (causal LM). Draws new weights for both."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, LMHead(body.config, body.embedding)
        init_weights(self, body.config)

    def forward(self, idx, mask=None, **more):
        """idx (B, T), mask (B, T) -> logits (B, T, V). more: other inputs of the body."""
        return self.head(self.body(idx, mask, **more))

    def losses(self, idx, targets, mask=None, smoothing=0.0, compute=linear_cross_entropy, **more):
        """Return the (N,) cross-entropies in nats of the N targets (B, T) that are not negative.
        smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7)."""
        targets = targets.view_as(idx).flatten()
        picked = not_ignored(targets)  # (N,), on the CPU: no GPU sync
        targets, picked = send(targets[picked], idx.device), send(picked, idx.device)
        h = self.body(idx, mask, picked=picked, **more)  # (N, C): no logits of other tokens
        return compute(*self.head.project(h), targets, smoothing)

    def loss(self, *args, **more):
        """Return the sum of `losses`; compute its gradient without storing all logits."""
        compute = LinearCrossEntropySum.apply if torch.is_grad_enabled() else linear_cross_entropy
        return self.losses(*args, compute=compute, **more).sum()  # in training, already a sum


def init_weights(model, config):
    """Draw weights, zero biases. Layers that add to the residual stream start smaller (GPT-2)."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            adds = name.endswith(("attention.out", ".feed_forward.down"))  # cross_attention too
            std = config.init_std / (math.sqrt(2 * config.n_layer) if adds else 1)
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


import nets.positions  # noqa: E402  adds to POSITIONS
