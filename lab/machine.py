"""Where a script computes: device, threads, memory, precision, and what a run records of them."""

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
from lab.errors import require
from model import Block
from nets import long_attention
from nets.cross_entropy import compile_chunks
from nets.device import device_of, is_gpu


def set_up_device(flags, config=None):
    """Seed the random numbers, choose the number of threads, and return the torch device.

    On the CPU, denormal floats become zeros and freed memory is kept. On a GPU, attention uses
    cuDNN only where nets/long_attention.py says so. Raises UserError if the device is missing.
    """
    device = flags.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device)
    problem = f"--device {device}: this machine or this build of torch has none"
    require((gpu is None or gpu.is_available(), f"{problem}; use --device cpu"))
    if device == "mps":
        # Before 2.13, some of its attention lets tokens see the future (pytorch#195910, #184180)
        problem = f"--device mps: torch {torch.__version__} computes attention wrongly there"
        remedy = "install torch 2.13 or newer, or use --device cpu"
        require((torch.__version__ >= (2, 13), f"{problem}; {remedy}"))
        require((processes.size() == 1, "--device mps: works with one process; use --device cpu"))
    if device == "cuda" and processes.size() > 1:  # more processes than GPUs share them
        torch.cuda.set_device(processes.local_rank() % torch.cuda.device_count())
    n_embd = config.n_embd if config else 0
    torch.set_num_threads(getattr(flags, "threads", 0) or default_threads(n_embd))
    # numpy before 2.4 warns if it measures the smallest float after denormals have become zeros
    numpy.finfo(numpy.float32), numpy.finfo(numpy.float64)
    # Far-away tokens get weights too small for normal floats, and denormal floats are slow.
    torch.set_flush_denormal(True)
    torch.manual_seed(getattr(flags, "seed", 0))
    long_attention.install()
    # cuDNN's attention makes a plan for every new shape, and NaN of some masks (pytorch#196678)
    if device == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    if device == "cpu":
        keep_freed_memory()
    return torch.device(device)


def default_threads(n_embd):
    """Return 1 for narrow models, which gain little from more, else this process's cores."""
    return 1 if n_embd <= 128 else min(cores(), max(1, os.cpu_count() // processes.local_size()))


def cores():
    """Return how many cores this process may use; on a cluster, fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def keep_freed_memory():
    """Make glibc keep freed memory. It would return tensors of some megabytes to the system after
    every step, and getting them back takes a tenth of a small model's step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is


def autocast(flags, device):
    """Return the context of the forward pass: bfloat16 on GPUs that support it without emulation,
    unless --dtype says otherwise."""
    bfloat16 = flags.dtype == "bfloat16"
    if flags.dtype == "auto" and device.type == "cuda":
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    unchanged = contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16) if bfloat16 else unchanged


def compile_blocks(model, backend="inductor"):
    """Compile each block of the model in place; the names of its weights stay. All blocks share the
    work of compiling, once for each shape of the inputs."""
    torch._dynamo.config.recompile_limit = 64  # else a ninth length of sentence is not compiled
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend)
    if is_gpu(device_of(model)):  # on a CPU, the chunks are as fast without
        compile_chunks()


def peak_memory(device):
    """Return the largest memory so far in MB, on the device that computes; None if unknown."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def git_revision():
    """Return the commit of the code, with a + if files changed; "unknown" outside a checkout."""
    root = Path(__file__).parents[1]
    owned = ["-c", f"safe.directory={root.as_posix()}"]  # another user may have installed the code
    command = ["git", *owned, "describe", "--always", "--dirty=+", "--exclude=*"]  # without tags
    try:
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions():
    """Return the versions of Python and its libraries, the platform, and today's date."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": numpy.__version__,
        "platform": platform.platform(),
        "date": datetime.date.today().isoformat(),
    }
