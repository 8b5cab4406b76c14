"""Lami, an invented language into which the sentences of the toy corpus can be translated without a loss.

    We will repair the old mill before the first spring.
    Dero ke razo lado saso kodo doke lada bapa vose reka.
    (we | {will} | repair | the | mill | old | before | the | first | spring | will)

Four rules, each of which can be undone, so a sentence determines its translation word by word, and the
translation determines the sentence: who may read one knows every word of the other.

1. Lexicon: every word is a stem of its own (consonant, vowel, consonant) and a final vowel.
2. An adjective stands behind its noun.
3. The first auxiliary of a clause goes to the clause's end and leaves the particle `ke` in its place.
4. Agreement: an article or determiner takes the final vowel of the word behind it, an adjective that of the word before it.
"""

import itertools
import random
import re
from functools import cache

from data.corpora import toy

PARTICLE = "ke"
DETERMINERS = frozenset("a an the every most any those my our their".split())
ADJECTIVES = frozenset(
    body[-1]
    for symbol in ("Kind", "State", "Showy", "Worthy", "Number")
    for body in toy.BODIES[symbol]
)
AUXILIARIES = frozenset(
    "will would must may cannot has have had is are was were do does did".split()
)


@cache
def lexicon():
    """{word of the toy grammar: its word in Lami}; no two share a stem, and none is also an English one."""
    words = sorted(
        {
            part
            for bodies in toy.BODIES.values()
            for body in bodies
            for part in body
            if part not in toy.BODIES and part.isalpha()
        }
    )
    rng = random.Random("lami")
    stems = [
        "".join(letters) for letters in itertools.product("bdfgklmnprstvz", "aeiou", "dgklmnprstvz")
    ]
    taken = {word[:3] for word in words}
    stems = rng.sample([stem for stem in stems if stem not in taken], len(words))
    return {word: stem + rng.choice("aeo") for word, stem in zip(words, stems)}


def translate(sentence):
    """An English sentence of the toy corpus in Lami. KeyError for a word that the grammar has not."""
    words = re.findall(r"\w+|[^\w\s]", sentence)
    if words[0] != "I":
        words[0] = words[0].lower()
    clauses = [
        list(clause) for _, clause in itertools.groupby(words, str.isalpha)
    ]  # words and marks in turn
    text = " ".join(
        " ".join(clause_in_lami(clause) if clause[0].isalpha() else clause) for clause in clauses
    )
    text = re.sub(r" (?=[^\w\s])", "", text)
    return text[0].upper() + text[1:]


def clause_in_lami(words):
    """The words of one clause, without marks, in Lami."""
    words = list(words)
    i = 0
    while i < len(words) - 1:
        if words[i] in ADJECTIVES:
            words[i : i + 2] = words[i + 1], words[i]
            i += 1
        i += 1
    where = next((i for i, word in enumerate(words) if word in AUXILIARIES), None)
    if where is not None:
        words = [*words[:where], PARTICLE, *words[where + 1 :], words[where]]
    lami = [PARTICLE if word == PARTICLE else lexicon()[word] for word in words]
    for i, word in enumerate(words):
        partner = i + 1 if word in DETERMINERS else i - 1 if word in ADJECTIVES else i
        if 0 <= partner < len(words):
            lami[i] = lami[i][:-1] + lexicon().get(words[partner], PARTICLE)[-1]
    return lami
