"""Classification by likelihood: one decoder per class, and the class that finds a text most likely.

With few rows, models of the text of each class generalise better than models of the boundary
between them (Ng & Jordan 2002; Yogatama et al. 2017, "Generative and Discriminative Text
Classification with Recurrent Neural Networks").
"""

import torch
import torch.nn as nn

from data.tokenizer import EOS
from model import Decoder, LanguageModel


class GenerativeClassifier(nn.Module):
    """log p(text | class) for each class: the sum over the words and [EOS], no prior.

    Several members, each with a decoder per class, are averaged in log-likelihood.
    """

    layers = "none"  # no states are pooled: there is no answer by layer to look at

    def __init__(self, config, n_class, members=1):
        super().__init__()
        self.members_of_class = nn.ModuleList(
            nn.ModuleList(LanguageModel(Decoder(config)) for _ in range(members))
            for _ in range(n_class)
        )

    @property
    def body(self):
        """The decoder of the first class, to look inside."""
        return self.members_of_class[0][0].body

    def forward(self, idx, mask=None):
        """idx, mask (B, T), texts that begin with [BOS] -> log-likelihoods in nats (B, n_class)."""
        mask = torch.ones_like(idx, dtype=torch.bool) if mask is None else mask
        targets = following(idx, mask)  # (B, T)
        rows = (targets != -100).nonzero()[:, 0]  # the text of each of the N targets
        scores = []
        for members in self.members_of_class:
            losses = torch.stack([member.losses(idx, targets) for member in members])  # (M, N)
            losses = losses.mean(0)  # (N,)
            scores.append(losses.new_zeros(len(idx)).index_add(0, rows, -losses.float()))
        return torch.stack(scores, dim=1)

    def project(self, features):
        return features

    features = forward  # what OpenRun.embed returns

    def copy_to_classes(self):
        """Give the decoders of every class the weights of those of the first class."""
        first, *others = self.members_of_class
        for members in others:
            members.load_state_dict(first.state_dict())

    def train_only_biases(self):
        """Freeze all weights except vectors: the biases and the scales of layer norms."""
        for weight in self.parameters():
            weight.requires_grad_(weight.dim() == 1)


def following(idx, mask):
    """Return the targets (B, T) of texts idx, mask (B, T): the next word, [EOS] after the last
    one, -100 on padding."""
    words = idx.roll(-1, dims=1)
    inside = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], dim=1)
    return words.masked_fill(~inside, EOS).masked_fill(~mask, -100)
