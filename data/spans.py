"""Span corruption (Raffel et al. 2020, section 3.1.4): gaps in a text, and the words of the gaps.

    text      Thank you for inviting me to your party last week .
    source    Thank you [S0] me to your party [S1] week .
    target    [S0] for inviting [S1] last [EOS]

Each gap has a sentinel, numbered from the left. The target has after each the tokens of that gap.
"""

import math

import torch

from data.tokenizer import EOS, PAD


def corrupt(idx, mask, first, gen, rate=0.15, mean_span=3):
    """Return source, source_mask (B, S), target, target_mask (B, U) of sequences idx, mask (B, T).

    Each is [BOS] and a text, of which a share `rate` is corrupted, in spans of `mean_span` tokens
    on average, at least one. All ways to cut the corrupted tokens into so many spans, and to place
    these without two being adjacent, are equally likely. first: the id of [S0]."""
    B, T = idx.shape
    corrupted = torch.zeros_like(mask)  # (B, T)
    corrupted[:, 1:] = choose_spans(mask.sum(1) - 1, T - 1, gen, rate, mean_span)  # not [BOS]
    begins = corrupted.clone()  # (B, T) where a span begins
    begins[:, 1:] &= ~corrupted[:, :-1]
    sentinels = first + begins.cumsum(1) - 1  # (B, T)

    # The source has a sentinel in place of each span
    source = torch.where(begins, sentinels, idx)
    source, source_mask = squeeze(source, mask & (begins | ~corrupted))

    # The target has a place for a sentinel before each token, and one for [EOS] at the end
    target = torch.stack([sentinels, idx], dim=2).view(B, 2 * T)  # (B, T, 2) -> (B, 2T)
    keep = torch.stack([begins, corrupted], dim=2).view(B, 2 * T)
    target = torch.cat([target, torch.full((B, 1), EOS)], dim=1)
    keep = torch.cat([keep, torch.ones(B, 1, dtype=torch.bool)], dim=1)
    target, target_mask = squeeze(target, keep)
    return source, source_mask, target, target_mask


def choose_spans(counts, T, gen, rate, mean_span):
    """Return (B, T) bool: which of a row's first counts (B,) tokens are corrupted."""
    B = len(counts)
    place = torch.arange(T + 1)
    luck = torch.rand(2, B, generator=gen)  # rounds at random
    n_corrupted = (rate * counts + luck[0]).floor().long()  # (B,)
    n_corrupted = n_corrupted.clamp(min=1).minimum(counts)
    n_kept = counts - n_corrupted
    n_spans = (n_corrupted / mean_span + luck[1]).floor().long().clamp(min=1)  # (B,)
    n_spans = n_spans.minimum(n_corrupted).minimum(n_kept + 1)
    # Cut the corrupted tokens 0, 1, ... into spans: all but the first begin at chosen tokens
    corrupted = place < n_corrupted[:, None]  # (B, T + 1)
    span_of_token = draw(corrupted & (place > 0), n_spans - 1, gen).cumsum(1)
    # Each span has a gap of its own: gap i comes after i kept tokens. The chosen gaps go first
    chosen = draw(place <= n_kept[:, None], n_spans, gen)  # (B, T + 1)
    gap_of_span = (~chosen).long().argsort(dim=1, stable=True)
    # Before a corrupted token are the corrupted ones with smaller numbers, and the kept ones
    places = place + gap_of_span.gather(1, span_of_token)  # (B, T + 1)
    places = places.masked_fill(~corrupted, T)  # a place that is dropped
    return torch.zeros(B, T + 1, dtype=torch.bool).scatter(1, places, True)[:, :T]


def draw(allowed, k, gen):
    """Choose k (B,) of each row's allowed places, (B, N) bool; all choices are equally likely."""
    luck = torch.rand(allowed.shape, generator=gen)
    luck = luck.masked_fill(~allowed, 2.0)  # behind all that are allowed
    ranks = luck.argsort(dim=1).argsort(dim=1)  # (B, N)
    return ranks < k[:, None]


def squeeze(values, keep):
    """Move the values (B, N) to keep to the left; return them padded, (B, M), and their mask."""
    counts = keep.sum(1)  # (B,)
    M = int(counts.max())
    mask = torch.arange(M) < counts[:, None]  # (B, M)
    order = (~keep).long().argsort(dim=1, stable=True)  # those to keep first, in their order
    squeezed = values.gather(1, order[:, :M])
    return squeezed.masked_fill(~mask, PAD), mask


def most(n_tokens, rate, mean_span):
    """Return the most (corrupted tokens, spans) that `corrupt` can choose in a text of n_tokens."""
    n_corrupted = min(n_tokens, math.floor(rate * n_tokens) + 1)
    n_spans = min(n_corrupted, math.floor(n_corrupted / mean_span) + 1)
    return n_corrupted, n_spans


def restore(source, target, first):
    """Return the text of a source and a target, lists of ids. A gap without words stays one."""
    if EOS in target:
        target = target[: target.index(EOS)]
    gaps = {}  # sentinel -> the words of its gap
    words = []  # of the current gap; before the first sentinel, they are dropped
    for i in target:
        if i >= first:
            words = gaps.setdefault(i, [])
        else:
            words.append(i)
    text = []
    for i in source:
        if gaps.get(i):
            text += gaps[i]
        else:
            text.append(i)
    return text
