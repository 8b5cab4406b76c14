"""Write exercises into a folder, for yourself or to hand out: a small file each, no solutions.

    python -m course.start answers/ --no-check             for yourself: then course.check answers/
    python -m course.start handout/ --exercises 2,5,7      with a check that needs torch alone

Files that are there stay as they are, except those of the check in handout/course/.
"""

import ast
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from tyro.conf import Positional

from course.exercises import EXERCISES
from course.known import choose_exercises, expect, file_of, functions_of, number_of
from lab.flags import main, require

HERE = Path(__file__).parent
CHECK = "cases differences expectation judge language measures observe worker".split()

WORKFLOW = """name: exercises
on: push
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
"""


@dataclass
class Flags:
    folder: Positional[Path]  # for the answers
    exercises: str = ""  # numbers or names, separated by commas; '': all
    check: bool = True  # write one that needs no poslab: 1.5 minutes for 3 exercises, a few for 13


def start(flags):
    names = choose_exercises(flags.exercises.split(","))
    folder = flags.folder.expanduser()
    require(not folder.is_file(), f"{folder}: is a file; give a folder for the answers")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        write_new(folder / file_of(name), stub(name))
    for file in ("README.md", "AGENTS.md"):
        write_new(folder / file, (HERE / "handout" / file).read_text(encoding="utf-8"))
    command = f"python -m course.check {folder}"
    if flags.check:
        write_check(folder, names)
        write_workflow(folder, names)
        command = f"python {folder / 'check.py'}"
    print(f"Write the functions in these files, then: {command}")


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


# ------------------------------------------------------------------- a check without solutions


def write_check(folder, names):
    """Write check.py and what it reads: code, inputs, and what solutions and mistakes return."""
    torch.set_num_threads(1)  # for tiny tensors
    code = folder / "course"
    code.mkdir(exist_ok=True)
    (code / "__init__.py").write_text("")  # so that no installed poslab is imported instead
    for name in CHECK:
        shutil.copyfile(HERE / f"{name}.py", code / f"{name}.py")
    for table in HERE.glob("mistakes.*.md"):  # translations, without the edits of mistakes.md
        shutil.copyfile(table, code / table.name)
    shutil.copyfile(HERE / "handout" / "known.py", code / "known.py")
    shutil.copyfile(HERE / "handout" / "check.py", folder / "check.py")
    stored = {"exercises": {}, "expectations": {}}
    for name in names:
        functions = functions_of(name)
        stored["exercises"][name] = {
            "number": number_of(name),
            "file": file_of(name),
            "functions": functions,
        }
        for function in functions:
            print(f"  what mistakes of {function} return", flush=True)
            stored["expectations"][function] = pack(expect(function, seed=0))
    torch.save(stored, code / "expected.pt")


def write_workflow(folder, names):
    """Write a workflow for GitHub Classroom with a step for each exercise, which fails unless it is
    done. The other steps run all the same."""
    workflows = folder / ".github" / "workflows"
    workflows.mkdir(parents=True, exist_ok=True)
    text = WORKFLOW
    for name in names:
        text += f"      - name: {number_of(name)} {name}\n"
        text += f"        if: always()\n        run: python check.py {name}\n"
    write_new(workflows / "check.yml", text)


def pack(expectation):
    """Return what course/handout/known.py reads of an Expectation, without any function."""
    numbers = range(len(expectation.cases))
    mistakes = expectation.mistakes
    pairs = expectation.pairs
    rows = list(range(len(mistakes.messages)))
    rows_of_pairs = list(range(len(pairs.messages)))
    parts = []  # the rows of a pair's two mistakes
    for pair in pairs.mistakes:
        parts.append([mistakes.mistakes.index([mistake]) for mistake in pair])
    return {
        "cases": expectation.cases,
        "results": expectation.results,
        "gradients": expectation.gradients,
        "messages": mistakes.messages,
        "mistakes": [mistakes.sketches(number, rows) for number in numbers],
        "pairs": parts,
        "sketches_of_pairs": [pairs.sketches(number, rows_of_pairs) for number in numbers],
    }


if __name__ == "__main__":
    main(start, Flags)
