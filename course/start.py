"""Write exercises into a folder, for yourself or to hand out: a small file each, no solutions.

    python -m course.start answers/
    python -m course.start handout/ --exercises 2,5,7

Files that are there stay as they are.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.exercises import EXERCISES, choose_exercises
from lab.flags import main, require


@dataclass
class Flags:
    folder: Positional[Path]  # for the answers
    exercises: str = ""  # numbers or names, separated by commas; '': all


def start(flags):
    names = choose_exercises(flags.exercises.split(","))
    folder = flags.folder.expanduser()
    require(not folder.is_file(), f"{folder}: is a file; give a folder for the answers")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_new(folder / EXERCISES[name].name, stub(name))
    handout = Path(__file__).with_name("handout.md")
    write_new(folder / "README.md", handout.read_text(encoding="utf-8"))
    print(f"Write the functions in these files, then: python -m course.check {folder}")


def write_new(path, text):
    """Write a file unless there is one, and print its path."""
    if path.exists():
        print(f"  {path} is there and stays; to start over, rename it")
    else:
        print(f"  {path}")
        path.write_text(text, encoding="utf-8")


def stub(name):
    """Return the text of an exercise without its solutions."""
    text = EXERCISES[name].read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):  # the last first: line numbers above stay right
        if isinstance(node, ast.FunctionDef):
            first = node.body[1].lineno - 1  # body[0] is the docstring
            lines[first : node.end_lineno] = ["    raise NotImplementedError\n"]
    return "".join(lines)


if __name__ == "__main__":
    main(start, Flags)
