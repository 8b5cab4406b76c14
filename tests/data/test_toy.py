"""The toy corpus: its grammar, its probabilities and its floors are exactly right."""

import dataclasses
import json
import math
import random
import re
import statistics
from functools import cache

import pytest
from helpers import output_of

from data.corpora import toy
from data.tokenizer import WORD


def words_of(text):
    """The tokens of the word tokenizer."""
    return re.findall(WORD, text)


def perplexity(sentences, speaker):
    """A speaker's own perplexity per word token on these sentences."""
    nats = -sum(toy.log_probability(sentence, speaker) for sentence in sentences)
    return math.exp(nats / sum(len(words_of(sentence)) for sentence in sentences))


@pytest.fixture(scope="module")
def corpus():
    return toy.load(0)


@pytest.fixture(scope="module")
def drawn():
    """3,000 fresh sentences of each speaker, as tokens."""
    return {
        s: [toy.sample_tokens(s, random.Random(f"test {s} {i}")) for i in range(3000)]
        for s in toy.SPEAKERS
    }


@pytest.fixture(scope="module")
def spoken(drawn):
    return {
        speaker: [toy.join_tokens(tokens) for tokens in sentences]
        for speaker, sentences in drawn.items()
    }


# The rules


def test_the_probabilities_of_every_symbol_sum_to_one():
    for speaker in toy.SPEAKERS:
        assert toy.PROBABILITY[speaker].keys() == toy.BODIES.keys()
        for symbol, probabilities in toy.PROBABILITY[speaker].items():
            bodies = toy.BODIES[symbol]
            assert len(probabilities) == len(bodies) == len(set(bodies)), symbol
            assert min(probabilities) > 0, symbol
            assert sum(probabilities) == pytest.approx(1, abs=1e-12), symbol


def test_every_symbol_is_defined_and_used():
    used = {part for bodies in toy.BODIES.values() for body in bodies for part in body}
    assert set(toy.BODIES) - used == {"Sentence"}
    # A misspelt symbol would become a word with a capital or a dot in it.
    words = used - set(toy.BODIES)
    assert all(re.fullmatch(r"[a-z]+|I|[.,;:?!]", word) for word in words)
    assert 300 <= len(words) <= 500


def share(speaker, symbol, *parts):
    """The probability of a symbol's alternatives that hold all these parts."""
    alternatives = zip(toy.PROBABILITY[speaker][symbol], toy.BODIES[symbol])
    return sum(p for p, body in alternatives if set(parts) <= set(body))


def test_topics_and_numbers_share_the_weight_that_is_written():
    for speaker, thing in zip(toy.SPEAKERS, ("bridge", "ferries", "orchard")):
        others = [share(other, "Topic", thing) for other in toy.SPEAKERS if other != speaker]
        found = [share(speaker, "Topic", thing) / other for other in others]
        assert found == pytest.approx([toy.FAVOUR] * 2)
    # Alternatives with topics or numbers keep the weight that is written.
    for speaker in toy.SPEAKERS:
        assert share(speaker, "Question", "answer") == pytest.approx(1 / 5)
        assert share(speaker, "Call", "trade") == pytest.approx(1 / 3)
    for number in ("Folk.singular", "Folk.plural"):
        assert share("ada", "Question", "how", number) == pytest.approx(1 / 5)


# One derivation per sentence


def count_language(bodies):
    """Return the number of derivations and of different sentences of the whole language."""

    @cache
    def derivations(symbol):
        return sum(math.prod(map(derivations, body)) for body in bodies.get(symbol, [()]))

    @cache
    def steps(stack):
        """Return every (word, remainder) of the stack, rewritten until it begins with a word."""
        if stack[0] not in bodies:
            return [(stack[0], stack[1:])]
        return [step for body in bodies[stack[0]] for step in steps(body + stack[1:])]

    @cache
    def endings(stacks):
        """Return the number of different texts that any of the stacks can be rewritten into."""
        rests = {}
        for stack in filter(None, stacks):
            for word, rest in steps(stack):
                rests.setdefault(word, set()).add(rest)
        return (() in stacks) + sum(endings(frozenset(each)) for each in rests.values())

    return derivations("Sentence"), endings(frozenset({("Sentence",)}))


def test_no_sentence_of_the_language_has_two_derivations():
    n_derivations, n_sentences = count_language(toy.BODIES)
    assert n_derivations == n_sentences > 10**12
    planted = ("the", "Folk.plural", "Place", "deserve", "Reward")
    ambiguous = toy.BODIES | {"Statement": [*toy.BODIES["Statement"], planted]}
    n_derivations, n_sentences = count_language(ambiguous)
    assert n_derivations > n_sentences


# A small grammar of the same rules, enumerated


@pytest.fixture
def thinned(monkeypatch):
    """All rules, but one or two words of each list: a language small enough to enumerate."""
    bodies, probability = {}, {speaker: {} for speaker in toy.SPEAKERS}
    for symbol, written in toy.BODIES.items():
        is_list = not any(part in toy.BODIES for body in written for part in body)
        keep = 2 if symbol in ("Kind", "Virtue", "Person.plural") else 1
        keep = keep if is_list else len(written)
        bodies[symbol] = written[:keep]
        for speaker in toy.SPEAKERS:
            kept = toy.PROBABILITY[speaker][symbol][:keep]
            probability[speaker][symbol] = [p / sum(kept) for p in kept]
    monkeypatch.setattr(toy, "BODIES", bodies)
    monkeypatch.setattr(toy, "PROBABILITY", probability)
    toy.first_words.cache_clear(), toy.derive.cache_clear()
    yield
    toy.first_words.cache_clear(), toy.derive.cache_clear()


def test_formulas_are_exact_on_a_language_that_can_be_enumerated(thinned):
    @cache
    def strings(symbol):
        if symbol not in toy.BODIES:
            return [(symbol,)]
        return [s for body in toy.BODIES[symbol] for s in product(body)]

    def product(body):
        if not body:
            return [()]
        return [first + rest for first in strings(body[0]) for rest in product(body[1:])]

    language = [(s[0].capitalize(), *s[1:]) for s in strings("Sentence")]
    texts = [toy.join_tokens(tokens) for tokens in language]
    assert len(texts) == len(set(texts)) > 3000
    for speaker in toy.SPEAKERS:
        logs = [toy.log_probability(text, speaker) for text in texts]
        p = [math.exp(log) for log in logs]
        assert math.fsum(p) == pytest.approx(1, abs=1e-9)
        assert toy.entropy(speaker) == pytest.approx(
            -math.fsum(q * log for q, log in zip(p, logs)), abs=1e-9
        )
        assert toy.mean_length(speaker) == pytest.approx(
            math.fsum(q * len(tokens) for q, tokens in zip(p, language)), abs=1e-9
        )


# The formulas on the whole grammar, against samples


def assert_mean(values, expected):
    """Assert that the mean of the values is within three standard errors of the expected one."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert error < 0.02 * abs(expected), "too few samples to tell"
    assert abs(statistics.fmean(values) - expected) < 3 * error


@pytest.mark.parametrize("speaker", toy.SPEAKERS)
def test_entropy_and_length_agree_with_samples(speaker, drawn, spoken):
    assert_mean(
        [-toy.log_probability(text, speaker) for text in spoken[speaker]], toy.entropy(speaker)
    )
    assert_mean([len(tokens) for tokens in drawn[speaker]], toy.mean_length(speaker))
    assert toy.perplexity_floor(speaker) == math.exp(
        toy.entropy(speaker) / toy.mean_length(speaker)
    )


def test_best_accuracy_agrees_with_the_posterior(spoken):
    rows = [(label, text) for label, speaker in enumerate(toy.SPEAKERS) for text in spoken[speaker]]
    accuracy = toy.best_accuracy(rows)
    assert 0.88 < accuracy < 0.92
    # On average, the best classifier is right as often as its largest posterior says.
    confidence = []
    for _, text in rows:
        p = [math.exp(toy.log_probability(text, speaker)) for speaker in toy.SPEAKERS]
        confidence.append(max(p) / sum(p))
    assert abs(accuracy - statistics.fmean(confidence)) < 3 * math.sqrt(
        accuracy * (1 - accuracy) / len(rows)
    )
    assert toy.best_accuracy([(label, text) for label, text in rows if label == 1]) > 0.85
    assert toy.best_accuracy([((label + 1) % 3, text) for label, text in rows]) < 0.1


def test_speakers_that_are_equally_likely_share_the_best_accuracy(spoken):
    """Python's versions round sums differently, so rounding must not choose among them."""
    shares = [
        [toy.best_accuracy([(label, text)]) for label in range(3)]
        for texts in spoken.values()
        for text in texts[:100]
    ]
    assert {round(max(each), 3) for each in shares} >= {1, 0.5}
    assert all(sum(each) == pytest.approx(1) for each in shares)


# Sentences


INSIDE = [
    "The clerks near the docks deserve a better supper.",
    "Shipmates, the clerk who counts the nets before dawn has no time for empty promises.",
    "The gentle carters gave us the roads, and nobody may trade them for a vault of gold.",
    "I swear that we will repair the mill before the next frost.",
]
OUTSIDE = [
    "The clerks near the docks deserves a better supper.",
    "Shipmates, the clerk who counts the nets before dawn have no time for empty promises.",
    "The gentle carters gave us the roads, and nobody may trade it for a vault of gold.",
    "The gentle sailors gave us the roads, and nobody may trade them for a vault of gold.",
    "i swear that we will repair the mill before the next frost.",
    "The clerks near the docks deserve a better supper .",
    "The clerks  near the docks deserve a better supper.",
    "The clerks near the docks deserve a better supper",
    "The clerks near the docks deserve a better supper. ",
    *("", "."),
]


@pytest.mark.parametrize("sentence", INSIDE + OUTSIDE)
def test_sentences_outside_the_language_have_probability_zero(sentence):
    for speaker in toy.SPEAKERS:
        log = toy.log_probability(sentence, speaker)
        assert math.isfinite(log) if sentence in INSIDE else log == -math.inf


def test_drawn_sentences_are_well_formed(drawn):
    for sentences in drawn.values():
        for tokens in sentences:
            text = toy.join_tokens(tokens)
            assert words_of(text) == tokens
            assert text[0].isupper() and text == text.strip() and "  " not in text
            # The floor needs marks that occur at the end of a sentence only.
            assert tokens[-1] in (".", "?", "!") and not {".", "?", "!"} & set(tokens[:-1])
            assert len(tokens) < 32  # fits into a block with [BOS]
            for article, word in zip(tokens, tokens[1:]):
                if article.lower() in ("a", "an"):
                    vowel = word[0] in "aeiou" or word == "honest"
                    assert (article.lower() == "an") == vowel, tokens


# The corpus


def test_the_corpus_has_its_parts(corpus):
    assert len(corpus.lines) == 2400 and corpus.classes == list(toy.SPEAKERS)
    assert {name: len(lines) for name, lines in corpus.tests.items()} == {
        s: 200 for s in toy.SPEAKERS
    }
    for part, each in (("rows", 667), ("test_rows", 200)):
        labels = [label for label, _ in getattr(corpus, part)]
        assert [labels.count(label) for label in range(3)] == [each] * 3
        assert labels != sorted(labels)
    assert corpus.floor.keys() == {"accuracy/test"} | {f"perplexity/{s}" for s in toy.SPEAKERS}
    assert corpus.floor["accuracy/test"] == toy.best_accuracy(corpus.test_rows)
    for speaker, lines in corpus.tests.items():
        assert corpus.floor[f"perplexity/{speaker}"] == toy.perplexity_floor(speaker)
        assert perplexity(lines, speaker) == min(perplexity(lines, other) for other in toy.SPEAKERS)
        assert perplexity(lines, speaker) == pytest.approx(toy.perplexity_floor(speaker), rel=0.08)


def test_the_same_seed_gives_the_same_corpus_in_every_process(corpus):
    program = (
        "import dataclasses, json, sys; from data.corpora import toy; "
        "json.dump(dataclasses.asdict(toy.load(0)), sys.stdout)"
    )
    assert json.loads(output_of(program)) == json.loads(json.dumps(dataclasses.asdict(corpus)))
    assert toy.load(1).lines != corpus.lines
