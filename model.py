"""The transformer, to be read from top to bottom.

Attention alone does not know the order of the tokens. Positions enter in exactly three places,
which `Transformer.forward` combines. NoPE uses none; a decoder then has only its causal mask.

    Place 1: vectors added to the tokens     learned, sinusoidal
    Place 2: a bias added to the scores      ALiBi, windows
    Place 3: angles that rotate q and k      rotary ("rope")

Shapes: B sequences of T tokens, C = n_embd channels, H heads of D = C / H channels, V words.
Masks are boolean, True = may attend. Negative targets, such as -100, are ignored.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from nets.cross_entropy import LinearCrossEntropySum, linear_cross_entropy
from nets.device import send

# ------------------------------------------------------------------------------------ 1. Config
POSITIONS = ("learned", "sinusoidal", "alibi", "rope", "nope")
ALIBI_VARIANTS = ("offset", "symmetric", "one-sided")
HEADS = ("linear", "roberta", "clap", "plain-clap")
CHOICES = dict(pos=POSITIONS, alibi=ALIBI_VARIANTS, head=HEADS, activation=("gelu", "relu"))


@dataclass
class Config:
    """All architecture options; make_config in lab/limits.py checks all values, also together."""

    # fmt: off
    vocab_size: int = 5000
    block_size: int = 32       # longest training sequence; the learned position table ends here
    n_layer: int = 4           # blocks
    n_head: int = 2            # attention heads per block
    n_embd: int = 64           # width of the hidden states
    n_ffn: int = 0             # width of the feed-forward layer; 0: 4 * n_embd
    pos: str = "learned"       # one of POSITIONS
    alibi: str = "offset"      # one of ALIBI_VARIANTS, for encoders; a decoder's ALiBi is causal
    window: int = 0            # attend only to tokens fewer than this many positions away; 0: all
    n_language: int = 0        # languages with their own vector (nets/two_languages.py); 0: none
    norm_first: bool = True    # pre-norm (GPT-2); False: post-norm (Vaswani, BERT, RoBERTa)
    activation: str = "gelu"   # gelu or relu
    norm_eps: float = 1e-5     # added to the variance in every layer norm
    dropout: float = 0.0       # on the embedding and on the output of each sublayer
    attn_dropout: float = 0.0  # on the attention weights
    head: str = "linear"       # one of HEADS
    tie: bool = True           # the head uses the embedding's word vectors
    unit_embd: bool = False    # normalise token vectors to length 1 (CLAP)
    scale_embd: bool = False   # multiply token vectors by sqrt(n_embd), as sinusoidal does
    unscaled: bool = False     # sinusoidal: do not multiply them
    zero_mask: bool = False    # the mask token enters as the zero vector (zero-CLAP)
    omit_mask: bool = False    # the mask token is not an output word; output words have no bias
    mask_id: int = 2           # id of the mask token
    init_std: float = 0.05     # standard deviation of the initial weights
    # fmt: on

    def __post_init__(self):
        self.n_ffn = self.n_ffn or 4 * self.n_embd
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_head must divide n_embd, got {self.n_head} and {self.n_embd}")
        if self.pos == "rope" and self.n_embd // self.n_head % 2:
            raise ValueError("n_embd / n_head must be even: pos=rope rotates pairs of channels")


# --------------------------------------------------------------------------------- 2. Positions
def position_angles(T, D):
    """Return the (T, D/2) angles t / 10000^(2i / D) of token t. A larger i turns more slowly."""
    return torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)


def sinusoids(T, n_embd):
    """Return the (T, n_embd) table of Vaswani et al. 2017, 3.5: sines and cosines of the angles."""
    angles = position_angles(T, n_embd)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (T, C/2, 2) -> (T, C)


def alibi_slopes(n_head):
    """Return the (n_head,) slopes m of Press et al. 2022, section 3.

    For a power of two n: 2^(-8/n), 2^(-16/n), ..., 2^(-8). For other n, as in the authors' code:
    the slopes of the largest power of two below n, then every second slope of the next power.
    """
    n = 2 ** int(math.log2(n_head))  # the other heads have slopes between these
    steps = [k + 1 for k in range(n)] + [k + 0.5 for k in range(n_head - n)]
    return torch.tensor([2 ** (-8 * step / n) for step in steps])


def alibi_bias(n_head, T, variant):
    """Return the (n_head, T, T) bias on the scores of query i and key j, minus slope * distance.

    causal      -m (i - j), and -inf for j > i  (Press et al. 2022)
    symmetric   -m |i - j|
    offset      -m (|i - j| - 0.5 [j > i]), so a later key counts as half a token nearer
    one-sided   half of the heads see only j <= i, half only j >= i; slopes of n_head / 2 heads
    """
    distance = torch.arange(T)[:, None] - torch.arange(T)  # (T, T): i - j, positive for the past
    if variant == "one-sided":
        bias = -alibi_slopes(n_head // 2).repeat(2)[:, None, None] * distance.abs()  # (H, T, T)
        bias[: n_head // 2].masked_fill_(distance < 0, -math.inf)
        bias[n_head // 2 :].masked_fill_(distance > 0, -math.inf)
        return bias
    nearer = {"offset": 0.5, "symmetric": 0, "causal": 0}[variant]  # how much a later key is
    bias = -alibi_slopes(n_head)[:, None, None] * (distance.abs() - nearer * (distance < 0))
    return bias.masked_fill_(distance < 0, -math.inf) if variant == "causal" else bias


def score_bias(T, pos, n_head, variant, window):
    """Return the (1, H or 1, T, T) bias of ALiBi, the window and the causal mask together."""
    bias = alibi_bias(n_head, T, variant) if pos == "alibi" else torch.zeros(1, T, T)
    W = window or T  # query i sees keys i - W + 1 to i (causal), or to i + W - 1
    seen = torch.ones(T, T, dtype=torch.bool).triu(1 - W).tril(0 if variant == "causal" else W - 1)
    return bias.masked_fill_(~seen, -math.inf)[None]


def rotate(x, angles):
    """Rotate channels (i, i + D/2) of x (B, H, T, D) by angles (T, D/2): Su et al. 2021, eq. 34."""
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    a, b = x.chunk(2, dim=-1)  # 2 of (B, H, T, D/2); the paper pairs channels 2i and 2i + 1
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


# --------------------------------------------------------------------------------- 3. Attention
def attend(q, k, v, bias=None, dropout=0.0):
    """Compute softmax(q k^T / sqrt(D) + bias) v (Vaswani et al. 2017, equation 1).

    q (B, H, T, D); k, v (B, H, S, D); bias broadcastable to (B, H, T, S), -inf hides a key.
    Returns the output (B, H, T, D) and the weights (B, H, T, S), whose rows sum to 1.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ v, weights


class Attention(nn.Module):
    """Multi-head attention of a sequence to itself, or to a memory (cross-attention)."""

    def __init__(self, config, causal=False):
        super().__init__()
        self.n_head, self.attn_dropout, self.causal = config.n_head, config.attn_dropout, causal
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)  # q, k and v of all heads at once
        self.out = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x, bias=None, angles=None, need_weights=False, memory=None, kernel=None):
        """x (B, T, C) -> the output (B, T, C), and the weights (B, H, T, S) or None.

        Queries come from x; keys and values come from x too, or from memory (B, S, C).
        In a causal layer, a bias must also hide the future. kernel: see nets/long_attention.py.
        """
        (B, T, C), H = x.shape, self.n_head
        if memory is None:
            q, k, v = self.qkv(x).split(C, dim=-1)  # 3 of (B, T, C)
        else:
            q = F.linear(x, self.qkv.weight[:C], self.qkv.bias[:C])  # (B, T, C)
            kv = F.linear(memory, self.qkv.weight[C:], self.qkv.bias[C:])  # (B, S, 2C)
            k, v = kv.split(C, dim=-1)  # 2 of (B, S, C)
        q, k, v = (t.view(B, -1, H, C // H).transpose(1, 2) for t in (q, k, v))  # (B, H, T or S, D)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        dropout = self.attn_dropout if self.training else 0.0
        if need_weights:
            if self.causal and bias is None:
                bias = torch.full((T, T), -math.inf, dtype=x.dtype, device=x.device).triu(1)
            y, weights = attend(q, k, v, bias, dropout)
        else:  # PyTorch's kernel takes a bias or is_causal, not both
            kernel = kernel or F.scaled_dot_product_attention
            y = kernel(q, k, v, bias, dropout, is_causal=self.causal and bias is None)
            weights = None
        return self.out(y.transpose(1, 2).reshape(B, T, C)), weights  # (B, H, T, D) -> (B, T, C)


# ------------------------------------------------------------------------------- 4. Transformer
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
        act = nn.ReLU() if config.activation == "relu" else nn.GELU()
        up, down = nn.Linear(C, config.n_ffn), nn.Linear(config.n_ffn, C)
        self.feed_forward = nn.Sequential(OrderedDict(up=up, act=act, down=down))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, cross=None, picked=None, **args):
        """x (B, T, C) -> (B, T, C) and the attention weights; with cross, those of both attentions.

        args, cross: arguments of the self- and the cross-attention. picked (N,): indices into the
        B * T tokens; the feed-forward layer reads only these, and the result is (N, C).
        """
        pre = self.norm_first  # normalise the input of each sublayer, or the sum after it
        a, weights = self.attention(self.norm1(x) if pre else x, **args)
        x = x + self.dropout(a) if pre else self.norm1(x + self.dropout(a))
        if cross:
            a, cross_weights = self.cross_attention(self.cross_norm(x) if pre else x, **cross)
            x = x + self.dropout(a) if pre else self.cross_norm(x + self.dropout(a))
        if picked is not None:
            x = x.flatten(0, 1).index_select(0, picked)  # (B, T, C) -> (N, C)
        a = self.feed_forward(self.norm2(x) if pre else x)
        x = x + self.dropout(a) if pre else self.norm2(x + self.dropout(a))
        return x, ((weights, cross_weights) if cross else weights)


class Transformer(nn.Module):
    """Token ids to hidden states. With cross, every block also reads a memory."""

    causal = False

    def __init__(self, config, cross=False):
        super().__init__()
        C, self.config, self.tables = config.n_embd, config, {}  # tables: see `table`
        self.embedding = nn.Embedding(config.vocab_size, C)
        if config.pos == "learned":
            self.positions = nn.Embedding(config.block_size, C)
        # Post-norm starts from a normalised embedding (BERT), but CLAP from the vectors themselves
        plain = config.norm_first or config.unit_embd or config.head == "plain-clap"
        self.embedding_norm = nn.Identity() if plain else nn.LayerNorm(C, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        blocks = (Block(config, cross, self.causal) for _ in range(config.n_layer))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(C, config.norm_eps) if config.norm_first else nn.Identity()

    def forward(self, idx, mask=None, need_weights=False, **more):
        """idx (B, T) long -> h (B, T, C). mask (B, T): True on tokens, False on padding after them.

        need_weights: return (h, maps), n_layer maps (B, H, T, T). more: see `run_blocks`.
        """
        T, x = idx.size(1), self.token_vectors(idx)
        if (vectors := self.position_vectors(T)) is not None:  # Place 1
            x = x + vectors
        kernel, bias = self.choose_kernel(T, mask, need_weights)  # Place 2
        angles = self.angles(T)  # Place 3
        args = dict(bias=bias, angles=angles, need_weights=need_weights, kernel=kernel)
        return self.run_blocks(x, args, **more)

    def run_blocks(self, x, args, need_states=False, memory=None, memory_mask=None, picked=None):
        """x (B, T, C) -> h (B, T, C), or with picked (N,) only these of the B * T tokens, (N, C).

        need_states: return (h, states), the n_layer + 1 states before, between and after blocks.
        memory (B, S, C), memory_mask (B, S): what the cross-attention reads, without positions.
        Each row of the mask needs a True. The maps are then pairs (B, H, T, T), (B, H, T, S).
        """
        cross = {} if memory is None else dict(memory=memory, need_weights=args["need_weights"])
        if memory_mask is not None:
            zeros = x.new_zeros(len(x), 1, 1, memory.size(1))  # (B, 1, 1, S)
            cross["bias"] = zeros.masked_fill(~memory_mask[:, None, None], -math.inf)
        x = self.dropout(self.embedding_norm(x))
        maps, states = [], [x]
        for block in self.blocks:  # only the last may skip tokens: later attention would read them
            x, weights = block(x, cross, picked if block is self.blocks[-1] else None, **args)
            maps.append(weights)
            states.append(x)
        h = self.norm(x)
        if args["need_weights"]:
            return h, maps
        return (h, states) if need_states else h

    def token_vectors(self, idx):
        """idx (B, T) -> (B, T, C), without positions."""
        x = self.embedding(idx)  # (B, T, C)
        if self.config.unit_embd:
            x = F.normalize(x, dim=-1)
        if self.config.scale_embd or (self.config.pos == "sinusoidal" and not self.config.unscaled):
            x = x * math.sqrt(self.config.n_embd)  # as large as the sinusoids (Vaswani, 3.4)
        if self.config.zero_mask:
            x = x * (idx != self.config.mask_id)[:, :, None]
        return x

    def position_vectors(self, T):
        """Place 1: return vectors (T, C) to add to the tokens, or None."""
        if self.config.pos == "sinusoidal":
            return self.table(sinusoids, T, self.config.n_embd)[:T].to(self.embedding.weight.dtype)
        if self.config.pos == "learned":
            if T > (n := self.config.block_size):
                raise ValueError(f"learned positions end at block_size={n}, got {T} tokens")
            return self.positions.weight[:T]

    def choose_kernel(self, T, mask, need_weights):
        """Return (kernel, bias); None is PyTorch's kernel. nets/long_attention.py replaces this."""
        return None, self.attention_bias(T, mask)

    def attention_bias(self, T, mask=None):
        """Place 2: return a bias (1 or B, 1 or H, T, T) to add to the scores, or None."""
        c, variant = self.config, "causal" if self.causal else self.config.alibi
        if mask is None and c.pos != "alibi" and not c.window:
            return None
        bias = self.table(score_bias, T, c.pos, c.n_head, variant, c.window)[:, :, :T, :T]
        bias = bias.to(self.embedding.weight.dtype)
        return bias if mask is None else bias.masked_fill(~self.visible(mask), -math.inf)

    def visible(self, mask):
        """Return (B, 1, T, T): which keys a token sees. Always itself: an empty softmax is NaN."""
        return mask[:, None, None] | torch.eye(mask.size(1), dtype=torch.bool, device=mask.device)

    def angles(self, T):
        """Place 3: return angles (T, D/2) that rotate q and k, or None."""
        if self.config.pos == "rope":
            return self.table(position_angles, T, self.config.n_embd // self.config.n_head)[:T]

    @torch.inference_mode(False)  # training cannot use a table made in inference mode
    def table(self, make, T, *args):
        """Return make(T, *args), or a cached table of more tokens, which must begin with it."""
        table, device = self.tables.get((make, args)), self.embedding.weight.device
        if table is None or table.size(-2) < T or table.device != device:
            table = self.tables[make, args] = make(T, *args).to(device)
        return table


class Encoder(Transformer):
    """Every token sees every other token."""


class Decoder(Transformer):
    """A token sees itself and the tokens before it."""

    causal = True


# ------------------------------------------------------------------------------------- 5. Heads
class LMHead(nn.Module):
    """Hidden states to words: h W^T + b. RoBERTa transforms h first; CLAP learns only a scalar."""

    def __init__(self, config, embedding):
        super().__init__()
        C, V, clap = config.n_embd, config.vocab_size, config.head.endswith("clap")
        self.transform = nn.Sequential()  # empty: h stays as it is
        if config.head == "roberta":
            self.transform.extend([nn.Linear(C, C), nn.GELU(), nn.LayerNorm(C, config.norm_eps)])
        self.words = embedding if config.tie else nn.Embedding(V, C)
        self.beta = nn.Parameter(torch.ones(())) if clap else None
        self.unit = config.head == "clap"  # plain-clap leaves the word vectors as they are
        if config.omit_mask:  # exp(-1e4) = 0: the mask token is never predicted
            self.bias = nn.Buffer(-1e4 * (torch.arange(V) == config.mask_id), persistent=False)
        else:
            self.bias = None if clap else nn.Parameter(torch.zeros(V))

    def project(self, h):
        """h (..., C) -> what F.linear reads: features (..., C), weight (V, C), bias (V,)."""
        weight = F.normalize(self.words.weight, dim=-1) if self.unit else self.words.weight
        h = self.transform(h) if self.beta is None else self.beta * h
        return h, weight, self.bias

    def forward(self, h):
        """h (..., C) -> logits (..., V)."""
        return F.linear(*self.project(h))


# ----------------------------------------------------------------------------- 6. LanguageModel
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

        smoothing: share of each target spread over all words (Szegedy et al. 2016, section 7).
        """
        targets = targets.view_as(idx).flatten()
        picked = (targets >= 0).nonzero().squeeze(1)  # (N,), on the CPU: no GPU sync
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
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
