"""Draw where every attention head looks, and check that its weights are what attention promises.

    python attention_maps.py out/lm-speeches-alibi-0 --text "This is a test sentence"
    python attention_maps.py out/a out/b --positions

Several runs are drawn side by side. Layers and heads are counted from 1. The exit code is 1 when a check fails.
Attention weights show which vectors a head mixed; they do not explain why the model answered as it did.
"""

import math
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.colors import PowerNorm
from matplotlib.patches import Patch

import run as runs
from data import batching
from data.tokenizer import UNK, frame, token_strings
from plots import plt, save
from run import flag

TEXTS = ("This is a test sentence",
         "When the members of the Senate return to Washington in January, we will ask them to work with us on schools, jobs and peace.")
KINDS = {"lm": "causal LM", "mlm": "masked LM", "classifier": "classifier"}
GREY = "0.88"  # where a word may not look; no colour of the maps


@dataclass
class Flags:
    runs: list[str] = flag((), "run folders; several are drawn side by side", positional=True)
    text: list[str] = flag(TEXTS, "a sentence to look at; may be given several times (default: a short and a long one)")
    layer: int = flag(0, "draw only this layer, counted from 1; 0: all")
    head: int = flag(0, "draw only this head, counted from 1; 0: all")
    positions: bool = flag(False, "also draw what the model is told of positions: ALiBi's bias, the table, or the rotary angles")
    format: str = flag("png", "of the figures", ("png", "pdf", "svg"))
    out: str = flag("", "folder for the figures; empty: maps/ in the first run's folder")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


@dataclass
class Reading:
    """What a run made of B texts, padded to T tokens."""

    run: runs.LoadedRun
    words: list             # for each text its tokens as they are shown, without padding
    mask: torch.Tensor      # (B, T) bool, True for real tokens
    weights: torch.Tensor   # (L, B, H, T, T)
    checks: list            # {"check": what must hold, "worst": value seen, "limit": largest value allowed}
    heads: list             # what `summary` says of each head


def show(flags):
    device = runs.prepare(flags)
    loaded = [runs.load_run(folder, device=device) for folder in flags.runs]
    for run in loaded:
        L, H = run.model.body.config.n_layer, run.model.body.config.n_head
        runs.require((0 <= flags.layer <= L, f"--layer {flags.layer}: {run.folder} has layers 1 to {L}"),
                     (0 <= flags.head <= H, f"--head {flags.head}: {run.folder} has heads 1 to {H}"))

    readings = []
    for run in loaded:
        print(f"{run.folder}: {describe(run)}")
        idx, mask, words = read(run, flags.text)
        weights, checks = examine(run.model.body, idx.to(device), mask.to(device))
        readings.append(Reading(run, words, mask, weights, checks, summary(weights, mask)))
        report(readings[-1])

    folder = Path(flags.out) if flags.out else loaded[0].folder / "maps"
    folder.mkdir(parents=True, exist_ok=True)
    of_runs = "".join(f"-{short_name(run, loaded)}" for run in loaded) if len(loaded) > 1 else ""
    part = (f"-layer-{flags.layer}" if flags.layer else "") + (f"-head-{flags.head}" if flags.head else "")
    for number in range(len(flags.text)):
        draw_maps(folder / f"map-{number + 1}{part}{of_runs}.{flags.format}", readings, number, flags.layer, flags.head)
    for run in loaded if flags.positions else ():
        draw_positions(folder / f"positions{'-' + short_name(run, loaded) if of_runs else ''}.{flags.format}", run)
    runs.write_json(folder / f"maps{of_runs}.json", {"runs": [
        {"run": str(r.run.folder), "model": describe(r.run), "texts": r.words, "checks": finite(r.checks), "heads": finite(r.heads)}
        for r in readings]})
    print(f"figures and maps{of_runs}.json are in {folder}")
    if not all(holds(check) for reading in readings for check in reading.checks):
        raise SystemExit(1)


def describe(run):
    """The run's model in a few words, for headings."""
    config = run.model.body.config
    variant = f" ({config.alibi})" if config.pos == "alibi" and not run.model.body.causal else ""
    of = " on a decoder" if run.kind == "classifier" and run.model.body.causal else ""
    return f"{KINDS[run.kind]}{of}, pos={config.pos}{variant}" + (f", window={config.window}" if config.window else "")


def short_name(run, loaded):
    """The name of a run's folder, with that of the folder above where two runs share it."""
    parts = run.folder.resolve().parts
    shared = sum(other.folder.resolve().name == parts[-1] for other in loaded) > 1
    return "-".join(parts[-2:]) if shared else parts[-1]


# ---------------------------------------------------------------------------- computing


def read(run, texts):
    """Texts as the run reads them: idx (B, T), mask (B, T), and each text's tokens as they are shown.

    A word that is not in the vocabulary is shown as it was typed, with a star.
    """
    sequences, shown, block_size = [], [], run.model.body.config.block_size
    for number, text in enumerate(texts, 1):
        encoding = run.tokenizer.encode(text, add_special_tokens=False)
        runs.require((encoding.ids, f"--text {text!r}: holds no word; give a sentence"))
        typed = [text[start:end] for start, end in encoding.offsets]
        words = [word + "*" if i == UNK and word != "[UNK]" else token
                 for i, word, token in zip(encoding.ids, typed, token_strings(run.tokenizer, encoding.ids))]
        around = len(frame(run.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
        ids = frame(run.tokenizer, encoding.ids[: block_size - around])
        words = ["[BOS]", *words[: block_size - around], *["[EOS]"] * (around - 1)]
        if len(encoding.ids) + around > block_size:
            print(f"  note: text {number} has {len(encoding.ids) + around} tokens with {' and '.join(['[BOS]', '[EOS]'][:around])} and is cut to {block_size}, the trained block size")
        if UNK in ids:
            unknown = [word for i, word in zip(ids, words) if i == UNK]
            print(f"  note: text {number}: {len(unknown)} of {len(ids) - around} tokens unknown to this run, read as [UNK]: {' '.join(unknown)}")
        sequences.append(torch.tensor(ids))
        shown.append(words)
    return *batching.pad(sequences), shown


def steps_ahead(T):
    """(T, T): how many tokens column j is ahead of row i, negative towards the past."""
    return torch.arange(T)[None, :] - torch.arange(T)[:, None]


def allowed(body, T):
    """(H, T, T) bool, True where row i may look at column j. From the definitions: model.py's tables are what is checked."""
    config, ahead = body.config, steps_ahead(T)
    may = (ahead <= 0 if body.causal else ahead <= T).repeat(config.n_head, 1, 1)
    if config.window:
        may &= ahead.abs() < config.window
    if config.pos == "alibi" and config.alibi == "one-sided" and not body.causal:
        may[: config.n_head // 2] &= ahead <= 0
        may[config.n_head // 2 :] &= ahead >= 0
    return may


def slope(body, head):
    """ALiBi's slope of a head counted from 0: 2^(-8 (head + 1) / n) for n heads, n a power of two; else as Press et al. fill up."""
    n = body.config.n_head
    if body.config.alibi == "one-sided" and not body.causal:
        n, head = n // 2, head % (n // 2)
    power = 2 ** (n.bit_length() - 1)
    return 2.0 ** (-8 * (head + 1) / power if head < power else -4 * (2 * (head - power) + 1) / power)


@torch.no_grad()
def examine(body, idx, mask):
    """idx, mask (B, T) -> the explicit attention's weights (L, B, H, T, T), on the CPU, and a list of checks."""
    inputs = []  # of each layer's attention, (B, T, C)
    hooks = [block.attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0])) for block in body.blocks]
    h, maps = body(idx, mask, need_weights=True)
    for hook in hooks:
        hook.remove()
    fused = body(idx, mask)
    alone = [body(idx[b : b + 1, :n])[0] - h[b, :n] for b, n in enumerate(mask.sum(1).tolist())]
    weights, ahead, may = torch.stack(maps), steps_ahead(idx.size(1)).to(idx.device), allowed(body, idx.size(1)).to(idx.device)
    real = mask[:, None, :, None]  # rows of real tokens, (B, 1, T, 1)

    checks = []

    def check(what, values, where, limit=0.0):
        checks.append({"check": what, "worst": torch.where(where, values, 0).abs().max().item(), "limit": limit})

    check("rows sum to 1", weights.sum(-1, keepdim=True) - 1, real, 1e-5)
    if not mask.all():
        check("no weight on padding", weights, real & ~mask[:, None, None, :])
    if body.causal:
        check("nothing above the diagonal", weights, real & (ahead > 0))
    if body.config.window:
        check(f"nothing {body.config.window} or more tokens away", weights, real & (ahead.abs() >= body.config.window))
    if (may != may[0]).any():
        check("each half of the heads looks one way", weights, real & ~may)
    check("fused attention gives the same output", fused - h, mask[:, :, None], 1e-4)
    check("each text alone gives the same output", torch.cat(alone), torch.tensor(True, device=idx.device), 1e-4)
    if body.config.pos == "alibi":
        nearer = 0.5 if body.config.alibi == "offset" and not body.causal else 0.0
        bias = torch.stack([-slope(body, head) * (ahead.abs() - nearer * (ahead > 0)) for head in range(len(may))])  # (H, T, T)
        added = torch.stack([added_to_scores(block.attention, x, w) for block, x, w in zip(body.blocks, inputs, weights)])
        most = weights.argmax(-1, keepdim=True)
        wrong = added - added.gather(-1, most) - (bias - bias.expand_as(weights).gather(-1, most))
        # A smaller weight is too rough to take the logarithm of; written with ~ so that NaN counts as wrong.
        check("the weights hold -slope * distance", wrong, real & mask[:, None, None, :] & may & ~(weights < 1e-30), 1e-3)
    return weights.float().cpu(), checks


def added_to_scores(attention, x, weights):
    """What was added to q k^T / sqrt(D), told from the input x (B, T, C) and the weights (B, H, T, T) that came of it.

    (B, H, T, T), each row up to a constant, since a softmax does not show it.
    """
    B, T, C = x.shape
    D = C // attention.n_head
    q, k, _ = attention.qkv(x).view(B, T, 3, attention.n_head, D).permute(2, 0, 3, 1, 4)  # 3 of (B, H, T, D)
    return weights.log() - q @ k.transpose(-2, -1) / math.sqrt(D)


def summary(weights, mask):
    """weights (L, B, H, T, T), mask (B, T) -> one dictionary a head, its means over the real tokens of all texts."""
    values = {"distance": (weights * steps_ahead(mask.size(1)).abs()).sum(-1), "first": weights[..., 0],
              "itself": weights.diagonal(dim1=-2, dim2=-1), "entropy": torch.special.entr(weights).sum(-1)}  # each (L, B, H, T)
    means = {name: (value * mask[:, None, :]).sum((1, 3)) / mask.sum() for name, value in values.items()}  # each (L, H)
    return [{"layer": layer + 1, "head": head + 1} | {name: round(mean[layer, head].item(), 4) for name, mean in means.items()}
            for layer in range(weights.size(0)) for head in range(weights.size(2))]


def holds(check):
    return check["worst"] <= check["limit"]  # false for NaN


def finite(rows):
    """Dictionaries for a JSON file, which has no word for NaN or infinity."""
    return [{key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()} for row in rows]


def report(reading):
    """Print the checks, then the table of heads and what equal weights would give."""
    for check in reading.checks:
        print(f"  {'ok  ' if holds(check) else 'FAIL'}  {check['check']:<38} worst {check['worst']:.1e}, limit {check['limit']:.0e}")
    even = (allowed(reading.run.model.body, reading.mask.size(1)) & reading.mask[:, None, None, :]).float()  # (B, H, T, T)
    even = summary((even / even.sum(-1, keepdim=True).clamp(min=1))[None], reading.mask)
    even = {name: sum(head[name] for head in even) / len(even) for name in even[0]} | {"layer": "equal", "head": ""}
    print(f"  where the {int(reading.mask.sum())} tokens ([BOS] is the first) look, on average: how many tokens away, how much at the first and at themselves,\n"
          "  and how evenly (entropy in nats); last row: if all weights were equal\n"
          "  layer  head  distance   first  itself  entropy")
    for row in [*reading.heads, even]:
        print(f"  {row['layer']:>5}  {row['head']:>4}  {row['distance']:8.2f}  {row['first']:6.1%}  {row['itself']:6.1%}  {row['entropy']:7.2f}")


# ---------------------------------------------------------------------------- drawing


def draw_maps(path, readings, number, layer, head):
    """Text `number` of every reading: a group of columns a run, in it a row a layer and a column a head; 0 means all.

    The figure is 1 x 1 inch, so that places are in inches, and grows to its contents when it is saved.
    """
    longest = max(len(reading.words[number]) for reading in readings)
    pitch = max(0.13, min(0.3, 2.0 / longest)) if longest <= 64 else 8.0 / longest  # height of a token's row
    every = math.ceil(longest / 64)  # beyond that not every token can be named
    size = min(8.0, 54 * pitch * every)
    colours = plt.get_cmap("Blues").with_extremes(bad=GREY)
    figure, left, bottom, greyed = plt.figure(figsize=(1, 1)), 0.0, 0.0, False
    for reading in readings:
        words = [word if len(word) <= 14 else word[:13] + "…" for word in reading.words[number]]
        T, named = len(words), range(0, len(words), every)
        weights = reading.weights[:, number, :, :T, :T]
        forbidden = ~allowed(reading.run.model.body, T) & (weights == 0)  # what leaks there must be seen
        weights, greyed = weights.masked_fill(forbidden, math.nan), greyed or forbidden.any()
        layers, heads = ([chosen - 1] if chosen else range(n) for chosen, n in zip((layer, head), (weights.size(0), weights.size(1))))
        side = max(1.0, pitch * T)
        left += max(map(len, words)) * size * 0.6 / 72 + 0.3  # room for the words of the rows
        for row, i in enumerate(layers):
            for column, j in enumerate(heads):
                axis = figure.add_axes([left + column * (side + 0.15), -(row + 1) * (side + 0.3), side, side])
                image = axis.imshow(weights[i, j].numpy(), cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
                axis.set_title(f"layer {i + 1}, head {j + 1}", fontsize=8, pad=3)
                axis.grid(False)
                axis.tick_params(length=0, pad=2)
                below, beside = row == len(layers) - 1, column == 0
                axis.set_xticks(named, [words[t] if below else "" for t in named], fontsize=size, rotation=90, parse_math=False)
                axis.set_yticks(named, [words[t] if beside else "" for t in named], fontsize=size, parse_math=False)
                axis.set_xlabel("looks at" if below else "", fontsize=8)
                axis.set_ylabel("this word" if beside else "", fontsize=8)
        width = len(heads) * (side + 0.15) - 0.15
        heading = [short_name(reading.run, [r.run for r in readings]), describe(reading.run)]
        figure.text(left + width / 2, -0.08, "\n".join(textwrap.fill(line, max(16, int(width / 0.075))) for line in heading),
                    ha="center", va="bottom", fontsize=9, parse_math=False)
        left, bottom = left + width + 0.15, min(bottom, -len(layers) * (side + 0.3))
    bottom = max(bottom, -2.6)
    bar = figure.add_axes([left + 0.1, bottom, 0.12, -bottom - 0.3])
    figure.colorbar(image, cax=bar, ticks=[0, 0.05, 0.2, 0.5, 1]).set_label("attention weight", fontsize=8)
    bar.tick_params(labelsize=7)
    starred = any(word.endswith("*") for reading in readings for word in reading.words[number])
    key = [Patch(color=GREY, label="not allowed")] * bool(greyed) + [Patch(alpha=0, label="* unknown word")] * starred
    if key:
        figure.legend(handles=key, loc="upper left", fontsize=7, handlelength=1, borderpad=0, bbox_to_anchor=(left, bottom - 0.05))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # a letter the font lacks is drawn as a box, which says enough
        save(figure, path)


def draw_positions(path, run):
    """What the model is told of the positions it was trained with; for NoPE a line of text instead of a figure."""
    body, config, T = run.model.body, run.model.body.config, run.model.body.config.block_size
    if config.pos == "nope":
        print(f"{run.folder}: pos=nope tells the model nothing of positions, so there is nothing to draw")
        return
    if config.pos == "alibi":
        bias = body.attention_bias(T)[0].cpu()
        lowest = bias[bias.isfinite()].min().item()
        panels = [(f"bias of head {h + 1}, slope {slope(body, h):.3g}", table, "looks at position", (lowest, 0)) for h, table in enumerate(bias)]
    else:
        if config.pos == "rope":
            angles = body.table("angles", T).cpu()  # (T, D / 2)
            vectors = torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(angles.size(1))  # of length 1
            first, second = ("cosine of the rotary angle", angles.cos(), "pair of channels"), "q · k of equal vectors, turned"
        else:
            vectors = (body.positions.weight if config.pos == "learned" else body.table("sinusoids", T)).detach().cpu()  # (T, C)
            first, second = (f"{config.pos} table", vectors, "channel"), "dot product of two positions"
        largest, alike = first[1].abs().max().item(), vectors @ vectors.T
        panels = [(*first, (-largest, largest)), (second, alike, "position", (alike.min().item(), alike.max().item()))]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained", figsize=(3 * columns + 0.8, 2.8 * rows + 0.4))
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, table, xlabel, (low, high)) in zip(axes.flat, panels):
        colours = plt.get_cmap("RdBu_r" if low == -high else "viridis").with_extremes(bad=GREY)  # white is zero
        image = axis.imshow(table.masked_fill(table.isinf(), math.nan).numpy(), cmap=colours, vmin=low, vmax=high, aspect="auto",
                            interpolation="nearest", extent=(0.5, table.size(1) + 0.5, T + 0.5, 0.5))  # counted from 1
        axis.set_title(title, fontsize=9)
        axis.set(xlabel=xlabel, ylabel="position")
        axis.grid(False)
        figure.colorbar(image, ax=axis)
    note = "; grey: not allowed" if any(table.isinf().any() for _, table, *_ in panels) else ""
    figure.suptitle(f"{run.folder.resolve().name}: {describe(run)}{note}", fontsize=10, parse_math=False)
    save(figure, path)


if __name__ == "__main__":
    runs.main(show, Flags, __doc__.split("\n")[0])
