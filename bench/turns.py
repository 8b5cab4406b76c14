"""Let implementations take timed turns with poslab, and summarize the turns."""

import math
import statistics
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from bench import measure
from bench.contestants import GONE, Apart, Contestant, Graphed, Poslab
from bench.work import make_batches, n_predicted


class Turn(NamedTuple):
    """Seconds per step, and the FLOP/s of matrix products just before. All are (wall, CPU)."""

    seconds: tuple[float, float]
    peak: tuple[float, float]
    ours: tuple[float, float] | None = None  # seconds of poslab's turn just before this one


def compare(others, positions, size, task, flags, peak, by_cpu):
    """Yield a row per implementation. The last, to which all are compared, is poslab's first.

    others: {name: builder} beside poslab's positions. A row has "error" if memory ran out or the
    process of the implementation has ended.
    """
    torch._dynamo.reset()  # the shapes of the table before are not those of this one
    batches = make_batches(size, task)
    builders = {f"poslab {pos}": partial(Poslab, task=task, pos=pos) for pos in positions} | others
    first = f"poslab {positions[0]}"
    recorded = f"{first}, CUDA graph"
    windowed = f"{first}, window {flags.window}"
    if flags.window:
        builders[windowed] = partial(builders[first], window=flags.window)
    if flags.graph and task == "causal" and size.train:
        builders[recorded] = builders[first]
    ours = Contestant(builders.pop(first), batches, size, flags, peak.device)
    B, T, n = size.batch_size, size.block_size, n_predicted(size, task)

    def work_of(window):
        config = replace(ours.model.config, window=window)
        flops = sum(measure.forward_flops(config, task, B, T, n).values())
        return {"flops": flops, "tokens": B * T * (2 if task == "seq2seq" else 1)}

    steps = {}
    for phase in ("train", "eval") if size.train else ("eval",):
        seconds = min(ours.turn(phase, 1)[0] for _ in range(2))
        steps[phase] = max(1, math.ceil(flags.seconds / seconds))

    our_turns = {phase: [] for phase in steps}
    for name, build in builders.items():
        theirs = None  # frees the memory of the one before
        try:
            if flags.apart and name in others:
                theirs = Apart(name, size, task, flags)
            else:
                contestant = Graphed if name == recorded else Contestant
                theirs = contestant(build, batches, size, flags, peak.device)
            turns = {phase: [] for phase in steps}
            for _ in range(flags.repeats):
                for phase, n_steps in steps.items():
                    rate = peak.rate()
                    mine = ours.turn(phase, n_steps)
                    our_turns[phase].append(Turn(mine, rate))
                    turns[phase].append(Turn(theirs.turn(phase, n_steps), rate, mine))
            work = work_of(flags.window if name == windowed else 0)
            yield {"name": name, **summary(theirs, turns, work, by_cpu)}
        except torch.OutOfMemoryError:
            yield {"name": name, "error": "out of memory"}
        except GONE:
            yield {"name": name, "error": "its process has ended"}
    for phase, n_steps in steps.items():
        if not our_turns[phase]:  # there was no other, or each ran out of memory before
            for _ in range(flags.repeats):
                rate = peak.rate()
                our_turns[phase].append(Turn(ours.turn(phase, n_steps), rate))
    yield {"name": first, **summary(ours, our_turns, work_of(window=0), by_cpu)}


def summary(contestant, turns, work, by_cpu):
    """Return the medians over the turns, {phase: [Turn, ...]}, and the facts of a contestant."""
    rates = [turn.peak[by_cpu] for phase in turns for turn in turns[phase]]
    out = contestant.facts | {"matmul_gflops": statistics.median(rates) / 1e9}
    for phase, taken in turns.items():
        wall, cpu = (statistics.median(turn.seconds[i] for turn in taken) for i in (0, 1))
        flops = work["flops"] * (3 if phase == "train" else 1)
        out[phase] = {
            "tokens_per_second": work["tokens"] / wall,
            "cpu_seconds_per_million_tokens": 1e6 * cpu / work["tokens"],
            "share_of_peak": statistics.median(
                flops / turn.seconds[by_cpu] / turn.peak[by_cpu] for turn in taken
            ),
        }
        for i, name in enumerate(("ratio", "cpu_ratio") if taken[0].ours else ()):
            out[phase][name] = statistics.median(
                turn.seconds[i] / max(turn.ours[i], 1e-9) for turn in taken
            )
    return out
