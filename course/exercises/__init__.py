"""Ten exercises, a file each: what students get, with a solution, and below it how it is checked.

mistakes.md holds the known mistakes, as changes of these solutions.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path

from data.files import UserError

EXERCISES = {path.stem[5:]: path for path in sorted(Path(__file__).parent.glob("ex*.py"))}
MISTAKES = Path(__file__).parents[1] / "mistakes.md"


def chosen(wanted):
    """Return the exercises given by name or number, in order, or all. Raises UserError."""
    numbered = {str(number): name for number, name in enumerate(EXERCISES, start=1)}
    names = [numbered.get(word.strip(), word.strip()) for word in wanted if word.strip()]
    for name in names:
        if name not in EXERCISES:
            raise UserError(f"{name}: no such exercise; there are 1 to 10: {', '.join(EXERCISES)}")
    return [name for name in EXERCISES if name in names or not names]


def stub(name):
    """Return the text of an exercise without solutions, and without what only the check needs."""
    text = EXERCISES[name].read_text(encoding="utf-8").partition("\n# ---- only for")[0]
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1].lineno - 1  # body[0] is the docstring
            lines[first : node.end_lineno] = ["    raise NotImplementedError"]
    return re.sub(r"\nfrom course.*\n", "", "\n".join(lines)) + "\n"


def read_tasks(name):
    """Return the Tasks of an exercise (course/judge.py)."""
    return importlib.import_module(f"course.exercises.{EXERCISES[name].stem}").TASKS


def read_mistakes(right):
    """Return {diagnosis: function that makes the mistake} of a solution, from mistakes.md."""
    text = MISTAKES.read_text(encoding="utf-8")
    section = text.partition(f"\n## {right.__name__}\n")[2].partition("\n## ")[0]
    entries = re.findall(r"^- (.+\n(?:  [^`].*\n)*)((?:  `.*\n?)+)", section, re.MULTILINE)
    return {" ".join(said.split()): mutate(right, edits) for said, edits in entries}


def mutate(right, edits):
    """Return a solution with edits "`old` => `new`", or a function that returns "`expression`"."""
    source, name, found = inspect.getsource(right), right.__name__, {}
    for old, arrow, new in re.findall(r"^  `(.+?)`( =>)?(?: `(.+)`)?$", edits, re.MULTILINE):
        if arrow and old not in source:
            raise ValueError(f"mistakes.md, {name}: the solution has no {old}")
        arguments = ", ".join(inspect.signature(right).parameters)
        whole = f"def {name}({arguments}):\n    return {old}"
        source = source.replace(old, new) if arrow else whole
    exec(source, dict(right.__globals__), found)  # an expression may call the solution
    return found[name]
