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


def _favourite(owner: str) -> tuple[int, ...]:
    """A weight per speaker: FAVOUR for the owner, 1 for the others."""
    return tuple(FAVOUR if speaker == owner else 1 for speaker in SPEAKERS)


def _written():
    """Yield (symbol, weights, alternative) as they stand in RULES and WORDS."""
    for line in RULES.strip().splitlines():
        if not line.startswith(" "):
            symbol = line
            continue
        *weights, alternatives = line.split(maxsplit=len(SPEAKERS))
        for alternative in alternatives.split("|"):
            yield symbol, tuple(map(int, weights)), alternative
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
    """Yield what one written alternative stands for, one for each number or topic."""
    if "{" in alternative:
        for line in TOPICS.strip().splitlines():
            owner, fields = line.split(":")
            number, thing, people, need = (field.strip() for field in fields.split(";"))
            text = _in_number(alternative.format(thing=thing, people=people, need=need), number)
            # Every topic line adds up to the same weight over the speakers, so
            # dividing by their number leaves the written weights as they are.
            yield symbol, [w * f for w, f in zip(weights, _favourite(owner))], text
    elif "#" in symbol + alternative:
        for number in ("singular", "plural"):
            yield _in_number(symbol, number), weights, _in_number(alternative, number)
    else:
        yield symbol, weights, alternative
