"""Threads in the world of toy.py whose replies take up their ancestors' words, so that what the ancestors tell is
known exactly.

    The widows would mend the orchard before the tide with loyalty.
    ├── No orchard, no tide without carters and loyalty.
    │   └── The carters: orchard, tide, hope.
    └── ...

Every text has one word of each of four kinds (KINDS), and a frame around them. With probability TAKEN a reply takes its word of
a kind from an ancestor, a nearer one more often: from the one at distance d of n with v_d = 2^-d / (2^-1 + ... + 2^-n).
Otherwise it draws one of the K words of the kind. Each kind does so by itself. So to a reader of the ancestors, whose words of
the kind are a_1 (the parent's), ..., a_n (the post's), the reply's word is w with probability

    P(w | a_1, ..., a_n) = TAKEN * (sum of v_d over the d with a_d = w) + (1 - TAKEN) / K

and to one who reads the reply alone, with 1/K: by symmetry every word is as likely, and words of different kinds are
independent. No two frames of a reply have the same number of tokens, so the frame is known however many words are
hidden, and its words cost nothing. `nats` is therefore the least that hidden words can cost, to either reader.
"""

import math
import random
import re
from functools import cache

from data.corpora import toy
from data.tokenizer import MASK, SPECIAL, WORD

KINDS = {
    "building": "Building",
    "event": "Event",
    "people": "Person.plural",
    "virtue": "Virtue",
}  # whose words are toy's
WORDS = {
    kind: tuple(" ".join(body) for body in toy.BODIES[symbol]) for kind, symbol in KINDS.items()
}
TAKEN = 0.8
DEEPEST = 5  # a reply has at most so many ancestors

POSTS = (
    "The {people} would mend the {building} before the {event} with {virtue}.",
    "Who brings {virtue} to the {building} before the {event}: the {people}?",
)
REPLIES = (
    "The {people}: {building}, {event}, {virtue}.",
    "No {building}, no {event} without {people} and {virtue}.",
    "Give {people} some {virtue}, a {building} and another {event}.",
    "After the {event} the {people} will bring {virtue} to the {building}.",
    "What is {virtue} worth to {people} near the {building} before the {event}?",
)


def taken_from(n):
    """[v_1, ..., v_n]: how likely each of n ancestors, the parent first, is the one a word is taken from."""
    return [2.0 ** (n - d) / (2**n - 1) for d in range(1, n + 1)]


def generate(n_trees=1200, seed=0):
    """n_trees pairs (texts, parents) as threads.Tree has them; the same seed gives the same ones everywhere."""
    rng = random.Random(f"toy threads {seed}")
    return [sample(rng) for _ in range(n_trees)]


def sample(rng):
    """A post and 4 to 12 comments, each a reply to the post or to a comment that is not too deep, all equally likely."""
    parents, depths = [-1], [0]
    words = [{kind: rng.choice(words) for kind, words in WORDS.items()}]
    texts = [rng.choice(POSTS).format(**words[0])]
    for _ in range(rng.randint(4, 12)):
        parent = rng.choice([i for i, depth in enumerate(depths) if depth < DEEPEST])
        chain, above = [], parent
        while above >= 0:
            chain.append(above)
            above = parents[above]
        said = {}
        for kind, choices in WORDS.items():
            source = rng.choices(chain, taken_from(len(chain)))[0]
            said[kind] = words[source][kind] if rng.random() < TAKEN else rng.choice(choices)
        words.append(said)
        texts.append(rng.choice(REPLIES).format(**said))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return texts, parents


# ---------------------------------------------------------------------------- what can be known


@cache
def kinds_in(text):
    """{kind: its word} of a post or a reply."""
    words = re.findall(WORD, text)
    return {
        kind: next(word for word in words if word in choices) for kind, choices in WORDS.items()
    }


def probability(word, kind, ancestors):
    """P(word | a_1, ..., a_n) of the module's formula. ancestors: the texts, the parent's first; none of them: 1/K."""
    drawn = 1 / len(WORDS[kind])
    if not ancestors:
        return drawn
    taken = sum(
        v for v, text in zip(taken_from(len(ancestors)), ancestors) if kinds_in(text)[kind] == word
    )
    return TAKEN * taken + (1 - TAKEN) * drawn


def nats(reply, ancestors, tokens, shown, hidden, vocab_size):
    """The least cost in nats of the hidden words of a reply, summed, to a reader of these ancestors (none: of the reply alone).

    tokens: {word: id}; shown: the ids the reader sees, after masking.mask_tokens with its [BOS] in front; hidden: the
    places of the chosen tokens. A chosen token that is not [MASK] stands as it was or is one of all R words of the
    vocabulary at random, both equally often. So where x is shown, the word is w with a probability proportional to
    P(w) (1/2 [x = w] + 1/2 / R).
    """
    words, R, total = re.findall(WORD, reply), vocab_size - len(SPECIAL), 0.0
    for place in hidden:
        word = words[place - 1]
        kind = next((kind for kind, choices in WORDS.items() if word in choices), None)
        if kind is None:
            continue
        weights = {w: probability(w, kind, ancestors) for w in WORDS[kind]}
        if shown[place] != MASK:
            weights = {w: p * ((tokens[w] == shown[place]) + 1 / R) for w, p in weights.items()}
        total -= math.log(weights[word] / sum(weights.values()))
    return total


def entropy(K, n):
    """Nats that a word out of K has on average to a reader of its n ancestors; log K for n = 0.

    By going through all patterns of equality among the words of a post, its reply, the reply to that, ...: a text's word
    is that of an earlier one with probability P, or one of the K - m words that the m different ones before it are not.
    """

    def walk(chain, p):  # chain: the words so far, numbered as they first occur, nearest first
        m = len(set(chain))
        taken = dict.fromkeys(chain, 0.0)
        for v, label in zip(taken_from(len(chain)), chain):
            taken[label] += v
        known = {label: TAKEN * v + (1 - TAKEN) / K for label, v in taken.items()} if chain else {}
        new = ((1 - TAKEN) if chain else 1.0) / K  # each of the others
        if len(chain) == n:
            return -p * (
                sum(q * math.log(q) for q in known.values()) + (K - m) * new * math.log(new)
            )
        return sum(walk((label, *chain), p * q) for label, q in known.items()) + (
            walk((m, *chain), p * (K - m) * new) if m < K else 0.0
        )

    return walk((), 1.0)
