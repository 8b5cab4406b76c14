"""The rules and words of the toy corpus, as toy.py reads them."""

# How a sentence is built: a symbol, then lines of alternatives after their weights for ada, bruno
# and clio. Symbols begin with a capital. Every other word or mark is a token of the sentence, and
# so is "I". The first word of a sentence gets its capital at the end.
#
# Two devices make distant words agree. A symbol with # stands for two, a singular and a plural one,
# in which a/b is a or b. An alternative with {thing} stands for one per topic below, and there a/b
# follows the number of the thing.
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
  1 1 1  if we Neglect the Folk.plural Place , Heirs will Pay
  1 1 1  unless we Task Deadline , Heirs will Pay
Question
  2 1 1  how long must the Folk# Place wait for Reward
  1 2 1  does/do the Folk# who Deed# not deserve Reward
  1 1 2  who among us would refuse a Folk.singular Place Reward
  1 1 1  who will answer to the Kind {people} when {thing} is/are traded for Riches
Call
  1 1 1  let us Mend Site Manner Deadline | stand with the Folk.plural who Deed.plural
  1 1 1  never trade Virtue for Riches , and remember that Maxim
"""

# The words: those ada says FAVOUR times as often as the others (see toy.py); bruno's; clio's; those
# of all.
WORDS = """
Address: my fellow citizens, members of the council; shipmates, my brave friends;
  dear neighbours, good people;
  my friends
Lead: let me be plain, here is the truth; mark my words, hear me well;
  remember this, I say it gently; believe me
Person#: mason/masons, teacher/teachers, clerk/clerks, carter/carters;
  sailor/sailors, fisherman/fishermen, pilot/pilots, rower/rowers;
  farmer/farmers, gardener/gardeners, beekeeper/beekeepers, shepherd/shepherds;
  child/children, baker/bakers, widow/widows, nurse/nurses
Kind: careful, clever, punctual; bold, weathered, restless; gentle, patient, humble; tired, young
Place: from the upper town, near the market, behind the town hall;
  from the islands, near the docks, beyond the bay;
  from the hills, along the river, across the valley; in this hall
Works#: counts/count, paints/paint, inspects/inspect; guards/guard, hauls/haul, scrubs/scrub;
  tends/tend, waters/water, blesses/bless
Objects: streets, ledgers, carts, roofs; nets, sails, ropes, lamps; hives, trees, seedlings, fences
When: for a small wage, six days a week, without a mistake;
  before dawn, in all weathers, through the night;
  year after year, in every season, with bare hands; without complaint, while others sleep
Deserves#: has/have earned, needs/need; demands/demand, wants/want; deserves/deserve, hopes/hope for
Knows#: has/have proved, says/say; swears/swear, shouts/shout; remembers/remember, believes/believe;
  knows/know
Worthy: a proper, a decent, an honest; a sound, a steady, a sturdy; a modest, a simple, a quiet;
  a better
Good: wage, school, road, contract; boat, lamp, harbour, captain; garden, well, supper, roof;
  home, future
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
Building: hall, road, market, aqueduct; pier, harbour, lighthouse, wall;
  garden, granary, orchard, mill
State: central, public; outer, broken; old, crooked; common
Manner: stone by stone, on time; plank by plank, against any wind; row by row, with patience;
  together
Heirs: our pupils, the rest of the town; our sons and daughters, the whole coast;
  our grandchildren, the next generation
Once: in my first year as mayor, on the eve of the vote; on my first voyage, after the great storm;
  one cold spring,
  after a poor harvest; last winter
Elder: teacher, father; captain, uncle; grandmother, aunt
Loaf: their tools, their carts; their boats, their lamps; their bread, their honey
Folly: a waste, a favour; luck, pride; a dream, a habit
Neglect: overrule, tax; abandon, betray; forget, neglect
Pay: pay the bill, demand an answer; sink with us, pay for our pride; go hungry, inherit dust;
  ask us why
"""

# Owner; number; thing; people; what someone who would trade the thing has never done.
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
