"""Where a script computes: device, threads, precision; and what a run records of it."""

import contextlib
import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import torch

import lab.dist as dist
from data.batching import device_of, is_gpu
from data.files import UserError
from model import Block

ROOT = Path(__file__).resolve().parents[1]

# Files that decide a run's numbers, beside nets/ and the training script
DECISIVE = ("model.py", "lab/optim.py", "lab/masked.py", "lab/train_task.py")


def set_up_device(device="auto", threads=0, seed=0, n_embd=0):
    """Seed the random numbers, choose the number of threads (0: 1 for models up to 128 wide, which
    gain little from more, else this process's share of the cores), and return the torch device.
    Raises UserError if it is missing."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    if threads == 0:
        threads = 1 if n_embd <= 128 else count_cores()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # far-away tokens get weights too small for normal floats
    torch.manual_seed(seed % 2**64)
    torch.backends.cuda.enable_cudnn_sdp(False)  # see nets/kernels.py, which uses it where right
    if device == "cpu":
        keep_freed_memory()
    return torch.device(device)


def check_device(device):
    """Raise UserError if this machine or this torch lacks the device."""
    available = True
    if device == "cuda":
        available = torch.cuda.is_available()
    if device == "mps":
        available = torch.backends.mps.is_available()
    if not available:
        raise UserError(f"--device {device}: this machine or torch has none; use --device cpu")
    if device == "mps" and torch.__version__ < (2, 13):
        # Some of its attention lets tokens see the future (pytorch#195910, #184180)
        raise UserError("--device mps: torch before 2.13 computes attention wrongly there")


def count_cores():
    """Return the number of cores for this process, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))  # on a cluster, fewer than the machine has
    else:
        cores = os.cpu_count()
    if dist.size() > 1:
        cores //= int(os.environ["LOCAL_WORLD_SIZE"])
    return max(1, cores)


def keep_freed_memory():
    """Let glibc keep the memory of freed tensors. It would return tensors of some megabytes to the
    system after every step, and getting them back takes a tenth of a small model's step."""
    with contextlib.suppress(AttributeError, TypeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest there is


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
        if is_gpu(device_of(model)) and hasattr(module, "compile_chunks"):  # a FusedLoss
            module.compile_chunks()


# ------------------------------------------------------------------------------- what a run records


def git_revision():
    """Return the commit of the code, with a + if files changed; "" outside a checkout."""
    command = ["git", "-c", f"safe.directory={ROOT.as_posix()}", "describe"]
    options = ["--always", "--dirty=+", "--exclude=*"]
    with contextlib.suppress(OSError):  # no git
        done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()
    return ""


def module_of(script):
    """Return the module of a script's path: "train_lm", "beyond.train_seq2seq"."""
    return ".".join(Path(script).resolve().relative_to(ROOT).with_suffix("").parts)


def path_of(module):
    """Return the path of a script's module, see `module_of`."""
    return ROOT / f"{module.replace('.', '/')}.py"


def command_of(module):
    """Return the command that starts a script's module, see `module_of`, without flags."""
    if "." in module:
        return f"python -m {module}"
    return f"python {module}.py"


def code_hash(script):
    """Return a hash of the code that decides a run's numbers: DECISIVE, nets/ and the script."""
    paths = [ROOT / name for name in DECISIVE]
    paths += sorted((ROOT / "nets").glob("*.py"))
    paths.append(Path(script))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
