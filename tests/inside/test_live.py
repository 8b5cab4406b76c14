"""The live page's server: who may ask it, what it refuses, and what it answers."""

import html
import json
import os
import re
import signal
import socket
import urllib.request
from urllib.error import HTTPError

import pytest
import torch
from helpers import call, fails, start

from lab import load_run
from lab.inside.attention import record
from lab.inside.live import Asked, LivePage
from lab.inside.page import page
from model import Attention

TEXT = "this is a small sentence"
GAP = "we [MASK] work today ."


@pytest.fixture
def live():
    """live(run, ..., text=TEXT) -> a LivePage that ends with the test."""
    pages = []

    def open_page(*runs, text=TEXT):
        pages.append(LivePage([load_run(run) for run in runs], text))
        return pages[-1]

    yield open_page
    for each in pages:
        each.stop()


def body_of(text=TEXT, **more):
    """The bytes of a request of the page."""
    asked = dict(stage="maps", text=text, off=[], temperature=1, top_k=0, run=0) | more
    return json.dumps(asked).encode()


def send(page, address=None, body=None, **headers):
    """Return the status and the text of a request; of the page itself, unless told otherwise."""
    address = address or page.address
    if body is not None:
        headers = {"Origin": page.address.rsplit("/", 2)[0]} | headers
    request = urllib.request.Request(address, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def ask(page, text=TEXT, **more):
    """Return what the server answers to a request of its own page."""
    status, reply = send(page, f"{page.address}answer", body_of(text, **more))
    assert status == 200
    return json.loads(reply)


# ----------------------------------------------------------------------------------- who may ask
def test_only_this_machine_reaches_the_server(make, live):
    opened = live(make())
    host, port = opened.server.server_address
    assert host == "127.0.0.1"
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for other in addresses - {"127.0.0.1", "127.0.1.1", "::1"}:
        with pytest.raises(OSError):
            socket.create_connection((other, port), timeout=2)


def test_each_request_needs_the_token(make, live):
    opened, other = live(make()), live(make(name="other"))
    assert opened.token != other.token and len(opened.token) >= 32
    root = opened.address.replace(f"{opened.token}/", "")
    assert send(opened)[0] == 200
    wrong = ["", "answer", "favicon.ico", f"{other.token}/", f"{opened.token[:-1]}/"]
    paths = [*wrong, f"{opened.token}/model.py", f"{opened.token}/../model.py", "%2e%2e/model.py"]
    for path in [*paths, f"{opened.token}/answer"]:  # the last one is asked by POST
        assert send(opened, root + path)[0] == 403
    for path in [*paths, f"{other.token}/answer", f"{opened.token}/"]:
        assert send(opened, root + path, body_of())[0] == 403


@pytest.mark.parametrize("host", ["evil.example:PORT", "127.0.0.1", "127.0.0.1:1", ""])
def test_a_name_that_leads_to_this_machine_is_refused(make, live, host):
    opened = live(make())
    host = host.replace("PORT", str(opened.server.server_port))
    assert send(opened, Host=host)[0] == 403
    answer = f"{opened.address}answer"
    assert send(opened, answer, body_of(), Host=host, Origin=f"http://{host}")[0] == 403


def test_other_pages_in_the_browser_are_refused(make, live):
    opened = live(make())
    answer, port = f"{opened.address}answer", opened.server.server_port
    for origin in ("http://evil.example", "null", "", f"https://127.0.0.1:{port}"):
        assert send(opened, answer, body_of(), Origin=origin)[0] == 403
    assert send(opened, Origin="http://evil.example")[0] == 403
    near = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}  # through a tunnel
    assert send(opened, answer, body_of(), **near)[0] == 200
    with urllib.request.urlopen(opened.address) as reply:
        assert "Access-Control-Allow-Origin" not in reply.headers
        assert reply.headers["Referrer-Policy"] == "no-referrer"


def raw(page, head, body=b""):
    """Return the first line of the answer to a request that is written by hand."""
    port = page.server.server_port
    start = f"POST /{page.token}/answer HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n"
    start += f"Origin: http://127.0.0.1:{port}\r\n{head}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(start.encode() + body)
        return connection.recv(100).decode().splitlines()[0]


def test_a_request_has_at_most_20_kilobytes(make, live):
    opened = live(make())
    for length in ("20001", "9" * 5000):
        assert " 413 " in raw(opened, f"Content-Length: {length}\r\n")
    for head in ("", "Content-Length: -1\r\n", "Content-Length: many\r\n"):
        assert " 411 " in raw(opened, head)


BAD = [
    *[b"", b"{", b"\xff", b"1", b"[]", b"{}", b"[" * 9000],
    *[body_of(off=[1]), body_of(off=[[0, "", "x", 1]]), body_of(off="abcd")],
    *[body_of(temperature=t) for t in (-1, 1e9, float("nan"), "hot", None)],
    *[body_of(top_k=k) for k in (-1, float("inf"), None)],
    *[body_of("\ud800"), body_of(run="b")],
]


@pytest.mark.parametrize("body", BAD)
def test_bad_requests_are_refused(make, live, capfd, body):
    opened = live(make(n_layer=1))
    assert send(opened, f"{opened.address}answer", body)[0] == 400
    assert capfd.readouterr().err == ""


def test_only_the_live_page_may_ask(make, live):
    opened = live(make(), text="</textarea><script>alert()</script>")
    assert "<script>alert" not in send(opened)[1]
    policy = r'Content-Security-Policy"\s+content="(.*?)">'
    (of_live,) = re.findall(policy, send(opened)[1], re.DOTALL)
    (of_file,) = re.findall(policy, page(record(load_run(make(name="b")), [TEXT])), re.DOTALL)
    assert "default-src 'none'" in of_live and "connect-src 'self'" in of_live
    assert "default-src 'none'" in of_file and "connect-src" not in of_file
    assert "http" not in of_live + of_file


# ------------------------------------------------------------------------------ what it answers
def test_next_words_before_and_after_heads_are_off(make, live):
    folder = make(pos="alibi")
    run, opened = load_run(folder), live(folder)
    heads = [["", 1, 1], ["", 2, 2]]
    (data,) = ask(opened, off=[[0, *head] for head in heads])["runs"]
    (group,) = data["choices"]
    assert group["question"] == "next word"
    before = dict(run.next_words(TEXT, n=100))
    with run.without_head(1, 1), run.without_head(2, 2):
        after = dict(run.next_words(TEXT, n=100))
        expected = page([run.attention(TEXT)])
    for name, old, new, added in group["rows"]:
        assert old == pytest.approx(before[name]) and new == pytest.approx(after[name])
        assert added == (f" {name}" if name.isalnum() else name)
    names = [name for name, *_ in group["rows"]]
    assert names[:8] == list(after)[:8] and set(list(before)[:8]) <= set(names)
    assert data["parts"][0]["maps"]["weights"]["data"] in expected  # of the model without them
    again = ask(opened)["runs"][0]["choices"][0]["rows"]  # nothing stays off
    assert {name: old for name, old, _, _ in again} == pytest.approx(dict(run.next_words(TEXT, 8)))


def test_losses_before_and_after_heads_are_off(make, live):
    folder = make("mlm", pos="rope")
    run, opened = load_run(folder), live(folder)
    assert ask(opened, stage="answers")["runs"][0]["switched"] is None
    off = [[0, "", 1, 1], [0, "", 1, 2]]
    (data,) = ask(opened, stage="answers", off=off)["runs"]
    before, after = data["switched"]["losses"]
    assert before == pytest.approx([loss for _, loss in run.losses(TEXT)], abs=1e-3)
    with run.without_head(1, 1), run.without_head(1, 2):
        assert after == pytest.approx([loss for _, loss in run.losses(TEXT)], abs=1e-3)
    assert data["effects"]["losses"][0] == after  # what is lost in addition
    assert data["rows"] == data["switched"]["rows"] == TEXT.split()


def test_temperature_and_top_k_choose_the_next_words(make, live):
    opened = live(make())
    rows = ask(opened, top_k=3, temperature=0.5)["runs"][0]["choices"][0]["rows"]
    assert len(rows) == 3 and sum(row[1] for row in rows) == pytest.approx(1)
    assert len(ask(opened, temperature=0)["runs"][0]["choices"][0]["rows"]) == 1


def test_twenty_words_are_written(make, live):
    opened = live(make(pos="alibi"), make(pos="rope", name="b"))
    for number in (0, 1):
        text = ask(opened, stage="write", temperature=0, run=number)["text"]
        (expected,) = opened.runs[number].sample(TEXT, tokens=20, temperature=0)
        assert text == expected and text.startswith(TEXT) and len(text.split()) > 15
    with opened.runs[0].without_head(1, 1):
        (expected,) = opened.runs[0].sample(TEXT, tokens=20, temperature=0)
    assert ask(opened, stage="write", temperature=0, off=[[0, "", 1, 1]])["text"] == expected


KINDS = [("mlm", GAP, "[MASK] 1"), ("classifier", TEXT, "class"), ("seq2seq", GAP, "writes")]
KINDS += [("thread", f"{TEXT}\n\n{GAP}", "[MASK] 1")]


@pytest.mark.parametrize("kind, text, question", KINDS)
def test_every_kind_of_run_answers(make, finished, live, kind, text, question):
    folder = finished("beyond.train_seq2seq") if kind == "seq2seq" else make(kind)
    opened = live(folder)
    run = load_run(folder)
    part = "decoder" if kind in ("seq2seq", "thread") else ""
    (data,) = ask(opened, text, off=[[0, part, 1, 1]])["runs"]
    (group,) = data["choices"]
    answers = {name: old for name, old, _, _ in group["rows"] if old is not None}
    assert group["question"] == question
    if kind == "classifier":
        assert answers == pytest.approx(run.classify(TEXT)[0])
    elif kind == "seq2seq":
        assert list(answers) == run.sample(GAP, n=1, tokens=run.block_size, temperature=0)
    else:
        best = dict(run.fill(*[line for line in text.split("\n") if line], n=100)[0])
        assert answers == pytest.approx({name: best[name] for name in answers})
    (asked,) = ask(opened, text, stage="answers", off=[[0, part, 1, 1]])["runs"]
    assert len(asked["switched"]["losses"]) == 2 and asked["answers"]["names"]


def test_two_runs_have_heads_of_their_own(make, live):
    a, b = make(pos="alibi"), make(pos="rope", name="b")
    first, second = ask(live(a, b), off=[[1, "", 1, 1]])["runs"]
    assert all(old == new for _, old, new, _ in first["choices"][0]["rows"])
    assert any(old != new for _, old, new, _ in second["choices"][0]["rows"])


def test_a_problem_is_told_and_the_next_text_is_read(make, live, capfd):
    opened = live(make("mlm"))
    assert "contains no words" in ask(opened, " ")["problem"]
    assert "layer: 1 to 2, not 9" in ask(opened, off=[[0, "", 9, 1]])["problem"]
    reply = ask(opened, f"{TEXT} qwx")
    assert reply["notes"] == ["unknown words, read as [UNK]: qwx"]  # on the page, once
    assert capfd.readouterr().out == ""


def test_an_error_of_edited_code_is_shown_in_the_terminal(make, live, capfd, monkeypatch):
    opened = live(make())

    def broken(*_):
        raise RuntimeError("a line of mine")

    monkeypatch.setattr(Attention, "attend", broken)
    assert "a line of mine" in ask(opened)["problem"]
    assert "Traceback" in capfd.readouterr().err


def test_a_run_without_attention_is_refused(make):
    fails(call("attention_maps", make(body="lstm"), live=True), "an LSTM has no attention")


def test_a_newer_text_replaces_one_that_is_being_read(make, live):
    opened = live(make())
    asked = Asked("maps", TEXT, set(), 1.0, None, 0)
    passes = []

    def typed_meanwhile(*_):
        passes.append(1)
        if len(passes) == 2:
            opened.newest += 1

    body = opened.runs[0].model.body
    with body.register_forward_pre_hook(typed_meanwhile):
        assert ask(opened) == {"superseded": True}
    assert len(passes) == 2  # and not one more
    assert opened.answer(asked)["runs"]  # all that stood in the model's place is gone
    assert not body._forward_pre_hooks and "attend" not in vars(body.blocks[0].attention)


def test_the_run_is_used_meanwhile(make):
    run = load_run(make())
    opened = run.live(TEXT)
    try:
        assert opened.runs[0].model is not run.model
        pairs = zip(run.model.parameters(), opened.runs[0].model.parameters())
        assert all(torch.equal(a, b) for a, b in pairs)
    finally:
        opened.stop()
    with pytest.raises(OSError):
        send(opened)


def test_a_notebook_shows_the_page_or_else_the_static_one(make):
    run = load_run(make())
    opened = run.live(TEXT, beside=load_run(make(pos="rope", name="b")))
    try:
        shown = opened._repr_html_()
    finally:
        opened.stop()
    assert f'src="{opened.address}"' in shown
    (static,) = re.findall(r'data-page="([^"]*)"', shown)
    static = html.unescape(static)
    assert f"<title>{TEXT}</title>" in static and "connect-src" not in static
    data = json.loads(re.findall(r'id="data">(.*?)</script>', static)[0])
    assert [each["folder"] for each in data] == ["run", "b"]


# ------------------------------------------------------------------------------------ the script
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent in another way on Windows")
def test_ctrl_c_ends_the_script(make):
    env = {"BROWSER": "true", "PYTHONUNBUFFERED": "1"}  # `true` opens nothing
    process = start("attention_maps", make(), "--live", env=env, text=TEXT)
    try:
        while "Ctrl-C" not in (line := process.stdout.readline()):
            assert line, "no address"
        address = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line)[0]
        with urllib.request.urlopen(address) as reply:
            assert TEXT in reply.read().decode()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        assert process.returncode == 0 and "Traceback" not in out and "ended" in out
    finally:
        process.kill()


MISTAKES = [(("R", "R", "R"), "--live: compares at most two runs")]
MISTAKES += [(("R", "--layer", "1"), "--layer: --live shows all heads")]
MISTAKES += [(("R", "--save-weights"), "--save-weights: --live shows all heads")]


@pytest.mark.parametrize("argv, message", MISTAKES)
def test_flags_that_do_not_fit_are_told(make, argv, message):
    folder = str(make())
    fails(call("attention_maps", *(arg.replace("R", folder) for arg in argv), live=True), message)
