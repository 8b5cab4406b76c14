"""Invalid files, folders and runs: one line that names them and the remedy, and exit code 2.

Nothing that was there is changed.
"""

import errno
import io
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import (
    ROOT,
    SHORT,
    assert_complains,
    assert_same_run,
    call,
    contents,
    edit,
    half,
    succeed,
    swap,
    train,
    unchanged,
)

from data import locks
from data.tokenizer import train_tokenizer
from lab.records import read_metrics


def test_a_process_ends_with_one_line_and_exit_code_2(shell, tmp_path):
    (tmp_path / "bad.tsv").write_text("0\tfine\nno tab here\n", encoding="utf-8")
    outcome = shell("train_classifier", data="bad.tsv")
    assert_complains(outcome, "train_classifier.py: bad.tsv:2: no tab")
    assert outcome.out == "" and [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]


def test_without_a_compiler_compile_gives_one_line(monkeypatch, tmp_path):
    def fail(model):
        raise torch._dynamo.exc.TorchDynamoException("No working C++ compiler found")

    monkeypatch.setattr("train_lm.compile_blocks", fail)
    outcome = call("train_lm", "--compile", out=tmp_path / "run")
    assert_complains(outcome, "--compile: failed (No working C++ compiler", "leave --compile out")


def test_mps_of_an_older_torch_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.12.1"))
    outcome = call("train_lm", device="mps", out=tmp_path / "run")
    assert_complains(outcome, "torch 2.12.1 computes attention wrongly", "--device cpu")


# -------------------------------------------------------------------------------------------- files

ROWS = b"0\tone of them\n1\tanother one\n2\ta third one\n"
NOT_UTF_8 = ["LM.txt:2: not UTF-8 (byte 0xff)", 'LM.txt" > new.txt']
FILES = {  # {script: (file, its content, what the message says)}
    "train_classifier": [
        ("train_CLS.tsv", b" \n\n\n", ["train_CLS.tsv: the file is empty"]),
        ("train_CLS.tsv", ROWS + b"7\tnobody\n", ["train_CLS.tsv:4: unknown label '7'", "0, 1, 2"]),
        ("test_CLS.tsv", b"obama\ta\n", ["test_CLS.tsv:1: unknown label 'obama'", "one of 0, 1"]),
        ("train_CLS.tsv", None, ["holds no", "train_CLS.tsv"]),
        ("test_CLS.tsv", None, ["test_CLS.tsv: no such file", "check the path"]),
    ],
    "train_lm": [
        ("test_LM_obama.txt", b"", ["test_LM_obama.txt: the file is empty"]),
        ("train_LM.txt", b"\xef\xbb\xbfa\n\xff\n", NOT_UTF_8),
        ("train_LM.txt", "words\n".encode("utf-16"), ["train_LM.txt:1: not UTF-8", "UTF-16"]),
        ("train_LM.txt", b"one\ntwo\0\n", ["train_LM.txt:2: holds a NUL character"]),
        ("test_LM_valid.txt", b"one\n", ["valid is the name of another set", "rename"]),
        ("test_LM_a@b.txt", b"one\n", ["must not contain @", "rename"]),
        ("train_LM.txt", b"too short\n", ["--block-size 12", "use a smaller block"]),
        ("train_LM.txt", None, ["holds no running text", "train_LM.txt"]),
    ],
    "train_seq2seq": [
        ("train_LM.txt", b"one line\n", ["too little text to hold out --valid 0.2"]),
        ("train_LM.txt", None, ["holds no running text", "--task translate"]),
    ],
}


@pytest.mark.parametrize("script, row", [(name, row) for name in FILES for row in FILES[name]])
def test_a_file_that_is_wrong(script, row, own_corpus, tmp_path):
    name, content, parts = row
    if content is None:
        (own_corpus / name).unlink()
    else:
        (own_corpus / name).write_bytes(content)
    with unchanged(tmp_path):
        outcome = call(script, *SHORT[script], data=own_corpus, out=tmp_path / "run")
        assert_complains(outcome, *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name, content, parts",
    [
        ("", None, ["neither train_CLS.tsv nor train_LM.txt"]),
        ("nowhere", None, ["no such corpus, folder or file", "toy, pydocs, speeches"]),
        ("nowhere.txt", None, ["no such file", "check the path"]),
        ("nowhere.tsv", None, ["no such file"]),
        ("mine.json", b"{}\n", ["only folders, .txt, .tsv and .csv", "rename or convert"]),
        ("mine.txt", b"%PDF-1.4\n\xe2\n", ["mine.txt:2: not UTF-8", "it is a PDF, Word"]),
        ("mine.txt", b"a single line\n", ["single line", "break it into lines"]),
        ("mine.tsv", b"a\tone\na\ttwo\n", ["of several rows each, found 1 in 2 rows"]),
        ("mine.tsv", b"a\tone\nb\ttwo\nc\tthree\nd\tfour\n", ["found 4 in 4 rows"]),
    ],
)
def test_a_corpus_that_cannot_be_read(name, content, parts, tmp_path):
    if content:
        (tmp_path / name).write_bytes(content)
    outcome = call("train_classifier", data=tmp_path / name, out=tmp_path / "run")
    assert_complains(outcome, tmp_path / name, *parts)
    assert not (tmp_path / "run").exists()


def test_the_folder_around_a_corpus_names_it(own_corpus):
    told = call("train_lm", data=own_corpus.parent)
    assert_complains(told, "neither train_CLS.tsv nor", f"give its folder {own_corpus.name}")


@pytest.mark.parametrize("script", ["train_lm", "train_classifier"])
def test_windows_line_ends_give_equal_results(script, own_corpus, finished, tmp_path):
    unix = finished(script)  # on the same text
    for path in own_corpus.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    train(script, data=own_corpus, out=tmp_path / "windows")
    assert_same_run(tmp_path / "windows", unix)


@pytest.mark.parametrize(
    "script, told", [("train_classifier", "15 test sentences are"), ("train_mlm", "lines are")]
)
def test_sentences_longer_than_a_block_are_counted(script, told, corpus, tmp_path):
    done = train(script, block_size=6, data=corpus, out=tmp_path / "run")
    assert f"{told} longer than --block-size 6 and" in done.out


# ------------------------------------------------------------------------------ the folder to write


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a folder")
def test_a_file_system_without_locks_can_be_used(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    locks.lock_folder(tmp_path)
    locks.unlock_folders()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a folder")
def test_a_folder_in_use_by_another_process_is_left_alone(corpus, copied):
    folder = copied("train_lm")
    (folder / "checkpoint.pt").unlink()  # looks like a run that has just begun
    before = contents(folder)
    holds = (
        "import sys; sys.path.insert(0, sys.argv[1]); from data import locks; "
        "locks.lock_folder(sys.argv[2]); print('held', flush=True); sys.stdin.read()"
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", holds, ROOT, folder], **pipes) as other:
        assert other.stdout.readline() == "held\n"
        for argv in ([], ["--overwrite"], ["--resume"]):
            outcome = call("train_lm", *SHORT["train_lm"], *argv, data=corpus, out=folder)
            assert_complains(outcome, "another process is training there")
            assert contents(folder) == before
        other.stdin.close()
    # the other process has gone
    train("train_lm", data=corpus, out=folder, overwrite=True)


def test_a_run_that_ends_just_before_the_folder_is_locked_is_kept(
    corpus, finished, tmp_path, monkeypatch
):
    folder, other = tmp_path / "run", finished("train_lm")  # which trains, before locks are patched

    def lock_folder(path):
        shutil.copytree(other, folder, dirs_exist_ok=True)

    monkeypatch.setattr(locks, "lock_folder", lock_folder)
    outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=folder)
    assert_complains(outcome, folder, "already holds a run", "--overwrite")


@pytest.mark.parametrize("argv", [[], ["--overwrite"]])
@pytest.mark.parametrize("there", ["essay.txt", "config.json tokenizer.json model.safetensors"])
def test_a_folder_with_something_else_is_left_alone(there, argv, corpus, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in there.split():  # the second is a model of another library
        (folder / name).write_text('{"architectures": ["of somebody else"]}')
    with unchanged(folder):
        outcome = call("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, *argv)
        assert_complains(outcome, f"--out {folder}", "not empty", "choose another folder")


def test_a_run_just_begun_with_a_users_file_is_kept(corpus, copied):
    folder = copied("train_lm")
    for path in folder.iterdir():
        if path.name not in ("config.json", "tokenizer.json", "metrics.jsonl", "best.pt"):
            path.unlink()
    with unchanged(folder):  # two evaluations: its checkpoints were deleted to save space
        outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=folder)
        assert_complains(outcome, folder, "already holds a run")
    (folder / "metrics.jsonl").unlink()  # as if it was interrupted before its first checkpoint
    (folder / "notes.txt").write_text("my observations")
    outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=folder)
    assert_complains(outcome, folder, "already holds a run")
    assert (folder / "notes.txt").read_text() == "my observations"


def test_a_run_to_start_from_is_not_overwritten(corpus, copied):
    folder = copied("train_mlm")
    for script, name in (("train_mlm", "--init-from"), ("train_classifier", "--encoder")):
        source = folder / ".." / folder.name  # spelled otherwise than --out
        argv = (name, source, "--data", corpus, "--out", folder, "--overwrite")
        with unchanged(folder):
            assert_complains(call(script, *argv), f"--out {folder}", name, "another folder")


def test_a_file_where_the_folder_should_be(corpus, tmp_path):
    (tmp_path / "file").write_text("precious")
    for out, what in (("file", "file: is a file; "), ("file/run", "")):
        outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=tmp_path / out)
        assert_complains(outcome, tmp_path / "file", f"{what}choose another")
    assert (tmp_path / "file").read_text() == "precious"


# ---------------------------------------------------------------------------------- the run to read


def saved(value):
    """What torch.save writes, whatever the file held."""
    file = io.BytesIO()
    torch.save(value, file)
    return lambda _: file.getvalue()


FEW_WORDS = train_tokenizer("word", ["too few words"]).to_str().encode()


@pytest.mark.parametrize(
    "name, how, parts",
    [
        ("config.json", half, ["not valid JSON", "restore"]),
        ("config.json", None, ["no config.json"]),
        ("tokenizer.json", None, ["no such file"]),
        ("tokenizer.json", lambda _: FEW_WORDS, ["has 8 entries", "different runs"]),
        ("tokenizer.json", swap(b"[MASK]", b"[HIDE]"), ["does not begin with [PAD]"]),
        ("best.pt", None, ["no best.pt", "--resume"]),
    ],
)
def test_an_encoder_that_is_damaged(name, how, parts, corpus, copied, tmp_path):
    folder = copied("train_mlm")
    edit(folder / name, how)
    with unchanged(folder):
        outcome = call("train_classifier", encoder=folder, data=corpus, out=tmp_path / "new")
        assert_complains(outcome, folder, *parts)
    assert not (tmp_path / "new").exists()


def test_an_encoder_that_does_not_fit(corpus, finished, tmp_path):
    train("train_lm", data=corpus, members=2, out=tmp_path / "two")
    for encoder, argv, parts in (
        (tmp_path / "nowhere", (), ["no such run folder"]),
        (corpus, (), ["no config.json"]),
        (finished("train_classifier"), (), ["of kind 'classifier'", "train_mlm.py or train_lm.py"]),
        (tmp_path / "two", ("--pos", "nope"), ["is an ensemble", "give a run of one model"]),
        (finished("train_mlm"), ("--causal",), ["--causal", "is an encoder", "leave --causal out"]),
    ):
        given = dict(encoder=encoder, data=corpus, out=tmp_path / "run")
        told = call("train_classifier", *argv, **given)
        assert_complains(told, f"--encoder {encoder}", *parts)
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------- the run to resume


@pytest.mark.parametrize(
    "name, how, parts",
    [
        ("checkpoint.pt", saved({"model": {}}), ["checkpoint.pt: not the checkpoint", "restore"]),
        ("checkpoint.pt", None, ["--resume", "holds no checkpoint.pt", "leave --resume out"]),
        ("config.json", half, ["config.json: not valid JSON"]),
        ("tokenizer.json", half, ["tokenizer.json: not a tokenizer file", "restore"]),
        ("metrics.jsonl", lambda c: b"{\n" + c, ["metrics.jsonl: not readable", "restore"]),
        ("metrics.jsonl", None, ["metrics.jsonl: lacks the evaluations", "--overwrite"]),
        ("config.json", None, ["run: no config.json"]),
        ("config.json", swap(b'"accumulate": 1', b'"accumulate": "1"'), ["accumulate of a wrong"]),
        ("config.json", swap(b'"auto"', b'"half"'), ["half: no such choice", "restore the file"]),
    ],
)
def test_a_run_that_cannot_be_resumed(name, how, parts, corpus, copied):
    folder = copied("train_lm")
    edit(folder / name, how)
    if name == "checkpoint.pt":
        (folder / "previous.pt").unlink()  # or the run would resume from that
    with unchanged(folder):
        outcome = call("train_lm", *SHORT["train_lm"], data=corpus, out=folder, resume=True)
        assert_complains(outcome, folder, *parts)


def test_resume_with_another_script_names_the_right_one(finished):
    folder = finished("train_classifier")
    with unchanged(folder):
        outcome = call("train_lm", resume=True, out=folder)
        command = f"python train_classifier.py --resume --out {folder}"
        assert_complains(outcome, f"{folder} is a run of train_classifier.py", command)


def test_resume_with_data_that_has_changed(own_corpus, tmp_path):
    argv = (*SHORT["train_lm"], "--data", own_corpus, "--out", tmp_path / "run")
    succeed(call("train_lm", *argv))
    text = (own_corpus / "train_LM.txt").read_text(encoding="utf-8")
    (own_corpus / "train_LM.txt").write_text(text.replace("ranch", "farm"), encoding="utf-8")
    with unchanged(tmp_path):
        told = (tmp_path / "run" / "tokenizer.json", "a different vocabulary", "restore the data")
        assert_complains(call("train_lm", *argv, resume=True), own_corpus, *told)


def test_resume_without_a_run(corpus, tmp_path):
    outcome = call("train_lm", data=corpus, out=tmp_path / "nowhere", resume=True)
    assert_complains(outcome, tmp_path / "nowhere", "leave --resume out")
    assert not (tmp_path / "nowhere").exists()


def test_a_log_with_a_truncated_last_line_is_repaired(corpus, finished, copied):
    folder = copied("train_lm")
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 8, "tok')
    train("train_lm", data=corpus, out=folder, resume=True)
    assert read_metrics(folder) == read_metrics(finished("train_lm"))
