"""Judge a student's file by a sheet. Nothing is printed here, and no solution is needed.

A sheet holds words and tensors only; `make_sheet` in course/exercises makes it:

    {function: {"arguments": names, "outputs": names, "watcher": one of course/watch.py,
                "cases": [[argument, ...], ...],
                "gradients": [{argument: tensor} of the first cases],
                "right": [{output: tensor} of each case],
                "wrong": {diagnosis: [{output: tensor} of each case]}}}
"""

import contextlib
import io
import signal
import sys
import types
from dataclasses import dataclass, field

from course.differences import first_difference
from course.explain import TimeUp, called, explain, unwritten
from course.observe import get_gradients, observe
from course.watch import Wrong


@dataclass
class Verdict:
    """status: "done", "not begun", "begun" (a function is missing, the others are right), "mistake"
    (a known one), "difference" (an unknown one) or "error" (the code fails, or what it returns
    cannot be compared). message: one line. detail: several. The others are those of a file:
    printed: whether the code printed. faults: a line for each function that is not done."""

    status: str
    message: str = ""
    detail: str = ""
    n_right: int = 0
    printed: bool = False
    faults: list = field(default_factory=list)


def judge(path, sheet, seconds=20):
    """Return the Verdict on the answers in a file. seconds: time limit of each function."""
    printed, warnings = io.StringIO(), io.StringIO()  # PyTorch's warnings are not shown
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(warnings):
        answers, trouble = load(path, seconds)
        verdicts = {
            name: trouble or judge_function(path, getattr(answers, name, None), name, task, seconds)
            for name, task in sheet.items()
        }
    left = {name: each for name, each in verdicts.items() if each.status != "done"}
    n_right = len(verdicts) - len(left)
    tell_callers(left, answers)
    if faults := [each for each in left.values() if each.message]:
        verdict = faults[0]
    elif left and n_right:
        verdict = Verdict("begun", f"right so far; {', '.join(left)} not begun")
    else:
        verdict = Verdict("not begun" if left else "done")
    lines = [fault(name, each) for name, each in left.items()]
    verdict.faults = list(dict.fromkeys(lines))  # one line of a file that does not load
    verdict.n_right, verdict.printed = n_right, printed.tell() > 0
    return verdict


def fault(name, verdict):
    """Return a line for the grades, with the call unless it is a known mistake."""
    call = verdict.detail.partition("\n")[0]
    told = verdict.status != "mistake" and call.startswith(f"{name} was called")
    said = verdict.message or f"{name}: not begun"
    return f"{said.rstrip('.')}. {call}." if told else said


def tell_callers(left, answers):
    """Add to the message of a wrong result which unfinished function it calls."""
    for name, verdict in left.items():
        used = names_in(getattr(getattr(answers, name, None), "__code__", None)) - {name}
        wrong = [other for other in left if other in used]
        if verdict.status in ("mistake", "difference") and wrong:
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
    # Dataclasses look their module up; under this name, no other file can import it
    module = sys.modules[str(path)] = types.ModuleType(str(path))
    try:
        with time_limit(seconds):
            exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        return module, None
    except (Exception, SystemExit, TimeUp) as error:
        return None, Verdict("error", explain(error, path, seconds))


def judge_function(path, function, name, task, seconds=20):
    """Return the Verdict on one function.

    If it fails, its outputs until then come first: a known mistake in them may explain the error.
    """
    if not callable(function):
        return Verdict("error", f"{path.name} has no function {name}")
    found, trouble, call = [], None, ""
    try:
        with time_limit(seconds):
            for args in task["cases"]:
                call = called(name, task, args)
                found.append(observe(function, task, args))
            trouble = compare_gradients(function, name, task)
    except Wrong as wrong:
        trouble = Verdict("error", f"{name} {wrong}", call)
    except (Exception, SystemExit, TimeUp) as error:
        if unwritten(error) == name:
            return Verdict("not begun")
        said = explain(error, path, seconds)
        if "positional argument" in said and not said.startswith("line"):
            said += f". It is called as {name}({', '.join(task['arguments'])})"
        trouble = Verdict("error", f"{name}: {said}", call)
    return compare(name, task, found) or trouble or Verdict("done")


def compare(name, task, found):
    """Return the Verdict on what a function gave in the first cases, None if all is right."""
    differences = [first_difference(*pair) for pair in zip(found, task["right"])]
    wrong = [i for i, difference in enumerate(differences) if difference]
    if not wrong:
        return None
    sentence, drawn = differences[wrong[0]]
    call = called(name, task, task["cases"][wrong[0]])
    if diagnosis := diagnose(found, task, wrong):
        return Verdict("mistake", f"{name}: {diagnosis}", detail(call, sentence, drawn))
    prefix = "" if sentence.startswith(name) else f"{name}: "  # loss returns the loss
    return Verdict("difference", prefix + sentence, detail(call, drawn))


def detail(*parts):
    return "\n".join(filter(None, parts))


def compare_gradients(function, name, task):
    """Return the Verdict on the gradients of a function whose numbers are right, None if right."""
    for args, right in zip(task["cases"], task["gradients"]):
        if difference := first_difference(get_gradients(function, task, args), right):
            sentence, drawn = difference
            cut = "Is it cut by .detach(), .data, .item() or no_grad?"
            said = f"{name}: the numbers are right, but the gradient of {sentence}. {cut}"
            return Verdict("mistake", said, detail(called(name, task, args), drawn))
    return None


def diagnose(found, task, wrong):
    """Return the diagnosis of the known mistake that explains the wrong cases, or None.

    It must explain the first one, and another one with the same outputs if there is one. The others
    may have a mistake of their own, so the one that explains most cases is taken.
    """
    outputs = [case.keys() for case in task["right"]]
    alike = {i for i in wrong if outputs[i] == outputs[wrong[0]]}
    n_explained = {}
    for diagnosis, cases in task["wrong"].items():
        same = {i for i, pair in enumerate(zip(found, cases)) if first_difference(*pair) is None}
        if wrong[0] in same and len(same & alike) >= min(2, len(alike)):
            n_explained[diagnosis] = len(same)
    return max(n_explained, key=n_explained.get, default=None)


@contextlib.contextmanager
def time_limit(seconds):
    """Raise TimeUp in the block after this many seconds, except on Windows.

    In Python 3.10 no signal, nor Ctrl-C, ends a loop whose body is a `try` without a call.
    """
    if not hasattr(signal, "setitimer"):
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
