"""Write the exercises of the course into a folder, one small file each.

    python -m course.start answers/

Files that are there already are left as they are.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from course.exercises import EXERCISES, STUBS, file_name
from lab.command import main
from lab.errors import require
from lab.flags import flag


@dataclass
class Flags:
    folder: str = flag(None, "folder for your answers", positional=True)


def start(flags):
    folder, names = Path(flags.folder), [file_name(name) for name in EXERCISES]
    problem = f"{folder}: is a file; give a folder for your answers"
    require((folder.is_dir() or not folder.exists(), problem))
    missing = [name for name in names if not (folder / name).exists()]
    remedy = "delete or rename the file of an exercise to begin it again"
    require((missing, f"{folder}: all exercises are there, nothing was overwritten; {remedy}"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in missing:
        shutil.copyfile(STUBS / name, folder / name)
        print(f"  {folder / name}")
    if kept := len(names) - len(missing):
        print(f"  already there and unchanged: {kept}")
    print(f"Write the functions in these files, then: python -m course.check {flags.folder}")


if __name__ == "__main__":
    main(start, Flags, __doc__)
