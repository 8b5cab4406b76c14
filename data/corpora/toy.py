"""Speeches from a grammar, so that the best possible scores are known exactly.

Three invented speakers, ada the mayor, bruno the captain and clio the gardener, share the rules of
one small grammar (toy.txt), but use them with different frequencies.

Every sentence has exactly one derivation, so P(sentence | speaker) is the product of the
probabilities of its rules, and the best classifier chooses the speaker for whom it is largest. H, a
sentence's entropy in nats, and L, its mean length in word tokens, follow from the rules. Sentences
are independent, and each ends with a mark (. ? !) that occurs nowhere else. So in the long run no
perplexity is below exp(H / L): 200 sentences vary by a few percent around it, and a model that is
not told who speaks is about 5% above it.
"""

import math
import random
import re
from functools import cache
from pathlib import Path

from data.corpus import Corpus

SPEAKERS = ("ada", "bruno", "clio")
FAVOUR = 4.5  # weight of what belongs to a speaker, so that the best accuracy is near 90%


def read_parts():
    """Return the three parts of toy.txt, without its comments: rules, words and topics."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines).strip().split("\n\n")


def owner_weights():
    """Return {owner: weights for ada, bruno and clio} of what belongs to a speaker, or to all."""
    weights = {}
    for owner in SPEAKERS:
        weights[owner] = [1, 1, 1]
        weights[owner][SPEAKERS.index(owner)] = FAVOUR
    weights["all"] = [1, 1, 1]
    return weights


RULES, WORDS, TOPICS = read_parts()
WEIGHTS = owner_weights()


def alternatives():
    """Yield (symbol, weights, alternative) as written in toy.txt."""
    for line in RULES.splitlines():
        if not line.startswith(" "):
            symbol = line
            continue
        *weights, bodies = line.split(maxsplit=len(SPEAKERS))
        weights = [int(weight) for weight in weights]
        for body in bodies.split("|"):
            yield symbol, weights, body
    for entry in re.split(r"\n(?=\S)", WORDS):
        symbol, lists = entry.split(":")
        for weights, words in zip(WEIGHTS.values(), lists.split(";")):
            for word in words.split(","):
                yield symbol, weights, word


def variants(text):
    """Yield (number, parts, wholes, words) of what a written rule stands for: with {thing} for all
    topics, with # for a singular and a plural. parts / wholes: the shares of its weight that each
    speaker gives to a variant. words: what replaces {thing} and so on."""
    if "{" in text:
        topics = [line.split("; ") for line in TOPICS.splitlines()]
        weights = [WEIGHTS[owner] for owner, *_ in topics]
        wholes = [sum(of_speaker) for of_speaker in zip(*weights)]
        for owner, number, *words in topics:
            yield number, WEIGHTS[owner], wholes, dict(zip(("thing", "people", "need"), words))
    elif "#" in text:
        yield "singular", (1, 1, 1), (2, 2, 2), {}
        yield "plural", (1, 1, 1), (2, 2, 2), {}
    else:
        yield "singular", (1, 1, 1), (1, 1, 1), {}


def inflect(text, number):
    """Return "Person# has/have" as "Person.singular has" or "Person.plural have"."""
    chosen = r"\1" if number == "singular" else r"\2"
    text = re.sub(r"(\w+)/(\w+)", chosen, text)
    return text.replace("#", "." + number)


def build_grammar():
    """Return BODIES[symbol], its alternatives, each a tuple of symbols and words, and
    PROBABILITY[speaker][symbol], the probability of each alternative."""
    bodies = {}
    weights = {speaker: {} for speaker in SPEAKERS}
    for written, weight, alternative in alternatives():
        for number, parts, wholes, words in variants(written + alternative):
            symbol = inflect(written, number)
            text = inflect(alternative, number).format(**words)
            body = tuple(re.findall(r"[\w.]*\w|[^\w\s]", text))
            bodies.setdefault(symbol, []).append(body)
            for speaker, w, part, whole in zip(SPEAKERS, weight, parts, wholes):
                weights[speaker].setdefault(symbol, []).append(w * part / whole)
    probability = {}
    for speaker, table in weights.items():
        probability[speaker] = {symbol: normalize(ws) for symbol, ws in table.items()}
    return bodies, probability


def normalize(weights):
    """Return weights over their sum."""
    return [weight / sum(weights) for weight in weights]


BODIES, PROBABILITY = build_grammar()


def draw_sentence(speaker, rng):
    """Draw a sentence. Return its text and its derivation [(symbol, alternative's number), ...]."""
    tokens = []
    derivation = []
    stack = ["Sentence"]  # what is still to be written, the next part last
    while stack:
        part = stack.pop()
        if part not in BODIES:
            tokens.append(part)  # a word or a mark
            continue
        choices = range(len(BODIES[part]))
        (choice,) = rng.choices(choices, PROBABILITY[speaker][part])
        derivation.append((part, choice))
        stack.extend(reversed(BODIES[part][choice]))
    tokens[0] = tokens[0].capitalize()
    text = re.sub(r" (?=[^\w\s])", "", " ".join(tokens))  # no space before a mark
    return text, derivation


def best_accuracy(labels, derivations):
    """Return the share of sentences whose label has the largest P(sentence | speaker). Of k equally
    likely speakers, each counts as 1/k right."""
    right = 0
    for label, derivation in zip(labels, derivations):
        logs = []
        for p in PROBABILITY.values():
            logs.append(sum(math.log(p[symbol][i]) for symbol, i in derivation))
        is_best = [math.isclose(log, max(logs)) for log in logs]
        right += is_best[label] / sum(is_best)
    return right / len(labels)


def perplexity_floor(speaker):
    """Return exp(H / L), the lowest perplexity per word token possible in the long run."""

    @cache
    def expected(part):  # the mean nats and tokens of all that a symbol, or a word, becomes
        if part not in BODIES:
            return 0.0, 1.0
        nats = tokens = 0.0
        for p, body in zip(PROBABILITY[speaker][part], BODIES[part]):
            means = [expected(part) for part in body]
            nats += p * (-math.log(p) + sum(n for n, _ in means))
            tokens += p * sum(n for _, n in means)
        return nats, tokens

    H, L = expected("Sentence")
    return math.exp(H / L)


def draw_rows(seed, part, n_each):
    """Draw n_each sentences of each speaker for a part of the corpus. Return rows (label, text) in
    random order, and the derivation of each. A part has random numbers of its own, so its size does
    not change other parts."""
    rng = random.Random(f"toy {seed} {part}")
    drawn = []
    for label, speaker in enumerate(SPEAKERS):
        for _ in range(n_each):
            text, derivation = draw_sentence(speaker, rng)
            drawn.append((label, text, derivation))
    rng.shuffle(drawn)
    rows = [(label, text) for label, text, _ in drawn]
    return rows, [derivation for *_, derivation in drawn]


def load(seed=0):
    """Return the Corpus of a seed. Test sentences that repeat a training sentence (under 3%) stay:
    without them, the floor would not hold."""
    lines, _ = draw_rows(seed, "lines", 800)
    rows, _ = draw_rows(seed, "rows", 667)
    tests, _ = draw_rows(seed, "tests", 200)
    test_rows, derivations = draw_rows(seed, "test rows", 200)
    floor = {f"perplexity/{speaker}": perplexity_floor(speaker) for speaker in SPEAKERS}
    floor["accuracy/test"] = best_accuracy([label for label, _ in test_rows], derivations)
    tests_of = {}
    for label, speaker in enumerate(SPEAKERS):
        tests_of[speaker] = [text for said_by, text in tests if said_by == label]
    return Corpus(
        "toy",
        lines=[text for _, text in lines],
        tests=tests_of,
        rows=rows,
        test_rows=test_rows,
        classes=list(SPEAKERS),
        floor=floor,
    )
