"""The shape of the house: what may import what, what a run loads; imports change nothing."""

import ast
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from helpers import ROOT, call, sentences, succeed, write_corpus

import model
from lab.load import read_run

FOLDERS = ("data", "nets", "lab", "beyond", "studies", "course")
SOURCES = sorted([*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# A room imports only from itself and the rooms before it; the last three not from each other
ROOMS = ("model", "data", "nets", "lab", "top", "beyond", "studies", "course")


def name_of(path):
    """Return the module of a file: "lab.inside.run", or "lab" for lab/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


MODULES = {name_of(path): path for path in SOURCES}


def room(name):
    first = name.split(".")[0]
    if first in FOLDERS or first == "model":
        return first
    return "top"


def imported_names(path):
    """Return the modules that a file names in its imports, also in functions and import_module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {item.name for item in node.names}
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names |= {f"{node.module}.{item.name}" for item in node.names}
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {word.value for word in node.args if isinstance(word, ast.Constant)}
    return names


IMPORTS = {name: (imported_names(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}


# ------------------------------------------------------------------------------------------ imports


def test_model_py_imports_only_torch():
    allowed = {"torch", "math", "dataclasses", "typing"}
    for name in imported_names(ROOT / "model.py"):
        assert name.split(".")[0] in allowed, name


def test_no_two_files_import_each_other_not_even_around_corners():
    done = set()

    def visit(name, path):
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name in done:
            return
        for other in sorted(IMPORTS[name]):
            visit(other, [*path, name])
        done.add(name)

    for name in MODULES:
        visit(name, [])


@pytest.mark.parametrize("name", MODULES)
def test_a_room_imports_only_from_rooms_before_it(name):
    for other in IMPORTS[name]:
        here, there = ROOMS.index(room(name)), ROOMS.index(room(other))
        assert there <= here, f"{name} imports {other}"
        if room(other) in ("beyond", "studies", "course"):
            assert room(name) == room(other), f"{name} imports {other}"


# ---------------------------------------------------------------------------------- what a run runs


def test_by_default_a_run_trains_what_model_py_shows(tmp_path):
    """No method of model.py is replaced with the default flags of a script on a CPU."""
    corpus = write_corpus(tmp_path / "corpus")
    scripts = {
        "train_lm": {"steps": 1},
        "train_mlm": {"steps": 1},
        "train_classifier": {"epochs": 1},
    }
    for script, flags in scripts.items():
        out = tmp_path / script
        succeed(call(script, data=corpus, out=out, device="cpu", **flags))
        trained = read_run(out).model
        for module in trained.modules():
            kind = type(module)
            if kind.__module__ == "model":
                assert kind is getattr(model, kind.__name__), kind
                for name in vars(module):
                    assert not isinstance(getattr(kind, name, None), types.FunctionType), name
            else:
                assert kind.__module__.split(".")[0] == "torch" or script == "train_classifier"


def test_a_run_on_a_text_of_ones_own_loads_twenty_files(tmp_path):
    text = tmp_path / "own.txt"
    text.write_text("\n".join(sentences(200)), "utf-8")
    flags = ["--data", text, "--steps", 2, "--eval-every", 2, "--block-size", 8]
    program = f"""
import json, runpy, sys
sys.argv = ["train_lm.py", *{[str(flag) for flag in flags]!r}, "--out", {str(tmp_path / "run")!r}]
runpy.run_path("train_lm.py", run_name="__main__")
print(json.dumps([getattr(m, "__file__", None) for m in list(sys.modules.values())]))
"""
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    files = {Path(file) for file in json.loads(done.stdout.splitlines()[-1]) if file}
    loaded = sorted(name for name, path in MODULES.items() if path in files)
    loaded.append("train_lm")  # which runpy has loaded under another name
    assert len(loaded) <= 20, loaded
    for name in loaded:
        assert room(name) not in ("beyond", "studies", "course"), name
        assert room(name) != "nets" or name in ("nets", "nets.build", "nets.relative"), name


# ---------------------------------------------------------------------------- importing, and pages


@pytest.mark.slow
def test_importing_prints_nothing_and_changes_no_setting():
    modules = [name for name in MODULES if not name.startswith("course.stubs")]
    program = f"""
import os, random, signal, sys, warnings
import matplotlib, torch
import transformers
def settings():
    environment = {{k: v for k, v in os.environ.items() if not k.startswith("TORCH")}}
    return (
        dict(matplotlib.rcParams), environment, os.getcwd(), signal.getsignal(signal.SIGINT),
        torch.get_rng_state().sum().item(), random.getstate(), torch.get_num_threads(),
        torch.get_default_dtype(), "matplotlib.pyplot" in sys.modules,
    )
before = settings()
for module in {modules!r}:
    __import__(module)
assert settings() == before
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


def test_every_link_of_a_page_leads_somewhere():
    for page in PAGES:
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_figure_is_on_a_page():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    for figure in Path(ROOT / "docs" / "figures").iterdir():
        assert figure.name in text, figure.name


def test_the_readme_can_be_read_in_minutes():
    assert (ROOT / "README.md").read_text("utf-8").count("\n") <= 170
