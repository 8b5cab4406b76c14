"""How much a model has to compute, how fast this machine could, and what a piece of work takes: what the bench scripts share.

The limit is not a data sheet's number but matrix products timed in the same process, between the measurements.
"""

import ctypes
import gc
import time
from pathlib import Path

import torch

MATMUL_SIZES = {"cpu": (512, 1024, 2048), "cuda": (4096, 8192)}


def forward_flops(config, kind, B, T, n_predicted):
    """Floating-point operations of the matrix products of one forward pass, by part; training takes three times as many.

    kind: masked | causal | seq2seq (source and target of T tokens each). A product of (n, k) and (k, m) is 2 n k m. Only
    what is needed counts: of the n_predicted positions that have a target, the last feed-forward layer and the head; of
    attention, the pairs of tokens that may see each other, T (T + 1) / 2 a causal sequence, where it is also usual to
    count all T x T.
    """
    L, C, tokens = config.n_layer, config.n_embd, B * T
    stacks = 2 if kind == "seq2seq" else 1
    attentions = (
        3 if kind == "seq2seq" else 1
    )  # of the encoder, of the decoder, and across: a block's q, k, v and out
    pairs = {
        "masked": T * T,
        "causal": T * (T + 1) // 2,
        "seq2seq": T * T + T * (T + 1) // 2 + T * T,
    }[kind]
    return {
        "linear": (
            L * attentions * tokens * 8 * C * C
            + (stacks * L * tokens - (tokens - n_predicted)) * 4 * C * config.n_ffn
        ),
        "attention": L * B * pairs * 4 * C,
        "head": n_predicted
        * (2 * C * config.vocab_size + (2 * C * C if config.head == "roberta" else 0)),
    }


class MatmulPeak:
    """The rate of square matrix products in a dtype, of the size that proves fastest here."""

    def __init__(self, device, dtype):
        self.device = device
        matrices = [torch.randn(n, n, device=device).to(dtype) for n in MATMUL_SIZES[device.type]]
        rates = []
        for self.matrix in matrices:
            self.rate()  # the first is slower: memory is mapped, kernels are chosen
            rates.append(self.rate())
        self.matrix = matrices[rates.index(max(rates))]  # by wall time

    def rate(self, seconds=0.05):
        """FLOP a second of wall time and a second of CPU time, over at least so many seconds."""
        work, done, wall, cpu = 2 * len(self.matrix) ** 3, 0, 0.0, 0.0
        while wall < seconds:
            n = max(1, int((seconds - wall) * done / wall) if done else 1)
            more_wall, more_cpu = timed(lambda: self.matrix @ self.matrix, n, self.device)
            done, wall, cpu = done + n, wall + more_wall, cpu + more_cpu
        return work * done / wall, work * done / max(cpu, 1e-9)


def timed(work, n, device):
    """(wall seconds, CPU seconds of all threads) that work(), called n times, takes; on a GPU until the last kernel has
    ended."""
    cpu = time.process_time()
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(n):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000, time.process_time() - cpu
    wall = time.perf_counter()
    for _ in range(n):
        work()
    return time.perf_counter() - wall, time.process_time() - cpu


class PeakMemory:
    """The most memory used at a time since this object was made, beyond what was in use then.

    On the CPU that is the process's resident memory, which Linux tells and lets one reset; elsewhere megabytes() is None.
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
            ctypes.CDLL(None).malloc_trim(
                0
            )  # what was freed goes back to the system, or it would be used again unseen
            Path("/proc/self/clear_refs").write_text(
                "5"
            )  # the high-water mark of the resident memory is now
            self.before = self.resident("VmRSS")
        except (OSError, AttributeError, TypeError):
            self.before = None

    def megabytes(self):
        if self.device.type == "cuda":
            return (torch.cuda.max_memory_allocated() - self.before) / 2**20
        return None if self.before is None else (self.resident("VmHWM") - self.before) / 2**20

    @staticmethod
    def resident(field):
        """Bytes of a field of this process's status."""
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise OSError(f"/proc/self/status has no {field}")
