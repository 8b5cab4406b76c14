"""Write a folder to give to students: exercises and their checks, without solutions.

    python -m course.handout FOLDER --exercises 2,5,7

The folder needs only torch. The checks hold only tensors: inputs, right results, and the results of
the known mistakes.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from course.exercises import STUBS, chosen, file_name
from course.tools import HERE, write_tools
from lab.command import main
from lab.errors import UserError
from lab.flags import flag

README = """# Exercises

You need Python and PyTorch (`pip install torch`). Each file asks for one to three functions, in
words and as a formula:

{files}

Write them in place of `raise NotImplementedError`, and check them:

```
python {first:<23} # each file ends with an example to run
python check.py                # a line per exercise: done, not begun, or the mistake
python check.py {name:<14} # one exercise, with the first difference
```

Each file stands alone: it cannot import another one of this folder. Functions get tensors on the
CPU and return tensors. Loops, `einsum` and float64 are allowed. Inputs must not be changed in
place. Hand in the files above. The checker is `check.py` with the folder `course`.

An exercise is worth one point, shared equally among its functions. They are graded with other
inputs, except in 4 and 5, and each may take 20 seconds.
"""


@dataclass
class Flags:
    folder: str = flag(None, "folder to write", positional=True)
    exercises: str = flag("", "numbers or names, separated by commas", shown="all")


def handout(flags):
    folder = Path(flags.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists and is not an empty folder; give a new one")
    names = chosen(flags.exercises.split(","))
    write_tools(folder, names, seed=0, file="report.py")
    for name in names:
        shutil.copyfile(STUBS / file_name(name), folder / file_name(name))
    shutil.copyfile(HERE / "handout_check.py", folder / "check.py")
    files = "\n".join(f"- `{file_name(name)}`" for name in names)
    text = README.format(files=files, first=file_name(names[0]), name=names[0])
    (folder / "README.md").write_text(text, encoding="utf-8")
    print(f"{folder}: {len(names)} exercises, check.py, README.md; students need only torch")


if __name__ == "__main__":
    main(handout, Flags, __doc__)
