"""Span corruption: the documented example, which spans are hidden, and that nothing is lost."""

import re
from collections import Counter

import pytest
import torch

from data import batching, spans
from data.tokenizer import BOS, EOS, add_sentinels, encode, token_strings, train_tokenizer

FIRST = 1000


def test_the_example_of_the_docstring(monkeypatch):
    text, source, target = re.findall(r"^ +(?:text|source|target) +(.+)$", spans.__doc__, re.M)
    tokenizer, plain = train_tokenizer("word", [text]), train_tokenizer("word", [text])
    add_sentinels(tokenizer, 2)
    assert tokenizer.get_vocab().items() > plain.get_vocab().items()
    ids = [BOS, *encode(tokenizer, [text])[0]]
    hidden = torch.tensor([[word in ("for", "inviting", "last") for word in text.split()]])
    monkeypatch.setattr(spans, "choose_spans", lambda counts, T, gen, rate, mean_span: hidden)
    mask, first = torch.ones(1, len(ids), dtype=torch.bool), tokenizer.token_to_id("[S0]")
    got = spans.corrupt(torch.tensor([ids]), mask, first, None)
    assert " ".join(token_strings(tokenizer, got[0][0])) == "[BOS] " + source
    assert " ".join(token_strings(tokenizer, got[2][0])) == target


@pytest.mark.parametrize("rate, mean_span", [(0.15, 3.0), (0.6, 1.0)])
def test_restore_undoes_corrupt(rate, mean_span):
    idx = torch.randint(5, FIRST, (200, 30))
    mask = torch.arange(30) < torch.randint(2, 31, (200, 1))
    idx[:, 0] = BOS
    parts = spans.corrupt(idx, mask, FIRST, batching.generator(1), rate, mean_span)
    for row, real, source, source_mask, target, target_mask in zip(idx, mask, *parts):
        read, written = source[source_mask].tolist(), target[target_mask].tolist()
        assert spans.restore(read, written, FIRST) == row[real].tolist()
        n_corrupted, n_spans = spans.most(int(real.sum()) - 1, rate, mean_span)
        found = sum(token >= FIRST for token in written)
        assert written[-1] == EOS and found <= n_spans and len(written) - 1 - found <= n_corrupted


@pytest.mark.parametrize("n, rate, mean_span, ways", [
    (5, 0.4, 2, "11000 01100 00110 00011"),
    (5, 0.4, 1, "10100 10010 10001 01010 01001 00101"),
    (6, 4 / 6, 2, "101110 110110 111010 100111 110011 111001 010111 011011 011101"),
])  # fmt: skip
def test_all_choices_of_spans_are_equally_likely(n, rate, mean_span, ways):
    counts, gen = torch.full((12000,), n), batching.generator(4)
    hidden = spans.choose_spans(counts, n, gen, rate + 1e-6, mean_span)
    found = Counter("".join(str(int(x)) for x in row) for row in hidden.tolist())
    expected = pytest.approx(12000 / len(ways.split()), rel=0.2)
    assert found == dict.fromkeys(ways.split(), expected)


def test_restore_accepts_whatever_a_model_writes():
    # Missing and empty gaps keep their sentinel, repeated ones go on, other words are dropped
    source = [BOS, 7, FIRST, 8, FIRST + 1, 9, FIRST + 2]
    target = [6, FIRST + 1, 20, 21, FIRST, FIRST + 1, 22, EOS, FIRST + 2, 30]
    restored = [BOS, 7, FIRST, 8, 20, 21, 22, 9, FIRST + 2]
    assert spans.restore(source, target, FIRST) == restored
