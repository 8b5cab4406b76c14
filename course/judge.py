"""Judge a student's function: right, a known mistake, or the first number that differs."""

import traceback
from textwrap import shorten
from typing import NamedTuple

import torch

from course.exercises import read_mistakes

EXACT, RANDOM = 1e-4, 0.03  # tolerances; random is what a measure returns, "the share of ..."
HIDDEN = -1e4  # a score below this hides a key as -inf does


class Wrong(Exception):
    """A result that cannot be compared; the message continues after the function's name."""


class Verdict(NamedTuple):
    status: str  # "done", "not begun", "mistake" (a known one), "difference" or "error"
    message: str = ""  # one line
    detail: str = ""  # the traceback, or the call and the numbers


class Task:
    """A function to write: a solution, cases to call it with, and names of what it returns.

    cases: torch.Generator -> tuples of arguments; the first two are without dropout.
    measure: for results that are random, and arguments that are functions. (ask, *case) -> a dict
    of tensors that are fixed, for example of "the share of ..."; ask(*args, shapes=...) calls the
    function, checks the shapes of what it returns, and returns {name: tensor}.
    """

    def __init__(self, right, cases, *outputs, measure=lambda ask, *case: ask(*case)):
        self.right, self.make_cases, self.outputs, self.measure = right, cases, outputs, measure
        self.name = right.__name__
        self.arguments = right.__code__.co_varnames[: right.__code__.co_argcount]

    def prepare(self, seed):
        """Draw the cases, and call the solution and the known mistakes with them."""
        self.cases = list(self.make_cases(torch.Generator().manual_seed(seed)))
        self.expected, _ = self.observe_all(self.right)
        self.gradients = [self.differentiate(self.right, case) for case in self.cases[:2]]
        mistakes = read_mistakes(self.right).items()
        self.mistakes = {said: self.observe_all(function)[0] for said, function in mistakes}

    def observe_all(self, function):
        """Return what a function gives in the cases until it fails, and the error or None."""
        found = []
        try:
            for case in self.cases:
                found.append(self.observe(function, case))
        except BaseException as error:  # also SystemExit
            return found, error
        return found, None

    def observe(self, function, case):
        """Return {name: tensor} of a case. Random numbers are the same each time."""

        def ask(*args, shapes=()):
            given = copied(args)
            found = named(function(*given), self.outputs)
            for name, before, after in zip(self.arguments, args, given):
                if not equal(before, after):
                    raise Wrong(f"changes its input {name} in place. Work on a copy: x.clone().")
            for (name, part), shape in zip(found.items(), map(tuple, shapes)):
                if part.shape != shape:
                    raise Wrong(f"returns {name} of shape {tuple(part.shape)}, expected {shape}")
            return found

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.measure(ask, *case)

    def differentiate(self, function, case):
        """Return {argument: gradient} of the sum of the first output in a case."""
        leaves = [x.clone().requires_grad_() if kind(x) == "float" else x for x in case]
        inputs = {name: x for name, x in zip(self.arguments, leaves) if kind(x) == "float"}
        output = self.observe(function, leaves).get(self.outputs[0])
        if not inputs or not output.requires_grad:
            return {name: torch.zeros_like(x) for name, x in inputs.items()}
        grads = torch.autograd.grad(output.sum(), inputs.values(), materialize_grads=True)
        return dict(zip(inputs, grads))

    def judge(self, answers, path):
        """Return the Verdict on this function in the module of a student's file.

        If it fails, its outputs until then come first: a known mistake in them may explain why.
        """
        function = getattr(answers, self.name, None)
        if not callable(function):
            return Verdict("error", f"{path} has no function {self.name}")
        found, error = self.observe_all(function)
        if verdict := self.compare(found):
            return verdict
        try:
            if error:
                raise error
            for case, right in zip(self.cases, self.gradients):
                if difference := first_difference(self.differentiate(function, case), right):
                    said = f"the numbers are right, but the gradient of {difference[0]}. Is it cut"
                    said = f"{self.name}: {said} by .detach(), .data, .item() or no_grad?"
                    return Verdict("mistake", said, difference[1])
        except Wrong as wrong:
            return Verdict("error", f"{self.name} {wrong}")
        except BaseException as error:
            return explain(error, path, self.name)
        return Verdict("done")

    def compare(self, found):
        """Return the Verdict on what a function gave in the first cases, None if all is right.

        A known mistake must explain the first wrong case, and a second one with the same outputs.
        The one that explains most cases is named.
        """
        differences = [first_difference(*pair) for pair in zip(found, self.expected)]
        wrong = {i: difference for i, difference in enumerate(differences) if difference}
        if not wrong:
            return None
        first = min(wrong)
        alike = {i for i in wrong if self.expected[i].keys() == self.expected[first].keys()}
        explained = {}
        for said, cases in self.mistakes.items():
            same = {i for i, pair in enumerate(zip(found, cases)) if not first_difference(*pair)}
            if first in same and len(same & alike) >= min(2, len(alike)):
                explained[said] = len(same)
        sentence, numbers = wrong[first]
        best = max(explained, key=explained.get, default=None)
        status, said = ("mistake", best) if best else ("difference", sentence)
        shown = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in self.cases[first]]
        call = ", ".join(shorten(str(x), 80) for x in shown)
        detail = f"{self.name}({call})\n{sentence}\n{numbers}"
        return Verdict(status, f"{self.name}: {said}", detail)


def named(result, names):
    """Return {name: tensor} of what a function returned. Raises Wrong."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    if result is None:
        raise Wrong("returns None. Does it end with `return`?")
    if len(parts) != len(names) or (isinstance(result, list) and len(names) == 1):
        raise Wrong(f"returns {len(parts)} values, expected {len(names)} ({', '.join(names)})")
    parts = [torch.tensor(p) if isinstance(p, (bool, int, float)) else p for p in parts]
    for name, part in zip(names, parts):
        if kind(part) not in ("bool", "int", "float"):
            raise Wrong(f"returns {name} as {kind(part)}, expected a torch.Tensor of real numbers")
    return {name: part.cpu().to_dense() for name, part in zip(names, parts)}


def kind(value):
    """Return "bool", "int", "float" or "complex" for a tensor, else the name of its type."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__ + " of Python"
    if value.dtype == torch.bool:
        return "bool"
    return "float" if value.is_floating_point() else "complex" if value.is_complex() else "int"


def copied(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(copied, value))
    return value.clone() if isinstance(value, torch.Tensor) else value


def equal(before, after):
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(equal, before, after))
    return not isinstance(before, torch.Tensor) or torch.equal(before, after)


def first_difference(found, right):
    """Compare {name: tensor} with the right one. Return None, or a sentence and the numbers."""
    for name in sorted(right, key=lambda name: name != "weights"):  # a wrong output follows
        pair = mine, expected = found[name].detach(), right[name].detach()
        if mine.shape != expected.shape:
            return f"{name} has shape {tuple(mine.shape)}, expected {tuple(expected.shape)}", ""
        if kind(mine) != kind(expected):
            return f"{name} has dtype {mine.dtype}, expected {expected.dtype}", ""
        a, b = (t.double().masked_fill(t.double() <= HIDDEN, -torch.inf) for t in pair)
        tolerance = RANDOM if " " in name else EXACT
        close = torch.isclose(a, b, tolerance, tolerance, equal_nan=True)
        if not close.all():
            index = tuple((~close).nonzero()[0].tolist())
            values = [f"{t[index].item() + 0.0:.5g}" for t in pair]  # + 0.0: not -0
            said = f"{name}{list(index) or ''} is {values[0]}, expected {values[1]}"
            said += f" ({(~close).sum()} of {close.numel()} numbers differ)" if index else ""
            if mine[index].isnan():
                said += ". NaN comes from 0 / 0, 0 * inf or a softmax over nothing but -inf"
            return said, f"expected\n{expected[index[:-2]]}\nyours\n{mine[index[:-2]]}"
    return None


def explain(error, path, name=""):
    """Return the Verdict on an error, with the traceback in the student's file."""
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if frame.filename == str(path)]
    report.stack = traceback.StackSummary.from_list(frames)
    if isinstance(error, NotImplementedError) and frames and not str(error):
        if frames[-1].name == name:
            return Verdict("not begun")
        return Verdict("error", f"{name}: {frames[-1].name} is not begun")
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    said = [name, f"line {line}" if line else "", list(report.format_exception_only())[-1].strip()]
    return Verdict("error", ": ".join(filter(None, said)), "".join(report.format(chain=False)))
