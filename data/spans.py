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
    corrupted = torch.zeros_like(mask)
    corrupted[:, 1:] = choose_spans(mask.sum(1) - 1, T - 1, gen, rate, mean_span)
    begins = corrupted.clone()
    begins[:, 1:] &= ~corrupted[:, :-1]
    sentinels = first + begins.cumsum(1) - 1  # (B, T)
    source, source_mask = squeeze(torch.where(begins, sentinels, idx), mask & (begins | ~corrupted))
    # The target has a place for a sentinel before each token, and one for [EOS] at the end
    target = torch.stack([sentinels, idx], dim=2).view(B, 2 * T)
    keep = torch.stack([begins, corrupted], dim=2).view(B, 2 * T)
    ends = torch.full((B, 1), EOS)
    target, keep = torch.cat([target, ends], dim=1), torch.cat([keep, ends == EOS], dim=1)
    return source, source_mask, *squeeze(target, keep)


def choose_spans(counts, T, gen, rate, mean_span):
    """Return (B, T) bool: which of a row's first counts (B,) tokens are corrupted."""
    B, place = len(counts), torch.arange(T + 1)
    luck = torch.rand(2, B, generator=gen)
    n_corrupted = (rate * counts + luck[0]).floor().long().clamp(min=1).minimum(counts)  # (B,)
    n_kept = counts - n_corrupted
    n_spans = (n_corrupted / mean_span + luck[1]).floor().long().clamp(min=1)
    n_spans = n_spans.minimum(n_corrupted).minimum(n_kept + 1)
    # Cut the corrupted tokens 0, 1, ... into spans: all but the first begin at chosen tokens
    corrupted = place < n_corrupted[:, None]  # (B, T + 1)
    span_of_token = draw(corrupted & (place > 0), n_spans - 1, gen).cumsum(1)
    # Each span has a gap of its own: gap i comes after i kept tokens. The chosen gaps go first
    chosen = draw(place <= n_kept[:, None], n_spans, gen)  # (B, T + 1)
    gap_of_span = (~chosen).long().argsort(dim=1, stable=True)
    # Before a corrupted token are the corrupted ones with smaller numbers, and the kept ones
    places = (place + gap_of_span.gather(1, span_of_token)).masked_fill(~corrupted, T)
    return torch.zeros(B, T + 1, dtype=torch.bool).scatter(1, places, True)[:, :T]


def draw(allowed, k, gen):
    """Choose k (B,) of each row's allowed places, (B, N) bool; all choices are equally likely."""
    order = torch.rand(allowed.shape, generator=gen).masked_fill(~allowed, 2.0)
    return order.argsort(dim=1).argsort(dim=1) < k[:, None]


def squeeze(values, keep):
    """Move the values (B, N) to keep to the left; return them padded, (B, M), and their mask."""
    mask = torch.arange(int(keep.sum(1).max())) < keep.sum(1)[:, None]
    order = (~keep).long().argsort(dim=1, stable=True)[:, : mask.size(1)]
    return values.gather(1, order).masked_fill(~mask, PAD), mask


def most(n_tokens, rate, mean_span):
    """Return the most (corrupted tokens, spans) that `corrupt` can choose in a text of n_tokens."""
    n_corrupted = min(n_tokens, math.floor(rate * n_tokens) + 1)
    return n_corrupted, min(n_corrupted, math.floor(n_corrupted / mean_span) + 1)


def restore(source, target, first):
    """Return the text of a source and a target, lists of ids. A gap without words stays one."""
    gaps, words = {}, []
    for i in target[: target.index(EOS)] if EOS in target else target:
        if i >= first:
            words = gaps.setdefault(i, [])
        else:
            words.append(i)
    return [word for i in source for word in gaps.get(i) or [i]]
