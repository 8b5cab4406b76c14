"""Two sentences as one sequence, `[BOS] a [EOS] b`: which is which, and BERT's second task."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from data.tokenizer import EOS, SPECIAL
from model import LanguageModel


class Segments:
    """Replaces Transformer.token_vectors: adds the vectors of SegmentVectors."""

    def __init__(self, config, *parts):
        super().__init__(config, *parts)
        self.segments = SegmentVectors(config)

    def token_vectors(self, idx):
        return super().token_vectors(idx) + self.segments(idx)


class SegmentVectors(nn.Module):
    """A trained vector for the tokens of each sentence, added to theirs (Devlin et al. 2019). With
    four vectors, those of a token whose word also stands in the other sentence are others. They
    are zero at first, so that a body which was trained without them reads as before."""

    def __init__(self, config):
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(config.n_segment, config.n_embd))

    def forward(self, idx):
        """idx (B, T) -> (B, T, C)."""
        ends = (idx == EOS).int()
        sentence = (ends.cumsum(1) > ends).long()  # 0 up to the first [EOS], then 1
        if len(self.vectors) == 2:
            return self.vectors[sentence]
        return self.vectors[sentence + 2 * in_other(idx, sentence)]


def in_other(idx, sentence):
    """Return (B, T) bool: whether a token of idx (B, T) also stands in the other sentence. sentence
    (B, T): that of each token."""
    same_word = idx[:, :, None] == idx[:, None]  # (B, T, T)
    across = sentence[:, :, None] != sentence[:, None]
    is_word = idx >= len(SPECIAL)
    return (same_word & across).any(-1) & is_word


class NextSentence(LanguageModel):
    """A masked LM that also tells from the state of [BOS] whether b follows a (Devlin et al. 2019,
    section 3.1)."""

    def __init__(self, body, head=None):
        super().__init__(body, head)
        self.follows = nn.Linear(body.config.n_embd, 2)

    def both_losses(self, idx, targets, mask, follows):
        """Return the sum of the losses of the targets (B, T) that are not negative, and that of
        telling for B pairs whether b follows, (B,) long, 1 or 0."""
        h = self.body(idx, mask)  # (B, T, C)
        is_target = targets >= 0  # (B, T)
        words = F.cross_entropy(self.head(h[is_target]), targets[is_target], reduction="sum")
        second = F.cross_entropy(self.follows(h[:, 0]), follows, reduction="sum")
        return words, second

    @torch.no_grad()
    def tell(self, idx, mask, follows):
        """Return of how many pairs idx (B, T) the model tells whether b follows, (B,)."""
        logits = self.follows(self.body(idx, mask)[:, 0])  # (B, 2)
        return (logits.argmax(-1) == follows).sum().item()
