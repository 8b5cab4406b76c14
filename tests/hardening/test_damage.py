"""Corrupt checkpoints, a full disk, a read-only folder and NaN losses.

Each gives one line, and no good checkpoint is lost.
"""

import contextlib
import ctypes
import io
import math
import os
import random
import shutil
import sys
import zipfile

import pytest
import torch
from helpers import (
    SHORT,
    TRAINING,
    assert_complains,
    assert_same_run,
    call,
    contents,
    numbers,
    same,
    succeed,
    unchanged,
)
from pretend_gpu import PretendGPU

import train_lm
from data.files import DataError
from data.tokenizer import train_tokenizer
from lab import checkpoint
from lab.errors import UserError
from lab.run import LOOK_EVERY, Run
from model import Config

POINTS = int(os.environ.get("POSLAB_FUZZ", 0))  # damaged places of a file; 0: a few


@pytest.mark.parametrize("name", ["checkpoint.pt", "best.pt"])
def test_a_flipped_byte_is_noticed_or_changes_nothing(name, finished, tmp_path):
    content, path = (finished("train_lm") / name).read_bytes(), tmp_path / name
    whole = checkpoint.read_checkpoint(finished("train_lm") / name)
    # Every so many bytes of the file, and more of the table of contents at its end.
    places = {
        *range(0, len(content), max(1, len(content) // (POINTS or 150))),
        *range(len(content) - 1, max(0, len(content) - 4000), -max(1, 4000 // (POINTS or 80))),
    }
    harmless, dice = 0, random.Random(name)
    for place in places:
        other = bytes([content[place] ^ dice.randrange(1, 256)])
        path.write_bytes(content[:place] + other + content[place + 1 :])
        try:
            assert same(checkpoint.read_checkpoint(path), whole), place
            harmless += 1
        except DataError as error:
            assert str(path) in str(error) and "restore" in str(error) and "\n" not in str(error)
    assert harmless < len(places) / 2


def test_a_truncated_checkpoint_is_not_read(finished, tmp_path):
    content, path = (finished("train_lm") / "best.pt").read_bytes(), tmp_path / "best.pt"
    dice = random.Random(0)
    sizes = [dice.randrange(len(content)) for _ in range(POINTS or 40)]
    for size in (0, 1, len(content) - 1, *sizes):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match="not a readable checkpoint"):
            checkpoint.read_checkpoint(path)


def one_byte(content):
    """Flip a bit in the middle of the largest tensor: other places may be mere padding."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    start, end = largest.header_offset, largest.header_offset + 30
    name, extra = (int.from_bytes(content[start + i : start + i + 2], "little") for i in (26, 28))
    at = end + name + extra + largest.file_size // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("script", TRAINING)
@pytest.mark.parametrize(
    "how", [lambda content: content[:-100], one_byte, None], ids=["truncated", "a byte", "missing"]
)
def test_a_corrupt_checkpoint_falls_back_on_the_previous_one(script, how, inputs, finished, copied):
    whole, folder = finished(script), copied(script)
    if how:
        (folder / "checkpoint.pt").write_bytes(how((folder / "checkpoint.pt").read_bytes()))
    else:
        (folder / "checkpoint.pt").unlink()
    done = call(script, *SHORT[script], *inputs(script), out=folder, resume=True)
    step = torch.load(finished(script) / "previous.pt", weights_only=True)["step"]
    at = f"epoch {step // 12}" if script == "train_classifier" else f"step {step}"
    assert done.code == 0 and done.err.count("\n") == 1 and f"resuming from {at}\n" in done.out
    told = f"{folder / 'checkpoint.pt'}: not a readable checkpoint" if how else "pt is missing"
    assert told in done.err and f"resuming from {folder / 'previous.pt'}" in done.err
    assert_same_run(folder, whole, ("checkpoint.pt", "best.pt", "previous.pt"))


def test_two_corrupt_checkpoints_are_both_named(corpus, copied):
    folder = copied("train_lm")
    for name in ("checkpoint.pt", "previous.pt"):
        (folder / name).write_bytes(one_byte((folder / name).read_bytes()))
    with unchanged(folder):
        outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=folder, resume=True)
        assert_complains(outcome, folder / "checkpoint.pt", folder / "previous.pt", "restore")


def test_corrupt_best_weights_are_noticed_on_resume(corpus, copied):
    folder = copied("train_mlm")
    (folder / "previous.pt").replace(folder / "checkpoint.pt")  # before better weights replace them
    (folder / "best.pt").write_bytes(one_byte((folder / "best.pt").read_bytes()))
    with unchanged(folder):
        outcome = call("train_mlm", *SHORT["train_mlm"], data=corpus, out=folder, resume=True)
        assert_complains(outcome, folder / "best.pt", "not a readable", "(a checksum is wrong)")


# -------------------------------------------------------------------------------------- a full disk

linux = sys.platform.startswith("linux")
needs_linux = pytest.mark.skipif(not linux, reason="needs size limits and capabilities of Linux")


@contextlib.contextmanager
def largest_file(size):
    """Let this process write no file larger than this, as if the disk were full."""
    import resource  # not on Windows
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)


@needs_linux
def test_a_full_disk_while_a_checkpoint_is_written(corpus, finished, copied):
    folder = copied("train_lm")
    argv = (*SHORT["train_lm"], "--data", corpus, "--out", folder)
    shutil.copy(folder / "previous.pt", folder / "checkpoint.pt")  # as if the run had stopped there
    (folder / "previous.pt").unlink()
    size, before = (folder / "checkpoint.pt").stat().st_size, contents(folder)
    for room in (size * 3 // 4, size // 2, size - 10):
        with largest_file(room):
            done = call("train_lm", *argv, resume=True)
        assert_complains(done, "run", "File too large", "free some space")
        after = contents(folder)
        for name in ("checkpoint.pt", "config.json", "tokenizer.json"):
            assert after[name] == before[name]
        assert not list(folder.glob("*.partial"))
    succeed(call("train_lm", *argv, resume=True))
    assert numbers(folder) == numbers(finished("train_lm"))


@needs_linux
def test_a_disk_that_is_full_at_any_byte_is_named(tmp_path):
    """Depending on the byte, torch raises an OSError, or a RuntimeError of its own instead."""
    path, state = tmp_path / "best.pt", {str(i): torch.randn(40, 40) for i in range(5)}
    checkpoint.write_checkpoint(path, state)
    before = contents(tmp_path)
    for room in range(0, path.stat().st_size, 997):
        with largest_file(room), pytest.raises(OSError, match="File too large") as error:
            checkpoint.write_checkpoint(path, state)
        assert error.value.filename == str(path)
    assert contents(tmp_path) == before


def as_anyone():
    """Drop the right of root to write everywhere."""
    ctypes.CDLL(None).prctl(24, 1)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE


@needs_linux
@pytest.mark.parametrize("script, remedy", [("train_lm", "--out"), ("sample", "--table")])
def test_a_folder_that_cannot_be_written(script, remedy, shell, corpus, copied):
    folder = copied("train_lm")
    argv = [folder, "--tokens", 1, "--file", corpus / "train_LM.txt"]
    if script == "train_lm":
        argv = [*SHORT["train_lm"], "--data", corpus, "--out", folder, "--resume"]
    with unchanged(folder):
        folder.chmod(0o555)
        try:
            done = shell(script, *argv, preexec_fn=as_anyone)
        finally:
            folder.chmod(0o755)
        assert_complains(done, folder, "Permission denied", f"choose another {remedy}")


# ----------------------------------------------------------------------------- NaN or infinite loss


def spoil(monkeypatch, value, at):
    """Multiply the loss of update number `at` by the value."""
    number = iter(range(1, 1000))
    record_step = Run.record_step

    def seen(self, step, loss, tokens):
        record_step(self, step, loss * value if next(number) == at else loss, tokens)

    monkeypatch.setattr(Run, "record_step", seen)


@pytest.mark.parametrize("script", TRAINING)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_or_infinite_loss_ends_the_run_at_once(script, value, inputs, tmp_path, monkeypatch):
    in_epochs = script == "train_classifier"  # of 12 steps
    at, good, saved = (15, "epoch 1", 12) if in_epochs else (6, "step 4", 4)
    spoil(monkeypatch, value, at)
    constant = ("--decay" if in_epochs else "--warmup", 0)
    argv = (*SHORT[script], *inputs(script), *"--device cpu --lr 0.002".split(), *constant)
    done = call(script, *argv, out=tmp_path / "run")
    assert_complains(
        done,
        f"--lr 0.002: training diverged, at step {at}, with learning rate 0.00",
        f"the loss is {value}",
        f"the last good checkpoint is that of {good} in {tmp_path / 'run'}",
        f"smaller {'--lr or --class-lr' if script == 'train_generative' else '--lr'}\n",
    )
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert state["step"] == saved
    if in_epochs:
        spoil(monkeypatch, value, 1)
        done = call(script, *argv, out=tmp_path / "early")
        assert_complains(done, "at step 1, ", "no checkpoint was written before; start again")


def new_run(folder):
    """A run of train_lm.py in which nothing is trained yet."""
    flags = train_lm.Flags(out=str(folder), steps=2 * LOOK_EVERY)
    tokenizer = train_tokenizer("word", ["a few words"])
    return Run("lm", flags, Config(vocab_size=8), tokenizer, torch.device("cpu"))


def test_nan_weights_do_not_replace_good_ones(tmp_path):
    run = new_run(tmp_path / "run")
    run.save("best.pt", model={"weight": torch.ones(2)}, step=8)
    with unchanged(run.folder):
        for value in (math.nan, math.inf):
            with pytest.raises(UserError, match="at step 9 some weights are NaN or infinite"):
                run.save("best.pt", model={"weight": torch.tensor([1.0, value])}, step=9)


def test_losses_on_another_device_are_checked_together(tmp_path):
    run = new_run(tmp_path / "run")
    run.start_loop(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    with PretendGPU() as gpu:
        good, bad = (torch.tensor(loss).to("meta") for loss in (1.0, math.nan))
        gpu.waits.clear()
        for step in range(LOOK_EVERY - 1):
            run.record_step(step, good if step < 40 else bad, 16)
        assert not gpu.waits  # no loss has been read
        with pytest.raises(UserError, match="at step 41, with learning rate 0.1, the loss is nan"):
            run.record_step(LOOK_EVERY - 1, bad, 16)
    assert run.unchecked == []
