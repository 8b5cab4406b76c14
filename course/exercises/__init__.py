"""The ten exercises. Each file holds the solutions; course.start writes it without them."""

import importlib
from pathlib import Path

from data.files import UserError

# {"padding": the path of ex01_padding.py, ...}
EXERCISES = {path.stem[5:]: path for path in sorted(Path(__file__).parent.glob("ex*.py"))}


def choose_exercises(words):
    """Return the exercises given by name or number, in their order; without words, all of them.
    Raises UserError for a word that is neither."""
    numbered = {str(number): name for number, name in enumerate(EXERCISES, start=1)}
    names = set()
    for word in filter(None, map(str.strip, words)):
        name = numbered.get(word, word)
        if name not in EXERCISES:
            raise UserError(f"{name}: no such exercise; there are 1 to 10: {', '.join(EXERCISES)}")
        names.add(name)
    if not names:
        return list(EXERCISES)
    return [name for name in EXERCISES if name in names]


def solutions(name):
    """Return {function: solution} of an exercise."""
    module = importlib.import_module(f"course.exercises.{EXERCISES[name].stem}")
    functions = {}
    for attribute, value in vars(module).items():
        if getattr(value, "__module__", "") == module.__name__:  # not what the file imports
            functions[attribute] = value
    return functions
