"""Check the exercises in a folder, and name the mistakes.

python -m course.check answers/
python -m course.check answers/ alibi     # one exercise (or its number: 5), with the numbers
"""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.cases import EXERCISES, chosen
from course.judge import judge
from lab.flags import main, require


@dataclass
class Flags:
    folder: Positional[Path]  # with your answers, from course.start
    names: Positional[tuple[str, ...]] = ()  # exercises by name or number; default: all here


def check(flags):
    paths = {name: flags.folder / EXERCISES[name].name for name in chosen(flags.names)}
    if not flags.names:
        paths = {name: path for name, path in paths.items() if path.exists()}
    require(paths, f"{flags.folder}: has no exercises; python -m course.start writes them")
    left = []
    for name, verdicts in judge(paths).items():
        missing = [f for f, verdict in verdicts.items() if verdict.status == "not begun"]
        wrong = next((verdict for verdict in verdicts.values() if verdict.message), None)
        said = wrong.message if wrong else f"{', '.join(missing)} not begun" if missing else "done"
        print(f"{int(paths[name].name[2:4]):>3} {name:<11} {said}")
        if wrong and wrong.detail and (flags.names or wrong.status == "error"):
            print(f"\n{wrong.detail.rstrip()}\n")
        left += [paths[name]] * (said != "done")
    done = len(paths) - len(left)
    print(f"\n[{'#' * done}{'-' * len(left)}] {done} of {len(paths)} done")
    if left:
        print(f"Next: {left[0]}")


if __name__ == "__main__":
    main(check, Flags)
