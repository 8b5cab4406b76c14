"""An encoder for two sentences in one sequence (TLM: Lample & Conneau 2019, section 3).

Every token also gets a vector of its language, and positions restart with the second sentence: `at`
holds 0, 1, 2, 0, 1, ... So the n-th words of both sentences have distance 0, and only their
language differs.
"""

import torch.nn as nn

from model import Encoder


class TwoLanguageEncoder(Encoder):
    """An Encoder that also reads the language of each token."""

    def __init__(self, config):
        super().__init__(config)
        self.languages = nn.Embedding(2, config.n_embd)
        # LanguageModel draws new weights in the order of the modules: keep the embeddings together
        for name in ("embedding_norm", "dropout", "blocks", "norm"):
            self.add_module(name, self._modules.pop(name))

    def forward(self, idx, mask=None, *, languages=None, **more):
        """idx (B, T) long -> h (B, T, C). more: see `Transformer.forward`.

        languages (B, T) long, 0 or 1; None: all tokens are of the first language.
        """
        first = self.languages.weight[0].expand(*idx.shape, -1)
        extra = first if languages is None else self.languages(languages)  # (B, T, C)
        return super().forward(idx, mask, extra=extra, **more)
