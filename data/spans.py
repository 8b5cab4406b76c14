"""Span corruption (Raffel et al. 2020, section 3.1.4): gaps in a text, and the words that stood in them.

    text      Thank you for inviting me to your party last week .
    source    Thank you [S0] me to your party [S1] week .
    target    [S0] for inviting [S1] last [EOS]

A gap has a sentinel, numbered from the left; the target says after each sentinel what stood there, and so how long the gap was.
"""

import math

import torch

from data.tokenizer import EOS, PAD


def corrupt(idx, mask, first, gen, rate=0.15, mean_span=3):
    """Sequences (B, T), each [BOS] and a text, with their mask -> source, source_mask (B, S) and target, target_mask (B, U).

    In each text `rate` of the tokens are hidden, in spans of `mean_span` tokens on average; both numbers are rounded at
    random, and each is at least one. Every way to cut the hidden tokens into so many spans and to place these, no two of
    them adjacent, is equally likely. (T5's own code lets a text begin unhidden and end hidden: of a sentence with one span
    it would hide the end, always.) first: id of [S0]. [BOS] is never hidden; targets end with [EOS]. In texts of a few
    words, one token is more than `rate`.
    """
    B, T = idx.shape
    hidden = torch.zeros_like(mask)
    hidden[:, 1:] = choose_spans(mask.sum(1) - 1, T - 1, gen, rate, mean_span)
    begins = hidden.clone()
    begins[:, 1:] &= ~hidden[:, :-1]
    sentinels = first + begins.long().cumsum(1) - 1  # (B, T)
    source, source_mask = squeeze(torch.where(begins, sentinels, idx), mask & (begins | ~hidden))
    # Before each token of the text there is room for a sentinel, and after the last for [EOS].
    target = torch.stack([sentinels, idx], dim=2).view(B, 2 * T)
    keep = torch.stack([begins, hidden], dim=2).view(B, 2 * T)
    ends = torch.full((B, 1), EOS)
    return (
        source,
        source_mask,
        *squeeze(torch.cat([target, ends], dim=1), torch.cat([keep, ends == EOS], dim=1)),
    )


def choose_spans(counts, T, gen, rate, mean_span):
    """(B, T) bool: which of a row's first counts (B,) tokens are hidden."""
    luck, place = torch.rand(2, len(counts), generator=gen), torch.arange(T + 1)
    n_hidden = (rate * counts + luck[0]).floor().long().clamp(min=1).minimum(counts)  # (B,)
    n_kept = counts - n_hidden
    n_spans = (
        (n_hidden / mean_span + luck[1])
        .floor()
        .long()
        .clamp(min=1)
        .minimum(n_hidden)
        .minimum(n_kept + 1)
    )
    # Cut the hidden tokens into spans: all but the first begin at chosen tokens.
    cuts = draw((place > 0) & (place < n_hidden[:, None]), n_spans - 1, gen)  # (B, T + 1)
    lengths = torch.zeros(len(counts), T + 1, dtype=torch.long).scatter_add(
        1, cuts.long().cumsum(1), (place < n_hidden[:, None]).long()
    )
    # Put each in front of a chosen one of the tokens that stay, or behind the last, which these then make room for.
    slots = draw(place <= n_kept[:, None], n_spans, gen)  # (B, T + 1)
    lengths = lengths.gather(1, (slots.long().cumsum(1) - 1).clamp(min=0)) * slots
    # (B, T + 1) where each token that stays will stand
    stays = (place + lengths.cumsum(1)).masked_fill(place >= n_kept[:, None], T)
    kept = torch.zeros(len(counts), T + 1, dtype=torch.bool).scatter(1, stays, True)
    return ~kept[:, :T] & (place[:T] < counts[:, None])


def draw(allowed, k, gen):
    """(B, N) bool with k (B,) of each row's allowed places, all choices equally likely."""
    return (
        torch.rand(allowed.shape, generator=gen)
        .masked_fill(~allowed, 2.0)
        .argsort(dim=1)
        .argsort(dim=1)
        < k[:, None]
    )


def squeeze(values, keep):
    """values (B, N) -> those to keep, moved to the left and filled up with [PAD], (B, M), and their mask."""
    mask = torch.arange(int(keep.sum(1).max())) < keep.sum(1)[:, None]
    order = (~keep).long().argsort(dim=1, stable=True)[:, : mask.size(1)]
    return values.gather(1, order).masked_fill(~mask, PAD), mask


def most(n_tokens, rate, mean_span):
    """(hidden tokens, spans) that `corrupt` chooses at most in a text of n_tokens."""
    n_hidden = min(n_tokens, max(1, math.floor(rate * n_tokens) + 1))
    return n_hidden, min(n_hidden, max(1, math.floor(n_hidden / mean_span) + 1))


def restore(source, target, first):
    """The text (list of ids) a source and a target (lists of ids) make together; a gap of which the target says nothing
    keeps its sentinel."""
    gaps, words = {}, []
    for i in target[: target.index(EOS)] if EOS in target else target:
        if i >= first:
            words = gaps.setdefault(i, [])
        else:
            words.append(i)
    return [word for i in source for word in gaps.get(i, [i])]
