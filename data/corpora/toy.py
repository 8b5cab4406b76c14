"""Speeches from a grammar, so that the best possible scores are known exactly.

Three invented speakers, ada the mayor, bruno the captain and clio the gardener, speak from one
small grammar. They share its rules but use them with different frequencies, so each can say
whatever the others can.

On natural text, nobody knows the best possible scores. Here they are known:

- Every sentence has exactly one derivation, so P(sentence | speaker) is the product of the
  probabilities of its rules.
- H, a sentence's entropy in nats, and L, its mean length in word tokens, follow from the rules.
  Sentences are independent, and each ends with a mark (. ? !) that occurs nowhere else. So the
  stream carries H / L nats per token, and in the long run no perplexity is below exp(H / L).
- No classifier is right more often than the one that chooses the speaker with the largest
  P(sentence | speaker). Its accuracy is the best there is.

Two notes on reading results against these floors. A test set is a sample: on 200 sentences even the
grammar itself varies by a few percent around exp(H / L). And a model trained on all speakers is not
told who speaks. For a single sentence, the best it can do is to average the three
grammars, about 5% above exp(H / L).
"""

import math
import random
import re
from functools import cache, lru_cache

from data.corpora.toy_rules import RULES, TOPICS, WORDS
from data.corpus import Corpus

SPEAKERS = ("ada", "bruno", "clio")
FAVOUR = 4.5  # chosen so that the best possible accuracy is near 90%


def favour(owner):
    """Return a weight per speaker: FAVOUR for the owner, 1 for the others."""
    return [FAVOUR if speaker == owner else 1 for speaker in SPEAKERS]


def read_alternatives():
    """Yield (symbol, weights, alternative) as written in RULES and WORDS."""
    for line in RULES.strip().splitlines():
        if not line.startswith(" "):
            symbol = line
            continue
        *weights, alternatives = line.split(maxsplit=len(SPEAKERS))
        for alternative in alternatives.split("|"):
            yield symbol, [int(weight) for weight in weights], alternative
    for entry in re.split(r"\n(?=\S)", WORDS.strip()):
        symbol, lists = entry.split(":")
        for owner, words in zip(SPEAKERS + ("all",), lists.split(";")):
            for alternative in words.split(","):
                yield symbol, favour(owner), alternative


def inflect(text, number):
    """Return "Person# has/have" in the singular as "Person.singular has"."""
    chosen = r"\1" if number == "singular" else r"\2"
    return re.sub(r"(\w+)/(\w+)", chosen, text).replace("#", "." + number)


def expand(symbol, weights, alternative):
    """Yield all that one written alternative stands for, as (symbol, weights, text).

    Topics share the weight of an alternative with {thing}; numbers share that of one with #.
    """
    numbers = ("singular", "plural")
    if "{" in alternative:
        topics = [line.split("; ") for line in TOPICS.strip().splitlines()]
        totals = [sum(each) for each in zip(*(favour(topic[0]) for topic in topics))]
        for owner, number, thing, people, need in topics:
            text = inflect(alternative, number).format(thing=thing, people=people, need=need)
            shares = [w * f / total for w, f, total in zip(weights, favour(owner), totals)]
            yield symbol, shares, text
    elif "#" in symbol:
        for number in numbers:
            yield inflect(symbol, number), weights, inflect(alternative, number)
    elif "#" in alternative:
        for number in numbers:
            yield symbol, [weight / 2 for weight in weights], inflect(alternative, number)
    else:
        yield symbol, weights, alternative


def build_grammar():
    """Return BODIES and PROBABILITY.

    BODIES[symbol]: its alternatives, each a tuple of symbols and words.
    PROBABILITY[speaker][symbol]: the probability of each alternative; they sum to 1.
    """
    bodies, weights = {}, {speaker: {} for speaker in SPEAKERS}
    for written in read_alternatives():
        for symbol, weight, text in expand(*written):
            bodies.setdefault(symbol, []).append(tuple(re.findall(r"[\w.]*\w|[^\w\s]", text)))
            for speaker, w in zip(SPEAKERS, weight):
                weights[speaker].setdefault(symbol, []).append(w)
    probability = {
        speaker: {symbol: [w / sum(ws) for w in ws] for symbol, ws in table.items()}
        for speaker, table in weights.items()
    }
    return bodies, probability


BODIES, PROBABILITY = build_grammar()


# ---------------------------------------------------------------------------- sampling


def sample_tokens(speaker, rng):
    """Draw a sentence as word tokens, by rewriting the leftmost symbol until none is left."""
    tokens, stack = [], ["Sentence"]
    while stack:
        top = stack.pop()
        if top in BODIES:
            body = rng.choices(BODIES[top], PROBABILITY[speaker][top])[0]
            stack.extend(reversed(body))
        else:
            tokens.append(top)
    tokens[0] = tokens[0].capitalize()
    return tokens


def join_tokens(tokens):
    """Return the text of word tokens: a space before each, except before a mark."""
    return re.sub(r" (?=[^\w\s])", "", " ".join(tokens))


# ---------------------------------------------------------------------------- scoring


@cache
def first_words(symbol):
    """Return {word: which alternatives of the symbol can begin with it}."""
    table = {}
    for i, body in enumerate(BODIES[symbol]):
        for word in first_words(body[0]) if body[0] in BODIES else [body[0]]:
            table.setdefault(word, []).append(i)
    return table


def find_derivations(stack, words):
    """Yield every way to rewrite `stack` into `words`, as a tuple of (symbol, alternative).

    The leftmost symbol is rewritten first, with the alternatives that can begin with the next word.
    No symbol contains itself, so this ends.
    """
    if not stack or not words:
        if not stack and not words:
            yield ()
    elif stack[0] in BODIES:
        for i in first_words(stack[0]).get(words[0], []):
            for rest in find_derivations(BODIES[stack[0]][i] + stack[1:], words):
                yield ((stack[0], i), *rest)
    elif stack[0] == words[0]:
        yield from find_derivations(stack[1:], words[1:])


@lru_cache(maxsize=10_000)
def derive(sentence):
    """Return the one derivation of a sentence, or None if the grammar has none."""
    tokens = re.findall(r"\w+|[^\w\s]", sentence)
    if not tokens or join_tokens(tokens) != sentence or tokens[0] != tokens[0].capitalize():
        return None
    if tokens[0] != "I":
        tokens[0] = tokens[0].lower()
    return next(find_derivations(("Sentence",), tuple(tokens)), None)


def log_probability(sentence, speaker):
    """Return the natural log of P(sentence | speaker), -inf for a sentence outside the grammar."""
    derivation = derive(sentence)
    if derivation is None:
        return -math.inf
    return sum(math.log(PROBABILITY[speaker][symbol][i]) for symbol, i in derivation)


# ---------------------------------------------------------------------------- the floors


def expect(speaker, value):
    """Return the expected sum of value(p, body) over all rewritings that make a sentence.

    body: what replaces a symbol; p: the probability of this alternative. For a symbol A,

        total(A) = sum over its alternatives of p * (value(p, body) + sum of total(B) for B in body)
    """

    @cache
    def total(symbol):
        alternatives = zip(PROBABILITY[speaker][symbol], BODIES[symbol])
        return sum(
            p * (value(p, body) + sum(total(part) for part in body if part in BODIES))
            for p, body in alternatives
        )

    return total("Sentence")


def entropy(speaker):
    """Return H in nats per sentence: each rewriting costs -log p."""
    return expect(speaker, lambda p, body: -math.log(p))


def mean_length(speaker):
    """Return L in word tokens per sentence, marks included."""
    return expect(speaker, lambda p, body: sum(part not in BODIES for part in body))


def perplexity_floor(speaker):
    """Return exp(H / L), the lowest perplexity per word token possible in the long run."""
    return math.exp(entropy(speaker) / mean_length(speaker))


def best_accuracy(rows):
    """Return the share of rows (label, text) whose label has the largest P(text | speaker).

    Of k speakers that are equally likely, each counts as 1/k right.
    """
    right = 0
    for label, sentence in rows:
        logs = [log_probability(sentence, speaker) for speaker in SPEAKERS]
        best = [math.isclose(log, max(logs)) for log in logs]
        right += best[label] / sum(best)
    return right / len(rows)


# ---------------------------------------------------------------------------- the corpus


def load(seed=0):
    """Return the Corpus of a seed, the same in every process.

    Test sentences are drawn like the training ones. The few that repeat one (under 3%) stay:
    without them, the floor would not hold.
    """

    def draw_rows(part, n):
        # Each part has its own random numbers, so its size does not change the others.
        rng = random.Random(f"toy {seed} {part}")
        rows = [
            (label, join_tokens(sample_tokens(speaker, rng)))
            for label, speaker in enumerate(SPEAKERS)
            for _ in range(n)
        ]
        rng.shuffle(rows)
        return rows

    tests = {speaker: [] for speaker in SPEAKERS}
    for label, text in draw_rows("tests", 200):
        tests[SPEAKERS[label]].append(text)
    test_rows = draw_rows("test rows", 200)
    floor = {f"perplexity/{speaker}": perplexity_floor(speaker) for speaker in SPEAKERS}
    return Corpus(
        "toy",
        [text for _, text in draw_rows("lines", 800)],
        tests,
        draw_rows("rows", 667),
        test_rows,
        list(SPEAKERS),
        floor | {"accuracy/test": best_accuracy(test_rows)},
    )
