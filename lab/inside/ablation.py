"""Switch off the heads of a model one by one and measure how its answers change.

A head is switched off by zeros in place of its output, before the output projection mixes the heads
(Michel et al. 2019, "Are sixteen heads really better than one?").
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lab.inside.lens import final_logits, first_member


@dataclass
class Effect:
    """The losses and answers at M places. part, layer and head name the head that is off."""

    losses: torch.Tensor  # (M,) in nats
    words: torch.Tensor  # (M,) the likeliest words or classes
    part: str = ""  # encoder, decoder or cross, if the run has several attentions
    layer: int = 0  # counted from 1; 0: no head is off
    head: int = 0


@contextmanager
def switched_off(attention, head):
    """Switch off one head, counted from 0, of an Attention."""
    D = attention.out.in_features // attention.n_head

    def zero(module, args):
        y = args[0].clone()  # (B, T, C), the heads side by side
        y[..., head * D : (head + 1) * D] = 0
        return (y,)

    hook = attention.out.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


def attentions(body):
    """Return all attentions of a body, [(part, index of the block, Attention)]."""
    if not hasattr(body, "decoder"):
        return [("", i, block.attention) for i, block in enumerate(body.blocks)]
    found = [
        (part, i, block.attention)
        for part, side in (("encoder", body.encoder), ("decoder", body.decoder))
        for i, block in enumerate(side.blocks)
    ]
    return found + [
        ("cross", i, block.cross_attention) for i, block in enumerate(body.decoder.blocks)
    ]


def ablate(run, questions):
    """Return the Effect of the whole model and of each head that is switched off.

    Losses are those of the true words, or where they are unknown, of the whole model's own answers.
    Of an ensemble, only the first member is measured.
    """
    model, called = first_member(run.model), set()
    found = attentions(model.body)
    hooks = [
        attention.register_forward_pre_hook(lambda attention, _: called.add(attention))
        for *_, attention in found
    ]
    logits = final_logits(model, questions)
    for hook in hooks:
        hook.remove()
    targets = torch.where(questions.targets >= 0, questions.targets, logits.argmax(-1))

    def effect(logits, *name):
        losses = F.cross_entropy(logits.float(), targets, reduction="none")
        return Effect(losses.cpu(), logits.argmax(-1).cpu(), *name)

    whole, effects = effect(logits), []
    for part, i, attention in found:
        if attention not in called:  # a comment without ancestors has no encoder and no cross
            continue
        for head in range(attention.n_head):
            with switched_off(attention, head):
                off = final_logits(model, questions)
            effects.append(effect(off, part, i + 1, head + 1))
    return whole, effects
