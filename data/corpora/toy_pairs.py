"""The toy corpus and its translation into Lami, an invented language.

    We will repair the old mill before the first spring.
    Dero ke razo lado saso kodo doke lada bapa vose reka.

A sentence and its translation determine each other, since each of four rules can be undone: every
word is a stem of its own and a final vowel; an adjective follows its noun; the first auxiliary of a
clause moves to the end, and the particle `ke` takes its place; an article or determiner takes the
final vowel of the next word, an adjective that of the word before it.
"""

import itertools
import random
import re
from functools import cache

from data.corpora import toy
from data.parallel import Pairs

PARTICLE = "ke"
DETERMINERS = "a an the every most any those my our their".split()
AUXILIARIES = "will would must may cannot has have had is are was were do does did".split()
KINDS = "Kind State Showy Worthy Number".split()  # symbols of the grammar that are adjectives


def last_words(symbols):
    """Return the last words of all alternatives of some symbols of the toy grammar."""
    words = set()
    for symbol in symbols:
        words.update(body[-1] for body in toy.BODIES[symbol])
    return frozenset(words)


ADJECTIVES = last_words(KINDS)


def load():
    """Return the Corpus of both languages, in which the sentences are not paired."""
    return load_pairs().corpus()


def load_pairs():
    """Return the Pairs of English sentences of the toy corpus and their translations."""
    english = toy.load()
    test = []
    for lines in english.tests.values():
        test += lines
    train_pairs = [(sentence, translate(sentence)) for sentence in english.texts()]
    test_pairs = [(sentence, translate(sentence)) for sentence in test]
    return Pairs("toy", ("english", "lami"), train_pairs, [], {"test": test_pairs})


@cache
def lexicon():
    """Return {word of the toy grammar: its word in Lami}. No two share a stem, none is English."""
    parts = set()
    for bodies in toy.BODIES.values():
        for body in bodies:
            parts.update(body)
    words = sorted(part for part in parts if part not in toy.BODIES and part.isalpha())
    rng = random.Random("lami")
    taken = {word[:3] for word in words}
    stems = ["".join(s) for s in itertools.product("bdfgklmnprstvz", "aeiou", "dgklmnprstvz")]
    stems = rng.sample([stem for stem in stems if stem not in taken], len(words))
    return {word: stem + rng.choice("aeo") for word, stem in zip(words, stems)}


def translate(sentence):
    """Translate an English sentence of the toy corpus. Raises KeyError for an unknown word."""
    words = re.findall(r"\w+|[^\w\s]", sentence)
    if words[0] != "I":
        words[0] = words[0].lower()
    lami = []
    for is_clause, part in itertools.groupby(words, str.isalpha):
        if is_clause:
            lami += translate_clause(list(part))
        else:
            lami += part  # marks
    text = re.sub(r" (?=[^\w\s])", "", " ".join(lami))  # no space before a mark
    return text[0].upper() + text[1:]


def translate_clause(words):
    """Translate the words, a list, of one clause, which holds no marks."""
    # An adjective follows its noun
    i = 0
    while i < len(words) - 1:
        if words[i] in ADJECTIVES:
            words[i], words[i + 1] = words[i + 1], words[i]
            i += 1
        i += 1

    # The first auxiliary moves to the end
    auxiliaries = [i for i, word in enumerate(words) if word in AUXILIARIES]
    if auxiliaries:
        words.append(words[auxiliaries[0]])
        words[auxiliaries[0]] = PARTICLE

    lami = []
    for word in words:
        if word == PARTICLE:
            lami.append(PARTICLE)
        else:
            lami.append(lexicon()[word])

    # Determiners and adjectives take the vowel of their noun. In order: a determiner takes that of
    # an adjective before this one takes its own
    for i, word in enumerate(words):
        if word in DETERMINERS:
            lami[i] = lami[i][:-1] + lami[i + 1][-1]
        elif word in ADJECTIVES:
            lami[i] = lami[i][:-1] + lami[i - 1][-1]
    return lami
