"""The attention page: one HTML file to explore the attention of one or two runs on a text.

`page` collects what lab/inside/page.html shows: weights, scores taken apart, answers by layer, and
the effect of every head. All of it is in the file, which loads nothing and runs without a server.
"""

import base64
from html import escape
from pathlib import Path

import jinja2
import numpy as np
import torch

from data.tokenizer import token_strings
from model import NoPE

TEMPLATE = Path(__file__).with_name("page.html")
PARTS = {"": "", "cross": "cross-attention"}
PARTS |= {half: f"{half} self-attention" for half in ("encoder", "decoder")}
ASKED = dict(  # what the rows of the answers are, and what they mean
    lm=("word", "After each word, the likeliest next words."),
    seq2seq=("target", "After each word of what the model itself wrote, the likeliest next words."),
    mlm=("masked word", "Each word was masked in turn: the likeliest words in its place."),
    thread=("masked word", "Each word of the comment was masked in turn: the likeliest words."),
    classifier=("text", "The classes of the text."),
)


class Page:
    """The HTML page of AttentionViews of one or two runs, shown by a notebook in a frame.

    Text of a user enters the page escaped, or as JSON without markup.
    """

    def __init__(self, views):
        names = ["A: ", "B: "] if len(views) > 1 else [""]
        runs = [run_data(view.together, name) for view, name in zip(views, names)]
        environment = jinja2.Environment(autoescape=True)
        compact = dict(separators=(",", ":"), allow_nan=False)
        environment.policies["json.dumps_kwargs"] = compact
        template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
        self.text = template.render(title=views[0].title, runs=runs)

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self.text)}" style="{style}"></iframe>'


def run_data(views, name):
    """Return all that the page shows of one run. views: all of its text or thread."""
    run, asked, answers, effects = views[0].run, *views[0].asked
    text = next(view.words for view in views if view.part != "encoder")  # what is asked about
    step = int(run.kind in ("lm", "seq2seq"))  # whether the next word is asked for
    places, known = asked.places.tolist(), (asked.targets >= 0).tolist()
    row, meaning = ASKED[run.kind]
    if run.kind in ("mlm", "thread") and len(places) < len(text) - 1:
        meaning += f" To save time, only {len(places)} words were masked, evenly spread."
    if members := getattr(run.model, "members", ()):
        meaning += f" Attention, layers and heads are those of the first of {len(members)} members."
    ids = range(run.config["model"]["vocab_size"])
    is_class = run.kind == "classifier"
    names = run.config["classes"] if is_class else token_strings(run.tokenizer, ids)
    names = np.array(names, dtype=object)  # of all words or classes
    return {
        "name": name,
        "folder": run.folder.resolve().name,
        "model": run.describe(),
        "color": run.half.positions.color,
        "parts": [part_data(view) for view in views],
        "asked": row,
        "help": meaning,
        "next": bool(step),
        "rows": ["(the whole text)" if place < 0 else text[place] for place in places],
        "truth": [text[place + step] if yes else None for place, yes in zip(places, known)],
        "answers": plain(answers, names),
        "effects": plain(effects, names),
    }


def plain(found, names):
    """Return a dictionary of tensors as nested lists: ids as names, numbers to four digits."""
    lists = dict(found)
    for key, x in found.items():
        if key == "words":
            lists[key] = names[x].tolist()
        elif torch.is_tensor(x):
            lists[key] = x.double().round(decimals=4).nan_to_num(0).tolist()
    return lists


def part_data(view):
    """Return one attention of a run."""
    weights, encoding = view.shown(), view.run.half.positions
    maps, why = {"both": pack(weights, 10_000)}, f"{encoding.label}: the score is all content."
    if view.position is not None:
        for name, scores in (("content", view.content), ("position", view.position)):
            alone = torch.from_numpy(scores).softmax(-1).numpy()
            maps[name] = pack(np.where(np.isnan(weights), np.nan, alone), 1000)
    if view.part == "cross":
        why = "Cross-attention has no positions. The score is all content."
    elif type(encoding).embed is not NoPE.embed:
        why = f"{encoding.label} positions are added to the words, not a term of the score."
    several = view.part == "encoder" and view.run.kind == "thread"
    name = PARTS[view.part] + f" of text {view.number + 1}" * several
    found = dict(part=view.part, name=name, queries=view.words, keys=view.keys)
    return found | dict(maps=maps, why=why)


def pack(weights, unit):
    """Return weights (L, H, T, S) as text: 16-bit codes, `unit` of them to 1; 65535 if NaN."""
    codes = np.where(np.isnan(weights), 65535, (weights * unit).round()).astype("<u2")
    data = base64.b64encode(codes.tobytes()).decode()
    return {"unit": unit, "shape": list(weights.shape), "data": data}
