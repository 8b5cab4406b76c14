"""A body for comment threads: what a comment answers is read too, each of its ancestors as one vector."""

import torch
import torch.nn as nn

from model import Encoder, sinusoids
from nets.classifier import pool_tokens


class ThreadReader(nn.Module):
    """A comment with hidden words is read beside what it answers: its ancestors, each as one vector.

    The encoder reads every text once and its states are averaged; the decoder, in which every token sees every other,
    reads the comment, and in every block looks at the vectors of its ancestors. n_layer blocks each, one vocabulary and
    one embedding. The ancestors come nearest first. With ancestor_positions "learned" or "sinusoidal" a vector for the
    distance (parent, its parent, ...), up to n_ancestors, is added to theirs; with "none" the decoder sees a set.
    """

    POSITIONS = ("none", "learned", "sinusoidal")

    def __init__(self, config, n_ancestors=8, ancestor_positions="none"):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Encoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding
        self.ancestor_positions = ancestor_positions
        if ancestor_positions == "learned":
            self.positions = nn.Embedding(n_ancestors, config.n_embd)
        elif ancestor_positions == "sinusoidal":
            self.register_buffer(
                "distances", sinusoids(n_ancestors, config.n_embd), persistent=False
            )

    def forward(
        self,
        idx,
        mask=None,
        *,
        texts=None,
        texts_mask=None,
        ancestors=None,
        ancestors_mask=None,
        picked=None,
    ):
        """idx, mask (B, T): comments; texts, texts_mask (M, U): all their ancestors;
        ancestors (B, A) long: which rows of texts those of each comment are;
        ancestors_mask (B, A), at least one True in each row -> h (B, T, C), or (N, C) with picked (N,).

        Without texts there is no cross-attention, and the comments are read alone.
        """
        if texts is None:
            return self.decoder(idx, mask, picked=picked)
        memory = self.read_ancestors(texts, texts_mask, ancestors)  # (B, A, C)
        return self.decoder(idx, mask, memory=memory, memory_mask=ancestors_mask, picked=picked)

    def read_ancestors(self, texts, texts_mask, ancestors):
        """Return (B, A, C): one vector per ancestor, with its distance added. Shapes as in forward."""
        vectors = pool_tokens(self.encoder(texts, texts_mask), texts_mask, "mean")  # (M, C)
        memory = vectors[ancestors]  # (B, A, C)
        if self.ancestor_positions != "none":
            distances = (
                self.positions.weight if self.ancestor_positions == "learned" else self.distances
            )  # (n_ancestors, C)
            memory = memory + distances[: ancestors.size(1)]
        return memory


def ancestor_inputs(texts, texts_mask):
    """Return what a ThreadReader takes for one comment beside its tokens, as keyword arguments.

    texts, texts_mask (A, U): all ancestors, the post first and the parent last.
    """
    ancestors = torch.arange(len(texts)).flip(0)[None]  # (1, A), the parent first
    return {
        "texts": texts,
        "texts_mask": texts_mask,
        "ancestors": ancestors,
        "ancestors_mask": torch.ones_like(ancestors, dtype=torch.bool),
    }
