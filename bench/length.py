"""Time and memory a token as sequences and models grow, beside the least that the machine's matrix products allow.

    python -m bench.length --out length.png

A decoder is trained on the same number of tokens a step in ever fewer, longer sequences. What a token costs beyond its
own matrices is attention: a row of T scores in every head, so that cost grows with T from where that outweighs the rest.
"""

import os
import shlex
import statistics
import sys
import types
from dataclasses import dataclass
from pathlib import Path

# Read with torch: its profiler would otherwise say on stderr that it starts and stops
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import torch  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from bench import measure  # noqa: E402
from data.files import write_json
from lab import figures
from lab.command import main
from lab.errors import UserError, require
from lab.flags import flag
from lab.machine import git_revision, prepare, versions
from lab.optim import make_optimizer
from model import POSITIONS, Config, Decoder, LanguageModel  # noqa: E402


@dataclass
class Flags:
    out: str = flag("length.png", "the figure; the numbers go beside it, as JSON")
    lengths: str = flag("128,256,512,1024,2048,4096,8192", "tokens a sequence, joined by commas")
    widths: str = flag("128,512", "n_embd, multiples of 64 (the width of a head), joined by commas")
    positions: str = flag("learned,nope,alibi", "joined by commas")
    n_layer: int = flag(2, "number of blocks")
    vocab_size: int = flag(2000, "size of the vocabulary")
    tokens: int = flag(8192, "a step, at least; longer sequences are alone in theirs")
    repeats: int = flag(3, "steps of each, of which the median is drawn")
    threads: int = flag(1, "CPU threads; 0: all cores")


def measure_lengths(flags):
    lengths, widths, positions = check(flags)
    device = prepare(
        types.SimpleNamespace(device="cpu", threads=flags.threads or os.cpu_count(), seed=0)
    )
    by_cpu = (
        torch.get_num_threads() == 1
    )  # CPU seconds are not lengthened by waiting for a busy core
    peak = measure.MatmulPeak(device, torch.float32)
    rows, out, described = (
        [],
        Path(flags.out),
        {
            "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
            "revision": git_revision(),
            "versions": versions(),
            "clock": "CPU" if by_cpu else "wall",
        },
    )
    # The first of a process also pays for the libraries' buffers
    cost(flags, widths[0], lengths[0], 1, positions[0], device, peak, by_cpu)
    print(
        f"{'width':>6} {'pos':<11}{'length':>7} {'us a token':>11} {'limit':>8} {'KB a token':>11}   "
        "attention's share of FLOPs, of time"
    )
    for C in widths:
        for T in lengths:
            for pos in positions:
                B = max(1, flags.tokens // T)
                row = {
                    "width": C,
                    "pos": pos,
                    "length": T,
                    "batch_size": B,
                    **cost(flags, C, T, B, pos, device, peak, by_cpu),
                }
                rows.append(row)
                memory = f"{row['kilobytes']:,.0f}" if row["kilobytes"] is not None else "?"
                print(
                    f"{C:>6} {pos:<11}{T:>7} {row['microseconds']:11.1f} {row['limit_microseconds']:8.1f} {memory:>11}   "
                    f"{row['attention_flops']:.0%}, {row['attention_time']:.0%}",
                    flush=True,
                )
                write_json(out.with_suffix(".json"), described | {"rows": rows})
    draw(out, rows, widths, positions, lengths)
    print(out)


def cost(flags, C, T, B, pos, device, peak, by_cpu):
    """What a training step costs a token: microseconds, those of its matrix products at the machine's rate, and
    kilobytes of memory beyond the weights and the optimiser's two moments of each."""
    torch.manual_seed(0)
    memory = measure.PeakMemory(device)
    config = Config(
        vocab_size=flags.vocab_size,
        block_size=T,
        n_layer=flags.n_layer,
        n_head=C // 64,
        n_embd=C,
        pos=pos,
    )
    model = LanguageModel(Decoder(config))
    optimizer = make_optimizer(model, 1e-4, 0.01)
    idx = torch.randint(5, flags.vocab_size, (B, T + 1))

    def step():
        (model.loss(idx[:, :-1], idx[:, 1:]) / (B * T)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(), step()  # the first makes ALiBi's bias and the optimiser's moments
    kilobytes = memory.megabytes()
    if kilobytes is not None:
        kilobytes = 1024 * kilobytes - 12 * sum(p.numel() for p in model.parameters()) / 1024
    flops = measure.forward_flops(config, "causal", B, T, B * T)
    times, limits = [], []
    for _ in range(flags.repeats):
        limits.append(3 * sum(flops.values()) / peak.rate()[by_cpu])
        times.append(measure.timed(step, 1, device)[by_cpu])
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    spent = {event.key: event.self_cpu_time_total for event in profiled.key_averages()}
    attention = sum(time for name, time in spent.items() if "scaled_dot_product" in name)
    return {
        "microseconds": 1e6 * statistics.median(times) / (B * T),
        "limit_microseconds": 1e6 * statistics.median(limits) / (B * T),
        "kilobytes": kilobytes and kilobytes / (B * T),
        "attention_flops": flops["attention"] / sum(flops.values()),
        "attention_time": attention / sum(spent.values()),
    }


@figures.styled
def draw(path, rows, widths, positions, lengths):
    """Three panels over length: time and memory a token, and attention's share. Colour: width; line: position."""
    figure, axes = figures.new_figure(1, 3, figsize=(12, 3.6), layout="constrained")
    for i, C in enumerate(widths):
        of = {
            pos: [row for row in rows if (row["width"], row["pos"]) == (C, pos)]
            for pos in positions
        }
        for pos, dashes, marker in zip(positions, ("-", ":", "--", "-.", (0, (1, 3))), "osx^D"):
            style = dict(
                color=f"C{i}", linestyle=dashes, marker=marker, markersize=3.5, linewidth=1.3
            )
            axes[0].plot(
                lengths, [row["microseconds"] for row in of[pos]], label=f"{pos}, {C} wide", **style
            )
            if all(row["kilobytes"] is not None for row in of[pos]):
                axes[1].plot(lengths, [row["kilobytes"] for row in of[pos]], **style)
            axes[2].plot(lengths, [100 * row["attention_time"] for row in of[pos]], **style)
        limit = dict(color=f"C{i}", linewidth=5, alpha=0.25, zorder=0)
        axes[0].plot(
            lengths,
            [row["limit_microseconds"] for row in of[positions[0]]],
            label=f"limit, {C} wide",
            **limit,
        )
        axes[2].plot(lengths, [100 * row["attention_flops"] for row in of[positions[0]]], **limit)
    for axis, title, ylabel in zip(
        axes,
        (
            "Time: training, a token",
            "Memory: training, a token",
            "Attention's share of the time (bands: limit)",
        ),
        ("microseconds", "kilobytes", "%"),
    ):
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [str(T) for T in lengths], fontsize=7.5)
        axis.set(title=title, xlabel="tokens a sequence", ylabel=ylabel)
        if ylabel != "%":
            axis.set_yscale("log")
            figures.plain_log_ticks(axis)
    axes[2].set_ylim(0, 100)
    figure.legend(loc="outside right center", fontsize=8)
    figures.save(figure, path)


def check(flags):
    """Lengths, widths and positions. UserError for what cannot be measured."""

    def numbers(name):
        text = getattr(flags, name)
        try:
            return [int(value) for value in text.split(",")]
        except ValueError:
            raise UserError(f"--{name} {text}: must be numbers joined by commas") from None

    lengths, widths, positions = numbers("lengths"), numbers("widths"), flags.positions.split(",")
    require(
        (all(T > 0 for T in lengths), f"--lengths {flags.lengths}: must be at least 1 each"),
        (
            all(C > 0 and C % 64 == 0 for C in widths),
            f"--widths {flags.widths}: must be multiples of 64, the width of a head",
        ),
        (
            set(positions) <= set(POSITIONS),
            f"--positions {flags.positions}: must be of {', '.join(POSITIONS)}, joined by commas",
        ),
        *(
            (
                getattr(flags, name) > 0,
                f"--{name.replace('_', '-')} must be at least 1, got {getattr(flags, name)}",
            )
            for name in ("n_layer", "tokens", "repeats")
        ),
        (flags.vocab_size > 5, f"--vocab-size must be at least 6, got {flags.vocab_size}"),
        (flags.threads >= 0, f"--threads must not be negative, got {flags.threads}"),
        (
            Path(flags.out).suffix not in ("", ".json"),
            f"--out {flags.out}: must end in .png or another ending of figures",
        ),
        (
            Path(flags.out).parent.is_dir(),
            f"--out {flags.out}: there is no folder {Path(flags.out).parent}; make it",
        ),
    )
    return sorted(set(lengths)), widths, positions


if __name__ == "__main__":
    main(measure_lengths, Flags, __doc__.split("\n")[0])
