"""Make, empty or check a run folder before training begins."""

import shutil
from pathlib import Path

from data import locks, name_of
from lab.errors import UserError, require
from lab.flags import spelled
from lab.records import read_record
from lab.resume import changed_flags, check_resume

# Written by other scripts; deleted with the run
ANALYSIS_FOLDERS = ("maps", "probe", "order", "emergence", "anchor", "averages")
ANALYSIS_FOLDERS += ("unknown", "ancestors", "roberta")
EARLY = ("config.json", "tokenizer.json", "metrics.jsonl", "best.pt")  # before a checkpoint


def name_folder(flags, kind, *more):
    """Return --out, or out/KIND-DATA-MORE with the split if it is not full."""
    split = getattr(flags, "split", "full").replace("/", "-of-")
    parts = [kind, name_of(flags.data), *more, *([split] if split != "full" else [])]
    return Path(flags.out or f"out/{'-'.join(map(str, parts))}")


def open_folder(folder, flags):
    """Make the folder of a run, empty it with --overwrite, or check it with --resume.

    Raises UserError if it holds something that would be lost or is the run to start from, if
    another process trains there, or if --resume finds no checkpoint or a run with other flags.
    """
    problem = "--resume and --overwrite: one continues the run, the other deletes it"
    require((not (flags.resume and flags.overwrite), f"{problem}; give one of them"))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: is a file; choose another folder")
    if flags.resume and not folder.exists():
        remedy = "check --out, or leave --resume out to start it"
        raise UserError(f"--resume: {folder}: no such run folder; {remedy}")
    for name in ("init_from", "encoder"):
        source = getattr(flags, name, "")
        deleted = source and not flags.resume and Path(source).resolve() == folder.resolve()
        problem = f"--out {folder}: is the run that {spelled(name)} reads"
        require((not deleted, f"{problem}; choose another folder"))
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    found = list(folder.iterdir())
    if flags.resume:
        check_resume(folder, flags)
        found = [path for path in found if path.suffix == ".partial"]
    elif found and not may_empty(folder, found, flags):
        raise UserError(f"--out {folder}: {what_it_holds(folder, flags)}")
    for path in sorted(found, key=lambda path: path.name == "config.json"):  # deleted last
        if path.is_file():
            path.unlink()
        elif path.name in ANALYSIS_FOLDERS:
            shutil.rmtree(path)


def lock(folder):
    """Keep other processes from training in the folder until this script ends."""
    try:
        locks.lock_folder(folder)
    except BlockingIOError:
        problem = f"--out {folder}: another process is training there"
        raise UserError(f"{problem}; wait for it, or choose another folder") from None


def is_run_folder(folder):
    """Return whether config.json is that of a run; other scripts write one too."""
    return (folder / "config.json").exists() and "kind" in read_record(folder / "config.json")


def what_it_holds(folder, flags):
    """Return in words what a folder holds that would be lost, and what to do instead."""
    if not is_run_folder(folder):
        return "is not empty and holds no run; choose another folder"
    changed, remedy = changed_flags(folder, flags), "choose another folder"
    if not changed and "resume" in vars(flags):  # baselines.py has no such flag
        remedy += ", continue it with --resume"
    run = f"a run with {'; '.join(changed[:3])}" if changed else "a run"
    return f"already holds {run}; {remedy} or replace it with --overwrite"


def may_empty(folder, found, flags):
    """Return whether to empty a run's folder: with --overwrite, or if it has no checkpoint yet."""
    if [path.name for path in found] == ["config.json.partial"]:
        return True
    log = folder / "metrics.jsonl"
    early = all(path.name in EARLY or path.suffix == ".partial" for path in found)
    barely_begun = early and (not log.exists() or log.read_bytes().count(b"\n") < 2)
    return is_run_folder(folder) and (flags.overwrite or barely_begun)


def check_folder_of(out):
    """Raise UserError unless the folder exists in which --out is a file to write."""
    folder = Path(out).parent
    require((folder.is_dir(), f"--out {out}: folder {folder} does not exist; create it first"))


def figures_folder(out):
    """Return --out of a script that draws, as a path. Raises UserError for a file, and for a run,
    whose files the figures would mix with."""
    out = Path(out)
    taken_by = "a file" if out.is_file() else "a run" if (out / "config.json").exists() else ""
    require((not taken_by, f"--out {out}: is {taken_by}; choose another folder"))
    return out
