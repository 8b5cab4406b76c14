"""Write the exercises of the course into a folder, one small file each.

    python -m course.start answers/

Existing files are not changed.
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
    folder = Path(flags.folder)
    require((not folder.is_file(), f"{folder}: is a file; give a folder for your answers"))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in map(file_name, EXERCISES) if not (folder / name).exists()]
    for name in missing:
        shutil.copyfile(STUBS / name, folder / name)
        print(f"  {folder / name}")
    if len(missing) < len(EXERCISES):
        print("Files that were there are unchanged; delete or rename one to start it over.")
    print(f"Write the functions in these files, then: python -m course.check {folder}")


if __name__ == "__main__":
    main(start, Flags, __doc__)
