"""Print what the judge says of a folder of exercises."""

import torch

from course.judge import judge


def report(folder, sheets, details, command, again):
    """Print a line per exercise, the first difference of `details` wrong ones, and the next.

    sheets: {file name: sheet}. command checks the folder; `again` says how to get a missing file.
    """
    torch.set_num_threads(1)  # for tiny tensors
    verdicts = {}
    for file, sheet in sheets.items():
        # First the name, so that it can be seen which file crashes Python.
        print(f"{int(file[2:4]):>3} {title(file):<11} ", end="", flush=True)
        verdict = verdicts[file] = judge(folder / file, sheet)
        said = " (what it printed is not shown)" if verdict.printed else ""
        said += "" if (folder / file).exists() else f"; {again}"
        print(f"{verdict.message or verdict.status}{said}", flush=True)
    left = [file for file, verdict in verdicts.items() if verdict.status != "done"]
    for file in left[:details]:
        if verdicts[file].detail:
            print(f"\n{verdicts[file].detail}")
    done = len(verdicts) - len(left)
    print(f"\n[{'#' * done}{'-' * len(left)}] {done} of {len(verdicts)} done")
    if left:
        more = f"; {command} {title(left[0])} shows more"
        shown = details or not verdicts[left[0]].detail
        print(f"Next: {folder / left[0]}{'' if shown else more}")


def title(file):
    """Return "alibi" for "ex05_alibi.py"."""
    return file[5:].removesuffix(".py")
