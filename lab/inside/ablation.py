"""Switch off the heads of a model one by one and measure how its answers change.

A head is switched off by zeros in place of its output, before the output projection mixes the heads
(Michel et al. 2019, "Are sixteen heads really better than one?").
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lab.inside.lens import final_logits
from nets.ensemble import members_of


@dataclass
class Effect:
    """The losses and answers at M places. part, layer and head name the head that is off."""

    losses: torch.Tensor  # (M,) in nats
    words: torch.Tensor  # (M,) the likeliest words or classes
    part: str = ""  # encoder, decoder or cross, if the run has several attentions
    layer: int = 0  # counted from 1; 0: no head is off
    head: int = 0


def switched_off(attention, head):
    """Switch off one head, counted from 0, of an Attention, in a `with` block."""
    D = attention.out.in_features // attention.n_head

    def zero(module, args):
        y = args[0].clone()  # (B, T, C), the heads side by side
        y[..., head * D : (head + 1) * D] = 0
        return (y,)

    return attention.out.register_forward_pre_hook(zero)


def attentions(body):
    """Return all attentions of a body, [(part, index of the block, Attention)]."""
    if not hasattr(body, "decoder"):
        return [("", i, block.attention) for i, block in enumerate(body.blocks)]
    encoder, decoder = body.encoder.blocks, body.decoder.blocks
    return [
        *(("encoder", i, block.attention) for i, block in enumerate(encoder)),
        *(("decoder", i, block.attention) for i, block in enumerate(decoder)),
        *(("cross", i, block.cross_attention) for i, block in enumerate(decoder)),
    ]


def ablate(run, questions):
    """Return the Effect of the whole model and of each head that is switched off.

    Losses are those of the true words, or where they are unknown, of the whole model's own answers.
    Of an ensemble, only the first member is measured.
    """
    model = members_of(run.model)[0]
    found = attentions(model.body)
    if run.kind == "thread" and "texts" not in questions.inputs:  # no ancestors to read
        found = [entry for entry in found if entry[0] == "decoder"]
    logits = final_logits(model, questions)
    targets = torch.where(questions.targets >= 0, questions.targets, logits.argmax(-1))

    def effect(logits, *name):
        losses = F.cross_entropy(logits, targets, reduction="none")
        return Effect(losses.cpu(), logits.argmax(-1).cpu(), *name)

    whole, effects = effect(logits), []
    for part, i, attention in found:
        for head in range(attention.n_head):
            with switched_off(attention, head):
                off = final_logits(model, questions)
            effects.append(effect(off, part, i + 1, head + 1))
    return whole, effects
