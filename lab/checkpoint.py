"""A checkpoint is a file: under its name only when it is whole and on disk,
and trusted only when all its checksums are right."""

import math
import os
import warnings
import zipfile

import torch

from data.files import DataError, check_file

CHECKSUM = "a checksum is wrong"


class Damaged(DataError):
    """Not every byte of a checkpoint is as it was written; `what` says so without a remedy."""

    def __init__(self, what):
        super().__init__(f"{what}; restore it or train the run again")
        self.what = what


def write_checkpoint(path, state, previous=None):
    """Write a dictionary of tensors and numbers as path, in one step: whenever the process dies, a whole file is there.

    The one that has the name so far is kept as `previous`, if that is given. OSError, with the path, when there is no room.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(
            error, RuntimeError
        ):  # torch only notices that bytes are missing; what happened to them is the context
            error = error.__context__ or error
        raise (
            OSError(error.errno, error.strerror, str(path)) if isinstance(error, OSError) else error
        ) from None
    if previous and path.exists():
        os.replace(path, previous)
    os.replace(partial, path)


def read_checkpoint(path, device, parts=("model",)):
    """A checkpoint's dictionary; nothing in it is executed. Damaged when the file cannot be read or a checksum is
    wrong, DataError when there is none or it lacks one of the parts."""
    try:
        check_archive(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location=device, weights_only=True)
    except (DataError, PermissionError):
        raise
    except (
        Exception
    ) as error:  # a file that is cut off or was made to deceive raises almost anything
        useful = (
            isinstance(error, RuntimeError) or str(error) == CHECKSUM
        )  # the others say nothing to a user
        raise Damaged(
            f"{path}: not a readable checkpoint"
            + f" ({' '.join(str(error).split())[:80]})" * useful
        ) from None
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        raise DataError(
            f"{path}: not the checkpoint it should be (it holds no {', '.join(missing)}); "
            "restore the file the run wrote"
        )
    return state


def check_archive(path):
    """Raises BadZipFile unless a file is a zip archive that is no larger unpacked, as torch.save writes it, since
    others could swell to any size, and has the right checksums, at which torch.load does not look."""
    check_file(path, math.inf, "train the run first")
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(
            entry.file_size for entry in entries
        ) > os.path.getsize(path):
            raise zipfile.BadZipFile("compressed, or with parts that overlap")
        # Of what is marked as a folder, torch.load takes whatever is in memory for the content
        if any(entry.external_attr for entry in entries):
            raise zipfile.BadZipFile("marked as no plain file")
        if archive.testzip():
            raise zipfile.BadZipFile(CHECKSUM)


def load_weights(model, weights, path):
    """Give a model its weights. DataError, and a model as it was, where `misfits` finds something."""
    check_weights(model, weights, path)
    model.load_state_dict(weights)


def load_optimizer(optimizer, state, path):
    """Give an optimizer its averages; its own rates and decays stay. DataError when they are not of its parameters."""
    own = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
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
        raise DataError(
            f"{path}: the optimizer's state does not fit the model; restore the file the run wrote"
        )
    for group, values in zip(optimizer.param_groups, own):
        group.update(values)


def check_weights(model, weights, path):
    """DataError unless the weights are a model's; it may be on the meta device, so that only what is there takes memory."""
    found = next(misfits(model.state_dict(), weights), "")
    if found:
        raise DataError(
            f"{path}: the weights do not fit config.json ({found}); restore the file the run wrote"
        )


def misfits(expected, weights):
    """In words, what is wrong with a dictionary of weights: names, kinds, shapes, types, numbers that are not finite."""
    if not isinstance(weights, dict):
        yield "they are no tensors with names"
        return
    yield from (f"{name} is missing" for name in expected if name not in weights)
    yield from (f"{str(name)[:80]} has no place" for name in weights if name not in expected)
    for name, tensor in weights.items():
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout != torch.strided
            or tensor.is_nested
            or tensor.is_meta
        ):
            yield f"{name} is no plain tensor"
        elif tensor.shape != expected[name].shape:
            yield f"{name} is {tuple(tensor.shape)} and should be {tuple(expected[name].shape)}"
        elif (
            tensor.dtype != expected[name].dtype or not tensor.is_contiguous()
        ):  # one number can be made to look like a matrix
            yield (
                f"{name} is of {tensor.dtype}{'' if tensor.is_contiguous() else ', not in one piece'}, "
                f"and should be of {expected[name].dtype}"
            )
        elif not tensor.isfinite().all():
            yield f"{name} holds numbers that are not finite"
