"""The exercises. Each file holds the solutions; course.start writes it without them."""

import importlib
from pathlib import Path

# {"padding": the path of ex01_padding.py, ...}
EXERCISES = {path.stem[5:]: path for path in sorted(Path(__file__).parent.glob("ex*.py"))}


def solutions(name):
    """Return {function: solution} of an exercise."""
    module = importlib.import_module(f"course.exercises.{EXERCISES[name].stem}")
    functions = {}
    for attribute, value in vars(module).items():
        if getattr(value, "__module__", "") == module.__name__:  # not what the file imports
            functions[attribute] = value
    return functions
