"""The toy corpus: its grammar, its probabilities and its floors are exactly right."""

import math
import random
import re
from collections import Counter

import pytest

from data.corpora import toy
from data.tokenizer import WORD


@pytest.fixture(scope="module")
def drawn():
    """1,000 fresh sentences of each speaker: [(label, text, derivation), ...]."""
    dice = [random.Random(f"test {i}") for i in range(1000)]
    speakers = enumerate(toy.SPEAKERS)
    return [(label, *toy.draw_sentence(name, rng)) for label, name in speakers for rng in dice]


@pytest.mark.parametrize("table", toy.PROBABILITY.values())
def test_the_probabilities_of_every_symbol_sum_to_one(table):
    assert table.keys() == toy.BODIES.keys()
    for symbol, p in table.items():
        assert len(p) == len(toy.BODIES[symbol]) == len(set(toy.BODIES[symbol])), symbol
        assert min(p) > 0 and sum(p) == pytest.approx(1, abs=1e-12), symbol


def test_the_floor_is_exact_on_a_language_that_can_be_enumerated(monkeypatch):
    keep = {}  # all rules, but one or two words of each list
    for symbol, written in toy.BODIES.items():
        is_rule = any(part in toy.BODIES for body in written for part in body)
        two = symbol in ("Kind", "Virtue", "Person.plural")
        keep[symbol] = len(written) if is_rule else 1 + two
    monkeypatch.setattr(toy, "BODIES", {s: toy.BODIES[s][: keep[s]] for s in keep})
    for speaker in toy.SPEAKERS:
        kept = {s: p[: keep[s]] for s, p in toy.PROBABILITY[speaker].items()}
        kept = {s: [x / sum(p) for x in p] for s, p in kept.items()}
        monkeypatch.setitem(toy.PROBABILITY, speaker, kept)

        def strings(symbol):
            if symbol not in toy.BODIES:
                return [(1.0, (symbol,))]
            alternatives = zip(kept[symbol], toy.BODIES[symbol])  # noqa: B023
            return [(p * q, s) for p, body in alternatives for q, s in product(body)]

        def product(body):
            rests = product(body[1:]) if body else [(1.0, ())]
            firsts = strings(body[0]) if body else [(1.0, ())]
            return [(p * q, s + rest) for p, s in firsts for q, rest in rests]

        language = strings("Sentence")
        assert len(language) == len({words for _, words in language}) > 3000
        assert math.fsum(p for p, _ in language) == pytest.approx(1, abs=1e-9)
        H = -math.fsum(p * math.log(p) for p, _ in language)
        L = math.fsum(p * len(words) for p, words in language)
        assert toy.perplexity_floor(speaker) == pytest.approx(math.exp(H / L), abs=1e-9)


def test_best_accuracy_agrees_with_the_posterior(drawn):
    labels, _, derivations = zip(*drawn)
    accuracy = toy.best_accuracy(labels, derivations)
    # On average, the best classifier is right as often as its largest posterior says
    tables = toy.PROBABILITY.values()
    p = [[math.prod(t[symbol][i] for symbol, i in d) for t in tables] for d in derivations]
    confidence = sum(max(each) / sum(each) for each in p) / len(p)
    assert 0.88 < accuracy < 0.92 and abs(accuracy - confidence) < 0.016  # 3 standard errors
    for derivation in derivations[::30]:  # speakers that are equally likely share a sentence
        assert sum(toy.best_accuracy([label], [derivation]) for label in range(3)) == 1


def test_a_sentence_is_what_its_derivation_says_and_well_formed(drawn):
    def words(part):
        if part not in toy.BODIES:
            return [part]
        symbol, i = next(steps)
        assert symbol == part
        return [word for each in toy.BODIES[symbol][i] for word in words(each)]

    for _, text, derivation in drawn:
        steps, tokens = iter(derivation), re.findall(WORD, text)
        spoken = "".join(" " * word.isalpha() + word for word in words("Sentence")).strip()
        assert next(steps, None) is None and spoken[0].upper() + spoken[1:] == text
        # The floor needs marks that occur at the end of a sentence only.
        assert tokens[-1] in ".?!" and not {*".?!"} & set(tokens[:-1]) and len(tokens) < 32
        for article, word in zip(map(str.lower, tokens), tokens[1:]):
            expected = "an" if word[0] in "aeiou" or word == "honest" else "a"
            assert article not in ("a", "an") or article == expected, tokens


def test_the_corpus_has_its_parts():
    corpus = toy.load(0)
    assert len(corpus.lines) == 2400 and corpus.classes == list(toy.SPEAKERS)
    assert [len(lines) for lines in corpus.tests.values()] == [200] * 3
    for rows, n in ((corpus.rows, 667), (corpus.test_rows, 200)):
        assert Counter(label for label, _ in rows) == dict.fromkeys(range(3), n)
    floors = {f"perplexity/{s}": toy.perplexity_floor(s) for s in toy.SPEAKERS}
    assert corpus.floor == floors | {"accuracy/test": pytest.approx(0.90639, abs=1e-5)}
    assert corpus == toy.load(0) and toy.load(1).lines != corpus.lines
