"""The ten exercises, in the order in which students do them, and their sheets (course/judge.py)."""

import inspect
from pathlib import Path

from course.exercises import attention, layers, positions, text
from course.observe import get_gradients, observe
from data.batching import generator
from lab.errors import require

STUBS = Path(__file__).parents[1] / "stubs"
# Of each exercise {function: (reference, cases, names of the outputs, known mistakes, watcher)}.
# Mistakes are a diagnosis, then a function that makes it, and so on. Without a watcher: "call".
EXERCISES = {
    "padding": text.PADDING,
    "attention": attention.ATTENTION,
    "heads": attention.HEADS,
    "sinusoids": positions.SINUSOIDS,
    "alibi": positions.ALIBI,
    "block": layers.BLOCK,
    "perplexity": text.PERPLEXITY,
    "masking": text.MASKING,
    "classifier": layers.CLASSIFIER,
    "clap": layers.CLAP,
}


def file_name(name):
    """Return the name of a student's file, such as "ex05_alibi.py"."""
    return f"ex{list(EXERCISES).index(name) + 1:02}_{name}.py"


def answers_in(folder):
    """Return a student's folder as a path. Raises UserError if it has no file of the course."""
    folder = Path(folder)
    begun = any((folder / file_name(name)).exists() for name in EXERCISES)
    require((not folder.is_file(), f"{folder}: is a file; give its folder, {folder.parent}"))
    require((begun, f"{folder}: has no exercises; python -m course.start {folder} writes them"))
    return folder


def chosen(wanted):
    """Return the exercises given by name or number, in order, or all. Raises UserError."""
    numbered = {str(number): name for number, name in enumerate(EXERCISES, start=1)}
    wanted, known = [word.strip() for word in wanted if word.strip()], ", ".join(EXERCISES)
    names = [numbered.get(word, word) for word in wanted]
    unknown = ", ".join(name for name in names if name not in EXERCISES)
    require((not unknown, f"{unknown}: no such exercise; there are 1 to {len(EXERCISES)}: {known}"))
    return [name for name in EXERCISES if name in names or not names]


def make_sheets(names, seed=0):
    """Return {file name: sheet} of some exercises."""
    return {file_name(name): make_sheet(name, seed) for name in names}


def make_sheet(name, seed=0):
    """Return the sheet of an exercise, with inputs drawn from a seed."""
    gen = generator("course", name, seed)
    return {task: fill(*parts, gen=gen) for task, parts in EXERCISES[name].items()}


def fill(reference, cases, outputs, mistakes, watcher="call", *, gen):
    task = {
        "arguments": list(inspect.signature(reference).parameters),
        "outputs": outputs,
        "watcher": watcher,
        "cases": list(cases(gen)),
    }
    # The first two cases of an exercise have no dropout, so their gradients can be compared.
    task["gradients"] = [get_gradients(reference, task, case) for case in task["cases"][:2]]
    task["right"] = [observe(reference, task, case) for case in task["cases"]]
    task["wrong"] = {
        diagnosis: [observe(function, task, case) for case in task["cases"]]
        for diagnosis, function in zip(mistakes[::2], mistakes[1::2])
    }
    return task
