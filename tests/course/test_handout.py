"""A handout works alone and gives nothing away."""

import ast
import os
import re
import subprocess
import sys

import pytest
from helpers import ROOT, assert_complains, call, contents, succeed, unchanged

from course.exercises import EXERCISES, file_name

OWN = r"(model|data|lab|nets|course.exercises|course.stubs)\b"
# Files with solutions, and the mistakes that hint at them.
SOLUTIONS = [
    *(ROOT / "course/exercises").glob("*.py"),
    *(ROOT / name for name in ("model.py", "nets/cross_entropy.py", "nets/classifier.py")),
    *(ROOT / "data").glob("*.py"),
]


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "handout"
    succeed(call("course.handout", folder))
    return folder


def code_lines(path):
    """All statements and mistakes of a file that are long enough to be told from others."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Return, ast.Assign, ast.AugAssign, ast.Lambda)):
            yield ast.unparse(node.body if isinstance(node, ast.Lambda) else node)


def test_a_handout_contains_no_answer(handout):
    stored = contents(handout)
    assert set(stored) == {
        *map(file_name, EXERCISES),
        *("check.py", "README.md", "course/__init__.py", "course/judge.py", "course/sheets.pt"),
        *("course/observe.py", "course/watch.py", "course/differences.py", "course/explain.py"),
        "course/report.py",
    }
    answers = {line for path in SOLUTIONS for line in code_lines(path) if len(line) >= 30}
    assert len(answers) > 300
    for name, content in stored.items():
        text = content.decode("utf-8", "ignore")
        code = ast.unparse(ast.parse(text)) if name.endswith(".py") else text
        assert not [line for line in answers if line in code], name
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.MULTILINE)
        assert not [module for module in imported if re.match(OWN, module)], name


def check_alone(folder, *words):
    """Run a handout's check.py where the project cannot be imported."""
    hidden = folder.parent / "hidden"
    hidden.mkdir(exist_ok=True)
    for name in ("model", "data", "lab", "nets", "tokenizers"):
        (hidden / f"{name}.py").write_text("raise ImportError('hidden')", encoding="utf-8")
    return subprocess.run(
        [sys.executable, folder / "check.py", *words],
        cwd=hidden,
        env=os.environ | {"PYTHONPATH": str(hidden)},
        capture_output=True,
        text=True,
    )


def test_a_handout_works_alone(tmp_path):
    folder = tmp_path / "handout"
    succeed(call("course.handout", folder, exercises="7,heads"))
    path = folder / "ex03_heads.py"
    stub, wrong = (
        path.read_text(encoding="utf-8"),
        "return x.reshape(len(x), n_head, x.size(1), -1)",
    )
    path.write_text(stub.replace("raise NotImplementedError", wrong, 1), encoding="utf-8")
    (folder / "ex07_perplexity.py").unlink()
    told = check_alone(folder)
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert lines[0].startswith("  3 heads       split_heads: view(B, H, T, D) mixes positions")
    assert lines[1].endswith("ex07_perplexity.py is missing; take it from the handout again")
    assert "[--] 0 of 2 done" in told.stdout
    assert "alibi: no such exercise" in check_alone(folder, "alibi").stderr
    (folder / "ex07_perplexity.py").write_text("import ex03_heads\n", encoding="utf-8")
    assert "No module named 'ex03_heads'" in check_alone(folder).stdout  # as when graded


def test_a_handout_overwrites_nothing(handout, tmp_path):
    with unchanged(handout):
        assert_complains(call("course.handout", handout), handout, "not an empty folder")
    assert_complains(call("course.handout", tmp_path / "new", exercises="2,99"), "99", "no such")
    assert not (tmp_path / "new").exists()
