"""Mistakes of the user: one line that names the file or flag and the remedy, exit code 2, and nothing already there
is changed."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from helpers import ROOT, SCRIPTS, SHORT, assert_complains, call_main, contents

from data.tokenizer import train_tokenizer
from lab.records import read_metrics
from studies import clap, crossvalidate


def test_a_real_process_ends_with_one_line_and_code_2(shell, tmp_path):
    (tmp_path / "bad.tsv").write_text("0\tfine\nno tab here\n", encoding="utf-8")
    outcome = shell("train_classifier", "--data", "bad.tsv")
    assert_complains(outcome, "train_classifier.py: bad.tsv:2: no tab")
    assert outcome.out == "" and [path.name for path in tmp_path.iterdir()] == ["bad.tsv"]


# ---------------------------------------------------------------------------- files

ROWS = b"0\tone of them\n1\tanother one\n2\ta third one\n"


@pytest.mark.parametrize(
    "script, name, content, parts",
    [
        (
            "train_classifier",
            "train_CLS.tsv",
            b"",
            ["train_CLS.tsv: the file is empty", "give a file with text"],
        ),
        ("train_classifier", "train_CLS.tsv", b" \n\n\n", ["train_CLS.tsv: the file is empty"]),
        (
            "train_classifier",
            "train_CLS.tsv",
            ROWS + b"1 no tab\n",
            ["train_CLS.tsv:4: no tab", "expected a label, a tab and a text"],
        ),
        ("train_classifier", "train_CLS.tsv", ROWS + b"\n" + ROWS, ["train_CLS.tsv:4: no tab"]),
        (
            "train_classifier",
            "train_CLS.tsv",
            ROWS + b"7\tby nobody\n",
            ["train_CLS.tsv:4: unknown label '7'", "expected one of 0, 1, 2"],
        ),
        (
            "train_classifier",
            "test_CLS.tsv",
            b"obama\tspelled out\n",
            ["test_CLS.tsv:1: unknown label 'obama'", "0, 1, 2"],
        ),
        (
            "train_classifier",
            "train_CLS.tsv",
            b"0\t \n",
            ["train_CLS.tsv:1: empty text", "complete the line or remove it"],
        ),
        ("train_classifier", "train_CLS.tsv", b"\tunlabelled\n", ["train_CLS.tsv:1: empty label"]),
        (
            "train_classifier",
            "train_CLS.tsv",
            ROWS + "0\tcafé\n".encode("latin-1"),
            ["train_CLS.tsv:4: not UTF-8 (byte 0xe9)", "save the file as UTF-8"],
        ),
        ("train_classifier", "test_CLS.tsv", None, ["test_CLS.tsv: no such file", "--data"]),
        ("train_lm", "train_LM.txt", b"", ["train_LM.txt: the file is empty"]),
        ("train_lm", "test_LM_obama.txt", b"", ["test_LM_obama.txt: the file is empty"]),
        (
            "train_lm",
            "train_LM.txt",
            "one\ntwo\nna\xefve\n".encode("latin-1"),
            ["train_LM.txt:3: not UTF-8 (byte 0xef)"],
        ),
        ("train_lm", "train_LM.txt", "words\n".encode("utf-16"), ["train_LM.txt:1: not UTF-8"]),
        ("train_lm", "train_LM.txt", b"one\ntwo\0\n", ["train_LM.txt:2: holds a NUL character"]),
        ("train_lm", "train_LM.txt", b"too short\n", ["--block-size 12", "use a smaller block"]),
        ("train_lm", "train_LM.txt", None, ["holds no running text", "train_LM.txt"]),
        (
            "train_mlm",
            "train_LM.txt",
            b"one\ntwo \xff\n",
            ["train_LM.txt:2: not UTF-8 (byte 0xff)"],
        ),
        ("train_seq2seq", "train_LM.txt", b"", ["train_LM.txt: the file is empty"]),
        ("train_seq2seq", "train_LM.txt", b"one line\n", ["too few to hold out --valid 0.2"]),
        ("train_seq2seq", "train_LM.txt", None, ["holds no running text", "--task translate"]),
    ],
)
def test_a_file_that_is_wrong(script, name, content, parts, cli, own_corpus, tmp_path):
    if content is None:
        (own_corpus / name).unlink()
    else:
        (own_corpus / name).write_bytes(content)
    before = contents(tmp_path)
    assert_complains(
        cli(script, *SHORT[script], "--data", own_corpus, "--out", tmp_path / "run"), *parts
    )
    assert contents(tmp_path) == before and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name, content, parts",
    [
        ("nowhere", None, ["no such corpus, folder or file", "toy, pydocs, speeches"]),
        ("nowhere.txt", None, ["no such file", "check the path"]),
        ("nowhere.tsv", None, ["no such file"]),
        ("mine.json", b"{}", ["only folders, .txt, .tsv and .csv", "rename or convert"]),
        ("mine.txt", b"a single line\n", ["single line", "break it into lines"]),
        ("mine.tsv", b"a\tone\na\ttwo\n", ["1 different labels in 2 rows", "at least two classes"]),
        ("mine.tsv", b"a\tone\nb\ttwo\nc\tthree\nd\tfour\n", ["4 different labels in 4 rows"]),
    ],
)
def test_a_corpus_that_is_none(name, content, parts, cli, tmp_path):
    if content:
        (tmp_path / name).write_bytes(content)
    assert_complains(
        cli("train_classifier", "--data", tmp_path / name, "--out", tmp_path / "run"),
        tmp_path / name,
        *parts,
    )
    assert not (tmp_path / "run").exists()


def test_a_folder_without_any_of_the_files(cli, tmp_path):
    assert_complains(
        cli("train_lm", "--data", tmp_path, "--out", tmp_path / "run"),
        tmp_path,
        "neither train_CLS.tsv nor train_LM.txt",
    )


@pytest.mark.parametrize(
    "script, missing, needed",
    [
        ("train_lm", "train_LM.txt", "train_LM.txt"),
        ("train_classifier", "train_CLS.tsv", "train_CLS.tsv"),
    ],
)
def test_a_corpus_without_the_part_a_script_needs(
    script, missing, needed, cli, own_corpus, tmp_path
):
    (own_corpus / missing).unlink()
    assert_complains(
        cli(script, "--data", own_corpus, "--out", tmp_path / "run"), own_corpus, "holds no", needed
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_windows_line_ends_give_a_note_and_the_same_result(script, cli, own_corpus, tmp_path):
    assert cli(script, *SHORT[script], "--data", own_corpus, "--out", tmp_path / "unix").code == 0
    for path in own_corpus.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    windows = cli(script, *SHORT[script], "--data", own_corpus, "--out", tmp_path / "windows")
    assert windows.code == 0 and all(
        line.startswith("note: ") and line.endswith("read as line ends")
        for line in windows.err.splitlines()
    )
    assert "train_LM.txt: Windows line ends" in windows.err
    assert (tmp_path / "unix" / "metrics.jsonl").read_text() == (
        tmp_path / "windows" / "metrics.jsonl"
    ).read_text()
    unix, windows = (
        json.loads((tmp_path / name / "result.json").read_text(encoding="utf-8"))
        for name in ("unix", "windows")
    )
    assert all(
        windows[name] == unix[name]
        for name in unix
        if name.startswith(("bits_per_byte", "accuracy", "perplexity"))
    )


@pytest.mark.parametrize(
    "script, told",
    [
        ("train_classifier", "15 of 15 test sentences are longer than --block-size 6 and were cut"),
        ("train_mlm", "lines are longer than --block-size 6 and were split"),
    ],
)
def test_sentences_longer_than_the_block_are_no_error_and_counted(
    script, told, cli, corpus, tmp_path
):
    done = cli(
        script, *SHORT[script], "--block-size", 6, "--data", corpus, "--out", tmp_path / "run"
    )
    assert done.code == 0 and told in done.out and done.err == ""


# ---------------------------------------------------------------------------- flags

EVERY = [
    (script, argv, parts)
    for script in SCRIPTS
    for argv, parts in [
        (["--no-such-flag"], ["--no-such-flag", "--help"]),
        (["--position", "alibi"], ["--position alibi; did you mean --pos?"]),
        (["--out=--"], ["argument --out: expected a value, not --"]),
        (["--block", "8"], ["--block"]),
        (["--pos", "rotary"], ["--pos", "rotary", "learned", "nope"]),
        (["--n-layer", "two"], ["--n-layer", "'two'"]),
        (["--n-head", "3"], ["--n-head must divide --n-embd", "16"]),
        (["--n-layer", "0"], ["--n-layer must be at least 1"]),
        (["--pos", "rope", "--n-embd", "6"], ["--n-embd / --n-head must be even"]),
        (["--dropout", "1.5"], ["dropout must be at least 0 and below 1"]),
        (["--lr", "0"], ["--lr must be above 0"]),
        (["--lr", "nan"], ["--lr"]),
        (["--lr", "inf"], ["argument --lr: invalid number value: 'inf'"]),
        (["--seed", "9" * 30], ["argument --seed: invalid integer value"]),
        (["--threads", "5000"], ["--threads must not be negative, nor above 4096"]),
        (["--batch-size", "2000000000"], ["--batch-size must be at least 1 and at most"]),
        (["--n-embd", "2000000000"], ["--n-embd must be at most 16,777,216"]),
        (["--batch-size", "0"], ["--batch-size must be at least 1"]),
        (["--seed", "x"], ["--seed"]),
        (["--init-std", "-1"], ["--init-std must not be negative"]),
        (["--vocab-size", "3"], ["--vocab-size 3", "at least 6"]),
        (["--tokenizer", "bpe", "--vocab-size", "100"], ["--vocab-size 100", "at least 261"]),
        (["--weight-decay", "-2"], ["--weight-decay must not be negative"]),
        (["--threads", "-1"], ["--threads must not be negative"]),
        (["--valid", "1"], ["--valid"]),
        (["--block-size", "0"], ["--block-size must be at least"]),
    ]
]
SOME = [
    ("train_lm", ["--steps", "-1"], ["--steps must not be negative"]),
    ("train_lm", ["--eval-every", "0"], ["--eval-every must be at least 1"]),
    ("train_lm", ["--decay", "2"], ["--decay must be from 0 to 1"]),
    ("train_lm", ["--eval-block", "8,x"], ["--eval-block 8,x", "32,64,128"]),
    (
        "train_lm",
        ["--eval-block", "40"],
        ["--eval-block 40", "learned positions end at --block-size 12", "alibi"],
    ),
    ("train_lm", ["--eval-train", "0"], ["--eval-train must be at least 1"]),
    (
        "train_lm",
        ["--pos", "alibi", "--alibi", "symmetric"],
        ["--alibi symmetric", "a decoder has the causal form"],
    ),
    ("train_lm", ["--warmup", "-1"], ["--warmup must not be negative"]),
    ("train_lm", ["--clip", "-1"], ["--clip must not be negative"]),
    ("train_mlm", ["--warmup", "-1"], ["--warmup must not be negative"]),
    ("train_mlm", ["--beta2", "1"], ["--beta2 must be"]),
    ("train_mlm", ["--mask-rate", "1"], ["--mask-rate must be above 0 and below 1"]),
    ("train_mlm", ["--mask-unit", "sentence"], ["--mask-unit", "span"]),
    ("train_mlm", ["--valid", "0"], ["--valid must be above 0"]),
    ("train_mlm", ["--block-size", "1"], ["--block-size must be at least 2"]),
    (
        "train_classifier",
        ["--pool", "mean+median"],
        ["--pool mean+median", "mean, max, min, first, last"],
    ),
    ("train_classifier", ["--tune", "all"], ["--tune all", "--encoder"]),
    ("train_classifier", ["--epochs", "0"], ["--epochs must be at least 1"]),
    ("train_classifier", ["--layers", "first"], ["--layers"]),
    ("train_classifier", ["--n-hidden", "-2"], ["--n-hidden must be at least 0"]),
    ("train_classifier", ["--block-size", "1"], ["--block-size must be at least 2"]),
    ("train_seq2seq", ["--mask-rate", "0"], ["--mask-rate must be above 0"]),
    (
        "train_seq2seq",
        ["--mask-rate", "0.8", "--mean-span", "1"],
        ["--mask-rate 0.8", "longer than --block-size 12", "--mean-span"],
    ),
    ("train_seq2seq", ["--mean-span", "0.5"], ["--mean-span must be at least 1"]),
    ("train_seq2seq", ["--languages", "en-fr"], ["--languages en-fr", "--task translate"]),
    ("train_seq2seq", ["--task", "summarise"], ["--task", "translate"]),
    ("train_seq2seq", ["--steps", "-1"], ["--steps must not be negative"]),
]


@pytest.mark.parametrize(
    "script, argv, parts",
    EVERY + SOME,
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_flag_or_value_that_cannot_work(script, argv, parts, cli, corpus, tmp_path):
    assert_complains(
        cli(script, *SHORT[script], "--data", corpus, "--out", tmp_path / "run", *argv), *parts
    )
    assert not (tmp_path / "run").exists()


def test_a_command_line_that_is_not_utf_8(cli, corpus, tmp_path):
    assert_complains(
        cli("train_lm", "--data", corpus, "--out", f"{tmp_path}/a\udcff"),
        "the command line is not UTF-8",
    )
    assert list(tmp_path.iterdir()) == []


def test_numbers_no_study_could_use(corpus, tmp_path):
    out = ("--out", tmp_path / "out")
    assert_complains(
        call_main(
            crossvalidate,
            crossvalidate.crossvalidate,
            "--data",
            corpus,
            "--mlm",
            "--steps '5",
            *out,
        ),
        "--mlm --steps '5: No closing quotation",
    )
    assert_complains(
        call_main(
            crossvalidate, crossvalidate.crossvalidate, "--data", corpus, "--folds", 10**9, *out
        ),
        "--folds 1000000000",
        "75 labelled rows",
    )
    assert_complains(
        call_main(clap, clap.study, "--data", corpus, "--seeds", 10**9, *out),
        "--seeds must be from 1 to 1000",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there(cli, corpus, tmp_path):
    assert_complains(
        cli("train_lm", "--data", corpus, "--device", "cuda", "--out", tmp_path / "run"),
        "--device cuda",
        "use --device cpu",
    )


def test_all_that_is_wrong_with_the_architecture_is_told_at_once(cli, corpus, tmp_path):
    assert_complains(
        cli(
            "train_lm",
            "--data",
            corpus,
            "--n-head",
            3,
            "--window",
            -1,
            "--dropout",
            2,
            "--out",
            tmp_path / "run",
        ),
        "--n-head",
        "window",
        "dropout",
    )


@pytest.mark.parametrize("script", ["train_lm", "train_mlm"])
def test_a_learning_rate_at_which_training_diverges(script, cli, corpus, tmp_path):
    argv = (
        *SHORT[script],
        "--data",
        corpus,
        "--steps",
        60,
        "--eval-every",
        20,
        "--lr",
        "1e30",
        "--warmup",
        0,
        "--decay",
        0,
        "--clip",
        0,
    )
    assert_complains(
        cli(script, *argv, "--out", tmp_path / "run"), "--lr 1e+30", "diverged", "smaller --lr"
    )


# ---------------------------------------------------------------------------- the folder to write


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_existing_run_is_not_overwritten(script, cli, corpus, finished):
    folder = finished(script)
    before = contents(folder)
    assert_complains(
        cli(script, *SHORT[script], "--data", corpus, "--out", folder),
        folder,
        "already holds a run",
        "--resume",
        "--overwrite",
    )
    assert contents(folder) == before


@pytest.mark.skipif(sys.platform == "win32", reason="a folder cannot be locked there")
@pytest.mark.parametrize("argv", [[], ["--overwrite"], ["--resume"]])
def test_a_folder_another_process_trains_in_is_left_alone(argv, cli, corpus, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished("train_lm"), folder)
    (
        folder / "checkpoint.pt"
    ).unlink()  # by its files alone it might be taken for one that barely began
    before = contents(folder)
    holds = (
        "import sys; sys.path.insert(0, sys.argv[1]); from data import locks; "
        "locks.lock_folder(sys.argv[2]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(ROOT), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        outcome = cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, *argv)
        other.stdin.close()
    assert (
        outcome.code == 2
        and "another process is training there" in outcome.err
        and outcome.err.count("\n") == 1
    )
    assert contents(folder) == before
    assert (
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, "--overwrite").code
        == 0
    )  # it has gone


@pytest.mark.parametrize("argv", [[], ["--overwrite"]])
# the second as other libraries save models
@pytest.mark.parametrize(
    "there", [["essay.txt"], ["config.json", "tokenizer.json", "model.safetensors"]]
)
def test_a_folder_with_something_else_is_left_alone(there, argv, cli, corpus, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in there:
        (folder / name).write_text('{"architectures": ["of somebody else"]}')
    before = contents(folder)
    assert_complains(
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, *argv),
        f"--out {folder}",
        "not empty",
        "choose another folder",
    )
    assert contents(folder) == before


def test_files_of_the_user_in_a_run_folder_survive_a_new_start(cli, corpus, tmp_path):
    folder = shutil.copytree(_only_begun(cli, corpus, tmp_path), tmp_path / "copy")
    (folder / "notes.txt").write_text("my observations")
    assert_complains(
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder),
        folder,
        "already holds a run",
    )
    assert (folder / "notes.txt").read_text() == "my observations"


def _only_begun(cli, corpus, tmp_path):
    """A run folder as an interruption before the first checkpoint leaves it."""
    assert (
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", tmp_path / "begun").code == 0
    )
    for path in (tmp_path / "begun").iterdir():
        if path.name not in ("config.json", "tokenizer.json"):
            path.unlink()
    return tmp_path / "begun"


def test_a_file_where_the_folder_should_be(cli, corpus, tmp_path):
    (tmp_path / "file").write_text("precious")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        assert_complains(
            cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", out),
            tmp_path / "file",
            "choose another",
        )
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits the size of files as Linux does"
)
def test_a_disk_that_is_full(shell, corpus, tmp_path):
    import resource  # not on Windows

    def no_file_over_8_kb():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    outcome = shell(
        "train_lm",
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--out",
        "run",
        preexec_fn=no_file_over_8_kb,
    )
    assert_complains(outcome, "run", "File too large", "--out")
    assert not any(
        (tmp_path / "run" / name).exists() for name in ("best.pt", "checkpoint.pt", "result.json")
    )


# ---------------------------------------------------------------------------- the run to read


def damaged(finished, script, tmp_path, name, how):
    """A copy of a finished run with one file truncated, or with another content, or missing."""
    folder = shutil.copytree(finished(script), tmp_path / "damaged")
    if how is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(how((folder / name).read_bytes()))
    return folder


def half(content):
    return content[: len(content) // 2]


def without(*keys):
    def remove(content):
        value = json.loads(content)
        for key in keys:
            value.pop(key)
        return json.dumps(value).encode()

    return remove


@pytest.mark.parametrize(
    "name, how, parts",
    [
        ("config.json", half, ["not valid JSON", "restore"]),
        ("config.json", lambda _: b"[]", ["not a JSON object"]),
        ("config.json", lambda _: b"\xff\xfe", ["not valid JSON"]),
        ("config.json", lambda _: b"{}", ["kind"]),
        ("config.json", without("model"), ["config.json: holds no model", "train the run again"]),
        (
            "config.json",
            lambda c: c.replace(b'"n_layer": 1', b'"n_layer": 2'),
            ["best.pt: the weights do not fit config.json"],
        ),
        ("config.json", None, ["no config.json"]),
        ("tokenizer.json", half, ["not a tokenizer file", "restore the file"]),
        ("tokenizer.json", lambda _: b"{}", ["not a tokenizer file"]),
        ("tokenizer.json", None, ["no such file"]),
        (
            "tokenizer.json",
            lambda _: train_tokenizer("word", ["too few words"]).to_str().encode(),
            ["has 8 entries", "different runs"],
        ),
        (
            "tokenizer.json",
            lambda c: c.replace(b"[MASK]", b"[HIDE]"),
            ["does not begin with [PAD]"],
        ),
        ("best.pt", half, ["not a readable checkpoint", "train the run again"]),
        ("best.pt", lambda _: b"", ["not a readable checkpoint"]),
        ("best.pt", lambda _: b"no zip file at all", ["not a readable checkpoint"]),
        ("best.pt", None, ["no best.pt", "--resume"]),
    ],
)
def test_an_encoder_that_is_damaged(name, how, parts, cli, corpus, finished, tmp_path):
    folder = damaged(finished, "train_mlm", tmp_path, name, how)
    before = contents(folder)
    outcome = cli(
        "train_classifier", "--encoder", folder, "--data", corpus, "--out", tmp_path / "run"
    )
    assert_complains(outcome, folder, *parts)
    assert contents(folder) == before and not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["a list", "a dictionary of something else"])
def test_a_checkpoint_that_holds_something_else(what, cli, corpus, finished, tmp_path):
    for name, argv in (
        ("best.pt", ("train_classifier", "--encoder")),
        ("checkpoint.pt", ("train_mlm", *SHORT["train_mlm"], "--resume", "--out")),
    ):
        folder = shutil.copytree(finished("train_mlm"), tmp_path / name)
        torch.save([1, 2] if what == "a list" else {"weights": torch.zeros(2)}, folder / name)
        before = contents(folder)
        more = ("--out", tmp_path / "run") if name == "best.pt" else ()
        assert_complains(cli(*argv, folder, "--data", corpus, *more), folder / name, "restore")
        assert contents(folder) == before


def test_an_unknown_or_changed_encoder(cli, corpus, finished, tmp_path):
    assert_complains(
        cli("train_classifier", "--encoder", tmp_path / "nowhere", "--data", corpus),
        f"--encoder {tmp_path / 'nowhere'}",
        "no such run folder",
    )
    assert_complains(
        cli("train_classifier", "--encoder", corpus, "--data", corpus),
        f"--encoder {corpus}",
        "no config.json",
    )
    assert_complains(
        cli(
            "train_classifier", "--encoder", finished("train_mlm"), "--n-layer", 3, "--data", corpus
        ),
        "--n-layer 3",
        "leave the flag out",
    )


def test_an_encoder_of_another_kind(cli, corpus, finished, tmp_path):
    outcome = cli(
        "train_classifier",
        "--encoder",
        finished("train_classifier"),
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
    )
    assert_complains(
        outcome,
        f"--encoder {finished('train_classifier')}",
        "of kind 'classifier'",
        "'mlm' or 'lm' is needed",
    )
    assert not (tmp_path / "run").exists()


def test_decoders_that_cannot_classify(cli, corpus, finished, tmp_path):
    assert (
        cli(
            "train_lm",
            *SHORT["train_lm"],
            "--data",
            corpus,
            "--members",
            2,
            "--out",
            tmp_path / "two",
        ).code
        == 0
    )
    for encoder, argv, parts in (
        (tmp_path / "two", (), ["is an ensemble", "--members 1"]),
        (finished("train_mlm"), ("--causal",), ["--causal", "is an encoder", "train_lm.py"]),
        (
            finished("train_lm"),
            ("--split", "clean"),
            ["--split clean", "train_lm.py has no --split"],
        ),
    ):
        assert_complains(
            cli(
                "train_classifier",
                "--encoder",
                encoder,
                *argv,
                "--data",
                corpus,
                "--out",
                tmp_path / "run",
            ),
            encoder,
            *parts,
        )
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------- the run to continue


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    "name, how, parts",
    [
        ("checkpoint.pt", half, ["checkpoint.pt: not a readable checkpoint", "restore"]),
        ("checkpoint.pt", lambda _: b"", ["checkpoint.pt: not a readable checkpoint"]),
        ("checkpoint.pt", None, ["--resume", "holds no checkpoint.pt", "leave --resume out"]),
        ("config.json", half, ["config.json: not valid JSON"]),
        ("tokenizer.json", half, ["tokenizer.json: not a tokenizer file", "restore"]),
        (
            "metrics.jsonl",
            lambda content: b"{\n" + content,
            ["metrics.jsonl: not readable", "restore"],
        ),
        (
            "config.json",
            lambda c: c.replace(b'"seed": 0', b'"seed": "0"'),
            ["config.json: seed of another type"],
        ),
        (
            "config.json",
            lambda c: c.replace(b'"dtype": "auto"', b'"dtype": "half"'),
            ["config.json: dtype of a value that there is not", "restore the file"],
        ),
    ],
)
def test_a_run_that_cannot_be_continued(script, name, how, parts, cli, corpus, finished, tmp_path):
    folder = damaged(finished, script, tmp_path, name, how)
    if name == "checkpoint.pt":
        (folder / "previous.pt").unlink()  # else the run goes on from that
    before = contents(folder)
    assert_complains(
        cli(script, *SHORT[script], "--data", corpus, "--out", folder, "--resume"), folder, *parts
    )
    assert contents(folder) == before


def test_best_weights_in_the_place_of_the_checkpoint(cli, corpus, finished, tmp_path):
    folder = damaged(
        finished,
        "train_lm",
        tmp_path,
        "checkpoint.pt",
        lambda _: (finished("train_lm") / "best.pt").read_bytes(),
    )
    before = contents(folder)
    assert_complains(
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, "--resume"),
        folder / "checkpoint.pt",
        "restore",
    )
    assert contents(folder) == before


def test_resume_of_a_run_of_other_flags_names_them(cli, corpus, finished):
    folder = finished("train_lm")
    before = contents(folder)
    outcome = cli(
        "train_lm",
        *SHORT["train_lm"],
        "--data",
        corpus,
        "--out",
        folder,
        "--resume",
        "--n-embd",
        32,
        "--seed",
        9,
    )
    assert_complains(
        outcome,
        folder,
        "was started with --n-embd 16, not 32; --seed 0, not 9; leave these out, or use another --out; "
        "to train its weights on: --init-from",
    )
    assert contents(folder) == before


def test_resume_with_another_script_names_the_right_one(cli, finished):
    folder = finished("train_classifier")
    before = contents(folder)
    outcome = cli("train_lm", "--resume", "--out", folder)
    assert_complains(
        outcome,
        f"{folder} is a run of train_classifier.py; to go on: python train_classifier.py --resume --out {folder}",
    )
    assert contents(folder) == before


def test_resume_with_data_that_has_changed(cli, own_corpus, tmp_path):
    argv = (*SHORT["train_lm"], "--data", own_corpus, "--out", tmp_path / "run")
    assert cli("train_lm", *argv).code == 0
    text = (own_corpus / "train_LM.txt").read_text(encoding="utf-8")
    (own_corpus / "train_LM.txt").write_text(text.replace("ranch", "farm"), encoding="utf-8")
    before = contents(tmp_path)
    assert_complains(
        cli("train_lm", *argv, "--resume"),
        own_corpus,
        tmp_path / "run" / "tokenizer.json",
        "another vocabulary",
        "restore the data",
    )
    assert contents(tmp_path) == before


def test_resume_where_nothing_is(cli, corpus, tmp_path):
    assert_complains(
        cli("train_lm", "--data", corpus, "--out", tmp_path / "nowhere", "--resume"),
        tmp_path / "nowhere",
        "leave --resume out",
    )
    assert not (tmp_path / "nowhere").exists()


def test_a_log_whose_last_line_was_cut_off_is_mended_by_resuming(cli, corpus, finished, tmp_path):
    folder = damaged(
        finished,
        "train_lm",
        tmp_path,
        "metrics.jsonl",
        lambda content: content + b'{"step": 8, "tok',
    )
    assert (
        cli("train_lm", *SHORT["train_lm"], "--data", corpus, "--out", folder, "--resume").code == 0
    )
    assert read_metrics(folder) == read_metrics(finished("train_lm"))
