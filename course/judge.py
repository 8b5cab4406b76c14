"""Judge students' functions: right, a known mistake, or the first number that differs."""

import faulthandler
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import traceback
import types
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map_only  # of lists and tuples of tensors

from course.cases import CHECKS, Wrong, solutions

ROOT = Path(__file__).parents[1]
EXACT, RANDOM = 1e-4, 0.03  # tolerances; of what a measure returns, over 7 standard errors


class Verdict(NamedTuple):
    status: str  # "done", "not begun", "mistake" (a known one), "difference" or "error"
    message: str = ""  # one line
    detail: str = ""  # the traceback, or the call and the numbers


def judge(files, seed=0, seconds=20, folder=None):
    """Return {exercise: {function: Verdict}} of files {exercise: path}, judged in a new process."""
    tasks = [(name, function) for name in files for function in solutions(name)]
    files, verdicts = {name: str(path) for name, path in files.items()}, []
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    how = dict(cwd=folder, env=os.environ | {"PYTHONPATH": paths}, stdin=subprocess.DEVNULL)
    while left := tasks[len(verdicts) :]:
        job = [sys.executable, "-m", "course.judge", json.dumps([files, left, seed, seconds])]
        done = subprocess.run(job, capture_output=True, text=True, **how)
        if not done.stdout:
            raise RuntimeError(f"the check does not work here:\n{done.stderr}")
        verdicts += [Verdict(*json.loads(line)) for line in done.stdout.splitlines()[1:]]
        if len(verdicts) < len(tasks):  # the process ended during the next; another goes on
            path = re.escape(files[tasks[len(verdicts)][0]])
            place = re.search(rf'File "{path}", (line \d+ in \S+)', done.stderr)
            said = f"ends Python (exit code {done.returncode}) before its results can be compared"
            if "Timeout (" in done.stderr:
                said = f"not finished after {seconds} seconds. Does a loop never end?"
            verdicts.append(Verdict("error", f"{place[1]}: {said}" if place else said))
    judged = list(zip(tasks, verdicts))
    return {name: {f: verdict for (n, f), verdict in judged if n == name} for name in files}


def work(files, left, seed, seconds):
    """Print a line for each function that is left; what students' code prints is not shown."""
    torch.set_num_threads(1)  # for tiny tensors
    tasks = [Task(solutions(name)[function], seed) for name, function in left]
    if (ROOT / "pyproject.toml").exists():  # a checkout: its solutions cannot be imported
        own = {path.stem for path in ROOT.iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in own]:
            del sys.modules[name]
        sys.path = [folder for folder in sys.path if Path(folder).resolve() != ROOT]
        sys.meta_path = [f for f in sys.meta_path if "editable" not in str(f)]  # pip install -e
    results, trace = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    faulthandler.enable(trace)
    results.write("ready\n")
    load_once = functools.cache(load)
    for (name, _), task in zip(left, tasks):
        faulthandler.dump_traceback_later(seconds, exit=True, file=trace)
        answers, verdict = load_once(Path(files[name]))
        verdict = verdict or task.judge(answers, files[name])
        faulthandler.cancel_dump_traceback_later()
        results.write(json.dumps(verdict) + "\n")
    os._exit(0)  # threads and atexit handlers of students do not keep the process


def load(path):
    """Run a student's file. Return its module and None, or None and a Verdict."""
    # Dataclasses look their module up; under this name, no other file can import it
    module = sys.modules[str(path)] = types.ModuleType(str(path))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        return module, None
    except BaseException as error:
        return None, explain(error, path)


class Task:
    """A function to write: cases, and what the solution `right` and its known mistakes give."""

    def __init__(self, right, seed):
        self.name, self.arguments = right.__name__, list(inspect.signature(right).parameters)
        outputs, make_cases, *self.measure = CHECKS[self.name]
        self.outputs = outputs.split()
        self.cases = list(make_cases(torch.Generator().manual_seed(seed)))
        self.expected, _ = self.observe_all(right)
        self.gradients = [self.differentiate(right, case) for case in self.cases[:2]]
        self.mistakes = {said: self.observe_all(f)[0] for said, f in read_mistakes(right).items()}

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
            given = tree_map_only(torch.Tensor, torch.clone, args)
            found = named(function(*given), self.outputs)
            for name, *pair in zip(self.arguments, args, given):
                before, after = map(tree_leaves, pair)
                same = (not torch.is_tensor(a) or torch.equal(a, b) for a, b in zip(before, after))
                if len(before) != len(after) or not all(same):
                    raise Wrong(f"changes its input {name} in place. Work on a copy: x.clone().")
            for (name, part), shape in zip(found.items(), map(tuple, shapes)):
                if part.shape != shape:
                    raise Wrong(f"returns {name} of shape {tuple(part.shape)}, expected {shape}")
            return found

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.measure[0](ask, *case) if self.measure else ask(*case)

    def differentiate(self, function, case):
        """Return {argument: gradient} of the sum of the first output in a case."""
        tensors = [i for i, x in enumerate(case) if torch.is_tensor(x) and x.is_floating_point()]
        leaves = [x.clone().requires_grad_() if i in tensors else x for i, x in enumerate(case)]
        inputs = {self.arguments[i]: leaves[i] for i in tensors}
        output = self.observe(function, leaves).get(self.outputs[0])
        if not inputs or not output.requires_grad:
            return {name: torch.zeros_like(x) for name, x in inputs.items()}
        grads = torch.autograd.grad(output.sum(), inputs.values(), materialize_grads=True)
        return dict(zip(inputs, grads))

    def judge(self, answers, path):
        """Return the Verdict on this function in the module of a student's file."""
        function = getattr(answers, self.name, None)
        if not callable(function):
            return Verdict("error", f"{path} has no function {self.name}")
        found, error = self.observe_all(function)
        differences = [first_difference(*pair) for pair in zip(found, self.expected)]
        wrong = [i for i, difference in enumerate(differences) if difference]
        if wrong:  # before an error, which it may explain
            return self.name_mistake(found, wrong, *differences[wrong[0]])
        try:
            if error:
                raise error
            for case, right in zip(self.cases, self.gradients):
                if difference := first_difference(self.differentiate(function, case), right):
                    said = f"the numbers are right, but the gradient of {difference[0]}. Is it cut"
                    said = f"{self.name}: {said} by .detach(), .data, .item() or no_grad?"
                    return Verdict("mistake", said, difference[1])
        except BaseException as error:
            return explain(error, path, self.name)
        return Verdict("done")

    def name_mistake(self, found, wrong, sentence, numbers):
        """Return the Verdict on what a function gave, of which the cases `wrong` are not right."""
        first, explained = wrong[0], {}
        alike = {i for i in wrong if self.expected[i].keys() == self.expected[first].keys()}
        for said, cases in self.mistakes.items():  # that explain this case, and one more like it
            same = {i for i, pair in enumerate(zip(found, cases)) if not first_difference(*pair)}
            if first in same and len(same & alike) >= min(2, len(alike)):
                explained[said] = len(same)
        said = max(explained, key=explained.get, default=sentence)
        shown = [tuple(x.shape) if torch.is_tensor(x) else x for x in self.cases[first]]
        call = ", ".join(shorten(str(getattr(x, "__name__", x)), 80) for x in shown)
        status, detail = "mistake" if explained else "difference", f"{sentence}\n{numbers}"
        return Verdict(status, f"{self.name}: {said}", f"{self.name}({call})\n{detail}")


def read_mistakes(right):
    """Return {diagnosis: function that makes the mistake} of a solution, from mistakes.md."""
    name, mistakes, arguments = right.__name__, {}, ", ".join(inspect.signature(right).parameters)
    text = (ROOT / "course" / "mistakes.md").read_text(encoding="utf-8")
    entry = re.compile(r"^- (.+\n(?:  [^`].*\n)*)((?:  `.*\n?)+)", re.MULTILINE)
    for said, edits in entry.findall(text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]):
        source, found = inspect.getsource(right), {}
        for old, arrow, new in re.findall(r"^  `(.+?)`( =>)?(?: `(.+)`)?$", edits, re.MULTILINE):
            whole = f"def {name}({arguments}):\n    return {old}"
            source = source.replace(old, new) if arrow else whole
        exec(source, dict(right.__globals__), found)  # an expression may call the solution
        mistakes[" ".join(said.split())] = found[name]
    return mistakes


def named(result, names):
    """Return {name: tensor} of what a function returned. Raises Wrong."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    if result is None:
        raise Wrong("returns None. Does it end with `return`?")
    if len(parts) != len(names) or (isinstance(result, list) and len(names) == 1):
        raise Wrong(f"returns {len(parts)} values, expected {len(names)} ({', '.join(names)})")
    parts = [torch.tensor(p) if isinstance(p, (bool, int, float)) else p for p in parts]
    for name, part in zip(names, parts):
        if not isinstance(part, torch.Tensor) or part.is_complex():
            found = part.dtype if torch.is_tensor(part) else type(part).__name__
            raise Wrong(f"returns {name} as {found}, expected a torch.Tensor of real numbers")
    return {name: part.cpu().to_dense() for name, part in zip(names, parts)}


def first_difference(found, right):
    """Compare {name: tensor} with the right one. Return None, or a sentence and the numbers."""
    for name in sorted(right, key=lambda name: name != "weights"):  # a wrong output follows
        pair = mine, expected = found[name].detach(), right[name].detach()
        if mine.shape != expected.shape:
            return f"{name} has shape {tuple(mine.shape)}, expected {tuple(expected.shape)}", ""
        if len({(t.dtype == torch.bool, t.is_floating_point()) for t in pair}) > 1:
            return f"{name} has dtype {mine.dtype}, expected {expected.dtype}", ""
        a, b = (t.double().masked_fill(t <= -1e4, -torch.inf) for t in pair)  # both hide a key
        tolerance = RANDOM if " " in name else EXACT
        close = torch.isclose(a, b, tolerance, tolerance, equal_nan=True)
        if not close.all():
            index = tuple((~close).nonzero()[0].tolist())
            values = [f"{t[index].item() + 0.0:.5g}" for t in pair]  # + 0.0: not -0
            said = f"{name}{list(index) or ''} is {values[0]}, expected {values[1]}"
            said += f" ({(~close).sum()} of {close.numel()} numbers differ)" if index else ""
            return said, f"expected\n{expected[index[:-2]]}\nyours\n{mine[index[:-2]]}"
    return None


def explain(error, path, name=""):
    """Return the Verdict on an error, with the traceback in the student's file."""
    if isinstance(error, Wrong):
        return Verdict("error", f"{name} {error}")
    report = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in report.stack if frame.filename == str(path)]
    report.stack = traceback.StackSummary.from_list(frames)
    if isinstance(error, NotImplementedError) and frames and not str(error):
        verdict = Verdict("error", f"{name}: {frames[-1].name} is not begun")
        return Verdict("not begun") if frames[-1].name == name else verdict
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    said = [name, f"line {line}" if line else "", list(report.format_exception_only())[-1].strip()]
    return Verdict("error", ": ".join(filter(None, said)), "".join(report.format(chain=False)))


if __name__ == "__main__":
    work(*json.loads(sys.argv[1]))
