"""Classification by likelihood: one decoder per class; the most likely class is chosen.

With few rows, models of the text of each class generalise better than models of the boundary
between them (Ng & Jordan 2002; Yogatama et al. 2017, "Generative and Discriminative Text
Classification with Recurrent Neural Networks").
"""

import torch
import torch.nn as nn

from data.tokenizer import EOS
from model import Decoder, LanguageModel


class GenerativeClassifier(nn.Module):
    """log p(text | class) for each class: the sum over the words and [EOS], no prior. Members, each
    with a decoder per class, are averaged in log-likelihood."""

    layers = "none"  # no states are pooled: there is no answer by layer to look at

    def __init__(self, config, n_class, members=1):
        super().__init__()
        classes = ([LanguageModel(Decoder(config)) for _ in range(members)] for _ in range(n_class))
        self.members_of_class = nn.ModuleList(map(nn.ModuleList, classes))

    @property
    def body(self):
        """The body of the first class, to look inside."""
        return self.members_of_class[0][0].body

    def forward(self, idx, mask=None):
        """idx, mask (B, T), texts that begin with [BOS] -> log-likelihoods in nats (B, n_class)."""
        mask = torch.ones_like(idx, dtype=torch.bool) if mask is None else mask
        targets = following(idx, mask).cpu()  # losses reads them there: wait for a GPU only once
        scores = torch.zeros(len(idx), len(self.members_of_class), device=idx.device)
        text = (targets != -100).nonzero()[:, 0].to(idx.device)  # (N,): of each target
        for c, members in enumerate(self.members_of_class):
            losses = torch.stack([member.losses(idx, targets) for member in members])  # (M, N)
            scores[:, c].index_add_(0, text, -losses.mean(0))
        return scores

    features = forward  # what `embed` of an opened run returns

    def project(self, features):
        return features


def following(idx, mask):
    """Return the targets (B, T) of texts idx, mask (B, T): the next word, [EOS] after the last
    one, -100 on padding."""
    inside = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    return idx.roll(-1, dims=1).masked_fill(~inside, EOS).masked_fill(~mask, -100)
