"""Where a script computes: device, threads, precision; and what a run records of it."""

import contextlib
import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import torch

from data.batching import device_of, is_gpu
from data.files import UserError
from model import Block
from nets.loss import compile_chunks

ROOT = Path(__file__).resolve().parents[1]


def set_up_device(device="auto", threads=0, seed=0, n_embd=0):
    """Seed the random numbers, choose the number of threads (0: 1 for models up to 128 wide, which
    gain little from more, else this process's share of the cores), and return the torch device.
    Raises UserError if it is missing."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    gpu = {"cuda": torch.cuda, "mps": torch.backends.mps}.get(device)
    if gpu and not gpu.is_available():
        raise UserError(f"--device {device}: this machine or torch has none; use --device cpu")
    if device == "mps" and torch.__version__ < (2, 13):
        # Some of its attention lets tokens see the future (pytorch#195910, #184180)
        raise UserError("--device mps: torch before 2.13 computes attention wrongly there")
    # On a cluster, a process may use fewer cores than the machine has
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    torch.set_num_threads(threads or (1 if n_embd <= 128 else cores))
    torch.set_flush_denormal(True)  # far-away tokens get weights too small for normal floats
    torch.manual_seed(seed % 2**64)
    torch.backends.cuda.enable_cudnn_sdp(False)  # see nets/attention.py, which uses it where right
    if device == "cpu":
        # glibc would return tensors of some megabytes to the system after every step, and getting
        # them back takes a tenth of a small model's step
        with contextlib.suppress(AttributeError, TypeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
            mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is
    return torch.device(device)


def autocast(dtype, device):
    """Return the context of the forward pass: bfloat16, with "auto" on GPUs that support it."""
    bfloat16 = dtype == "bfloat16"
    if dtype == "auto" and device.type == "cuda":
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16)


def compile_blocks(model, backend="inductor"):
    """Compile each block of the model in place; the names of its weights stay."""
    torch._dynamo.config.recompile_limit = 64  # else a ninth length of sentence is not compiled
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(backend=backend)
    if is_gpu(device_of(model)):
        compile_chunks()


def git_revision():
    """Return the commit of the code, with a + if files changed; "" outside a checkout."""
    command = "git -c SAFE describe --always --dirty=+ --exclude=*".split()
    command[2] = f"safe.directory={ROOT.as_posix()}"  # may have spaces
    with contextlib.suppress(OSError):  # no git
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return ""


def module_of(script):
    """Return the module of a script's path: "train_lm", "beyond.train_seq2seq"."""
    return ".".join(Path(script).resolve().relative_to(ROOT).with_suffix("").parts)


def code_hash(script):
    """Return a hash of the code that decides a run's numbers: model.py, nets/ and the script."""
    digest = hashlib.sha256()
    for path in (ROOT / "model.py", *sorted((ROOT / "nets").glob("*.py")), Path(script)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
