"""The exercises with their solutions, and known mistakes, which are edits of the solutions.

In a handout, course/handout/known.py takes this file's place: it reads what these functions return.
"""

import functools
import inspect
import itertools
import re
from pathlib import Path

import torch

from course.cases import CHECKS
from course.differences import sketch
from course.exercises import EXERCISES, solutions
from course.expectation import Expectation
from course.observe import observe, observe_cases, observe_gradients
from data.files import UserError

MISTAKES = Path(__file__).with_name("mistakes.md")


def choose_exercises(words):
    """Return the exercises given by name or number, in their order; without words, all of them.
    Raises UserError for a word that is neither."""
    numbered = {str(number_of(name)): name for name in EXERCISES}
    names = set()
    for word in filter(None, map(str.strip, words)):
        name = numbered.get(word, word)
        if name not in EXERCISES:
            choices = f"1 to {len(EXERCISES)}: {', '.join(EXERCISES)}"
            raise UserError(f"{name}: no such exercise; there are {choices}")
        names.add(name)
    if not names:
        return list(EXERCISES)
    return [name for name in EXERCISES if name in names]


def number_of(name):
    return int(EXERCISES[name].stem[2:4])


def file_of(name):
    """Return the name of the file that a student writes."""
    return EXERCISES[name].name


def functions_of(name):
    """Return the names of the functions of an exercise."""
    return list(solutions(name))


@functools.cache
def expect(function, seed):
    """Return the Expectation of a function, given by its name."""
    solution = find_solution(function)
    check = CHECKS[function]
    cases = check.cases(seed)
    results, error = observe_cases(solution, check, list(enumerate(cases)))
    gradients, gradient_error = observe_gradients(solution, check, cases)
    if error or gradient_error:
        raise error or gradient_error
    results = list(results.values())
    of_function = read_mistakes(function)
    singles = {message: [(function, edits)] for message, edits in of_function.items()}
    for helper in find_helpers(solution):
        for message, edits in read_mistakes(helper).items():
            singles[f"as in {helper}: {message}"] = [(helper, edits)]
    pairs = {}
    for first, second in itertools.combinations(singles, 2):
        if first in of_function:  # else both are of helpers
            pairs[f"{first} Also: {second}"] = singles[first] + singles[second]
    known = [Computed(mistakes, solution, cases, results) for mistakes in (singles, pairs)]
    return Expectation(function, cases, results, gradients, *known)


def find_solution(function):
    for name in EXERCISES:
        if function in solutions(name):
            return solutions(name)[function]
    raise KeyError(function)


def find_helpers(solution):
    """Return the names of other functions of the exercise that a solution calls."""
    called = set(re.findall(r"(\w+)\(", source_of(solution)))
    module = solution.__module__
    helpers = []
    for name, value in solution.__globals__.items():
        if name in called - {solution.__name__} and getattr(value, "__module__", "") == module:
            helpers.append(name)
    return helpers


class Computed:
    """Known mistakes, or pairs of them: {message: [(function, edits), ...]}. What they return is
    computed when it is first asked for."""

    def __init__(self, mistakes, solution, cases, results):
        self.messages = list(mistakes)
        self.mistakes = list(mistakes.values())
        self.solution = solution
        self.cases = cases
        self.results = results  # of the solution
        self.functions = {}  # {row: function}
        self.sketched = {}  # {(number, row): sketch}

    def sketches(self, number, rows):
        """Return sketches (len(rows), K) of what these mistakes return in a case."""
        for row in rows:
            if (number, row) not in self.sketched:
                self.sketched[number, row] = self.sketch(number, row)
        return torch.stack([self.sketched[number, row] for row in rows])

    def sketch(self, number, row):
        expected = self.results[number]
        try:
            check = CHECKS[self.solution.__name__]
            return sketch(observe(self.function(row), check, self.cases[number]), expected)
        except Exception:  # a mistake may not run in some cases, nor two edits of one line
            return torch.full_like(sketch(expected, expected), torch.nan)

    def function(self, row):
        """Return the function that makes a mistake, or two."""
        if row not in self.functions:
            self.functions[row] = edit(self.solution, self.mistakes[row])
        return self.functions[row]


# A diagnosis, which may go on in further lines, and lines of edits: `old` => `new`, or `expression`
ENTRY = re.compile(r"^- (.+\n(?:  [^`].*\n)*)((?:  `.*\n?)+)", re.MULTILINE)
EDIT = re.compile(r"^  `(.+?)`( =>)?(?: `(.+)`)?$", re.MULTILINE)


def read_mistakes(function):
    """Return {diagnosis: edits [(old, "=>", new) or (expression, "", "")]} from mistakes.md."""
    text = MISTAKES.read_text(encoding="utf-8")
    section = text.partition(f"\n## {function}\n")[2].partition("\n## ")[0]
    mistakes = {}
    for diagnosis, edits in ENTRY.findall(section):
        mistakes[" ".join(diagnosis.split())] = EDIT.findall(edits)
    return mistakes


def edit(solution, mistakes):
    """Return a solution with mistakes [(function, edits), ...], of itself or of functions that it
    calls. Raises ValueError if an edit does not fit."""
    name = solution.__name__
    names = dict(solution.__globals__)
    source = source_of(solution)
    expressions = []
    for function, edits in mistakes:
        if function != name:
            names[function] = edit(names[function], [(function, edits)])
            continue
        for old, arrow, new in edits:
            if not arrow:
                expressions.append(old)
            elif old in source:
                source = source.replace(old, new)
            else:
                raise ValueError(f"{name}: not found in it: {old}")
    mistaken = define(name, source, names)
    arguments = ", ".join(inspect.signature(solution).parameters)
    for expression in expressions:  # what is returned instead; it may call the function so far
        source = f"def {name}({arguments}):\n    return {expression}"
        mistaken = define(name, source, {**names, name: mistaken})
    return mistaken


source_of = functools.cache(inspect.getsource)


def define(name, source, names):
    """Return the function of this name in a source, which sees these names."""
    namespace = {}
    exec(source, names, namespace)
    return namespace[name]
