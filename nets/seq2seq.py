"""Bodies with two halves: a sequence is written or read with the help of others.

EncoderDecoder  the encoder reads a source, the decoder writes a target
ThreadReader    the encoder reads the comments above, the "decoder" a comment with masked words

Both halves have n_layer blocks and their own positions, and share one embedding.
"""

import math

import torch
import torch.nn as nn

from data.tokenizer import BOS, EOS
from model import sinusoids
from nets.cached import CachedReader
from nets.classifier import pool_tokens


class EncoderDecoder(nn.Module):
    """The transformer of Vaswani et al. 2017, figure 1. Its cross-attention has no positions."""

    def __init__(self, encoder, decoder):
        """decoder: its blocks read a memory (nets/cross.py)."""
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.decoder = decoder
        self.decoder.embedding = encoder.embedding
        self.embedding = encoder.embedding

    def forward(self, idx, mask=None, picked=None, *, source, source_mask=None):
        """idx (B, T), the target so far, and source (B, S), with their masks -> h (B, T, C); picked
        as in Transformer.forward."""
        memory = self.encoder(source, source_mask)
        return self.decoder(idx, mask, picked, memory=memory, memory_mask=source_mask)


@torch.no_grad()
def generate(model, source, source_mask, n_tokens, choose=None):
    """Write a target for each row of source (B, S): ids (B, at most n_tokens) after [BOS].
    Writing stops when every row has an [EOS]; ignore what follows it. No other special token is
    chosen. choose: function from logits (B, V) to ids (B,); None: the most likely word."""
    memory = model.body.encoder(source, source_mask)
    reader = CachedReader(model.body.decoder)
    idx = torch.full_like(source[:, :1], BOS)  # (B, 1)
    while idx.size(1) <= n_tokens and not (idx == EOS).any(1).all():
        h = reader.read(idx[:, -1:], memory=memory, memory_mask=source_mask)[:, -1]  # (B, C)
        logits = model.head(h)  # (B, V)
        logits[:, :EOS] = -math.inf
        if choose is None:
            chosen = logits.argmax(-1)  # (B,)
        else:
            chosen = choose(logits)
        idx = torch.cat([idx, chosen[:, None]], dim=1)
    return idx[:, 1:]


class ThreadReader(nn.Module):
    """Reads a comment with masked words together with its ancestors, the comments it answers.

    The encoder reads each ancestor once; its states are averaged into one vector. Every block of
    the second encoder, called decoder, attends to these vectors. They come nearest first.
    ancestor_positions: "learned" or "sinusoidal" adds a vector for the distance (parent, then
    grandparent, ...), up to n_ancestors; "none" leaves them unordered.
    """

    def __init__(self, encoder, decoder, n_ancestors, ancestor_positions="learned"):
        """decoder: an Encoder whose blocks read a memory (nets/cross.py)."""
        super().__init__()
        self.config = encoder.config
        self.encoder = encoder
        self.decoder = decoder
        self.decoder.embedding = encoder.embedding
        self.embedding = encoder.embedding
        self.ancestor_positions = ancestor_positions
        if ancestor_positions == "learned":
            self.distances = nn.Embedding(n_ancestors, self.config.n_embd)

    def start_from(self, encoder):
        """Give both encoders the weights of a pretrained one. Its cross-attention stays new."""
        self.encoder.load_state_dict(encoder.state_dict())
        self.decoder.load_state_dict(self.decoder.state_dict() | encoder.state_dict())

    def forward(
        self,
        idx,
        mask=None,
        picked=None,
        *,
        texts=None,
        texts_mask=None,
        ancestors=None,
        ancestors_mask=None,
    ):
        """idx, mask (B, T): the comments -> h (B, T, C); picked as in Transformer.forward.
        texts, texts_mask (M, U): all ancestors of all comments; None: read the comments alone.
        ancestors (B, A) long: rows of texts that are the ancestors of each comment.
        ancestors_mask (B, A): True for real ancestors, at least one in each row."""
        if texts is None:
            return self.decoder(idx, mask, picked)
        vectors = pool_tokens(self.encoder(texts, texts_mask), texts_mask, "mean")  # (M, C)
        memory = vectors[ancestors]  # (B, A, C)
        A, C = memory.shape[1:]
        if self.ancestor_positions == "learned":
            memory = memory + self.distances.weight[:A]
        if self.ancestor_positions == "sinusoidal":
            memory = memory + sinusoids(torch.arange(A), C).to(memory.device)
        return self.decoder(idx, mask, picked, memory=memory, memory_mask=ancestors_mask)


def ancestor_inputs(texts, texts_mask):
    """Return a ThreadReader's arguments for one comment, except its tokens. texts, texts_mask (A,
    U): all its ancestors, the post first and the parent last."""
    ancestors = torch.arange(len(texts)).flip(0)[None]  # (1, A), the parent first
    mask = torch.ones_like(ancestors, dtype=torch.bool)
    return dict(texts=texts, texts_mask=texts_mask, ancestors=ancestors, ancestors_mask=mask)
