"""Grade a folder of submissions: a point per exercise, and a line for each function that fails.

    python -m course.grade submissions/ --exercises 2,5,7 --out grades.csv
    python -m course.grade submission/ --gradescope results.json    one, in Gradescope's autograder

Each file is judged as a copy, in a process of its own, which is no sandbox: see docs/course.md.
"""

import contextlib
import csv
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.judge import judge
from course.known import choose_exercises, file_of, functions_of, number_of
from course.worker import try_user
from data.files import UserError, printable, write_json
from lab.flags import main, require


@dataclass
class Flags:
    submissions: Positional[Path]  # folder of submissions
    exercises: str = ""  # numbers or names, separated by commas; '': all
    out: str = ""  # table to write, a .csv
    gradescope: str = ""  # results.json to write, of one submission
    hidden: str = ""  # exercises that Gradescope shows after the due date; 'all': each of them
    partial: float = 0.5  # share of a function's points if its mistake is known by name
    seconds: int = 60  # time for each function
    seed: int = 1  # of the inputs; course.check has 0
    user: str = ""  # the user that runs students' code, such as nobody (needs root)


def grade(flags):
    names = choose_exercises(flags.exercises.split(","))
    root = flags.submissions
    require(root.is_dir(), f"{root}: no such folder; give the folder of submissions")
    require(flags.out or flags.gradescope, "nothing to write; give --out or --gradescope")
    if flags.gradescope:
        grade_for_gradescope(root, names, flags)
        return
    folders = find_submissions(root)
    require_user(flags.user)
    with open_table(flags.out, names) as write_row:
        for folder in folders:
            grades = grade_submission(folder, names, flags)
            scores = [points(grades[name]) for name in names]
            total = round(sum(scores), 2)
            write_row([folder.name, *scores, total, feedback(grades)])
            print(f"{printable(folder.name):<30} {total:g} of {len(names)} points", flush=True)


def require_user(user):
    """Raise UserError if the user, unless it is ours (""), cannot run students' code: that must not
    cost points."""
    if not user:
        return
    try:
        try_user(user)
    except RuntimeError as error:
        raise UserError(
            f"--user {user}: cannot run students' code here, so nothing is graded. Give this user "
            f"access to {sys.executable}, torch and poslab, or leave --user out. {error}"
        ) from error


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
    with open(Path(path).expanduser(), "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)

        def write_row(row):
            writer.writerow(row)
            file.flush()

        write_row(["submission", *names, "total", "feedback"])
        yield write_row


# ----------------------------------------------------------------------------------- submissions


def grade_submission(folder, names, flags):
    """Return {exercise: [(function, score, max_score, line)]}. An exercise is worth a point."""
    return {name: grade_exercise(folder, name, flags) for name in names}


def grade_exercise(folder, name, flags):
    """Judge a copy of a submitted file. Return (function, score, max_score, line) of each of its
    functions."""
    functions = functions_of(name)
    share = 1 / len(functions)
    line = f"{file_of(name)} was not handed in"
    try:
        verdicts = judge_copy(folder, name, flags)
    except Exception as error:  # whatever it is, it costs no other exercise its points
        verdicts = None
        line = printable(f"not graded: {type(error).__name__}: {error}", 500)
        print(printable(f"note: {folder.name}: {name} {line}"), flush=True)
    if not verdicts:
        return [(function, 0, share, line) for function in functions]
    grades = []
    for function, verdict in verdicts.items():
        part = {"done": 1, "mistake": flags.partial}.get(verdict.status, 0)
        line = printable(verdict.message or f"{function}: {verdict.status}", 500)
        grades.append((function, part * share, share, line))
    return grades


def judge_copy(folder, name, flags):
    """Return {function: Verdict} of a copy of a submitted file; None if there is no such file."""
    file = file_of(name)
    paths = [path for path in folder.rglob(file) if path.is_file()]
    if not paths:
        return None
    outermost = min(paths, key=lambda path: (len(path.parts), path))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as room:
        shutil.copyfile(outermost, Path(room, file))
        return judge({name: file}, flags.seed, flags.seconds, room, flags.user)[name]


def points(functions):
    """Return the points of an exercise; three thirds are 1."""
    return round(sum(score for _, score, _, _ in functions), 3)


def feedback(grades):
    """Return a line for each exercise that is done, or for each function that is not."""
    lines = []
    for name, functions in grades.items():
        messages = [line for _, score, most, line in functions if score < most]
        for message in dict.fromkeys(messages or ["done"]):  # without repetitions
            lines.append(f"{name}: {message}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------ Gradescope


def grade_for_gradescope(folder, names, flags):
    """Write results.json, also if grading fails: then it says so, and the error is raised."""
    path = Path(flags.gradescope).expanduser()
    try:
        require_user(flags.user)
        write_json(path, gradescope_results(folder, names, flags))
    except BaseException as error:
        message = f"Grading failed; tell your teacher: {type(error).__name__}: {error}"
        write_json(path, {"score": 0, "output": printable(message, 500), "tests": []})
        raise


def gradescope_results(folder, names, flags):
    """Return the contents of results.json: a test for each function, in Gradescope's form."""
    hidden = []
    if flags.hidden:
        hidden = choose_exercises(flags.hidden.replace("all", "").split(","))
    tests = []
    n_done = 0
    for name, functions in grade_submission(folder, names, flags).items():
        visibility = "after_due_date" if name in hidden else "visible"
        for function, score, most, line in functions:
            if visibility == "visible":  # the leaderboard tells nothing of the others
                n_done += score == most
            tests.append(
                {
                    "number": str(number_of(name)),
                    "name": f"{name}: {function}",
                    "score": round(score, 4),
                    "max_score": round(most, 4),
                    "status": "passed" if score == most else "failed",
                    "output": line,
                    "visibility": visibility,
                }
            )
    total = round(sum(test["score"] for test in tests), 3)
    print(f"{total:g} of {len(names)} points")
    leaderboard = [{"name": "functions done", "value": n_done, "order": "desc"}]
    return {"score": total, "tests": tests, "leaderboard": leaderboard}


if __name__ == "__main__":
    main(grade, Flags)
