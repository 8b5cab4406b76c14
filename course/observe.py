"""Call a function in all cases, and note what it returns. Used for answers, solutions and mistakes.

An answer is observed in a process without solutions, see course/worker.py.
"""

import contextlib
import sys
import traceback
import types
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only  # of lists and tuples of tensors

from course.differences import first_difference
from course.measures import Wrong

GIGABYTES = 4  # memory of an answer, where the system can limit it
KEEPS_STATE = (
    "gives another result after other calls. Does it keep something between calls: a global "
    "variable, or a cache without all arguments in its key?"
)


class Verdict(NamedTuple):
    status: str  # "done", "not begun", "mistake" (a known one), "difference" or "error"
    message: str = ""  # one line
    detail: str = ""  # the traceback, or the call and the numbers


class Observation(NamedTuple):
    """What a function returned."""

    results: dict  # {number of the case: {name: tensor}}, up to the first error
    gradients: list  # {argument: gradient}, of the first two cases
    failure: Verdict | None = None  # the first error


# ---------------------------------------------------------------------------- a file of answers


class Answer:
    """A student's file. Raises whatever the file raises."""

    def __init__(self, path):
        self.path = str(path)
        self.code = compile(Path(path).read_bytes(), self.path, "exec")
        self.module = self.load()

    def load(self):
        """Return the file as a new module, also if it has deleted itself."""
        module = types.ModuleType(self.path)
        module.__file__ = self.path
        # Dataclasses look their module up; under this name, no other file can import it
        sys.modules[self.path] = module
        exec(self.code, module.__dict__)
        return module


def open_answer(path):
    """Return an Answer and None, or None and the Verdict on a file that cannot be loaded."""
    try:
        return Answer(path), None
    except BaseException as error:  # also SystemExit
        return None, explain(error, path)


@contextlib.contextmanager
def settings_kept():
    """Restore the global settings of torch and Python, which an answer may change for others."""
    dtype = torch.get_default_dtype()
    n_thread = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    recursion_limit = sys.getrecursionlimit()
    try:
        # inference_mode(False) also allows gradients, and restores both
        with torch.inference_mode(False), torch.random.fork_rng([]), warnings.catch_warnings():
            yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(n_thread)
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)  # takes a second
        torch.autograd.set_detect_anomaly(False)
        sys.setrecursionlimit(recursion_limit)


def observe_answer(answer, name, check, cases, restart=lambda: None):
    """Return the Observation of a function of an Answer. restart() begins its time anew."""
    function = getattr(answer.module, name, None)
    if not callable(function):
        return Observation({}, [], Verdict("error", f"{answer.path} has no function {name}"))
    numbered = list(enumerate(cases))
    results, error = observe_cases(function, check, numbered)
    gradients = []
    if error is None:
        gradients, error = observe_gradients(function, check, cases)
    # A new copy of the function is called in the reverse order. If it gives another result, the
    # function keeps something between calls
    restart()
    try:
        copy = getattr(answer.load(), name)
    except BaseException:  # a file that can be loaded only once
        copy = function
    again, _ = observe_cases(copy, check, reversed(numbered))
    if differ(results, again, len(cases)):
        return Observation({}, [], Verdict("error", f"{name} {KEEPS_STATE}"))
    failure = None
    if error is not None:
        failure = explain(error, answer.path, name)
    return Observation(results, gradients, failure)


def differ(results, again, n_case):
    """Return whether a case has two results, or an error in one order and a result in the other."""
    failed = len(results)  # n_case if none has
    failed_again = n_case - 1 - len(again)  # -1 if none has
    if failed in again or failed_again in results:
        return True
    for number in results.keys() & again.keys():
        if first_difference(again[number], results[number]):
            return True
    return False


# ------------------------------------------------------------------------------------- functions


def observe_cases(function, check, numbered):
    """Return {number: what a function gives in this case} up to an error, and the error or None."""
    results = {}
    try:
        for number, case in numbered:
            results[number] = observe(function, check, case)
    except BaseException as error:  # also SystemExit
        return results, error
    return results, None


def observe_gradients(function, check, cases):
    """Return the gradients of the first two cases up to an error, and the error or None."""
    gradients = []
    try:
        for case in cases[:2]:
            gradients.append(differentiate(function, check, case))
    except BaseException as error:
        return gradients, error
    return gradients, None


def observe(function, check, case):
    """Return {name: tensor} of a case. Random numbers are the same each time."""

    def ask(*arguments, shapes=()):
        return call(function, check, arguments, shapes)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone, which is faster
        if check.measure is None:
            return ask(*case)
        return check.measure(ask, *case)


def call(function, check, arguments, shapes):
    """Return {name: tensor} of one call, or whatever it returns if the check names no outputs.
    Raises Wrong for what cannot be compared, other shapes than these, and a changed argument."""
    copies = tree_map_only(torch.Tensor, copy_tensor, arguments)
    results = function(*copies)
    if check.outputs:
        results = name_results(results, check.outputs.split())
    for name, argument, copy in zip(check.arguments.split(), arguments, copies):
        if not is_same(argument, copy):
            raise Wrong(f"changes its input {name} in place. Work on a copy: x.clone().")
    if not check.outputs:
        return results
    for (name, part), shape in zip(results.items(), shapes):
        if part.shape != shape:
            expected = tuple(shape)
            raise Wrong(f"returns {name} of shape {tuple(part.shape)}, expected {expected}")
    return results


def copy_tensor(tensor):
    """Return a copy with the same strides, which clone() does not keep."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor)


def is_same(argument, copy):
    """Return whether an argument, which may be a list of tensors, equals its copy."""
    before = tree_leaves(argument)
    after = tree_leaves(copy)
    if len(before) != len(after):
        return False
    for old, new in zip(before, after):
        if torch.is_tensor(old) and not torch.equal(old, new):
            return False
    return True


def name_results(result, names):
    """Return {name: tensor} of what a function returned. Raises Wrong."""
    if result is None:
        raise Wrong("returns None. Does it end with `return`?")
    type_name = type(result).__name__
    parts = result
    if len(names) == 1:
        if isinstance(result, (list, tuple, dict)):
            raise Wrong(f"returns a {type_name}, expected one torch.Tensor ({names[0]})")
        parts = [result]
    expected = f"expected {len(names)} ({', '.join(names)})"
    if not isinstance(parts, (list, tuple)):
        raise Wrong(f"returns one value of type {type_name}, {expected}")
    leaves = tree_leaves(parts)
    if len(leaves) == len(names):
        parts = leaves  # (output, (k, v)) is as good as (output, k, v)
    if len(parts) != len(names):
        raise Wrong(f"returns a {type_name} of {len(parts)} values, {expected}")
    results = {}
    for name, part in zip(names, parts):
        results[name] = as_tensor(name, part)
    return results


def as_tensor(name, part):
    """Return a part of a result as a dense tensor on the CPU. Raises Wrong."""
    if isinstance(part, (bool, int, float)):
        part = torch.tensor(part)
    if not torch.is_tensor(part):
        type_name = type(part).__name__
        raise Wrong(f"returns {name} as {type_name}, expected a torch.Tensor of real numbers")
    if part.is_complex():
        raise Wrong(f"returns {name} as {part.dtype}, expected a torch.Tensor of real numbers")
    return part.cpu().to_dense().as_subclass(torch.Tensor)


def differentiate(function, check, case):
    """Return {argument: gradient} of the sum of the first output in a case."""
    arguments = []
    inputs = {}  # those that can have a gradient
    for name, argument in zip(check.arguments.split(), case):
        if torch.is_tensor(argument) and argument.is_floating_point():
            inputs[name] = copy_tensor(argument).requires_grad_()
        arguments.append(inputs.get(name, argument))
    if not inputs:
        return {}
    output = observe(function, check, arguments)[check.outputs.split()[0]]
    if not output.requires_grad:
        return {name: torch.zeros_like(argument) for name, argument in inputs.items()}
    tensors = list(inputs.values())
    gradients = torch.autograd.grad(output.sum(), tensors, materialize_grads=True)
    return dict(zip(inputs, gradients))


# ---------------------------------------------------------------------------------------- errors


def explain(error, path, name=""):
    """Return the Verdict on an error, with the traceback in the student's file."""
    if isinstance(error, Wrong):
        return Verdict("error", f"{name} {error}")
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if frame.filename == str(path)]
    report.stack = traceback.StackSummary.from_list(frames)
    if name and frames and isinstance(error, NotImplementedError) and not str(error):
        if frames[-1].name == name:
            return Verdict("not begun")
        return Verdict("error", f"{name}: {frames[-1].name} is not begun")
    parts = []
    if name:
        parts.append(name)
    line = getattr(error, "lineno", None)  # of a SyntaxError
    if frames:
        line = frames[-1].lineno
    if line:
        parts.append(f"line {line}")
    parts.append(describe(error, report))
    return Verdict("error", ": ".join(parts), "".join(report.format(chain=False)))


def describe(error, report):
    """Return a line on an error, whose TracebackException is the report."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"needs more than {GIGABYTES} GB of memory"
    line = list(report.format_exception_only())[-1].strip()
    if "detach().numpy()" in line:  # torch's advice, which would cut the gradient
        return "numpy has no gradients, which must flow here. Compute with torch instead"
    if isinstance(error, RecursionError):
        return f"{line}. Does a function call itself without end?"
    return line
