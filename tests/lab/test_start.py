"""What every script says before it begins: of modules, of unknown words; and of LaTeX's labels."""

import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest
from helpers import ROOT, TINY, call, fails, succeed

from lab import machine, tables


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


def test_any_name_becomes_a_label_that_latex_can_read():
    assert r"\label{tab:top-50-of_all}" in tables.to_latex(["a"], [["b"]], "", "top 50% {of_all")
