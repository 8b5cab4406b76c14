"""Check the exercises in a folder, and name the mistakes.

    python -m course.check answers/
    python -m course.check answers/ alibi     one exercise (or its number: 5), with the numbers
    python -m course.check answers/ --json    for other programs

The exit code is 1 unless all are done.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.exercises import EXERCISES, choose_exercises
from course.judge import judge
from lab.flags import main, require


@dataclass
class Flags:
    folder: Positional[Path]  # with your answers, from course.start
    names: Positional[tuple[str, ...]] = ()  # exercises by name or number; none: all here
    json: bool = False  # print the verdict on each function as JSON


def check(flags):
    paths = {}
    for name in choose_exercises(flags.names):
        path = flags.folder / EXERCISES[name].name
        if flags.names or path.exists():
            paths[name] = path
    require(paths, f"{flags.folder}: has no exercises; python -m course.start writes them")
    verdicts = judge(paths)
    unfinished = [name for name in paths if not is_done(verdicts[name])]
    if flags.json:
        print_json(paths, verdicts)
    else:
        for name in paths:
            print_exercise(name, verdicts[name], with_numbers=bool(flags.names))
        n_done = len(paths) - len(unfinished)
        print(f"\n[{'#' * n_done}{'-' * len(unfinished)}] {n_done} of {len(paths)} done")
        if unfinished:
            print(f"Next: {paths[unfinished[0]]}")
    if unfinished:
        raise SystemExit(1)


def is_done(verdicts):
    """Return whether all functions of an exercise are done."""
    return all(verdict.status == "done" for verdict in verdicts.values())


def number_of(name):
    return list(EXERCISES).index(name) + 1


def print_exercise(name, verdicts, with_numbers):
    """Print a line on an exercise, and below it an error's traceback or, if asked for, numbers."""
    label = f"{number_of(name):>3} {name:<11}"
    wrong = [verdict for verdict in verdicts.values() if verdict.message]
    missing = [f for f, verdict in verdicts.items() if verdict.status == "not begun"]
    if wrong:
        print(label, wrong[0].message)
        if wrong[0].detail and (with_numbers or wrong[0].status == "error"):
            print(f"\n{wrong[0].detail.rstrip()}\n")
    elif missing:
        print(label, f"{', '.join(missing)} not begun")
    else:
        print(label, "done")


def print_json(paths, verdicts):
    """Print the verdicts: for each exercise, whether it is done and what is said of a function."""
    exercises = []
    for name, path in paths.items():
        functions = {f: verdict._asdict() for f, verdict in verdicts[name].items()}
        exercises.append(
            {
                "number": number_of(name),
                "name": name,
                "file": str(path),
                "done": is_done(verdicts[name]),
                "functions": functions,
            }
        )
    print(json.dumps({"exercises": exercises}, indent=2))


if __name__ == "__main__":
    main(check, Flags)
