"""The attention page, live: a server for one's own browser that reads a text as it is typed.

It can be reached from this machine alone. Its address has a random token, without which it answers
nothing, and `Handler.is_own` refuses what another page in the browser asks. No path of a request is
ever opened. Whoever can list the processes of this machine may see the address.
"""

import copy
import hmac
import json
import secrets
import sys
import threading
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from data.files import UserError
from data.tokenizer import MASK, detokenize, token_strings
from lab.inside.attention import record
from lab.inside.measure import attentions, halves
from lab.inside.page import (
    answer_names,
    answers_data,
    maps_data,
    name_questions,
    page,
    render,
    to_lists,
)
from lab.inside.texts import encode_texts
from lab.inside.writing import next_logits, top_words

MOST_BYTES = 20_000  # of a request
N_SHOWN = 8  # next words
N_WRITTEN = 20  # words at once
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address is a secret
    "X-Content-Type-Options": "nosniff",
}


class Superseded(Exception):
    """A newer text was typed while this one was read."""


class Asked(NamedTuple):
    """A request of the page."""

    stage: str  # maps, answers or write
    text: str
    off: set  # of heads to switch off: (number of the run, part, layer, head)
    temperature: float
    top_k: int | None  # words to choose from, None: all
    run: int  # number of the run that writes

    def heads_of(self, run):
        """Return the heads of a run to switch off, [[part, layer, head]]."""
        return [head for of_run, *head in sorted(self.off) if of_run == run]


def read_request(body):
    """Return the Asked of a request's bytes. Raises ValueError, TypeError, KeyError, OverflowError
    or RecursionError for others."""
    request = json.loads(body)
    off = {
        (int(run), str(part), int(layer), int(head)) for run, part, layer, head in request["off"]
    }
    temperature = float(request["temperature"])
    top_k = int(request["top_k"])
    if not (0 <= temperature <= 10 and top_k >= 0):
        raise ValueError("temperature or top_k")
    text = str(request["text"]).rstrip()
    text.encode()  # half a letter is no text
    return Asked(request["stage"], text, off, temperature, top_k or None, int(request["run"]))


class LivePage:
    """One or two runs behind a server, which starts at once and lasts as long as Python, or until
    `stop`. It reads copies of the runs' models: the runs can be used meanwhile."""

    def __init__(self, runs, text):
        for run in runs:
            attentions(run.model.body)  # raises UserError if there are none
        self.runs = [replace(run, model=copy.deepcopy(run.model)) for run in runs]
        self.text = text
        self.notes = {}  # of the current answer, each once
        for run in self.runs:
            run.note = self.keep_note  # hides the method, which prints
        self.lock = threading.Lock()  # one answer at a time
        self.counting = threading.Lock()
        self.newest = 0  # number of the last request
        self.token = secrets.token_urlsafe(24)
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.live = self
        self.address = f"http://127.0.0.1:{self.server.server_port}/{self.token}/"
        wait = {"poll_interval": 0.05}  # seconds that `stop` waits at most
        threading.Thread(target=self.server.serve_forever, kwargs=wait, daemon=True).start()

    def __repr__(self):
        return f"<live page at {self.address}>"

    def _repr_html_(self):
        """The page in a frame. If it cannot be reached from the browser, as on another machine, the
        static page takes its place."""
        style = "width: 100%; height: 900px; border: 0"
        with self.lock:
            views = [record(run, self.texts_of(run, self.text))[-1] for run in self.runs]
            static = escape(page(views))
        return f"""<iframe src="{self.address}" style="{style}" data-page="{static}"></iframe>
            <script>{{
            const frame = document.currentScript.previousElementSibling;
            const wait = setTimeout(() => {{ frame.srcdoc = frame.dataset.page; }}, 4000);
            addEventListener("message", (event) => {{
              if (event.source === frame.contentWindow) clearTimeout(wait);
            }});
            }}</script>"""

    def stop(self):
        """End the server."""
        self.server.shutdown()
        self.server.server_close()

    def html(self):
        """Return the page, which asks for its data."""
        return render(self.text, [], live=True)

    def keep_note(self, text):
        self.notes[text] = True

    def texts_of(self, run, text):
        """Return the texts that a run reads: of a thread, each line is one."""
        if not any(other.kind == "thread" for other in self.runs):
            return [text]
        lines = [line for line in text.split("\n") if line.strip()]
        if run.kind == "thread":
            return lines or [""]
        return lines[-1:] or [""]

    def answer(self, asked):
        """Return what the page shows for an Asked. Raises Superseded if another one came later."""
        with self.counting:
            self.newest += 1
            number = self.newest
        with self.lock, ExitStack() as stack:
            for run in self.runs:
                for half in halves(run.model.body):
                    hook = partial(self.check_newest, number)
                    stack.enter_context(half.register_forward_pre_hook(hook))
            self.check_newest(number)
            self.notes.clear()
            if asked.stage == "write":
                return {"text": self.write(asked)}
            data = []
            for place, run in enumerate(self.runs):
                texts = self.texts_of(run, asked.text)
                heads = asked.heads_of(place)
                if asked.stage == "maps":
                    data.append(read_maps(run, texts, asked, heads))
                else:
                    data.append(read_answers(run, texts, heads))
            return {"runs": data, "notes": list(self.notes)}

    def check_newest(self, number, *_):
        """Raise Superseded unless a request is the last one. Called before each pass of a model."""
        if number != self.newest:
            raise Superseded

    def write(self, asked):
        """Return the text, continued by a run."""
        run = self.runs[asked.run]
        seed = secrets.randbelow(2**31)  # other words each time
        with without_heads(run, asked.heads_of(asked.run)):
            texts = run.sample(asked.text, 1, N_WRITTEN, asked.temperature, asked.top_k, seed)
        return texts[0]


@contextmanager
def without_heads(run, heads):
    """Switch off several heads, [(part, layer, head)], in a `with` block."""
    with ExitStack() as stack:
        for part, layer, head in heads:
            stack.enter_context(run.without_head(layer, head, part))
        yield


def read_maps(run, texts, asked, heads):
    """Return the attentions of a run with some heads switched off, and its answers to the text with
    all heads and without those."""
    before = choices(run, texts, asked)
    with without_heads(run, heads):
        view = record(run, texts)[-1]
        after = before
        if heads:
            after = choices(run, texts, asked)
    return maps_data(view) | {"choices": side_by_side(run, texts[-1], before, after)}


def read_answers(run, texts, heads):
    """Return the losses of a run with all heads and without some, and then without these its
    answers by layer, and what is lost without each other head."""
    view = record(run, texts)[-1]
    if not heads:
        return answers_data(view) | {"switched": None}
    rows, truth = name_questions(view)
    switched = to_lists(view.asked.without([heads]), answer_names(run))
    with without_heads(run, heads):
        data = answers_data(record(run, texts)[-1])
    return data | {"switched": switched | {"rows": rows, "truth": truth}}


def choices(run, texts, asked):
    """Return what a run answers to a text, [(question, {answer: probability})], likeliest first.
    Words are given by their ids."""
    try:
        if run.kind == "lm":
            (ids,) = encode_texts(run, texts, masked=False).ids
            logits = next_logits(run, ids)
            return [("next word", shares_of(logits, asked.temperature, asked.top_k))]
        if run.kind == "classifier":
            return [("class", run.classify(*texts)[0])]
        if run.kind == "seq2seq":
            (text,) = run.sample(texts[-1], n=1, tokens=run.block_size, temperature=0)
            return [("writes", {text: 1.0})]
        if MASK not in run.tokenizer.encode(texts[-1], add_special_tokens=False).ids:
            return []
        groups = []
        for number, logits in enumerate(run.mask_logits(*texts), 1):
            groups.append((f"[MASK] {number}", shares_of(logits)))
        return groups
    except UserError as error:
        return [(str(error), {})]


def shares_of(logits, temperature=1.0, top_k=None):
    """Return {id: probability} of logits (V,), likeliest first, see `top_words`."""
    words, probabilities = top_words(logits, temperature, top_k)
    return dict(zip(words.tolist(), probabilities.tolist()))


def side_by_side(run, text, before, after):
    """Return the likeliest answers of `choices` with all heads and without some, [{"question",
    "rows"}]. A row: answer, its probabilities (None: top-k leaves it out), and what the answer
    adds to the text."""
    groups = []
    for (question, old), (_, new) in zip(before, after):
        rows = []
        for answer in dict.fromkeys([*list(new)[:N_SHOWN], *list(old)[:N_SHOWN]]):
            name = answer
            added = ""
            if isinstance(answer, int):
                (name,) = token_strings(run.tokenizer, [answer])
            if run.kind == "lm":
                added = added_by(run, text, answer)
            rows.append([name, old.get(answer), new.get(answer), added])
        groups.append({"question": question, "rows": rows})
    return groups


def added_by(run, text, word):
    """Return what the id of a word adds to a text, such as a space and the word."""
    ids = run.tokenizer.encode(text, add_special_tokens=False).ids
    return detokenize(run.tokenizer, [*ids, word])[len(detokenize(run.tokenizer, ids)) :]


class Server(ThreadingHTTPServer):
    """A server with a thread for each request."""

    def handle_error(self, request, client_address):
        """Print the traceback of an error, except where the page has gone or asks for a newer
        text."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a LivePage's own page."""

    timeout = 10  # seconds for a request to arrive

    def do_GET(self):
        if not self.is_own("", self.headers.get("Origin")):
            return self.send_error(403)
        self.send("text/html", self.server.live.html())

    def do_POST(self):
        if not self.is_own("answer", self.headers.get("Origin", "none")):
            return self.send_error(403)
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self.send_error(411)
        if len(length) > 9 or int(length) > MOST_BYTES:
            return self.send_error(413)
        try:
            asked = read_request(self.rfile.read(int(length)))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return self.send_error(400)
        self.send("application/json", json.dumps(self.answer(asked), allow_nan=False))

    def answer(self, asked):
        """Return the answer to an Asked, or what went wrong."""
        try:
            return self.server.live.answer(asked)
        except Superseded:
            return {"superseded": True}
        except UserError as error:
            return {"problem": str(error)}
        except Exception as error:
            traceback.print_exc()  # of code that was edited
            return {"problem": f"{error!r}; the terminal shows where"}

    def is_own(self, name, origin):
        """Return whether a request knows the token and comes from the page itself: it names this
        server as its host, not a name that leads here, and so does the Origin, which browsers add
        to requests by pages. None: it is a page that is opened."""
        port = self.server.server_port
        host = self.headers.get("Host", "")
        path = f"/{self.server.live.token}/{name}"
        return (
            host in (f"127.0.0.1:{port}", f"localhost:{port}")
            and origin in (None, f"http://{host}")
            and hmac.compare_digest(self.path.encode(), path.encode())
        )

    def send(self, kind, text):
        """Answer with a text."""
        data = text.encode()
        self.send_response(200)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Keep the terminal for errors of the model."""
