"""Exercises 1, 7 and 8: a padded batch, next-word prediction, and masked words."""

import math

import torch
import torch.nn.functional as F

from course.exercises.sizes import sizes
from data import batching
from data.masking import mask_tokens
from data.tokenizer import BOS, MASK, PAD, SPECIAL, UNK
from lab import optim


def pad_cases(gen):
    for lengths in ([3, 5, 2], [4, 1], [2, 6, 6, 3]):
        yield ([torch.randint(5, 50, (n,), generator=gen) for n in lengths],)


def padded(sequences, value=PAD, T=0, more=0):
    idx = torch.nn.utils.rnn.pad_sequence(sequences, True, value)
    real = torch.arange(idx.size(1)) < torch.tensor([[len(s) + more] for s in sequences])
    return (idx[:, :T], real[:, :T]) if T else (idx, real)


def next_words(ids, T):
    return batching.consecutive_blocks(ids, T)


def next_cases(gen):
    for n in (11, 14, 8, 3):  # tokens to predict in blocks of 4
        ids = torch.randint(5, 99, (n + 1,), generator=gen)
        ids[n // 2] = 0  # an id like any other
        yield ids, 4


def shifted(ids, T, n):
    """Return the targets, n instead of one word later."""
    targets = next_words(ids, T)[1]
    moved = ids[n:][: len(ids) - 1]
    return F.pad(moved, (0, targets.numel() - len(moved)), value=-100).view_as(targets)


def loss(logits, targets):
    return each(logits, targets).mean()


def each(logits, targets):
    """Return the (N,) losses of the targets that are not -100."""
    real = targets != -100
    return F.cross_entropy(logits[real], targets[real], reduction="none")


def perplexity(batches):
    nats = [each(*batch) for batch in batches]
    return torch.tensor(optim.perplexity(torch.cat(nats).sum().item(), sum(map(len, nats))))


def loss_cases(gen, n=2, V=9):
    for _ in range(n):
        B, T = sizes(gen, 2)
        targets = torch.randint(V, (B, T), generator=gen)
        targets[0, T // 2 :] = -100
        yield 2 * torch.randn(B, T, V, generator=gen), targets


def perplexity_cases(gen):
    for n in (3, 2):
        yield (list(loss_cases(gen, n)),)


def mask_words(idx, vocab_size, rate, gen):
    return mask_tokens(idx, vocab_size, gen, rate)


def masking_cases(gen):
    idx = torch.randint(5, 40, (64, 256), generator=gen)
    idx[:, 0], idx[:, 5:40], idx[::2, 200:] = BOS, UNK, PAD
    yield from ((idx, 40, 0.15), (idx, 40, 0.4))


def disguised(idx, V, chosen, gen, mask=0.8, other=0.9, lowest=5):
    dice = torch.rand(idx.shape, generator=gen)
    words = torch.randint(lowest, V, idx.shape, generator=gen)
    inputs = torch.where(chosen & (dice < mask), MASK, idx)
    inputs = torch.where(chosen & (dice >= mask) & (dice < other), words, inputs)
    return inputs, idx.masked_fill(~chosen, -100)


def choose(idx, rate, gen, lowest=5):
    return (torch.rand(idx.shape, generator=gen) < rate) & (idx >= lowest)


PADS = (
    "the mask is inverted: True marks real tokens, False padding.",
    lambda sequences: (padded(sequences)[0], ~padded(sequences)[1]),
    "the padding is on the left. Put it after the tokens.",
    lambda sequences: tuple(t.flip(1) for t in padded([s.flip(0) for s in sequences])),
    "long sequences are cut to the shortest. Make all as long as the longest.",
    lambda sequences: padded(sequences, T=min(map(len, sequences))),
    "the padding is -100, which no embedding has. Use PAD = 0; -100 is for targets.",
    lambda sequences: padded(sequences, -100),
    "the mask has an off-by-one: the first token of the padding counts as real.",
    lambda sequences: padded(sequences, more=1),
    "the mask is True everywhere, also on padding.",
    lambda sequences: padded(sequences, more=99),
)
NEXT = (
    "the targets are the inputs themselves. Shift them: the target of token t is token t + 1.",
    lambda ids, T: (next_words(ids, T)[0], shifted(ids, T, 0)),
    "the targets are shifted twice: the target of token t is token t + 1, not t + 2.",
    lambda ids, T: (next_words(ids, T)[0], shifted(ids, T, 2)),
    "inputs and targets are returned in the wrong order.",
    lambda ids, T: next_words(ids, T)[::-1],
    "the targets go round: the last one is the first word again (roll?). Its target is ids[-1].",
    lambda ids, T: (next_words(ids, T)[0], next_words(torch.cat([ids[:-1], ids[:1]]), T)[1]),
    "the last, incomplete block is lost. Fill it with 0 in the inputs and -100 in the targets.",
    lambda ids, T: tuple(t[: (len(ids) - 1) // T] for t in next_words(ids, T)),
    "the last word is never predicted. N + 1 ids have N targets: inputs ids[:-1], targets ids[1:].",
    lambda ids, T: next_words(ids[:-1], T),
    "the last target is -100. N + 1 ids have N targets: inputs ids[:-1], targets ids[1:].",
    lambda ids, T: (next_words(ids, T)[0], next_words(ids[:-1], T)[1]),
    "the end is filled with 0 in the targets, so padding is predicted. Fill it with -100.",
    lambda ids, T: (x := next_words(ids, T)) and (x[0], x[1].clamp(min=0)),
    "the last id is an input, but nothing follows it. The inputs are ids[:-1].",
    lambda ids, T: (
        F.pad(ids, (0, T))[: next_words(ids, T)[0].numel()].view(-1, T),
        next_words(ids, T)[1],
    ),
    "there is an empty block where T divides N, so the shape is wrong. Round up: n = -(-N // T).",
    lambda ids, T: tuple(
        F.pad(t, (0, 0, 0, (len(ids) - 1) // T + 1 - len(t)), value=fill)
        for t, fill in zip(next_words(ids, T), (PAD, -100))
    ),
    "the last target of each block is lost. It is the first word of the next block: shift the "
    "whole text, then cut it.",
    lambda ids, T: (x := next_words(ids, T)) and (x[0], F.pad(x[1][:, :-1], (0, 1), value=-100)),
    "blocks of T ids give T - 1 targets: the first word of each block is never predicted.",
    lambda ids, T: tuple(next_words(F.pad(ids, (0, 1)), T)[0][:, a : a + T - 1] for a in (0, 1)),
)
LOSS = (
    "padding counts in the number of tokens. Divide by the number of targets that are not -100.",
    lambda logits, targets: each(logits, targets).sum() / targets.numel(),
    "the losses are summed. Divide by the number of targets that are not -100.",
    lambda logits, targets: each(logits, targets).sum(),
    "the loss has the wrong sign. It is minus the mean of log p(target).",
    lambda logits, targets: -loss(logits, targets),
    "the loss is in bits (log2). In nats the logarithm is the natural one.",
    lambda logits, targets: loss(logits, targets) / math.log(2),
    "the losses are divided by the number of sentences. Divide by that of the targets.",
    lambda logits, targets: each(logits, targets).sum() / len(targets),
    "the targets are shifted a second time in the loss. next_words has shifted them already.",
    lambda logits, targets: loss(logits[:, :-1], targets[:, 1:]),
    "the logits go through a softmax before cross_entropy, which applies its own.",
    lambda logits, targets: loss(logits.softmax(-1), targets),
    "nll_loss gets probabilities. It takes their logarithms: log_softmax instead of softmax.",
    lambda logits, targets: -each(logits, targets).neg().exp().mean(),
    "the softmax is over the positions (dim=1). The probabilities of all V words must sum to 1: "
    "dim=-1.",
    lambda logits, targets: F.nll_loss(logits.log_softmax(1).flatten(0, 1), targets.flatten()),
    "the loss of each sentence is averaged before the batch. Average over all tokens at once.",
    lambda logits, targets: torch.stack([loss(*pair) for pair in zip(logits, targets)]).mean(),
)
PPL = (
    "the perplexities of the batches are averaged. Take exp(all nats / all tokens).",
    lambda batches: sum(perplexity([batch]) for batch in batches) / len(batches),
    "the losses of the batches are averaged, though batches differ in their number of tokens.",
    lambda batches: (sum(loss(*batch) for batch in batches) / len(batches)).exp(),
    "the sign is wrong: perplexity is exp(+ mean loss), and never below 1.",
    lambda batches: 1 / perplexity(batches),
    "only the last batch counts. Take exp(all nats / all tokens).",
    lambda batches: perplexity(batches[-1:]),
    "only the first batch counts: `return` inside the loop? Take exp(all nats / all tokens).",
    lambda batches: perplexity(batches[:1]),
    "the perplexities of the sentences are averaged. Take exp(all nats / all tokens).",
    lambda batches: (
        torch.cat([torch.stack([loss(*pair) for pair in zip(*batch)]) for batch in batches])
        .exp()
        .mean()
    ),
    "batches count by all their tokens, with padding. Weight a mean loss by its targets that are "
    "not -100.",
    lambda batches: torch.exp(
        sum(loss(*batch) * batch[1].numel() for batch in batches)
        / sum(y.numel() for _, y in batches)
    ),
    "this is 2 to the power of nats. With natural logarithms the base is e.",
    lambda batches: 2 ** perplexity(batches).log(),
    "this is the mean loss. Perplexity is its exponential.",
    lambda batches: perplexity(batches).log(),
    "padding counts in the number of tokens. Divide by the number of targets that are not -100.",
    lambda batches: torch.exp(
        sum(each(*batch).sum() for batch in batches) / sum(y.numel() for _, y in batches)
    ),
)
DISGUISES = (
    "the words that become random or stay get no loss. All chosen words need their label.",
    lambda idx, V, rate, gen: (
        (x := mask_words(idx, V, rate, gen))
        and (x[0], idx.masked_fill((x[0] != MASK) | (x[1] == -100), -100))
    ),
    "all chosen words become [MASK]: 10% of them should be random words, 10% should stay.",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen), gen, 1.0),
    "special tokens are masked as well. Choose only among ids from 5 on.",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen, 0), gen),
    "random words can be special tokens. Draw ids from 5 to vocab_size - 1.",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen), gen, lowest=0),
    "random words go up to vocab_size, which is not an id. Draw ids from 5 to vocab_size - 1.",
    lambda idx, V, rate, gen: disguised(idx, V + 1, choose(idx, rate, gen), gen),
    "20% become random words and none stays. It is 80% [MASK], 10% random, 10% as they are.",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen), gen, other=1.0),
    "too few words become random: 10% of the chosen do, half of those that are not [MASK].",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen), gen, other=0.8),
    "id 5 is never chosen, but 5 is a word: idx >= 5, not idx > 5.",
    lambda idx, V, rate, gen: disguised(idx, V, choose(idx, rate, gen, 6), gen),
    "the 10% random words replace some [MASK] again. Let one random number decide for each word.",
    lambda idx, V, rate, gen: (
        (x := disguised(idx, V, choose(idx, rate, gen), gen, other=0.0))
        and (disguised(x[0], V, (x[1] != -100) & choose(idx, 0.1, gen), gen, 0, 1)[0], x[1])
    ),
    "the labels are 0 where no word is chosen. They are -100 there, which the loss ignores.",
    lambda idx, V, rate, gen: (x := mask_words(idx, V, rate, gen)) and (x[0], x[1].clamp(min=0)),
    "every token has a label, also those that were not chosen. Their labels are -100.",
    lambda idx, V, rate, gen: (mask_words(idx, V, rate, gen)[0], idx),
    "the labels hold the disguise. They hold the original words: copy idx before you change it.",
    lambda idx, V, rate, gen: (
        (x := mask_words(idx, V, rate, gen)) and (x[0], x[0].masked_fill(x[1] == -100, -100))
    ),
    "all rows hide the same positions. Draw a number for each token, of shape (B, T).",
    lambda idx, V, rate, gen: disguised(
        idx, V, choose(idx[:1], rate, gen, 0) & (idx >= len(SPECIAL)), gen
    ),
)
PADDING = {"pad": (batching.pad, pad_cases, ("idx", "mask"), PADS)}
PERPLEXITY = {
    "next_words": (next_words, next_cases, ("inputs", "targets"), NEXT),
    "loss": (loss, loss_cases, ("loss",), LOSS),
    "perplexity": (perplexity, perplexity_cases, ("perplexity",), PPL),
}
MASKING = {"mask_words": (mask_words, masking_cases, ("inputs", "labels"), DISGUISES, "disguises")}
