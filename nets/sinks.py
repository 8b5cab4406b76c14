"""Attention that may look at nothing."""

import torch
import torch.nn as nn


class Sinks:
    """Replaces Attention.attend: a trained number of each head takes part in the softmax's sum, but
    brings no value (gpt-oss, OpenAI 2025). The weights of a query sum to less than 1, so a head
    with nothing to find need not put its weight on the first token."""

    def __init__(self, config):
        super().__init__(config)
        self.sink = nn.Parameter(torch.zeros(config.n_head))

    def attend(self, q, k, v, bias):
        # The same as softmax over one more key of zeros, whose value is zero and whose bias is sink
        k = torch.cat([k, torch.zeros_like(k[:, :, :1])], dim=2)  # (B, H, S + 1, D)
        v = torch.cat([v, torch.zeros_like(v[:, :, :1])], dim=2)
        B, _, T, S = bias.shape
        bias = bias.expand(B, self.n_head, T, S)
        sink = self.sink.to(bias.dtype).view(1, -1, 1, 1).expand(B, -1, T, 1)
        return super().attend(q, k, v, torch.cat([bias, sink], dim=-1))
