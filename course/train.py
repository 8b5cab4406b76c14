"""Train the model of train_lm.py with your own functions in place of the reference's.

    python -m course.train answers/ --pos alibi --data speeches

Exercises 2, 3, 6 and 7 are used, with sinusoids also 4 and with ALiBi 5. Functions that are
missing, or fail, come from the reference. Both models start from the same weights and read the same
batches, so their gradients and losses should agree. A figure shows the attention of both.
"""

import copy
import math
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from course.exercises import answers_in
from course.explain import explain
from course.functions import gather, put_in
from data.batching import generator, random_blocks
from data.streams import read_text
from data.tokenizer import BOS
from lab.command import main
from lab.errors import UserError, require
from lab.figures import save
from lab.flags import flag
from lab.inside.heatmaps import Picture, draw_maps
from lab.machine import set_up_device
from lab.optim import learning_rate, make_adamw
from model import Config, Decoder, LanguageModel

SHOWN = 12  # tokens in the figure
GRADIENT, LOSS = 1e-4, 1e-3  # relative differences by rounding: at first, and in 200 steps


@dataclass
class Flags:
    folder: str = flag(None, "folder with your answers", positional=True)
    pos: str = flag("alibi", "position encoding", ("alibi", "sinusoidal", "learned", "nope"))
    data: str = flag("toy", "a corpus, as in train_lm.py, for example speeches")
    steps: int = flag(100, "number of updates", at_least=1, at_most=200)
    device, seed = "cpu", 0  # without a type, so these are not flags
    tokenizer, vocab_size, vocab_from, valid, split = "word", 0, "", 0.0, "full"  # for read_text


def train(flags):
    folder = answers_in(flags.folder)
    functions, written, faults = gather(folder, flags.pos)
    require((written, f"{folder}: none of these functions is written yet; write one, then train"))
    text = read_text(flags)
    ids, vocab_size = text.streams["train"], text.tokenizer.get_vocab_size()
    config = Config(vocab_size, n_ffn=100, pos=flags.pos, activation="relu")  # as in train_lm.py
    T = config.block_size
    require((len(ids) > T + 1, f"--data {flags.data}: has too little text for blocks of {T}"))
    set_up_device(flags, config)
    reference = LanguageModel(Decoder(config))
    yours = copy.deepcopy(reference)
    put_in(functions, yours.body)
    optimizers = [make_adamw(model, 1e-3, 0.01) for model in (yours, reference)]
    losses = []
    for step in range(flags.steps):
        x, y = random_blocks(ids, T, 16, generator(flags.seed, step))  # (B, T)
        x[0, 0] = BOS  # as at the start of a prompt
        theirs = reference.loss(x, y) / y.numel()
        theirs.backward()
        try:
            mine = functions.loss(yours(x), y.contiguous())
            mine.backward()
        except Exception as error:
            raise stopped(error, folder) from None
        losses.append((mine.item(), theirs.item()))
        if step == 0:
            gradients = compare_gradients(yours, reference)
        rate = learning_rate(step, flags.steps, 1e-3, 0, 0.5)
        for model, optimizer in zip((yours, reference), optimizers):
            for group in optimizer.param_groups:
                group["lr"] = rate
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % max(1, flags.steps // 5) == 0:
            said = "step {:>4}   your loss {:.4f}   the reference's {:.4f}"
            print(said.format(step + 1, *losses[-1]), flush=True)
    print(conclude(losses, gradients, faults))
    draw(folder / f"attention-{flags.pos}.png", text, yours, reference)


def stopped(error, folder):
    """Return a UserError that names the student's file in which an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    path = [folder, *(path for f in frames if (path := Path(f.filename)).parent == folder)][-1]
    problem = explain(error, path).rstrip(".")
    return UserError(f"training stops: {path}: {problem}; correct what the check finds")


def compare_gradients(yours, reference):
    """Return the largest relative difference of a parameter's gradient."""
    pairs = zip(yours.parameters(), reference.parameters())
    grads = ((torch.zeros_like(b) if a.grad is None else a.grad, b.grad) for a, b in pairs)
    return torch.stack([(a - b).norm() / b.norm() for a, b in grads]).max().item()  # NaN stays


def conclude(losses, gradients, faults):
    """Return a sentence on losses [(yours, reference)] and the difference of first gradients."""
    mine, theirs = torch.tensor(losses, dtype=torch.float64).T
    most = ((mine - theirs).abs() / theirs).max().item()  # NaN stays
    apart = f"the first gradients differ by {gradients:.1%}, the losses by at most {most:.2%}"
    rounding = gradients < GRADIENT and most < LOSS
    if faults:
        told = ". The losses alone would hardly show it" * (most < 0.01)
        if rounding:
            told = ": this training uses neither padding nor dropout, so the mistake may not matter"
        return f"With {' and '.join(faults)} wrong, {apart}{told}."
    if rounding:
        return f"Your model trains as the reference does: {apart}, which is rounding."
    return f"The check finds no mistake, but {apart}: is a function right for small sizes only?"


@torch.no_grad()
def draw(path, text, yours, reference):
    """Draw the attention of both models to the first tokens of the last text, side by side."""
    idx = list(text.streams.values())[-1][:SHOWN]
    words = [text.tokenizer.id_to_token(i) for i in idx.tolist()]
    future = torch.ones(len(idx), len(idx), dtype=torch.bool).triu(1)
    columns, shape = [], (len(idx), len(idx))
    for model, title in ((reference, "the reference's attention"), (yours, "your attention")):
        _, maps = model.body(idx[None], need_weights=True)
        if maps[0].shape != (1, model.body.config.n_head, *shape):
            print(f"Your attention is not drawn: its weights are {tuple(maps[0].shape)}")
            return
        weights = torch.stack(maps)[:, 0].float().masked_fill(future, math.nan)  # (L, H, T, T)
        columns.append([Picture([title], words, words, weights)])
    save(draw_maps(columns), path)
    print(f"The attention of both: {path}")


if __name__ == "__main__":
    main(train, Flags, __doc__)
