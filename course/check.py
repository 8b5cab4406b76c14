"""Check the exercises in a folder, and name the mistakes.

python -m course.check answers/
python -m course.check answers/ alibi     # one exercise, with the first difference
python -m course.check answers/ --watch   # again whenever a file is saved
"""

import time
from dataclasses import dataclass

import torch

from course.exercises import EXERCISES, answers_in, file_name, make_sheet
from course.judge import judge
from lab.command import main
from lab.errors import UserError
from lab.flags import flag


@dataclass
class Flags:
    folder: str = flag(None, "folder with your answers, from course.start", positional=True)
    names: list[str] = flag(
        (), "exercises, by name or number (default: all)", positional=True, shown="all"
    )
    watch: bool = flag(False, "check again whenever a file is saved, until Ctrl-C")
    seconds: int = flag(20, "time for each function", at_least=1, at_most=3600)


def check(flags):
    torch.set_num_threads(1)  # for tiny tensors
    folder, names = answers_in(flags.folder), chosen(flags.names)
    sheets = {name: make_sheet(name) for name in names}
    report(folder, sheets, flags.seconds, details=len(flags.names))
    for _ in changes(folder) if flags.watch else ():
        print(f"\n{time.strftime('%H:%M:%S')}")
        report(folder, sheets, flags.seconds, details=1)


def chosen(wanted):
    """Return the names of the exercises that were asked for. Raises UserError."""
    numbered = {str(number): name for number, name in enumerate(EXERCISES, start=1)}
    for word in wanted:
        if numbered.get(word, word) not in EXERCISES:
            raise UserError(f"{word}: no such exercise; there are {', '.join(EXERCISES)}")
    return [numbered.get(word, word) for word in wanted] or list(EXERCISES)


def report(folder, sheets, seconds, details):
    """Print a line per exercise, the first difference of the first few that are wrong (`details`
    of them), and what is next."""
    verdicts = {}
    for name, sheet in sheets.items():
        verdict = verdicts[name] = judge(folder / file_name(name), sheet, seconds)
        said = " (what it printed is not shown)" if verdict.printed else ""
        number = list(EXERCISES).index(name) + 1
        print(f"{number:>3} {name:<11} {verdict.message or verdict.status}{said}", flush=True)
    left = [name for name, verdict in verdicts.items() if verdict.status != "done"]
    for name in left[:details]:
        if verdicts[name].detail:
            print(f"\n{verdicts[name].detail}")
    done = len(verdicts) - len(left)
    print(f"\n[{'#' * done}{'-' * len(left)}] {done} of {len(verdicts)} done")
    if left:
        more = f"; python -m course.check {folder} {left[0]} shows more"
        shown = details or not verdicts[left[0]].detail
        print(f"Next: {folder / file_name(left[0])}{'' if shown else more}")


def changes(folder, pause=0.5):
    """Yield whenever a Python file in the folder has changed."""

    def state():
        try:
            return {path: path.stat().st_mtime_ns for path in folder.glob("*.py")}
        except FileNotFoundError:  # an editor is just replacing a file
            return {}

    before = state()
    while True:
        time.sleep(pause)
        if (now := state()) != before:
            before = now
            yield


if __name__ == "__main__":
    main(check, Flags, __doc__)
