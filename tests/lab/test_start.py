"""What every script says before it begins: of modules, of unknown words; and of LaTeX's labels."""

import dataclasses
import errno
import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest
from helpers import ROOT, TINY, call, fails, succeed

from lab import machine, tables
from lab.flags import CommonFlags, in_groups, spelled


@pytest.mark.parametrize("name", ["model", "data"])
def test_a_module_of_the_users_that_hides_one_of_ours_is_named(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("")
    command = [sys.executable, "-c", "from lab import load_run"]
    how = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True)
    done = subprocess.run(command, capture_output=True, **how)
    told = f"{tmp_path.resolve() / name}.py: hides {ROOT / name}; rename it, or run in {ROOT}\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_the_revision_is_known_in_a_path_with_spaces(tmp_path, monkeypatch):
    folder = tmp_path / "my course"
    folder.mkdir()
    how = "-c user.name=me -c user.email=me commit -q --allow-empty -m first".split()
    for words in ["init", "-q"], how:
        subprocess.run(["git", *words], cwd=folder, check=True)
    monkeypatch.setattr(machine, "ROOT", folder)
    assert len(machine.git_revision()) >= 7


SCRIPTS = [
    ("train_lm", TINY),
    ("baselines", ()),
    ("beyond.train_seq2seq", (*TINY, "--task", "infill")),
    ("beyond.train_context", (*TINY, "--task", "tlm")),
]


@pytest.mark.parametrize("script, argv", SCRIPTS)
def test_many_unknown_words_hint_at_bpe(script, argv, tmp_path):
    for name in ("train", "test", "val"):
        for language in ("en", "xx"):
            lines = (f"we want {name}{n} and n{language}{name}{n}\n" for n in range(20))
            (tmp_path / f"{name}.{language}").write_text("".join(lines))
    done = succeed(call(script, *argv, data=tmp_path, out=tmp_path / "out"))
    assert "try --tokenizer bpe" in done.out


@pytest.mark.parametrize("script", [*dict(SCRIPTS), "train_mlm", "train_classifier"])
def test_every_flag_has_its_help_on_its_line(script):
    """Else tyro takes the comment above, which names a section."""
    flags = importlib.import_module(script).Flags
    sources = [inspect.getsource(c) for c in flags.__mro__ if dataclasses.is_dataclass(c)]
    for field in dataclasses.fields(flags):
        line = rf"^    {field.name}: .+  # .+$"
        assert re.search(line, "\n".join(sources), re.M), field.name


def test_names_that_are_not_utf8_and_large_seeds(tmp_path):
    path = tmp_path / "caf\udce9.txt"
    for script, argv in ("train_lm", ("--data", path)), ("sample", ("x", "--text", path)):
        fails(call(script, *argv), "caf\\udce9.txt", "not UTF-8")
    machine.set_up_device("cpu", seed=2**64)


@pytest.mark.slow
def test_what_cannot_be_written_is_one_message(finished, tmp_path):
    """Whatever the script: a file or a link to nothing in the way, a name that is too long."""
    run = finished("train_lm")
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    places = {
        tmp_path / "file" / "run": "Not a directory",
        tmp_path / "file": "exists and is not a folder",
        tmp_path / "link": "exists and is not a folder",
        tmp_path / ("x" * 300): "File name too long",
    }
    commands = ["train_lm", *TINY], ["baselines"], ["compare", run], ["attention_maps", run]
    for place, reason in places.items():
        for command in commands:
            failed = call(*command, out=place)
            fails(failed, f"{place}", f"{reason}; check", "or give another --out")


def test_a_run_folder_that_cannot_be_written_is_one_message(copied, tmp_path):
    folder = copied("train_lm")
    (folder / "answers.tsv.partial").mkdir()  # in the way, also where root may write anything
    (folder / "maps").write_text("")
    (tmp_path / "texts.txt").write_text("we want peace\n")
    answers = call("sample", folder, file=tmp_path / "texts.txt")
    fails(answers, f"{folder / 'answers.tsv'}: Is a directory; check the path")
    maps = call("attention_maps", folder)
    fails(maps, f"{folder / 'maps'}: exists and is not a folder", "give another --out")


def test_what_cannot_be_read_names_its_flag(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("data.corpora.speeches.read_assignment", refuse)
    failed = call("train_lm", *TINY, data=tmp_path, out=tmp_path / "run")
    fails(failed, f"{tmp_path}: Permission denied; check", "or give another --data")


def test_what_torchrun_left_behind_does_no_harm(corpus, tmp_path, monkeypatch):
    flags = dict(data=corpus, out=tmp_path / "run")
    monkeypatch.setenv("RANK", "1")
    for variables in (["LOCAL_RANK"], ["LOCAL_WORLD_SIZE", "MASTER_ADDR"]):
        for name in variables:
            monkeypatch.setenv(name, "2")
        monkeypatch.setenv("WORLD_SIZE", "2")
        alone = call("train_lm", *TINY, **flags)
        fails(alone, "WORLD_SIZE is 2: start with torchrun, or unset WORLD_SIZE")
        assert not (tmp_path / "run").exists()
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "perplexity at step 8" in succeed(call("train_lm", *TINY, **flags)).out
    assert (tmp_path / "run" / "curve.png").exists()


HELPED = ["train_lm", "beyond.train_context", "course.check", "course.start", "studies.positions"]


@pytest.mark.parametrize("script", HELPED)
def test_help_wraps_the_description_and_keeps_commands(script, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    printed = succeed(call(script, "--help")).out
    lines = printed.splitlines()
    documentation = importlib.import_module(script).__doc__
    for line in documentation.splitlines():
        if line.startswith("    "):
            assert line in lines  # a command, or an example
    usage = lines.index(next(line for line in lines if line.startswith("usage: ")))
    prose = [line for line in lines[:usage] if not line.startswith("    ")]
    assert max(map(len, prose)) <= 70 and "\n\n\n" not in printed
    command = f"python -m {script}" if "." in script else f"python {script}.py"
    assert lines[usage].startswith(f"usage: {command} [-h]")


WITH_FLAGS = [*dict(SCRIPTS), "train_mlm", "train_classifier", "sample", "compare", "bench"]
WITH_FLAGS += ["attention_maps", "beyond.export", "course.check", "course.grade", "studies.sweep"]
GROUPS = "data model training evaluation run machine positions".split()


@pytest.mark.parametrize("width", ["80", "100"])
@pytest.mark.parametrize("script", WITH_FLAGS)
def test_help_has_all_flags_in_groups_and_says_what_their_values_are(script, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    _, _, printed = succeed(call(script, "--help")).out.partition("usage: ")
    flags = importlib.import_module(script).Flags
    for field in dataclasses.fields(flags):
        if "Positional" not in str(field.type):
            assert re.search(rf"^\W*{spelled(field.name)}[ ,]", printed, re.M), field.name
    assert not re.search(r"\b(INT|STR|FLOAT)\b", printed)
    if issubclass(flags, CommonFlags):
        groups = re.findall(r"^\W*(\w+) options\W*$", printed, re.M)
        known = [name for name in GROUPS if name in groups]
        assert [name for name in groups if name in GROUPS] == known
        assert len(known) >= len(GROUPS) - 2  # classifiers have a body and a head
        machine = printed.partition("machine options")[2].partition("positions options")[0]
        assert "--device {" in machine and "--lr" not in machine


@dataclasses.dataclass
class Edited:
    """A student's flags."""

    # Model
    width: int = 3
    bias: bool = True  # of layers


def test_help_has_the_defaults_of_a_task_and_flags_without_a_comment():
    printed = succeed(call("train_lm", "--data", "copy", "--help")).out
    assert "blocks (default: 3)" in printed and "(default: copy)" in printed
    shown = in_groups(Edited, {"width": 5})().group_model
    assert dataclasses.asdict(shown) == {"width": 5, "bias": True}


def test_no_default_is_told_twice():
    """tyro appends (default: ...) to the comment behind a field."""
    paths = [path for path in ROOT.rglob("*.py") if ".venv" not in path.parts]
    fields = []
    for path in paths:
        for block in re.findall(r"^class \w*Flags.*\n(?:(?:    .*)?\n)+", path.read_text(), re.M):
            fields += re.findall(r"^    \w+: .* = .*# .*$", block, re.M)
    assert len(fields) > 200
    assert [field for field in fields if "default" in field.rpartition("# ")[2]] == []


def test_any_name_becomes_a_label_that_latex_can_read():
    assert r"\label{tab:top-50-of_all}" in tables.to_latex(["a"], [["b"]], "", "top 50% {of_all")
