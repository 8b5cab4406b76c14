"""An encoder for two sentences in one sequence (TLM: Lample & Conneau 2019, section 3).

Every token also gets a vector of its language, and positions restart with the second sentence: `at`
holds 0, 1, 2, 0, 1, ... So the n-th words of both sentences have distance 0, and only their
language differs.
"""

import torch.nn as nn


class TwoLanguages:
    """Replaces Transformer.start: also reads the language of each token."""

    def __init__(self, config, *parts):
        super().__init__(config, *parts)
        # init_weights draws in the order of the modules: embeddings first, then blocks
        blocks = self.blocks
        del self.blocks
        self.languages = nn.Embedding(2, config.n_embd)
        self.blocks = blocks

    def start(self, idx, mask=None, languages=None, **inputs):
        """languages (B, T) long, 0 or 1; None: all tokens are of the first language."""
        if languages is None:
            extra = self.languages.weight[0].expand(*idx.shape, -1)  # (B, T, C)
        else:
            extra = self.languages(languages)
        return super().start(idx, mask, extra=extra, **inputs)
