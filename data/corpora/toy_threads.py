"""Generate threads for which it is known how much ancestors reveal about a comment's words.

    The widows would mend the orchard before the tide with loyalty.
    ├── No orchard, no tide without carters and loyalty.
    │   └── The carters: orchard, tide, hope.
    └── ...

Every text is a frame around one word of each of four kinds (KINDS). Each kind is drawn by itself.
With probability TAKEN a reply takes the word of an ancestor, most often of a near one: of the
ancestor at distance d of n with v_d = 2^-d / (2^-1 + ... + 2^-n). Otherwise it draws one of the K
words of the kind. So to a reader of the ancestors, whose words are a_1 (the parent's), ..., a_n
(the post's), the reply's word is w with probability

    P(w | a_1, ..., a_n) = TAKEN * (sum of v_d over the d with a_d = w) + (1 - TAKEN) / K

To a reader of the reply alone it is 1/K: by symmetry all words are equally likely, and words of
different kinds are independent. No two frames of a reply have the same number of tokens, so the
frame is known however many words are masked, and its words cost nothing. `nats` is therefore the
least that masked words can cost either reader.
"""

import math
import random
import re
from functools import cache

from data.corpora import toy
from data.tokenizer import MASK, SPECIAL, WORD

# Kind of word -> its symbol in the grammar of toy.py
KINDS = {"building": "Building", "event": "Event", "people": "Person.plural", "virtue": "Virtue"}
WORDS = {
    kind: tuple(" ".join(body) for body in toy.BODIES[symbol]) for kind, symbol in KINDS.items()
}
TAKEN = 0.8  # the probability that a reply takes a word from an ancestor
DEEPEST = 5  # the most ancestors a reply has

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
    """Return [v_1, ..., v_n]: the probability of each of n ancestors, the parent first."""
    return [2.0 ** (n - d) / (2**n - 1) for d in range(1, n + 1)]


def generate(n_trees=1200, seed=0):
    """Return n_trees pairs (texts, parents) as in threads.Tree, the same in every process."""
    rng = random.Random(f"toy threads {seed}")
    return [sample(rng) for _ in range(n_trees)]


def sample(rng):
    """Draw a post and 4 to 12 comments, each a reply to a text that is not too deep."""
    parents, chains = [-1], [[]]  # chains: of each text its ancestors, the parent first
    words = [{kind: rng.choice(words) for kind, words in WORDS.items()}]
    texts = [rng.choice(POSTS).format(**words[0])]
    for _ in range(rng.randint(4, 12)):
        parent = rng.choice([i for i, chain in enumerate(chains) if len(chain) < DEEPEST])
        chain = [parent, *chains[parent]]
        said = {}
        for kind, choices in WORDS.items():
            source = rng.choices(chain, taken_from(len(chain)))[0]
            said[kind] = words[source][kind] if rng.random() < TAKEN else rng.choice(choices)
        words.append(said)
        texts.append(rng.choice(REPLIES).format(**said))
        parents.append(parent)
        chains.append(chain)
    return texts, parents


# ---------------------------------------------------------------------------- what can be known


@cache
def kinds_in(text):
    """Return {kind: its word} of a post or a reply."""
    words = re.findall(WORD, text)
    return {
        kind: next(word for word in words if word in choices) for kind, choices in WORDS.items()
    }


def probability(word, kind, ancestors):
    """Return P(word | a_1, ..., a_n) as above. ancestors: their texts, parent first, or []."""
    drawn = 1 / len(WORDS[kind])
    if not ancestors:
        return drawn
    taken = sum(
        v for v, text in zip(taken_from(len(ancestors)), ancestors) if kinds_in(text)[kind] == word
    )
    return TAKEN * taken + (1 - TAKEN) * drawn


def nats(reply, ancestors, tokens, shown, masked, vocab_size):
    """Return the least cost in nats of all masked words of a reply, to a reader of these ancestors.

    ancestors: their texts, [] for a reader of the reply alone. tokens: {word: id}. shown: the ids
    the reader sees, from masking.mask_tokens, with [BOS] in front. masked: the places of the chosen
    tokens. A chosen token that is not [MASK] is the original or one of all R words of the
    vocabulary, both equally often. So where x is shown, the word is w with a probability
    proportional to P(w) (1/2 [x = w] + 1/2 / R).
    """
    words, R, total = re.findall(WORD, reply), vocab_size - len(SPECIAL), 0.0
    for place in masked:
        word = words[place - 1]
        kind = next((kind for kind, choices in WORDS.items() if word in choices), None)
        if kind is None:
            continue
        weights = {w: probability(w, kind, ancestors) for w in WORDS[kind]}
        if shown[place] != MASK:
            weights = {w: p * ((tokens[w] == shown[place]) + 1 / R) for w, p in weights.items()}
        total -= math.log(weights[word] / sum(weights.values()))
    return total
