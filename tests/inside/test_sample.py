"""Sampling: filled masks, continuations, classes, several texts, and threads."""

import io
import re
from types import SimpleNamespace

import pytest
import torch
from helpers import call, fails, succeed

from data.files import read_json, write_json
from data.tokenizer import SPECIAL, train_tokenizer
from lab import load_run
from lab.inside.texts import encode_texts
from lab.inside.writing import Sampler, continue_ids, next_logits
from sample import fill_masks

N_SPECIAL = len(SPECIAL)
TEXT = "this is a small sentence"
THREAD = ["the people of the world", "we will work with us", "this [MASK] is a world"]


@pytest.mark.parametrize("words", ["word", "bpe"])
def test_masks_from_the_command_line(make, words):
    folder = make("mlm", words, block_size=20)
    ask = ("--text", "this [MASK] small [MASK] qwx", "--top-k", 3)
    out = succeed(call("sample", folder, *ask)).out
    assert ("note: unknown words, read as [UNK]: qwx" in out) == (words == "word")
    *_, filled = out.splitlines()
    tables = re.findall(r"mask \d\n  +\d+\.\d%  (.*)\n(?:  .*\n){2}", out)  # the best of three
    first, second = tables if words == "bpe" else (f" {word}" for word in tables)
    assert filled == f"this{first} small{second} qwx".replace("␣", " ")


@pytest.mark.parametrize("build", [{}, {"members": 2}])
def test_a_text_is_written_word_by_word(make, build):
    run = load_run(make(pos="alibi", build=build))
    (ids,) = encode_texts(run, [TEXT]).ids
    expected = ids
    for _ in range(6):
        word = N_SPECIAL + next_logits(run, expected)[N_SPECIAL:].argmax(-1, keepdim=True)
        expected = torch.cat([expected, word])
    assert continue_ids(run, ids, 6, Sampler(temperature=0)).tolist() == expected.tolist()


def test_learned_positions_see_the_last_block_only(make):
    for pos in ("learned", "nope"):
        run = load_run(make(name=pos, pos=pos, block_size=5))
        V = run.tokenizer.get_vocab_size()
        ids = torch.randint(N_SPECIAL, V, (12,))
        changed = ids.clone()
        changed[0] = ids[0] % (V - N_SPECIAL) + N_SPECIAL  # another word
        logits = [next_logits(run, text) for text in (ids, changed)]
        assert torch.equal(*logits) == (pos == "learned")


def test_the_same_seed_writes_the_same_text(make):
    ask = (make(), "--text", "this is ", "--tokens", 15, "--temperature", 1.5)
    first = succeed(call("sample", *ask)).out
    assert first == call("sample", *ask).out != call("sample", *ask, "--seed", 1).out
    texts = re.split(r"--- sample \d\n", first)[1:]
    assert len(texts) == 3 == len(set(texts)) and all(text.startswith("this is") for text in texts)
    one = call("sample", *ask, samples=1).out
    assert first.startswith(one)  # more samples do not change the first


def test_gaps_are_filled_and_sentences_translated(finished):
    pytest.importorskip("sacrebleu", reason="the extra beyond is not installed")
    run = load_run(finished("beyond.train_seq2seq"))
    for filled in run.sample("we want [MASK] today .", n=2):
        assert filled.startswith("we want ") and filled.endswith("today .".replace(" .", "."))
        assert "[MASK]" not in filled
    folder = finished("beyond.train_seq2seq", "--task", "translate")
    out = succeed(call("sample", folder, text="we want peace today .", samples=1)).out
    assert out.startswith("--- most likely words\n") and out.count("---") == 2


def test_every_text_has_an_answer_that_says_which(make, tmp_path):
    folder = make("mlm", block_size=20)
    texts = ["this [MASK] a", "we [MASK] work", "the [MASK]"]
    path = tmp_path / "texts.txt"
    path.write_text("\n" + texts[2] + "\n\n", encoding="utf-8")
    told = call("sample", folder, text=texts[:2], file=path).out
    alone = [call("sample", folder, "--text", text).out for text in texts]
    answers = [f"\ntext {i}: {text}\n{out}" for i, (text, out) in enumerate(zip(texts, alone), 1)]
    table = folder / "answers.tsv"
    assert told == "".join(answers) + f"table of the answers: {table}\n"
    header, *rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    assert header == ['"text"', '"answer 1"']
    assert rows == [[text, out.splitlines()[-1]] for text, out in zip(texts, alone)]


def test_labelled_rows_are_scored(make, tmp_path):
    folder, path = make("classifier"), tmp_path / "rows.tsv"
    rows = [("a", "this is"), ("b", "the world"), ("b", "we will work")]
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    out = succeed(call("sample", folder, "--file", path)).out
    answers = load_run(folder).classify(*(text for _, text in rows))
    right = sum(next(iter(answer)) == label for answer, (label, _) in zip(answers, rows))
    assert f"accuracy {right / 3:.1%} on 3 rows" in out
    header, *lines = (folder / "answers.tsv").read_text(encoding="utf-8").splitlines()
    assert header.replace('"', "").split("\t") == ["text", "gold", "predicted", "a", "b"]
    answers = [(text, label, next(iter(answer))) for (label, text), answer in zip(rows, answers)]
    assert [tuple(line.split("\t")[:3]) for line in lines] == answers
    path.write_text("c\tthis is\n", encoding="utf-8")
    fails(call("sample", folder, "--file", path), "unknown label 'c'")


TABLES = {
    "labelled": "a\tthis is\nb\tthe world\n",
    "with a header": "id\tlabel\tsentence\n1\ta\tthis is\n2\tb\tthe world\n",
    "with the run's columns": "mine\tfirst\na\tthis is\nb\tthe world\n",
    "without labels": "id\ttext\n1\tthis is\n2\tthe world\n",
}


@pytest.mark.parametrize("table", TABLES)
def test_a_txt_with_rows_is_read_as_a_tsv(table, make, tmp_path):
    folder = make("classifier")
    config = read_json(folder / "config.json")
    config["flags"]["columns"] = "mine,first"
    write_json(folder / "config.json", config)
    answers = []
    for ending in ("txt", "tsv"):
        path = tmp_path / f"rows.{ending}"
        path.write_text(TABLES[table], "utf-8")
        succeed(call("sample", folder, file=path))
        answers.append((folder / "answers.tsv").read_text("utf-8"))
    assert answers[0] == answers[1]
    assert "this is\t" in answers[0] and "a\tthis is" not in answers[0]


def test_a_txt_with_tabs_in_its_texts_is_read_as_lines(make, tmp_path):
    folder, path = make("classifier"), tmp_path / "texts.txt"
    path.write_text("this\tis\nthe world\n", "utf-8")
    succeed(call("sample", folder, file=path))
    _, *lines = (folder / "answers.tsv").read_text("utf-8").splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("text, words, filled", [
    ("a house [MASK]", ".", "a house."), ("a [MASK] inédite .", "house", "a house inédite ."),
    ("d [MASK] une [MASK][MASK]", "' house !", "d'une house!"), ("l'[MASK] ", "house", "l'house"),
])  # fmt: skip
def test_marks_are_joined_to_the_text_that_they_fill(text, words, filled):
    run = SimpleNamespace(tokenizer=train_tokenizer("word", ["a"]))
    run.fill = lambda *_, n: [[(word, 1.0)] for word in words.split()]
    flags = SimpleNamespace(top_k=1)
    assert fill_masks(run, [text], flags) == [filled]


@pytest.mark.parametrize("kind, n_answers", [("classifier", 3), ("lm", 3)])
def test_rows_without_labels_keep_their_further_columns(kind, n_answers, make, tmp_path):
    folder, path = make(kind), tmp_path / "test.csv"
    path.write_text("id,text,source\n7,this is,web\n8,the world,book\n", encoding="utf-8")
    out = succeed(call("sample", folder, "--text", "we will", "--file", path, tokens=2)).out
    assert "accuracy" not in out
    header, *rows = [x.split("\t") for x in (folder / "answers.tsv").read_text().splitlines()]
    assert header[:3] == ['"id"', '"source"', '"text"'] and len(header) == 3 + n_answers
    assert [row[:3] for row in rows] == [
        ["", "", "we will"],
        ["7", "web", "this is"],
        ["8", "book", "the world"],
    ]


@pytest.mark.parametrize("header", ["gold,first,second", "first,second", "text1,text2"])
def test_columns_are_those_of_the_run(header, make, tmp_path):
    """A file without them has usual names."""
    folder = make("classifier")
    config = read_json(folder / "config.json")
    config["flags"]["columns"] = "gold,first,second"
    write_json(folder / "config.json", config)
    path, n = tmp_path / "mine.csv", header.count(",")
    path.write_text(
        header + "\n" + ",".join(["a"] * (n - 1) + ["small sentence", "we work"]), "utf-8"
    )
    out = succeed(call("sample", folder, file=path)).out
    assert "small sentence [EOS] we work" in (folder / "answers.tsv").read_text("utf-8"), out


def test_the_comment_of_a_thread_is_filled_given_its_ancestors(make):
    folder = make("thread", build={"n_ancestors": 1})
    out = succeed(call("sample", folder, text=THREAD, top_k=3)).out
    words = [line.split()[-1] for line in out.splitlines() if "%" in line]
    assert len(words) == 3
    assert out.splitlines()[-1] == THREAD[2].replace("[MASK]", words[0])
    alone, given = (load_run(folder).fill(*texts) for texts in (THREAD[2:], THREAD[1:]))
    assert alone != given == load_run(folder).fill(*THREAD)  # only the nearest ancestor is read


@pytest.mark.parametrize("text", ["one\u2028two\nthree\x85four\n", "", b"caf\xe9\n"])
def test_standard_input_is_read_as_a_file_is(text, make, tmp_path, monkeypatch):
    raw, folder = text if isinstance(text, bytes) else text.encode(), make("classifier")
    (tmp_path / "texts.txt").write_bytes(raw)
    of_file = call("sample", folder, file=tmp_path / "texts.txt")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    piped = call("sample", folder, file="-")
    assert (piped.code, piped.out) == (of_file.code, of_file.out)
    assert piped.err == of_file.err.replace(str(tmp_path / "texts.txt"), "-")


def test_a_typed_name_of_a_gap_is_refused(finished):
    folder = finished("beyond.train_seq2seq")
    fails(call("sample", folder, text="we want [S0] and [MASK] ."), "write [MASK] for each gap")


MISTAKES = [
    ("mlm", ("--text", TEXT), "no [MASK] found"),
    ("lm", ("--text", "this [MASK]"), "runs of train_mlm.py"),
    ("classifier", ("--text", " "), "contains no words"),
    ("classifier", (), "--text: give a text"),
    ("mlm", ("--text", "[MASK] " * 40), "learned positions end at 31; shorten it"),
    ("lm", ("--text", TEXT, "--temperature", "-1"), "--temperature -1.0: must be at least 0"),
    ("mlm", ("--file", "late.txt"), "text 'this': no [MASK] found"),
    ("lm", ("--text", TEXT, "--top-k", "-1"), "--top-k -1: must be at least 0"),
    ("lm", ("--text", TEXT, "--samples", "0"), "--samples 0: must be at least 1"),
    ("lm", ("--text", "-Hello you"), "-Hello you: give a value, or write --text='-Hello you'"),
]


@pytest.mark.parametrize("kind, argv, message", MISTAKES)
def test_mistakes_are_told(kind, argv, message, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.txt").write_text("this [MASK]\nthis\n")
    fails(call("sample", make(kind), *argv), message)
