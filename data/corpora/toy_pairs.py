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

PARTICLE = "ke"
DETERMINERS = "a an the every most any those my our their".split()
AUXILIARIES = "will would must may cannot has have had is are was were do does did".split()
KINDS = "Kind State Showy Worthy Number".split()
ADJECTIVES = frozenset(body[-1] for kind in KINDS for body in toy.BODIES[kind])


def load():
    """Return the Corpus of both languages, in which the sentences are not paired."""
    from data.pairs import load_pairs  # which needs this module

    return load_pairs("toy").corpus()


@cache
def lexicon():
    """Return {word of the toy grammar: its word in Lami}. No two share a stem, none is English."""
    parts = {part for bodies in toy.BODIES.values() for body in bodies for part in body}
    words = sorted(part for part in parts if part not in toy.BODIES and part.isalpha())
    rng = random.Random("lami")
    stems = map("".join, itertools.product("bdfgklmnprstvz", "aeiou", "dgklmnprstvz"))
    taken = {word[:3] for word in words}
    stems = rng.sample([stem for stem in stems if stem not in taken], len(words))
    return {word: stem + rng.choice("aeo") for word, stem in zip(words, stems)}


def translate(sentence):
    """Translate an English sentence of the toy corpus. Raises KeyError for an unknown word."""
    words = re.findall(r"\w+|[^\w\s]", sentence)
    if words[0] != "I":
        words[0] = words[0].lower()
    clauses = [list(clause) for _, clause in itertools.groupby(words, str.isalpha)]
    lami = [translate_clause(clause) if clause[0].isalpha() else clause for clause in clauses]
    text = re.sub(r" (?=[^\w\s])", "", " ".join(itertools.chain(*lami)))
    return text[0].upper() + text[1:]


def translate_clause(words):
    """Translate the words, a list, of one clause, which holds no marks."""
    i = 0
    while i < len(words) - 1:
        if words[i] in ADJECTIVES:
            words[i : i + 2] = words[i + 1], words[i]
            i += 1
        i += 1
    if found := [i for i, word in enumerate(words) if word in AUXILIARIES]:
        words.append(words[found[0]])
        words[found[0]] = PARTICLE
    lami = [PARTICLE if word == PARTICLE else lexicon()[word] for word in words]
    for i, word in enumerate(words):
        partner = i + 1 if word in DETERMINERS else i - 1 if word in ADJECTIVES else i
        lami[i] = lami[i][:-1] + lami[partner][-1]
    return lami
