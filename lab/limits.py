"""Check the values of a model's Config that come from flags or from a file.

A file may contain anything. These checks run before the values are used, so that an absurd number
takes neither time nor memory.
"""

import math
from dataclasses import fields

from model import CHOICES, Config

LARGEST = 2**24  # upper limit of every size
SIZES = ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")  # at least 1; others at least 0
RATES = ("dropout", "attn_dropout")  # below 1
RELATED = ("n_embd", "n_head", "pos", "alibi", "head", "tie")  # read by check_pairs


def make_config(values):
    """Return Config(**values). Raises ValueError naming every invalid field."""
    types = {field.name: field.type for field in fields(Config)}
    found = {
        name: check_value(name, value, types[name]) if name in types else f"{name} is not an option"
        for name, value in values.items()
    }
    wrong = [message for message in found.values() if message]
    if not any(found.get(name) for name in RELATED):
        wrong += check_pairs(vars(Config()) | values)
    if wrong:
        raise ValueError("; ".join(wrong))
    return Config(**values)


def has_type(value, kind):
    """Return whether a value is of a type; a whole number is also a float."""
    return type(value) is kind or (type(value), kind) == (int, float)


def check_value(name, value, kind):
    """Return what is wrong with the value of a field of this type, "" if nothing is."""
    shown = str(value)[:40]
    if not has_type(value, kind):
        return f"{name} must be of type {kind.__name__}, got {shown!r}"
    if name in CHOICES and value not in CHOICES[name]:
        return f"{name} must be one of {', '.join(CHOICES[name])}, got {shown!r}"
    if kind not in (int, float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} must be a finite number, got {shown}"
    if name in RATES and not 0 <= value < 1:
        return f"{name} must be at least 0 and below 1, got {shown}"
    if name in SIZES and value < 1:
        return f"{name} must be at least 1, got {shown}"
    if value < 0:
        return f"{name} must not be negative, got {shown}"
    return f"{name} must be at most {LARGEST:,}, got {shown}" if value > LARGEST else ""


def check_pairs(values):
    """Return what does not fit together in a dictionary of valid values."""
    n_embd, n_head, pos = values["n_embd"], values["n_head"], values["pos"]
    wrong = []
    if n_embd % n_head:
        wrong.append(f"n_head must divide n_embd, got {n_head} and {n_embd}")
    if pos == "sinusoidal" and n_embd % 2:
        wrong.append(f"pos=sinusoidal pairs sines with cosines: n_embd must be even, got {n_embd}")
    if (pos, values["alibi"]) == ("alibi", "one-sided") and n_head % 2:
        wrong.append(f"alibi=one-sided halves the heads: n_head must be even, got {n_head}")
    if values["head"] == "clap" and not values["tie"]:
        wrong.append("head=clap compares with the token embeddings: it needs tie")
    return wrong
