"""Make the zip of a Gradescope autograder: its setup.sh and run_autograder, and this codebase.

python -m course.gradescope autograder.zip --exercises 2,5,7 --hidden 7
"""

import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from course.known import choose_exercises
from lab.flags import main
from lab.machine import ROOT

ROOMS = ("course", "data", "lab", "nets")

SETUP = """#!/usr/bin/env bash
# Gradescope runs this once, when the image is built
set -e
apt-get update
apt-get install -y python3 python3-venv
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
/autograder/venv/bin/pip install numpy tokenizers matplotlib scipy tyro tqdm filelock jinja2
"""

# Students' code runs as `nobody`, who may not read the solutions nor write results
RUN = """#!/usr/bin/env bash
# Gradescope runs this for each submission
folder="${{AUTOGRADER:-/autograder}}"
results="$folder/results/results.json"
echo '{{"score": 0, "output": "Grading did not end; tell your teacher.", "tests": []}}' > "$results"
cd "$folder/source/poslab"
chmod -R go-rwx course/exercises course/mistakes.md "$folder/submission"
"$folder/venv/bin/python" -m course.grade "$folder/submission" {flags} \\
  --user "${{STUDENT_USER-nobody}}" --gradescope "$results"
"""


@dataclass
class Flags:
    zip: Positional[Path]  # to write
    exercises: str = ""  # numbers or names, separated by commas; '': all
    hidden: str = ""  # exercises whose results are shown after the due date; 'all': each of them
    seed: int = 1  # of the inputs; keep it to yourself
    partial: float = 0.5  # share of a function's points if its mistake is known by name


def write_zip(flags):
    choose_exercises(flags.exercises.split(","))  # raises an error for other words
    words = ["--seed", str(flags.seed), "--partial", str(flags.partial)]
    for name in ("exercises", "hidden"):
        if getattr(flags, name):
            words += [f"--{name}", getattr(flags, name)]
    path = flags.zip.expanduser()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        add_program(file, "setup.sh", SETUP)
        add_program(file, "run_autograder", RUN.format(flags=shlex.join(words)))
        sources = [ROOT / "model.py"]
        for room in ROOMS:
            files = sorted(Path(ROOT, room).rglob("*"))
            sources += [path for path in files if path.suffix in (".py", ".md")]
        for source in sources:
            file.write(source, Path("poslab", source.relative_to(ROOT)))
    print(f"{path}: upload it to Gradescope, under Configure Autograder")


def add_program(file, name, text):
    """Add a program, which may be executed, to a zip."""
    info = zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))
    info.external_attr = 0o755 << 16
    file.writestr(info, text)


if __name__ == "__main__":
    main(write_zip, Flags)
