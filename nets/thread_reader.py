"""A body for comment threads: it reads a comment together with the comments it answers."""

import torch
import torch.nn as nn

from model import Encoder, sinusoids
from nets.classifier import pool_tokens


class ThreadReader(nn.Module):
    """An encoder reads the ancestors of a comment, a second one the comment with masked words.

    The states of each ancestor are averaged into one vector. The second encoder, called decoder,
    attends to these vectors in every block. Both have n_layer blocks and share one embedding.

    Ancestors come nearest first. ancestor_positions: "learned" or "sinusoidal" adds a vector for
    the distance (parent, grandparent, ...), up to n_ancestors; "none" leaves them unordered.
    """

    ANCESTOR_POSITIONS = ("none", "learned", "sinusoidal")

    def __init__(self, config, n_ancestors, ancestor_positions):
        super().__init__()
        self.config = config
        self.encoder, self.decoder = Encoder(config), Encoder(config, cross=True)
        self.embedding = self.decoder.embedding = self.encoder.embedding
        self.ancestor_positions = ancestor_positions
        if ancestor_positions == "learned":
            self.positions = nn.Embedding(n_ancestors, config.n_embd)
        elif ancestor_positions == "sinusoidal":
            self.distances = nn.Buffer(sinusoids(n_ancestors, config.n_embd), persistent=False)

    def start_from(self, encoder):
        """Give both encoders the weights of a pretrained one. Its cross-attention stays new."""
        weights = encoder.state_dict()
        self.encoder.load_state_dict(weights)
        self.decoder.load_state_dict(self.decoder.state_dict() | weights)

    def forward(
        self,
        idx,
        mask=None,
        *,
        texts=None,
        texts_mask=None,
        ancestors=None,
        ancestors_mask=None,
        **more,
    ):
        """idx, mask (B, T): the comments -> h (B, T, C). more: see `Transformer.run_blocks`.

        texts, texts_mask (M, U): all ancestors of all comments; None: read the comments alone.
        ancestors (B, A) long: rows of texts that are the ancestors of each comment.
        ancestors_mask (B, A): True for real ancestors, at least one in each row.
        """
        if texts is None:
            return self.decoder(idx, mask, **more)
        memory = self.read_ancestors(texts, texts_mask, ancestors)  # (B, A, C)
        return self.decoder(idx, mask, memory=memory, memory_mask=ancestors_mask, **more)

    def read_ancestors(self, texts, texts_mask, ancestors):
        """Return one vector per ancestor (B, A, C), its distance added. Shapes as in forward."""
        vectors = pool_tokens(self.encoder(texts, texts_mask), texts_mask, "mean")  # (M, C)
        memory = vectors[ancestors]  # (B, A, C)
        if self.ancestor_positions != "none":
            learned = self.ancestor_positions == "learned"
            distances = self.positions.weight if learned else self.distances  # (n_ancestors, C)
            memory = memory + distances[: ancestors.size(1)]
        return memory


def ancestor_inputs(texts, texts_mask):
    """Return the keyword arguments of a ThreadReader for one comment, except its tokens.

    texts, texts_mask (A, U): all ancestors, the post first and the parent last.
    """
    ancestors = torch.arange(len(texts)).flip(0)[None]  # (1, A), the parent first
    return {
        "texts": texts,
        "texts_mask": texts_mask,
        "ancestors": ancestors,
        "ancestors_mask": torch.ones_like(ancestors, dtype=torch.bool),
    }
