"""Judge a student's file by a sheet. Nothing is printed here, and no solution is needed.

A sheet holds words and tensors only; `make_sheet` in course/exercises makes it:

    {function: {"arguments": names, "outputs": names, "watcher": one of course/watch.py,
                "cases": [[argument, ...], ...], "learns": which inputs get a gradient,
                "right": [{output: tensor} of each case],
                "wrong": {diagnosis: [{output: tensor} of each case]}}}
"""

import contextlib
import io
import signal
import threading
import traceback
import types
from dataclasses import dataclass, field

import torch

from course import watch
from course.differences import first_difference


@dataclass
class Verdict:
    """status: "done", "not begun", "begun" (a function is missing, the others are right), "mistake"
    (a known one), "difference" (an unknown one) or "error" (the code fails, or what it returns
    cannot be compared). message: one line. detail: several. printed: what the code printed.
    faults: of a file, a line for each function that is not done."""

    status: str
    message: str = ""
    detail: str = ""
    n_right: int = 0
    printed: str = ""
    faults: list = field(default_factory=list)


class TimeUp(BaseException):
    """The code takes too long. Not an Exception, which a student's code may catch."""


def judge(path, sheet, seconds=20):
    """Return the Verdict on the answers in a file. seconds: time limit of each function."""
    printed, warnings = io.StringIO(), io.StringIO()  # PyTorch's warnings are not shown
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(warnings):
        answers, trouble = load(path, seconds)
        verdicts = [
            trouble or judge_function(path, getattr(answers, name, None), name, task, seconds)
            for name, task in sheet.items()
        ]
    statuses = [verdict.status for verdict in verdicts]
    waiting = [name for name, status in zip(sheet, statuses) if status == "not begun"]
    faults = [verdict for verdict in verdicts if verdict.message]
    begun = Verdict("begun", f"right so far; {', '.join(waiting)} not begun")
    verdict = faults[0] if faults else verdicts[0] if len(set(statuses)) == 1 else begun
    verdict.n_right, verdict.printed = statuses.count("done"), printed.getvalue()
    left = {name: each for name, each in zip(sheet, verdicts) if each.status != "done"}
    tell_callers(left, answers)
    lines = [each.message or f"{name}: not begun" for name, each in left.items()]
    verdict.faults = list(dict.fromkeys(lines))  # one line of a file that does not load
    return verdict


def tell_callers(left, answers):
    """Add to the message of a function that is not done which other such function it calls."""
    for name, verdict in left.items():
        used = names_in(getattr(getattr(answers, name, None), "__code__", None)) - {name}
        wrong = [other for other in left if other in used]
        if verdict.message and wrong:
            said = verdict.message.rstrip(".")
            verdict.message = f"{said}. It calls {wrong[0]}: correct that first."


def names_in(code):
    """Return the set of names that a function's code, and what is nested in it, looks up."""
    if not isinstance(code, types.CodeType):
        return set()
    return set(code.co_names).union(*map(names_in, code.co_consts))


def load(path, seconds=20):
    """Run a student's file. Return its module and None, or None and a Verdict."""
    if not path.exists():
        return None, Verdict("error", f"{path.name} is missing")
    module = types.ModuleType(path.stem)
    try:
        with time_limit(seconds):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        return module, None
    except (Exception, SystemExit, TimeUp) as error:
        return None, Verdict("error", explain(error, path, seconds))


def judge_function(path, function, name, task, seconds=20):
    """Return the Verdict on one function. A known mistake may explain an error in a later case."""
    found, detail = [], ""
    if not callable(function):
        return Verdict("error", f"{path.name} has no function {name}")
    try:
        with time_limit(seconds):
            for args in task["cases"]:
                detail = called(name, task, args)
                found.append(observe(function, task, args))
            learns = get_gradients(function, task)
    except watch.Wrong as wrong:
        return compare(name, task, found) or Verdict("error", f"{name} {wrong}", detail)
    except (Exception, SystemExit, TimeUp) as error:
        message = f"{name}: {explain(error, path, seconds)}"
        if isinstance(error, NotImplementedError) and not str(error):  # torch's have a text
            raised_by = traceback.extract_tb(error.__traceback__)[-1].name
            if raised_by == name:
                return Verdict("not begun")
            message = f"{name}: {raised_by} is not begun"
        if "positional argument" in message and "line" not in message:
            message += f". It is called as {name}({', '.join(task['arguments'])})"
        return compare(name, task, found) or Verdict("error", message, detail)
    if verdict := compare(name, task, found):
        return verdict
    if cut := [argument for argument in task["learns"] if argument not in learns]:
        lost = f"no gradient reaches {', '.join(cut)} (detach, item?)"
        return Verdict("mistake", f"{name}: the numbers are right, but {lost}")
    return Verdict("done")


def compare(name, task, found):
    """Return the Verdict on what a function gave in the first cases, None if all is right."""
    differences = [first_difference(*pair) for pair in zip(found, task["right"])]
    if not any(differences):
        return None
    i = next(i for i, difference in enumerate(differences) if difference)
    (sentence, drawn), call = differences[i], called(name, task, task["cases"][i])
    if diagnosis := diagnose(found, task, i):
        detail = "\n".join(filter(None, [call, sentence, drawn]))
        return Verdict("mistake", f"{name}: {diagnosis}", detail)
    detail = "\n".join(filter(None, [call, drawn]))
    prefix = "" if sentence.startswith(name) else f"{name}: "  # loss returns the loss
    return Verdict("difference", prefix + sentence, detail)


def diagnose(found, task, i):
    """Return the diagnosis of the known mistake that explains the outputs, or None.

    It must explain case i, the first wrong one, and another wrong case of its kind if there is one.
    The others may have a mistake of their own, so the one that explains most cases is taken.
    """
    right, explained = task["right"], {}
    wrong = [
        first_difference(*pair) is not None and pair[1].keys() == right[i].keys()
        for pair in zip(found, right)
    ]
    for diagnosis, outputs in task["wrong"].items():
        same = [first_difference(*pair) is None for pair in zip(found, outputs)]
        if same[i] and sum(s and w for s, w in zip(same, wrong)) >= min(2, sum(wrong)):
            explained[diagnosis] = sum(same)
    return max(explained, key=explained.get, default=None)


def observe(function, task, args):
    """Return {output: tensor}: what a function gives in a case. Random numbers are the same in each
    call. Raises watch.Wrong for a result that is no tensor, and for inputs changed in place."""

    def ask(*args):
        given = copied(args)
        result = function(*given)
        for argument, before, after in zip(task["arguments"], args, given):
            if changed(before, after):
                copy = f"{argument}.clone()" if torch.is_tensor(before) else "a copy of it"
                raise watch.Wrong(
                    f"changes its input {argument} in place, and the caller still needs it. "
                    f"Work on {copy}, or write x = x + y instead of x += y."
                )
        return named(result, task["outputs"])

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(watch, task["watcher"])(ask, *args)


def get_gradients(function, task):
    """Return the names of the arguments that get a gradient from the first output in the first
    case; [] for a function that a watcher calls in another way."""
    given = dict(zip(task["arguments"], copied(task["cases"][0])))
    if task["watcher"] not in ("call", "dropout"):
        return []
    floats = {n: a for n, a in given.items() if torch.is_tensor(a) and a.is_floating_point()}
    with torch.enable_grad():
        result = function(*(a.requires_grad_() if n in floats else a for n, a in given.items()))
        result = result[0] if isinstance(result, (list, tuple)) else result
        if not (torch.is_tensor(result) and result.requires_grad):
            return []
        found = torch.autograd.grad(result.sum(), floats.values(), allow_unused=True)
    return [name for name, gradient in zip(floats, found) if gradient is not None]


def copied(value):
    if isinstance(value, (list, tuple)):
        return type(value)(copied(each) for each in value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def changed(before, after):
    if isinstance(before, (list, tuple)):
        return len(before) != len(after) or any(map(changed, before, after))
    return isinstance(before, torch.Tensor) and not torch.equal(before, after)


def named(result, names):
    """Return {output: tensor} of what a function returned. Raises watch.Wrong."""
    several = isinstance(result, (list, tuple))
    parts = result if several else [result]
    if isinstance(result, list) and len(names) == 1:
        raise watch.Wrong("returns a list, expected a torch.Tensor")
    if result is None:
        raise watch.Wrong("returns None. Does it end with `return`?")
    if len(parts) != len(names):
        given = "one value" if len(parts) == 1 else f"{len(parts)} values"
        raise watch.Wrong(f"returns {given}, expected {len(names)} ({', '.join(names)})")
    found = {}
    for name, part in zip(names, parts):
        part = torch.tensor(part) if isinstance(part, (bool, int, float)) else part
        if not isinstance(part, torch.Tensor) or part.is_complex():
            kind = f"{type(part).__module__}.{type(part).__name__}".removeprefix("builtins.")
            raise watch.Wrong(f"returns {name} as {kind}, expected a torch.Tensor of real numbers")
        found[name] = part.detach().cpu().to_dense().clone()
    return found


def called(name, task, args):
    """Return how a function was called in a case, as text; "" where a watcher makes the inputs."""
    if len(args) < len(task["arguments"]):
        return ""
    words = (f"{argument} {described(value)}" for argument, value in zip(task["arguments"], args))
    return f"{name} was called with {', '.join(words)}"


def described(value):
    """Return an argument in words: the shape of a tensor, and how many of its entries are -100."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    if not isinstance(value, torch.Tensor):
        return str(value)
    ignored = (value == -100).sum().item()
    return str(tuple(value.shape)) + f" with {ignored} of {value.numel()} -100" * (ignored > 0)


def explain(error, path, seconds=20):
    """Return a sentence on an error, with the line of the student's file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"line {error.lineno} is not valid Python: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"line {frames[-1].lineno} (`{frames[-1].line}`): " if frames else ""
    if isinstance(error, TimeUp):
        return f"{where}not finished after {seconds} seconds. Does a loop never end?"
    if isinstance(error, SystemExit):
        return f"{where}ends the program. A function should return a value instead."
    return f"{where}{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeUp in the block after this many seconds. Outside the main thread and on Windows
    there is no such timer, and no limit."""
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
