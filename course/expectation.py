"""What a function should return, what known mistakes return, and the verdict on an answer."""

from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch

from course.differences import find_same, first_difference, sketch
from course.observe import Verdict


@dataclass
class Expectation:
    """What the solution of a function returns in all cases, and its known mistakes.

    mistakes and pairs (of mistakes) have `messages`, a list, and `sketches(number, rows)`, which
    returns sketches (len(rows), K) of what those mistakes return in a case.
    """

    name: str
    cases: list  # the arguments of each call
    results: list  # {name: tensor} of each case
    gradients: list  # {argument: gradient} of the first two
    mistakes: Any
    pairs: Any

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
        mine = {number: sketch(results[number], self.results[number]) for number in results}
        for known in (self.mistakes, self.pairs):
            message = self.find_message(known, mine, wrong)
            if message:
                return Verdict("mistake", f"{self.name}: {message}", detail)
        return Verdict("difference", f"{self.name}: {sentence}", detail)

    def find_message(self, known, mine, wrong):
        """Return the message of the known mistake that explains most cases, or None.

        mine: {number: sketch} of an answer. A mistake must explain the first wrong case, and one
        more that is like it, if there is one: with the same outputs or sentences to compare.
        """
        first = min(wrong)
        every = list(range(len(known.messages)))
        if not every:
            return None
        same = find_same(known.sketches(first, every), mine[first])
        rows = same.nonzero().flatten().tolist()
        if not rows:
            return None
        outputs = self.results[first].keys()
        alike = [number for number in wrong if self.results[number].keys() == outputs]
        n_explained = torch.zeros(len(rows))
        n_alike = torch.zeros(len(rows))
        for number in mine:
            explained = find_same(known.sketches(number, rows), mine[number])
            n_explained += explained
            if number in alike:
                n_alike += explained
        n_explained[n_alike < min(2, len(alike))] = 0
        best = n_explained.argmax().item()
        if n_explained[best] == 0:
            return None
        return known.messages[rows[best]]

    def describe_call(self, number):
        """Return a case as a call, with shapes in place of tensors."""
        arguments = []
        for argument in self.cases[number]:
            words = str(argument)
            if torch.is_tensor(argument):
                words = str(tuple(argument.shape))
            arguments.append(shorten(words, 80))
        return f"{self.name}({', '.join(arguments)})"
