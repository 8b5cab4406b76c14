"""The process of answers: what they can reach, change and use up."""

import os
import sys
import time

import pytest
from helpers import ROOT

import course.worker
from course.exercises import EXERCISES, solutions
from course.judge import judge
from course.worker import explain_end

FOLDERS = ("beyond", "course", "data", "lab", "nets", "studies")


def write_heads(path, top="", body="raise NotImplementedError"):
    """Write an answer to exercise 3 whose split_heads has this body."""
    text = f"{top}\n\ndef split_heads(x, n_head):\n    {body}\n\n\ndef join_heads(y):\n    pass\n"
    path.write_text(text, encoding="utf-8")
    return path


def our_modules():
    """Return the names of all our modules, as they are imported."""
    paths = list(ROOT.glob("*.py"))
    for folder in FOLDERS:
        paths += (ROOT / folder).rglob("*.py")
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [module.removesuffix(".__init__") for module in modules]


# As the finders of an editable installation, which pip loads when Python starts
EDITABLE = f"""
import sys
from importlib.machinery import ModuleSpec, PathFinder

class Namespaces:
    @staticmethod
    def find_spec(name, target=None):
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [{str(ROOT)!r} + "/" + name.replace(".", "/")]
        return spec if name in {FOLDERS} else None

def hook(path):
    if path != "__our_path_hook__":
        raise ImportError
    return Namespaces

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path=[{str(ROOT)!r}])

sys.path_hooks.append(hook)
sys.path.append("__our_path_hook__")
sys.meta_path.append(Finder)
"""

IMPORT_ALL = """
import importlib
imported = []
for name in {names}:
    try:
        importlib.import_module(name)
        imported.append(name)
    except ImportError:
        pass
"""


def test_answers_cannot_import_the_solutions_nor_the_library(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(EDITABLE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    top = IMPORT_ALL.format(names=our_modules())
    path = write_heads(tmp_path / "ex03_heads.py", top, "raise ValueError(imported)")
    message = judge({"heads": path}, seconds=60)["heads"]["split_heads"].message
    assert message.endswith("ValueError: []"), message
    path = write_heads(path, "from course.exercises.ex03_heads import *")
    for verdict in judge({"heads": path})["heads"].values():
        assert "No module named 'course" in verdict.message


SETTINGS = """
import sys, warnings
import torch
torch.set_grad_enabled(False)
torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
torch.use_deterministic_algorithms(True)
torch.set_float32_matmul_precision("medium")
sys.setrecursionlimit(120)
warnings.simplefilter("error")
"""


@pytest.mark.slow
def test_what_one_answer_changes_in_torch_is_restored_for_the_next(tmp_path):
    text = EXERCISES["padding"].read_text("utf-8")
    changed = tmp_path / "ex01_padding.py"
    changed.write_text(f"{text}\n{SETTINGS}", encoding="utf-8")
    for verdicts in judge({**EXERCISES, "padding": changed}).values():
        for function, verdict in verdicts.items():
            assert function == "pad" or verdict.status == "done", verdict


@pytest.mark.slow
def test_a_process_that_an_answer_starts_ends_with_the_check(tmp_path):
    top = "import os, time\nfrom pathlib import Path"
    pid = tmp_path / "pid"
    body = f"Path({str(pid)!r}).write_text(str(os.fork() or time.sleep(999)))"
    path = write_heads(tmp_path / "ex03_heads.py", top, body)
    start = time.monotonic()
    verdicts = judge({"heads": path})["heads"]
    assert (
        "returns None" in verdicts["split_heads"].message
        and "None" in verdicts["join_heads"].message
    )
    assert time.monotonic() - start < 90
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid.read_text()}/exe") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid.read_text()}/exe")


@pytest.mark.slow
def test_a_copy_of_the_process_writes_no_results(tmp_path):
    body = "os.fork(); return x.unflatten(2, (n_head, -1)).transpose(1, 2)"
    path = write_heads(tmp_path / "ex03_heads.py", "import os", body)
    verdicts = judge({"heads": path})["heads"]
    assert verdicts["split_heads"].status == "done" and "None" in verdicts["join_heads"].message


@pytest.mark.slow
def test_an_answer_cannot_turn_the_time_limit_off(tmp_path, monkeypatch):
    monkeypatch.setattr(course.worker, "START_SECONDS", 20)
    top = "import faulthandler"
    body = "faulthandler.cancel_dump_traceback_later()\n    while True:\n        pass"
    path = write_heads(tmp_path / "ex03_heads.py", top, body)
    verdicts = judge({"heads": path}, seconds=1)["heads"]
    assert verdicts["split_heads"].message.startswith("not finished after 1 seconds")
    assert "returns None" in verdicts["join_heads"].message


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_memory_is_limited(tmp_path):
    path = tmp_path / "ex03_heads.py"
    for body in ("return torch.zeros(10**10)", "return [0] * 10**10"):
        write_heads(path, "import torch", body)
        verdict = judge({"heads": path})["heads"]["split_heads"]
        assert verdict.message == "split_heads: line 4: needs more than 4 GB of memory"


@pytest.mark.slow
def test_a_recursion_that_never_ends_is_no_loop(tmp_path):
    body = "time.sleep(0.02); return split_heads(x, n_head)"
    path = write_heads(tmp_path / "ex03_heads.py", "import time", body)
    message = judge({"heads": path}, seconds=3)["heads"]["split_heads"].message
    assert message.startswith("line 4 in split_heads: split_heads calls itself again and again.")


def test_why_a_process_ended():
    loop = 'Timeout (0:00:20)!\n  File "a.py", line 3 in f\n  File "b.py", line 4 in g'
    said = "line 3 in f: not finished after 20 seconds. Does a loop never end?"
    assert explain_end("a.py", 20, 1, loop) == said
    recursion = "Timeout (0:00:20)!\n" + '  File "a.py", line 3 in f\n' * 100
    assert "f calls itself again and again" in explain_end("a.py", 20, 1, recursion)
    said = "ends Python (exit code -11) before its results can be compared"
    assert explain_end("a.py", 20, -11, "") == said


def test_all_solutions_are_done():
    verdicts = judge(EXERCISES)
    assert list(verdicts) == list(EXERCISES)
    for name in EXERCISES:
        assert list(verdicts[name]) == list(solutions(name))
        assert {verdict.status for verdict in verdicts[name].values()} == {"done"}
