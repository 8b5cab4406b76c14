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
the best it can do is the average of the three grammars, `perplexity(sentences)`.
"""

import math
import random
import re
from functools import cache, lru_cache
from itertools import accumulate

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
  6 6 6  Subject# Predicate# | Topic
  2 2 2  Subject# Predicate# , and Verdict | Contrast | Condition
  4 2 2  Pledge
  2 4 2  Maxim , so we must Task Deadline
  2 2 4  Story
Subject#
  3 3 3  the Person# who Deed# | the Person# Place
  1 1 1  every/most Person# Place | any/those Person# who Deed#
Deed#
  1 1 1  Work# When
Predicate#
  3 3 3  deserves/deserve Reward | knows/know that Maxim
  2 1 1  has/have waited Span for Reward | is/are worth more to this town than Riches
  1 2 1  has/have no time for Vanity | has/have done more for us than any Grandee
  1 1 2  asks/ask for Reward , not for Vanity | taught me that Maxim
Maxim
  3 3 3  Virtue without Care is only Noise
  3 2 2  every Event is a Lesson
  2 3 2  Judge Rewards those who Wise | Judge Punishes those who Foolish
  2 2 3  Virtue is worth more than Riches | no Trouble is stronger than Union
Topic
  1 1 1  whoever would trade {thing} for Riches has never {need} , and knows little of Virtue
  1 1 1  if {thing} is/are lost Deadline , the {people} will suffer first , and Heirs will Pay
  1 1 1  ask the {people} Place what {thing} is/are worth to them , and forget Riches
  1 1 1  the {people} Place gave us {thing} , and nobody may trade it/them for Riches
  1 1 1  {thing} , like the {people} who Deed.plural , needs/need more than Vanity
  1 1 1  {thing} was/were left to us by {people} who knew that Maxim
Pledge
  3 3 3  we will Task Manner , and we will do it Deadline
  2 1 1  we cannot Mend Building with Vanity , and Heirs know it
  1 2 1  I swear to you that we will Task Deadline
  1 1 2  before we Mend Building , we must listen to the Person.plural Place
Task
  3 3 3  Mend Building
  2 2 2  give every Person.singular Reward
Story
  2 2 2  Once , I met a Person.singular Place who had lost Loss but not Virtue
  1 1 1  Once , my Elder told me that Maxim
  1 1 1  Once , I saw the Person.plural Place share Loaf with the {people} of {thing}
Contrast
  1 1 1  I do not offer you Riches ; I offer you Reward and the Virtue to defend it
  1 1 1  when the Person.plural Place ask for Reward , some call it Folly ; I call it Care
  1 1 1  we did not come here to Idle ; we came here to Task
  1 1 1  as my Elder used to say , there is no shame in Hardship , but there is shame in Vice
Condition
  1 1 1  if we Neglect now , Heirs will Pay , and no amount of Vanity will help them
  1 1 1  unless we Task Deadline , Heirs will Pay
Question
  2 1 1  how long must the Person# Place wait for Reward
  1 2 1  does/do the Person# who Deed# not deserve Reward
  1 1 2  who among us would refuse a Person.singular Place Reward
  1 1 1  who will answer to the {people} Place when {thing} is/are traded for Riches
Call
  1 1 1  let us Task Manner , and let us do it Deadline
  1 1 1  stand with the Person.plural who Deed.plural
  1 1 1  never trade Virtue for Riches , and never forget that Maxim
"""

# The words: what ada says FAVOUR times as often as the rest; bruno; clio; what all say alike.
FAVOUR = 3
WORDS = """
Address: my fellow citizens, members of the council; shipmates, my brave friends;
  dear neighbours, good people; my friends
Lead: let me be plain, here is the truth; mark my words, hear me well;
  remember this, I say it gently; believe me
Verdict: the figures prove it, the rest is excuses; I would stake my ship on it, no storm will change that;
  I am grateful for it, every spring reminds me of it; nobody in this hall can deny it
Person#: mason/masons, teacher/teachers, clerk/clerks, carter/carters;
  sailor/sailors, fisherman/fishermen, pilot/pilots, rower/rowers;
  farmer/farmers, gardener/gardeners, beekeeper/beekeepers, shepherd/shepherds;
  child/children, baker/bakers, widow/widows, nurse/nurses
Place: from the upper town, near the market, behind the town hall; from the islands, near the docks,
  beyond the lighthouse; from the hills, along the river, across the valley; in this hall
Work#: sweeps/sweep the streets, mends/mend the roofs, carries/carry the stones;
  hauls/haul the nets, keeps/keep the lamps burning, watches/watch the tides;
  prunes/prune the trees, turns/turn the soil, tends/tend the hives; bakes/bake our bread
When: for a modest wage, six days a week, without a single mistake; before dawn, in all weathers,
  through the night; year after year, in every season, with bare hands; without complaint, while others sleep
Reward: a fair wage, a safe road, an honest budget, a straight answer; a sound boat, a steady light,
  a quiet harbour, fair winds; clean water, good soil, a full granary, a garden to tend;
  a warm bed, a second chance, a place at the table
Span: two elections, ten long years; a hundred tides, three winters; seven harvests, a whole generation
Riches: gold, a marble palace, all the coins in the treasury; silver, a merchant fleet, a chest of pearls;
  silk, a vineyard in the south, a thousand sheep
Vanity: fine words, committees, long reports; medals, parades, loud songs;
  statues, flattery, fireworks; applause, empty promises
Grandee: minister, banker, judge; admiral, general, merchant; prince, landlord, poet
Virtue: progress, ambition, order; courage, loyalty, freedom; kindness, hope, tradition
Care: honesty, discipline, planning; trust, skill, practice; patience, humility, wisdom; justice
Noise: paper, arithmetic; noise, foam; dust, smoke
Event: vote, law, budget; voyage, storm, tide; seed, harvest, spring
Lesson: debt, contract; test, wager; gift, beginning; promise, lesson
Judge: the law, the ledger, history; the sea, the wind, the tide; the soil, the frost, the land
Rewards: repays; favours; remembers
Punishes: corrects; punishes; humbles
Wise: plan ahead, tell the truth; pull together, keep watch; plant early, share their bread; listen
Foolish: borrow without counting, cheat; boast, sail alone; take without giving, hurry; look away
Trouble: debt, scandal; storm, enemy; drought, winter
Union: an honest council, a town with good laws; a crew that pulls together, a captain who listens;
  a village that shares its bread, a patient people
Mend: pay for, repair; defend, rebuild; restore, look after
Building: the town hall, the north road, the old aqueduct; the harbour wall, the lighthouse, the long pier;
  the walled garden, the granary, the river banks
Manner: stone by stone, on time; plank by plank, against any wind; row by row, season after season;
  together, with our own hands
Deadline: before the next election, by the end of the year; before the tide turns, before the next storm;
  before the first frost, while the days are long; this very week
Heirs: our pupils, the rest of the town; our sons and daughters, the whole coast;
  our grandchildren, the next generation
Once: in my first week as mayor, on the eve of the vote; on my first voyage, in the year of the great storm;
  one cold spring, at the end of a poor harvest; last winter
Loss: a house, an office; a ship, an anchor; an orchard, a horse
Elder: teacher, father; captain, uncle; grandmother, aunt
Loaf: their tools; their boats; their bread
Folly: a waste of money, red tape; luck, pride; a dream, an old habit
Idle: count coins, blame the clerks; trade insults, polish our medals; admire the view, complain about the rain
Hardship: an empty purse, a late start; a torn sail, an honest fear; a small harvest, old boots
Vice: a false ledger, an unpaid debt; an idle crew, a broken oath; a locked granary, wasted bread
Neglect: delay the budget again, spend what we do not have; let the lamps go out, set sail unprepared;
  eat the seed corn, cut down the old trees; break this promise
Pay: pay the bill, ask us for the accounts; pay for our pride, go down with us;
  go hungry, inherit nothing but dust; ask us why
"""

# Number; thing; people; what someone who would sell the thing has never done. Favourites as above.
TOPICS = """
ada:   singular; the bridge; masons; crossed the river in flood
ada:   plural; the roads; carters; pushed a cart through mud
ada:   singular; the school; teachers; signed a letter with a cross
bruno: singular; the lighthouse; keepers; sailed home in fog
bruno: plural; the ferries; pilots; rowed across the bay at night
bruno: plural; the sea walls; engineers; found the tide in the kitchen
clio:  singular; the orchard; pickers; gone hungry in spring
clio:  plural; the wells; diggers; carried water up a hill
clio:  singular; the mill; millers; lived a week without bread
"""


def _favourite(owner: str) -> list[int]:
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
        topics = [re.split(r"[:;] *", line) for line in TOPICS.strip().splitlines()]
        totals = [sum(each) for each in zip(*(_favourite(topic[0]) for topic in topics))]
        for owner, number, thing, people, need in topics:
            text = _in_number(alternative, number.strip()).format(thing=thing, people=people, need=need)
            yield symbol, [w * f / total for w, f, total in zip(weights, _favourite(owner), totals)], text
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
_CUMULATIVE = {
    speaker: {symbol: list(accumulate(p)) for symbol, p in table.items()} for speaker, table in PROBABILITY.items()
}


# Sampling: expand the leftmost symbol until only words are left.


def sample_tokens(speaker: str, rng: random.Random) -> list[str]:
    """One sentence as its word tokens, the first one with its capital."""
    tokens, stack = [], ["Sentence"]
    while stack:
        top = stack.pop()
        if top in BODIES:
            body = rng.choices(BODIES[top], cum_weights=_CUMULATIVE[speaker][top])[0]
            stack.extend(reversed(body))
        else:
            tokens.append(top)
    tokens[0] = _capitalised(tokens[0])
    return tokens


def sample(speaker: str, n: int, rng: random.Random) -> list[str]:
    """`n` independent sentences of the speaker, as a person would type them."""
    return [_join(sample_tokens(speaker, rng)) for _ in range(n)]


def _capitalised(word: str) -> str:
    return word[0].upper() + word[1:]


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


@lru_cache(maxsize=100_000)
def _derivation(sentence: str) -> tuple | None:
    """The one derivation of a sentence, or None where the grammar has none."""
    tokens = re.findall(r"\w+|[^\w\s]", sentence)
    if not tokens or _join(tokens) != sentence or tokens[0] != _capitalised(tokens[0]):
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
    return _expected(speaker, lambda symbol: -sum(p * math.log(p) for p in PROBABILITY[speaker][symbol]))


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
        rows = [(label, text) for label, speaker in enumerate(SPEAKERS) for text in sample(speaker, n, rng)]
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
