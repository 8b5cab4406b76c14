"""Prepared folders: their tokens equal the text's, whatever is stopped, altered or run at once."""

import json
import multiprocessing
import os
import random
import shutil
import sys
import time

import pytest
import torch
from helpers import (
    SHORT,
    TINY,
    assert_complains,
    assert_same_run,
    call,
    contents,
    edit,
    entry,
    half,
    result_of,
    sentence,
    succeed,
    train,
    unchanged,
)
from one_of_two import stop_at

from beyond import prepare
from data import batching, large
from data.corpus import normalize
from data.files import DataError, read_non_empty_lines
from data.shards import Blocks, Prepared
from data.streams import read_blocks
from data.tokenizer import BOS, UNK

SMALL = ("--shard-mb", 0.002, "--tokenizer", "word")  # shards of 2 kB


def prepared(folder, *argv):
    """Run beyond.prepare with these flags and return the Prepared folder."""
    succeed(call("prepare", *argv, "--out", folder))
    return Prepared(folder)


def write_text(path, n=200):
    lines = [sentence(("obama", "wbush", "hbush")[i % 3], i) + f" word{i} é∂𝄞" for i in range(n)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def text(tmp_path):
    """A text of about 20 kB."""
    return write_text(tmp_path / "text.txt")


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """A prepared folder with a validation set. Tests that change it copy it first."""
    folder = tmp_path_factory.mktemp("prepared")
    text = write_text(folder / "text.txt")
    return prepared(folder / "ready", text, *SMALL, "--valid", 0.1).folder


@pytest.fixture(scope="module")
def wiki(tmp_path_factory):
    """A folder in WikiText's form."""
    folder = tmp_path_factory.mktemp("wiki") / "tiny"
    folder.mkdir()
    for name, n in (("train", 60), ("valid", 15), ("test", 20)):
        write_text(folder / f"{name}.txt", n)
    with open(folder / "train.txt", "a", encoding="utf-8") as file:
        file.write("\n = Well @-@ known = \n \n 3 @.@ 5 <unk> \n")
    return folder


# ---------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("kind", ["word", "bpe"])
@pytest.mark.parametrize(
    "ending, begins, line_end",
    [("\n", "", "\n"), ("", "\ufeff", "\r\n"), ("\n\n  \n", "\n\n", "\n")],
)
def test_the_shards_together_are_the_stream_of_the_text(
    kind, ending, begins, line_end, tmp_path, monkeypatch
):
    monkeypatch.setattr(large, "PIECE", 700)  # bytes, so several pieces per shard
    lines = [sentence("obama", i) + " naïve\u2028é∂𝄞 [MASK]" * (i % 3) for i in range(150)]
    lines += ["long " * 1000, "", "  last  "]
    path = tmp_path / "text.txt"
    path.write_bytes((begins + line_end.join(lines) + ending).encode())
    argv = (path, "--tokenizer", kind, "--valid", 0, "--shard-mb", 0.003)
    folder, read = prepared(tmp_path / "out", *argv), read_non_empty_lines(path)
    assert len(folder.streams["train"].shards) > 4
    assert torch.equal(folder.streams["train"][:], batching.stream(folder.tokenizer, read))
    assert folder.sizes == {"train": sum(len(line.encode()) + 1 for line in read)}


def test_indexing_shards_equals_indexing_the_joined_stream(text, tmp_path):
    folder = prepared(tmp_path / "out", text, *SMALL, "--valid", 0)
    stream = folder.streams["train"]
    joined = batching.stream(folder.tokenizer, read_non_empty_lines(text))
    assert len(stream) == len(joined) and len(stream.shards) > 5
    for T in (1, 5, 64):  # blocks at every place, also across the borders of shards
        at = torch.arange(len(joined) - T)[:, None] + torch.arange(T + 1)
        assert torch.equal(stream[at], joined[at])
    for a, b in ((None, None), (1, None), (5, 1500), (-7, -1), (3, 3), (0, 10**9)):
        assert torch.equal(stream[a:b], joined[a:b])
    drawn = (batching.random_blocks(x, 9, 50, batching.generator(1)) for x in (stream, joined))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*drawn))
    V = folder.tokenizer.get_vocab_size()
    assert torch.equal(stream.bincount(minlength=V), joined.bincount(minlength=V))


def test_blocks_for_an_encoder_need_a_validation_set(text, tmp_path):
    without = prepared(tmp_path / "without", text, *SMALL, "--valid", 0)
    with pytest.raises(DataError, match="without a validation set.*--valid 0.01"):
        read_blocks(without, 12)


def test_a_vocabulary_of_more_than_16_bits(tmp_path):
    lines = [f"w{i} w{i + 1}" for i in range(0, 70_000, 2)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    folder = prepared(tmp_path / "out", tmp_path / "text.txt", "--tokenizer", "word", "--valid", 0)
    stream = folder.streams["train"]
    assert stream.dtype.itemsize == 4
    assert stream[:].max() == folder.tokenizer.get_vocab_size() - 1 > 2**16
    assert torch.equal(stream[:], batching.stream(folder.tokenizer, lines))


def test_held_out_lines_are_their_own_set_outside_the_vocabulary(tmp_path):
    lines = [f"common words and number{i % 300}" for i in range(600)]  # each line twice
    (tmp_path / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = prepared(tmp_path / "out", tmp_path / "text.txt", *SMALL, "--valid", 0.2)
    train, valid = folder.streams["train"], folder.streams["valid"]
    assert (len(train) - 1) + (len(valid) - 1) == 4 * 600 and 0.1 < (len(valid) - 1) / 2400 < 0.3
    held = [line for line in lines if large.is_held_out(normalize(line), 0.2)]
    assert torch.equal(valid[:], batching.stream(folder.tokenizer, held))
    assert (valid[1:] == UNK).sum() == len(held)
    assert not (train[1:] == UNK).any()  # both copies are on the same side
    assert sum(folder.sizes.values()) == (tmp_path / "text.txt").stat().st_size


def test_by_default_a_hundredth_is_held_out_but_at_most_a_megabyte(text, tmp_path, monkeypatch):
    assert prepared(tmp_path / "small", text, *SMALL).settings["valid"] == 0.01
    monkeypatch.setattr(prepare, "MEGABYTE", 50)
    test = write_text(tmp_path / "test.txt", 50)
    share = prepared(tmp_path / "large", text, "--test", test, *SMALL).settings["valid"]
    assert share == 50 / text.stat().st_size


def test_several_texts_test_sets_and_another_vocabulary(text, tmp_path):
    more, test = write_text(tmp_path / "more.txt", 30), write_text(tmp_path / "unheard.txt", 10)
    first = prepared(tmp_path / "first", text, more, "--test", test, *SMALL, "--valid", 0)
    for name, files in {"train": (text, more), "unheard": (test,)}.items():
        lines = [line for file in files for line in read_non_empty_lines(file)]
        assert torch.equal(first.streams[name][:], batching.stream(first.tokenizer, lines))
    for origin in (tmp_path / "first", tmp_path / "first" / "tokenizer.json"):
        again = prepared(tmp_path / f"again{origin.suffix}", more, "--vocab-from", origin)
        assert again.tokenizer.to_str() == first.tokenizer.to_str()


def test_the_vocabulary_comes_from_all_over_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "PIECE", 1000)
    lines = (f"chapter{i // 100} has a line{i}\n" for i in range(3000))
    (tmp_path / "text.txt").write_text("".join(lines), encoding="utf-8")
    argv = (tmp_path / "text.txt", "--tokenizer", "word", "--sample-mb", 0.03, "--valid", 0)
    folder = prepared(tmp_path / "out", *argv)
    words = set(folder.tokenizer.get_vocab())
    assert sum(f"chapter{i}" in words for i in range(30)) > 25
    assert 800 < sum(f"line{i}" in words for i in range(3000)) < 1500


def test_notes_on_a_small_text_and_on_a_table(tmp_path):
    path = tmp_path / "few.tsv"
    path.write_text("obama\tyes we can\n" * 30 + "bush\tno new taxes\n" * 30, encoding="utf-8")
    told = succeed(call("prepare", path, "--vocab-size", 900, "--valid", 0, out=tmp_path / "out"))
    assert f"note: {path} is read as plain text" in told.out
    assert "entries in the vocabulary, all the text has, from 1.0 of 1.0 kB" in told.out


# ---------------------------------------------------------------------------- training on it


def test_training_on_tokens_equals_training_on_the_text(wiki, tmp_path):
    """Compare all results bit for bit. The noise needs word counts; --tokenizer changes nothing."""
    prepared(tmp_path / "prepared", wiki, *SMALL)
    noise = dict(swap_words=0.2, rare_unknown=0.3, eval_block="4,8", pos="alibi", tokenizer="word")
    text, tokens = tmp_path / "text", tmp_path / "tokens"
    for corpus, out in ((wiki, text), (tmp_path / "prepared", tokens)):
        train("train_lm", **noise, data=corpus, out=out)
    assert_same_run(tokens, text)
    assert {"bits_per_byte/wiki-test@4", "unknown/wiki-test"} <= result_of(tokens).keys()


@pytest.mark.parametrize("causal", [(), ("--causal",)])
def test_an_encoder_reads_every_block_once_an_epoch_and_resumes(
    causal, ready, tmp_path, monkeypatch
):
    folder = Prepared(ready)
    stream = folder.streams["train"]
    blocks = list(Blocks(stream, folder.tokenizer, 12))
    assert all(block[0] == BOS for block in blocks)
    assert {len(block) for block in blocks[:-1]} == {12}
    assert torch.equal(torch.cat([block[1:] for block in blocks]), stream[1:])
    for batch_size in (3, 4, len(blocks)):  # an epoch is every block once
        batch = read_blocks(folder, 12).batches(batch_size, seed=0)
        steps = map(batch, range(-(-len(blocks) // batch_size)))
        rows = [row[mask].tolist() for idx, masks in steps for row, mask in zip(idx, masks)]
        assert sorted(rows) == sorted(block.tolist() for block in blocks)
    argv = (*TINY, *causal, *"--eval-every 4 --decay 0".split(), "--data", ready)
    argv = ("train_mlm", *argv, "--batch-size", len(blocks) // 3)  # four batches per epoch
    succeed(call(*argv, steps=12, out=tmp_path / "whole"))
    with monkeypatch.context() as patch:
        stop_at(patch, 2)  # at step 4
        assert call(*argv, steps=12, out=tmp_path / "parts").code == 130
    succeed(call("train_mlm", resume=True, out=tmp_path / "parts"))
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.parametrize(
    "script, argv, parts",
    [
        ("train_lm", ("--tokenizer", "bpe"), ["--tokenizer bpe", "prepare the text again"]),
        ("train_mlm", ("--valid", 0.2, "--split", "clean"), ["--valid 0.2 and --split clean"]),
        ("train_lm", ("--vocab-from", "toy"), ["--vocab-from toy"]),
        ("train_lm", ("--block-size", 100_000), ["use a smaller block"]),
        ("train_classifier", (), ["only train_lm.py and train_mlm.py"]),
        ("train_seq2seq", (), ["give the text itself"]),
    ],
)
def test_flags_and_scripts_that_conflict_with_a_prepared_folder(
    script, argv, parts, ready, tmp_path
):
    outcome = call(script, *SHORT[script], *argv, data=ready, out=tmp_path / "run")
    assert_complains(outcome, *parts)
    assert not (tmp_path / "run").exists()


def test_continuing_from_a_run_of_another_vocabulary(finished, text, tmp_path):
    prepared(tmp_path / "other", text, *SMALL)
    source = finished("train_lm")
    argv = ("train_lm", *SHORT["train_lm"], "--init-from", source, "--out", tmp_path / "run")
    told = ("a different vocabulary", f"--vocab-from {source}")
    assert_complains(call(*argv, data=tmp_path / "other"), tmp_path / "other", *told)
    prepared(tmp_path / "same", text, "--vocab-from", source)
    succeed(call(*argv, data=tmp_path / "same"))


# ---------------------------------------------------------------------------- interruptions


def fork(*argv):
    """Run beyond.prepare in a forked process, which saves the start of Python."""

    def child():
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork has no threads
        os._exit(call("prepare", *argv).code)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    return process


needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")


@needs_fork
def test_killed_at_any_moment_it_resumes_to_the_same_files(tmp_path):
    text, dice = write_text(tmp_path / "text.txt", 1500), random.Random(0)
    argv = (text, "--shard-mb", 0.004, "--vocab-size", 300, "--valid", 0.1)
    prepared(tmp_path / "whole", *argv)
    folder = tmp_path / "killed"
    for wanted in (0, 0, 0, 1, 3, 6, 10, 15, 20, 25):  # parts that are done
        process = fork(*argv, "--out", folder)
        while process.is_alive() and not (
            folder.exists() and len(list(folder.glob("*.done.json"))) >= wanted
        ):
            time.sleep(0.001)
        time.sleep(dice.random() * (0.2 if wanted == 0 else 0.02))
        process.kill()  # it may have ended already
        process.join()
        for path in folder.glob("*.bin"):  # a file with its final name is complete
            assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
        if (folder / "plan.json").exists() and not (folder / "index.json").exists():
            outcome = call("train_lm", "--data", folder, "--out", tmp_path / "run")
            assert_complains(outcome, folder, "not completely prepared", "beyond.prepare command")
    prepared(folder, *argv)
    assert contents(folder) == contents(tmp_path / "whole")


@needs_fork
def test_four_processes_at_once(tmp_path):
    text = write_text(tmp_path / "text.txt", 1000)
    argv = (text, "--shard-mb", 0.01, "--vocab-size", 300)
    prepared(tmp_path / "alone", *argv)
    processes = [fork(*argv, "--out", tmp_path / "together") for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")


def test_ctrl_c_says_how_to_continue(text, tmp_path, monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepare.sharding, "write_shards", pressed)
        done = call("prepare", text, *SMALL, "--out", tmp_path / "out")
    assert done.code == 130 and "interrupted; continue with the same command" in done.err
    prepared(tmp_path / "out", text, *SMALL)


def test_a_finished_folder_is_left_as_it_is(text, tmp_path):
    prepared(tmp_path / "out", text, *SMALL)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.bin")}
    (tmp_path / "out" / ".lock").unlink()  # as in a copy without hidden files
    prepared(tmp_path / "out", text, *SMALL)
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.bin")}


# ---------------------------------------------------------------------------- cut, altered, changed


def alter(content):
    raw = bytearray(content)
    raw[len(raw) // 2] ^= 1
    return raw


def assert_unusable(folder, *parts):
    """Assert that --check and a training refuse a folder with a line that has these parts."""
    run = folder.parent / "run"
    assert_complains(call("prepare", "--check", folder), folder, *parts)
    outcome = call("train_lm", *SHORT["train_lm"], data=folder, out=run)
    assert_complains(outcome, folder, *parts)
    assert not run.exists()


@pytest.mark.parametrize(
    "how, words",
    [(lambda content: content[:-2], "bytes instead of"), (alter, "was altered"), (None, "missing")],
)
def test_a_corrupt_shard_is_named_and_made_again(how, words, text, tmp_path):
    folder = tmp_path / "out"
    prepared(folder, text, *SMALL, "--valid", 0.1)
    before, shard = contents(folder), folder / "train-00002.bin"
    edit(shard, how)
    assert_unusable(folder, f"{shard}: ", words, "same beyond.prepare command again")
    if words == "was altered":
        shard.unlink()  # as the message says
    prepared(folder, text, *SMALL, "--valid", 0.1)
    assert contents(folder) == before and call("prepare", "--check", folder).code == 0


@pytest.mark.parametrize("content", ["{", '{"shards": [{"file": "../text.txt"}]}'])
def test_a_corrupt_list_of_shards_is_made_again(content, text, tmp_path):
    folder = tmp_path / "out"
    index = prepared(folder, text, *SMALL).folder / "index.json"
    before = contents(folder)
    (folder / "plan.json").write_bytes(entry(shards=[])(index.read_bytes()))
    index.unlink()
    (folder / "00000.done.json").write_text(content)
    prepared(folder, text, *SMALL)
    assert contents(folder) == before


def test_an_altered_shard_of_a_large_folder_is_found(text, tmp_path, monkeypatch):
    monkeypatch.setattr("data.shards.HASHED_AT_OPENING", 0)
    prepared(tmp_path / "out", text, *SMALL)
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    Prepared(tmp_path / "out")
    assert_complains(call("prepare", "--check", tmp_path / "out"), shard, "was altered")
    outcome = call("train_lm", *SHORT["train_lm"], data=tmp_path / "out", out=tmp_path / "run")
    assert_complains(outcome, shard, "holds id 65535 of a vocabulary of", "was altered")


def shard_with(**more):
    def change(content):
        index = json.loads(content)
        return json.dumps(index | {"shards": [index["shards"][0] | more]}).encode()

    return change


CORRUPT = [  # how the content of index.json changes, and what the message says
    (half, "index.json: not valid JSON"),
    (lambda _: b"\xff", "index.json: not valid JSON"),
    (lambda _: b"[]", "index.json: not a JSON object"),
    (entry(format="else"), "not written by beyond.prepare"),
    (entry(version=2), "another version"),
    (entry(shards=[]), "no training text"),
    (entry(dtype="O"), "not a valid index"),
    (entry(settings={"valid": "all"}), "not a valid index"),
    (entry(vocab_size=9), "index.json: has a vocabulary of 9 entries"),
    (entry(more=1), "not a valid index"),
    (shard_with(file="../text.bin"), "not a valid index"),
    (shard_with(tokens=-1), "not a valid index"),
    (shard_with(tokens=10**30), "not valid JSON"),
    (shard_with(tokens=10**12), "bytes instead of"),
    (shard_with(range=["a", 2]), "not a valid index"),
    (lambda c: c.replace(b"hope", b"cope"), "tokenizer.json: was altered"),
    (lambda c: c[:100], "tokenizer.json: not a tokenizer file"),
]


@pytest.mark.parametrize("how, part", CORRUPT)
def test_a_prepared_folder_with_a_corrupt_file_is_refused(how, part, ready, tmp_path):
    folder = shutil.copytree(ready, tmp_path / "out")
    edit(folder / ("tokenizer.json" if part.startswith("tokenizer") else "index.json"), how)
    with unchanged(tmp_path):
        assert_unusable(folder, part)


def test_a_text_changed_since_it_was_begun_is_refused(text, tmp_path):
    folder = tmp_path / "out"
    prepared(folder, text, *SMALL)
    content = text.read_text(encoding="utf-8")
    with unchanged(folder):
        for changed in (content + "one line more\n", content.replace("word7 ", "word8 ")):
            text.write_text(changed, encoding="utf-8")
            told = f"{text}: has changed since {folder} was begun", "--overwrite"
            assert_complains(call("prepare", text, *SMALL, "--out", folder), *told)
    new = prepared(folder, text, *SMALL, "--overwrite", "--valid", 0)
    expected = batching.stream(new.tokenizer, read_non_empty_lines(text))
    assert torch.equal(new.streams["train"][:], expected)
    (folder / "index.json").unlink()  # as if overwriting had been interrupted
    (folder / "00000.done.json").write_text('{"shards": []}')
    assert len(prepared(folder, text, *SMALL, "--valid", 0).streams["train"]) == len(expected)


def test_a_text_that_changes_while_it_is_prepared_is_refused(text, tmp_path, monkeypatch):
    def add(*_):
        with open(text, "a", encoding="utf-8") as file:
            file.write("one line more\n")

    monkeypatch.setattr(prepare.Progress, "add", add)  # called after every piece
    outcome = call("prepare", text, *SMALL, "--out", tmp_path / "out")
    assert_complains(outcome, f"{text}: was changed while it was prepared", "--overwrite")


# ---------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "content, parts",
    [
        (None, ["text.txt: no such file", "give a text file"]),
        (b"", ["text.txt: the file is empty"]),
        (b" \n\r\n\n", ["text.txt: holds no text to train on"]),
        (b"one\n" * 2000 + b"two\0\n", ["text.txt:2001: holds a NUL character"]),
        (b"one\n" * 2000 + b"tw\xff", ["text.txt:2001: not UTF-8 (byte 0xff)", "save"]),
    ],
)
@pytest.mark.parametrize("vocabulary", [(), ("--vocab-from", "run")])
def test_an_unusable_text_is_named(content, parts, vocabulary, finished, tmp_path):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    argv = ("--vocab-from", finished("train_lm"), "--shard-mb", 0.002) if vocabulary else SMALL
    outcome = call("prepare", tmp_path / "text.txt", *argv, "--out", tmp_path / "out")
    assert_complains(outcome, tmp_path / "text.txt", *parts)
    assert not (tmp_path / "out" / "index.json").exists()
    assert len(list(tmp_path.glob("out/*.bin"))) <= 6  # those of the lines before the mistake


def test_a_line_too_long_for_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "LONGEST_LINE", 3000)
    (tmp_path / "text.txt").write_text("short\n" * 500 + "long " * 3000, encoding="utf-8")
    outcome = call("prepare", tmp_path / "text.txt", *SMALL, "--out", tmp_path / "out")
    told = ("text.txt: the line around byte", "3,000 bytes", "break it into lines")
    assert_complains(outcome, *told)


@pytest.mark.parametrize(
    "argv, parts",
    [
        (("--vocab-size", 200), ["--vocab-size 200", "at least 261"]),
        (("--vocab-from", "nowhere"), ["--vocab-from nowhere", "no such tokenizer.json"]),
        (("--vocab-from", "nowhere", "--vocab-size", 500), ["leave --vocab-size 500 out"]),
        (("--vocab-from", "nowhere", "--sample-mb", 3), ["leave --sample-mb 3.0 out"]),
        (("--vocab-from", "out", "--overwrite"), ["--vocab-from out: is also --out"]),
        (("--threads", 5000), ["--threads", "at most 4,096"]),
        (("--shard-mb", 2000), ["--shard-mb", "at most 1,024"]),
        (("--test", "nowhere.txt"), ["nowhere.txt: no such file"]),
        (("--test", "valid.txt"), ["valid.txt: valid is the name of another set", "rename"]),
        (("--test", "text.txt", "--test", "text.txt"), ["another set has that name; rename"]),
        (("--test", "a@b.txt"), ["a@b.txt: the name of a set must not contain @"]),
        (("--out", ""), ["--out is missing"]),
        (("--out", "valid.txt"), ["--out valid.txt: is a file"]),
        (("--check",), ["text.txt: no prepared folder"]),
    ],
)
def test_invalid_flags_are_refused(argv, parts, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("valid.txt", "a@b.txt"):
        write_text(tmp_path / name, 3)
    with unchanged(tmp_path):
        assert_complains(call("prepare", "text.txt", "--out", "out", *argv), *parts)


def test_a_folder_with_other_files_is_left_alone(text, tmp_path, finished):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text("precious")
    for folder in (tmp_path / "mine", finished("train_lm")):
        with unchanged(folder):
            outcome = call("prepare", text, "--out", folder, "--overwrite")
            assert_complains(outcome, f"--out {folder}: is not empty", "choose another folder")


def test_a_folder_begun_with_other_flags_or_texts_is_refused(text, tmp_path):
    folder = tmp_path / "out"
    prepared(folder, text, *SMALL, "--valid", 0.1)
    with unchanged(folder):
        outcome = call("prepare", text, *SMALL, "--valid", 0.2, "--vocab-size", 50, "--out", folder)
        assert_complains(outcome, folder, "begun with --vocab-size 0, --valid 0.1", "--overwrite")
        outcome = call("prepare", text, text, *SMALL, "--valid", 0.1, "--out", folder)
        assert_complains(outcome, folder, "begun with other texts", text)
