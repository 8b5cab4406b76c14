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
# Weights of what belongs to a speaker: 4.5, so that the best possible accuracy is near 90%
WEIGHTS = {owner: [4.5 if owner == s else 1 for s in SPEAKERS] for owner in (*SPEAKERS, "all")}
LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
RULES, WORDS, TOPICS = "\n".join(x for x in LINES if not x.startswith("#")).strip().split("\n\n")


def alternatives():
    """Yield (symbol, weights, alternative) as written in toy.txt."""
    for line in RULES.splitlines():
        if not line.startswith(" "):
            symbol = line
            continue
        *weights, bodies = line.split(maxsplit=len(SPEAKERS))
        yield from ((symbol, [*map(int, weights)], body) for body in bodies.split("|"))
    for entry in re.split(r"\n(?=\S)", WORDS):
        symbol, lists = entry.split(":")
        for weights, words in zip(WEIGHTS.values(), lists.split(";")):
            yield from ((symbol, weights, word) for word in words.split(","))


def variants(text):
    """Yield (number, parts, wholes, words) of what a written rule stands for: with {thing} for all
    topics, with # for a singular and a plural. parts / wholes: the shares of its weight."""
    if "{" in text:
        topics = [line.split("; ") for line in TOPICS.splitlines()]
        wholes = [sum(each) for each in zip(*(WEIGHTS[owner] for owner, *_ in topics))]
        for owner, number, *words in topics:
            yield number, WEIGHTS[owner], wholes, dict(zip(("thing", "people", "need"), words))
    else:
        numbers = ("singular", "plural") if "#" in text else ("singular",)
        yield from ((number, (1, 1, 1), [len(numbers)] * 3, {}) for number in numbers)


def build_grammar():
    """Return BODIES[symbol], its alternatives, each a tuple of symbols and words, and
    PROBABILITY[speaker][symbol], the probability of each alternative."""

    def inflect(text, number):  # "Person# has/have" in the singular is "Person.singular has"
        chosen = r"\1" if number == "singular" else r"\2"
        return re.sub(r"(\w+)/(\w+)", chosen, text).replace("#", "." + number)

    bodies, weights = {}, {speaker: {} for speaker in SPEAKERS}
    for written, weight, alternative in alternatives():
        for number, parts, wholes, words in variants(written + alternative):
            symbol, text = inflect(written, number), inflect(alternative, number).format(**words)
            bodies.setdefault(symbol, []).append(tuple(re.findall(r"[\w.]*\w|[^\w\s]", text)))
            for speaker, w, part, whole in zip(SPEAKERS, weight, parts, wholes):
                weights[speaker].setdefault(symbol, []).append(w * part / whole)
    for table in weights.values():
        table.update({symbol: [w / sum(ws) for w in ws] for symbol, ws in table.items()})
    return bodies, weights


BODIES, PROBABILITY = build_grammar()


def draw_sentence(speaker, rng):
    """Draw a sentence. Return its text and its derivation [(symbol, alternative's number), ...]."""
    tokens, derivation, stack = [], [], ["Sentence"]
    while stack:
        top = stack.pop()
        if top in BODIES:
            choices = range(len(BODIES[top]))
            derivation.append((top, rng.choices(choices, PROBABILITY[speaker][top])[0]))
            stack.extend(reversed(BODIES[top][derivation[-1][1]]))
        else:
            tokens.append(top)
    tokens[0] = tokens[0].capitalize()
    return re.sub(r" (?=[^\w\s])", "", " ".join(tokens)), derivation  # no space before a mark


def best_accuracy(labels, derivations):
    """Return the share of sentences whose label has the largest P(sentence | speaker); of k equally
    likely speakers, each counts as 1/k right."""
    right = 0
    for label, derivation in zip(labels, derivations):
        tables = PROBABILITY.values()
        logs = [sum(math.log(p[symbol][i]) for symbol, i in derivation) for p in tables]
        best = [math.isclose(log, max(logs)) for log in logs]
        right += best[label] / sum(best)
    return right / len(labels)


def perplexity_floor(speaker):
    """Return exp(H / L), the lowest perplexity per word token possible in the long run."""

    @cache
    def expected(part):  # the mean nats and tokens of all that a symbol, or a word, becomes
        if part not in BODIES:
            return 0.0, 1.0
        nats = tokens = 0.0
        for p, body in zip(PROBABILITY[speaker][part], BODIES[part]):
            nats += p * (-math.log(p) + sum(expected(each)[0] for each in body))
            tokens += p * sum(expected(each)[1] for each in body)
        return nats, tokens

    H, L = expected("Sentence")
    return math.exp(H / L)


def load(seed=0):
    """Return the Corpus of a seed. Test sentences that repeat a training sentence (under 3%) stay:
    without them, the floor would not hold."""

    def draw(part, n):  # from random numbers of its own, so its size does not change other parts
        rng, drawn = random.Random(f"toy {seed} {part}"), []
        for label, speaker in enumerate(SPEAKERS):
            drawn += [(label, *draw_sentence(speaker, rng)) for _ in range(n)]
        rng.shuffle(drawn)
        labels, texts, derivations = zip(*drawn)
        return [*zip(labels, texts)], labels, derivations

    sizes = {"lines": 800, "rows": 667, "tests": 200}
    parts = {part: draw(part, n)[0] for part, n in sizes.items()}
    lines = [text for _, text in parts["lines"]]
    tests = {s: [x for i, x in parts["tests"] if SPEAKERS[i] == s] for s in SPEAKERS}
    test_rows, *drawn = draw("test rows", 200)
    floor = {f"perplexity/{speaker}": perplexity_floor(speaker) for speaker in SPEAKERS}
    floor["accuracy/test"] = best_accuracy(*drawn)
    return Corpus("toy", lines, tests, parts["rows"], test_rows, list(SPEAKERS), floor)
