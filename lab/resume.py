"""Resume a run: load what --resume needs, and report everything that is wrong with it."""

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import torch

from data.tokenizer import load_tokenizer
from lab.checkpoint import Corrupt, read_checkpoint
from lab.errors import UserError, require
from lab.flags import ContinueFlags, script_of, spelled, was_given
from lab.records import REMEDY, check_entries, read_config, read_metrics

# Flags that do not change the results
MAY_CHANGE = ("resume", "overwrite", "out", "device", "threads", "accumulate", "timeout", "compile")
CHECKPOINT = ("model", "optimizer", "step", "rng", "cuda_rng", "seconds", "more")


def can_resume(folder):
    """Return whether a run folder holds a checkpoint to resume from."""
    return any((Path(folder) / name).exists() for name in ("checkpoint.pt", "previous.pt"))


def script_of_run(config):
    """Return the script of a run, as `flags.script_of` does; "" if config.json names none."""
    script = config.get("script", "")
    return script if re.fullmatch(r"train_\w+\.py|-m beyond\.train_\w+", script) else ""


def resume_command(script, folder, launcher=("python",)):
    """Return the command that resumes the run in a folder."""
    return shlex.join([*launcher, *script.split(), "--resume", "--out", str(folder)])


def started_with(flags_class, folder):
    """Return {name: value} of the flags that a run was started with, {} without a checkpoint.

    Raises UserError for a run of another script, and for values that its flags cannot have.
    """
    if not can_resume(folder):
        return {}
    path, config = Path(folder) / "config.json", read_config(folder)
    script, saved = script_of_run(config), config["flags"]
    same = script in ("", script_of(flags_class))
    remedy = f"resume it with: {resume_command(script, folder)}"
    require((same, f"--resume: {folder} is a run of {script}; {remedy}"))
    kept = {
        field.name: field
        for field in dataclasses.fields(flags_class)
        if field.name in saved and field.name != "overwrite"
    }
    check_entries(path, saved, {name: field.type for name, field in kept.items()})
    choices = {name: field.metadata.get("choices") for name, field in kept.items()}
    wrong = [spelled(n, saved[n]) for n in kept if choices[n] and saved[n] not in choices[n]]
    require((not wrong, f"{path}: {', '.join(wrong)}: no such choice; {REMEDY}"))
    return {name: saved[name] for name in kept}


def check_resume(folder, flags):
    """Raise UserError unless the folder has a checkpoint of a run with the same flags."""
    remedy = "leave --resume out to start it"
    remedy += "" if flags.out else "; name the run with --out RUN"
    require((can_resume(folder), f"--resume: {folder} holds no checkpoint.pt; {remedy}"))
    changed = changed_flags(folder, flags)
    remedy = "leave these out" if flags.out else f"use the same, or --resume --out {folder} alone"
    remedy += ", or use another --out"
    if isinstance(flags, ContinueFlags):
        remedy += f"; to start from its weights: --init-from {folder}, without --resume"
    problem = f"--resume: {folder} was started with {'; '.join(changed)}"
    require((not changed, f"{problem}; {remedy}"))


def changed_flags(folder, flags):
    """Return in words the flags, or the script, that a run was started with and that now differ."""
    config = read_config(folder)
    first_script, script = script_of_run(config), script_of(flags)
    if first_script not in ("", script):
        return [f"{first_script}, not {script}"]
    # A flag that is newer than the run had its default
    defaults = {field.name: field.default for field in dataclasses.fields(flags)}
    now, then = vars(flags), defaults | config["flags"]
    return [
        f"{spelled(name)} {str(then[name])[:40] or 'empty'}, not {str(now[name]) or 'empty'}"
        for name in sorted(now, key=lambda name: (not was_given(flags, name), name))  # typed first
        if name not in (*MAY_CHANGE, "given") and now[name] != then[name]
    ]


def check_tokenizer(folder, tokenizer, data):
    """Raise UserError if the data now gives a vocabulary that differs from the run's."""
    path = folder / "tokenizer.json"
    if load_tokenizer(path).get_vocab() != tokenizer.get_vocab():
        raise UserError(
            f"--resume: --data {data} gives a different vocabulary from {path}: the data changed; "
            "restore the data, or start again with another --out"
        )


def check_encoder(folder, sha256, flags):
    """Raise UserError if the weights of --encoder changed after the run was started: a checkpoint
    on a frozen encoder holds only the head."""
    if read_config(folder).get("encoder_sha256", sha256) != sha256:
        problem = f"--resume: --encoder {flags.encoder} has changed since {folder} was started"
        raise UserError(f"{problem}; restore it, or start again with another --out")


# ------------------------------------------------------------------------------- the checkpoint


def newest_checkpoint(folder, best_from):
    """Return the name and content of a checkpoint, and whether checkpoint.pt is corrupt.

    If checkpoint.pt is corrupt or missing, print a note and use previous.pt. Raises UserError if
    both are corrupt, and DataError if best.pt is, which a run at step `best_from` or later needs.
    """
    damages = []
    for path in (folder / "checkpoint.pt", folder / "previous.pt"):
        if not path.exists():
            continue
        try:
            state = read_checkpoint(path, CHECKPOINT)
        except Corrupt as error:
            damages.append(error.problem)
            continue
        if isinstance(state["step"], int) and state["step"] >= best_from:
            read_checkpoint(folder / "best.pt")
        if path.name == "previous.pt":
            problem = damages[0] if damages else "checkpoint.pt is missing"
            print(f"note: {problem}; resuming from {path}", file=sys.stderr)
        return path.name, state, bool(damages)
    raise UserError(f"{'; '.join(damages)}; restore one of them or train the run again")


def check_counts(path, state, total, per_epoch):
    """Raise UserError unless a run of `total` steps can have saved these counts."""
    step, seconds, more = state["step"], state["seconds"], state["more"]
    valid = isinstance(seconds, list) and list(map(type, seconds)) == [float, float]
    valid &= type(step) is int and 0 <= step <= total and isinstance(more, dict)
    problem = f"{path}: step, seconds or counts are not as a run saves them"
    require((valid, f"{problem}; restore the file"))
    same = per_epoch in (1, more.get("per_epoch"))
    problem = f"{path}: was saved by an earlier version, or on other data"
    require((same, f"{problem}; train again with --overwrite"))


def restore_random(path, state, device):
    """Restore the random state of the CPU and of this process's GPU."""
    try:
        torch.set_rng_state(state["rng"])
        if device.type == "cuda" and len(state["cuda_rng"]):
            torch.cuda.set_rng_state(state["cuda_rng"], device)
    except (AttributeError, RuntimeError, TypeError):
        raise UserError(f"{path}: its random state is not valid; restore the file") from None


def read_log(folder, number, unit):
    """Return the lines of metrics.jsonl up to the checkpoint's step or epoch."""
    lines = [line for line in read_metrics(folder) if line["step"] <= number]
    problem = f"{folder / 'metrics.jsonl'}: lacks the evaluations up to {unit} {number}"
    require((lines or not number, f"{problem}; restore it, or train again with --overwrite"))
    return lines
