"""Sampling: filled masks, continuations, classes, several texts, and threads."""

import io
import re

import pytest
import torch
from helpers import assert_complains, call, make_run, succeed

from data import batching
from data.tokenizer import BOS, MASK, SPECIAL
from lab import load_run
from lab.inside.answers import next_words
from lab.load import read_run

N_SPECIAL = len(SPECIAL)
TEXT = "this is a small sentence"


def ids_of(run, text):
    return torch.tensor([BOS, *run.tokenizer.encode(text, add_special_tokens=False).ids])


# ---------------------------------------------------------------------------- masks


@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_masks_from_the_command_line(tmp_path, tokenizer):
    folder = make_run(tmp_path / "run", "mlm", tokenizer, block_size=20)
    ask = ("--text", "this [MASK] small [MASK] qwx", "--top-k", 3)
    out = succeed(call("sample", folder, *ask)).out
    lines = out.splitlines()
    tables = lines[:-1] if tokenizer == "bpe" else lines[1:-1]
    assert ("note: unknown words, read as [UNK]: qwx" in out) == (tokenizer == "word")
    assert tables[0] == "mask 1" and tables[4] == "mask 2" and len(tables) == 8
    assert all(re.match(r"  +\d+\.\d%  ", line) for line in tables[1:4] + tables[5:])
    assert "[MASK]" not in lines[-1] and lines[-1].startswith("this") and lines[-1].endswith("qwx")
    first, second = (tables[i].split("%  ")[1] for i in (1, 5))
    if tokenizer == "word":
        assert lines[-1] == f"this {first} small {second} qwx"
    else:
        assert lines[-1] == f"this{first} small{second} qwx".replace("␣", " ")


def test_byte_level_words_show_their_space(tmp_path):
    run = load_run(make_run(tmp_path / "run", "mlm", "bpe", block_size=20))
    words = [word for word, _ in run.fill("this [MASK] is", n=10**6)[0]]
    assert {"is", "␣is", "␣", "⏎"} <= set(words) and not {"", " ", "\n"} & set(words)


# ---------------------------------------------------------------------------- continuations


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_next_words_are_a_tempered_distribution(tmp_path, temperature):
    run = read_run(make_run(tmp_path / "run", pos="rope"))
    ids = ids_of(run, TEXT)
    words, probabilities = next_words(run.model, ids, temperature, 7)
    logits = run.model(ids[None])[0, -1]
    best = logits[N_SPECIAL:].argsort(descending=True)[:7] + N_SPECIAL
    assert words.tolist() == best.tolist()
    assert torch.allclose(probabilities, (logits[best] / temperature).softmax(-1))
    assert torch.allclose(probabilities.sum(), torch.ones(()))


@pytest.mark.parametrize("temperature", [0, 1e-320])
def test_a_temperature_of_next_to_nothing_is_greedy(temperature, tmp_path):
    run = read_run(make_run(tmp_path / "run", pos="rope"))
    _, probabilities = next_words(run.model, ids_of(run, TEXT), temperature, 7)
    # where a processor flushes such a number to 0, there is only the one
    assert probabilities[0] == 1 and probabilities.sum() == 1


def test_learned_positions_see_the_last_block_only(tmp_path):
    for pos in ("learned", "nope"):
        run = read_run(make_run(tmp_path / pos, pos=pos, block_size=5))
        V = run.tokenizer.get_vocab_size()
        ids = torch.randint(N_SPECIAL, V, (12,))
        changed = ids.clone()
        changed[0] = ids[0] % (V - N_SPECIAL) + N_SPECIAL  # another word
        shares = [next_words(run.model, text, 1.0, 9)[1] for text in (ids, changed)]
        assert torch.equal(*shares) == (pos == "learned")


def test_the_same_seed_writes_the_same_text(tmp_path):
    folder = make_run(tmp_path / "run")
    ask = (folder, "--text", "this is ", "--tokens", 15, "--temperature", 1.5)
    first = call("sample", *ask)
    assert first.code == 0 and first == call("sample", *ask) != call("sample", *ask, "--seed", 1)
    texts = re.split(r"--- sample \d\n", first.out)[1:]
    assert len(texts) == 3 == len(set(texts)) and all(text.startswith("this is") for text in texts)
    one = call("sample", *ask, samples=1)
    assert first.out.startswith(one.out)  # more samples do not change the first


def test_a_prompt_is_shown_as_typed_and_greedy_is_written_once(tmp_path):
    folder = make_run(tmp_path / "run")
    code, out, _ = call("sample", folder, text="this  Zorg is", tokens=3, temperature=0)
    assert code == 0 and "read as [UNK]: Zorg" in out and out.count("---") == 1
    assert out.splitlines()[-1].startswith("this  Zorg is") and "[UNK]" not in out.splitlines()[-1]
    assert call("sample", folder, tokens=3, samples=1)[0] == 0  # a text can begin with nothing


# ---------------------------------------------------------------------------- several texts


def test_every_text_has_an_answer_that_says_which(tmp_path):
    folder = make_run(tmp_path / "run", "mlm", block_size=20)
    texts = ["this [MASK] a", "we [MASK] work", "the [MASK]"]
    path = tmp_path / "texts.txt"
    path.write_text("\n" + texts[2] + "\n\n", encoding="utf-8")
    told = call("sample", folder, "--text", texts[0], "--text", texts[1], "--file", path)
    alone = [call("sample", folder, "--text", text)[1] for text in texts]
    answers = [f"text {i}: {text}\n{out}" for i, (text, out) in enumerate(zip(texts, alone), 1)]
    table = folder / "answers.tsv"
    assert told == (0, "\n".join(answers) + f"table of the answers: {table}\n", "")
    header, *rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    assert header == ["text", "answer 1"]
    assert rows == [[text, out.splitlines()[-1]] for text, out in zip(texts, alone)]


def test_texts_from_standard_input(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run", "classifier")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"this is\n\nthe world\n")))
    done = succeed(call("sample", folder, "--file", "-"))
    assert re.findall(r"[ab] +\d+\.\d%  (.*)", done.out) == ["this is", "the world"]


def test_labelled_rows_are_scored(tmp_path):
    folder, path = make_run(tmp_path / "run", "classifier"), tmp_path / "rows.tsv"
    rows = [("a", "this is"), ("b", "the world"), ("b", "we will work")]
    path.write_text("".join(f"{label}\t{text}\n" for label, text in rows), encoding="utf-8")
    code, out, _ = call("sample", folder, "--file", path, "--table", tmp_path / "table.tsv")
    run = load_run(folder)
    answers = run.classify(*(text for _, text in rows))
    right = sum(next(iter(answer)) == label for answer, (label, _) in zip(answers, rows))
    assert code == 0 and f"accuracy {right / 3:.1%} on 3 labelled rows, including" in out
    header, *lines = (tmp_path / "table.tsv").read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["text", "gold", "predicted", "a", "b"]
    for line, (label, text), answer in zip(lines, rows, answers):
        cells = line.split("\t")
        assert cells[:3] == [text, label, next(iter(answer))]
        assert list(map(float, cells[3:])) == pytest.approx([answer["a"], answer["b"]], abs=1e-6)
    path.write_text("c\tthis is\n", encoding="utf-8")
    assert_complains(call("sample", folder, "--file", path), "unknown label 'c'")


# ---------------------------------------------------------------------------- threads

THREAD = ("the people of the world", "we will work with us", "this [MASK] is a world")


def ask(texts):
    return [word for text in texts for word in ("--text", text)]


def test_the_comment_of_a_thread_is_filled_given_its_ancestors(tmp_path):
    folder = make_run(tmp_path / "run", "thread")
    out = succeed(call("sample", folder, *ask(THREAD), "--top-k", 3)).out
    assert out.count("mask ") == 1
    assert "note: unknown words, read as [UNK]: us" in out
    run = read_run(folder)
    texts, _ = batching.sentences(run.tokenizer, THREAD[1::-1], 32)  # the parent first
    memory = {"texts": batching.pad(texts)[0], "texts_mask": batching.pad(texts)[1]}
    memory |= {"ancestors": torch.tensor([[0, 1]]), "ancestors_mask": torch.ones(1, 2).bool()}
    ids = ids_of(run, THREAD[2])
    logits = run.model(ids[None], **memory)[0, ids == MASK][0]
    best = logits[N_SPECIAL:].argsort(descending=True)[:3] + N_SPECIAL
    words = [line.split()[-1] for line in out.splitlines()[2:5]]
    assert words == [run.tokenizer.id_to_token(int(i)) for i in best]
    assert out.splitlines()[-1] == THREAD[2].replace("[MASK]", words[0])


def test_a_comment_alone_is_read_without_ancestors(tmp_path):
    folder = make_run(tmp_path / "run", "thread", n_ancestors=1)
    alone = call("sample", folder, "--text", THREAD[2])[1]
    given = call("sample", folder, *ask(THREAD[1:]))[1]
    far = call("sample", folder, *ask(THREAD))[1]
    assert alone != given == far  # only the nearest ancestor is read


# ---------------------------------------------------------------------------- classes, trained runs


FILES = {  # each is a mistake, which is found before any answer is printed
    "blank.txt": b" \n\n",
    "latin.txt": b"one\ncaf\xe9\n",
    "nul.txt": b"one\ntwo\0\n",
    "late.txt": b"this [MASK]\nthis\n",
}


@pytest.mark.parametrize(
    "kind, argv, message",
    [
        ("mlm", ("--text", TEXT), "no [MASK] found"),
        ("thread", ask(THREAD[::-1]), f"text {THREAD[0]!r}: no [MASK] found"),
        ("lm", ("--text", "this [MASK]"), "run of train_mlm.py"),
        ("classifier", ("--text", " "), "contains no words"),
        ("classifier", (), "--text: give a text, or a file of texts"),
        ("mlm", ("--text", "[MASK] " * 40), "learned positions end at 32; shorten it"),
        ("mlm", ("--text", "[MASK]", "--tokens", "3"), "--tokens 3: "),
        ("classifier", ("--text", TEXT, "--top-k", "3"), "writes no text; leave that out"),
        ("lm", ("--text", TEXT, "--table", "."), "--table .: give a file, in a folder that exists"),
        ("lm", ("--text", TEXT, "--table", "no/t.tsv"), "--table no/t.tsv: give a file"),
        ("mlm", ("--file", "blank.txt"), "blank.txt: contains no text"),
        ("mlm", ("--file", "latin.txt"), "latin.txt:2: not UTF-8 (byte 0xe9); save the file as"),
        ("mlm", ("--file", "nul.txt"), "nul.txt:2: holds a NUL character"),
        ("mlm", ("--file", "late.txt"), "text 'this': no [MASK] found"),
        ("mlm", ("--file", "no.txt"), "no.txt: no such file"),
    ],
)
def test_mistakes_are_one_line(kind, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    done = call("sample", make_run(tmp_path / "run", kind), *argv)
    assert_complains(done, message)
    assert done.out == ""


def test_a_run_that_has_not_ended_is_used_with_a_word_of_warning(tmp_path):
    folder = make_run(tmp_path / "cut")
    note = f"note: the run in {folder} has not ended; its weights are those of step 3\n"
    for expected in ("", note):
        done = call("sample", folder, text="this is", samples=1, tokens=2)
        assert (done.code, done.err) == (0, expected)
        (folder / "result.json").unlink(missing_ok=True)
        state = torch.load(folder / "best.pt", weights_only=True)
        torch.save(state | {"step": 3}, folder / "best.pt")
