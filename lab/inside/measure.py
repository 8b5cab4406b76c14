"""Instruments that read what happens inside a model, or change it for a while.

They stand in the place of methods of the model's own modules, and call these methods. So an edit of
model.py shows in what they measure.
"""

import math
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch

from data.files import UserError
from model import Transformer


def halves(body):
    """Return the Transformers of a body: itself, or those of an encoder-decoder."""
    if hasattr(body, "decoder"):
        return [body.encoder, body.decoder]
    return [body]


def attentions(body):
    """Return all attentions of a body, [(part, layer counted from 1, Attention)]. part: encoder,
    decoder or cross; "" if the body is one Transformer. Raises UserError for a body without any."""
    if body.config.body == "lstm":
        raise UserError("an LSTM has no attention to look at; give a run without --body lstm")
    if not hasattr(body, "decoder"):
        return [("", layer, block.attention) for layer, block in enumerate(body.blocks, 1)]
    rows = []
    for layer, block in enumerate(body.encoder.blocks, 1):
        rows.append(("encoder", layer, block.attention))
    for layer, block in enumerate(body.decoder.blocks, 1):
        rows.append(("decoder", layer, block.attention))
    for layer, block in enumerate(body.decoder.blocks, 1):
        rows.append(("cross", layer, block.cross_attention))
    return rows


# -------------------------------------------------------------------------- Weights and scores
class Record(NamedTuple):
    """What an attention computes in one call. Both kinds of scores are -inf where attention is not
    allowed."""

    weights: torch.Tensor  # (B, H, T, S)
    content: torch.Tensor  # scores q k^T / sqrt(D), without positions, (B, H, T, S)
    position: torch.Tensor  # what positions add to these scores, (B, H, T, S)
    turned: torch.Tensor  # the share of that from turning or scaling q and k, (B, H, T, S)
    q: torch.Tensor  # (B, H, T, D), before positions enter
    k: torch.Tensor  # (B, H, S, D)
    lengths: torch.Tensor  # of the values, (B, H, S)


def measure(body, inputs):
    """Return h (B, T, C) of a body that reads the inputs, and {part: [the Record of each layer]}.
    A part that is not called has no Records."""
    records = {}
    with ExitStack() as stack:
        for half in halves(body):
            stack.enter_context(with_table(half))
        for part, _, attention in attentions(body):
            records_of_part = records.setdefault(part, [])
            stack.enter_context(recorded(attention, records_of_part))
        h = body(**inputs)
    return h, records


@contextmanager
def with_table(half):
    """Within this context, a Transformer makes its table of biases also where a kernel could do
    without it (nets/kernels.py)."""
    half.bias = partial(Transformer.bias, half)  # hides the method
    try:
        yield
    finally:
        del half.bias


@contextmanager
def recorded(attention, records):
    """Within this context, an Attention appends a Record of each call to the list `records`."""
    recorder = Recorder(attention, records)
    attention.mix = recorder.mix  # hides the method
    attention.attend = recorder.attend
    try:
        yield
    finally:
        del attention.mix
        del attention.attend


class Recorder:
    """Stands in the place of an Attention's `mix` and `attend`, and calls them."""

    def __init__(self, attention, records):
        self.attention = attention
        self.model_mix = attention.mix
        self.model_attend = attention.attend
        self.records = records
        self.q_and_k = None  # of the current call, before positions enter

    def mix(self, q, k, v, where):
        scaled_q = q
        if hasattr(self.attention, "scale"):  # a LogScale
            scaled_q = self.attention.scale(q, k)
        self.q_and_k = scaled_q, k
        return self.model_mix(q, k, v, where)

    def attend(self, q, k, v, bias):
        """Return the output of the weights. They are what the attention's own `attend` returns for
        values that are the rows of an identity matrix: a weighted sum of these is the weights."""
        B, H, S, _ = v.shape
        identity = torch.eye(S, device=v.device, dtype=v.dtype).expand(B, H, S, S)
        weights = self.model_attend(q, k, identity, bias)  # (B, H, T, S)
        first_q, first_k = self.q_and_k or (q, k)  # cross-attention has no positions and no `mix`
        content = score(first_q, first_k)
        turned = score(q, k) - content
        position = turned
        if bias is not None:
            position = turned + bias
        content = content.masked_fill(position == -math.inf, -math.inf)
        lengths = v.norm(dim=-1)  # (B, H, S)
        record = Record(weights, content, position, turned, first_q, first_k, lengths)
        self.records.append(record)
        return weights @ v


def score(q, k):
    """q (B, H, T, D), k (B, H, S, D) -> q k^T / sqrt(D), (B, H, T, S)."""
    return q @ k.mT / math.sqrt(q.size(-1))


# ------------------------------------------------------------------------- Other instruments
def states_between_blocks(body, half, inputs):
    """Return the n_layer + 1 states (B, T, C) before, between and after the blocks of a half, while
    the body reads its inputs."""
    states = []

    def keep_input(block, args):
        states.append(args[0])

    def keep_output(block, args, output):
        states.append(output)

    with ExitStack() as stack:
        stack.enter_context(half.blocks[0].register_forward_pre_hook(keep_input))
        for block in half.blocks:
            stack.enter_context(block.register_forward_hook(keep_output))
        body(**inputs)
    return states


def switch_off(attention, head):
    """Switch off one head, counted from 1, of an Attention in a `with` block: zeros take the place
    of its output, before the output projection (Michel et al. 2019)."""

    def zero(module, args):
        y = args[0].clone()  # (B, T, C), the heads side by side
        y_of_heads = y.chunk(attention.n_head, dim=-1)  # views, H of (B, T, D)
        y_of_heads[head - 1].zero_()
        return (y,)

    return attention.out.register_forward_pre_hook(zero)
