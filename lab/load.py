"""Runs that are there already, opened: a model to look into or to continue from, and the numbers that its training left."""

import dataclasses
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch

import model as models
from data import files
from data.files import MEGABYTE, printable
from data.tokenizer import load_tokenizer
from lab import processes
from lab.checkpoint import check_weights, load_weights, read_checkpoint
from lab.errors import UserError, require
from lab.flags import ContinueFlags, ModelFlags, RunFlags, TokenizerFlags
from nets.classifier import Classifier
from nets.ensemble import Ensemble
from nets.thread_reader import ThreadReader

METRICS_LIMIT = 256 * MEGABYTE
LARGEST_THREAD = 100_000  # ancestors that a run can have been trained with


def can_resume(folder):
    """Whether a run folder holds a checkpoint to go on from."""
    return any((Path(folder) / name).exists() for name in ("checkpoint.pt", "previous.pt"))


@dataclass
class LoadedRun:
    folder: Path
    kind: str
    config: dict  # config.json
    model: torch.nn.Module
    tokenizer: tokenizers.Tokenizer
    unfinished: str = ""  # of a run that has not ended: which weights these are, "step 100"


def load_run(
    folder, kinds=("lm", "mlm", "classifier", "seq2seq", "thread"), device="cpu", flag_name=""
):
    """Open a finished or unfinished run: its model in evaluation mode with the best weights, and its tokenizer.

    UserError when the folder is no run, a run of another kind, or its parts do not fit together.
    """
    folder, where = Path(folder), f"{flag_name} {folder}".strip()
    if not folder.is_dir():
        raise UserError(f"{where}: no such run folder; train one first or check the path")
    if not (folder / "config.json").exists():
        raise UserError(
            f"{where}: no config.json, so this is no run folder; give a folder a train_*.py script wrote"
        )
    described = read_config(folder)
    kind = described.get("kind")
    if kind not in kinds:
        raise UserError(
            f"{where}: is a run of kind {str(kind)[:40]!r}, "
            f"but {' or '.join(repr(k) for k in kinds)} is needed here; "
            f"give a folder written by {' or '.join(f'train_{k}.py' for k in kinds)}"
        )
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    try:
        config = models.Config(**described["model"])
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{folder / 'config.json'}: does not describe a model ({error}); train the run again"
        ) from None
    if tokenizer.get_vocab_size() != config.vocab_size:
        raise UserError(
            f"{folder / 'tokenizer.json'}: has {tokenizer.get_vocab_size()} entries "
            f"but the checkpoint's model {config.vocab_size}; they are of different runs, restore the right one"
        )
    path = folder / "best.pt"
    if not path.exists():
        raise UserError(f"{where}: no best.pt yet; finish the run with --resume")
    checkpoint = read_checkpoint(path, device)
    weights = checkpoint["model"]

    members = described.get("members", 1)

    def build():
        if kind == "classifier":
            return Classifier(
                (models.Decoder if described.get("body") == "decoder" else models.Encoder)(config),
                **described["classifier"],
            )
        if kind == "thread":
            return models.LanguageModel(ThreadReader(config, **described["reader"]))
        body = {"lm": models.Decoder, "mlm": models.Encoder, "seq2seq": models.EncoderDecoder}[kind]
        return (
            Ensemble([models.LanguageModel(body(config)) for _ in range(members)])
            if members > 1
            else models.LanguageModel(body(config))
        )

    if kind == "thread":
        ancestors = described["reader"].get("n_ancestors")
        position = described["reader"].get("ancestor_positions")
        require(
            (
                type(ancestors) is int
                and 0 < ancestors <= LARGEST_THREAD
                and position in ThreadReader.POSITIONS,
                f"{folder / 'config.json'}: does not describe a thread reader; restore the file",
            )
        )

    # config.json may ask for anything: its model takes memory only when the weights prove to be such a model's.
    require(
        (
            0 < members * config.n_layer <= len(weights),
            f"{path}: holds {len(weights)} tensors, which cannot be the {config.n_layer} layers of config.json, "
            f"{members} times; restore the file",
        )
    )
    try:
        with torch.device("meta"):
            model = build()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder / 'config.json'}: does not describe a model ({str(error)[:200]}); "
            "train the run again"
        ) from None
    check_weights(model, weights, path)
    if kind == "classifier":
        n_class = len(described["classes"])
        require(
            (
                n_class == described["classifier"].get("n_class"),
                f"{folder / 'config.json'}: names {n_class} classes, but the classifier has another number; "
                "restore the file",
            )
        )
    model = build()
    load_weights(model, weights, path)
    unfinished = (
        ""
        if (folder / "result.json").exists()
        else f"{'epoch' if kind == 'classifier' else 'step'} {checkpoint.get('step', '?')}"
    )
    if unfinished and processes.first():
        print(
            printable(
                f"note: the run in {folder} has not ended; these are its weights as last evaluated, at {unfinished}"
            ),
            file=sys.stderr,
        )
    return LoadedRun(folder, kind, described, model.to(device).eval(), tokenizer, unfinished)


def by_position(loaded):
    """{label: runs}: runs that differ in their seed only come together under their position choice; where that does not
    tell them apart, each stands alone under its folder's name."""
    groups = {}
    for run in loaded:
        groups.setdefault(run.model.body.config.pos, []).append(run)

    def alike(group):
        return all(
            {**run.config["flags"], "seed": 0, "out": ""}
            == {**group[0].config["flags"], "seed": 0, "out": ""}
            for run in group
        )

    if all(
        alike(group) and len({run.config["flags"]["seed"] for run in group}) == len(group)
        for group in groups.values()
    ):
        return groups
    names = [run.folder.resolve().name for run in loaded]
    return {
        name if names.count(name) == 1 else str(run.folder): [run]
        for name, run in zip(names, loaded)
    }


class Described(dict):
    """What a file of a run says, by name. A name that it has not costs whoever asks for it one line: UserError."""

    def __init__(self, path, entries):
        super().__init__(entries)
        self.path = path

    def __missing__(self, name):
        raise UserError(f"{self.path}: holds no {name}; restore the file or train the run again")


def read_json(path):
    return Described(
        path,
        files.read_json(path, "give the folder of a run, restore the file or train the run again"),
    )


def check_entries(path, entries, kinds):
    """UserError unless those of the entries that `kinds`, {name: type}, names are of these types; a whole number is also
    a float."""
    wrong = [
        name
        for name, kind in kinds.items()
        if name in entries
        and type(entries[name]) is not kind
        and (type(entries[name]), kind) != (int, float)
    ]
    require(
        (
            not wrong,
            f"{path}: {', '.join(wrong)} of another type than the scripts write; "
            "restore the file or train the run again",
        )
    )


def read_config(folder):
    """config.json of a run, also its flags as a Described. UserError where an entry is of a type that no script writes."""
    path = Path(folder) / "config.json"
    described = read_json(path)
    check_entries(
        path,
        described,
        {
            "kind": str,
            "command": str,
            "flags": dict,
            "model": dict,
            "classifier": dict,
            "reader": dict,
            "classes": list,
            "languages": list,
            "members": int,
            **({"first_sentinel": int} if described.get("first_sentinel") is not None else {}),
        },
    )
    flags = described["flags"] = Described(path, described.get("flags", {}))
    shared = {
        field.name: field.type
        for some in (RunFlags, ModelFlags, TokenizerFlags, ContinueFlags)
        for field in dataclasses.fields(some)
    }
    check_entries(
        path,
        flags,
        shared
        | {"encoder": str, "init": str, "split": str, "mask_rate": float, "mean_span": float},
    )
    named = [*described.get("classes", ()), *described.get("languages", ()), *flags]
    plain = [value for value in flags.values() if not isinstance(value, (list, dict))]
    require(
        (
            all(isinstance(name, str) for name in named)
            and len(plain) == len(flags)
            and not any("\0" in value for value in plain if isinstance(value, str)),
            f"{path}: flags, classes or languages are not as the scripts write them; restore the file or train the run again",
        )
    )
    return described


def script_of(described):
    """The script that began a run, by what its config.json holds: "train_lm.py"; "" where that does not tell."""
    return next(
        (
            word
            for word in described.get("command", "").split()
            if re.fullmatch(r"train_\w+\.py", word)
        ),
        "",
    )


def resume_command(script, folder, launcher=("python",)):
    """What to type to go on with the run in a folder."""
    return shlex.join([*launcher, script, "--resume", "--out", str(folder)])


def started_with(flags_class, folder):
    """{name: value} of the flags that the run in a folder was started with, {} when it has no checkpoint to go on from.

    UserError for a run of another script, and for what is no value of such a flag.
    """
    if not can_resume(folder):
        return {}
    path, described, script = (
        Path(folder) / "config.json",
        read_config(folder),
        Path(sys.argv[0]).name,
    )
    begun, saved = script_of(described), described["flags"]
    require(
        (
            begun in ("", script),
            f"--resume: {folder} is a run of {begun}; to go on: {resume_command(begun, folder)}",
        )
    )
    known = {
        field.name: field
        for field in dataclasses.fields(flags_class)
        if field.name in saved and field.name not in ("out", "resume", "overwrite")
    }
    check_entries(path, saved, {name: field.type for name, field in known.items()})
    wrong = [
        name
        for name, field in known.items()
        if field.metadata["choices"] and saved[name] not in field.metadata["choices"]
    ]
    require(
        (
            not wrong,
            f"{path}: {', '.join(wrong)} of a value that there is not; restore the file or train the run again",
        )
    )
    return {name: saved[name] for name in known}


def read_result(folder):
    """result.json of a run. UserError where a measured number is none."""
    path = Path(folder) / "result.json"
    result = read_json(path)
    wrong = [
        name
        for name, value in result.items()
        if ("/" in name or name in ("seconds", "tokens_per_second", "vocab_size"))
        and not is_measured(name, value)
    ]
    require(
        (
            not wrong,
            f"{path}: {', '.join(wrong)} is no number that a run can measure; "
            "restore the file or train the run again",
        )
    )
    return result


def is_measured(name, value):
    """Whether a value is a number that a run can have written: perplexities are above zero."""
    return (
        type(value) in (int, float)
        and abs(value) <= 1e305
        and (value > 0 or not name.startswith("perplexity/"))
    )


def read_metrics(folder):
    """The lines of metrics.jsonl as dictionaries, [] when there is none; a last line that was cut off is left out.

    UserError for any other damage.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    raw = files.read_bytes(path, METRICS_LIMIT, "restore the file or train the run again")
    try:
        lines = [files.parse_json(line) for line in raw.decode("utf-8").split("\n")[:-1]]
        if not all(
            isinstance(line, dict)
            and type(line.get("step")) is int
            and all(is_measured(*entry) for entry in line.items())
            for line in lines
        ):
            raise ValueError("a line holds something else than a step and finite numbers")
    except ValueError as error:
        raise UserError(
            f"{path}: not readable ({error}); restore the file or train the run again"
        ) from None
    return [Described(path, line) for line in lines]
