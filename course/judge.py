"""Judge a student's file by a sheet. Nothing is printed here, and no solution is needed.

A sheet holds words and tensors only; `make_sheet` in course/exercises makes it:

    {function: {"arguments": names, "outputs": names, "watcher": one of course/watch.py,
                "cases": [[argument, ...], ...], "right": [{output: tensor} of each case],
                "wrong": {diagnosis: [{output: tensor} of each case]}}}
"""

import contextlib
import io
import signal
import threading
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

import torch

from course import watch

HIDDEN = -1e4  # a score below this hides a key as -inf does
EXACT, RANDOM = 1e-4, 0.03  # tolerance of outputs, and of what a watcher measured: "the share of x"
WINDOW = 6  # rows and columns of a picture


@dataclass
class Verdict:
    """status: "done", "not begun", "begun" (a function is missing, the others are right), "mistake"
    (a known one), "difference" (an unknown one) or "error". message: one line. detail: more lines,
    "" if there are none. printed: lines that the student's code printed."""

    status: str
    message: str = ""
    detail: str = ""
    function: str = ""
    n_right: int = 0
    n_functions: int = 0
    printed: int = 0


class TimeUp(BaseException):
    """The student's code takes too long. Not an Exception, which that code may catch."""


def judge(path, sheet, seconds=20):
    """Return the Verdict on the answers in a file. Each function may take so many seconds."""
    printed, verdicts, path = io.StringIO(), {}, Path(path)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        answers, trouble = load(path, seconds)
        for function, task in sheet.items():
            verdicts[function] = trouble or judge_function(path, answers, function, task, seconds)
    by_status = {verdict.status: verdict for verdict in reversed(verdicts.values())}
    waiting = [name for name, verdict in verdicts.items() if verdict.status == "not begun"]
    faults = [verdict for verdict in verdicts.values() if verdict.message]
    if faults:
        verdict = faults[0]
    elif len(by_status) == 1:
        verdict = Verdict(*by_status)
    else:
        verdict = Verdict("begun", f"right so far; next: {waiting[0]}", function=waiting[0])
    verdict.n_right = sum(verdict.status == "done" for verdict in verdicts.values())
    verdict.n_functions, verdict.printed = len(verdicts), printed.getvalue().count("\n")
    return verdict


def load(path, seconds=20):
    """Run a student's file. Return its module and None, or None and a Verdict."""
    module = types.ModuleType(path.stem)
    try:
        with time_limit(seconds):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        return module, None
    except FileNotFoundError:
        remedy = "python -m course.start FOLDER writes a missing file again"
        return None, Verdict("error", f"{path.name} is missing; {remedy}")
    except (Exception, SystemExit, TimeUp) as error:
        return None, Verdict("error", explain(error, path, seconds))


def judge_function(path, answers, name, task, seconds):
    """Return the Verdict on one function."""
    if not callable(function := getattr(answers, name, None)):
        return Verdict("error", f"{path.name} has no function {name}", function=name)
    found, args = [], []
    try:
        with time_limit(seconds):
            for args in task["cases"]:
                found.append(observe(function, task, args, name))
    except NotImplementedError as error:
        if not found and "NotImplementedError" in explain(error, path, seconds):
            return Verdict("not begun", function=name)
        return Verdict("error", f"{name}: {explain(error, path, seconds)}", function=name)
    except watch.Wrong as wrong:
        return Verdict("error", f"{name} {wrong}", called(name, task, args), name)
    except (Exception, SystemExit, TimeUp) as error:
        message = explain(error, path, seconds)
        if "positional argument" in message and "Line" not in message:
            message += f". It is called as {name}({', '.join(task['arguments'])})"
        return Verdict("error", f"{name}: {message}", called(name, task, args), name)
    for args, *pair in zip(task["cases"], found, task["right"]):
        if difference := first_difference(*pair):
            sentence, drawn = difference
            break
    else:
        return Verdict("done", function=name)
    detail = "\n".join(filter(None, [called(name, task, args), sentence, drawn]))
    for diagnosis, wrong in task["wrong"].items():
        if not any(first_difference(*pair) for pair in zip(found, wrong)):
            return Verdict("mistake", f"{name}: {diagnosis}", detail, name)
    return Verdict("difference", f"{name}: {sentence}", detail, name)


def observe(function, task, args, name="it"):
    """Return {name: tensor}: what a function gives for a case. Random numbers are the same in each
    call. Raises watch.Wrong for a result of a wrong type, and for inputs changed in place."""

    def ask(*args):
        given = copied(args)
        result = function(*given)
        for argument, before, after in zip(task["arguments"], args, given):
            if changed(before, after):
                raise watch.Wrong(
                    f"changes its input {argument} in place, and the caller still needs it. "
                    f"Work on a copy: {argument}.clone(), or x = x + y instead of x += y."
                )
        return named(result, task["outputs"])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(watch, task["watcher"])(ask, *args)


def copied(value):
    if isinstance(value, (list, tuple)):
        return type(value)(copied(each) for each in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def changed(before, after):
    if isinstance(before, (list, tuple)):
        return len(before) != len(after) or any(map(changed, before, after))
    return isinstance(before, torch.Tensor) and not (
        before.shape == after.shape and torch.equal(before.nan_to_num(), after.nan_to_num())
    )


def named(result, names):
    """Return {name: tensor} of a result. Raises watch.Wrong."""
    parts = result if isinstance(result, (list, tuple)) else [result]
    if result is None:
        raise watch.Wrong("returns None. Does it end with `return`?")
    if len(parts) != len(names):
        given = f"{len(parts)} values" if isinstance(result, (list, tuple)) else "one value"
        wanted = f"{len(names)}: {', '.join(names)}" if len(names) > 1 else f"one: {names[0]}"
        raise watch.Wrong(f"returns {given}, expected {wanted}")
    found = {}
    for name, part in zip(names, parts):
        if isinstance(part, (bool, int, float)):
            part = torch.tensor(part)
        if not isinstance(part, torch.Tensor):
            kind = f"{type(part).__module__}.{type(part).__name__}".removeprefix("builtins.")
            raise watch.Wrong(f"returns {name} as {kind}, expected a torch.Tensor")
        found[name] = part.detach().cpu().clone()
    return found


# ------------------------------------------------------------------------------------ in words


def first_difference(found, right):
    """Return None, or (a sentence, a picture) on the first place where two outputs differ."""
    for name, expected in right.items():
        mine, tolerance = found[name], RANDOM if " " in name else EXACT
        if mine.shape != expected.shape:
            shapes = f"shape {tuple(mine.shape)}, expected {tuple(expected.shape)}"
            return f"{name} has {shapes}", ""
        if kind(mine) != kind(expected):
            return f"{name} has dtype {mine.dtype}, expected {expected.dtype}", ""
        a, b = (
            t.double().masked_fill(t <= HIDDEN, -torch.inf) if kind(t) == "float" else t.double()
            for t in (mine, expected)
        )
        if not (close := torch.isclose(a, b, tolerance, tolerance)).all():
            index = tuple((~close).nonzero()[0].tolist())
            place = f"{name}{list(index)}" if index else name
            n = (~close).sum().item()
            many = f" ({n} of {close.numel()} numbers differ)" if index else ""
            values = f"{written(mine[index])}, expected {written(expected[index])}"
            return f"{place} is {values}{many}", picture(mine, expected, close, index)
    return None


def kind(tensor):
    return (
        "bool" if tensor.dtype == torch.bool else "float" if tensor.is_floating_point() else "int"
    )


def written(number):
    value = number.item()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def picture(mine, right, close, index):
    """Return the surroundings of a place in both tensors as text; * marks what differs."""
    if not index:
        return ""
    row, column = (0, *index)[-2:] if len(index) == 1 else index[-2:]
    top, left = max(0, row - WINDOW // 2), max(0, column - WINDOW // 2)
    both = []
    for tensor in (right, mine):
        part, same = (t.reshape(1, -1) if t.dim() == 1 else t[index[:-2]] for t in (tensor, close))
        part, same = (t[top : top + WINDOW, left : left + WINDOW] for t in (part, same))
        cells = [[written(n) + "* "[ok] for n, ok in zip(*pair)] for pair in zip(part, same)]
        width = max(len(cell) for row in cells for cell in row) + 1
        both.append(["".join(cell.rjust(width) for cell in row) for row in cells])
    space = max(len(both[0][0]), len("expected "))
    lines = [("expected ", "yours "), *zip(*both)]
    drawn = "\n".join(
        f"  {a.rjust(space)}  |{b.rjust(max(space, len(both[1][0])))}" for a, b in lines
    )
    at = f"of {list(index[:-2])} " if len(index) > 2 else ""
    return f"{drawn}\n  ({at}from row {top} and column {left} on; * differs)"


def called(name, task, args):
    """Return how a function was called in a case, as text."""
    if len(args) < len(task["arguments"]):
        return ""
    parts = []
    for argument, value in zip(task["arguments"], args):
        if isinstance(value, (list, tuple)):
            value = f"{len(value)} of them"
        parts.append(
            f"{argument} {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else f"{argument}={value}"
        )
    return f"{name} was called with {', '.join(parts)}"


def explain(error, path, seconds):
    """Return a sentence on an error, with the line of the student's file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"Line {error.lineno} is not valid Python: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"Line {frames[-1].lineno} (`{frames[-1].line}`): " if frames else ""
    if isinstance(error, TimeUp):
        return f"{where}not finished after {seconds} seconds. Does a loop never end?"
    if isinstance(error, SystemExit):
        return f"{where}ends the program. A function should return a value instead."
    text = " ".join(str(error).split())[:200]
    return f"{where}{type(error).__name__}" + (f": {text}" if text else "")


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeUp in the block after so many seconds. Without effect on Windows, which has no such
    timer, and outside of the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(number, frame):
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
