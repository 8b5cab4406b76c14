"""Draw the lecture's two complaints about recurrent networks, beside attention.

    python train_lm.py --body lstm --n-layer 2 --n-embd 128 --lr 3e-3 --out out/recurrence/lstm
    python train_lm.py --pos alibi --out out/recurrence/alibi
    python -m studies.recurrence out/recurrence/lstm out/recurrence/alibi

What is far is hard to reach: the gradient of the loss at the last token of a block, by the vector
of each token before it, as a share of the gradient by the last one's own vector. And a recurrent
network must take one step after the other: the time of a training step for texts of one batch, by
their length, on a CPU thread.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

from data.batching import generator
from data.text import read_text
from lab import figures
from lab.flags import main, require
from lab.load import read_run
from lab.machine import set_up_device
from nets.build import build_model
from studies.sweep import finish

LENGTHS = (32, 64, 128, 256, 512, 1024)  # tokens of the texts that are timed
TIMES = 5  # steps of each length, of which the fastest counts


@dataclass
class Flags:
    runs: tyro.conf.Positional[list[str]]  # run folders of train_lm.py on texts
    data: str = ""  # corpus to read; '': each run's own
    blocks: int = 200  # blocks of the gradients
    batch_size: int = 4  # texts of a timed step
    seed: int = 0  # seed of the blocks
    out: str = ""  # folder of the results; '': recurrence/ beside the first run


def study(flags):
    out = Path(flags.out or Path(flags.runs[0]).parent / "recurrence").expanduser()
    set_up_device("cpu", threads=1)
    gradients = {}  # label: (distances, share of the gradient)
    seconds = {}  # label: (lengths, seconds per step)
    for folder in flags.runs:
        run = read_run(folder, ("lm",))
        label = figures.name_positions(run.model.body.config)
        require(label not in gradients, f"{folder}: a second run of {label}; give one of each")
        print(f"measuring {folder}", flush=True)
        shares = gradient_shares(run, flags)
        gradients[label] = list(range(len(shares))), shares
        lengths = readable_lengths(run.model.body)
        seconds[label] = lengths, [time_step(run, length, flags) for length in lengths]
    out.mkdir(parents=True, exist_ok=True)
    panels = [
        figures.Panel("Reach", "share of the gradient", gradients, log=True),
        figures.Panel("Time", "seconds per step", seconds, log=True),
    ]
    figure = figures.curves(panels, "tokens")
    figure.axes[0].set_xlabel("tokens back")
    figure.axes[1].set_xlabel("tokens of a text")
    figures.set_lengths(figure.axes[1], LENGTHS)
    figures.save(figure, out / "recurrence.png")
    finish(out, {"gradients": gradients, "seconds": seconds})


def gradient_shares(run, flags):
    """Return by how many tokens back, 0, 1, 2, ..., the length of the gradient of the last token's
    loss, summed over blocks and over that of 0 tokens back: T numbers."""
    T = run.model.body.config.block_size
    text = read_text(flags.data or run.config["flags"]["data"], run.tokenizer)
    gen = generator("recurrence", flags.seed)
    idx, targets = text.batch(T, flags.blocks, gen)  # (n, T)
    targets = targets.clone()  # it shares its memory with idx
    targets[:, :-1] = -100  # only the last token's loss
    vectors = []

    def keep_vectors(embedding, args, output):
        output.retain_grad()
        vectors.append(output)

    handle = run.model.body.embedding.register_forward_hook(keep_vectors)
    run.model.loss(idx, targets).backward()
    handle.remove()
    lengths = vectors[0].grad.norm(dim=-1).mean(0).flip(0)  # (T,), the last token first
    return (lengths / lengths[0]).tolist()


def readable_lengths(body):
    """Return those LENGTHS that a body can read."""
    if body.positions.ends:
        return [length for length in LENGTHS if length <= body.config.block_size]
    return list(LENGTHS)


def time_step(run, length, flags):
    """Return the seconds of a training step, forward and backward, for texts of a length."""
    model = build_model("lm", run.model.body.config)
    gen = generator("recurrence", length)
    shape = (flags.batch_size, length)
    idx = torch.randint(len(model.body.embedding.weight), shape, generator=gen)
    durations = []
    for _ in range(TIMES):
        model.zero_grad()
        start = time.perf_counter()
        model.loss(idx, idx).backward()
        durations.append(time.perf_counter() - start)
    return min(durations)


if __name__ == "__main__":
    main(study, Flags)
