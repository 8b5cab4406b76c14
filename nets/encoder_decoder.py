"""Sequence to sequence: an encoder reads the source, a decoder writes the target."""

import math

import torch
import torch.nn as nn

from data.tokenizer import BOS, EOS
from model import Decoder, Encoder
from nets.cached import CachedReader


class EncoderDecoder(nn.Module):
    """The transformer of Vaswani et al. 2017, figure 1, as the body of a LanguageModel.

    Each half has n_layer blocks and its own positions. Both share one embedding. The
    cross-attention from target to source has no positions.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Decoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding

    def forward(self, idx, mask=None, *, source, source_mask=None, **more):
        """idx (B, T), the target so far, and source (B, S), with their masks -> h (B, T, C).

        more: see `Transformer.run_blocks`.
        """
        memory = self.encoder(source, source_mask)
        return self.decoder(idx, mask, memory=memory, memory_mask=source_mask, **more)


@torch.no_grad()
def generate(model, source, source_mask, n_tokens, choose=None):
    """Write a target for each row of source (B, S): ids (B, at most n_tokens) after [BOS].

    Writing stops when every row has an [EOS]; ignore what follows it. No other special token is
    chosen.
    choose: function from the next word's logits (B, V) to ids (B,); None: the most likely word.
    """
    memory = model.body.encoder(source, source_mask)
    idx, reader = torch.full_like(source[:, :1], BOS), CachedReader(model.body.decoder)
    while idx.size(1) <= n_tokens and not (idx == EOS).any(1).all():
        h = reader.read(idx[:, -1:], memory=memory, memory_mask=source_mask)[:, -1]  # (B, C)
        logits = model.head(h)  # (B, V)
        logits[:, :EOS] = -math.inf
        chosen = choose(logits) if choose else logits.argmax(-1)
        idx = torch.cat([idx, chosen[:, None]], dim=1)
    return idx[:, 1:]
