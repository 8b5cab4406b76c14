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

PARTS = {"": "", "cross": "cross-attention"}
PARTS |= {half: f"{half} self-attention" for half in ("encoder", "decoder")}


class Page(str):
    """An HTML page, which a notebook shows in a frame."""

    def _repr_html_(self):
        style = "width: 100%; height: 800px; border: 0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}"></iframe>'


def page(views):
    """Return the Page of AttentionViews of one or two runs."""
    environment = jinja2.Environment(autoescape=True)
    environment.policies["json.dumps_kwargs"] = dict(separators=(",", ":"), allow_nan=False)
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    runs = [run_data(view) for view in views]
    return Page(environment.from_string(template).render(title=views[0].title, runs=runs))


def run_data(view):
    """Return all that the page shows of the run of a view: its text or thread, in all parts."""
    run, asked, encoding = view.run, view.asked, view.run.half.positions
    text = next(one.words for one in view.together if one.part != "encoder")  # what is asked about
    step = int(run.kind in ("lm", "seq2seq"))  # whether the next word is asked for
    places, known = asked.places.tolist(), (asked.targets >= 0).tolist()
    names = token_strings(run.tokenizer, range(run.config["model"]["vocab_size"]))
    names = run.config["classes"] or ["score"] if run.kind == "classifier" else names
    names = np.array(names, dtype=object)

    def plain(found):  # words as text, other numbers to four digits
        digits = {k: x.double().round(decimals=4) for k, x in found.items() if torch.is_tensor(x)}
        lists = {k: x.nan_to_num(0).tolist() for k, x in digits.items()}
        return found | lists | {"words": names[found["words"]].tolist()}

    return {
        "folder": run.folder.resolve().name,
        "model": run.describe(),
        "kind": run.kind,
        "members": len(getattr(run.model, "members", ())),
        "positions": encoding.label,
        "added": type(encoding).embed is not NoPE.embed,  # to the words, not to the scores
        "color": encoding.color,
        "parts": [part_data(one) for one in view.together],
        "rows": ["(the whole text)" if place < 0 else text[place] for place in places],
        "truth": [text[place + step] if yes else None for place, yes in zip(places, known)],
        "answers": plain(asked.layers),
        "effects": plain(asked.heads),
    }


def part_data(view):
    """Return one attention of a run. Its maps are text: 16-bit codes, `unit` to 1; 65535: NaN."""
    shown = view.shown()
    maps = {"both": (shown, 10_000)}
    if view.position is not None:
        for name, scores in (("content", view.content), ("position", view.position)):
            alone = torch.from_numpy(scores).softmax(-1).numpy()
            maps[name] = np.where(np.isnan(shown), np.nan, alone), 1000
    for name, (weights, unit) in maps.items():
        codes = np.where(np.isnan(weights), 65535, (weights * unit).round()).astype("<u2")
        data = base64.b64encode(codes.tobytes()).decode()
        maps[name] = dict(unit=unit, shape=weights.shape, data=data)
    several = view.part == "encoder" and view.run.kind == "thread"
    name = PARTS[view.part] + f" of text {view.number + 1}" * several
    return dict(part=view.part, name=name, queries=view.words, keys=view.keys, maps=maps)
