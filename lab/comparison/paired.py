"""Paired t-test: do perplexities of two configurations differ, or could it be the seeds?

Runs of the same seed are compared with each other, which removes what the seed does to both.
"""

import math
import statistics
from itertools import combinations

from lab.comparison.mcnemar import LEVEL, spell_p

INTRO = (
    "Paired t-test over seeds. It compares the log perplexity of the table, averaged over the test "
    "sets (without any, that of the held-out lines), of runs of the same seed, so it can find a "
    f"difference even if the bands in the figure overlap. p < {LEVEL} is significant, without a "
    "correction for the number of pairs."
)


def p_value(t, n):
    """Return the two-sided p of Student's t with n degrees of freedom, n a whole number.

    In closed form: Abramowitz & Stegun 1964, 26.7.3 and 26.7.4.
    """
    angle = math.atan(abs(t) / math.sqrt(n))
    term = total = math.cos(angle) if n % 2 else 1.0
    for k in range(3 if n % 2 else 2, n - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    inside = math.sin(angle) * total
    if n % 2:
        inside = 2 / math.pi * (angle + (inside if n > 1 else 0))
    return max(0.0, 1 - inside)


def mean_logs(configuration):
    """Return {seed: mean log perplexity} of the test sets, or without any of the held-out lines;
    {} without perplexities."""
    found = {}
    for run in configuration.runs:
        names = {n for n in run.numbers if n.startswith("perplexity/") and "@" not in n}
        names -= {"perplexity/train"}
        names = names - {"perplexity/valid"} or names
        if names:
            found[run.seed] = statistics.fmean(math.log(run.numbers[name]) for name in names)
    return found


def compare_pairs(configurations, scores=mean_logs):
    """Test every two configurations of several seeds on their log perplexity, the best first.

    scores: returns {seed: log perplexity} of a configuration.

    Returns (tests, notes). A test is {"better", "worse": labels, "seeds": number, "percent": by how
    much the perplexity is higher, "deviation": of that over the seeds, "p"}. A note says which
    configurations are not tested, since they share fewer than two seeds.
    """
    scored = [(scores(c), c.label) for c in configurations]
    several = [(values, label) for values, label in scored if len(values) > 1]
    lone = [label for values, label in scored if len(values) == 1]
    ranked = sorted(several, key=lambda pair: statistics.fmean(pair[0].values()))
    tests, notes, apart = [], [], []
    if lone and len(scored) > 1:
        notes.append(f"not tested, a single seed: {'; '.join(lone)}; train with more seeds")
    for (low, better), (high, worse) in combinations(ranked, 2):
        differences = [high[seed] - low[seed] for seed in low if seed in high]
        if len(differences) < 2:
            apart.append(f"{better} and {worse}")
            continue
        if statistics.fmean(differences) < 0:  # over the shared seeds it is the other way round
            better, worse, differences = worse, better, [-d for d in differences]
        mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
        t = mean / max(deviation / math.sqrt(len(differences)), 1e-12)
        spread = statistics.stdev(map(math.expm1, differences))
        test = {"better": better, "worse": worse, "seeds": len(differences)}
        test |= {"percent": 100 * math.expm1(mean), "deviation": 100 * spread}
        tests.append(test | {"p": p_value(t, len(differences) - 1)})
    if apart:
        problem = "not tested, fewer than two seeds in common"
        notes.append(f"{problem}: {'; '.join(apart)}; train with the same seeds")
    return tests, notes


def describe(tests, intro=INTRO):
    """Return the tests as text, one line each below an introduction; "" without any."""
    if not tests:
        return ""
    lines = [intro + "\n"]
    for test in tests:
        verdict = "significant" if test["p"] < LEVEL else "not significant"
        lines.append(
            f"- {test['worse']} is {test['percent']:.1f} ± {test['deviation']:.1f}% above "
            f"{test['better']} over {test['seeds']} seeds, {spell_p(test['p'])}: {verdict}"
        )
    return "\n".join(lines)
