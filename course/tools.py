"""Write the judge into a folder, with sheets instead of solutions, where it works alone."""

import shutil
from pathlib import Path

import torch

from course.exercises import make_sheets

HERE = Path(__file__).parent
JUDGE = ("__init__.py", "judge.py", "observe.py", "watch.py", "differences.py", "explain.py")


def write_tools(folder, names, seed, file):
    """Write folder/course/: the judge, a file of course/ that uses it, and {file: sheet}."""
    room = Path(folder) / "course"
    room.mkdir(parents=True)
    for name in (*JUDGE, file):
        shutil.copyfile(HERE / name, room / name)
    torch.save(make_sheets(names, seed), room / "sheets.pt")
