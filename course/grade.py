"""Grade a folder of submissions: a point per exercise, and a line for each function that fails.

    python -m course.grade submissions/ --exercises 2,5,7 --out grades.csv
    python -m course.grade submission/ --gradescope results.json    one, in Gradescope's autograder

Each file is judged as a copy, in a process of its own, which is no sandbox: see docs/course.md.
"""

import csv
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.cases import EXERCISES, chosen
from course.judge import judge
from data.files import printable, write_json
from lab.flags import main, require


@dataclass
class Flags:
    submissions: Positional[Path]  # folder of submissions
    exercises: str = ""  # numbers or names, separated by commas; default: all
    out: str = ""  # table to write, a .csv
    gradescope: str = ""  # results.json to write, of one submission
    seconds: int = 20  # time for each function
    seed: int = 1  # of the inputs; course.check has 0


def grade(flags):
    names, root = chosen(flags.exercises.split(",")), flags.submissions
    require(root.is_dir(), f"{root}: no such folder; give the folder of submissions")
    require(flags.out or flags.gradescope, "nothing to write; give --out or --gradescope")
    entries = sorted(path for path in root.iterdir() if path.name[0] not in "._")
    folders = [root] if flags.gradescope else [path for path in entries if path.is_dir()]
    require(folders, f"{root}: has no submissions; give each a folder of its own in it")
    if loose := [path.name for path in entries if not (flags.gradescope or path.is_dir())]:
        print(printable(f"note: not graded, since not in a folder: {', '.join(loose)}"))
    rows = []
    for folder in folders:
        tests = [test(folder, name, flags) for name in names]
        total = round(sum(test["score"] for test in tests), 3)  # three thirds are a point
        print(f"{printable(folder.name):<30} {total:g} of {len(names)} points", flush=True)
        said = "\n".join(f"{t['name']}: {line}" for t in tests for line in t["output"].split("\n"))
        rows.append([folder.name, *(test["score"] for test in tests), total, said])
    if flags.gradescope:
        write_json(Path(flags.gradescope).expanduser(), {"score": total, "tests": tests})
    if flags.out:
        with open(Path(flags.out).expanduser(), "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["submission", *names, "total", "feedback"], *rows])


def test(folder, name, flags):
    """Judge a copy of a submitted file; return Gradescope's {name, score, max_score, output}."""
    file = EXERCISES[name].name
    result = {"name": name, "score": 0, "max_score": 1, "output": f"{file} was not handed in"}
    paths = sorted(folder.rglob(file), key=lambda path: len(path.parts))  # the outermost first
    if paths:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
            shutil.copyfile(paths[0], Path(room, file))
            found = judge({name: file}, flags.seed, flags.seconds, room)[name]
        left = {f: said.message for f, said in found.items() if said.status != "done"}
        lines = [printable(said or f"{f}: not begun", 500) for f, said in left.items()]
        result["score"] = round(1 - len(left) / len(found), 4)
        result["output"] = "\n".join(dict.fromkeys(lines)) or "done"
    return result


if __name__ == "__main__":
    main(grade, Flags)
