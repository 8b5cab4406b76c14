"""Several language models as one: their probabilities are averaged."""

import math

import torch
import torch.nn as nn


def members_of(model):
    """Return the language models of an ensemble, or the model itself in a list."""
    return list(getattr(model, "members", [model]))


class Ensemble(nn.Module):
    """Language models of one architecture, each trained separately: p(w) = sum_m p_m(w) / M. This
    cancels errors that the members do not share."""

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def body(self):
        """The body of the first member, to look inside."""
        return self.members[0].body

    def forward(self, idx):
        """idx (B, T) -> the logarithm of the averaged probabilities (B, T, V)."""
        logs = [member(idx).log_softmax(-1) for member in self.members]
        return torch.stack(logs).logsumexp(0) - math.log(len(self.members))  # (B, T, V)

    def loss(self, idx, targets, smoothing=0.0):
        """Return the summed loss of the targets that are not negative. In training, idx (M * B, T)
        has B rows for each member; in evaluation, it is that of the averaged probabilities."""
        if not self.training:
            return self.losses(idx, targets).sum()
        M = len(self.members)
        parts = zip(self.members, idx.chunk(M), targets.chunk(M))
        return sum(member.loss(x, y, smoothing=smoothing) for member, x, y in parts)

    def losses(self, idx, targets):
        """Return the (N,) losses of the averaged probabilities, as `LanguageModel.losses`."""
        losses = torch.stack([member.losses(idx, targets) for member in self.members])  # (M, N)
        return math.log(len(self.members)) - torch.logsumexp(-losses, 0)
