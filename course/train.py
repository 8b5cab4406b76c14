"""Train the model of train_lm.py with your own functions in place of the reference's.

    python -m course.train answers/ --pos alibi --data speeches

Exercises 2, 3, 6 and 7 are used, with sinusoids 4 and with ALiBi 5. What is not written yet, or
fails, is the reference's. Both models start from the same weights and read the same batches, so the
losses should agree. A figure shows the attention of both.
"""

import copy
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.nn.utils import clip_grad_norm_

from course.exercises import EXERCISES, file_name, make_sheet
from course.judge import judge_function, load
from data.batching import generator, random_blocks
from data.streams import read_text
from data.tokenizer import BOS
from lab.command import main
from lab.errors import UserError, require
from lab.figures import save
from lab.flags import flag
from lab.inside.heatmaps import draw_maps
from lab.machine import set_up_device
from lab.optim import learning_rate, make_adamw
from model import Config, Decoder, LanguageModel

USED = {  # function: its exercise
    **{"attend": "attention", "split_heads": "heads", "join_heads": "heads", "block": "block"},
    **{"loss": "perplexity", "sinusoids": "sinusoids", "causal_bias": "alibi"},
}
ONLY_FOR = {"sinusoids": "sinusoidal", "causal_bias": "alibi"}
GRADIENT, LOSS = 1e-4, 1e-3  # relative differences by rounding: at first, and in 200 steps


@dataclass
class Flags:
    folder: str = flag(None, "folder with your answers", positional=True)
    pos: str = flag("alibi", "position encoding", ("alibi", "sinusoidal", "learned", "nope"))
    data: str = flag("toy", "a corpus, as in train_lm.py, for example speeches")
    steps: int = flag(100, "number of updates", at_least=1, at_most=200)
    seed: int = flag(0, "seed of the weights and batches")
    tokens: int = flag(12, "tokens of the text in the figure", at_least=2, at_most=32)
    out: str = flag("", "the figure", shown="attention-POS.png among your answers")
    device = "cpu"


def train(flags):
    functions, faults = gather(Path(flags.folder), flags.pos)
    text = read_text(flags.data, "word")
    ids, V = text.streams["train"], text.tokenizer.get_vocab_size()
    config = Config(V, n_ffn=100, pos=flags.pos, activation="relu")  # as in train_lm.py
    T, batch_size = config.block_size, 16
    require((len(ids) > T + 1, f"--data {flags.data}: has too little text for blocks of {T}"))
    set_up_device(flags, config)
    reference = LanguageModel(Decoder(config))
    yours = copy.deepcopy(reference)
    put_in(functions, yours.body)
    measures = {
        reference: lambda x, y: reference.loss(x, y) / y.numel(),
        yours: lambda x, y: functions.loss(yours(x), y),
    }
    optimizers = {model: make_adamw(model, 1e-3, 0.01) for model in measures}
    losses = {model: [] for model in measures}
    for step in range(flags.steps):
        x, y = random_blocks(ids, T, batch_size, generator(flags.seed, step))  # (B, T)
        x[0, 0] = BOS
        for model, optimizer in optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, flags.steps, 1e-3, 0, 0.5)
            optimizer.zero_grad()
            try:
                loss = measures[model](x, y)
                loss.backward()
            except (RuntimeError, AttributeError, TypeError) as error:
                problem = f"{flags.folder}: training stops with {type(error).__name__}: {error}"
                remedy = "gradients need tensors from end to end: no .item(), .detach() or numpy"
                raise UserError(f"{problem}; {remedy}") from None
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses[model].append(loss.item())
        gradients = compare_gradients(yours, reference) if step == 0 else gradients
        if (step + 1) % max(1, flags.steps // 5) == 0:
            both = (
                f"your loss {losses[yours][-1]:.4f}   the reference's {losses[reference][-1]:.4f}"
            )
            print(f"step {step + 1:>4}   {both}", flush=True)
    print(conclude(losses[yours], losses[reference], gradients, faults))
    path = Path(flags.out or Path(flags.folder) / f"attention-{flags.pos}.png")
    draw(
        path, text, {"the reference's attention": reference, "your attention": yours}, flags.tokens
    )


def gather(folder, pos):
    """Return the functions of a model, the student's where they run, else the reference's; and the
    names of those that are wrong."""
    found, faults, sheets = {}, [], {name: make_sheet(name) for name in set(USED.values())}
    for function, exercise in USED.items():
        if ONLY_FOR.get(function, pos) != pos:
            continue  # another encoding's
        found[function] = EXERCISES[exercise][function][0]
        path = folder / file_name(exercise)
        answers, verdict = load(path)
        mine = getattr(answers, function, None)
        verdict = verdict or judge_function(path, mine, function, sheets[exercise][function], 20)
        if verdict.status in ("done", "mistake", "difference"):
            found[function] = mine
            faults += [function] * (verdict.status != "done")
        said = (verdict.message or verdict.status).removeprefix(f"{function}: ")
        whose = "yours" if found[function] is mine else "the reference's"
        print(f"  {function:<12} {whose:<16} {said}")
    return SimpleNamespace(**found), faults


def put_in(functions, body):
    """Let a Decoder compute with other functions than those of model.py."""

    def forward(layer, x, bias, **_):
        maps = []

        def attention(x):
            H, qkv = layer.attention.n_head, layer.attention.qkv(x).chunk(3, dim=-1)
            q, k, v = (functions.split_heads(t, H) for t in qkv)
            y, weights = functions.attend(q, k, v, None, bias, 0.0)
            maps.append(weights)
            return layer.attention.out(functions.join_heads(y))

        parts = layer.norm1, attention, layer.norm2, layer.feed_forward, layer.dropout
        return functions.block(x, *parts), maps[0]

    for layer in body.blocks:
        layer.forward = partial(forward, layer)
    if body.config.pos == "sinusoidal":
        body.position_vectors = lambda T: functions.sinusoids(T, body.config.n_embd)
    if body.config.pos == "alibi":
        body.attention_bias = lambda T, mask: functions.causal_bias(body.config.n_head, T)
    else:
        body.attention_bias = lambda T, mask: torch.full((T, T), -math.inf).triu(1)


def compare_gradients(yours, reference):
    """Return the largest relative difference between the gradients of a parameter."""
    pairs = zip(yours.parameters(), reference.parameters())
    grads = ((a.grad if a.grad is not None else torch.zeros_like(b), b.grad) for a, b in pairs)
    return max(((a - b).norm() / b.norm()).item() for a, b in grads)


def conclude(yours, reference, gradients, faults):
    """Return a sentence on the losses of two trainings and their first gradients."""
    losses = max(abs(a - b) / b for a, b in zip(yours, reference))
    apart = f"the first gradients differ by {gradients:.2%}, the losses by at most {losses:.2%}"
    if faults:
        subtle = ". The losses alone hardly show it" * (losses < 0.01)
        return f"With {' and '.join(faults)} wrong, {apart}{subtle}."
    if gradients < GRADIENT and losses < LOSS:
        return f"Your model trains as the reference does: {apart}, which is rounding."
    lost = "is a gradient lost, by .detach(), .data or torch.no_grad?"
    return f"The check finds no mistake, but {apart}: {lost}"


@torch.no_grad()
def draw(path, text, models, n):
    """Draw the attention of each model to the first tokens of the last text, side by side."""
    idx = list(text.streams.values())[-1][:n]
    words = [text.tokenizer.id_to_token(i) for i in idx.tolist()]
    future = torch.ones(len(idx), len(idx), dtype=torch.bool).triu(1)
    columns = []
    for name, model in models.items():
        _, maps = model.body(idx[None], need_weights=True)
        weights = torch.stack(maps)[:, 0].float().masked_fill(future, math.nan)  # (L, H, T, T)
        columns.append([([name], words, words, weights)])
    save(draw_maps(columns), path)
    print(f"The attention of both is in {path}")


if __name__ == "__main__":
    main(train, Flags, __doc__)
