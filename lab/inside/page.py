"""The attention page: one HTML file to explore the attention of one or two runs on a text.

`page` collects what lab/inside/page.html shows: weights, scores taken apart, answers by layer, and
the effect of every head. All of it is in the file, which loads nothing and runs without a server.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from pathlib import Path

import numpy as np
import torch

from data.tokenizer import token_strings
from lab.figures import POSITION_COLORS
from lab.inside.ablation import ablate, attentions
from lab.inside.describe import describe, name_part
from lab.inside.lens import ask, read_layers

TEMPLATE = Path(__file__).with_name("page.html")
NOT_ALLOWED = 65535  # the code of a weight where attention is not allowed
WRITES = ("lm", "seq2seq")  # kinds of runs whose answer is the next word
NO_POSITION = {
    "learned": "Learned positions are added to the word vectors. They are not a term of the score.",
    "sinusoidal": "Sinusoids are added to the word vectors. They are not a term of the score.",
    "nope": "NoPE has no position encoding. The score is all content.",
    "cross": "Cross-attention has no positions. The score is all content.",
}
ASKED = {  # what the rows of the answers are, and what they mean
    "lm": ("word", "After each word, the likeliest next words."),
    "seq2seq": (
        "target",
        "After each word of the target, the likeliest next words. The target is the text that was "
        "cut out; for a translation or a [MASK] it is what the model itself wrote.",
    ),
    "mlm": ("masked word", "Each word was masked in turn: the likeliest words in its place."),
    "thread": (
        "masked word",
        "Each word of the comment was masked in turn: the likeliest words in its place.",
    ),
    "classifier": (
        "text",
        "The classes of the text. If the classifier reads the last layer alone, those of each "
        "word's state stand below.",
    ),
}


def page(views, title="Attention"):
    """Return an HTML page of the AttentionViews of one or two runs.

    All views of a run are of one text, or of one thread, which the answers are about. The page
    shows each together with the others of its text or thread.
    """
    groups = {view.run: view.together for view in views}
    names = ("A: ", "B: ") if len(groups) > 1 else ("",)
    runs = [run_data(group, name) for name, group in zip(names, groups.values())]
    values = {"title": html.escape(title), "data": as_json({"title": title, "runs": runs})}
    template = TEMPLATE.read_text(encoding="utf-8")
    for tag in ("script", "style"):  # the page may run this script and no other
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        digest = hashlib.sha256(text.encode()).digest()
        values[f"{tag}-hash"] = f"sha256-{base64.b64encode(digest).decode()}"
    return re.sub(r"{{([\w-]+)}}", lambda match: values[match[1]], template)


def as_json(value):
    """Return JSON that is safe inside a <script> element: no letter of it is markup."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def run_data(views, name):
    """Return all that the page shows of one run."""
    run = views[0].run
    return {
        "name": name,
        "folder": run.folder.resolve().name,
        "model": describe(run),
        "color": POSITION_COLORS[run.model.body.config.pos],
        "parts": [part_data(view) for view in views],
        **answers_data(views),
    }


# ---------------------------------------------------------------------------- attention


def part_data(view):
    """Return one attention of a run."""
    weights = view.shown()
    maps = {"both": pack(weights, 10_000)}
    if view.position is not None:
        for name, scores in (("content", view.content), ("position", view.position)):
            alone = torch.from_numpy(scores).softmax(-1).masked_fill(weights.isnan(), torch.nan)
            maps[name] = pack(alone, 1000)
    encoding = "cross" if view.part == "cross" else view.run.model.body.config.pos
    return {
        "part": view.part,
        "name": name_part(view.run, view.part).replace("the ancestors", f"text {view.number + 1}"),
        "queries": view.words,
        "keys": view.keys,
        "maps": maps,
        "why": NO_POSITION.get(encoding, ""),
    }


def pack(weights, unit):
    """Return weights (L, H, T, S) as text: compressed 16-bit codes, `unit` of them to 1."""
    codes = (weights.double() * unit).round().nan_to_num(NOT_ALLOWED).numpy().astype("<u2")
    planes = codes.reshape(-1, 1).view(np.uint8).T.tobytes()  # all low bytes, then all high bytes
    data = base64.b64encode(zlib.compress(planes, 9)).decode()
    return {"unit": unit, "shape": list(weights.shape), "data": data}


# ---------------------------------------------------------------------------- answers


def answers_data(views):
    """Return the answers of a run by layer, and the effect of every head."""
    run = views[0].run
    asked = ask(views[0])
    found = read_layers(run, asked)
    n_head = sum(attention.n_head for *_, attention in attentions(run.model.body))
    fewer = ask(views[0], n_head + 1)  # one pass for each head and one with all
    whole, effects = ablate(run, fewer)
    if run.kind == "classifier":
        names = run.config["classes"]
    else:
        names = token_strings(run.tokenizer, range(run.tokenizer.get_vocab_size()))
    names = np.array(names, dtype=object)  # an entry per word or class
    known = fewer.targets.cpu() >= 0
    counted = known if known.any() else ~known

    def named(ids):
        return names[ids.numpy()].tolist()

    def changes(effect):
        return effect.losses - whole.losses

    title, meaning = ASKED[run.kind]
    words = next(view.words for view in views if view.part != "encoder")  # the run is asked about
    return {
        "answers": {
            "asked": title,
            "next": run.kind in WRITES,
            "help": meaning + notes(run, words, asked),
            **rows_data(run, words, asked, found.words.size(1)),
            "layers": found.layers,
            "words": named(found.words),
            "probabilities": rounded(found.probabilities),
            "true": rounded(found.true),
            "ranks": found.ranks.tolist(),
        },
        "heads": {
            "help": notes(run, words, fewer),
            **rows_data(run, words, fewer, len(whole.losses)),
            "losses": rounded(whole.losses),
            "words": named(whole.words),
            "effects": [
                {
                    "part": effect.part,
                    "layer": effect.layer,
                    "head": effect.head,
                    "mean": rounded(changes(effect)[counted].mean()),
                    "changes": rounded(changes(effect)),
                    "words": named(effect.words),
                }
                for effect in sorted(effects, key=lambda one: -changes(one)[counted].mean())
            ],
        },
    }


def rows_data(run, words, asked, n):
    """Return the words at which a run is asked n questions, and the true answers or None."""
    places = asked.places.tolist()
    places += range(n - len(places))  # of a classifier: the text, then its words
    step = run.kind in WRITES
    known = [*(asked.targets >= 0).tolist(), *[False] * n]
    return {
        "rows": ["(the whole text)" if place < 0 else words[place] for place in places],
        "truth": [words[place + step] if yes else None for place, yes in zip(places, known)],
    }


def notes(run, words, asked):
    """Return what else a reader of the answers needs to know, "" if nothing."""
    text, n = "", len(asked.places)
    n_word = len(words) - words.count("[BOS]") - words.count("[EOS]")
    if run.kind in ("mlm", "thread") and n < n_word:
        text += f" To save time, only {n} of {n_word} words were masked, evenly spread."
    if hasattr(run.model, "members"):
        n_member = len(run.model.members)
        text += f" Attention, layers and heads are those of the first of {n_member} members."
    return text


def rounded(values):
    """Return numbers to three digits, as nested lists; NaN becomes 0."""
    return values.double().round(decimals=3).nan_to_num(0).tolist()
