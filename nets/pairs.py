"""Two sentences read as one sequence, `[BOS] a [EOS] b`: vectors that tell which is which."""

import torch.nn as nn

from data.tokenizer import EOS, SPECIAL


class Segments(nn.Module):
    """A trained vector for the tokens of each sentence, added to theirs (Devlin et al. 2019). With
    four vectors, those of a token whose word also stands in the other sentence are others."""

    def __init__(self, n, n_embd):
        super().__init__()
        self.vectors = nn.Embedding(n, n_embd)

    def forward(self, idx):
        """idx (B, T) -> (B, T, C)."""
        ends = (idx == EOS).int()
        which = (ends.cumsum(1) > ends).long()  # 0 up to the first [EOS], then 1
        if len(self.vectors.weight) == 4:
            which = which + 2 * in_other(idx, which)
        return self.vectors(which)


def in_other(idx, which):
    """Return (B, T) bool: whether a token of idx (B, T) also stands in the other sentence. which
    (B, T): the sentence of each."""
    same = (idx[:, :, None] == idx[:, None]) & (which[:, :, None] != which[:, None])  # (B, T, T)
    return same.any(-1) & (idx >= len(SPECIAL))
