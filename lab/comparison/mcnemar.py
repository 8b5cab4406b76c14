"""McNemar's test: is one of two classifiers better on the same rows, or could it be chance?"""

from itertools import combinations

from lab.predictions import FILE, read_predictions

LEVEL = 0.05  # a difference is significant if p is below


def p_value(first, second):
    """Return the two-sided p of the exact test.

    first, second: number of rows that only the first and only the second model gets right. If
    neither were better, a fair coin would decide each of these n rows, and

        p = 2 P(at most min(first, second) heads in n tosses), at most 1.
    """
    n, ways, total = first + second, 1, 1
    for k in range(min(first, second)):
        ways = ways * (n - k) // (k + 1)  # n choose k + 1, from n choose k: fast for large n
        total += ways
    return min(1.0, 2 * total / 2**n)


def compare_pairs(entries):
    """Test every two of the entries of a comparison, runs of the same seed against each other.

    An entry has a label and folders, {seed: run folder}; the seed of a baseline is "", which goes
    with any other. Returns (tests, notes): a test is a dictionary with the labels and a list of
    results, one per seed; a note says why some runs are not tested.
    """
    entries = [entry for entry in entries if entry.folders]
    if len(entries) < 2:
        return [], []
    folders = [folder for entry in entries for folder in entry.folders.values()]
    answers = {folder: read_predictions(folder) for folder in folders if (folder / FILE).exists()}
    missing = [str(folder) for folder in folders if folder not in answers]

    tests, notes, untested = [], [], {}  # untested: {why: pairs}
    if missing:
        remedy = "repeat these runs to test for differences"
        notes.append(f"no {FILE} in {', '.join(missing)}; {remedy}")
    for a, b in combinations(entries, 2):
        pairs = [
            (seed or other, mine, theirs)
            for seed, mine in a.folders.items()
            for other, theirs in b.folders.items()
            if seed == other or "" in (seed, other)
        ]
        known = [(seed, answers[x], answers[y]) for seed, x, y in pairs if {x, y} <= answers.keys()]
        same = [(seed, x, y) for seed, x, y in known if are_same_rows(x, y)]
        if same:
            results = [{"seed": seed} | compare_rows(x, y) for seed, x, y in same]
            tests.append({"first": a.label, "second": b.label, "results": results})
        elif known or not pairs:
            problem = "different test rows" if known else "no seed in common"
            untested.setdefault(problem, []).append(f"{a.label} and {b.label}")
    notes += [f"not tested, {problem}: {'; '.join(pairs)}" for problem, pairs in untested.items()]
    return tests, notes


def are_same_rows(first, second):
    """Return whether two lists (text, gold, predicted, ...) are of the same rows in one order."""
    return [row[:2] for row in first] == [row[:2] for row in second]


def compare_rows(first, second):
    """Return the result of the test on two lists of rows (text, gold, predicted, ...)."""
    right = [(a[1] == a[2], b[1] == b[2]) for a, b in zip(first, second)]
    only_first, only_second = right.count((True, False)), right.count((False, True))
    found = {"rows": len(right), "only_first": only_first, "only_second": only_second}
    return found | {"p": p_value(only_first, only_second)}


def describe(tests):
    """Return the tests as text, one line per pair; "" without any."""
    if not tests:
        return ""
    lines = [
        "McNemar's exact test. It counts the test rows, seen ones included, that only one of two "
        f"models gets right (in brackets: first to second). p < {LEVEL} is significant, without a "
        "correction for the number of pairs.\n"
    ]
    for test in tests:
        counts = "; ".join(map(spell, test["results"]))
        lines.append(f"- {test['first']} and {test['second']} differ on {counts}: {verdict(test)}")
    return "\n".join(lines)


def spell(result):
    """Return "41 rows (25 to 16), p = 0.211"."""
    a, b = result["only_first"], result["only_second"]
    return f"{a + b:,} row{'s' * (a + b != 1)} ({a:,} to {b:,}), {spell_p(result['p'])}"


def spell_p(p):
    return f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"


def verdict(test):
    """Return in words for which seeds the difference is significant."""
    results = test["results"]
    first_better = [r["only_first"] > r["only_second"] for r in results if r["p"] < LEVEL]
    if len(results) == 1:
        return "significant" if first_better else "not significant"
    seeds = ", ".join(result["seed"] for result in results)
    opposite = ", in opposite directions" if len(set(first_better)) > 1 else ""
    return f"significant for {len(first_better)} of the {len(results)} seeds {seeds}{opposite}"
