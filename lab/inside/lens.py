"""Read a model's answers at each word of a text: after each layer, and without each head.

A causal model is asked for the next word, a masked LM for each word, masked in turn, a classifier
for the class. A layer's answers are read from its states by the final norm and the head, as if no
layer followed: the logit lens (nostalgebraist 2020). A head is switched off by zeros in place of
its output, before the output projection (Michel et al. 2019).
"""

from contextlib import ExitStack
from functools import cached_property

import torch
import torch.nn.functional as F

from data.tokenizer import BOS, EOS, MASK, UNK
from nets.classifier import pool_tokens
from nets.ensemble import members_of

MOST_WORK = 6 * 10**11  # multiplications, about half a minute of a CPU


def halves(body):
    """Return the Transformers of a body: itself, or those of an encoder-decoder."""
    if hasattr(body, "decoder"):
        return [body.encoder, body.decoder]
    return [body]


def attentions(body):
    """Return all attentions of a body, [(part, layer counted from 1, Attention)]."""
    if not hasattr(body, "decoder"):
        return [("", n, block.attention) for n, block in enumerate(body.blocks, 1)]
    rows = [("encoder", n, block.attention) for n, block in enumerate(body.encoder.blocks, 1)]
    rows += [("decoder", n, block.attention) for n, block in enumerate(body.decoder.blocks, 1)]
    rows += [("cross", n, block.cross_attention) for n, block in enumerate(body.decoder.blocks, 1)]
    return rows


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
    """Switch off one head, counted from 1, of an Attention in a `with` block."""

    def zero(module, args):
        y = args[0].clone()  # (B, T, C), the heads side by side
        y.chunk(attention.n_head, -1)[head - 1].zero_()
        return (y,)

    return attention.out.register_forward_pre_hook(zero)


class Questions:
    """What a run is asked about a text: for a word at M places, or for the class.

    Place m is inputs["idx"][rows[m], places[m]]; -1: the text as a whole. targets (M,): the true
    words, -100 where unknown. Of an ensemble, layers and heads are those of the first member."""

    def __init__(self, run, inputs):
        """inputs: what the run's body reads of the text, without padding. If it is too much work to
        mask each word of a masked LM in turn, only some are, evenly spread."""
        (ids,), config = inputs["idx"], run.model.body.config
        self.run, self.inputs, self.model = run, inputs, members_of(run.model)[0]
        words = ids.masked_fill((ids == MASK) | (ids == UNK), -100)  # they stand for unknown words
        if run.kind == "classifier":
            self.rows, self.places, self.targets = (ids.new_tensor([i]) for i in (0, -1, -100))
        elif run.kind in ("lm", "seq2seq"):
            self.rows, self.places = 0 * ids, torch.arange(len(ids), device=ids.device)
            self.targets = F.pad(words[1:], (0, 1), value=-100)
        else:
            places = ((ids != BOS) & (ids != EOS)).nonzero()[:, 0]
            work = len(ids) * 12 * config.n_layer * config.n_embd**2  # of one row
            most = MOST_WORK // (work * (1 + config.n_layer * config.n_head))
            n = min(len(places), max(4, most))
            self.places = places[torch.linspace(0, len(places) - 1, n).round().long()]
            self.rows, idx = torch.arange(n, device=ids.device), ids.repeat(n, 1)
            idx[self.rows, self.places], self.targets = MASK, words[self.places]
            more = {k: x if k[:5] == "texts" else x.expand(n, -1) for k, x in inputs.items()}
            self.inputs = more | {"idx": idx}

    @torch.no_grad()
    def answer(self):
        """Return the model's answers as logits (M, V)."""
        if self.run.kind == "classifier":
            return self.model(self.inputs["idx"])
        picked = self.rows * self.inputs["idx"].size(1) + self.places
        return self.model.head(self.model.body(**self.inputs, picked=picked))

    @cached_property
    @torch.no_grad()
    def layers(self):
        """The answers after each of L layers: their "names", the likeliest "words" and their
        "probabilities" (L, M, k), and of the true word "true", its probability (L, M), and "ranks",
        counted from 1. Where that is unknown, they are NaN and 0. All members of an ensemble come
        last. A classifier has layers if it reads the states of the last one."""
        run, model, names, logits = self.run, self.model, ["answer"], [self.answer()]
        if run.kind != "classifier" or model.layers == "last":
            half = getattr(model.body, "decoder", model.body)
            states = states_between_blocks(model.body, half, self.inputs)  # of (N, T, C)
            names = ["embedding", *(f"layer {i}" for i in range(1, len(states)))]
            states = [run.half.norm(h) for h in states]
            if run.kind == "classifier":
                mask = torch.ones_like(self.inputs["idx"], dtype=torch.bool)  # (1, T)
                pool = [torch.cat([pool_tokens(h, mask, p) for p in model.pool], 1) for h in states]
                logits = [model.head(model.project(x)) for x in pool]
            else:
                logits = [model.head(h[self.rows, self.places]) for h in states]
        if model is not run.model:
            names.append(f"all {len(run.model.members)} members")
            logits.append(run.model(self.inputs["idx"])[0])
        p = torch.stack(logits).softmax(-1).cpu()  # (L, M, V)
        best, words = p.topk(min(5, p.size(-1)))
        unknown, targets = self.targets.cpu() < 0, self.targets.cpu().clamp(min=0)
        true = p.gather(-1, targets[:, None].expand(len(p), -1, 1))  # (L, M, 1)
        ranks = (1 + (p > true).sum(-1)).masked_fill(unknown, 0)
        true = true[..., 0].masked_fill(unknown, torch.nan)
        return dict(names=names, words=words, probabilities=best, true=true, ranks=ranks)

    @cached_property
    def heads(self):
        """What each of N heads does: "heads", [(part, layer, head)] counted from 1, and of the
        whole model, then without each head, "losses" in nats and likeliest "words" (1 + N, M).

        Losses are those of the true words, or where unknown, of the whole model's own answers."""
        heads, logits = [], [self.answer()]
        for part, layer, attention in attentions(self.model.body):
            if self.run.kind == "thread" and "texts" not in self.inputs and part != "decoder":
                continue  # no ancestors to read
            for head in range(1, attention.n_head + 1):
                with switch_off(attention, head):
                    logits.append(self.answer())
                heads.append((part, layer, head))
        words = torch.stack([x.argmax(-1) for x in logits])
        targets = torch.where(self.targets >= 0, self.targets, words[0])
        losses = torch.stack([F.cross_entropy(x, targets, reduction="none") for x in logits])
        return dict(heads=heads, losses=losses.cpu(), words=words.cpu())
