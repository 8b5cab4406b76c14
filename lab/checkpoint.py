"""Write checkpoint files, and check them before they are used."""

import math
import os
import warnings
import zipfile

import torch

from data.files import DataError, check_file, whole_file

CHECKSUM = "a checksum is wrong"


class Corrupt(DataError):
    """Some bytes of a checkpoint have changed since it was written; `problem` says where."""

    def __init__(self, problem):
        super().__init__(f"{problem}; restore it or train the run again")
        self.problem = problem


def write_checkpoint(path, state, previous=None):
    """Write a dictionary of tensors and numbers as a `whole_file`. Raises OSError with the path if
    the disk is full."""
    try:
        with whole_file(path, previous) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError):  # torch hides the cause: missing bytes, no space
            error = error.__context__ or error
        if isinstance(error, OSError):
            error = OSError(error.errno, error.strerror, str(path))
        raise error from None


def read_checkpoint(path, parts=("model",)):
    """Return the dictionary of a checkpoint on the CPU, without executing anything in it.

    Raises Corrupt if the file is not readable or a checksum is wrong, DataError if it is missing
    or lacks one of the parts.
    """
    try:
        check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (DataError, PermissionError):
        raise
    except Exception as error:  # a truncated or forged file raises almost anything
        useful = isinstance(error, RuntimeError) or str(error) == CHECKSUM
        why = f" ({' '.join(str(error).split())[:80]})" if useful else ""
        raise Corrupt(f"{path}: not a readable checkpoint{why}") from None
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        problem = f"not the checkpoint it should be (it holds no {', '.join(missing)})"
        raise DataError(f"{path}: {problem}; restore the file the run wrote")
    return state


def check_archive(path):
    """Raise BadZipFile unless the file is a zip archive as torch.save writes it.

    Compressed or overlapping parts could unpack to any size, and torch.load does not
    compare checksums.
    """
    check_file(path, math.inf, "train the run first")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if compressed or sum(entry.file_size for entry in entries) > os.path.getsize(path):
            raise zipfile.BadZipFile("compressed, or with parts that overlap")
        # For an entry marked as a folder, torch.load takes whatever is in memory as its content
        if any(entry.external_attr for entry in entries):
            raise zipfile.BadZipFile("marked as something other than a file")
        if archive.testzip():
            raise zipfile.BadZipFile(CHECKSUM)


def load_optimizer(optimizer, state, path):
    """Load the moment estimates of an optimizer; its rates and decays stay. Raises DataError if
    they do not belong to its parameters."""
    own = [dict(group) for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(state)
        fits = all(
            value.shape in ((), parameter.shape) and value.isfinite().all()
            for parameter, kept in optimizer.state.items()
            for value in kept.values()
        )
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        fits = False
    if not fits:
        problem = "the optimizer's state does not fit the model"
        raise DataError(f"{path}: {problem}; restore the file the run wrote")
    for group, values in zip(optimizer.param_groups, own):
        group.update(values)


def check_weights(model, weights, path):
    """Raise DataError unless the weights fit the model, which may be on the meta device."""
    problem = next(misfits(model.state_dict(), weights), "")
    if problem:
        problem = f"the weights do not fit config.json ({problem})"
        raise DataError(f"{path}: {problem}; restore the file the run wrote")


def misfits(expected, weights):
    """Yield in words what is wrong with a dictionary of weights."""
    if not isinstance(weights, dict):
        yield "they are not tensors with names"
        return
    yield from (f"{name} is missing" for name in expected if name not in weights)
    yield from (f"{str(name)[:80]} has no place" for name in weights if name not in expected)
    for name, tensor in weights.items():
        wanted = expected[name]
        plain = isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
        if not plain or tensor.is_nested or tensor.is_meta:
            yield f"{name} is not a plain tensor"
        elif tensor.shape != wanted.shape:
            yield f"{name} is {tuple(tensor.shape)} and should be {tuple(wanted.shape)}"
        elif tensor.dtype != wanted.dtype:
            yield f"{name} is of {tensor.dtype} and should be of {wanted.dtype}"
        elif not tensor.is_contiguous():  # a single number can be made to look like a matrix
            yield f"{name} is not in one piece"
        elif not tensor.isfinite().all():
            yield f"{name} holds numbers that are not finite"
