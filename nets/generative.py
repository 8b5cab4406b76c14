"""Classification by likelihood: one language model per class; the most likely class is chosen.

With few rows, models of the text of each class generalise better than models of the boundary
between them (Ng & Jordan 2002; Yogatama et al. 2017, "Generative and Discriminative Text
Classification with Recurrent Neural Networks").
"""

import torch
import torch.nn as nn

from data.batching import send
from data.tokenizer import EOS, MASK, SPECIAL
from model import Decoder, Encoder, LanguageModel

HIDDEN = 4  # an encoder reads a text four times, each time with every fourth word hidden


class GenerativeClassifier(nn.Module):
    """log p(text | class) for each class: the sum over the words and [EOS], no prior.

    masked: the models are masked LMs, and the score is a pseudo-log-likelihood, the sum over the
    known words of log p(word | the text with every fourth word hidden). Salazar et al. 2020 hide
    one word at a time. Several members, each with a model per class, are averaged in
    log-likelihood.
    """

    layers = "none"  # no states are pooled: there is no answer by layer to look at

    def __init__(self, config, n_class, members=1, masked=False):
        super().__init__()
        self.masked, body = masked, Encoder if masked else Decoder
        classes = ([LanguageModel(body(config)) for _ in range(members)] for _ in range(n_class))
        self.members_of_class = nn.ModuleList(map(nn.ModuleList, classes))

    @property
    def body(self):
        """The body of the first class, to look inside."""
        return self.members_of_class[0][0].body

    def forward(self, idx, mask=None):
        """idx, mask (B, T), texts that begin with [BOS] -> log-likelihoods in nats (B, n_class)."""
        mask = torch.ones_like(idx, dtype=torch.bool) if mask is None else mask
        scores = torch.zeros(len(idx), len(self.members_of_class), device=idx.device)
        for inputs, targets, real in self.questions(idx, mask):
            targets = targets.cpu()  # losses reads them there: wait for a GPU once, not per model
            text = send((targets != -100).nonzero()[:, 0], idx.device)  # (N,): of each target
            for c, members in enumerate(self.members_of_class):
                losses = [member.losses(inputs, targets, real) for member in members]  # M of (N,)
                scores[:, c].index_add_(0, text, -torch.stack(losses).mean(0))
        return scores

    features = forward  # what `embed` of an opened run returns

    def project(self, features):
        return features

    def questions(self, idx, mask):
        """Yield inputs and targets (B, T), and a mask (B, T) or None. Together they cover every
        word of texts idx, mask (B, T)."""
        if not self.masked:
            yield idx, following(idx, mask), None  # in a decoder no word sees the padding after it
            return
        words = idx >= len(SPECIAL)  # (B, T)
        for i in range(HIDDEN):
            hidden = words & (words.cumsum(1) % HIDDEN == i)
            yield idx.masked_fill(hidden, MASK), idx.masked_fill(~hidden, -100), mask


def following(idx, mask):
    """Return the targets (B, T) of texts idx, mask (B, T): the next word, [EOS] after the last
    one, -100 on padding."""
    words = idx.roll(-1, dims=1)
    inside = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    return words.masked_fill(~inside, EOS).masked_fill(~mask, -100)
