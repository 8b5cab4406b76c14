"""The transformer, to be read from top to bottom.

    1. Config      every choice in one place, checked once
    2. Positions   four answers to "where is this token?", and rotary as a fifth
    3. Attention   explicit (the weights can be looked at) and fused (fast)
    4. Block, Encoder, Decoder, EncoderDecoder
    5. Heads       RoBERTa's, CLAP's, and a plain linear one
    6. Models      a body and a head, their initialisation and their size

Conventions: B sequences of T tokens (S in a source), C = n_embd channels, H = n_head heads of D = C // H
channels, V words. A mask is boolean and True means "may attend"; ALiBi is a float that is added to the scores;
a target of -100 is not predicted.
"""

import math
from dataclasses import dataclass, fields

import torch
import torch.nn as nn
import torch.nn.functional as F

from nets.cross_entropy import LinearCrossEntropySum, linear_cross_entropy

# ---------------------------------------------------------------------------- 1. Config

POSITIONS = ("learned", "sinusoidal", "alibi", "rope", "nope")
ALIBI_VARIANTS = ("offset", "symmetric", "one-sided")
HEADS = ("linear", "roberta", "clap")
LARGEST = 2**24  # no size of a model is larger


@dataclass
class Config:
    """Every choice the architecture leaves open. Raises ValueError with all that is wrong, by field."""

    vocab_size: int = 5000
    block_size: int = 32  # longest training sequence; learned positions end here
    n_layer: int = 4
    n_head: int = 2
    n_embd: int = 64
    n_ffn: int = 0  # width of the feed-forward layer; 0: 4 * n_embd
    pos: str = "learned"  # learned | sinusoidal | alibi | rope | nope
    alibi: str = "offset"  # offset | symmetric | one-sided; a decoder always has the causal form
    window: int = 0  # attend only to tokens less than this far away; 0: to all
    n_language: int = 0  # languages with a vector of their own, added to their words (XLM); 0: none
    norm_first: bool = True  # pre-norm (GPT-2); False: post-norm (Vaswani, BERT, RoBERTa)
    activation: str = "gelu"  # gelu | relu
    norm_eps: float = 1e-5  # what a layer norm adds to the variance before it divides by its root
    dropout: float = 0.0  # of embeddings and of what each sublayer adds
    attn_dropout: float = 0.0  # of attention weights
    head: str = "linear"  # linear | roberta | clap: from hidden states to words
    tie: bool = True  # the head's word vectors are the embedding's
    unit_embd: bool = False  # L2-normalise token embeddings before the transformer (CLAP)
    scale_embd: bool = False  # multiply them by sqrt(n_embd); sinusoidal always does
    zero_mask: bool = False  # the mask token enters as the zero vector (zero-CLAP)
    mask_id: int = 2  # which token that is
    init_std: float = 0.05  # standard deviation of initial weights

    def __post_init__(self):
        self.check_types()
        wrong = []
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                wrong.append(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("n_ffn", "window", "n_language", "norm_eps", "mask_id", "init_std"):
            if getattr(self, name) < 0:
                wrong.append(f"{name} must not be negative, got {getattr(self, name)}")
        for name, allowed in (
            ("pos", POSITIONS),
            ("alibi", ALIBI_VARIANTS),
            ("head", HEADS),
            ("activation", ("gelu", "relu")),
        ):
            if getattr(self, name) not in allowed:
                wrong.append(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        for name in ("dropout", "attn_dropout"):
            if not 0 <= getattr(self, name) < 1:
                wrong.append(f"{name} must be at least 0 and below 1, got {getattr(self, name)}")
        if self.n_head > 0 and self.n_embd % self.n_head:
            wrong.append(
                f"n_head must divide n_embd: {self.n_embd} channels do not share out among {self.n_head} heads"
            )
        elif self.pos == "rope" and self.n_head > 0 and (self.n_embd // self.n_head) % 2:
            wrong.append(
                "pos=rope rotates pairs of channels, so n_embd / n_head must be even, "
                f"got {self.n_embd // self.n_head}"
            )
        if self.pos == "sinusoidal" and self.n_embd % 2:
            wrong.append(
                f"pos=sinusoidal pairs a sine with a cosine, so n_embd must be even, got {self.n_embd}"
            )
        if self.pos == "alibi" and self.alibi == "one-sided" and self.n_head % 2:
            wrong.append(
                f"alibi=one-sided gives half of the heads to each side, so n_head must be even, got {self.n_head}"
            )
        if self.head == "clap" and not self.tie:
            wrong.append("head=clap compares with the token embeddings, so it needs tie")
        if wrong:
            raise ValueError("; ".join(wrong))
        self.n_ffn = self.n_ffn or 4 * self.n_embd

    def check_types(self):
        """What is no number, or too large a one, cannot be checked any further; a file may hold anything."""
        wrong = []
        for field in fields(self):
            value = getattr(self, field.name)
            if not (type(value) is field.type or field.type is float and type(value) is int):
                wrong.append(
                    f"{field.name} must be of type {field.type.__name__}, got {str(value)[:40]!r}"
                )
            elif field.type in (int, float) and not abs(value) <= LARGEST:
                wrong.append(f"{field.name} must be at most {LARGEST:,}, got {value}")
        if wrong:
            raise ValueError("; ".join(wrong))


# ---------------------------------------------------------------------------- 2. Positions


def sinusoids(T, n_embd):
    """(T, n_embd) table of Vaswani et al. 2017, section 3.5, with sines and cosines alternating.

    PE(t, 2i) = sin(t / 10000^(2i / n_embd)),  PE(t, 2i + 1) = cos(the same).
    """
    t = torch.arange(T, dtype=torch.float32)[:, None]
    frequency = 10000.0 ** (-torch.arange(0, n_embd, 2, dtype=torch.float32) / n_embd)
    return torch.stack([torch.sin(t * frequency), torch.cos(t * frequency)], dim=-1).view(T, n_embd)


def alibi_slopes(n_head):
    """(n_head,) slopes of Press et al. 2022, section 3 and their code for head counts that are no power of two.

    For n a power of two: 2^(-8/n), 2^(-16/n), ..., 2^(-8). Otherwise the slopes of the largest power of
    two below n come first, then every second one of the next power's.
    """
    power = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * (k + 1) / power) for k in range(power)]
    between = [2 ** (-8 * (k + 1) / (2 * power)) for k in range(0, 2 * power, 2)]
    return torch.tensor(slopes + between[: n_head - power])


def alibi_bias(n_head, T, variant):
    """(n_head, T, T) to be added to the scores: minus slope times distance, row i looking at column j.

    causal     -m (i - j), -inf for j > i            Press et al. 2022
    symmetric  -m |i - j|
    offset     -m (|i - j| - 0.5 [j > i])            the future is half a slope nearer, so that the
                                                     two neighbours of a word can be told apart
    one-sided  half of the heads see j <= i only, half j >= i only, each with the slopes of n_head / 2
    """
    t = torch.arange(T, dtype=torch.float32)
    distance = t[:, None] - t  # (T, T), positive towards the past
    future = distance < 0
    if variant == "one-sided":
        half = -alibi_slopes(n_head // 2)[:, None, None] * distance.abs()  # (H/2, T, T)
        return torch.cat(
            [half.masked_fill(future, -math.inf), half.masked_fill(distance > 0, -math.inf)]
        )
    penalty = distance.abs_()  # in place, here and below: of 8,192 tokens such a table has 268 MB
    if variant == "offset":
        penalty -= 0.5 * future
    bias = -alibi_slopes(n_head)[:, None, None] * penalty  # (H, T, T)
    return bias.masked_fill_(future, -math.inf) if variant == "causal" else bias


def rotate(x, angles):
    """Rotary positions (Su et al. 2021, equation 34): turn channel pair (i, i + D/2) of x (B, H, T, D) by angles (T, D/2),
    or by (B, 1, T, D/2), which differ from row to row."""
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    a, b = x.chunk(2, dim=-1)  # two of (B, H, T, D/2)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


# ---------------------------------------------------------------------------- 3. Attention


def attend(q, k, v, bias=None, dropout=0.0):
    """Attention written out (Vaswani et al. 2017, equation 1): softmax(q k^T / sqrt(D) + bias) v.

    q (B, H, T, D), k and v (B, H, S, D); bias broadcastable to (B, H, T, S), -inf where a token may not look.
    Returns the output (B, H, T, D) and the weights (B, H, T, S) before dropout, each row a distribution.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    weights = scores.softmax(dim=-1)
    return F.dropout(weights, dropout) @ v, weights


ROWS = 256  # of the scores, which a long causal sequence is attended at a time


def attend_to_the_past(q, k, v, bias):
    """The fused kernel, given a bias that hides the future, some rows at a time: it would compute all that the bias then hides.

    q, k, v (B, H, T, D), bias broadcastable to (B, H, T, T) -> (B, H, T, D).
    """
    ends = [(i, i + ROWS) for i in range(0, q.size(2), ROWS)]
    return torch.cat(
        [
            F.scaled_dot_product_attention(
                q[:, :, i:j], k[:, :, :j], v[:, :, :j], attn_mask=bias[:, :, i:j, :j]
            )
            for i, j in ends
        ],
        dim=2,
    )


class Attention(nn.Module):
    """Multi-head attention, of a sequence to itself or to a memory.
    The fused kernel runs unless weights are asked for or must be dropped out."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.attn_dropout = config.attn_dropout
        self.qkv = nn.Linear(
            config.n_embd, 3 * config.n_embd
        )  # one matrix product for q, k and v of all heads
        self.out = nn.Linear(config.n_embd, config.n_embd)

    def forward(
        self, x, bias=None, causal=False, angles=None, need_weights=False, memory=None, kernel=None
    ):
        """x (B, T, C) -> (B, T, C), and the weights (B, H, T, S) or None. With causal no token sees a later one, and a
        bias must say so too. kernel: f(q, k, v) that does the attending instead.

        Queries come from x, keys and values from memory (B, S, C): cross-attention.
        Without a memory they come from x too, S = T.
        """
        B, T, C = x.shape
        if memory is None:
            q, k, v = map(self.heads, self.qkv(x).split(C, dim=-1))  # 3 of (B, H, T, D)
        else:
            weights, biases = (
                self.qkv.weight.split((C, 2 * C)),
                self.qkv.bias.split((C, 2 * C)),
            )  # of q, and of k and v
            q = self.heads(F.linear(x, weights[0], biases[0]))  # (B, H, T, D)
            k, v = map(
                self.heads, F.linear(memory, weights[1], biases[1]).split(C, dim=-1)
            )  # 2 of (B, H, S, D)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        dropout = self.attn_dropout if self.training else 0.0
        if kernel:
            y, weights = kernel(q, k, v), None
        elif (
            need_weights or dropout
        ):  # the fused CPU kernel has no dropout; its fallback is slower than this
            if causal and bias is None:
                bias = torch.full((T, T), -math.inf, device=x.device).triu(1)
            y, weights = attend(q, k, v, bias, dropout)
        elif causal and bias is not None and T > ROWS and x.device.type == "cpu":
            y, weights = attend_to_the_past(q, k, v, bias), None
        else:
            y, weights = (
                F.scaled_dot_product_attention(
                    q, k, v, attn_mask=bias, is_causal=causal and bias is None
                ),
                None,
            )
        return self.out(y.transpose(1, 2).reshape(B, T, C)), weights  # (B, H, T, D) -> (B, T, C)

    def heads(self, x):
        """(B, T, C) -> (B, H, T, D): each head's share of the channels."""
        B, T, C = x.shape
        return x.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)


# ---------------------------------------------------------------------------- 4. Block, Encoder, Decoder, EncoderDecoder


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.n_embd, config.n_ffn)
        self.act = F.relu if config.activation == "relu" else F.gelu
        self.down = nn.Linear(config.n_ffn, config.n_embd)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(nn.Module):
    """Attention moves information between tokens, the feed-forward layer works on each by itself.

    With cross, a second attention between the two moves information from a memory to the tokens.
    """

    def __init__(self, config, cross=False):
        super().__init__()
        self.norm_first = config.norm_first
        self.norm1 = nn.LayerNorm(config.n_embd, config.norm_eps)
        self.attention = Attention(config)
        if cross:
            self.cross_norm = nn.LayerNorm(config.n_embd, config.norm_eps)
            self.cross_attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.n_embd, config.norm_eps)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, cross=None, picked=None, **how):
        """x (B, T, C) -> (B, T, C), and the attention's weights;
        with cross, what the second attention is told, a pair of both attentions'.

        picked (N,): the output is (N, C), only these of the B * T tokens; the feed-forward layer does not see the others.
        """
        if self.norm_first:
            a, weights = self.attention(self.norm1(x), **how)
            x = x + self.dropout(a)
            if cross:
                a, cross_weights = self.cross_attention(self.cross_norm(x), **cross)
                x = x + self.dropout(a)
            x = pick(x, picked)
            x = x + self.dropout(self.feed_forward(self.norm2(x)))
        else:
            a, weights = self.attention(x, **how)
            x = self.norm1(x + self.dropout(a))
            if cross:
                a, cross_weights = self.cross_attention(x, **cross)
                x = self.cross_norm(x + self.dropout(a))
            x = pick(x, picked)
            x = self.norm2(x + self.dropout(self.feed_forward(x)))
        return x, (weights, cross_weights) if cross else weights


def pick(x, picked):
    """x (B, T, C) -> (N, C), the tokens picked (N,) of all B * T; x itself for None."""
    return x if picked is None else x.flatten(0, 1).index_select(0, picked)


class Transformer(nn.Module):
    """Token ids to hidden states. `Encoder` and `Decoder` differ in one word: whether the future is visible.

    With cross, either also looks at a memory in every block.
    """

    causal = False
    flex_devices = ("cuda",)

    def __init__(self, config, cross=False):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        if config.pos == "learned":
            self.positions = nn.Embedding(config.block_size, config.n_embd)
        if config.n_language:
            self.languages = nn.Embedding(config.n_language, config.n_embd)
        # Post-norm starts from a normalised embedding (BERT); CLAP's unit vectors take that norm's place.
        self.embedding_norm = (
            nn.Identity()
            if config.norm_first or config.unit_embd
            else nn.LayerNorm(config.n_embd, config.norm_eps)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, cross) for _ in range(config.n_layer))
        self.norm = (
            nn.LayerNorm(config.n_embd, config.norm_eps) if config.norm_first else nn.Identity()
        )
        self.tables = {}

    def forward(
        self,
        idx,
        mask=None,
        need_weights=False,
        need_states=False,
        languages=None,
        positions=None,
        memory=None,
        memory_mask=None,
        picked=None,
    ):
        """idx (B, T) long; mask (B, T) bool, True for real tokens, None when all are; languages (B, T) long, None: all
        are of the first; positions (B, T) long, below T, where each token stands, None: 0, 1, 2, ... With cross also
        memory (B, S, C) and its mask (B, S), at least one True in each row; without a memory there is no cross-attention.

        Two sentences in one sequence both begin at position 0 (Lample & Conneau 2019, section 3): the vectors and angles
        added are those of these positions, and distances (ALiBi's, the window's) are between them, so that the n-th words of
        both sentences are at distance 0 and only `languages` tells them apart. Only an encoder can have it so.

        Returns h (B, T, C), or with picked (N,) only the states (N, C) of these of the B * T tokens; with need_weights
        (h, a list of n_layer maps (B, H, T, T), or with a memory of pairs of maps (B, H, T, T) and (B, H, T, S)); with
        need_states (h, a list of n_layer + 1 states (B, T, C): the embedding, then what each block put out). Raises
        ValueError for a sequence beyond a learned position table, and for a decoder with positions.
        """
        T = idx.size(1)
        if self.causal and positions is not None:
            raise ValueError(
                "positions: a decoder sees what stands before, so its tokens stand where they are; use an Encoder"
            )
        x = self.embed(idx, languages, positions)
        explicit = need_weights or self.training and self.config.attn_dropout
        long = T >= 256 and x.device.type in self.flex_devices
        if self.config.pos == "alibi" and long and positions is None and not explicit:
            how = dict(kernel=self.flex_kernel(T, mask))
        else:
            bias = self.attention_bias(T, mask, positions)
            how = dict(bias=bias, causal=self.causal, need_weights=need_weights)
        if self.config.pos == "rope":
            angles = self.table("angles", T)  # (T, D/2)
            how["angles"] = (
                angles if positions is None else angles[positions][:, None]
            )  # (B, 1, T, D/2)
        if (
            memory is not None
        ):  # no positions here: which token of the memory is near which is to be learned
            how["cross"] = dict(memory=memory, need_weights=need_weights)
            if memory_mask is not None:
                padding = ~memory_mask[:, None, None, :]  # (B, 1, 1, S)
                how["cross"]["bias"] = torch.zeros_like(padding, dtype=x.dtype).masked_fill(
                    padding, -math.inf
                )
        maps, states = [], [x]
        for i, block in enumerate(self.blocks, start=1):
            x, weights = block(x, picked=picked if i == len(self.blocks) else None, **how)
            maps.append(weights)
            states.append(x)
        h = self.norm(x)
        if need_weights:
            return h, maps
        return (h, states) if need_states else h

    def embed(self, idx, languages=None, positions=None):
        """(B, T) -> (B, T, C): the token's vector, its language's and, where the positions are absolute, the position's."""
        config, T = self.config, idx.size(1)
        x = self.embedding(idx)  # (B, T, C)
        if config.unit_embd:
            x = F.normalize(x, dim=-1)
        if config.scale_embd or config.pos == "sinusoidal":
            x = x * math.sqrt(
                config.n_embd
            )  # unit sinusoids would drown small embeddings (Vaswani et al., 3.4)
        if config.zero_mask:
            x = x * (idx != config.mask_id)[:, :, None]
        if config.n_language:
            x = x + (self.languages.weight[0] if languages is None else self.languages(languages))
        if config.pos == "learned":
            end = T if positions is None else int(positions.max()) + 1
            if end > config.block_size:
                raise ValueError(
                    f"learned positions end at block_size={config.block_size}, got {end} tokens; "
                    "use alibi, sinusoidal, rope or nope beyond the trained length"
                )
            x = x + (self.positions.weight[:T] if positions is None else self.positions(positions))
        elif config.pos == "sinusoidal":
            table = self.table("sinusoids", T)
            x = x + (table if positions is None else table[positions])
        return self.dropout(self.embedding_norm(x))

    def attention_bias(self, T, mask=None, positions=None):
        """What is added to the scores of every layer: (1 or B, 1 or H, T, T) float, -inf where a token may
        not look; None when nothing is to be added but the plain causal mask, which the kernel knows itself."""
        config = self.config
        if mask is None and config.pos != "alibi" and not config.window:
            return None
        bias = self.table("bias", T)  # (1, H or 1, T, T)
        if positions is not None:
            bias = bias[0][:, positions[:, :, None], positions[:, None, :]].transpose(
                0, 1
            )  # (B, H or 1, T, T)
        if mask is not None:
            # A token always sees itself: the rows of padding would otherwise be a softmax over nothing, NaN.
            visible = mask[:, None, None, :] | torch.eye(
                T, dtype=torch.bool, device=mask.device
            )  # (B, 1, T, T)
            bias = bias.masked_fill(~visible, -math.inf)  # (B, H or 1, T, T)
        return bias

    def flex_kernel(self, T, mask=None):
        """ALiBi's attention without its table, see flex.py."""
        from nets.long_alibi import (
            alibi_attention,  # here, because only a GPU and long sequences need it
        )

        config, device, variant = (
            self.config,
            self.embedding.weight.device,
            "causal" if self.causal else self.config.alibi,
        )
        slopes = alibi_slopes(config.n_head // 2 if variant == "one-sided" else config.n_head).to(
            device
        )
        if mask is not None:
            return alibi_attention(slopes, T, variant, config.window, mask)
        if ("flex", T, device) not in self.tables:
            self.tables["flex", T, device] = alibi_attention(slopes, T, variant, config.window)
        return self.tables["flex", T, device]

    def table(self, name, T):
        """Constant tables, made once for each length and device and kept out of checkpoints."""
        config, device = self.config, self.embedding.weight.device
        if (name, T, device) not in self.tables:
            if name == "sinusoids":
                table = sinusoids(T, config.n_embd)
            elif name == "angles":
                D = config.n_embd // config.n_head
                table = torch.arange(T)[:, None] * 10000.0 ** (
                    -torch.arange(0, D, 2) / D
                )  # (T, D/2)
            else:
                if config.pos == "alibi":
                    table = alibi_bias(config.n_head, T, "causal" if self.causal else config.alibi)[
                        None
                    ]  # (1, H, T, T)
                else:
                    table = (
                        torch.full((1, 1, T, T), -math.inf).triu_(1)
                        if self.causal
                        else torch.zeros(1, 1, T, T)
                    )
                if config.window:
                    t = torch.arange(T)
                    table.masked_fill_((t[:, None] - t).abs() >= config.window, -math.inf)
            self.tables[name, T, device] = table.to(device)
        return self.tables[name, T, device]


class Encoder(Transformer):
    """Every token sees every other."""


class Decoder(Transformer):
    """A token sees itself and what came before."""

    causal = True


class EncoderDecoder(nn.Module):
    """A source is read by an encoder; a decoder that looks at all of it writes the target (Vaswani et al. 2017, figure 1).

    n_layer blocks each, one vocabulary and one embedding. Each half has its own positions; between the halves there are none.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding

    def forward(self, idx, mask=None, *, source, source_mask=None, need_weights=False, picked=None):
        """idx (B, T), what is written so far, and source (B, S), with their masks -> h (B, T, C), or (N, C) with picked (N,).

        With need_weights (h, maps): n_layer maps each under
        "encoder" (B, H, S, S), "decoder" (B, H, T, T) and "cross" (B, H, T, S).
        """
        if not need_weights:
            return self.decoder(
                idx,
                mask,
                memory=self.encoder(source, source_mask),
                memory_mask=source_mask,
                picked=picked,
            )
        memory, encoder_maps = self.encoder(source, source_mask, need_weights=True)
        h, pairs = self.decoder(
            idx, mask, need_weights=True, memory=memory, memory_mask=source_mask
        )
        decoder_maps, cross_maps = map(list, zip(*pairs))
        return h, {"encoder": encoder_maps, "decoder": decoder_maps, "cross": cross_maps}


# ---------------------------------------------------------------------------- 5. Heads


class WordHead(nn.Module):
    """Hidden states to words. `project` returns what a linear layer needs, so that a loss need not make all logits at once."""

    def forward(self, h):
        """h (..., C) -> logits (..., V)."""
        return F.linear(*self.project(h))


class LMHead(WordHead):
    """Hidden states to words, plain or as RoBERTa does it: dense, GELU, layer norm, then the word vectors and a bias."""

    def __init__(self, config, embedding):
        super().__init__()
        C = config.n_embd
        roberta = config.head == "roberta"
        self.transform = (
            nn.Sequential(nn.Linear(C, C), nn.GELU(), nn.LayerNorm(C, config.norm_eps))
            if roberta
            else nn.Identity()
        )
        self.words = embedding if config.tie else nn.Embedding(config.vocab_size, C)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def project(self, h):
        """h (..., C) -> what a linear layer needs: features (..., C), weight (V, C), bias (V,)."""
        return self.transform(h), self.words.weight, self.bias


class ClapHead(WordHead):
    """logits = beta * h . normalize(W): one trainable scalar and nothing else (EIFY/fairseq, roberta/model.py)."""

    def __init__(self, config, embedding):
        super().__init__()
        self.words = embedding
        self.beta = nn.Parameter(torch.ones(()))

    def project(self, h):
        """h (..., C) -> features (..., C), unit rows (V, C), no bias."""
        return self.beta * h, F.normalize(self.words.weight, dim=-1), None


# ---------------------------------------------------------------------------- 6. Models


class LanguageModel(nn.Module):
    """A body and a head. With an Encoder it is a masked language model, with a Decoder a causal one, with an
    EncoderDecoder one from sequence to sequence, which is also given source= and source_mask=; with a ThreadReader
    (thread_reader.py) it is a masked one that is also given a comment's ancestors."""

    def __init__(self, body):
        super().__init__()
        config = body.config
        self.body = body
        self.head = (ClapHead if config.head == "clap" else LMHead)(config, body.embedding)
        init_weights(self, config)

    def forward(self, idx, mask=None, **more):
        """idx (B, T), mask (B, T) -> logits (B, T, V).
        more: what else the body reads, such as languages and positions, or a source."""
        return self.head(self.body(idx, mask, **more))

    def losses(self, idx, targets, mask=None, smoothing=0.0, **more):
        """(N,) cross-entropy in nats of each of the N targets (B, T) that are not -100. Only those meet the vocabulary.

        targets may stay on the CPU: a GPU that had to say which of them are not -100 would be waited for.
        smoothing: share of each target given to all words alike (Szegedy et al. 2016, section 7).
        """
        return linear_cross_entropy(*self.to_predict(idx, targets, mask, **more), smoothing)

    def loss(self, idx, targets, mask=None, smoothing=0.0, **more):
        """Sum of `losses`, by way of `LinearCrossEntropySum` where gradients are wanted."""
        if torch.is_grad_enabled():
            return LinearCrossEntropySum.apply(
                *self.to_predict(idx, targets, mask, **more), smoothing
            )
        return self.losses(idx, targets, mask, smoothing, **more).sum()

    def to_predict(self, idx, targets, mask, **more):
        """What the linear layer to the words needs for the N targets: features (N, C), weight, bias, and the targets (N,)."""
        targets = targets.flatten()
        picked = (targets != -100).nonzero().squeeze(1)  # (N,)
        picked, targets = (
            tensor.to(idx.device, non_blocking=True) for tensor in (picked, targets[picked])
        )
        return *self.head.project(self.body(idx, mask, picked=picked, **more)), targets


@torch.no_grad()
def generate(model, source, source_mask, bos, eos, n_tokens, choose=None):
    """source (B, S) -> (B, at most n_tokens), what the decoder of a sequence-to-sequence model writes after bos,
    until every row has an eos.

    choose: the next word's logits (B, V) -> ids (B,); None: the likeliest word. Ids below eos are never chosen; what
    follows an eos in its row means nothing.
    """
    memory = model.body.encoder(source, source_mask)
    idx = torch.full_like(source[:, :1], bos)
    while idx.size(1) <= n_tokens and not (idx == eos).any(1).all():
        h = model.body.decoder(idx, memory=memory, memory_mask=source_mask)[:, -1]
        logits = model.head(h).float()
        logits[:, :eos] = -math.inf
        idx = torch.cat([idx, (choose(logits) if choose else logits.argmax(-1))[:, None]], dim=1)
    return idx[:, 1:]


def load_roberta(path, head=True):
    """A Hugging Face folder of RoBERTa as (LanguageModel, tokenizer); see roberta.py."""
    from nets import roberta  # here, so that this file needs nothing but torch

    return roberta.load_roberta(path, head)


def init_weights(model, config):
    """Normal weights, zero biases; what is added to the residual stream starts smaller the more layers add (GPT-2)."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            adds_to_stream = name.endswith(("attention.out", ".feed_forward.down"))
            nn.init.normal_(
                module.weight,
                std=config.init_std / (math.sqrt(2 * config.n_layer) if adds_to_stream else 1),
            )
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=config.init_std)


def count_parameters(model):
    """Number of parameters by part, shared ones counted once, under "embedding", "positions", "attention", ..., "total"."""
    parts = dict.fromkeys(
        ("embedding", "positions", "attention", "feed-forward", "norm", "head"), 0
    )
    for name, p in model.named_parameters():
        name = "." + name
        if name.startswith(".head."):
            part = "head"
        elif ".embedding." in name or ".languages." in name:
            part = "embedding"
        elif ".positions." in name:
            part = "positions"
        elif "attention." in name:  # cross-attention too
            part = "attention"
        elif ".feed_forward." in name:
            part = "feed-forward"
        else:
            part = "norm"
        parts[part] += p.numel()
    return {**parts, "total": sum(parts.values())}
