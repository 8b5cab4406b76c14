"""Grade a folder of submissions: a point per exercise, and a line for each function that fails.

    python -m course.grade submissions/ --exercises 2,5,7 --out grades.csv
    python -m course.grade submission/ --gradescope results.json    one, in Gradescope's autograder

Each file is judged as a copy, in a process of its own, which is no sandbox: see docs/course.md.
"""

import contextlib
import csv
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.judge import judge
from course.known import choose_exercises, file_of
from data.files import printable, write_json
from lab.flags import main, require


@dataclass
class Flags:
    submissions: Positional[Path]  # folder of submissions
    exercises: str = ""  # numbers or names, separated by commas; '': all
    out: str = ""  # table to write, a .csv
    gradescope: str = ""  # results.json to write, of one submission
    seconds: int = 20  # time for each function
    seed: int = 1  # of the inputs; course.check has 0


def grade(flags):
    names = choose_exercises(flags.exercises.split(","))
    root = flags.submissions
    require(root.is_dir(), f"{root}: no such folder; give the folder of submissions")
    require(flags.out or flags.gradescope, "nothing to write; give --out or --gradescope")
    folders = [root]
    if not flags.gradescope:
        folders = find_submissions(root)
    with open_table(flags.out, names) as write_row:
        for folder in folders:
            tests, total = grade_submission(folder, names, flags)
            scores = [test["score"] for test in tests]
            write_row([folder.name, *scores, total, feedback(tests)])
            print(f"{printable(folder.name):<30} {total:g} of {len(names)} points", flush=True)
    if flags.gradescope:
        write_json(Path(flags.gradescope).expanduser(), {"score": total, "tests": tests})


def find_submissions(root):
    """Return the folders of submissions. Raises UserError if there is none."""
    folders = []
    files = []
    for path in sorted(root.iterdir()):
        if path.name[0] in "._":
            continue
        if path.is_dir():
            folders.append(path)
        else:
            files.append(path.name)
    require(folders, f"{root}: has no submissions; give each a folder of its own in it")
    if files:
        print(printable(f"note: not graded, since not in a folder: {', '.join(files)}"))
    return folders


@contextlib.contextmanager
def open_table(path, names):
    """Give a function that writes a row at once, so that none is lost if a later one fails."""
    if not path:
        yield lambda row: None
        return
    with open(Path(path).expanduser(), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)

        def write_row(row):
            writer.writerow(row)
            file.flush()

        write_row(["submission", *names, "total", "feedback"])
        yield write_row


def grade_submission(folder, names, flags):
    """Return Gradescope's {name, score, max_score, output} of each exercise, and the points."""
    tests = [grade_exercise(folder, name, flags) for name in names]
    total = sum(test["score"] for test in tests)
    return tests, round(total, 3)  # three thirds are a point


def grade_exercise(folder, name, flags):
    """Judge a copy of a submitted file; return Gradescope's {name, score, max_score, output}."""
    result = {"name": name, "score": 0, "max_score": 1}
    try:
        verdicts = judge_copy(folder, name, flags)
    except Exception as error:  # whatever it is, it costs no other exercise its points
        result["output"] = printable(f"not graded: {type(error).__name__}: {error}", 500)
        print(printable(f"note: {folder.name}: {name} {result['output']}"), flush=True)
        return result
    if not verdicts:
        result["output"] = f"{file_of(name)} was not handed in"
        return result
    lines = []
    n_done = 0
    for function, verdict in verdicts.items():
        if verdict.status == "done":
            n_done += 1
            continue
        line = printable(verdict.message or f"{function}: not begun", 500)
        if line not in lines:
            lines.append(line)
    result["score"] = round(n_done / len(verdicts), 4)
    result["output"] = "\n".join(lines) or "done"
    return result


def judge_copy(folder, name, flags):
    """Return {function: Verdict} of a copy of a submitted file; None if there is no such file."""
    file = file_of(name)
    paths = [path for path in folder.rglob(file) if path.is_file()]
    if not paths:
        return None
    outermost = min(paths, key=lambda path: (len(path.parts), path))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        shutil.copyfile(outermost, Path(room, file))
        return judge({name: file}, flags.seed, flags.seconds, room)[name]


def feedback(tests):
    """Return a line for each exercise, or for each function that fails."""
    lines = []
    for test in tests:
        for line in test["output"].split("\n"):
            lines.append(f"{test['name']}: {line}")
    return "\n".join(lines)


if __name__ == "__main__":
    main(grade, Flags)
