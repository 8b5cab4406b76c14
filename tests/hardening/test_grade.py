"""The grader: points, feedback, its files, and submissions that misbehave."""

import csv
import json

import pytest
from helpers import assert_complains, call, succeed, unchanged

from course import grade
from course.exercises import file_name

FILE = file_name("heads")
SPLIT = "    return x.unflatten(2, (n_head, -1)).transpose(1, 2)\n"
JOIN = "    return y.transpose(1, 2).flatten(2)\n"


def heads(split=SPLIT, join=JOIN, top=""):
    return f"{top}\ndef split_heads(x, n_head):\n{split}\ndef join_heads(y):\n{join}"


def submit(root, **files):
    """Write submissions, {name: text of their one file}; return the folder."""
    for name, text in files.items():
        (root / name).mkdir(parents=True)
        (root / name / FILE).write_text(text, encoding="utf-8")
    return root


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return {row["submission"]: row for row in csv.DictReader(file)}


LARGE, DELETE = "x = torch.zeros(50 * 2**28)", "import os, shutil\nshutil.rmtree(os.getcwd())\n"
PRINT = "print('x' * 2**25)\n"
FORGE = "import os, sys\nopen(sys.argv[2], 'w').write('[9]')\nos._exit(0)\n"
FULL = "this needs more memory than there is"
BAD = {  # {name: (text, part of the feedback, points)}
    "allocates": (heads(top=f"import torch\n{LARGE}\n"), f"line 2 (`{LARGE}`): {FULL}", 0),
    "crashes": (heads(top="import ctypes\nctypes.string_at(0)\n"), "crashes Python (SIGSEGV)", 0),
    "deletes": (heads(top=DELETE, join="    return [0] * 2**40"), FULL, 0.5),
    "exits": (heads(split="    exit(0)\n"), "ends the program. A function should return", 0.5),
    "leaves": (heads(split="    import os; os._exit(7)\n"), "ends the program with exit code 7", 0),
    "forges": (heads(top=FORGE), "ends the program with exit code 0", 0),
    "loops": (heads(split="    while True: pass\n"), "not finished after 1 seconds", 0.5),
    "prints": (heads(top=PRINT, join="    1 / 0\n"), "(`1 / 0`): ZeroDivisionError", 0.5),
    "solves": (heads(top="import model\n"), "No module named 'model'", 0),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """All bad submissions, with good ones between them, graded at once."""
    root = tmp_path_factory.mktemp("course")
    files = {name: text for name, (text, *_) in BAD.items()}
    folder = submit(root / "in", **files, ada=heads())
    (folder / "list.csv").touch()  # neither this nor a folder with _ is a submission
    others = {"late": "ex03_heads (1).py", "notebook": "ex03_heads.ipynb", "_old": FILE}
    others["moodle"] = "answers.zip"
    for name, file in others.items():
        (folder / name).mkdir()
        (folder / name / file).write_text("", encoding="utf-8")
    with unchanged(folder):
        flags = {"exercises": "3", "out": root / "grades.csv"}
        told = succeed(call("course.grade", folder, seconds=1, jobs=2, **flags)).out
    return rows_of(root / "grades.csv"), told


@pytest.mark.parametrize("name", BAD)
def test_a_bad_submission_costs_only_itself(name, graded):
    row, (_, feedback, points) = graded[0][name], BAD[name]
    assert feedback in row["feedback"] and "\n" not in row["feedback"]
    assert float(row["total"]) == float(row["heads"]) == points


def test_points_and_feedback(graded):
    rows, told = graded
    assert list(rows["ada"].values()) == ["ada", "1.0", "1.0", "heads: done"]
    missing = "heads: ex03_heads.py was not handed in"
    assert rows["late"]["feedback"] == f"{missing}; rename ex03_heads (1).py"
    assert rows["notebook"]["feedback"] == f"{missing}; export ex03_heads.ipynb"
    assert rows["moodle"]["feedback"] == f"{missing}; look into answers.zip"
    assert len(rows) == len(BAD) + 4 == told.count(" of 1 points")
    ends = {line.split()[0]: line.partition(" of 1 ")[2] for line in told.splitlines()}
    assert (ends["ada"], ends["late"]) == ("points", "points; 1 not handed in")


def test_three_thirds_are_a_point():
    for n in range(1, 4):
        assert grade.total([{"score": 1 / 3}] * 3 * n + [{"score": 2 / 3}] * 3) == n + 2
    ada = {"name": "block", "score": 2 / 3, "output": "done"}
    assert "\nada,0.6667,0.6667,block: done\n" in grade.table({"ada": [ada]}, ["block"])


def test_each_function_that_fails_has_a_line(tmp_path):
    missing = "    raise NotImplementedError\n"
    files = {"ada": heads(missing, "    return y\n"), "bob": heads("    return x\n", missing)}
    folder = submit(tmp_path / "in", **files, cy="import x\n")
    flags = {"exercises": "3", "out": tmp_path / "grades.csv"}
    succeed(call("course.grade", folder, **flags))
    lines = {name: row["feedback"].split("\n") for name, row in rows_of(flags["out"]).items()}
    assert lines["ada"][0] == "heads: split_heads: not begun"
    assert lines["ada"][1].startswith("heads: join_heads: output has shape (")
    assert lines["bob"][0].startswith("heads: split_heads: output has shape (")
    assert lines["bob"][1] == "heads: join_heads: not begun"
    assert [len(lines[name]) for name in ("ada", "bob", "cy")] == [2, 2, 1]


def test_what_cannot_be_read_costs_only_itself(tmp_path, monkeypatch):
    file, folder = submit(tmp_path, ada=heads()) / "ada" / FILE, tmp_path / "bob"
    folder.mkdir()  # one that cannot be read shows no files
    monkeypatch.setattr(grade.os, "access", lambda path, mode: path not in (file, folder))
    for submission, name in ((tmp_path / "ada", FILE), (folder, "bob")):
        test = grade.grade_file(submission, "heads", tools="", flags=None)
        assert test["output"] == f"{name} cannot be read: permission denied"


def test_one_submission_for_gradescope(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()  # packages of a cluster, where torch may be
    (tmp_path / "site-packages" / "cluster.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site-packages"))
    folder = submit(tmp_path, one=heads(top="import cluster\n")) / "one"
    results = tmp_path / "results.json"
    succeed(call("course.grade", folder, exercises="3,2", gradescope=results))
    missing = "ex02_attention.py was not handed in"
    found = json.loads(results.read_text(encoding="utf-8"))
    assert found["score"] == 1
    assert found["tests"] == [
        {"name": "attention", "score": 0, "max_score": 1, "output": missing},
        {"name": "heads", "score": 1, "max_score": 1, "output": "done"},
    ]


def test_nothing_is_overwritten_and_mistakes_are_explained(tmp_path):
    folder, out = submit(tmp_path / "in", ada="", bob=""), tmp_path / "grades.csv"
    out.write_text("mine", encoding="utf-8")
    assert_complains(call("course.grade", folder, out=out), out, "exists")
    assert out.read_text(encoding="utf-8") == "mine"
    assert_complains(call("course.grade", folder), "nothing to write", "--out")
    assert_complains(call("course.grade", tmp_path / "no", out=out), "no such folder")
    assert_complains(call("course.grade", folder, out=tmp_path / "no" / "g.csv"), "no such folder")
    (tmp_path / "empty").mkdir()
    assert_complains(call("course.grade", tmp_path / "empty", out=out), "has no submissions")
    (folder / FILE).touch()
    told = call("course.grade", folder, out=tmp_path / "new.csv")
    assert_complains(told, f"{FILE}: is beside folders with submissions")


def test_a_fault_of_the_machine_is_no_zero_for_all(tmp_path, monkeypatch):
    folder, out = submit(tmp_path / "in", ada=heads()), tmp_path / "grades.csv"
    monkeypatch.setattr(grade, "STUBS", submit(tmp_path / "broken", stub="import torhc"))
    told = call("course.grade", folder, exercises="heads", out=out)
    assert_complains(told, "the grader does not work here", "torhc")
    assert not out.exists()
