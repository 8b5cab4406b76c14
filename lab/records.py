"""Read the JSON files of a run folder. Any of them may be missing, corrupt or forged."""

import dataclasses
from difflib import get_close_matches
from pathlib import Path

from data import files
from data.files import MEGABYTE
from lab.errors import UserError, require
from lab.flags import ContinueFlags, LoopFlags, MachineFlags, ModelFlags, RunFlags, TokenizerFlags
from lab.limits import has_type

METRICS_LIMIT = 256 * MEGABYTE
REMEDY = "restore the file or train the run again"

ENTRIES = {
    "kind": str,
    "script": str,
    "command": str,
    "flags": dict,
    "given": list,
    "model": dict,
    "classifier": dict,
    "reader": dict,
    "classes": list,
    "languages": list,
    "members": int,
    "first_sentinel": int,
}
GROUPS = (RunFlags, ModelFlags, LoopFlags, TokenizerFlags, ContinueFlags, MachineFlags)
FLAGS = {field.name: field.type for group in GROUPS for field in dataclasses.fields(group)}
FLAGS |= {"encoder": str, "init": str, "split": str, "valid": float}
FLAGS |= {"epochs": int, "mask_rate": float, "mean_span": float, "eval_stride": int}


class Record(dict):
    """The entries of a JSON file. A missing key raises UserError naming the file."""

    def __init__(self, path, entries):
        super().__init__(entries)
        self.path = path

    def __missing__(self, name):
        raise UserError(f"{self.path}: holds no {name}; {REMEDY}")


def read_record(path):
    """Read a JSON object as a Record. Raises DataError."""
    return Record(path, files.read_json(path, f"give the folder of a run, {REMEDY}"))


def check_entries(path, entries, types):
    """Raise UserError unless the entries named in `types`, {name: type}, have these types."""
    found = [name for name in types if name in entries]
    wrong = [name for name in found if not has_type(entries[name], types[name])]
    require((not wrong, f"{path}: {', '.join(wrong)} of a wrong type; {REMEDY}"))


def near_runs(folder):
    """Return at most one run of a similar name, in the same place or in out/."""
    files = [*Path("out").glob("*/config.json"), *folder.parent.glob("*/config.json")]
    runs = {file.parent.name: file.parent for file in files}
    return [runs[name] for name in get_close_matches(folder.name, runs, 1, cutoff=0.8)]


def read_config(folder, where=""):
    """Read config.json as a Record, its flags as another. Raises UserError and DataError.

    where: flag and folder as the user gave them, for messages; without it, the folder.
    """
    path, where = Path(folder) / "config.json", where or folder
    require((not path.parent.is_file(), f"{where}: is a file; give the folder of a run"))
    if not path.parent.is_dir():
        near = "".join(f"; did you mean {run}?" for run in near_runs(path.parent))
        raise UserError(f"{where}: no such run folder; train one first or check the path{near}")
    remedy = "give the folder of a run"
    require((path.exists(), f"{where}: no config.json, so this is not a run folder; {remedy}"))
    config = without_null(read_record(path))
    check_entries(path, config, ENTRIES)
    flags = config["flags"] = without_null(Record(path, config.get("flags", {})))
    check_entries(path, flags, FLAGS)
    names = [name for key in ("given", "classes", "languages") for name in config.get(key, ())]
    nested = any(isinstance(value, (list, dict)) for value in flags.values())
    nul = any("\0" in value for value in flags.values() if isinstance(value, str))
    plain = all(isinstance(name, str) for name in names) and not nested and not nul
    problem = "flags, given, classes or languages are not as a run writes them"
    require((plain, f"{path}: {problem}; {REMEDY}"))
    return config


def without_null(record):
    """Return a Record without the entries that are null."""
    return Record(record.path, {key: value for key, value in record.items() if value is not None})


def read_result(folder):
    """Read result.json as a Record. Raises UserError for a number that cannot be measured."""
    path = Path(folder) / "result.json"
    result = read_record(path)
    measured = ("seconds", "tokens_per_second", "vocab_size")
    wrong = [
        name
        for name, value in result.items()
        if ("/" in name or name in measured) and not is_measured(name, value)
    ]
    require((not wrong, f"{path}: {', '.join(wrong)} cannot have been measured; {REMEDY}"))
    return result


def is_measured(name, value):
    """Return whether a value is a number that a run can write; a perplexity is positive."""
    if type(value) not in (int, float) or abs(value) > 1e305:
        return False
    return value > 0 or not name.startswith("perplexity/")


def read_metrics(folder):
    """Return the lines of metrics.jsonl as Records, [] without a file, and without a truncated last
    line. Raises UserError if anything else is corrupt."""
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    raw = files.read_bytes(path, METRICS_LIMIT, REMEDY)
    try:
        lines = [files.parse_json(line) for line in raw.decode("utf-8").split("\n")[:-1]]
        for line in lines:
            plain = isinstance(line, dict) and type(line.get("step")) is int
            if not plain or not all(is_measured(*entry) for entry in line.items()):
                raise ValueError("a line holds something other than a step and finite numbers")
    except ValueError as error:
        raise UserError(f"{path}: not readable ({error}); {REMEDY}") from None
    return [Record(path, line) for line in lines]
