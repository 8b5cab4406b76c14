"""Masking and noise: which tokens are changed, how often, and how."""

from itertools import groupby
from statistics import mean

import pytest
import torch

from data import batching
from data.masking import mask_tokens
from data.tokenizer import BOS, EOS, MASK, PAD, SPECIAL, UNK, train_tokenizer, word_starts

V = 1005


def some_rows(n=400, T=40):
    """Return rows of all lengths: [BOS], words with one [UNK], [EOS], padding."""
    idx = torch.randint(len(SPECIAL), V, (n, T))
    idx[:, 0], idx[:, 3] = BOS, UNK
    for row, length in zip(idx, torch.randint(6, T + 1, (n,))):
        row[length - 1] = EOS
        row[length:] = PAD
    return idx


def hide(idx, seed=0, **more):  # two of three tokens continue a word
    return mask_tokens(idx, V, batching.generator(seed), starts=torch.arange(V) % 3 == 0, **more)


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_a_share_of_the_words_is_hidden_eighty_percent_masked_ten_drawn_ten_kept(unit):
    # Long rows only: in short ones, the one unit always hidden may exceed the share
    idx = some_rows(3000, 200)[:, :130]
    idx = idx[(idx >= len(SPECIAL)).sum(1) > 90]
    inputs, labels = hide(idx, unit=unit)
    share = (labels != -100).sum().item() / (idx >= len(SPECIAL)).sum().item()
    assert share == pytest.approx(0.15, rel=0.03)
    special, chosen = idx < len(SPECIAL), labels != -100
    assert not (special & chosen).any()
    assert torch.equal(labels[chosen], idx[chosen]) and torch.equal(inputs[~chosen], idx[~chosen])
    changed = inputs[inputs != idx]
    assert ((changed == MASK) | (changed >= len(SPECIAL))).all() and changed.max() < V
    assert len(changed.unique()) > 900  # random words come from the whole vocabulary
    assert (inputs[chosen] == MASK).float().mean().item() == pytest.approx(0.8, abs=0.01)
    assert (inputs[chosen] == idx[chosen]).float().mean().item() == pytest.approx(0.1, abs=0.01)


def test_every_row_hides_the_rounded_share_and_at_least_one():
    idx = some_rows()
    wanted, got = 0.15 * (idx >= len(SPECIAL)).sum(1), (hide(idx)[1] != -100).sum(1)
    assert ((got >= wanted.floor()) & (got <= wanted.ceil()) | (got == 1)).all() and got.min() == 1
    assert hide(torch.tensor([[BOS, UNK, EOS], [BOS, 50, PAD]]))[1].tolist()[1] == [-100, 50, -100]


def test_whole_words_are_hidden_with_all_their_pieces():
    text = "unbelievable winters cover unforgettable harbours while fishermen mend everything"
    # So few merges that every word is several pieces
    tokenizer = train_tokenizer("bpe", ["the winter harbour"], 270)
    idx, _ = batching.pad(batching.sentences(tokenizer, [text] * 200, 200)[0])
    pieces = [tokenizer.decode([i]) for i in idx[0, 1:].tolist()]
    word = torch.tensor([piece.startswith(" ") for piece in pieces]).cumsum(0)
    _, labels = mask_tokens(idx, 270, batching.generator(0), 0.2, "word", word_starts(tokenizer))
    hidden = labels[:, 1:] != -100
    for w in range(9):
        part = hidden[:, word == w]
        assert part.size(1) > 1 and torch.equal(part.any(1), part.all(1))
        assert 0 < part.all(1).float().mean() < 0.6


def test_spans_are_runs_of_about_three_tokens():
    idx, lengths = torch.randint(len(SPECIAL), V, (500, 100)), {}
    for unit in ("token", "span"):
        rows = (hide(idx, unit=unit)[1] != -100).tolist()
        runs = [(hidden, len(list(run))) for row in rows for hidden, run in groupby(row)]
        lengths[unit] = [length for hidden, length in runs if hidden]
    assert mean(lengths["token"]) == pytest.approx(1 / 0.85, rel=0.05)  # neighbours by chance
    assert 2.2 < mean(lengths["span"]) < 4.2 and max(lengths["span"]) > 5


def test_noise_drops_swaps_and_hides_words_at_their_rates():
    idx, counts = torch.randint(len(SPECIAL), V, (3000, 20)), torch.ones(V, dtype=torch.long)
    idx[:, 0], counts[V // 2 :] = BOS, 3
    targets, gen = idx.roll(-1, 1), batching.generator(0)
    x, y = batching.noise_tokens(idx, targets, counts, gen, drop=0.1, swap=0.2, rare=0.3)
    words = idx != BOS
    assert torch.equal(x[~words], idx[~words]) and (y[y != targets] == UNK).all()
    assert (x[words] == UNK).float().mean().item() == pytest.approx(0.1, abs=0.005)
    swapped = words & (x != idx) & (x != UNK)
    assert (swapped.sum() / words.sum()).item() == pytest.approx(0.2, abs=0.006)
    assert (counts[x[swapped]] == 3).float().mean().item() == pytest.approx(0.75, abs=0.02)
    # Only words that occur once become unknown targets
    once = (counts[targets] == 1) & (targets >= len(SPECIAL))
    assert (y[once] == UNK).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(y[~once], targets[~once])
