"""Read a model's answers at each word of a text: after each layer, and without each head.

A causal model is asked for the next word, a masked LM for each word, masked in turn, a classifier
for the class. A layer's answers are read from its states by the final norm and the head, as if no
layer followed: the logit lens (nostalgebraist 2020). See `switch_off` for heads.
"""

from contextlib import ExitStack
from functools import cached_property

import torch
import torch.nn.functional as F

from data.tokenizer import BOS, EOS, MASK, UNK
from lab.inside.measure import attentions, states_between_blocks, switch_off
from nets.classifier import pool_tokens
from nets.ensemble import members_of

MOST_WORK = 6 * 10**11  # multiplications, about half a minute of a CPU


class Questions:
    """What a run is asked about a text: for a word at M places, or for the class.

    Place m is inputs["idx"][rows[m], places[m]]; -1: the text as a whole. targets (M,): the true
    words, -100 where unknown. Of an ensemble, layers and heads are those of the first member."""

    def __init__(self, run, inputs):
        """inputs: what the run's body reads of the text, without padding."""
        self.run = run
        self.model = members_of(run.model)[0]
        self.inputs = inputs
        if run.kind == "classifier":
            self.ask_for_the_class()
        elif run.kind in ("lm", "seq2seq"):
            self.ask_for_next_words()
        else:
            self.ask_for_masked_words()

    def ask_for_the_class(self):
        ids = self.inputs["idx"][0]  # (T,)
        self.rows = ids.new_tensor([0])
        self.places = ids.new_tensor([-1])
        self.targets = ids.new_tensor([-100])

    def ask_for_next_words(self):
        ids = self.inputs["idx"][0]
        self.rows = torch.zeros_like(ids)
        self.places = torch.arange(len(ids), device=ids.device)
        self.targets = F.pad(true_words(ids)[1:], (0, 1), value=-100)  # nothing follows the last

    def ask_for_masked_words(self):
        """Mask one word in each of M copies of the text. If that is too much work for all words,
        only some are masked, evenly spread."""
        ids = self.inputs["idx"][0]
        config = self.run.model.body.config
        work = len(ids) * 12 * config.n_layer * config.n_embd**2  # of one row
        n_passes = 1 + config.n_layer * config.n_head  # of the whole model, and without each head
        most = MOST_WORK // (work * n_passes)
        places = ((ids != BOS) & (ids != EOS)).nonzero().squeeze(1)
        M = min(len(places), max(4, most))
        chosen = torch.linspace(0, len(places) - 1, M).round().long()
        self.rows = torch.arange(M, device=ids.device)
        self.places = places[chosen]
        self.targets = true_words(ids)[self.places]
        idx = ids.repeat(M, 1)  # (M, T)
        idx[self.rows, self.places] = MASK
        copies = {}
        for name, x in self.inputs.items():
            copies[name] = x
            if not name.startswith("texts"):  # a thread's ancestors are the same for all rows
                copies[name] = x.expand(M, -1)
        copies["idx"] = idx
        self.inputs = copies

    @torch.no_grad()
    def answer(self):
        """Return the model's answers as logits (M, V)."""
        if self.run.kind == "classifier":
            return self.model(self.inputs["idx"])
        T = self.inputs["idx"].size(1)
        picked = self.rows * T + self.places  # (M,) of the rows' tokens one after another
        h = self.model.body(**self.inputs, picked=picked)  # (M, C)
        return self.model.head(h)

    @cached_property
    @torch.no_grad()
    def layers(self):
        """The answers after each of L layers: their "names", the likeliest "words" and their
        "probabilities" (L, M, k), and of the true word "true", its probability (L, M), and "ranks",
        counted from 1. Where that is unknown, they are NaN and 0. All members of an ensemble come
        last. A classifier has layers if it reads the states of the last one."""
        names = ["answer"]
        logits = [self.answer()]  # of each layer (M, V)
        if self.run.kind != "classifier" or self.model.layers == "last":
            logits = self.answer_after_each_layer()
            names = ["embedding"]
            for layer in range(1, len(logits)):
                names.append(f"layer {layer}")
        if self.model is not self.run.model:
            names.append(f"all {len(self.run.model.members)} members")
            logits.append(self.run.model(self.inputs["idx"])[0])
        probabilities = torch.stack(logits).softmax(-1).cpu()  # (L, M, V)
        k = min(5, probabilities.size(-1))
        best, words = probabilities.topk(k)  # (L, M, k)

        targets = self.targets.cpu()
        unknown = targets < 0
        L, M, _ = probabilities.shape
        true_ids = targets.clamp(min=0)[:, None].expand(L, M, 1)
        true = probabilities.gather(-1, true_ids)  # (L, M, 1)
        ranks = 1 + (probabilities > true).sum(-1)  # (L, M)
        return {
            "names": names,
            "words": words,
            "probabilities": best,
            "true": true.squeeze(-1).masked_fill(unknown, torch.nan),
            "ranks": ranks.masked_fill(unknown, 0),
        }

    def answer_after_each_layer(self):
        """Return the answers as logits (M, V), of the embeddings and of each layer."""
        half = self.run.half
        logits = []
        for state in states_between_blocks(self.model.body, half, self.inputs):
            h = half.norm(state)  # (N, T, C), N rows
            if self.run.kind == "classifier":
                mask = torch.ones_like(self.inputs["idx"], dtype=torch.bool)  # (1, T)
                pooled = [pool_tokens(h, mask, pool) for pool in self.model.pool]  # each (1, C)
                features = torch.cat(pooled, dim=1)
                logits.append(self.model.head(self.model.project(features)))
            else:
                logits.append(self.model.head(h[self.rows, self.places]))
        return logits

    @cached_property
    def heads(self):
        """What each of N heads does: "heads", [(part, layer, head)] counted from 1, and what
        `without` tells of each alone."""
        heads = []
        no_ancestors = self.run.kind == "thread" and "texts" not in self.inputs
        for part, layer, attention in attentions(self.model.body):
            if no_ancestors and part != "decoder":
                continue  # it reads nothing
            for head in range(1, attention.n_head + 1):
                heads.append((part, layer, head))
        return {"heads": heads, **self.without([head] for head in heads)}

    def without(self, groups):
        """Return of the whole model, then without each of N groups of heads, "losses" in nats and
        likeliest "words" (1 + N, M). A head is (part, layer, head), counted from 1.

        Losses are those of the true words, or where unknown, of the whole model's own answers."""
        of_place = {}
        for part, layer, attention in attentions(self.model.body):
            of_place[part, layer] = attention
        logits = [self.answer()]  # each (M, V)
        for heads in groups:
            with ExitStack() as stack:
                for part, layer, head in heads:
                    stack.enter_context(switch_off(of_place[part, layer], head))
                logits.append(self.answer())
        words = torch.stack([x.argmax(-1) for x in logits])
        targets = torch.where(self.targets >= 0, self.targets, words[0])
        losses = torch.stack([F.cross_entropy(x, targets, reduction="none") for x in logits])
        return {"losses": losses.cpu(), "words": words.cpu()}


def true_words(ids):
    """Return ids with -100 in place of [MASK] and [UNK], which stand for unknown words."""
    return ids.masked_fill((ids == MASK) | (ids == UNK), -100)
