"""Grade a folder of submissions: a point per exercise, and a line for each function that fails.

    python -m course.grade submissions/ --exercises 2,5,7 --out grades.csv
    python -m course.grade submission/ --gradescope results.json    one, in Gradescope's autograder

Each folder in submissions/ is a submission. A copy of each file is judged in a process with limits
of time and memory, so code that loops, crashes or deletes its folder affects only its own result.
This is not a sandbox: hostile code can read your files and use the network. Grade strangers' code
in a container, see docs/course.md.
"""

import csv
import io
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from course.exercises import EXERCISES, STUBS, chosen, file_name
from course.isolated import judge_isolated
from course.tools import write_tools
from data.files import printable, write_json, write_text
from lab.command import main
from lab.errors import require
from lab.flags import flag


@dataclass
class Flags:
    submissions: str = flag(None, "folder of submissions", positional=True)
    exercises: str = flag("", "numbers or names, separated by commas", shown="all")
    out: str = flag("", "table to write, a .csv", shown="none")
    gradescope: str = flag("", "results.json of one submission, for Gradescope", shown="none")
    seconds: int = flag(20, "time for each function", at_least=1, at_most=3600)
    memory: float = flag(2.0, "memory of a submission in GB, on Linux", above=0)
    jobs: int = flag(1, "files to judge at a time", at_least=1, at_most=256)
    seed: int = flag(1, "seed of the inputs; handouts have seed 0")


def grade(flags):
    names = chosen(flags.exercises.split(","))
    submissions = find(Path(flags.submissions), one=flags.gradescope)
    require_new(flags)
    grades = {}
    with tempfile.TemporaryDirectory() as tools:
        write_tools(tools, names, flags.seed, file="isolated.py")
        try_out(names[0], tools, flags)
        pool = ThreadPoolExecutor(flags.jobs)
        try:
            tests = {
                folder: [pool.submit(grade_file, folder, name, tools, flags) for name in names]
                for folder in submissions
            }
            for folder, running in tests.items():
                grades[folder.name] = found = [test.result() for test in running]
                points = f"{total(found):g} of {len(names)} points"
                missing = sum(t["output"].startswith(absent(t["name"])) for t in found)
                points += f"; {missing} not handed in" if missing else ""
                print(f"{printable(folder.name):<30} {points}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    if flags.out:
        write_text(flags.out, table(grades, names))
    if flags.gradescope:
        write_json(flags.gradescope, {"score": total(found), "tests": found})


def absent(name):
    """Return the beginning of the feedback on an exercise whose file is missing."""
    return f"{file_name(name)} was not handed in"


def total(tests):
    return round(sum(test["score"] for test in tests), 4)  # without the noise of float thirds


def table(grades, names):
    """Return the text of a .csv with a row per submission."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["submission", *names, "total", "feedback"])
    for submission, tests in grades.items():
        lines = [f"{test['name']}: {line}" for test in tests for line in test["output"].split("\n")]
        scores = [round(test["score"], 4) for test in tests]
        writer.writerow([submission, *scores, total(tests), "\n".join(lines)])
    return text.getvalue()


def find(folder, one):
    """Return the folders of submissions, or the folder itself if it is `one`. Raises UserError."""
    require((folder.is_dir(), f"{folder}: no such folder; give the folder of submissions"))
    if one:
        return [folder.resolve()]
    found = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    problem = f"{folder}: has no submissions; give each a folder of its own in it"
    require((found, problem))
    stray = next(folder.glob("ex[0-9][0-9]_*.py"), None)
    require((not stray, f"{stray}: is beside folders with submissions; move it into one of them"))
    return found


def require_new(flags):
    """Raise UserError unless there is something to write, and a place for it."""
    require((flags.out or flags.gradescope, "nothing to write; give --out or --gradescope"))
    for path in map(Path, filter(None, (flags.out, flags.gradescope))):
        require(
            (not path.exists(), f"{path}: exists; delete it or choose another name"),
            (path.parent.is_dir(), f"{path.parent}: no such folder; make it or choose another one"),
        )


def try_out(name, tools, flags):
    """Judge a stub, so that a fault of this machine is not taken for one of the submissions."""
    said = grade_file(STUBS, name, tools, flags)["output"]
    remedy = "try a larger --memory, or python -m course.check on a submission"
    require((said == "not begun", f"the grader does not work here ({said}); {remedy}"))


def grade_file(folder, name, tools, flags):
    """Return Gradescope's test of one exercise: {name, score, max_score, output}."""
    file, n_right = file_name(name), 0
    found = [path for path in folder.rglob(file) if path.is_file() and not path.is_symlink()]
    path = min(found, key=lambda path: len(path.parts), default=None)
    if not os.access(path or folder, os.R_OK):
        lines = [f"{(path or folder).name} cannot be read: permission denied"]
    elif path is None:
        near = sorted(folder.rglob(f"{Path(file).stem}*")) or sorted(folder.rglob("*.zip"))
        lines = [absent(name)]
        if near:
            remedies = {".ipynb": "export", ".zip": "look into"}
            lines[0] += f"; {remedies.get(near[0].suffix, 'rename')} {near[0].name}"
    else:
        n_right, lines = judge_isolated(path, len(EXERCISES[name]), tools, flags)
    score = n_right / len(EXERCISES[name])
    output = "\n".join(printable(line, 500) for line in lines)
    return {"name": name, "score": score, "max_score": 1, "output": output}


if __name__ == "__main__":
    main(grade, Flags, __doc__)
