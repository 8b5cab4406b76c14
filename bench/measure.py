"""Count floating-point operations, time a step, and read peak memory.

The speed limit is not taken from a data sheet: square matrix products are timed in the same
process, between the measurements.
"""

import ctypes
import gc
import time
from pathlib import Path

import torch

MATMUL_SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}


def forward_flops(config, task, B, T, n_predicted):
    """Return the FLOPs of the matrix products of one forward pass, by part.

    task: masked | causal | seq2seq (source and target of T tokens each). A product of (n, k) and
    (k, m) counts 2 n k m; training takes three times as many. Only necessary work counts:

    - the head and the last feed-forward layer at the n_predicted positions that have a target
    - attention between visible pairs, T (T + 1) / 2 per causal sequence (papers often count T * T),
      fewer with a window
    """
    L, C, tokens = config.n_layer, config.n_embd, B * T
    W = min(config.window or T, T)
    causal = T * W - W * (W - 1) // 2  # a token sees itself and W - 1 before it, if there are any
    both = 2 * causal - T  # and as many after it
    stacks, attentions, pairs = {
        "masked": (1, 1, both),
        "causal": (1, 1, causal),
        "seq2seq": (2, 3, both + causal + T * T),  # in the encoder, in the decoder, and across
    }[task]
    projections = L * attentions * tokens * 8 * C * C  # query, key, value and output
    feed_forward_tokens = stacks * L * tokens - (tokens - n_predicted)
    dense = 2 * C * C if config.head == "roberta" else 0
    return {
        "linear": projections + feed_forward_tokens * 4 * C * config.n_ffn,
        "attention": L * B * pairs * 4 * C,
        "head": n_predicted * (2 * C * config.vocab_size + dense),
    }


class MatmulPeak:
    """Time square matrix products of one dtype, at the size that is fastest on this machine."""

    def __init__(self, device, dtype):
        self.device = device
        matrices = [torch.randn(n, n, device=device).to(dtype) for n in MATMUL_SIZES[device.type]]
        rates = []
        for matrix in matrices:
            self.matrix = matrix
            self.rate()  # warm-up: maps memory and chooses kernels
            rates.append(self.rate())
        self.matrix = matrices[rates.index(max(rates))]  # by wall time

    def rate(self, seconds=0.05):
        """Return FLOP/s by wall time and by CPU time, measured over at least `seconds`."""
        work, done, wall, cpu = 2 * len(self.matrix) ** 3, 0, 0.0, 0.0
        while wall < seconds:
            n = max(1, int((seconds - wall) * done / wall) if done else 1)
            more_wall, more_cpu = timed(lambda: self.matrix @ self.matrix, n, self.device)
            done, wall, cpu = done + n, wall + more_wall, cpu + more_cpu
        return work * done / wall, work * done / max(cpu, 1e-9)


def timed(work, n, device):
    """Return (wall, CPU) seconds of n calls of work(), of all threads, GPU kernels included."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(n):
        work()
    wait()
    return time.perf_counter() - wall, time.process_time() - cpu


class PeakMemory:
    """Peak memory since this object was made, minus what was in use at that moment.

    On the CPU this is the process's resident memory, whose peak only Linux lets a process reset.
    On other systems megabytes() returns None.
    """

    def __init__(self, device):
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return
        try:
            # Return freed memory to the system; reusing it would not raise the peak
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # 5: reset the peak
            self.before = self.resident("VmRSS")
        except (OSError, AttributeError, TypeError):
            self.before = None

    def megabytes(self):
        """Return the peak in MB, or None if this system does not report it."""
        if self.device.type == "cuda":
            return (torch.cuda.max_memory_allocated() - self.before) / 2**20
        return None if self.before is None else (self.resident("VmHWM") - self.before) / 2**20

    @staticmethod
    def resident(field):
        """Return one field of this process's status, in bytes. Raise OSError if it is missing."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise OSError(f"/proc/self/status has no {field}")
