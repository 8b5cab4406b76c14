"""The attention page: one HTML file to explore the attention of one or two runs on a text.

It is lab/inside/page.html with all its data, and loads nothing. Texts enter it escaped, or as JSON.
"""

import base64
from html import escape
from pathlib import Path

import jinja2
import numpy as np
import torch

from data.tokenizer import token_strings
from model import NoPE

PARTS = {
    "": "",
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
NAN_CODE = 65535  # of a weight that is not allowed


class Page(str):
    """An HTML page, which a notebook shows in a frame."""

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}"></iframe>'


def page(views):
    """Return the Page of AttentionViews of one or two runs."""
    environment = jinja2.Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    runs = [run_data(view) for view in views]
    return Page(environment.from_string(template).render(title=views[0].title, runs=runs))


def run_data(view):
    """Return all that the page shows of the run of a view: its text or thread, in all parts."""
    run = view.run
    encoding = run.half.positions
    questions = view.asked
    names = answer_names(run)
    rows, truth = name_questions(view)
    return {
        "folder": run.folder.resolve().name,
        "model": run.describe(),
        "kind": run.kind,
        "members": len(getattr(run.model, "members", ())),
        "positions": encoding.label,
        "added": type(encoding).embed is not NoPE.embed,  # to the words, not to the scores
        "color": encoding.color,
        "parts": [part_data(shown) for shown in view.together],
        "rows": rows,
        "truth": truth,
        "answers": to_lists(questions.layers, names),
        "effects": to_lists(questions.heads, names),
    }


def answer_names(run):
    """Return an array of the names of what a run answers with: its classes, or all tokens."""
    if run.kind != "classifier":
        names = token_strings(run.tokenizer, range(run.config["model"]["vocab_size"]))
    elif run.config["classes"]:
        names = run.config["classes"]
    else:
        names = ["score"]
    return np.array(names, dtype=object)


def name_questions(view):
    """Return of each question the word at whose place it is asked, and the true answer, or None
    where that is unknown."""
    parts_asked = [other for other in view.together if other.part != "encoder"]
    text = parts_asked[0].words
    step = 0
    if view.run.kind in ("lm", "seq2seq"):
        step = 1  # the next word is asked for
    rows = []
    truth = []
    for place, target in zip(view.asked.places.tolist(), view.asked.targets.tolist()):
        row = text[place] if place >= 0 else "(the whole text)"
        true_word = text[place + step] if target >= 0 else None
        rows.append(row)
        truth.append(true_word)
    return rows, truth


def to_lists(answers, names):
    """Return the answers of Questions with numbers as lists, to four digits, 0 for NaN, and with
    the names of their words."""
    lists = dict(answers)
    for key, value in answers.items():
        if torch.is_tensor(value):
            lists[key] = value.double().round(decimals=4).nan_to_num(0).tolist()
    lists["words"] = names[answers["words"]].tolist()
    return lists


def part_data(view):
    """Return one attention of a run: its words, and maps of the weights and of both scores alone.
    These are turned into weights, too."""
    weights = view.shown()
    maps = {"both": encode_map(weights, unit=10_000)}
    if view.position is not None:
        for name, scores in (("content", view.content), ("position", view.position)):
            shares = torch.from_numpy(scores).softmax(-1).numpy()
            shares = np.where(np.isnan(weights), np.nan, shares)
            maps[name] = encode_map(shares, unit=1000)
    name = PARTS[view.part]
    if view.part == "encoder" and view.run.kind == "thread":
        name += f" of text {view.number + 1}"
    return {"part": view.part, "name": name, "queries": view.words, "keys": view.keys, "maps": maps}


def encode_map(weights, unit):
    """Return weights (L, H, T, S) as text: codes of 16 bits, where `unit` means 1."""
    codes = np.where(np.isnan(weights), NAN_CODE, (weights * unit).round()).astype("<u2")
    data = base64.b64encode(codes.tobytes()).decode()
    return {"unit": unit, "shape": weights.shape, "data": data}
