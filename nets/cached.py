"""Read a text token by token without rereading it for each one."""

import torch


class CachedReader:
    """Reads the next tokens of a text with a decoder, and keeps the keys and values of all tokens.
    Keys are kept as they are before any position enters, so an encoding acts on them as on those of
    a text read at once. Memory: 2 n_layer (B, T, C)."""

    def __init__(self, body):
        self.body, self.n_read = body, 0
        self.past = [{} for _ in body.blocks]  # of each layer {"k", "v"}, extended by its attention

    def read(self, idx, **more):
        """idx (B, n): the next tokens -> h (B, n, C). more: see `Transformer.forward`."""
        if self.body.config.random_positions:  # all positions change with the length: read anew
            self.idx = torch.cat([self.idx, idx], dim=1) if self.n_read else idx
            self.n_read = self.idx.size(1)
            return self.body(self.idx, **more)[:, -idx.size(1) :]
        self.n_read += idx.size(1)
        at = torch.arange(self.n_read, device=idx.device)
        return self.body(idx, at=at, past=self.past, **more)
