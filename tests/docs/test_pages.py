"""The pages: their commands have flags that exist, their code runs, and so does the notebook."""

import dataclasses
import importlib
import os
import re

import pytest
from helpers import ROOT

import model
from studies import pictures

FIGURES = ROOT / "docs" / "figures"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:python|torchrun \S+ \d+) (?:-m ([\w.]+)|(\w+)\.py)\b([^\n`#]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_of_a_command_exists(page):
    text = page.read_text("utf-8").replace("\\\n", " ")
    for module, script, words in COMMAND.findall(text):
        if not hasattr(module := importlib.import_module(module or script), "Flags"):
            continue  # of the course, with positional arguments only
        names = {field.name for field in dataclasses.fields(module.Flags)}
        words = re.sub(r'"[^"]*"', "", words)  # flags that a study passes on
        for flag in re.findall(r" --([a-z][\w-]*)", words):
            name = flag.replace("-", "_")
            assert {name, name.removeprefix("no_")} & names, f"{module.__name__} --{flag}"


def pictures_of(page):
    """Return the paths of the pictures that a page shows."""
    text = page.read_text("utf-8")
    names = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"", text)
    return {page.parent / (first or second) for first, second in names}


def table_of_pictures():
    """Return {picture: [pages, command, runs]} of docs/figures/README.md."""
    cells_of = {}
    for line in (FIGURES / "README.md").read_text("utf-8").splitlines():
        names, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        for name in re.findall(r"[\w-]+\.png", names):
            if line.startswith("|"):
                cells_of[FIGURES / name] = cells
    return cells_of


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pictures_of_a_page_exist_and_are_listed_as_its_own(page):
    listed = table_of_pictures()
    for picture in pictures_of(page):
        assert picture.exists(), picture
        assert page.name.removesuffix(".md") in listed[picture][0], picture


def test_every_picture_has_a_command_and_a_page():
    listed = table_of_pictures()
    shown = set().union(*map(pictures_of, PAGES))
    assert set(FIGURES.glob("*.png")) == set(listed) == shown
    redrawn = {"positions-brief.png", "positions-heatmap.png"}
    redrawn |= set(pictures.list_jobs(pictures.Flags(), FIGURES)[2])
    for picture, (_, command, runs) in listed.items():
        assert "`python" in command or "commands" in command, picture
        assert (picture.name in redrawn) == ("revision" not in runs or "none" in runs), picture


def test_the_examples_of_architecture_work(monkeypatch):
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    monkeypatch.setattr(model, "POSITIONS", dict(model.POSITIONS))  # to be forgotten afterwards
    space = {}
    exec("import itertools, math\nimport torch.nn as nn\nimport torch.nn.functional as F", space)
    exec("import torch\nfrom model import POSITIONS, Config, Encoder, NoPE", space)
    exec("from data.tasks import Task", space)
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, space)
    space["test_every_entry_is_that_of_its_distance"]()
    task = space["Majority"](length=4)
    assert task.solve("b a b =") == ["b"] and list(task.streams) == ["4", "6", "8", "16"]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("out/tour", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    where = {"metadata": {"path": str(ROOT / "docs")}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
