"""What becomes of the mask token, in the input and among the output words."""

import torch
import torch.nn as nn


class ZeroMask:
    """Replaces Transformer.token_vectors: the mask token enters as the zero vector (zero-CLAP)."""

    def token_vectors(self, idx):
        is_word = idx != self.config.mask_id
        return super().token_vectors(idx) * is_word[:, :, None]


class OmitMask:
    """Replaces the bias of an LMHead: the mask token is never predicted, and other words have no
    bias."""

    def __init__(self, config, embedding):
        super().__init__(config, embedding)
        is_mask = torch.arange(config.vocab_size) == config.mask_id
        del self.bias
        self.bias = nn.Buffer(-1e4 * is_mask, persistent=False)  # exp(-1e4) = 0
