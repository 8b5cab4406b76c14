"""A checkpoint is a file: under its name only when it is whole and on disk, and trusted only after a look at all of it."""

import os
import pickle

import torch

from data.files import DataError


def write_checkpoint(path, state):
    """Write a dictionary of tensors and numbers as path, in one step: a file of that name is either the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_checkpoint(path, device, parts=("model",)):
    """A checkpoint's dictionary; nothing in it is executed. DataError when the file is damaged or lacks one of the parts."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; train the run first") from None
    except PermissionError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:  # a cut-off file raises any of them
        detail = f" ({' '.join(str(error).split())[:80]})" if isinstance(error, RuntimeError) else ""  # the others say nothing a user could use
        raise DataError(f"{path}: not a readable checkpoint{detail}; restore it or train the run again") from None
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        raise DataError(f"{path}: not the checkpoint it should be (it holds no {', '.join(missing)}); restore the file the run wrote")
    return state


def load_weights(model, weights, path):
    """load_state_dict with one line of complaint."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:160]
        raise DataError(f"{path}: the weights do not fit config.json ({detail}); restore the file the run wrote") from None
