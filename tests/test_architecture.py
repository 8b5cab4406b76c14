"""How the house is built: what may import what, how much there is; imports change nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

FOLDERS = ("data", "nets", "lab", "beyond", "studies", "course")
SOURCES = sorted([*ROOT.glob("*.py"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# A room imports only from rooms before it. model.py stands between nets/, which it is made of, and
# the rest of nets/, which is made of it.
ROOMS = ("data", "nets", "model", "lab", "top", "beyond", "studies", "course")


def lines(path):
    return path.read_text("utf-8").count("\n")


def file_of(module):
    """Return the file of one of our modules, or None."""
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


def imports(path, inside=True):
    """Return our own files that a file imports; inside: also in its functions."""
    found, nodes = set(), list(ast.parse(path.read_text("utf-8")).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef) and not inside:
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module, *(f"{node.module}.{item.name}" for item in node.names)]
        found |= {file_of(name) for name in names} - {None}
        nodes.extend(ast.iter_child_nodes(node))
    return found


def closure(path):
    """Return the own files that importing a file loads, with the packages around them."""
    found, to_see = set(), [path]
    while to_see:
        file = to_see.pop()
        if file not in found:
            found.add(file)
            to_see += imports(file, inside=False)
            around = file.parent / "__init__.py"
            to_see += [around] if around.exists() and file.parent != ROOT else []
    return found


def room(path):
    folder = path.relative_to(ROOT).parts[0]
    return "model" if path.name == "model.py" else folder if folder in FOLDERS else "top"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_from_rooms_before_it(path):
    for other in imports(path):
        if {room(path), room(other)} == {"nets", "model"}:
            continue
        allowed = ROOMS.index(room(other)) <= ROOMS.index(room(path))
        assert allowed, f"{path} imports {other}"
        across = room(path) in ("beyond", "studies", "course") and room(other) in (
            "beyond",
            "studies",
        )
        assert not across or room(path) == room(other), f"{path} imports {other}"


@pytest.mark.slow  # only CI counts lines: whoever adds a class here can still run `make test`
def test_the_house_stays_small():
    loaded = closure(ROOT / "train_lm.py")
    assert len(loaded) <= 20, sorted(str(p.relative_to(ROOT)) for p in loaded)
    assert sum(map(lines, loaded)) <= 2800
    assert sum(map(lines, SOURCES)) <= 10_300 and len(SOURCES) <= 95  # 300 are for pairs
    assert sum(map(lines, TESTS)) <= 8200
    longest = max(SOURCES + TESTS, key=lines)
    assert lines(longest) <= 400, longest
    assert lines(ROOT / "README.md") <= 160
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= 14_300  # 800 for pairs


@pytest.mark.slow
def test_importing_prints_nothing_and_changes_no_setting():
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in SOURCES]
    modules = [m.removesuffix(".__init__") for m in modules if not m.startswith("course.stubs")]
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
    import re

    for page in PAGES:
        text = page.read_text("utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_figure_is_on_a_page():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    for figure in Path(ROOT / "docs" / "figures").iterdir():
        assert figure.name in text, figure.name
