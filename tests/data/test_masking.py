"""Masking: which tokens are hidden, how often, and how they are disguised."""

from itertools import groupby
from statistics import mean

import pytest
import torch

from data import batching
from data.masking import UNITS, mask_tokens
from data.noise import noise_tokens
from data.tokenizer import BOS, EOS, MASK, PAD, SPECIAL, UNK, train_tokenizer, word_starts

V = 1005


def some_rows(n=400, T=40):
    """Return rows of all lengths: [BOS], words with one [UNK], [EOS], padding."""
    gen = torch.Generator().manual_seed(0)
    idx = torch.randint(len(SPECIAL), V, (n, T), generator=gen)
    idx[:, 0], idx[:, 3] = BOS, UNK
    for row, length in zip(idx, torch.randint(6, T + 1, (n,), generator=gen)):
        row[length - 1] = EOS
        row[length:] = PAD
    return idx


def starts(V):
    """Return starts (V,) in which two of three tokens continue a word."""
    return torch.arange(V) % 3 == 0


def hide(idx, seed=0, **more):
    return mask_tokens(idx, V, batching.generator(seed), starts=starts(V), **more)


@pytest.mark.parametrize("unit", UNITS)
def test_special_tokens_and_padding_are_never_masked_or_drawn(unit):
    idx = some_rows()
    inputs, labels = hide(idx, unit=unit)
    special, chosen = idx < len(SPECIAL), labels != -100
    assert not (special & chosen).any()
    assert torch.equal(labels[chosen], idx[chosen]) and torch.equal(inputs[~chosen], idx[~chosen])
    changed = inputs[inputs != idx]
    assert ((changed == MASK) | (changed >= len(SPECIAL))).all() and changed.max() < V


@pytest.mark.parametrize("unit", UNITS)
def test_eighty_percent_masked_ten_random_ten_kept(unit):
    idx = some_rows(4000)
    inputs, labels = hide(idx, unit=unit, rate=0.3)
    chosen = labels != -100
    share = {"mask": inputs[chosen] == MASK, "kept": inputs[chosen] == idx[chosen]}
    share = {name: hits.float().mean().item() for name, hits in share.items()}
    assert share["mask"] == pytest.approx(0.8, abs=0.01)  # three standard errors of about 25,000
    assert share["kept"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("unit", UNITS)
def test_the_share_of_hidden_tokens_is_the_rate_on_average(unit, rate):
    # Long rows only: in short ones, the one unit always hidden may exceed the share.
    idx = some_rows(1000, 200)[:, :130]
    idx = idx[(idx >= len(SPECIAL)).sum(1) > 90]
    _, labels = hide(idx, unit=unit, rate=rate)
    share = (labels != -100).sum().item() / (idx >= len(SPECIAL)).sum().item()
    assert share == pytest.approx(rate, rel=0.03)


def test_every_row_hides_the_rounded_share_and_at_least_one():
    idx = some_rows()
    _, labels = hide(idx)
    wanted, got = 0.15 * (idx >= len(SPECIAL)).sum(1), (labels != -100).sum(1)
    assert ((got >= wanted.floor()) & (got <= wanted.ceil()) | (got == 1)).all() and got.min() == 1


def test_every_word_is_chosen_equally_often():
    idx = torch.arange(20, 30).expand(20_000, 10)
    _, labels = hide(idx, rate=0.2)
    often = (labels != -100).float().mean(0)
    # Four standard errors
    torch.testing.assert_close(often, torch.full((10,), 0.2), atol=0.012, rtol=0)


def test_random_words_come_from_the_whole_vocabulary():
    idx = torch.full((3000, 40), 500)
    inputs, _ = hide(idx, rate=0.9)
    drawn = inputs[(inputs != 500) & (inputs != MASK)]
    assert drawn.min() == len(SPECIAL)
    assert drawn.max() == V - 1
    assert len(drawn.unique()) > 0.99 * (V - 6)


def test_rows_without_words_hide_nothing():
    idx = torch.tensor([[BOS, PAD, PAD], [BOS, UNK, EOS], [BOS, 50, PAD]])
    inputs, labels = hide(idx)
    assert (labels[:2] == -100).all()
    assert torch.equal(inputs[:2], idx[:2])
    assert labels[2].tolist() == [-100, 50, -100]
    assert (mask_tokens(idx[:2], len(SPECIAL), batching.generator(0))[1] == -100).all()


@pytest.mark.parametrize("unit", UNITS)
def test_masks_depend_on_the_generator_alone(unit):
    idx, before = some_rows(), torch.get_rng_state()
    for one, two in zip(hide(idx, 1, unit=unit), hide(idx, 1, unit=unit)):
        assert torch.equal(one, two)
    assert not torch.equal(hide(idx, 1, unit=unit)[1], hide(idx, 2, unit=unit)[1])
    assert torch.equal(before, torch.get_rng_state())


# ---------------------------------------------------------------------------- words and spans


def test_whole_words_are_hidden_with_all_their_pieces():
    text = "unbelievable winters cover unforgettable harbours while fishermen mend everything"
    # So few merges that every word is several pieces
    tokenizer = train_tokenizer("bpe", ["the winter harbour"], 270)
    sequences, _ = batching.sentences(tokenizer, [text] * 200, 200)
    idx, _ = batching.pad(sequences)
    # A piece that begins with a space begins a word.
    pieces = [tokenizer.decode([i]) for i in idx[0, 1:].tolist()]
    word = torch.tensor([piece.startswith(" ") for piece in pieces]).cumsum(0)
    _, labels = mask_tokens(idx, 270, batching.generator(0), 0.2, "word", word_starts(tokenizer))
    hidden = labels[:, 1:] != -100
    for w in range(9):
        part = hidden[:, word == w]
        assert part.size(1) > 1 and torch.equal(part.any(1), part.all(1))
        assert 0 < part.all(1).float().mean() < 0.6
    assert hidden.float().mean().item() == pytest.approx(0.2, rel=0.2)


def test_a_special_token_ends_a_word():
    pieces = [BOS, 10, 11, EOS, 13, 14, EOS]  # none of them has the mark of a word's beginning
    _, labels = hide(torch.tensor([pieces]).expand(200, -1), unit="word", rate=0.3)
    first, second = (labels[:, part] != -100 for part in (slice(1, 3), slice(4, 6)))
    for hidden in (first, second):
        assert torch.equal(hidden.any(1), hidden.all(1))
    assert not (first & second).all(1).any()


def test_spans_are_runs_of_about_three_tokens():
    idx = torch.randint(len(SPECIAL), V, (500, 100))
    tokens, spans = (
        [
            len(list(run))
            for row in (hide(idx, unit=unit)[1] != -100).tolist()
            for hidden, run in groupby(row)
            if hidden
        ]
        for unit in ("token", "span")
    )
    assert mean(tokens) == pytest.approx(1 / 0.85, rel=0.05)  # neighbours by chance only
    assert 2.2 < mean(spans) < 4.2 and max(spans) > 5


# ---------------------------------------------------------------------------- noise


def noisy(seed=0, **more):
    gen = torch.Generator().manual_seed(1)
    idx = torch.randint(len(SPECIAL), V, (3000, 20), generator=gen)
    idx[:, 0] = BOS
    targets, counts = idx.roll(-1, 1), torch.ones(V, dtype=torch.long)
    counts[V // 2 :] = 3
    noised = noise_tokens(idx, targets, counts, batching.generator(seed), **more)
    return idx, targets, counts, noised


def test_noise_drops_and_swaps_words_at_their_rates():
    idx, targets, counts, (x, y) = noisy(drop=0.1, swap=0.2)
    words = idx != BOS
    assert torch.equal(x[~words], idx[~words]) and torch.equal(y, targets)
    assert (x[words] == UNK).float().mean().item() == pytest.approx(0.1, abs=0.005)
    swapped = words & (x != idx) & (x != UNK)
    assert swapped.sum().item() / words.sum().item() == pytest.approx(0.2, abs=0.006)
    # Half of the words occur three times as often as the others.
    assert (counts[x[swapped]] == 3).float().mean().item() == pytest.approx(0.75, abs=0.02)


def test_only_words_that_occur_once_become_unknown_targets():
    idx, targets, counts, (x, y) = noisy(rare=0.3)
    assert torch.equal(x, idx) and (y[y != targets] == UNK).all()
    once = (counts[targets] == 1) & (targets >= len(SPECIAL))
    assert (y[once] == UNK).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(y[~once], targets[~once])


def test_noise_depends_on_the_generator_alone():
    runs = (noisy(seed, drop=0.1, swap=0.2, rare=0.3)[3] for seed in (0, 0, 1))
    for one, same, other in zip(*runs):  # inputs, then targets
        assert torch.equal(one, same) and not torch.equal(one, other)
