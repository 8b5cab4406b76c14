"""Span corruption: the documented example, which spans are hidden, and that nothing is lost."""

from collections import Counter

import pytest
import torch

from beyond import train_seq2seq
from data import batching, spans
from data.tokenizer import BOS, EOS, add_sentinels, encode, token_strings, train_tokenizer

FIRST = 1000


def test_the_example_of_the_docstring(monkeypatch):
    text, source, target = (
        line.split(maxsplit=1)[1]
        for line in spans.__doc__.splitlines()
        if line.split()[:1] in (["text"], ["source"], ["target"])
    )
    documented = train_seq2seq.__doc__  # has the same example
    assert f" {source} " in documented and f" {target} " in documented
    tokenizer = train_tokenizer("word", [text])
    first = add_sentinels(tokenizer, 2)
    ids = [BOS, *encode(tokenizer, [text])[0]]
    hidden = torch.tensor([[word in ("for", "inviting", "last") for word in text.split()]])
    monkeypatch.setattr(spans, "choose_spans", lambda counts, T, gen, rate, mean_span: hidden)
    got = spans.corrupt(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.bool), first, None)
    assert " ".join(token_strings(tokenizer, got[0][0])) == "[BOS] " + source
    assert " ".join(token_strings(tokenizer, got[2][0])) == target
    assert got[1].all() and got[3].all()


@pytest.mark.parametrize("rate, mean_span", [(0.15, 3.0), (0.4, 5.0), (0.15, 1.0)])
def test_hidden_share_and_span_length_are_those_asked_for(rate, mean_span):
    hidden = spans.choose_spans(
        torch.full((500,), 200), 200, batching.generator(2), rate, mean_span
    )
    begins = hidden & ~torch.cat([torch.zeros(500, 1, dtype=torch.bool), hidden[:, :-1]], dim=1)
    assert hidden.float().mean().item() == pytest.approx(rate, rel=0.01)
    assert (hidden.sum() / begins.sum()).item() == pytest.approx(mean_span, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 7, 20])
def test_short_texts_keep_the_rate_as_far_as_one_token_allows(n):
    hidden = spans.choose_spans(torch.full((4000,), n), 25, batching.generator(3), 0.15, 3)
    assert not hidden[:, n:].any() and (hidden.sum(1) >= 1).all()
    assert hidden.sum(1).float().mean().item() == pytest.approx(max(1, 0.15 * n), rel=0.03)


@pytest.mark.parametrize(
    "n, rate, mean_span, ways",
    [
        (5, 0.4, 2, "11000 01100 00110 00011"),
        (5, 0.4, 1, "10100 10010 10001 01010 01001 00101"),
        (6, 4 / 6, 2, "101110 110110 111010 100111 110011 111001 010111 011011 011101"),
    ],
)
def test_all_choices_of_spans_are_equally_likely(n, rate, mean_span, ways):
    counts, gen = torch.full((12000,), n), batching.generator(4)
    hidden = spans.choose_spans(counts, n, gen, rate + 1e-6, mean_span)
    found = Counter("".join(str(int(x)) for x in row) for row in hidden.tolist())
    expected = pytest.approx(12000 / len(ways.split()), rel=0.2)
    assert found == dict.fromkeys(ways.split(), expected)


def test_restore_accepts_whatever_a_model_writes():
    """Missing and empty gaps keep their sentinel, repeated ones are continued, other words are
    dropped."""
    source = [BOS, 7, FIRST, 8, FIRST + 1, 9, FIRST + 2]
    target = [6, FIRST + 1, 20, 21, FIRST, FIRST + 1, 22, EOS, FIRST + 2, 30]
    restored = [BOS, 7, FIRST, 8, 20, 21, 22, 9, FIRST + 2]
    assert spans.restore(source, target, FIRST) == restored


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_sentinels_stand_behind_a_vocabulary_that_stays(kind):
    lines = ["we will trust the people .", "[S0] is no word"]
    plain, more = train_tokenizer(kind, lines), train_tokenizer(kind, lines)
    first = add_sentinels(more, 3)
    assert first == plain.get_vocab_size() and more.get_vocab_size() == first + 3
    assert {token: i for token, i in more.get_vocab().items() if i < first} == plain.get_vocab()
    assert encode(more, lines[:1]) == encode(plain, lines[:1])
    assert token_strings(more, [first, first + 2]) == ["[S0]", "[S2]"]
