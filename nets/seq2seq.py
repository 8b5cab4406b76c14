"""Bodies with two halves: a sequence is written or read with the help of others.

EncoderDecoder  the encoder reads a source, the decoder writes a target
ThreadReader    the encoder reads the comments above, the "decoder" a comment with masked words

Both halves have n_layer blocks and their own positions, and share one embedding.
"""

import math

import torch
import torch.nn as nn

from data.tokenizer import BOS, EOS
from model import Decoder, Encoder, sinusoids
from nets.cached import CachedReader
from nets.classifier import pool_tokens


class EncoderDecoder(nn.Module):
    """The transformer of Vaswani et al. 2017, figure 1. Its cross-attention has no positions."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding

    def forward(self, idx, mask=None, *, source, source_mask=None, **more):
        """idx (B, T), the target so far, and source (B, S), with their masks -> h (B, T, C)."""
        memory = self.encoder(source, source_mask)
        return self.decoder(idx, mask, memory=memory, memory_mask=source_mask, **more)


@torch.no_grad()
def generate(model, source, source_mask, n_tokens, choose=None):
    """Write a target for each row of source (B, S): ids (B, at most n_tokens) after [BOS].
    Writing stops when every row has an [EOS]; ignore what follows it. No other special token is
    chosen. choose: function from logits (B, V) to ids (B,); None: the most likely word."""
    memory = model.body.encoder(source, source_mask)
    idx, reader = torch.full_like(source[:, :1], BOS), CachedReader(model.body.decoder)
    while idx.size(1) <= n_tokens and not (idx == EOS).any(1).all():
        h = reader.read(idx[:, -1:], memory=memory, memory_mask=source_mask)[:, -1]  # (B, C)
        logits = model.head(h)  # (B, V)
        logits[:, :EOS] = -math.inf
        chosen = choose(logits) if choose else logits.argmax(-1)
        idx = torch.cat([idx, chosen[:, None]], dim=1)
    return idx[:, 1:]


class ThreadReader(nn.Module):
    """Reads a comment with masked words together with its ancestors, the comments it answers.

    The encoder reads each ancestor once; its states are averaged into one vector. Every block of
    the second encoder, called decoder, attends to these vectors. They come nearest first.
    ancestor_positions: "learned" or "sinusoidal" adds a vector for the distance (parent, then
    grandparent, ...), up to n_ancestors; "none" leaves them unordered.
    """

    def __init__(self, config, n_ancestors, ancestor_positions="learned"):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Encoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding
        self.ancestor_positions = ancestor_positions
        if ancestor_positions == "learned":
            self.distances = nn.Embedding(n_ancestors, config.n_embd)

    def start_from(self, encoder):
        """Give both encoders the weights of a pretrained one. Its cross-attention stays new."""
        self.encoder.load_state_dict(encoder.state_dict())
        self.decoder.load_state_dict(self.decoder.state_dict() | encoder.state_dict())

    def forward(self, idx, mask=None, *, texts=None, texts_mask=None, ancestors=None, **more):
        """idx, mask (B, T): the comments -> h (B, T, C). more: see `Transformer.forward`.
        texts, texts_mask (M, U): all ancestors of all comments; None: read the comments alone.
        ancestors (B, A) long: rows of texts that are the ancestors of each comment.
        ancestors_mask (B, A), in more: True for real ancestors, at least one in each row."""
        if texts is not None:
            vectors = pool_tokens(self.encoder(texts, texts_mask), texts_mask, "mean")  # (M, C)
            memory, distances = vectors[ancestors], torch.arange(ancestors.size(1))  # (B, A, C)
            if self.ancestor_positions == "learned":
                memory = memory + self.distances.weight[: len(distances)]
            if self.ancestor_positions == "sinusoidal":
                memory = memory + sinusoids(distances, memory.size(-1)).to(memory.device)
            more |= dict(memory=memory, memory_mask=more.pop("ancestors_mask"))
        return self.decoder(idx, mask, **more)


def ancestor_inputs(texts, texts_mask):
    """Return a ThreadReader's arguments for one comment, except its tokens. texts, texts_mask (A,
    U): all its ancestors, the post first and the parent last."""
    ancestors = torch.arange(len(texts)).flip(0)[None]  # (1, A), the parent first
    mask = torch.ones_like(ancestors, dtype=torch.bool)
    return dict(texts=texts, texts_mask=texts_mask, ancestors=ancestors, ancestors_mask=mask)
