"""Take a student's functions, and put them into the model of train_lm.py."""

import math
from functools import partial
from types import SimpleNamespace

import torch

from course.exercises import EXERCISES, file_name, make_sheet
from course.judge import judge_function, load

USED = {  # function: its exercise
    "attend": "attention",
    "split_heads": "heads",
    "join_heads": "heads",
    "block": "block",
    "loss": "perplexity",
    "sinusoids": "sinusoids",
    "causal_bias": "alibi",
}
ONLY_FOR = {"sinusoids": "sinusoidal", "causal_bias": "alibi"}


def gather(folder, pos):
    """Return the functions of a model, the student's if they run; the names of these, and of the
    wrong ones."""
    found, written, faults = {}, [], []
    for function, exercise in USED.items():
        if ONLY_FOR.get(function, pos) != pos:
            continue
        path, task = folder / file_name(exercise), make_sheet(exercise)[function]
        answers, verdict = load(path)
        mine = getattr(answers, function, None)
        verdict = verdict or judge_function(path, mine, function, task)
        runs = verdict.status in ("done", "mistake", "difference")
        found[function] = mine if runs else EXERCISES[exercise][function][0]
        if runs:
            written.append(function)
            faults += [function] * (verdict.status != "done")
        said = (verdict.message or verdict.status).removeprefix(f"{function}: ")
        print(f"  {function:<12} {'yours' if runs else 'the reference':<14} {said}")
    return SimpleNamespace(**found), written, faults


def put_in(functions, body):
    """Let a Decoder compute with other functions than those of model.py, which may use float64."""
    config = body.config

    def forward(layer, x, cross, picked, bias, **_):
        maps = []

        def attention(x):
            qkv = layer.attention.qkv(x).chunk(3, dim=-1)
            q, k, v = (functions.split_heads(t, config.n_head) for t in qkv)
            y, weights = functions.attend(q, k, v, None, bias, 0.0)
            maps.append(weights)
            return layer.attention.out(functions.join_heads(y).float())

        parts = layer.norm1, attention, layer.norm2, layer.feed_forward, layer.dropout
        return functions.block(x, *parts).float(), maps[0]

    for layer in body.blocks:
        layer.forward = partial(forward, layer)
    if config.pos == "sinusoidal":
        body.position_vectors = lambda T: functions.sinusoids(T, config.n_embd).float()
    if config.pos == "alibi":
        body.attention_bias = lambda T, mask: functions.causal_bias(config.n_head, T).float()
    else:
        body.attention_bias = lambda T, mask: torch.full((T, T), -math.inf).triu(1)
