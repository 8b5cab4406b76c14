"""Batches: streams in blocks, padded sentences, and an order that depends on seed and step."""

import pytest
import torch

from data import batching
from data.tokenizer import BOS, PAD, detokenize, train_tokenizer


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20, 40, 41])
@pytest.mark.parametrize("stride", [0, 1, 3, 8])  # 0: blocks do not overlap
def test_consecutive_blocks_predict_each_token_once(count, stride):
    ids = torch.arange(100, 101 + count)
    inputs, targets = batching.consecutive_blocks(ids, 8, stride)
    wanted = targets != -100
    assert sorted(targets[wanted].tolist()) == ids[1:].tolist()
    assert torch.equal(inputs[wanted] + 1, targets[wanted])  # shifted exactly once
    places = wanted.nonzero()[:, 1][targets[wanted] > 108]  # all targets after the first block
    assert (places >= 8 - (stride or 8)).all()
    assert all(row[row != PAD].diff().eq(1).all() for row in inputs)
    if not stride:
        assert (inputs[~wanted] == PAD).all() and inputs.shape == (-(-count // 8), 8)
    anchored, same = batching.consecutive_blocks(ids, 8, stride, anchor=True)
    assert torch.equal(targets, same) and torch.equal(inputs[:, 1:], anchored[:, 1:])
    assert (anchored[:, 0] == BOS).all()


def test_targets_of_random_blocks_are_shifted_exactly_once():
    ids = torch.arange(1000, 1030)
    gens = (batching.generator(*numbers) for numbers in ((0, 5), (0, 5), (0, 6), (1, 5)))
    (x, y), (same, _), *others = (batching.random_blocks(ids, 8, 500, gen) for gen in gens)
    assert torch.equal(x + 1, y) and torch.equal(x[:, 1:], y[:, :-1])
    assert set(x[:, 0].tolist()) == set(range(1000, 1022))  # every start that fits
    assert torch.equal(x, same) and not any(torch.equal(x, other) for other, _ in others)
    on_disk, _ = batching.random_blocks(ids.to(torch.uint16), 8, 500, batching.generator(0, 5))
    assert torch.equal(x, on_disk) and on_disk.dtype == torch.long


def test_long_sentences_are_cut_or_split_and_counted():
    tokenizer = train_tokenizer("word", ["a b c d e f g"])
    texts = ["a b c", "a b c d", "a b c d e f g", ""]
    for split, expected in ((0, "a b c|a b c|a b c|"), (1, "a b c|a b c|d|a b c|d e f|g|")):
        found, long = batching.sentences(tokenizer, texts, block_size=4, split=split)
        assert "|".join(detokenize(tokenizer, s[1:]) for s in found) == expected and long == 2
        assert all(s[0] == BOS and len(s) <= 4 for s in found)


def test_length_batches_have_similar_lengths_in_random_order():
    lengths = torch.randint(1, 60, (320,))
    gens = map(batching.generator, (1, 2, 1))
    one, two, again = (torch.stack(batching.length_batches(lengths, 16, gen)) for gen in gens)
    spread = (lengths[one].amax(1) - lengths[one].amin(1)).float().mean()
    assert spread < 8 and torch.equal(one, again)
    assert {*map(frozenset, one.tolist())} != {*map(frozenset, two.tolist())}  # other neighbours
