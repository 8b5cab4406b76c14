"""Speeches whose best possible scores are known exactly.

Three invented speakers, ada the mayor, bruno the captain and clio the gardener,
speak from one small grammar. They share its rules and differ in how often they
use each, so each can say whatever another can, only more or less often.

On natural text nobody knows how well a model could do at best. Here it is known:

- Every sentence has exactly one derivation, so P(sentence | speaker) is the
  product of the probabilities of its rules, and the grammar can be asked for it.
- H, the entropy of a sentence in nats, and L, its mean length in word tokens,
  follow from the rule probabilities alone. Sentences are independent, and each
  ends with a mark (. ? !) that stands nowhere else, so the stream carries H / L
  nats a token: in the long run no perplexity is below exp(H / L).
- No classifier is right more often than the one that picks the speaker with the
  largest P(sentence | speaker), so its accuracy is the best there is.

Two things to know when you read a result against these floors. A test set is a
sample, so even the grammar itself scatters a few percent around exp(H / L) on
200 sentences. And a model trained on all speakers mixed is not told who speaks:
meeting each sentence on its own, the best it can do is the average of the three
grammars, `perplexity(sentences)`, some 5% above exp(H / L).
"""

import math
import random
import re
from functools import cache, lru_cache

SPEAKERS = ("ada", "bruno", "clio")

# How a sentence is built: a symbol, then lines with the weights of ada, bruno and
# clio and the alternatives that have them. Symbols begin with a capital; every
# other word or mark is a token of the sentence, and so is "I". The sentence's own
# capital is added at the end.
#
# Words far apart agree by two devices. A symbol with # is two, one singular and one
# plural; a/b is a in the singular and b in the plural. An alternative with {thing}
# stands once for every topic below, and there a/b follows the number of the thing.
RULES = """
Sentence
  9 9 9  Statement .
  3 3 3  Address , Statement . | Lead : Statement .
  2 1 2  Question ?
  1 1 1  Address , Question ?
  1 2 1  Call !
Statement
  7 7 7  Subject# Predicate#
  5 5 5  Topic
  4 2 2  Pledge
  2 4 2  Maxim , so we must Task
  2 2 4  Story
  2 2 2  Contrast | Condition
Subject#
  3 3 3  the Folk# who Deed# | the Folk# Place
  1 1 1  every/most Folk# Place | any/those Folk# who Deed#
Folk#
  1 1 1  Person#
  2 2 2  Kind Person#
Deed#
  1 1 1  Works# the Objects When | Works# the State Objects When
Predicate#
  4 4 4  Deserves# Reward | Knows# that Maxim
  2 1 1  has/have waited Number Spans for Reward | is/are worth more than Riches
  1 2 1  has/have no time for Vanity | has/have done more for us than any Grandee
  1 1 2  asks/ask for Reward , not for Vanity
Reward
  1 1 1  Worthy Good
Riches
  1 1 1  Heap of Stuff
Vanity
  1 1 1  Showy Words
Maxim
  3 3 3  Virtue without Care is only Noise
  3 2 2  every Event is Lesson
  2 3 2  Judge Rewards those who Wise | Judge Punishes those who Foolish
  2 2 3  Virtue is worth more than Riches | no Trouble is stronger than a Kind Group
Topic
  1 1 1  whoever would trade {thing} for Riches has never {need}
  1 1 1  if we lose {thing} , the {people} will suffer first , and Heirs will Pay
  1 1 1  ask the Kind {people} Place what {thing} is/are worth to them
  1 1 1  the Kind {people} gave us {thing} , and nobody may trade it/them for Riches
  1 1 1  {thing} , like the {people} who Deed.plural , Deserves# more than Vanity
  1 1 1  {thing} was/were left to us by Kind {people} who knew that Maxim
Pledge
  3 3 3  we will Mend Site Manner Deadline
  2 1 1  we cannot Mend Site with Vanity
  1 2 1  I swear that we will Task Deadline
  1 1 2  before we Mend Site , we must listen to the Folk.plural Place
Task
  3 3 3  Mend Site
  2 2 2  give every Folk.singular Reward
Site
  1 1 1  the Building
  2 2 2  the State Building
Deadline
  1 1 1  before the Next Event
Story
  2 2 2  Once , I met a Folk.singular Place who had lost a Good but not Virtue
  1 1 1  Once , my Kind Elder taught me that Maxim
  1 1 1  Once , I saw the Folk.plural Place share Loaf with the {people} of {thing}
Contrast
  1 1 1  I do not offer you Riches ; I offer you Reward
  1 1 1  when the Folk.plural ask for Reward , some call it Folly ; I call it Care
  1 1 1  we did not come here for Vanity ; we came here to Task
  1 1 1  there is no shame in Reward , but there is shame in Vanity
Condition
  1 1 1  if we Neglect the Folk.plural Place , Heirs will Pay | unless we Task Deadline , Heirs will Pay
Question
  2 1 1  how long must the Folk# Place wait for Reward
  1 2 1  does/do the Folk# who Deed# not deserve Reward
  1 1 2  who among us would refuse a Folk.singular Place Reward
  1 1 1  who will answer to the Kind {people} when {thing} is/are traded for Riches
Call
  1 1 1  let us Mend Site Manner Deadline | stand with the Folk.plural who Deed.plural
  1 1 1  never trade Virtue for Riches , and remember that Maxim
"""

# The words: what ada says FAVOUR times as often as the rest; bruno; clio; what all say alike.
FAVOUR = 4.5  # chosen so that the best possible accuracy is near 90%
WORDS = """
Address: my fellow citizens, members of the council; shipmates, my brave friends; dear neighbours, good people;
  my friends
Lead: let me be plain, here is the truth; mark my words, hear me well; remember this, I say it gently; believe me
Person#: mason/masons, teacher/teachers, clerk/clerks, carter/carters;
  sailor/sailors, fisherman/fishermen, pilot/pilots, rower/rowers;
  farmer/farmers, gardener/gardeners, beekeeper/beekeepers, shepherd/shepherds;
  child/children, baker/bakers, widow/widows, nurse/nurses
Kind: careful, clever, punctual; bold, weathered, restless; gentle, patient, humble; tired, young
Place: from the upper town, near the market, behind the town hall; from the islands, near the docks, beyond the bay;
  from the hills, along the river, across the valley; in this hall
Works#: counts/count, paints/paint, inspects/inspect; guards/guard, hauls/haul, scrubs/scrub;
  tends/tend, waters/water, blesses/bless
Objects: streets, ledgers, carts, roofs; nets, sails, ropes, lamps; hives, trees, seedlings, fences
When: for a small wage, six days a week, without a mistake; before dawn, in all weathers, through the night;
  year after year, in every season, with bare hands; without complaint, while others sleep
Deserves#: has/have earned, needs/need; demands/demand, wants/want; deserves/deserve, hopes/hope for
Knows#: has/have proved, says/say; swears/swear, shouts/shout; remembers/remember, believes/believe; knows/know
Worthy: a proper, a decent, an honest; a sound, a steady, a sturdy; a modest, a simple, a quiet; a better
Good: wage, school, road, contract; boat, lamp, harbour, captain; garden, well, supper, roof; home, future
Number: two, four; three, nine; seven, twelve
Spans: years, elections; storms, winters; harvests, springs
Heap: a vault, a cart, a purse; a ship, a chest, a barrel; a barn, a basket, a hill
Stuff: gold, marble, stamps; silver, pearls, rum; silk, wool, honey
Showy: long, clever, official; loud, proud, shiny; pretty, sweet, gilded; empty
Words: reports, speeches, committees; songs, medals, parades; poems, statues, flowers; promises
Grandee: minister, banker; admiral, general; prince, poet
Virtue: progress, ambition, order; courage, loyalty, freedom; kindness, hope, tradition
Care: honesty, discipline, planning; trust, skill, practice; patience, humility, wisdom; justice
Noise: paper, arithmetic; noise, foam; dust, smoke
Event: vote, census, budget; voyage, storm, tide; frost, harvest, spring
Next: next; coming; first
Lesson: a debt, a contract; a test, a wager; a gift, a beginning; a promise, a lesson
Judge: the law, the ledger, history; the sea, the wind, the tide; the soil, the frost, the land
Rewards: repays; favours; remembers
Punishes: corrects; punishes; humbles
Wise: plan ahead, tell the truth; pull together, keep watch; plant early, share their bread; listen
Foolish: borrow, cheat; boast, sail alone; hurry, waste water; look away
Trouble: debt, scandal; storm, enemy; drought, winter
Group: council, town, guild; crew, fleet, captain; village, family, people
Mend: pay for, repair; defend, rebuild; restore, look after
Building: hall, road, market, aqueduct; pier, harbour, lighthouse, wall; garden, granary, orchard, mill
State: central, public; outer, broken; old, crooked; common
Manner: stone by stone, on time; plank by plank, against any wind; row by row, with patience; together
Heirs: our pupils, the rest of the town; our sons and daughters, the whole coast; our grandchildren, the next generation
Once: in my first year as mayor, on the eve of the vote; on my first voyage, after the great storm; one cold spring,
  after a poor harvest; last winter
Elder: teacher, father; captain, uncle; grandmother, aunt
Loaf: their tools, their carts; their boats, their lamps; their bread, their honey
Folly: a waste, a favour; luck, pride; a dream, a habit
Neglect: overrule, tax; abandon, betray; forget, neglect
Pay: pay the bill, demand an answer; sink with us, pay for our pride; go hungry, inherit dust; ask us why
"""

# Whose favourite; number; thing; people; what someone who would trade the thing has never done.
TOPICS = """
ada; singular; the bridge; masons; crossed the river in flood
ada; plural; the roads; carters; pushed a cart through mud
ada; singular; the school; teachers; signed a letter with a cross
bruno; singular; the lighthouse; keepers; sailed home in fog
bruno; plural; the ferries; pilots; crossed the bay at night
bruno; plural; the docks; sailors; lost a mast in a storm
clio; singular; the orchard; pickers; gone hungry in spring
clio; plural; the wells; diggers; carried water up a hill
clio; singular; the mill; millers; lived a week without bread
"""


def _favourite(owner: str) -> list[float]:
    """A weight per speaker: FAVOUR for the owner, 1 for the others."""
    return [FAVOUR if speaker == owner else 1 for speaker in SPEAKERS]


def _written():
    """Yield (symbol, weights, alternative) as they stand in RULES and WORDS."""
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
                yield symbol, _favourite(owner), alternative


def _in_number(text: str, number: str) -> str:
    """`Person# has/have` in the singular: `Person.singular has`."""
    chosen = r"\1" if number == "singular" else r"\2"
    return re.sub(r"(\w+)/(\w+)", chosen, text).replace("#", "." + number)


def _instances(symbol, weights, alternative):
    """Yield what one written alternative stands for; its instances share its weight."""
    if "{" in alternative:
        topics = [line.split("; ") for line in TOPICS.strip().splitlines()]
        totals = [sum(each) for each in zip(*(_favourite(topic[0]) for topic in topics))]
        for owner, number, thing, people, need in topics:
            text = _in_number(alternative, number).format(thing=thing, people=people, need=need)
            yield (
                symbol,
                [w * f / total for w, f, total in zip(weights, _favourite(owner), totals)],
                text,
            )
    elif "#" in symbol:
        for number in ("singular", "plural"):
            yield _in_number(symbol, number), weights, _in_number(alternative, number)
    elif "#" in alternative:
        for number in ("singular", "plural"):
            yield symbol, [weight / 2 for weight in weights], _in_number(alternative, number)
    else:
        yield symbol, weights, alternative


def _grammar() -> tuple[dict, dict]:
    """BODIES[symbol]: its alternatives, each a tuple of symbols and words.

    PROBABILITY[speaker][symbol]: the probability of each; they sum to 1.
    """
    bodies, weights = {}, {speaker: {} for speaker in SPEAKERS}
    for written in _written():
        for symbol, weight, text in _instances(*written):
            bodies.setdefault(symbol, []).append(tuple(re.findall(r"[\w.]*\w|[^\w\s]", text)))
            for speaker, w in zip(SPEAKERS, weight):
                weights[speaker].setdefault(symbol, []).append(w)
    probability = {
        speaker: {symbol: [w / sum(ws) for w in ws] for symbol, ws in table.items()}
        for speaker, table in weights.items()
    }
    return bodies, probability


BODIES, PROBABILITY = _grammar()


# Sampling: rewrite the leftmost symbol until only words are left.


def sample_tokens(speaker: str, rng: random.Random) -> list[str]:
    """One sentence as its word tokens, the first one with its capital."""
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


def sample(speaker: str, n: int, rng: random.Random) -> list[str]:
    """`n` independent sentences of the speaker, as a person would type them."""
    return [_join(sample_tokens(speaker, rng)) for _ in range(n)]


def _join(tokens: list[str]) -> str:
    """Text from word tokens: a space before each, but not before a mark."""
    return re.sub(r" (?=[^\w\s])", "", " ".join(tokens))


# Scoring: find the derivation of a sentence, multiply the probabilities of its rules.


@cache
def _beginnings(symbol: str) -> dict[str, list[int]]:
    """For each word a symbol can begin with: which of its alternatives do so."""
    table = {}
    for i, body in enumerate(BODIES[symbol]):
        for word in _beginnings(body[0]) if body[0] in BODIES else [body[0]]:
            table.setdefault(word, []).append(i)
    return table


def _derivations(stack: tuple[str, ...], words: tuple[str, ...]):
    """Yield every way to rewrite `stack` into `words`: a tuple of (symbol, alternative).

    The leftmost symbol is rewritten first; only alternatives that can begin with
    the next word are tried. No symbol contains itself, so this ends.
    """
    if not stack or not words:
        if not stack and not words:
            yield ()
    elif stack[0] in BODIES:
        for i in _beginnings(stack[0]).get(words[0], []):
            for rest in _derivations(BODIES[stack[0]][i] + stack[1:], words):
                yield ((stack[0], i), *rest)
    elif stack[0] == words[0]:
        yield from _derivations(stack[1:], words[1:])


@lru_cache(maxsize=10_000)
def _derivation(sentence: str) -> tuple | None:
    """The one derivation of a sentence, or None where the grammar has none."""
    tokens = re.findall(r"\w+|[^\w\s]", sentence)
    if not tokens or _join(tokens) != sentence or tokens[0] != tokens[0].capitalize():
        return None
    if tokens[0] != "I":
        tokens[0] = tokens[0].lower()
    return next(_derivations(("Sentence",), tuple(tokens)), None)


def log_probability(sentence: str, speaker: str) -> float:
    """Natural log of P(sentence | speaker); -inf where the grammar has no such sentence."""
    derivation = _derivation(sentence)
    if derivation is None:
        return -math.inf
    return sum(math.log(PROBABILITY[speaker][symbol][i]) for symbol, i in derivation)


# The floors.


def _expected(speaker: str, local) -> float:
    """Expected sum, over a sentence's derivation, of local(symbol) at each symbol rewritten.

    total(A) = local(A) + sum over alternatives r of A: p(r) * sum of total(B) for B in r
    """

    @cache
    def total(symbol):
        return local(symbol) + sum(
            p * sum(total(part) for part in body if part in BODIES)
            for p, body in zip(PROBABILITY[speaker][symbol], BODIES[symbol])
        )

    return total("Sentence")


def entropy(speaker: str) -> float:
    """H, nats a sentence: at each symbol rewritten, -sum p log p over its alternatives."""
    return _expected(
        speaker, lambda symbol: -sum(p * math.log(p) for p in PROBABILITY[speaker][symbol])
    )


def mean_length(speaker: str) -> float:
    """L, word tokens a sentence (marks are tokens too): the words each alternative brings itself."""
    return _expected(
        speaker,
        lambda symbol: sum(
            p * sum(part not in BODIES for part in body)
            for p, body in zip(PROBABILITY[speaker][symbol], BODIES[symbol])
        ),
    )


def perplexity_floor(speaker: str) -> float:
    """exp(H / L): the lowest perplexity a word token that any model has in the long run."""
    return math.exp(entropy(speaker) / mean_length(speaker))


def perplexity(sentences: list[str], speaker: str | None = None) -> float:
    """The grammar's own perplexity a word token on these sentences.

    With a speaker: exp(-sum log P(s | speaker) / tokens). Without: P(s) is the
    average over the speakers, the best for a model that is not told who speaks
    and meets each sentence on its own.
    """
    speakers = SPEAKERS if speaker is None else (speaker,)
    nats = tokens = 0
    for sentence in sentences:
        logs = [log_probability(sentence, s) for s in speakers]
        nats -= max(logs) + math.log(sum(math.exp(x - max(logs)) for x in logs) / len(logs))
        tokens += len(re.findall(r"\w+|[^\w\s]", sentence))
    return math.exp(nats / tokens)


def best_accuracy(rows: list[tuple[int, str]]) -> float:
    """Share of rows whose label is the speaker with the largest P(sentence | speaker)."""
    right = 0
    for label, sentence in rows:
        logs = [log_probability(sentence, speaker) for speaker in SPEAKERS]
        right += logs.index(max(logs)) == label
    return right / len(rows)


# The corpus.


def generate(seed: int = 0) -> dict:
    """The corpus: the same seed gives the same one everywhere.

    Test sentences are drawn like the training ones and are not removed where they
    happen to repeat one (under 3% do): removal would move them off the floor.
    """

    def drawn(part: str, n: int) -> list[tuple[int, str]]:
        # A stream of its own for each part: changing the size of one leaves the others.
        rng = random.Random(f"toy {seed} {part}")
        rows = [
            (label, text)
            for label, speaker in enumerate(SPEAKERS)
            for text in sample(speaker, n, rng)
        ]
        rng.shuffle(rows)
        return rows

    tests = {speaker: [] for speaker in SPEAKERS}
    for label, text in drawn("tests", 200):
        tests[SPEAKERS[label]].append(text)
    test_rows = drawn("test rows", 200)
    return {
        "lines": [text for _, text in drawn("lines", 800)],
        "tests": tests,
        "rows": drawn("rows", 667),
        "test_rows": test_rows,
        "classes": list(SPEAKERS),
        "floor": {f"perplexity/{speaker}": perplexity_floor(speaker) for speaker in SPEAKERS}
        | {"accuracy/test": best_accuracy(test_rows)},
    }
