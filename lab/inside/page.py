"""The attention page: one HTML file to explore the attention of one or two runs on a text.

It is lab/inside/page.html with all its data, and loads nothing. Texts enter it escaped, or as JSON.
In live mode (lab/inside/live.py) the page asks for its data, and may ask nobody else.
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


class Page(str):
    """An HTML page, which a notebook shows in a frame."""

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}"></iframe>'


def page(views):
    """Return the Page of AttentionViews of one or two runs."""
    runs = [maps_data(view) | answers_data(view) for view in views]
    return render(views[0].title, runs)


def render(title, runs, live=False):
    """Return the Page of the data of runs, or with live=True one that asks for the data of a text,
    its title."""
    environment = jinja2.Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return Page(environment.from_string(template).render(title=title, runs=runs, live=live))


def maps_data(view):
    """Return what the page shows of the run of a view and its attentions: of a text or thread."""
    run = view.run
    encoding = run.half.positions
    return {
        "folder": run.folder.resolve().name,
        "model": run.describe(),
        "kind": run.kind,
        "members": len(getattr(run.model, "members", ())),
        "positions": encoding.label,
        "added": type(encoding).embed is not NoPE.embed,  # to the words, not to the scores
        "color": encoding.color,
        "sinks": run.model.body.config.sinks,  # see nets/sinks.py
        "trained": run.block_size,  # tokens of the longest text of training
        "parts": [part_data(shown) for shown in view.together],
    }


def answers_data(view):
    """Return the answers of the run of a view: after each layer, and without each head."""
    names = answer_names(view.run)
    rows, truth = name_questions(view)
    return {
        "rows": rows,
        "truth": truth,
        "answers": to_lists(view.asked.layers, names),
        "effects": to_lists(view.asked.heads, names),
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
    """Return one attention of a run: its words, and its arrays as `encode_numbers` writes them. Its
    scores are content + turned + bias, of which the last two may be missing."""
    name = PARTS[view.part]
    if view.part == "encoder" and view.run.kind == "thread":
        name += f" of text {view.number + 1}"
    arrays = {"weights": view.shown(), "content": view.content}
    arrays |= {"q": view.q, "k": view.k, "lengths": view.lengths}
    bias = view.position
    if view.turned is not None:
        arrays["turned"] = view.turned
        bias = view.position - view.turned
    if bias is not None and np.nan_to_num(bias, neginf=0).any():
        arrays["bias"] = bias
    return {
        "part": view.part,
        "name": name,
        "note": view.length_note,
        "queries": view.words,
        "keys": view.keys,
        "maps": {key: encode_numbers(array) for key, array in arrays.items()},
    }


def encode_numbers(array):
    """Return the shape of an array, and its numbers as text: float32 in base64."""
    data = base64.b64encode(array.astype("<f4").tobytes()).decode()
    return {"shape": array.shape, "data": data}
