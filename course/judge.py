"""Judge students' functions: right, a known mistake, or the first number that differs."""

import functools
import inspect
import re
from pathlib import Path
from textwrap import shorten

import torch

from course.cases import CHECKS
from course.differences import first_difference
from course.exercises import solutions
from course.observe import Verdict, observe_cases, observe_gradients, settings_kept
from course.worker import observe_in_process

MISTAKES = Path(__file__).with_name("mistakes.md")


def judge(paths, seed=0, seconds=20, folder=None):
    """Return {exercise: {function: Verdict}} of answers {exercise: path}.

    They run in another process, in this folder, for at most so many seconds per function.
    """
    tasks = []
    for name, path in paths.items():
        tasks += [(path, function) for function in solutions(name)]
    observations = observe_in_process(tasks, seed, seconds, folder)
    verdicts = {name: {} for name in paths}
    with settings_kept():
        torch.set_num_threads(1)  # for tiny tensors
        for name in paths:
            for function, solution in solutions(name).items():
                expectation = expect(solution, seed)
                verdicts[name][function] = expectation.judge(observations[function])
    return verdicts


@functools.cache  # it takes a second for attention and masking
def expect(solution, seed):
    return Expectation(solution, seed)


class Expectation:
    """What the solution of a function and its known mistakes return in all cases."""

    def __init__(self, solution, seed):
        self.name = solution.__name__
        check = CHECKS[self.name]
        self.cases = check.cases(seed)
        numbered = list(enumerate(self.cases))
        self.results, error = observe_cases(solution, check, numbered)
        self.gradients, gradient_error = observe_gradients(solution, check, self.cases)
        if error or gradient_error:
            raise error or gradient_error
        self.mistakes = {}  # {diagnosis: results}
        for diagnosis, function in read_mistakes(solution).items():
            self.mistakes[diagnosis], _ = observe_cases(function, check, numbered)

    def judge(self, observation):
        """Return the Verdict on what a function gave."""
        wrong = {}  # {number of the case: its first difference}
        for number, results in observation.results.items():
            difference = first_difference(results, self.results[number])
            if difference:
                wrong[number] = difference
        if wrong:  # before an error, which it may explain
            return self.name_mistake(observation.results, wrong)
        # The gradients of the first case are compared before an error in those of the second
        for gradients, expected in zip(observation.gradients, self.gradients):
            difference = first_difference(gradients, expected)
            if difference:
                sentence, numbers = difference
                message = (
                    f"{self.name}: the numbers are right, but the gradient of {sentence}. "
                    "Is it cut by .detach(), .data, .item() or no_grad?"
                )
                return Verdict("mistake", message, numbers)
        if observation.failure:
            return observation.failure
        return Verdict("done")

    def name_mistake(self, results, wrong):
        """Return the Verdict on results, of which those of the cases `wrong` are not right."""
        first = min(wrong)
        sentence, numbers = wrong[first]
        detail = f"{self.describe_call(first)}\n{sentence}\n{numbers}"
        n_explained = {}  # {diagnosis: number of cases that it explains}
        for diagnosis, mistaken in self.mistakes.items():
            if first not in find_same(results, mistaken, [first]):  # which saves the other cases
                continue
            same = find_same(results, mistaken, results)
            if self.is_confirmed(same, wrong):
                n_explained[diagnosis] = len(same)
        if not n_explained:
            return Verdict("difference", f"{self.name}: {sentence}", detail)
        diagnosis = max(n_explained, key=n_explained.get)
        return Verdict("mistake", f"{self.name}: {diagnosis}", detail)

    def is_confirmed(self, same, wrong):
        """Return whether a mistake explains a second case that is as the first wrong one, if there
        is one: with the same outputs or sentences to compare."""
        outputs = self.results[min(wrong)].keys()
        alike = {number for number in wrong if self.results[number].keys() == outputs}
        return len(same & alike) >= min(2, len(alike))

    def describe_call(self, number):
        """Return a case as a call, with shapes in place of tensors."""
        arguments = []
        for argument in self.cases[number]:
            if torch.is_tensor(argument):
                words = str(tuple(argument.shape))
            else:
                words = str(getattr(argument, "__name__", argument))
            arguments.append(shorten(words, 80))
        return f"{self.name}({', '.join(arguments)})"


def find_same(results, mistaken, numbers):
    """Return which of these cases have the same results in a function and a mistake."""
    same = set()
    for number in numbers:
        if number in mistaken and not first_difference(results[number], mistaken[number]):
            same.add(number)
    return same


# A diagnosis, which may go on in further lines, and lines of edits: `old` => `new`, or `expression`
ENTRY = re.compile(r"^- (.+\n(?:  [^`].*\n)*)((?:  `.*\n?)+)", re.MULTILINE)
EDIT = re.compile(r"^  `(.+?)`( =>)?(?: `(.+)`)?$", re.MULTILINE)


def read_mistakes(solution):
    """Return {diagnosis: function that makes the mistake} of a solution, from mistakes.md."""
    name = solution.__name__
    text = MISTAKES.read_text(encoding="utf-8")
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    mistakes = {}
    for diagnosis, edits in ENTRY.findall(section):
        source = inspect.getsource(solution)
        for old, arrow, new in EDIT.findall(edits):
            if arrow:
                source = source.replace(old, new)
            else:  # what is returned instead; the expression may call the solution
                arguments = ", ".join(inspect.signature(solution).parameters)
                source = f"def {name}({arguments}):\n    return {old}"
        namespace = {}
        exec(source, dict(solution.__globals__), namespace)
        mistakes[" ".join(diagnosis.split())] = namespace[name]
    return mistakes
