"""Compare training and evaluation speed: between position encodings and with other libraries.

    python -m bench.speed --sizes assignment --threads 1
    make bench                                      # with transformers and x-transformers
    python -m bench.speed --device cuda --compile   # the GPU's sizes

All implementations get the same batches of ids, the same targets and the same optimizer. Each takes
turns with poslab's learned positions (A B A B), so that other work on the machine slows both. In
masked LM most rivals compute the logits of every token, poslab only those of masked tokens: the
column "logits" says which.

On one thread, shares of the peak are by CPU time, otherwise by wall time. Freed memory stays with
the process, as in poslab's training scripts; with --apart each rival runs in a process of its own,
where the C library returns freed memory to the system.
"""

import types
from dataclasses import asdict, dataclass

import torch

from bench import measure, rivals
from bench.turns import compare
from bench.work import DEFAULT_SIZES, SIZES, TASKS
from data.files import write_json
from lab.command import main, typed_command
from lab.errors import require
from lab.flags import flag, known_names
from lab.folder import check_folder_of
from lab.machine import autocast, cores, git_revision, set_up_device, versions
from model import POSITIONS

DTYPES = ("auto", "float32", "bfloat16")


@dataclass
class Flags:
    sizes: str = flag(
        "",
        f"comma-separated, of {', '.join(SIZES)} "
        f"(default: {DEFAULT_SIZES['cpu']}; on CUDA {DEFAULT_SIZES['cuda']})",
    )
    tasks: str = flag(",".join(TASKS), "comma-separated")
    positions: str = flag(",".join(POSITIONS), "poslab's, comma-separated; learned is always there")
    window: int = flag(0, "also time learned positions with this window; 0: without", at_least=0)
    graph: bool = flag(False, "on CUDA: also replay a causal training step as a CUDA graph")
    rivals: bool = flag(True, "also time the other implementations that are installed")
    repeats: int = flag(5, "turns per pair", at_least=1)
    seconds: float = flag(
        0.3, "shortest turn, in seconds; steps are repeated to fill it", at_least=0
    )
    threads: str = flag("1,all", "CPU threads, comma-separated; one table for each")
    device: str = flag("cpu", "where to compute", ("cpu", "cuda"))
    dtype: str = flag("auto", "bfloat16 autocast or float32; auto: as in the scripts", DTYPES)
    compile: bool = flag(False, "torch.compile every implementation")
    apart: bool = flag(False, "run each rival in a process of its own")
    out: str = flag("", "JSON file to write all numbers to")


def bench(flags):
    tables, positions, threads = check(flags)
    described = {
        "command": typed_command(flags),
        "revision": git_revision(),
        "versions": versions(),
        "cores": cores(),
        "sizes": {name: asdict(SIZES[name]) for name, _ in tables},
    }
    rows = []
    print(LEGEND, flush=True)
    for n_threads in threads:
        device = set_up_device(types.SimpleNamespace(device=flags.device, threads=n_threads))
        on_gpu = device.type == "cuda"
        half = isinstance(autocast(flags, device), torch.autocast)
        dtype = "bfloat16" if half else "float32"
        peak = measure.MatmulPeak(device, getattr(torch, dtype))
        where = torch.cuda.get_device_name() if on_gpu else f"CPU threads: {n_threads}"
        by_cpu = not on_gpu and n_threads == 1
        for name, task in tables:
            print(
                f"\n{name}: {describe(SIZES[name])}; {where}, {dtype}{', compiled' * flags.compile}"
            )
            print(f"{TASKS[task]}\n{HEADER}", flush=True)
            others, missing = rivals.rivals(task) if flags.rivals else ({}, [])
            setting = {"size": name, "task": task, "threads": n_threads, "dtype": dtype}
            for row in compare(others, positions, SIZES[name], task, flags, peak, by_cpu):
                rows.append(setting | row)
                print(line(row), flush=True)
                if flags.out:  # after each row, so that an interrupted table is kept
                    write_json(flags.out, described | {"rows": rows})
            print(f"  matrix products: {row['matmul_gflops']:,.0f} GFLOP/s")
            for library in missing:
                print(f"  left out: {library} is not installed; make bench installs it")


# ---------------------------------------------------------------------------- the table

LEGEND = """x ours: time relative to poslab's learned positions (the last line), wall and (CPU): the
median over neighboring turns, so not the quotient of the rates. of peak: share of the machine's own
rate of matrix products. CPU s/M: CPU seconds per million tokens. memory: the peak while the model
is built, evaluated and trained for two steps. logits: of all tokens, or of masked tokens only."""
PHASE = f"{'tokens/s':>10} {'x ours':>7}{'(CPU)':>7} {'of peak':>7} {'CPU s/M':>7}   "
HEADER = (
    f"  {'':<30}{'training':>40}   {'evaluation':>40}\n"
    f"  {'':<30}{PHASE}{PHASE}{'memory':>8} {'logits':>6} {'parameters':>11} {'loss':>7} "
    f"{'2 steps on':>10}"
)


def describe(size):
    return (
        f"{size.n_layer} layers, width {size.n_embd}, {size.n_head} heads, "
        f"feed-forward {size.n_ffn} ({size.activation}), block {size.block_size}, "
        f"batch {size.batch_size}, vocabulary {size.vocab_size:,}"
    )


def line(row):
    """Return a row of the table as text."""
    if "error" in row:
        return f"  {row['name']:<30}{row['error']}"
    cells = ""
    for phase in ("train", "eval"):
        if phase not in row:
            cells += f"{'-':>10}{'':33}"
            continue
        got = row[phase]
        ratios = "".join(f"{got[k]:7.2f}" if k in got else " " * 7 for k in ("ratio", "cpu_ratio"))
        cells += f"{got['tokens_per_second']:10,.0f} {ratios} {got['share_of_peak']:7.1%} "
        cells += f"{got['cpu_seconds_per_million_tokens']:7.1f}   "
    memory = f"{row['peak_memory_mb']:,.0f} MB" if row["peak_memory_mb"] is not None else "?"
    return (
        f"  {row['name']:<30}{cells}{memory:>8} {row['logits']:>6} {row['parameters']:>11,} "
        f"{row['loss_first']:7.3f} {row['loss_after_two_steps']:10.3f}"
    )


# ---------------------------------------------------------------------------- flags


def check(flags):
    """Return [(size, task), ...], positions (learned first) and thread counts. Raise UserError."""
    flags.sizes = flags.sizes or DEFAULT_SIZES[flags.device]
    sizes, tasks = known_names(flags, "sizes", SIZES), known_names(flags, "tasks", TASKS)
    tables = [(name, task) for name in sizes for task in SIZES[name].tasks if task in tasks]
    try:
        threads = [cores() if n == "all" else int(n) for n in flags.threads.split(",")]
    except ValueError:
        threads = [0]
    on_cpu = flags.device == "cpu"
    wrong = f'--threads {flags.threads}: must be 1 to 4096 or "all", comma-separated'
    gpu = "--apart: compares CPU memory; leave it out or use --device cpu"
    graph = "--graph: records a CUDA graph; leave it out or use --device cuda"
    require(
        (tables, f"--tasks {flags.tasks}: none is timed at --sizes {flags.sizes}; choose another"),
        (0 < min(threads) and max(threads) <= 4096, wrong),
        (on_cpu or not flags.apart, gpu),
        (not (on_cpu and flags.graph), graph),
    )
    check_folder_of(flags.out)
    positions = dict.fromkeys(["learned", *known_names(flags, "positions", POSITIONS)])
    return tables, list(positions), list(dict.fromkeys(threads if on_cpu else threads[:1]))


if __name__ == "__main__":
    main(bench, Flags, __doc__)
