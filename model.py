"""The transformer, to be read from top to bottom. It needs nothing but torch.

Attention alone does not know the order of the tokens. Positions enter in exactly three places, the
three methods of a position encoding. NoPE uses none; a decoder then has only its causal mask.

Shapes: B sequences of T tokens, C = n_embd channels, H heads of D = C / H channels, V words;
queries attend to S keys. Masks are boolean, True = may attend. Negative targets are ignored.

The scripts run what stands here, so an edit here changes what they do. Their options (windows,
caches, more encodings, ...) are classes in nets/ that import this file and replace a method;
nets/build.py chooses them. On a GPU, for blocks of more than 256 tokens and for more than 7,000
words, faster kernels are such options too, unless --no-kernels is given. A run prints which
options it has when it starts.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


# ------------------------------------------------------------------------------------ 1. Config
class ConfigError(ValueError):
    """A Config has values that do not fit together. The scripts print its message alone; every
    other error keeps its traceback."""


@dataclass
class Config:
    """The architecture. Raises ConfigError."""

    pos: str = "learned"  # one of POSITIONS
    n_layer: int = 4  # number of blocks
    n_head: int = 2  # attention heads per block
    n_embd: int = 64  # width of the hidden states
    n_ffn: int = 0  # width of the feed-forward layer; 0: four times n_embd
    block_size: int = 32  # longest sequence, in tokens; the learned position table ends here
    vocab_size: int = 5000  # number of words V
    dropout: float = 0.0  # dropout of embeddings and sublayer outputs
    attn_dropout: float = 0.0  # dropout of attention weights
    norm_first: bool = True  # layer norm before each sublayer (GPT-2), not after (BERT, RoBERTa)
    norm_eps: float = 1e-5  # added to the variance in every layer norm
    activation: str = "gelu"  # of the feed-forward layer, one of ACTIVATIONS
    alibi: str = "offset"  # form of ALiBi in an encoder, one of ALiBi.FORMS
    rope_base: float = 10000.0  # base of the rotary angles; a larger one turns more slowly
    head: str = "linear"  # output head, one of HEADS
    tie: bool = True  # the head uses the embedding's word vectors
    init_std: float = 0.05  # standard deviation of the initial weights

    def __post_init__(self):
        if self.n_ffn == 0:
            self.n_ffn = 4 * self.n_embd
        choices = {"pos": POSITIONS, "head": HEADS, "activation": ACTIVATIONS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} must be one of {', '.join(allowed)}")
        if self.n_head < 1 or self.n_embd < 1 or self.n_embd % self.n_head:
            raise ConfigError(f"n_head must divide n_embd, got {self.n_head} and {self.n_embd}")
        if self.head == "clap" and not self.tie:
            raise ConfigError("head=clap compares with the token embeddings: it needs tie")


ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


# --------------------------------------------------------------------------------- 2. Positions
class NoPE(nn.Module):
    """No position encoding, and the base of all others, which override the places where they act.
    i (T,) or (B, T) are the positions of the queries, j (S,) or (B, S) those of the keys."""

    label = "NoPE"  # in figures
    color = "#777777"
    ends = False  # whether it cannot go beyond block_size

    def __init__(self, config, causal):
        """Raise ConfigError for a Config that the encoding cannot use."""
        super().__init__()

    def embed(self, x, i):
        """Place 1: token vectors x (B, T, C) -> (B, T, C), with vectors added."""
        return x

    def turn(self, q, k, i, j):
        """Place 2: q (B, H, T, D) and k (B, H, S, D) -> the same, rotated or scaled."""
        return q, k

    def bias(self, i, j):
        """Place 3: return what is added to the scores, a float (1 or B, 1 or H, T, S) or 0.0."""
        return 0.0


class Learned(NoPE):
    """A trained vector per position."""

    label = "learned"
    color = "#4477AA"
    ends = True

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.vectors = nn.Embedding(config.block_size, config.n_embd)

    def embed(self, x, i):
        longest = len(self.vectors.weight)
        # Only 0, 1, 2, ... are checked. Who gives other positions keeps them below block_size
        if i.dim() == 1 and len(i) > longest:
            raise ValueError(f"learned positions end at block_size={longest}, got {len(i)} tokens")
        return x + self.vectors(i)


class Sinusoidal(NoPE):
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5)."""

    label = "sinusoidal"
    color = "#66CCEE"

    def embed(self, x, i):
        C = x.size(-1)  # token vectors must be as large as the sinusoids (section 3.4)
        return x * math.sqrt(C) + sinusoids(i, C).to(x.dtype)


class ALiBi(NoPE):
    """A penalty on the distance of query i and key j, with a slope m per head (Press et al. 2022).

    causal      -m (i - j)
    symmetric   -m |i - j|
    offset      -m (|i - j| - 0.5 [j > i]), so a later key counts as half a token nearer
    """

    label = "ALiBi"
    color = "#EE6677"
    FORMS = ("offset", "symmetric")  # of an encoder

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.form = "causal" if causal else config.alibi
        if self.form not in ("causal", *self.FORMS):
            raise ConfigError(f"alibi must be one of {', '.join(self.FORMS)}")
        self.slopes = nn.Buffer(alibi_slopes(config.n_head), persistent=False)  # (H,)

    def bias(self, i, j):
        d = i[..., :, None] - j[..., None, :]  # (T, S) or (B, T, S), positive for the past
        distance = d.abs()
        if self.form == "offset":
            distance = distance - 0.5 * (d < 0)
        bias = -self.slopes[:, None, None] * distance.unsqueeze(-3)  # (H, T, S) or (B, H, T, S)
        return bias.view(-1, *bias.shape[-3:])  # (1 or B, H, T, S)


class Rotary(NoPE):
    """Turn q and k by angles that grow with the position. Their product then depends on the
    distance of query and key alone (Su et al. 2021)."""

    label = "rotary"
    color = "#228833"

    def __init__(self, config, causal):
        super().__init__(config, causal)
        self.D = config.n_embd // config.n_head
        self.base = config.rope_base
        if self.D % 2:
            raise ConfigError("n_embd / n_head must be even: pos=rope rotates pairs of channels")

    def angles(self, i):
        """Return the angles (..., D/2) of positions i."""
        return position_angles(i, self.D, self.base)

    def turn(self, q, k, i, j):
        if q.size(2) != k.size(2):  # with a cache, only the last of S tokens are queries
            return rotate(q, self.angles(i)), rotate(k, self.angles(j))
        # As many queries as keys: rotate both in one call, which is faster
        positions = torch.stack([i, j])  # (2, T) or (2, B, T)
        if positions.dim() == 2:
            positions = positions[:, None]  # (2, 1, T): the same in every sequence
        q, k = rotate(torch.stack([q, k]), self.angles(positions))  # (2, B, H, T, D)
        return q, k


POSITIONS = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "alibi": ALiBi,
    "nope": NoPE,
    "rope": Rotary,
}


def position_angles(i, D, base=10000.0):
    """Return (..., D/2) angles i / base^(2n / D) of positions i. A larger n turns more slowly."""
    return i[..., None] * base ** (-torch.arange(0, D, 2, device=i.device) / D)


def sinusoids(i, C):
    """Return (..., C) sines and cosines of the angles of positions i."""
    angles = position_angles(i, C)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # (..., C/2, 2)
    return waves.flatten(-2)[..., :C]  # C may be odd


def rotate(x, angles):
    """Rotate channels (n, n + D/2) of x (..., H, T, D) by angles (..., T, D/2) (Su et al. 2021,
    equation 34; they pair channels 2n and 2n + 1)."""
    cos = angles.cos().to(x.dtype).unsqueeze(-3)  # (..., 1, T, D/2)
    sin = angles.sin().to(x.dtype).unsqueeze(-3)
    a, b = x.chunk(2, dim=-1)  # 2 of (..., H, T, D/2)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def alibi_slopes(n_head):
    """Return the (n_head,) slopes m of Press et al. 2022, section 3.

    For a power of two H: 2^(-8/H), 2^(-16/H), ..., 2^(-8). For other H, as in the authors' code:
    the slopes of the largest power of two up to H, then every second slope of the next power."""
    power = 2 ** int(math.log2(n_head))
    steps = [k + 1 for k in range(power)]
    steps += [k + 0.5 for k in range(n_head - power)]  # of the other heads, halfway between
    return torch.tensor([2 ** (-8 * step / power) for step in steps])


# --------------------------------------------------------------------------------- 3. Attention
@dataclass
class Where:
    """What every attention reads beside the tokens. Options of nets/ add to it: a memory, a Where
    without positions, a kernel in place of the bias."""

    positions: NoPE  # the encoding
    i: torch.Tensor  # positions of the queries, (T,) or (B, T)
    j: torch.Tensor  # positions of the keys, (S,) or (B, S)
    bias: torch.Tensor  # added to the scores: that of the positions, and -inf where hidden


class Attention(nn.Module):
    """Every token gets a weighted mean of what all tokens offer, H times in parallel."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.attn_dropout = config.attn_dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)  # q, k and v of all heads at once
        self.out = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x, where):
        """x (B, T, C) -> (B, T, C)."""
        q, k, v = self.heads(x)
        y = self.mix(q, k, v, where)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(x.shape))  # (B, T, C)

    def heads(self, x):
        """x (B, T, C) -> q, k, v, each (B, H, T, D)."""
        return tuple(split_heads(t, self.n_head) for t in self.qkv(x).chunk(3, dim=-1))

    def mix(self, q, k, v, where):
        """q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D)."""
        q, k = where.positions.turn(q, k, where.i, where.j)  # place 2
        return self.attend(q, k, v, where.bias)

    def attend(self, q, k, v, bias):
        """Return softmax(q k^T / sqrt(D) + bias) v (Vaswani et al. 2017, equation 1).

        bias (1 or B, 1 or H, T, S) hides a key by -inf. PyTorch's kernel does not store the
        weights. To try another formula, write it out in place of the last line (and on a GPU or
        for long blocks add --no-kernels to the command):

            scores = q @ k.mT / math.sqrt(q.size(-1)) + bias  # (B, H, T, S)
            weights = scores.softmax(dim=-1)  # the weights of each query sum to 1
            return F.dropout(weights, dropout) @ v  # (B, H, T, D)
        """
        dropout = self.attn_dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, bias, dropout)


def split_heads(x, n_head):
    """x (B, T, C) -> (B, H, T, D): head h reads channels hD to (h + 1)D."""
    B, T, C = x.shape
    return x.view(B, T, n_head, C // n_head).transpose(1, 2)


# ------------------------------------------------------------------------------- 4. Transformer
class Block(nn.Module):
    """Attention moves information between tokens; the feed-forward layer works on each alone."""

    def __init__(self, config, attention):
        super().__init__()
        C = config.n_embd
        self.norm_first = config.norm_first
        self.norm1 = nn.LayerNorm(C, config.norm_eps)
        self.attention = attention
        self.norm2 = nn.LayerNorm(C, config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, where, picked=None):
        """x (B, T, C) -> (B, T, C). picked (N,): indices into the B * T tokens, the only ones that
        the feed-forward layer reads, -> (N, C)."""
        x = self.residual(x, self.norm1, self.attention, where)
        if picked is not None:
            x = x.flatten(0, 1).index_select(0, picked)  # (B, T, C) -> (N, C)
        return self.residual(x, self.norm2, self.feed_forward)

    def residual(self, x, norm, sublayer, *inputs):
        """Add a sublayer's output to x. The norm comes before it (GPT-2) or after the sum (BERT).
        inputs: what the sublayer reads beside x."""
        if self.norm_first:
            return x + self.dropout(sublayer(norm(x), *inputs))
        return norm(x + self.dropout(sublayer(x, *inputs)))


class FeedForward(nn.Sequential):
    """Two linear layers with a nonlinearity between them, for each token alone."""

    def __init__(self, config):
        super().__init__()  # an nn.Sequential calls its layers in the order of these lines
        self.up = nn.Linear(config.n_embd, config.n_ffn)
        self.act = ACTIVATIONS[config.activation]()
        self.down = nn.Linear(config.n_ffn, config.n_embd)


def make_block(config, layer):
    """Return the Block of a layer, counted from 0. Here, all are alike."""
    return Block(config, Attention(config))


class Transformer(nn.Module):
    """Token ids to hidden states. positions: a class of encoding, else that which the Config names.
    make_block: what makes the blocks."""

    causal = False

    def __init__(self, config, positions=None, make_block=make_block):
        super().__init__()
        C = config.n_embd
        if positions is None:
            positions = POSITIONS[config.pos]
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, C)
        self.positions = positions(config, self.causal)
        self.embedding_norm = nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(make_block(config, n) for n in range(config.n_layer))
        self.norm = nn.Identity()
        if config.norm_first:
            self.norm = nn.LayerNorm(C, config.norm_eps)
        elif config.head != "clap":  # BERT normalises its embeddings; CLAP's have length 1
            self.embedding_norm = nn.LayerNorm(C, config.norm_eps)

    def forward(self, idx, mask=None, picked=None, **inputs):
        """idx (B, T) long -> h (B, T, C). mask (B, T): True on tokens, False on padding after them.
        picked (N,): return only these of the B * T tokens, (N, C). inputs: see `start`."""
        x, where = self.start(idx, mask, **inputs)
        *earlier_blocks, last_block = self.blocks
        for block in earlier_blocks:
            x = block(x, where)
        x = last_block(x, where, picked)  # only here tokens may be left out: none reads them later
        return self.norm(x)

    def start(self, idx, mask=None, at=None, extra=None):
        """Return the embeddings (B, T, C) and the Where that all blocks read. at (S,) or (B, S):
        positions of the keys, the last T of them those of the tokens idx; None: see `number`.
        extra (B, T, C): added to the token vectors."""
        T = idx.size(1)
        if at is None:
            at = self.number(idx, mask)
        i = at[..., -T:]  # of the queries
        x = self.positions.embed(self.token_vectors(idx), i)  # place 1
        if extra is not None:
            x = x + extra
        x = self.dropout(self.embedding_norm(x))
        return x, Where(self.positions, i, at, self.bias(self.positions, i, at, mask))

    def number(self, idx, mask):
        """idx (B, T) -> the positions of its tokens, (T,) or (B, T). Here they are 0, 1, 2, ..."""
        return torch.arange(idx.size(1), device=idx.device)

    def token_vectors(self, idx):
        """idx (B, T) -> (B, T, C), without positions."""
        x = self.embedding(idx)  # (B, T, C)
        if self.config.head == "clap":
            x = F.normalize(x, dim=-1)
        return x

    def bias(self, positions, i, j, mask):
        """Return what is added to the scores of the blocks (1 or B, 1 or H, T, S): the bias of the
        positions, and -inf where a query may not attend to a key. positions: those of the model,
        or NoPE for blocks without (nope_every in nets/longer.py)."""
        bias = positions.bias(i, j)  # place 3
        bias = torch.where(self.may_attend(i, j, mask), bias, -math.inf)
        return bias.to(self.embedding.weight.dtype)  # that of q and k, such as bfloat16

    def may_attend(self, i, j, mask):
        """Return which keys each query may attend to, (1 or B, 1, T, S), True = may. The last T of
        the S keys are the queries' own tokens. mask (B, S): True on tokens, False on padding."""
        T, S = i.size(-1), j.size(-1)
        may = torch.ones(1, 1, T, S, dtype=torch.bool, device=i.device)
        if self.causal:
            may = may.tril(S - T)  # no key after the query
        if mask is not None:
            # Padding sees itself, and nobody reads it. If it saw nothing, its softmax would be NaN
            itself = torch.eye(S, dtype=torch.bool, device=i.device)[S - T :]  # (T, S)
            may = may & (mask[:, None, None] | itself)  # (B, 1, T, S)
        return may


class Encoder(Transformer):
    """Every token sees every other token."""


class Decoder(Transformer):
    """A token sees itself and the tokens before it."""

    causal = True


# ------------------------------------------------------------------------------------- 5. Heads
class LMHead(nn.Module):
    """Hidden states to words: h W^T + b. embedding: its word vectors W (V, C) are shared if tied.
    transform: layers that h passes first."""

    def __init__(self, config, embedding, transform=()):
        super().__init__()
        self.transform = nn.Sequential(*transform)
        self.words = embedding
        if not config.tie:
            self.words = nn.Embedding(config.vocab_size, config.n_embd)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def project(self, h):
        """h (..., C) -> what F.linear reads: features (..., C), weight (V, C), bias (V,)."""
        return self.transform(h), self.words.weight, self.bias

    def forward(self, h):
        """h (..., C) -> logits (..., V)."""
        return F.linear(*self.project(h))


class RobertaHead(LMHead):
    """Transforms h by another layer first (Liu et al. 2019)."""

    def __init__(self, config, embedding):
        C = config.n_embd
        layers = [nn.Linear(C, C), nn.GELU(), nn.LayerNorm(C, config.norm_eps)]
        super().__init__(config, embedding, transform=layers)


class ClapHead(LMHead):
    """Compares h with the normalised vector of each word. It trains only a scalar, beta."""

    def __init__(self, config, embedding):
        super().__init__(config, embedding)
        self.bias = None  # in place of the words' biases
        self.beta = nn.Parameter(torch.ones(()))

    def project(self, h):
        return self.beta * h, F.normalize(self.words.weight, dim=-1), self.bias


HEADS = {"linear": LMHead, "roberta": RobertaHead, "clap": ClapHead}


# ----------------------------------------------------------------------------- 6. LanguageModel
class LanguageModel(nn.Module):
    """A head on an Encoder (masked LM) or a Decoder (causal LM). Draws new weights for both.
    head: another than that which the body's Config names."""

    def __init__(self, body, head=None):
        super().__init__()
        if head is None:
            head = HEADS[body.config.head](body.config, body.embedding)
        self.body = body
        self.head = head
        init_weights(self, body.config)

    def forward(self, idx, mask=None, **inputs):
        """idx (B, T), mask (B, T) -> logits (B, T, V). inputs: others of the body."""
        return self.head(self.body(idx, mask, **inputs))

    def losses(self, idx, targets, mask=None, smoothing=0.0, **inputs):
        """Return the (N,) cross-entropies in nats of the N targets (B, T) that are not negative.
        smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7)."""
        if targets.shape != idx.shape:
            raise ValueError(f"targets {tuple(targets.shape)} for tokens {tuple(idx.shape)}")
        targets = targets.flatten().to(idx.device)
        picked = (targets >= 0).nonzero().squeeze(1)  # (N,)
        h = self.body(idx, mask, picked, **inputs)  # (N, C): no logits of other tokens
        logits = self.head(h)  # (N, V)
        targets = targets[picked]
        return F.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)

    def loss(self, idx, targets, mask=None, smoothing=0.0, **inputs):
        """Return the sum of `losses`, which training makes small."""
        return self.losses(idx, targets, mask, smoothing, **inputs).sum()


def init_weights(model, config):
    """Draw weights, zero biases. Layers that add to the residual stream start smaller (GPT-2)."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            std = config.init_std
            if name.endswith(("attention.out", "feed_forward.down")):
                std = std / math.sqrt(2 * config.n_layer)
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
