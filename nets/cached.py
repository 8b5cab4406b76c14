"""Read a text token by token without rereading it for each one."""

from contextlib import ExitStack, contextmanager

import torch


class CachedReader:
    """Reads the next tokens of a text with a decoder, and keeps the keys and values of all tokens.
    Keys are kept as they are before any position enters, so an encoding acts on them as on those of
    a text read at once. Memory: 2 n_layer (B, T, C)."""

    def __init__(self, body):
        self.body = body
        self.idx = None  # (B, n_read), the tokens read so far
        self.past = {}  # of each attention the keys and values (B, H, n_read, D)

    def read(self, idx, **inputs):
        """idx (B, n): the next tokens -> h (B, n, C). inputs: see `Transformer.start`."""
        n = idx.size(1)
        if self.idx is not None:
            idx = torch.cat([self.idx, idx], dim=1)
        self.idx = idx
        config = self.body.config
        if config.random_positions or config.body == "lstm":
            # All positions change with the length, or there are no keys to keep: read anew
            return self.body(idx, **inputs)[:, -n:]
        at = self.body.number(idx, mask=None)
        with ExitStack() as stack:
            for block in self.body.blocks:
                stack.enter_context(remember(block.attention, self.past))
            return self.body(idx[:, -n:], at=at, **inputs)


@contextmanager
def remember(attention, past):
    """Within this context, an attention also reads the keys and values in past[attention], and adds
    the new ones to them."""
    mix = attention.mix

    def mix_with_past(q, k, v, where):
        if attention in past:
            past_k, past_v = past[attention]
            k = torch.cat([past_k, k], dim=2)  # (B, H, S, D)
            v = torch.cat([past_v, v], dim=2)
        past[attention] = k, v
        return mix(q, k, v, where)

    attention.mix = mix_with_past  # hides the method
    try:
        yield
    finally:
        del attention.mix
