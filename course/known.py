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
    entries = read_mistakes(function)
    singles = {message: [edits] for message, edits in entries.items()}
    pairs = {}
    for (first, edits), (second, more) in itertools.combinations(entries.items(), 2):
        pairs[f"{first} Also: {second}"] = [edits, more]
    known = [Computed(edits, solution, cases, results) for edits in (singles, pairs)]
    return Expectation(function, cases, results, gradients, *known)


def find_solution(function):
    for name in EXERCISES:
        if function in solutions(name):
            return solutions(name)[function]
    raise KeyError(function)


class Computed:
    """Known mistakes, or pairs of them: {message: edits of the solution, each a list}. What they
    return is computed when it is first asked for."""

    def __init__(self, edits, solution, cases, results):
        self.messages = list(edits)
        self.edits = list(edits.values())
        self.solution = solution
        self.source = inspect.getsource(solution)
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
        check = CHECKS[self.solution.__name__]
        try:  # a mistake may not run in some cases, nor two edits of one line
            if row not in self.functions:
                self.functions[row] = edit(self.solution, self.source, self.edits[row])
            result = observe(self.functions[row], check, self.cases[number])
        except Exception:
            result = {}
        return sketch(result, self.results[number])


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


def edit(solution, source, mistakes):
    """Return the function that makes these mistakes. Raises ValueError if an edit does not fit."""
    name = solution.__name__
    expressions = []
    for edits in mistakes:
        for old, arrow, new in edits:
            if not arrow:
                expressions.append(old)
            elif old in source:
                source = source.replace(old, new)
            else:
                raise ValueError(f"{name}: not found in it: {old}")
    function = define(name, source, solution.__globals__)
    arguments = ", ".join(inspect.signature(solution).parameters)
    for expression in expressions:  # what is returned instead; it may call the function so far
        source = f"def {name}({arguments}):\n    return {expression}"
        function = define(name, source, {**solution.__globals__, name: function})
    return function


def define(name, source, names):
    namespace = {}
    exec(source, dict(names), namespace)
    return namespace[name]
