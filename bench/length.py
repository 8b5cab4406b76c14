"""Measure time and memory per token as sequences and models grow.

    python -m bench.length --out length.png

A decoder is trained on the same number of tokens per step, in ever fewer and longer sequences. Only
the cost of attention grows with the length T: every token has T scores in every head. The limit
drawn beside each line is the time that the matrix products alone would take on this machine.
"""

import statistics
import types
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from bench import measure
from data.files import write_json
from lab import figures
from lab.command import main, typed_command
from lab.errors import require
from lab.flags import flag, known_names, whole_numbers
from lab.folder import check_folder_of
from lab.machine import cores, git_revision, set_up_device, versions
from lab.optim import make_adamw
from model import POSITIONS, Config, Decoder, LanguageModel

HEADER = (
    f"{'width':>6} {'pos':<11}{'length':>7} {'us/token':>11} {'limit':>8} {'KB/token':>11}   "
    "attention's share of FLOPs, of time"
)


@dataclass
class Flags:
    out: str = flag("length.png", "the figure; the numbers go beside it, as JSON")
    lengths: str = flag("128,256,512,1024,2048,4096,8192", "tokens per sequence, comma-separated")
    widths: str = flag("128,512", "n_embd, comma-separated; heads are 64 wide")
    positions: str = flag("learned,nope,alibi", "comma-separated")
    n_layer: int = flag(2, "number of blocks", at_least=1)
    vocab_size: int = flag(2000, "size of the vocabulary", at_least=6)
    tokens: int = flag(8192, "tokens per step; a longer sequence is a step of its own", at_least=1)
    repeats: int = flag(3, "steps per measurement; the median is drawn", at_least=1)
    threads: int = flag(1, "CPU threads; 0: all cores", at_least=0, at_most=4096)


def measure_lengths(flags):
    lengths, widths, positions = check(flags)
    threads = flags.threads or cores()
    device = set_up_device(types.SimpleNamespace(device="cpu", threads=threads))
    by_cpu = torch.get_num_threads() == 1  # CPU time leaves out the waiting for a busy core
    peak = measure.MatmulPeak(device, torch.float32)
    out, rows = Path(flags.out), []
    described = {
        "command": typed_command(flags),
        "revision": git_revision(),
        "versions": versions(),
        "clock": "CPU" if by_cpu else "wall",
    }
    # Warm-up: the first measurement of a process also pays for the libraries' buffers
    cost(flags, widths[0], lengths[0], 1, positions[0], peak, by_cpu)
    print(HEADER)
    for C, T, pos in ((C, T, pos) for C in widths for T in lengths for pos in positions):
        B = max(1, flags.tokens // T)
        row = {"width": C, "pos": pos, "length": T, "batch_size": B}
        row |= cost(flags, C, T, B, pos, peak, by_cpu)
        rows.append(row)
        memory = f"{row['kilobytes']:,.0f}" if row["kilobytes"] is not None else "?"
        print(
            f"{C:>6} {pos:<11}{T:>7} {row['microseconds']:11.1f} "
            f"{row['limit_microseconds']:8.1f} {memory:>11}   "
            f"{row['attention_flops']:.0%}, {row['attention_time']:.0%}",
            flush=True,
        )
        write_json(out.with_suffix(".json"), described | {"rows": rows})
    draw(out, rows, widths, positions, lengths)
    print(out)


def cost(flags, C, T, B, pos, peak, by_cpu):
    """Return the cost of a training step per token, in a dictionary.

    microseconds, and those of its matrix products alone; kilobytes beyond the weights and the
    optimizer's two moments of each; attention's share of FLOPs and of time.
    """
    torch.manual_seed(0)
    memory = measure.PeakMemory(peak.device)
    shape = dict(n_layer=flags.n_layer, n_head=C // 64, n_embd=C)
    config = Config(vocab_size=flags.vocab_size, block_size=T, pos=pos, **shape)
    model = LanguageModel(Decoder(config))
    optimizer = make_adamw(model, 1e-4, 0.01)
    idx = torch.randint(5, flags.vocab_size, (B, T + 1))

    def step():
        (model.loss(idx[:, :-1], idx[:, 1:]) / (B * T)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(), step()  # the first makes ALiBi's bias and the optimizer's moments
    used, n = memory.megabytes(), sum(p.numel() for p in model.parameters())
    # Without weights and Adam's averages, which take 12 bytes per weight
    kilobytes = None if used is None else 1024 * used - 12 * n / 1024
    flops = measure.forward_flops(config, "causal", B, T, B * T)
    times, limits = [], []
    for _ in range(flags.repeats):
        limits.append(3 * sum(flops.values()) / peak.rate()[by_cpu])
        times.append(measure.timed(step, 1, peak.device)[by_cpu])
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


# ---------------------------------------------------------------------------- the figure

STYLES = (("-", "o"), ("--", "s"), (":", "x"), ("-.", "^"))  # line style and marker by width


@figures.styled()
def draw(path, rows, widths, positions, lengths):
    """Draw time per token, memory per token and attention's share of the time over the length.

    A position encoding has a color, a width a line style. Broad gray bands are the limits.
    """
    figure, axes = figures.new_figure(1, 3, figsize=(12, 3.6))
    for i, C in enumerate(widths):
        dashes, marker = STYLES[i % len(STYLES)]
        style = dict(linestyle=dashes, marker=marker, markersize=3.5, linewidth=1.3)
        for pos in positions:
            of = [row for row in rows if (row["width"], row["pos"]) == (C, pos)]
            line = style | {"color": figures.POSITION_COLORS[pos]}
            label = f"{figures.POSITION_NAMES[pos]}, width {C}"
            axes[0].plot(lengths, [row["microseconds"] for row in of], label=label, **line)
            if all(row["kilobytes"] is not None for row in of):
                axes[1].plot(lengths, [row["kilobytes"] for row in of], **line)
            axes[2].plot(lengths, [100 * row["attention_time"] for row in of], **line)
        # The limit of a width is the same for all position encodings
        band = dict(color="0.85", linewidth=6, zorder=0)
        limits = [row["limit_microseconds"] for row in of]
        label = "left: matrix products alone\nright: share of FLOPs" if C == widths[-1] else ""
        axes[0].plot(lengths, limits, label=label, **band)
        axes[2].plot(lengths, [100 * row["attention_flops"] for row in of], **band)
    panels = (
        ("Training time per token", "microseconds"),
        ("Training memory per token", "kilobytes"),
        ("Attention's share of training time", "%"),
    )
    for axis, (title, ylabel) in zip(axes, panels):
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [str(T) for T in lengths], fontsize=7.5)
        axis.set(title=title, xlabel="sequence length (tokens)", ylabel=ylabel)
        if ylabel != "%":
            axis.set_yscale("log")
            figures.plain_log_ticks(axis)
    axes[2].set_ylim(0, 100)
    figure.legend(loc="outside right center", fontsize=8)
    figures.save(figure, path)


# ---------------------------------------------------------------------------- flags


def check(flags):
    """Return the lengths, widths and positions. Raise UserError for invalid flags."""
    lengths, widths = whole_numbers(flags, "lengths"), whole_numbers(flags, "widths")
    positions, out = known_names(flags, "positions", POSITIONS), Path(flags.out)
    heads = f"--widths {flags.widths}: must be multiples of 64, the width of a head"
    require(
        (lengths and min(lengths) > 0, f"--lengths {flags.lengths}: must be at least 1 each"),
        (widths and all(C > 0 and C % 64 == 0 for C in widths), heads),
        (out.suffix in (".png", ".pdf", ".svg"), f"--out {out}: must end in .png, .pdf or .svg"),
    )
    check_folder_of(out)
    return lengths, widths, positions


if __name__ == "__main__":
    main(measure_lengths, Flags, __doc__)
