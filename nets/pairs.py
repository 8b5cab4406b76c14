"""Two sentences as one sequence, `[BOS] a [EOS] b`: which is which, and BERT's second task."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from data.tokenizer import EOS, SPECIAL
from model import LanguageModel


class Segments(nn.Module):
    """A trained vector for the tokens of each sentence, added to theirs (Devlin et al. 2019). With
    four vectors, those of a token whose word also stands in the other sentence are others. They
    are zero at first, so that a body which was trained without them reads as before."""

    def __init__(self, config):
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(config.n_segment, config.n_embd))

    def forward(self, idx):
        """idx (B, T) -> (B, T, C)."""
        ends = (idx == EOS).int()
        which = (ends.cumsum(1) > ends).long()  # 0 up to the first [EOS], then 1
        if len(self.vectors) == 4:
            which = which + 2 * in_other(idx, which)
        return self.vectors[which]


def in_other(idx, which):
    """Return (B, T) bool: whether a token of idx (B, T) also stands in the other sentence. which
    (B, T): the sentence of each."""
    same = (idx[:, :, None] == idx[:, None]) & (which[:, :, None] != which[:, None])  # (B, T, T)
    return same.any(-1) & (idx >= len(SPECIAL))


class NextSentence(LanguageModel):
    """A masked LM that also tells from the state of [BOS] whether b follows a (Devlin et al. 2019,
    section 3.1)."""

    def __init__(self, body):
        super().__init__(body)
        self.follows = nn.Linear(body.config.n_embd, 2)

    def both_losses(self, idx, targets, mask, follows):
        """Return the sum of the losses of the targets (B, T) that are not negative, and that of
        telling for B pairs whether b follows, (B,) long, 1 or 0."""
        h = self.body(idx, mask)  # (B, T, C)
        words = F.cross_entropy(self.head(h[targets >= 0]), targets[targets >= 0], reduction="sum")
        return words, F.cross_entropy(self.follows(h[:, 0]), follows, reduction="sum")

    @torch.no_grad()
    def tell(self, idx, mask, follows):
        """Return of how many pairs idx (B, T) the model tells whether b follows, (B,)."""
        logits = self.follows(self.body(idx, mask)[:, 0])  # (B, 2)
        return (logits.argmax(-1) == follows).sum().item()
