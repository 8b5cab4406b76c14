"""Write the judge into a folder, with sheets instead of solutions, where it works alone."""

from pathlib import Path

import torch

from course.exercises import make_sheets
from data.tokenizer import MASK, SPECIAL

HERE = Path(__file__).parent
JUDGE = ("judge.py", "observe.py", "watch.py", "differences.py", "explain.py")
TOKENS = "from data.tokenizer import MASK, SPECIAL\n"  # all that the judge takes from outside


def write_tools(folder, names, seed, files):
    """Write folder/course/: the judge, more files of course/, and sheets.pt with {file: sheet}."""
    room = Path(folder) / "course"
    room.mkdir(parents=True)
    for file in ("__init__.py", *JUDGE, *files):
        text = (HERE / file).read_text(encoding="utf-8")
        alone = text.replace(TOKENS, f"MASK, SPECIAL = {MASK}, {SPECIAL}\n")
        (room / file).write_text(alone, encoding="utf-8")
    torch.save(make_sheets(names, seed), room / "sheets.pt")
