"""How fast poslab trains and evaluates: against the machine's own limit, between positions, and beside other implementations.

    python -m bench.speed --sizes assignment --threads 1
    make bench                                        # with transformers and x-transformers, in an environment of their own
    python -m bench.speed --device cuda --compile           # the GPU's sizes

Every implementation meets the same batches of ids with the same positions to predict and the same optimiser, and is timed
in turn with poslab's learned positions, A B A B, in one process; a ratio is the median over the turns of theirs to ours.
Slower machines and neighbours' work meet both. An encoder has RoBERTa's shape (post-norm, its head), a decoder GPT-2's
(pre-norm). The share of the peak is by CPU seconds on one thread, which waiting for a busy core does not lengthen, and by
wall time otherwise. What is freed stays with the process, as in poslab's scripts, so that no implementation pays for page
faults by the accident of what ran before it; with --apart the others have processes of their own and pay, as in scripts
of their own they would.
"""

import contextlib
import math
import multiprocessing
import os
import shlex
import statistics
import sys
import types
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn as nn

from bench import measure, rivals
from data.files import write_json
from lab.command import main
from lab.errors import require
from lab.flags import flag
from lab.machine import autocast, git_revision, prepare, versions
from lab.optim import make_optimizer
from model import POSITIONS, Config, Decoder, Encoder, LanguageModel
from nets.encoder_decoder import EncoderDecoder

TASKS = {
    "masked": "masked LM, 15% of the tokens predicted",
    "causal": "causal LM",
    "seq2seq": "encoder-decoder, source and target tokens counted",
}


@dataclass
class Size:
    n_layer: int
    n_embd: int
    n_head: int
    block_size: int
    batch_size: int
    vocab_size: int
    n_ffn: int = 0  # 0: four times the width
    activation: str = "gelu"
    tasks: tuple = tuple(TASKS)
    train: bool = True  # False: only evaluation

    def __post_init__(self):
        self.n_ffn = self.n_ffn or 4 * self.n_embd


SIZES = {
    "tiny": Size(1, 16, 2, 8, 2, 50),
    "assignment": Size(4, 64, 2, 32, 16, 6000, n_ffn=100, activation="relu"),
    "assignment-gelu": Size(
        4, 64, 2, 32, 16, 6000
    ),  # the same with the feed-forward layer that GPT-2 and RoBERTa have
    "small": Size(6, 384, 6, 256, 8, 8000),
    "base": Size(12, 768, 12, 128, 4, 30_000),
    "roberta-base": Size(12, 768, 12, 512, 32, 50_265, tasks=("masked",)),
    "gpt2-small": Size(12, 768, 12, 1024, 16, 50_257, tasks=("causal",)),
    "long": Size(12, 768, 12, 8192, 1, 50_257, tasks=("masked", "causal"), train=False),
}
DEFAULT_SIZES = {"cpu": "assignment,small,base", "cuda": "roberta-base,gpt2-small,long"}


@dataclass
class Flags:
    sizes: str = flag(
        "",
        f"of {', '.join(SIZES)}, joined by commas (default: {DEFAULT_SIZES['cpu']}; "
        f"on CUDA {DEFAULT_SIZES['cuda']})",
    )
    tasks: str = flag(",".join(TASKS), "which of the three, joined by commas")
    positions: str = flag(
        ",".join(POSITIONS),
        "of poslab's models, joined by commas; learned, to which all are compared, is always there",
    )
    rivals: bool = flag(True, "also time the other implementations that are installed")
    repeats: int = flag(5, "turns A B a pair")
    seconds: float = flag(
        0.3, "least length of one measurement; steps are repeated until it is reached"
    )
    threads: str = flag("1,all", "CPU threads, one table for each of the numbers joined by commas")
    device: str = flag("cpu", "where to compute", ("cpu", "cuda"))
    dtype: str = flag(
        "auto",
        "bfloat16 autocast or plain float32; auto: bfloat16 on CUDA",
        ("auto", "float32", "bfloat16"),
    )
    compile: bool = flag(False, "torch.compile every implementation")
    apart: bool = flag(
        False,
        "each other implementation in a process of its own, with the C library's own handling of "
        "freed memory, as its scripts have it",
    )
    out: str = flag("", "also write everything here, as JSON")


def bench(flags):
    sizes, tasks, positions, threads = check(flags)
    print(LEGEND, flush=True)
    rows, described = (
        [],
        {
            "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
            "revision": git_revision(),
            "versions": versions(),
            "cores": os.cpu_count(),
            "sizes": {name: asdict(SIZES[name]) for name in sizes},
        },
    )
    for n_threads in threads:
        device = prepare(types.SimpleNamespace(device=flags.device, threads=n_threads, seed=0))
        dtype = (
            torch.bfloat16
            if flags.dtype == "bfloat16" or flags.dtype == "auto" and device.type == "cuda"
            else torch.float32
        )
        peak = measure.MatmulPeak(device, dtype)
        for name in sizes:
            size = SIZES[name]
            for task in (task for task in size.tasks if task in tasks):
                where = (
                    f"{n_threads} thread{'s' * (n_threads > 1)}"
                    if device.type == "cpu"
                    else torch.cuda.get_device_name()
                )
                print(
                    f"\n{name}: {size.n_layer} layers, {size.n_embd} wide, {size.n_head} heads, "
                    f"{size.n_ffn} {size.activation} between, block {size.block_size}, batch {size.batch_size}, "
                    f"vocabulary {size.vocab_size:,}; {where}, {str(dtype).removeprefix('torch.')}"
                    f"{', compiled' * flags.compile}\n{TASKS[task]}\n{HEADER}",
                    flush=True,
                )
                others, missing = rivals.rivals(task) if flags.rivals else ({}, [])
                builders = {
                    f"poslab {pos}": lambda size, pos=pos: Poslab(size, task, pos)
                    for pos in positions
                } | others
                for row in compare(
                    builders,
                    size,
                    task,
                    flags,
                    device,
                    peak,
                    by_cpu=device.type == "cpu" and n_threads == 1,
                    apart=others if flags.apart else (),
                ):
                    row = {
                        "size": name,
                        "task": task,
                        "threads": n_threads,
                        "dtype": str(dtype).removeprefix("torch."),
                        **row,
                    }
                    print(line(row), flush=True)
                    rows.append(row)
                    if flags.out:  # after each, so that a table cut short is not lost
                        write_json(Path(flags.out), described | {"rows": rows})
                print(
                    f"  matrix products: {row['matmul_gflops']:,.0f} GFLOP/s"
                    if "error" not in row
                    else ""
                )
                print(
                    "".join(
                        f"  left out: {sentence}\n" for sentence in missing if task != "seq2seq"
                    ),
                    end="",
                )


# ---------------------------------------------------------------------------- one implementation


class Poslab(nn.Module):
    """A model of model.py in the form that bench_models.py describes."""

    on_cpu = ("targets",)  # where they are looked at, a GPU need not be waited for

    def __init__(self, size, task, pos):
        super().__init__()
        encoder = task == "masked"
        self.config = Config(
            vocab_size=size.vocab_size,
            block_size=size.block_size,
            n_layer=size.n_layer,
            n_head=size.n_head,
            n_embd=size.n_embd,
            n_ffn=size.n_ffn,
            activation=size.activation,
            pos=pos,
            head="roberta" if encoder else "linear",
            norm_first=not encoder,
            init_std=0.02,
        )
        self.model = LanguageModel(
            {"masked": Encoder, "causal": Decoder, "seq2seq": EncoderDecoder}[task](self.config)
        )

    def forward(self, idx, targets, **more):
        return self.model.loss(idx, targets, **more) / (targets != -100).sum()


class Contestant:
    """A model, its optimiser, and steps over the batches; at work for two steps already, so that nothing is done for the
    first time."""

    def __init__(self, build, batches, size, flags, device):
        torch.manual_seed(0)
        memory = measure.PeakMemory(device)
        self.flags, self.device, self.count = flags, device, 0
        self.model = build(size).to(device)
        stay = getattr(self.model, "on_cpu", ())
        self.batches = [
            {name: tensor if name in stay else tensor.to(device) for name, tensor in batch.items()}
            for batch in batches
        ]
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.call = torch.compile(self.model) if flags.compile else self.model
        self.optimizer = make_optimizer(self.model, 1e-4, 0.01)
        self.first = self.evaluate().item()
        if size.train:
            self.train(), self.train()
        self.after = self.evaluate(first=True).item()
        self.megabytes = memory.megabytes()

    def batch(self):
        self.count += 1
        return self.batches[self.count % len(self.batches)]

    def train(self):
        self.model.train()
        with autocast(self.flags, self.device):
            loss = self.call(**self.batch())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, first=False):
        self.model.eval()
        with autocast(self.flags, self.device):
            return self.call(**(self.batches[1] if first or not self.count else self.batch()))

    def turn(self, work, n):
        """(wall, CPU) seconds a step."""
        wall, cpu = measure.timed(self.train if work == "train" else self.evaluate, n, self.device)
        return wall / n, cpu / n


GONE = (
    EOFError,
    BrokenPipeError,
    ConnectionResetError,
)  # what is met in the place of the other end's process


class Apart:
    """A Contestant of bench_models.py in a process of its own, which takes its turns there."""

    def __init__(self, name, size, task, flags):
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(
            target=serve,
            args=(theirs, name, size, task, flags, torch.get_num_threads()),
            daemon=True,
        )
        self.process.start()
        theirs.close()
        self.parameters, self.first, self.after, self.megabytes = self.pipe.recv()

    def turn(self, work, n):
        self.pipe.send((work, n))
        return self.pipe.recv()

    def __del__(self):
        self.pipe.close()  # which ends it
        self.process.join()


def serve(pipe, name, size, task, flags, n_threads):
    """The other end of an `Apart`. It is prepared as prepare does it, but for the keeping of freed memory."""
    torch.set_num_threads(n_threads)
    torch.set_flush_denormal(True)
    contestant = Contestant(
        rivals.rivals(task)[0][name], make_batches(size, task), size, flags, torch.device("cpu")
    )
    pipe.send((contestant.parameters, contestant.first, contestant.after, contestant.megabytes))
    with contextlib.suppress(*GONE, KeyboardInterrupt):
        while True:
            pipe.send(contestant.turn(*pipe.recv()))


def make_batches(size, task, n=4):
    """n batches of random ids, the same for every implementation: idx and targets (B, T), for seq2seq also a source (B, T)."""
    gen = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(n):
        shape = (size.batch_size, size.block_size)
        blocks = torch.randint(
            5, size.vocab_size, (shape[0], shape[1] + 1), generator=gen
        )  # special tokens stay out
        idx, targets = blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()
        if task == "masked":
            hidden = torch.zeros(shape[0] * shape[1], dtype=torch.bool)
            hidden[torch.randperm(len(hidden), generator=gen)[: n_predicted(size, task)]] = True
            hidden = hidden.view(shape)
            targets, idx = idx.masked_fill(~hidden, -100), idx.masked_fill(hidden, 2)
        batch = {"idx": idx, "targets": targets}
        if task == "seq2seq":
            batch["source"] = torch.randint(5, size.vocab_size, shape, generator=gen)
        batches.append(batch)
    return batches


def n_predicted(size, task):
    tokens = size.batch_size * size.block_size
    return max(1, round(0.15 * tokens)) if task == "masked" else tokens


# ---------------------------------------------------------------------------- all of them


def compare(builders, size, task, flags, device, peak, by_cpu, apart=()):
    """Yields a row for each builder but the first; then the first's, to which the others are compared. One that lacks
    memory has an "error" instead of rates.

    apart: those of the builders that get a process of their own.
    """
    batches = make_batches(size, task)
    name, *others = builders
    ours = Contestant(builders[name], batches, size, flags, device)
    tokens = size.batch_size * size.block_size * (2 if task == "seq2seq" else 1)
    works = ("train", "eval") if size.train else ("eval",)
    flops = sum(
        measure.forward_flops(
            ours.model.config, task, size.batch_size, size.block_size, n_predicted(size, task)
        ).values()
    )
    steps = {}
    for work in works:
        seconds = min(ours.turn(work, 1)[0] for _ in range(2))
        steps[work] = max(1, math.ceil(flags.seconds / seconds))

    def row(contestant, times, ratios=()):
        """times: {work: [(wall, CPU) a step, FLOP/s of matrix products beside it by either]}."""
        out = {
            "parameters": contestant.parameters,
            "peak_memory_mb": contestant.megabytes,
            "loss_first": contestant.first,
            "loss_after_two_steps": contestant.after,
        }
        out["matmul_gflops"] = (
            statistics.median(rates[by_cpu] for work in works for *_, rates in times[work]) / 1e9
        )
        for work in works:
            wall, cpu = (statistics.median(time[i] for time in times[work]) for i in (0, 1))
            out[work] = {
                "tokens_per_second": tokens / wall,
                "cpu_seconds_per_million_tokens": 1e6 * cpu / tokens,
                "share_of_peak": statistics.median(
                    flops * (3 if work == "train" else 1) / seconds[by_cpu] / rates[by_cpu]
                    for *seconds, rates in times[work]
                ),
            }
        for work, pairs in ratios:
            out[work] |= {
                "ratio": statistics.median(b[0] / a[0] for a, b in pairs),
                "cpu_ratio": statistics.median(b[1] / max(a[1], 1e-9) for a, b in pairs),
            }
        return out

    our_times = {work: [] for work in works}
    for other in others or [None]:
        try:
            theirs = None
            if other in apart:
                theirs = Apart(other, size, task, flags)
            elif other:
                theirs = Contestant(builders[other], batches, size, flags, device)
            times = {work: [] for work in works}
            for _ in range(flags.repeats):
                for work in works:
                    rates = peak.rate()
                    our_times[work].append((*ours.turn(work, steps[work]), rates))
                    if theirs:
                        times[work].append((*theirs.turn(work, steps[work]), rates))
            if theirs:
                pairs = [
                    (work, list(zip(our_times[work][-flags.repeats :], times[work])))
                    for work in works
                ]
                yield {"name": other, **row(theirs, times, pairs)}
        except torch.OutOfMemoryError:
            yield {"name": other, "error": "out of memory"}
        except GONE:
            yield {"name": other, "error": "its process has ended"}
        theirs = None  # its memory is free before the next is built
    yield {"name": name, **row(ours, our_times)}


LEGEND = """x ours: times as long as poslab's learned positions (the last line) take, by wall time and (by CPU time), the median
over pairs of neighbouring turns, so not the quotient of the rates beside it; of peak: the rate at which the model's
products are computed, as a share of the matrix products' own; CPU s/M: CPU seconds a million tokens; memory: the most
while it is built, evaluated and trained for two steps, beyond what was in use before. A line takes some seconds to
minutes, ours comes last."""
HEADER = (
    f"  {'':<19}{'training':>40}   {'evaluation':>40}\n"
    f"  {'':<19}"
    + f"{'tokens/s':>10} {'x ours':>7}{'(CPU)':>7} {'of peak':>7} {'CPU s/M':>7}   " * 2
    + f"{'memory':>8} {'parameters':>11} {'loss':>7} {'2 steps on':>10}"
)


def line(row):
    """A row of the table. x ours: how many times as long it takes as poslab with learned positions does, in wall time and
    in CPU time."""
    if "error" in row:
        return f"  {row['name']:<19}{row['error']}"
    cells = ""
    for work in ("train", "eval"):
        got = row.get(work)
        ratio = (
            "".join(f"{got[key]:7.2f}" if key in got else " " * 7 for key in ("ratio", "cpu_ratio"))
            if got
            else ""
        )
        cells += (
            f"{got['tokens_per_second']:10,.0f} {ratio} {got['share_of_peak']:7.1%} "
            f"{got['cpu_seconds_per_million_tokens']:7.1f}   "
            if got
            else f"{'-':>10}{'':33}"
        )
    memory = f"{row['peak_memory_mb']:,.0f} MB" if row["peak_memory_mb"] is not None else "?"
    return (
        f"  {row['name']:<19}{cells}{memory:>8} {row['parameters']:>11,} "
        f"{row['loss_first']:7.3f} {row['loss_after_two_steps']:10.3f}"
    )


def check(flags):
    """The sizes, tasks, positions (learned first) and thread counts of the flags. UserError for what there is not."""

    def chosen(name, text, allowed):
        values = [value for value in text.split(",") if value]
        unknown = [value for value in values if value not in allowed]
        require(
            (
                values and not unknown,
                f"--{name} {text}: must be of {', '.join(allowed)}, joined by commas",
            )
        )
        return values

    sizes = chosen("sizes", flags.sizes or DEFAULT_SIZES[flags.device], SIZES)
    tasks = chosen("tasks", flags.tasks, TASKS)
    positions = chosen("positions", flags.positions, POSITIONS)
    try:
        threads = [os.cpu_count() if n == "all" else int(n) for n in flags.threads.split(",")]
    except ValueError:
        threads = [0]
    require(
        (
            not flags.apart or flags.device == "cpu",
            "--apart: is about the processor's memory; leave it out, or give --device cpu",
        ),
        (
            all(n > 0 for n in threads),
            f"--threads {flags.threads}: must be numbers above 0, or all, joined by commas",
        ),
        (flags.repeats > 0, f"--repeats must be at least 1, got {flags.repeats}"),
        (flags.seconds >= 0, f"--seconds must not be negative, got {flags.seconds}"),
        (
            not flags.out or Path(flags.out).parent.is_dir(),
            f"--out {flags.out}: there is no folder {Path(flags.out).parent}; make it",
        ),
    )
    return (
        sizes,
        tasks,
        list(dict.fromkeys(["learned", *positions])),
        list(dict.fromkeys(threads if flags.device == "cpu" else threads[:1])),
    )


if __name__ == "__main__":
    main(bench, Flags, __doc__.split("\n")[0])
