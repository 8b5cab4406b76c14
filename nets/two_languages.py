"""An encoder for two sentences in one sequence (TLM: Lample & Conneau 2019, section 3).

Every token also gets a vector of its language, and positions restart with the second sentence. The
position vectors, the angles and the distances of ALiBi and windows all follow the restarted
positions. The n-th words of both sentences have distance 0; only their language differs.
"""

import math

import torch.nn as nn
import torch.nn.functional as F

from model import Encoder


def make_encoder(config):
    """Return the encoder of a config: with language vectors if n_language is above 0."""
    return TwoLanguageEncoder(config) if config.n_language else Encoder(config)


class TwoLanguageEncoder(Encoder):
    """An Encoder that also reads the language and the position of each token."""

    def __init__(self, config):
        super().__init__(config)
        self.languages = nn.Embedding(config.n_language, config.n_embd)
        # Keep the order of the weights: the optimizer state in checkpoints depends on it
        for name in ("embedding_norm", "dropout", "blocks", "norm"):
            self.add_module(name, self._modules.pop(name))

    def forward(
        self, idx, mask=None, need_weights=False, *, languages=None, positions=None, **more
    ):
        """idx (B, T) long -> h (B, T, C), as `Transformer.forward`.

        languages (B, T) long; None: all tokens are of the first language.
        positions (B, T) long, below T, learned ones below block_size; None: 0, 1, 2, ...
        """
        T = idx.size(1)
        first = self.languages.weight[0]
        x = self.token_vectors(idx) + (first if languages is None else self.languages(languages))
        restarted = positions is not None and self.config.pos == "learned"
        vectors = self.position_vectors(self.config.block_size if restarted else T)
        angles = self.angles(T)
        if positions is None:
            bias = self.attention_bias(T, mask)
        else:
            bias = self.restarted_bias(T, mask, positions)
            vectors = None if vectors is None else F.embedding(positions, vectors)  # (B, T, C)
            angles = None if angles is None else angles[positions][:, None]  # (B, 1, T, D/2)
        if vectors is not None:
            x = x + vectors
        return self.run_blocks(x, dict(bias=bias, angles=angles, need_weights=need_weights), **more)

    def restarted_bias(self, T, mask, positions):
        """Return the bias (B, 1 or H, T, T) for distances between positions (B, T), or None."""
        bias = self.attention_bias(T)  # (1, 1 or H, T, T), None if it does not depend on positions
        if bias is None:
            return self.attention_bias(T, mask)
        i, j = positions[:, :, None], positions[:, None, :]  # of query and key
        bias = bias[0][:, i, j].transpose(0, 1)  # (H, T, T) -> (H, B, T, T) -> (B, H, T, T)
        return bias if mask is None else bias.masked_fill(~self.visible(mask), -math.inf)
