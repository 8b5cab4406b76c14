"""Take attention scores apart: how much comes from the words, how much from their positions."""

import math

import torch


@torch.no_grad()
def take_apart(body, inputs, cross, may):
    """Return content and position, each (L, B, H, T, S): softmax(content + position) are the
    weights of a transformer's self-attention, or with cross of its cross-attention.

    content is q k^T / sqrt(D). position is the bias, as of ALiBi, and what a rotation changes; None
    where position is not part of the score: learned, sinusoidal, NoPE and cross-attention. inputs:
    what the body reads. Both are -inf where `may` (B, H, T, S) forbids attention.
    """
    content, turned = (scores.cpu() for scores in scores_of(body, inputs, cross))
    position = turned - content
    bias = None if cross else body.attention_bias(content.size(-2))
    if bias is not None:
        position = position + bias.cpu()
    content, position = (part.masked_fill(~may, -math.inf) for part in (content, position))
    in_scores = position.nan_to_num(neginf=0.0).any()
    return content, position if in_scores else None


def scores_of(body, inputs, cross=False):
    """Return q k^T / sqrt(D) of all layers, without and with the rotation, both (L, B, H, T, S)."""
    found = []  # a pair for each layer

    def look(attention, args, more):
        plain = scores_in(attention, *args, **more | {"angles": None})
        found.append((plain, scores_in(attention, *args, **more)))

    modules = [block.cross_attention if cross else block.attention for block in body.blocks]
    hooks = [module.register_forward_pre_hook(look, with_kwargs=True) for module in modules]
    body(**inputs)
    for hook in hooks:
        hook.remove()
    return [torch.stack(layers) for layers in zip(*found)]


def scores_in(attention, *args, **more):
    """Return q k^T / sqrt(D), (B, H, T, S), of the q and k that an Attention gives its kernel."""
    found = []

    def look(q, k, *_, **__):
        found.append(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)))
        return q  # of the right shape; nothing reads the output

    # Not attention(), which would call the hook
    attention.forward(*args, **more | {"kernel": look, "need_weights": False})
    return found[0]
