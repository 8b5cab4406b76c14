"""Several language models as one, whose probabilities are averaged."""

import math

import torch
import torch.nn as nn


class Ensemble(nn.Module):
    """Language models of one architecture, each trained by itself, whose probabilities are averaged.

    p(w) = sum_m p_m(w) / M. What one of them invents the others do not share, so the average is surer where it should be.
    """

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def body(self):
        """The first member's: to look inside."""
        return self.members[0].body

    def forward(self, idx, mask=None):
        """idx (B, T), mask (B, T) -> log of the averaged probabilities (B, T, V)."""
        logs = torch.stack(
            [member(idx, mask).log_softmax(-1) for member in self.members]
        )  # (M, B, T, V)
        return logs.logsumexp(0) - math.log(len(self.members))

    def loss(self, idx, targets, mask=None, smoothing=0.0):
        """Summed over the targets that are not -100. In training idx (M * B, T) holds B rows for each member, and
        the members' losses are added up; in evaluation it is the loss of the average."""
        M = len(self.members)
        if self.training:
            masks = [None] * M if mask is None else mask.chunk(M)
            return sum(
                member.loss(*part, smoothing)
                for member, *part in zip(self.members, idx.chunk(M), targets.chunk(M), masks)
            )
        losses = torch.stack(
            [member.losses(idx, targets, mask) for member in self.members]
        )  # (M, N)
        return -(torch.logsumexp(-losses, 0) - math.log(M)).sum()
