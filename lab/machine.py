"""Where a script computes: device, threads, memory, precision, and what a run remembers of all that."""

import contextlib
import ctypes
import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy
import tokenizers
import torch

from lab import processes
from lab.errors import UserError, require
from model import Block
from nets import long_alibi


def prepare(flags, n_embd=None):
    """Seed everything, choose threads, and return the torch device. UserError when it is not there. On the CPU also: denormal
    floats become zeros, and freed memory is kept."""
    long_alibi.install()
    device = flags.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if (
        device == "cuda"
        and not torch.cuda.is_available()
        or device == "mps"
        and not torch.backends.mps.is_available()
    ):
        raise UserError(
            f"--device {device}: this machine or this torch build has none; use --device cpu"
        )
    if processes.size() > 1:
        require(
            (device != "mps", "--device mps: is for one process; use --device cpu"),
            (
                device != "cuda" or processes.local_rank() < torch.cuda.device_count(),
                f"--device cuda: {processes.local_size()} processes on a machine with {torch.cuda.device_count()} cards; "
                "start one for each (--nproc_per_node)",
            ),
        )
        if device == "cuda":
            torch.cuda.set_device(processes.local_rank())
    require(
        (
            0 <= getattr(flags, "threads", 0) <= 4096,
            f"--threads must not be negative, nor above 4096, got {getattr(flags, 'threads', 0)}",
        )
    )
    threads = getattr(flags, "threads", 0) or (
        1 if (n_embd or 0) <= 128 else max(1, os.cpu_count() // processes.local_size())
    )
    torch.set_num_threads(threads)
    # Far-away tokens get weights too small for normal floats, which processors compute many times slower.
    torch.set_flush_denormal(True)
    torch.manual_seed(getattr(flags, "seed", 0))
    if device == "cpu":
        keep_freed_memory()
    return torch.device(device)


def keep_freed_memory():
    """From now on this process keeps the memory it frees, where the C library is glibc, which otherwise gives tensors
    of some megabytes back to the system in every step, and a small model's step pays with a tenth of its time for
    getting them again."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is


def autocast(flags, device):
    """Context in which the forward pass runs: bfloat16 on CUDA unless --dtype says otherwise."""
    if flags.dtype == "bfloat16" or flags.dtype == "auto" and device.type == "cuda":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def compile_blocks(model, backend="inductor"):
    """Let PyTorch compile each block of the model, in place; the names of its weights stay.
    All blocks share the work of compiling."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend)


def peak_memory(device):
    """Largest memory of this process so far in MB, on the device that computes; None where the system does not tell."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return round(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / (2**20 if sys.platform == "darwin" else 2**10),
        1,
    )


def git_revision():
    """The commit of the code, with a + when files were changed; "unknown" outside a checkout."""
    try:
        here = Path(__file__).parents[1]
        revision = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "-uno"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
        return revision.stdout.strip() + ("+" if changes.stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions():
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "date": datetime.date.today().isoformat(),
    }


def clock(seconds):
    """Seconds as 1:02:03 or 2:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
