"""A network that knows the order of the tokens by itself, in the place of a decoder."""

import torch.nn as nn

from model import NoPE


class Recurrent(nn.Module):
    """An LSTM (Hochreiter & Schmidhuber 1997): it reads one token after the other and passes on a
    state of fixed size. What it reads later must go through this state, however far back it was.
    Padding after the tokens changes nothing before it."""

    causal = True

    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, C)
        self.positions = NoPE(config, causal=True)
        self.dropout = nn.Dropout(config.dropout)
        between_layers = config.dropout if config.n_layer > 1 else 0.0  # else PyTorch warns
        self.lstm = nn.LSTM(C, C, config.n_layer, batch_first=True, dropout=between_layers)

    def forward(self, idx, mask=None, picked=None):
        """idx (B, T) long -> h (B, T, C), or those of the tokens picked, as in `Transformer`."""
        x = self.dropout(self.embedding(idx))
        h, _ = self.lstm(x)  # (B, T, C)
        h = self.dropout(h)
        if picked is not None:
            h = h.flatten(0, 1).index_select(0, picked)  # (N, C)
        return h
