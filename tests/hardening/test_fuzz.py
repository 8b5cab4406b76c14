"""Properties that hold for generated texts, tensors, command lines and files.

`make test-all` runs a few cases of each, always the same ones. `make fuzz` runs thousands of new
ones and prints how many. Mistakes found this way are named tests in other files.
"""

import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import math
import os
import shutil

import hypothesis.strategies as st
import pytest
import torch
from helpers import (
    SHORT,
    TABLE,
    TRAINING,
    call,
    script_module,
    script_of,
    succeed,
    train,
    write_corpus,
    write_pairs,
    write_threads,
)
from hypothesis import HealthCheck, given, settings

import compare
import model
from data import batching, corpus, files, forest, load, shards, spans
from data.corpora import pairs, threads
from data.corpora.rows import read_rows
from data.files import DataError
from data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    UNK,
    encode,
    load_tokenizer,
    train_tokenizer,
    word_starts,
)
from lab.comparison import panels
from lab.errors import UserError
from lab.limits import make_config
from lab.load import read_run
from lab.run import Run
from nets.roberta import export_roberta, load_roberta
from studies.probes import labelled

CASES = int(os.environ.get("POSLAB_FUZZ", 0))  # cases of each test; 0: a few
COUNTS, REACHED = collections.Counter(), collections.Counter()


def cases(share=1.0, **strategies):
    """Run a test on generated cases and count them. share: fewer cases for a slow test."""

    def decorate(test):
        @functools.wraps(test)
        def counted(*fixtures, **values):
            COUNTS[test.__name__] += 1
            test(*fixtures, **values)

        number = max(1, round((CASES or 15) * share))
        how = dict(max_examples=number, derandomize=not CASES, deadline=None, database=None)
        allowed = settings(**how, suppress_health_check=list(HealthCheck))
        return allowed(given(**strategies)(counted))

    return decorate


@pytest.fixture(scope="module", autouse=True)
def counted():
    """Print at the end how many cases each test had."""
    torch.set_flush_denormal(False)  # hypothesis draws denormal numbers too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_flush_denormal", lambda _: True)
        yield
    if CASES:
        print()
        for name, n in COUNTS.items():
            print(f"{n:>7,}  {name.removeprefix('test_').replace('_', ' ')}")
        print(f"{sum(COUNTS.values()):>7,}  generated cases in all")
        print(f"{sum(REACHED.values()):>7,}  of the command lines passed all checks")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The working directory of all cases."""
    folder, before = tmp_path_factory.mktemp("fuzz"), os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


# Pieces of text that readers and tokenizers treat specially.
PIECES = (
    *("\n", "\t", "\r\n", " ", "[MASK]", "[PAD]", "[S0]", "[UNK", "don't", "'s", "3,000.5", "..."),
    *("--", "é", "\ufeff", "\0", "\x1b[2J", "\u2028", "\u202e", "\u200d", "👩‍👩‍👧", "日本", "> "),
    *("[a](b)", "https://x", "&amp;", "&#0;"),
)
some_words = st.sampled_from("the of and we will hope change".split())
words = st.sampled_from(PIECES) | some_words | st.text(max_size=6)
prose = st.lists(words, max_size=12).map("".join)
lines = st.lists(prose, min_size=1, max_size=8)
utf_16 = lines.map(lambda found: "\t".join(found).encode("utf-16"))
raw = lines.map("\n".join).map(str.encode) | st.binary(max_size=60) | utf_16
seeds = st.integers(0, 2**32)
odd_values = st.sampled_from([10**400, -1, 2**63, "", "\ud800", "alibi", "0"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | prose | odd_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(prose, inner, max_size=3),
    max_leaves=6,
)


def gen(seed):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------ readers


@cases(content=raw)
def test_lines_of_any_bytes(place, content):
    path = place / "any.txt"
    path.write_bytes(content)
    try:
        found = files.read_lines(path)
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return
    assert content.decode("utf-8-sig").replace("\r\n", "\n").startswith("\n".join(found))
    assert found[-1].strip()
    assert not any("\n" in line or "\0" in line for line in found)
    assert files.read_non_empty_lines(path) == [line for line in found if line.strip()]


tables = st.lists(st.tuples(st.sampled_from("ab 0"), prose), min_size=1)


@cases(content=raw | tables.map(lambda rows: "\n".join(map("\t".join, rows)).encode()))
def test_rows_of_any_bytes(place, content):
    path = place / "any.tsv"
    path.write_bytes(content)
    of_classes = functools.partial(read_rows, labels={"a", "b"})
    for read in (read_rows, of_classes, pairs.read_pair_rows, pairs.load_pairs, load):
        try:
            found = read(path)
        except DataError as error:
            assert str(path) in str(error)
        else:
            for cell in itertools.chain(*found if isinstance(found, list) else ()):
                assert cell and cell == cell.strip()


@cases(content=raw, how=st.sampled_from(["full", "clean", "1/2", "2/3", "0/1", "x", "1/1"]))
def test_a_corpus_of_any_bytes(place, content, how):
    path = place / "corpus.txt"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        found = load(path)
        parts = found.lines, *found.tests.values()
        kept, held = (set(map(corpus.normalize, part)) for part in parts)
        assert kept and held and not kept & held
        found.split(how)


parents = st.sampled_from(["t1_a", "t1_b", "t1_c", "t3_p", "", None]) | json_values
bodies = prose | st.none() | st.just("[deleted]")
comment = {"id": st.sampled_from("abcdefgh"), "body": bodies}
answered = {"id": st.sampled_from("ijklmnop"), "body": prose}
no_replies = st.just({"data": {"children": []}}) | json_values
comments = st.recursive(
    st.fixed_dictionaries(comment, optional={"parent_id": parents}),
    lambda inner: st.fixed_dictionaries(
        answered | {"replies": st.lists(inner, max_size=3) | no_replies}
    ),
    max_leaves=5,
)
posts = st.fixed_dictionaries(
    {"id": st.sampled_from(["p", "q", ""]), "title": prose | json_values},
    optional={
        "selftext": prose | json_values,
        "comments": st.lists(comments, max_size=5) | json_values,
    },
)
posts_or_not = st.sampled_from([posts, posts, json_values]).flatmap(lambda each: each)


@cases(
    found=st.lists(posts_or_not.map(json.dumps) | prose, min_size=1, max_size=3),
    size=st.integers(3, 6),
    near=st.integers(1, 2),
)
def test_threads_of_any_json(place, found, size, near):
    path = place / "any.jsonl"
    path.write_bytes("\n".join(found).encode("utf-8", "surrogatepass"))
    try:
        trees = threads.load_threads(path).trees
    except DataError as error:
        assert "any.jsonl" in str(error) and "\n" not in str(error).strip()
        return
    for tree in trees:
        assert len(tree.texts) == len(tree.parents) > 1
        assert tree.parents[0] == -1
        assert all(0 <= parent < i for i, parent in enumerate(tree.parents) if i)
        assert all(tree.texts[1:])
        assert all(text == " ".join(text.encode().decode().split()) for text in tree.texts)
        targets = [i for piece in forest.split_tree(tree, size, near) for i in piece]
        assert sorted(targets) == list(range(1, len(tree.texts)))


@cases(text=st.one_of(prose, st.text(st.characters())))
def test_any_text_prints_on_one_line(text):
    assert files.printable(text).isprintable()
    assert not text.isprintable() or files.printable(text, 10**6) == text


# --------------------------------------------------------------------------------------- tokenizers


@cases(
    share=0.5,
    texts=lines,
    kind=st.sampled_from(["word", "bpe"]),
    size=st.sampled_from([0, 5, 6, 9, 261, 270, 400]),
)
def test_a_tokenizer_of_any_text(place, texts, kind, size):
    try:
        tokenizer = train_tokenizer(kind, texts, size)
    except DataError as error:
        assert size and size < 261 and "--vocab-size" in str(error)
        return
    assert tokenizer.get_vocab_size() <= (size or 4000)
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(range(len(SPECIAL)))
    assert len(word_starts(tokenizer)) == tokenizer.get_vocab_size()
    if kind == "word" and not size:
        known = [text for text in texts if "[UNK]" not in text]
        assert not any(UNK in ids for ids in encode(tokenizer, known))
    tokenizer.save(str(place / "tokenizer.json"))
    assert load_tokenizer(place / "tokenizer.json").to_str() == tokenizer.to_str()


# ------------------------------------------------------------------------------------------- spans

V = 30
rates = st.floats(0.01, 0.99) | st.sampled_from([0.15, 0.5])


@cases(
    texts=st.lists(
        st.lists(st.integers(len(SPECIAL), V - 1), min_size=1, max_size=14), min_size=1, max_size=4
    ),
    seed=seeds,
    rate=rates,
    mean_span=st.floats(1, 6),
)
def test_span_corruption_loses_nothing(texts, seed, rate, mean_span):
    idx, mask = batching.pad([torch.tensor([BOS, *text]) for text in texts])
    corrupted = spans.corrupt(idx, mask, V, gen(seed), rate, mean_span)
    source, source_mask, target, target_mask = corrupted
    for row, text in enumerate(texts):
        kept, gaps = source[row][source_mask[row]].tolist(), target[row][target_mask[row]].tolist()
        assert spans.restore(kept, gaps, V) == [BOS, *text]
        assert (kept[0], gaps[0], gaps[-1]) == (BOS, V, EOS)
        assert gaps.count(EOS) == 1
        sentinels = [i for i in kept if i >= V]
        hidden = [i for i in gaps[:-1] if i < V]
        most_hidden, most_spans = spans.most(len(text), rate, mean_span)
        assert sentinels == [i for i in gaps if i >= V] == list(range(V, V + len(sentinels)))
        assert 1 <= len(sentinels) <= most_spans
        assert 1 <= len(hidden) <= most_hidden
        assert all(not (a >= V and b >= V) for a, b in zip(kept, kept[1:]))  # gaps do not touch
    for values, real in ((source, source_mask), (target, target_mask)):
        assert (values[~real] == PAD).all()
        assert torch.equal(real, real.long().cummin(1).values.bool())  # padding is at the end


# ------------------------------------------------------------------------------------------ configs


options = st.sampled_from([field.name for field in dataclasses.fields(model.Config)])
choices = st.sampled_from(["rope", "clap", "symmetric", "relu"])
option_values = json_values | st.integers(-2, 70) | st.floats(-1, 2) | choices


@cases(values=st.dictionaries(options, option_values, max_size=4))
def test_an_invalid_config_says_what_is_wrong(values):
    try:
        config = make_config(values)
    except ValueError as error:
        assert any(name in str(error) for name in values)
        return
    with torch.device("meta"):
        if config.n_layer < 20:
            model.LanguageModel(model.Encoder(config))


# ------------------------------------------------------------------------------------ command lines


class Reached(Exception):
    """Raised when the checks are over and the work would begin."""


def reach(*_, **__):
    raise Reached


@pytest.fixture(scope="module")
def data_of(place):
    """{script: its data}, if other than the tiny corpus."""
    write_corpus(place / "tiny")
    write_pairs(place / "pairs")
    write_threads(place / "posts.jsonl")
    succeed(call("course.start", place / "answers"))
    begun = place / "answers" / "ex07_perplexity.py"  # without an answer, nothing can be trained
    text = begun.read_text(encoding="utf-8")
    begun.write_text(text.replace("raise NotImplementedError", "return 0"), encoding="utf-8")
    own = {"train_tlm": "pairs", "train_thread": "posts.jsonl", "prepare": "tiny/train_LM.txt"}
    return own | dict.fromkeys(("start", "check", "train", "grade"), "answers") | {"handout": "out"}


OTHERS = [each.name for each in TABLE if not each.kind and not each.module.startswith("bench.")]
vast = st.sampled_from([2**24, 2**31, 2**63, 2**64, -(2**64), 10**30, 10**400])
whole = (st.integers(-3, 40) | st.integers(1, 9) | vast).map(str)
extreme = st.sampled_from([0.0, -1.0, math.inf, math.nan, 1e-320])
decimal = (st.floats(0, 1) | st.floats() | extreme).map(str)
ODD = (
    *("", " ", ",", "1/2", "a,b", "en-fr", "-", "--", "'", "\\", "../x", "a" * 300, "\udcff"),
    *("toy", "tiny", "32,64", "mean+max", "last", "."),
)
some_text = st.text(st.characters(blacklist_characters="\0"), max_size=8)
anything = whole | decimal | some_text | st.sampled_from(ODD)


def command_lines(script):
    """Up to four flags of a script, most of them with values of the right type."""
    fields = [
        (name.replace("_", "-"), field)
        for name, field in script_of(script).flags.items()
        if name not in ("out", "device", "data", "text") and not field.metadata["positional"]
    ]

    def flag_of(named):
        name, field = named
        if field.type is bool:
            return st.sampled_from([f"--{name}", f"--no-{name}"])
        right = {int: whole, float: decimal}.get(field.type, anything)
        if field.metadata["choices"]:
            right = st.sampled_from([*map(str, field.metadata["choices"])])
        return st.one_of(*[right] * 8, anything).map(lambda value: f"--{name}={value}")

    some = st.sampled_from(fields).flatmap(flag_of) if fields else anything
    return st.lists(st.one_of(*[some] * 12, anything), max_size=4)


def runs_or_says_why(script, argv):
    """Assert that a command line passes all checks, or ends with one line and exit code 2."""
    try:
        outcome = call(script, *argv)
    except Reached:
        REACHED[script] += 1
        return
    assert outcome.code in (0, 2), outcome
    if outcome.code == 2:
        said = [line for line in outcome.err.split("\n") if line and not line.startswith("note: ")]
        assert len(said) == 1 and said[0].startswith(script + ".py"), outcome
        assert said[0].isprintable(), outcome


@pytest.mark.parametrize("script", TRAINING)
@cases(share=0.4, data=st.data())
def test_any_command_line_of_a_training_script(script, place, data_of, data):
    argv = data.draw(command_lines(script))
    with pytest.MonkeyPatch.context() as patch:
        opened, threads_before = Run.__init__, torch.get_num_threads()
        patch.setattr(Run, "__init__", lambda *args, **more: (opened(*args, **more), reach()))
        patch.setattr("lab.run.git_revision", lambda: "")
        data_flag = ["--data", data_of.get(script, "tiny")]
        runs_or_says_why(script, [*data_flag, "--out", "run", *argv])
        torch.set_num_threads(threads_before)
    shutil.rmtree(place / "run", ignore_errors=True)


@pytest.mark.parametrize("script", OTHERS)
@cases(share=0.2, data=st.data(), text=st.lists(anything, max_size=2))
def test_any_command_line_of_another_script(script, place, data_of, finished, data, text):
    argv, module = data.draw(command_lines(script)), script_module(script)
    flags, given = script_of(script).flags, [data_of[script]] if script in data_of else []
    if flags.keys() & {"run", "runs"}:
        given += [finished("train_mlm" if script in ("export", "probe_layers") else "train_lm")]
    for name, values in {"data": ["tiny"], "out": ["out"], "text": text}.items():
        if name in flags and not flags[name].metadata["positional"]:
            given += [word for value in values for word in (f"--{name}", value)]
    with pytest.MonkeyPatch.context() as patch:
        threads_before = torch.get_num_threads()
        patch.setattr("lab.run.git_revision", lambda: "")
        # stop where the work begins
        names = "run_all run begin draw_maps draw_positions measure draw put_in write_tools"
        for name in names.split():
            if hasattr(module, name) and script != "baselines":
                patch.setattr(module, name, reach)
        runs_or_says_why(script, [*given, *argv])
        torch.set_num_threads(threads_before)
    shutil.rmtree(place / "out", ignore_errors=True)


# ----------------------------------------------------------------------------------- files of a run

# Where in the file, how many bytes are removed there, and what is inserted.
shares = st.floats(0, 1, exclude_max=True)
lengths = st.integers(0, 64) | st.sampled_from([0, 1, 10**9])  # up to the end of the file
json_bytes = st.sampled_from([bytes([byte]) for byte in b'0123456789"{}[],:-etfn\n'])
inserted = st.binary(max_size=2) | json_bytes
edits = st.lists(st.tuples(shares, lengths, inserted), min_size=1, max_size=4)


def damaged(content, changes):
    """Bytes with some of them changed, inserted, removed or truncated."""
    for share, length, new in changes:
        at = int(share * len(content))
        content = content[:at] + new + content[at + length :]
    return content


def replaced(content, where, new):
    """A JSON text with its value number `where` replaced."""
    value, places = json.loads(content), []

    def collect(inside):
        for key, found in inside.items() if isinstance(inside, dict) else enumerate(inside):
            places.append((inside, key))
            if isinstance(found, (dict, list)):
                collect(found)

    collect(value)
    inside, key = places[where % len(places)]
    inside[key] = new
    return json.dumps(value).encode()


def changed(content, data, structured):
    if structured and data.draw(st.booleans()):
        # one JSON text, or one per line
        texts = content.splitlines() if b"}\n{" in content else [content]
        line = data.draw(st.integers(0, len(texts) - 1))
        where, new = data.draw(st.integers(0, 10**6)), data.draw(json_values)
        texts[line] = replaced(texts[line], where, new)
        return b"".join(text + b"\n" for text in texts)
    return damaged(content, data.draw(edits))


def damaged_copy(good, folder, name, data):
    """Copy a folder to another, which may exist, with one of its files changed; return it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    path = folder / name
    path.write_bytes(changed(path.read_bytes(), data, structured=".json" in path.suffix))
    return folder


def works_or_says_why(use, folder):
    """Assert that `use` works, or raises an error that names a file of the folder."""
    try:
        use()
    except (DataError, UserError) as error:
        assert str(folder) in str(error), error


@pytest.mark.parametrize("script", ["train_lm", "train_mlm", "train_classifier", "train_seq2seq"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "best.pt"])
@cases(share=0.3, data=st.data())
def test_a_run_with_a_damaged_file(script, name, place, finished, data):
    folder = damaged_copy(finished(script), place / script, name, data)

    def use():
        run = read_run(folder)
        text = [BOS, *encode(run.tokenizer, ["hope and change, no one knows"])[0]]
        text = text[: run.model.body.config.block_size]
        more = {"source": torch.tensor([text])} if run.kind == "seq2seq" else {}
        with torch.no_grad():
            run.model(torch.tensor([text]), **more)
        labelled([folder])

    works_or_says_why(use, folder)


@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
@cases(share=0.4, data=st.data())
def test_a_comparison_with_a_damaged_run(name, place, finished, data):
    folder = damaged_copy(finished("train_lm"), place / "compared", name, data)
    flags = compare.Flags([str(folder)], "comparison")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(panels, "draw_over_steps", lambda *_, **__: None)
        patch.setattr(compare, "save", lambda figure, path: None)
        works_or_says_why(lambda: compare.compare(flags), folder)


RESUMED = ("config.json", "tokenizer.json", "metrics.jsonl", "checkpoint.pt", "best.pt")


@cases(share=0.4, name=st.sampled_from(RESUMED), data=st.data())
def test_a_run_that_resumes_from_a_damaged_file(corpus, place, finished, name, data):
    folder = damaged_copy(finished("train_lm"), place / "resumed", name, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script_module("train_lm"), "draw_curve", lambda *_: None)
        argv = [*SHORT["train_lm"], "--data", corpus, "--out", folder, "--resume"]
        runs_or_says_why("train_lm", argv)


@pytest.fixture(scope="module")
def hugging_face(corpus, tmp_path_factory):
    """A small RoBERTa in the form of Hugging Face."""
    folder = tmp_path_factory.mktemp("roberta")
    flags = dict(no_norm_first=True, tokenizer="bpe", vocab_size=300)
    train("train_mlm", **flags, data=corpus, out=folder / "run")
    export_roberta(read_run(folder / "run"), folder / "hf")
    return folder / "hf"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@cases(share=0.3, data=st.data())
def test_a_damaged_roberta(name, place, hugging_face, data):
    folder = damaged_copy(hugging_face, place / "hf", name, data)

    def use():
        roberta, tokenizer = load_roberta(folder)
        encode(tokenizer, ["hope and change"])
        with torch.no_grad():
            roberta(torch.tensor([[BOS, 7, EOS]][: roberta.body.config.block_size]))

    works_or_says_why(use, folder)


@cases(share=0.4, data=st.data())
def test_damaged_shards(place, data_of, data):
    good = place / "well prepared"
    if not good.exists():
        succeed(call("prepare", place / "tiny" / "train_LM.txt", vocab_size=300, out=good))
    names = sorted(path.name for path in good.iterdir() if path.suffix in (".json", ".bin"))
    folder = damaged_copy(good, place / "prepared", data.draw(st.sampled_from(names)), data)

    def use():
        return [stream[0:5] for stream in shards.Prepared(folder).streams.values()]

    works_or_says_why(use, folder)
