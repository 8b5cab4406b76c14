"""The course's commands as students and teachers meet them: start, check, grade, train."""

import ast
import csv
import functools
import getpass
import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import TINY, Outcome, call, fails, succeed

import course.judge
import data.text
import model
import nets.classifier
import train_lm
import train_mlm
from course.cases import CHECKS
from course.exercises import EXERCISES, solutions
from course.judge import judge
from course.known import expect
from course.observe import Answer, Observation, observe_answer, open_answer
from course.start import stub
from course.train import put_in
from lab.load import read_metrics

SPLIT = "return x.unflatten(2, (n_head, -1)).transpose(1, 2)"
SWALLOW = "while True:\n        try: 1 / 0\n        except BaseException: pass"
JOIN = "return y.transpose(1, 2).flatten(2)"


@pytest.fixture
def answers(tmp_path):
    succeed(call("course.start", tmp_path / "answers", no_check=True))
    return tmp_path / "answers"


@pytest.fixture
def judge_here(monkeypatch):
    """Let the commands judge in this process, which saves them the start of another."""

    def judge(paths, seed=0, seconds=0, folder="", user=""):
        verdicts = {}
        for name, path in paths.items():
            verdicts[name] = judge_file(name, Path(folder, path), seed)
        return verdicts

    monkeypatch.setattr("course.judge.judge", judge)


def judge_file(name, path, seed=0):
    """Return {function: Verdict} of an answer, judged in this process."""
    file, failure = open_answer(path)
    verdicts = {}
    for function in solutions(name):
        observation = Observation({}, [], failure)
        if file:
            cases = expect(function, seed).cases
            observation = observe_answer(file, function, CHECKS[function], cases)
        verdicts[function] = expect(function, seed).judge(observation)
    return verdicts


def answer(folder, name, function, body):
    """Put `body` in place of the first NotImplementedError after `def function`."""
    path = folder / EXERCISES[name].name
    before, after = path.read_text(encoding="utf-8").split(f"def {function}(")
    done = after.replace("raise NotImplementedError", body, 1)
    path.write_text(f"{before}def {function}({done}", encoding="utf-8")


def unfinished(outcome):
    """Return the outcome of a check that did not find all exercises done."""
    assert outcome.code == 1, outcome
    return outcome


def test_start_writes_thirteen_files_that_are_not_begun(answers):
    files = [path.name for path in EXERCISES.values()]
    pages = ["README.md", "AGENTS.md"]
    assert sorted(path.name for path in answers.iterdir()) == sorted([*files, *pages])
    assert len(files) == 13


def test_start_never_overwrites_answers(answers):
    answer(answers, "alibi", "slopes", "return 1")
    before = (answers / "ex05_alibi.py").read_text(encoding="utf-8")
    (answers / "ex03_heads.py").unlink()
    said = succeed(call("course.start", answers, no_check=True)).out
    assert "ex03_heads.py\n" in said and "ex05_alibi.py is there and stays" in said
    assert (answers / "ex05_alibi.py").read_text(encoding="utf-8") == before
    fails(call("course.start", answers / "ex05_alibi.py"), "is a file")


def test_a_handout_has_the_chosen_exercises(tmp_path):
    succeed(call("course.start", tmp_path / "handout", exercises="7, heads", no_check=True))
    files = {"ex03_heads.py", "ex07_perplexity.py", "README.md", "AGENTS.md"}
    assert {path.name for path in (tmp_path / "handout").iterdir()} == files
    fails(call("course.start", tmp_path / "new", exercises="2,99"), "99: no such exercise")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_has_all_functions_and_no_solution(name):
    source, text = EXERCISES[name].read_text(encoding="utf-8"), stub(name)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == list(solutions(name))
    for function in functions:
        assert ast.unparse(function.body[1:]) == "raise NotImplementedError"
        assert ast.get_docstring(function)
    assert text.startswith(source[: source.index('"""', 3)])


@pytest.fixture(scope="module")
def handout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("handout")
    succeed(call("course.start", folder, exercises="3,13"))
    return folder


def test_a_handout_has_no_solution(handout):
    paths = [path for path in handout.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in paths]
    for name in ("heads", "vocabulary"):
        for solution in solutions(name).values():
            for line in inspect.getsource(solution).splitlines():
                if "return " in line or " = " in line:
                    for content in contents:
                        assert line.strip().encode() not in content
    assert len((handout / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 40
    workflow = (handout / ".github/workflows/check.yml").read_text(encoding="utf-8")
    assert "run: python check.py heads\n" in workflow and "check.py vocabulary\n" in workflow


# Runs check.py, and says whether anything but torch and the handout was imported
ALONE = """
import runpy, sys
class Hidden:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ("tyro", "lab", "data", "nets", "model", "tokenizers"):
            raise ImportError(name)
sys.meta_path.insert(0, Hidden)
runpy.run_path("check.py", run_name="__main__")
"""


def check_handout(folder, *words):
    command = [sys.executable, "-c", ALONE, *words]
    paths = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_a_handout_names_mistakes_with_torch_alone(handout):
    for name in ("heads", "vocabulary"):
        (handout / EXERCISES[name].name).write_text(stub(name), encoding="utf-8")
    answer(handout, "heads", "split_heads", SPLIT)
    answer(handout, "heads", "join_heads", "return y.reshape(len(y), y.size(2), -1)")
    two = "c = __import__('collections').Counter(words).most_common(size)\n"
    two += "    return {w: i for i, w in enumerate(SPECIAL + [w for w, _ in c], 1)}"
    answer(handout, "vocabulary", "vocabulary", two)
    outcome = check_handout(handout)
    assert outcome.code == 1, outcome
    lines = outcome.out.splitlines()
    assert lines[0].endswith("joined without transposing back, which mixes positions and channels.")
    assert "equally frequent words" in lines[1] and "Also: the ids are counted from 1" in lines[1]
    assert lines[2].endswith("encode not begun") and "0 of 2 done" in outcome.out
    assert outcome.out == unfinished(call("course.check", handout)).out
    answer(handout, "heads", "join_heads", JOIN)
    path = handout / "ex03_heads.py"
    path.write_text(path.read_text().replace("y.reshape(len(y), y.size(2), -1)", JOIN[7:]))
    outcome = check_handout(handout, "3")
    assert outcome.code == 0 and "1 of 1 done" in outcome.out
    assert check_handout(handout, "alibi").code == 2


def test_check_names_the_mistake_and_shows_the_numbers(answers, judge_here):
    answer(answers, "heads", "split_heads", SPLIT)
    answer(answers, "heads", "join_heads", JOIN)
    answer(answers, "attention", "attend", "return (q @ k.mT).softmax(-1) @ v")
    answer(answers, "alibi", "causal_bias", "return torch.zeros(n_head, T, T) - 9 * (n_head == 4)")
    answer(answers, "sinusoids", "sinusoids", "return half(T)\n\n\ndef half(T):\n    return T / 0")
    answer(answers, "perplexity", "perplexity", "return sum(loss(*b) for b in batches).exp()")
    answer(answers, "clap", "embed", "return F.normalize(table[idx]) if idx is None else idx")
    said = unfinished(call("course.check", answers)).out
    lines = {}
    for line in said.splitlines():
        if line[:3].strip().isdigit():
            lines.setdefault(int(line[:3]), []).append(line[16:])
    assert lines[1] == ["pad not begun"]
    two = "attend returns one value of type Tensor, expected 2 (output, weights)"
    assert lines[2] == [two, "hide_future not begun"]
    assert lines[3] == ["done"]
    bias = "causal_bias: bias[0, 0, 1] is 0, expected -inf (40 of 50 numbers differ)"
    assert lines[5] == [bias, "slopes, encoder_bias not begun"]
    assert lines[7] == ["perplexity: loss is not begun", "next_words, loss not begun"]
    assert lines[9] == ["mean_pool, classify not begun"]
    assert lines[10][0] == "embed: vectors has shape (5, 8), expected (5, 8, 3)"
    assert said.splitlines()[-2] == "[#------------] 1 of 13 done"
    assert said.splitlines()[-1] == f"Next: {answers / 'ex01_padding.py'}"
    # Of an error, the traceback within the student's file
    path = answers / "ex04_sinusoids.py"
    n = path.read_text(encoding="utf-8").splitlines().index("    return T / 0") + 1
    assert lines[4] == [f"sinusoids: line {n}: ZeroDivisionError: division by zero"]
    assert f'File "{path}", line {n}, in half\n    return T / 0' in said
    assert "judge.py" not in said
    # Of a named exercise, the numbers
    said = unfinished(call("course.check", answers, "5", "heads")).out
    assert "causal_bias(2, 5)\n" in said and "expected\ntensor([[" in said
    assert "[#-] 1 of 2 done" in said


def test_check_as_json(answers, judge_here):
    answer(answers, "heads", "split_heads", SPLIT)
    verdicts = json.loads(unfinished(call("course.check", answers, "heads", "1", json=True)).out)
    padding, heads = verdicts["exercises"]
    assert (padding["name"], padding["number"], padding["done"]) == ("padding", 1, False)
    assert heads["file"] == str(answers / "ex03_heads.py") and not heads["done"]
    assert heads["functions"]["split_heads"] == {"status": "done", "message": "", "detail": ""}
    assert heads["functions"]["join_heads"]["status"] == "not begun"
    answer(answers, "heads", "join_heads", JOIN)
    done = json.loads(succeed(call("course.check", answers, "heads", json=True)).out)
    assert [exercise["done"] for exercise in done["exercises"]] == [True]


def test_check_refuses_other_folders_and_names(answers, tmp_path):
    fails(call("course.check", tmp_path), "has no exercises", "course.start")
    fails(call("course.train", tmp_path), "no function here runs yet")
    fails(call("course.check", answers, "alibis"), "no such exercise", "padding, attention")


WRONG = [  # what pad does, and what is said of it
    ("pass", "pad returns None. Does it end with `return`?"),
    ("return sequences[0].numpy(), 0", "returns idx as ndarray, expected a torch.Tensor"),
    ("return 1, torch.ones(2) * 1j", "returns mask as torch.complex64, expected a torch.Tensor"),
    ("return torch.eye(3).to_sparse(), 1", "idx has shape (3, 3), expected (3, 5)"),
    ("return 1, 2, 3", "returns a tuple of 3 values, expected 2 (idx, mask)"),
    ("return sequences[:1]", "returns a list of 1 values, expected 2 (idx, mask)"),
    ("return {0: 1, 1: 2}", "returns one value of type dict, expected 2 (idx, mask)"),
    ("return (s for s in sequences)", "returns one value of type generator, expected 2"),
    ("return torch.zeros(3, 5), 1", "idx has dtype torch.float32, expected torch.int64"),
    ("sequences[0] += 1\n    return 1, 2", "changes its input sequences in place"),
    ("sequences.append(1)\n    return 1, 2", "changes its input sequences in place"),
    ("return sequences[9]", "pad: line 15: IndexError: list index out of range"),
    ("return pad(sequences)", "Does a function call itself without end?"),
    ("raise NotImplementedError('bool')", "pad: line 15: NotImplementedError: bool"),
    ("return (", "line 15: SyntaxError: '(' was never closed"),
    ("exit(3)", "line 15: SystemExit: 3"),
]


@pytest.mark.parametrize("body, said", WRONG)
def test_code_that_fails_gets_a_line(body, said, answers):
    answer(answers, "padding", "pad", body)
    path = answers / "ex01_padding.py"
    verdict = judge_file("padding", path)["pad"]
    assert verdict.status in ("error", "difference") and said in verdict.message, verdict
    assert "\n" not in verdict.message


def test_files_without_the_function(answers):
    path = answers / "ex01_padding.py"
    head = "from dataclasses import dataclass\n@dataclass\nclass Head:\n    slope: float\n"
    path.write_text(f"{head}def padding(x):\n    return x\n", encoding="utf-8")
    verdict = judge_file("padding", path)["pad"]
    assert verdict.message.endswith("ex01_padding.py has no function pad")
    path.write_text("import numpie\n", encoding="utf-8")
    assert (
        judge_file("padding", path)["pad"].message
        == "line 1: ModuleNotFoundError: No module named 'numpie'"
    )
    path.unlink()
    assert "No such file" in judge_file("padding", path)["pad"].message


def test_a_file_knows_its_path(answers):
    path = answers / "ex03_heads.py"
    top = "from pathlib import Path\nFOLDER = Path(__file__).resolve().parent\n"
    path.write_text(top + path.read_text("utf-8"), encoding="utf-8")
    answer(answers, "heads", "join_heads", "return FOLDER.name")
    said = judge_file("heads", path)
    assert said["split_heads"].status == "not begun"
    assert said["join_heads"].message.startswith("join_heads returns output as str")


def test_a_check_that_does_not_work_says_so(answers, monkeypatch):
    broken = "raise ImportError('my own torch')"  # it hides the library
    (answers / "torch.py").write_text(broken, encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"the check does not work here:\n[^$]*my own torch"):
        judge({"heads": answers / "ex03_heads.py"}, folder=answers)


@pytest.mark.slow
def test_a_folder_is_graded_and_a_crash_costs_only_its_function(tmp_path):
    for name in ("ada", "bob", "late", "_old"):
        succeed(
            call(
                "course.start",
                tmp_path / "in" / name,
                exercises="" if name < "b" else "1",
                no_check=True,
            )
        )
    ada = tmp_path / "in" / "ada"
    path = ada / "ex03_heads.py"  # deletes what it finds
    top = "import os, shutil, threading, time\nshutil.rmtree(os.getcwd())\nprint('x' * 10**6)\n"
    top += "threading.Thread(target=time.sleep, args=[999]).start()\n"  # outlives its function
    path.write_text(top + path.read_text(encoding="utf-8"), encoding="utf-8")
    answer(ada, "heads", "join_heads", JOIN)
    answer(ada, "alibi", "slopes", SWALLOW)
    answer(ada, "alibi", "causal_bias", "import os; os._exit(7)")
    answer(ada, "alibi", "encoder_bias", "import model")
    (tmp_path / "in" / "ex03_heads.py").touch()
    flags = dict(exercises="3,5", seconds=2, out=tmp_path / "grades.csv")
    said = succeed(call("course.grade", tmp_path / "in", **flags)).out
    with open(flags["out"], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["submission"] for row in rows] == ["ada", "bob", "late"]
    assert said.startswith("note: not graded, since not in a folder: ex03_heads.py\n")
    assert said.splitlines()[1].split() == ["ada", "0.5", "of", "2", "points"]
    assert [row["total"] for row in rows] == ["0.5", "0", "0"] and rows[0]["heads"] == "0.5"
    lines = rows[0]["feedback"].splitlines()
    assert lines[0] == "heads: split_heads: not begun"
    assert re.fullmatch(
        r"alibi: line \d+ in slopes: not finished after 2 seconds. .* never end\?", lines[1]
    )
    assert lines[2].startswith("alibi: ends Python (exit code 7)")
    assert lines[3].endswith("No module named 'model' for answers, which cannot import poslab")
    assert rows[1]["feedback"].startswith("heads: ex03_heads.py was not handed in")


@pytest.mark.slow
def test_check_goes_on_after_a_function_that_ends_python_or_never_ends(answers, monkeypatch):
    monkeypatch.setattr("course.judge.judge", functools.partial(judge, seconds=2))
    answer(answers, "heads", "split_heads", SWALLOW)
    answer(answers, "alibi", "slopes", "import os; os._exit(0)")
    lines = unfinished(call("course.check", answers, "3", "5", "7")).out.splitlines()
    assert re.match(r" +3 heads +line \d+ in split_heads: not finished after 2 seconds", lines[0])
    assert lines[2].startswith("  5 alibi       ends Python (exit code 0) before")
    assert lines[4].startswith("  7 perplexity  next_words, loss, perplexity not begun")


def test_what_cannot_be_graded_costs_no_other_row(tmp_path, judge_here, monkeypatch):
    for name in ("ada", "bob", "cem", "dan"):
        succeed(call("course.start", tmp_path / "in" / name, exercises="3", no_check=True))
    bob, cem = tmp_path / "in" / "bob", tmp_path / "in" / "cem"
    (bob / "ex03_heads.py").rename(bob / "old.py")
    (bob / "ex03_heads.py").mkdir()
    answer(cem, "heads", "split_heads", "return 'cem'")
    judge_all = course.judge.judge

    def judge(paths, seed, seconds, folder, user):
        if "cem" in Path(folder, paths["heads"]).read_text("utf-8"):
            raise OSError("the disk is full")
        return judge_all(paths, seed, seconds, folder)

    monkeypatch.setattr("course.judge.judge", judge)
    out = tmp_path / "grades.csv"
    said = succeed(call("course.grade", tmp_path / "in", exercises="3", out=out)).out
    assert "note: cem: heads not graded: OSError: the disk is full" in said
    with open(out, encoding="utf-8", newline="") as file:
        rows = {row["submission"]: row["feedback"] for row in csv.DictReader(file)}
    assert rows["bob"] == "heads: ex03_heads.py was not handed in"
    assert rows["cem"] == "heads: not graded: OSError: the disk is full"
    assert (
        rows["ada"] == rows["dan"] == "heads: split_heads: not begun\nheads: join_heads: not begun"
    )


def test_one_submission_for_gradescope(tmp_path, judge_here, monkeypatch):
    succeed(call("course.start", tmp_path, exercises="3", no_check=True))
    answer(tmp_path, "heads", "split_heads", SPLIT)
    answer(tmp_path, "heads", "join_heads", "return y.reshape(len(y), y.size(2), -1)")
    results = tmp_path / "results.json"
    flags = dict(exercises="3,2", gradescope=results, hidden="2")
    succeed(call("course.grade", tmp_path, **flags))
    written = json.loads(results.read_text(encoding="utf-8"))
    tests = {test["name"]: test for test in written["tests"]}
    names = ["attention: attend", "attention: hide_future"]
    assert list(tests) == [*names, "heads: split_heads", "heads: join_heads"]
    for name in names:
        assert tests[name]["output"] == "ex02_attention.py was not handed in"
        assert tests[name]["visibility"] == "after_due_date" and tests[name]["score"] == 0
    done, mistake = tests["heads: split_heads"], tests["heads: join_heads"]
    assert (done["score"], done["status"], done["visibility"]) == (0.5, "passed", "visible")
    assert (mistake["score"], mistake["status"]) == (0.25, "failed")  # half, since it has a name
    assert "without transposing back" in mistake["output"]
    assert written["score"] == 0.75 and written["leaderboard"][0]["value"] == 1
    hidden = flags | {"hidden": "3"}
    succeed(call("course.grade", tmp_path, **hidden))
    written = json.loads(results.read_text(encoding="utf-8"))
    assert written["score"] == 0.75 and written["leaderboard"][0]["value"] == 0
    succeed(call("course.grade", tmp_path, **flags, partial=0))
    assert json.loads(results.read_text(encoding="utf-8"))["score"] == 0.5
    # If grading itself fails, the results say so
    monkeypatch.setattr("course.known.functions_of", lambda name: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call("course.grade", tmp_path, **flags)
    written = json.loads(results.read_text(encoding="utf-8"))
    assert written["score"] == 0 and "Grading failed; tell your teacher" in written["output"]


def test_a_user_who_cannot_run_the_check_costs_no_points(tmp_path, judge_here, monkeypatch):
    succeed(call("course.start", tmp_path / "in" / "ada", exercises="3", no_check=True))
    results = tmp_path / "results.json"
    flags = dict(exercises="3", user="no-such-user")
    said = "nothing is graded"
    fails(call("course.grade", tmp_path / "in/ada", gradescope=results, **flags), said)
    written = json.loads(results.read_text(encoding="utf-8"))
    assert written["tests"] == [] and said in written["output"]
    fails(call("course.grade", tmp_path / "in", out=tmp_path / "grades.csv", **flags), said)
    assert not (tmp_path / "grades.csv").exists()

    def refuse(*arguments, **more):
        raise PermissionError("python")

    monkeypatch.setattr("course.worker.subprocess.Popen", refuse)
    monkeypatch.setattr("course.worker.shutil.chown", lambda *arguments: None)
    flags["user"] = getpass.getuser()
    fails(call("course.grade", tmp_path / "in/ada", gradescope=results, **flags), "PermissionError")


@pytest.mark.slow
def test_the_zip_of_a_gradescope_autograder_grades(tmp_path):
    fails(call("course.gradescope", tmp_path / "no.zip", exercises="99"), "no such exercise")
    flags = dict(exercises="3,13", hidden="13")
    succeed(call("course.gradescope", tmp_path / "auto.zip", **flags))
    # Gradescope's folders
    for name in ("source", "submission", "results", "venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "auto.zip") as file:
        file.extractall(tmp_path / "source")
        assert file.getinfo("run_autograder").external_attr >> 16 == 0o755
    python = tmp_path / "venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    succeed(call("course.start", tmp_path / "submission", exercises="3", no_check=True))
    answer(tmp_path / "submission", "heads", "split_heads", SPLIT)
    for user in ("", getpass.getuser()):  # "" as ours; another user needs root
        environment = os.environ | {"AUTOGRADER": str(tmp_path), "STUDENT_USER": user}
        if user and os.getuid():
            continue
        for script in ("setup.sh", "run_autograder"):
            assert subprocess.run(["bash", "-n", tmp_path / "source" / script]).returncode == 0
        subprocess.run(["bash", tmp_path / "source/run_autograder"], env=environment, check=True)
        results = json.loads((tmp_path / "results/results.json").read_text(encoding="utf-8"))
        assert results["score"] == 0.5, results
        shown = [test["visibility"] for test in results["tests"]]
        assert shown == ["visible"] * 2 + ["after_due_date"] * 2
    python.write_text("#!/bin/sh\nkill -9 $$\n", encoding="utf-8")  # grading ends without a word
    subprocess.run(["bash", tmp_path / "source/run_autograder"], env=environment)
    results = json.loads((tmp_path / "results/results.json").read_text(encoding="utf-8"))
    assert results == {"score": 0, "output": "Grading did not end; tell your teacher.", "tests": []}


def test_grade_explains_mistakes(tmp_path):
    out = tmp_path / "grades.csv"
    fails(call("course.grade", tmp_path), "nothing to write", "--out")
    fails(call("course.grade", tmp_path / "no", out=out), "no such folder")
    fails(call("course.grade", tmp_path, out=out), "has no submissions")


@pytest.fixture
def ours_again(monkeypatch):
    """Put the library's own functions back after a test of course.train."""
    places = [(model, "split_heads"), (model.Attention, "attend"), (model.Block, "forward")]
    places += [(model.LanguageModel, "loss"), (model.ALiBi, "bias"), (model, "sinusoids")]
    places += [(model.Rotary, "turn"), (model.ClapHead, "forward"), (train_lm, "evaluate")]
    places += [(data.text, "consecutive_blocks"), (nets.classifier, "pool_tokens")]
    places += [(nets.classifier.Classifier, "forward"), (train_mlm, "mask_tokens")]
    for owner, name in places:
        monkeypatch.setattr(owner, name, getattr(owner, name))


def in_float64():
    """All solutions of the course; attention computes in float64."""
    found = {function: f for name in EXERCISES for function, f in solutions(name).items()}
    attend = found["attend"]
    found["attend"] = lambda q, k, v, *more: attend(q.double(), k.double(), v.double(), *more)
    return SimpleNamespace(**found)


@pytest.mark.parametrize("pos", ["alibi", "sinusoidal", "learned", "rope"])
def test_right_functions_train_as_ours(pos, tmp_path, corpus, finished, ours_again):
    ours = read_metrics(finished("train_lm", "--pos", pos))
    put_in(in_float64())
    succeed(call("train_lm", "--pos", pos, *TINY, data=corpus, out=tmp_path / "run"))
    mine = read_metrics(tmp_path / "run")
    assert len(mine) == len(ours) == 3
    for a, b in zip(mine, ours):
        assert a == pytest.approx(b, rel=1e-4)


def test_a_wrong_function_changes_the_training(answers, corpus, finished, ours_again, judge_here):
    ours = read_metrics(finished("train_lm", "--pos", "alibi"))[-1]
    answer(answers, "alibi", "causal_bias", "return torch.zeros(n_head, T, T)")
    said = succeed(call("course.train", answers, "--pos", "alibi", *TINY, data=corpus)).out
    assert "causal_bias        yours: causal_bias: bias[0, 0, 1] is 0, expected -inf" in said
    assert "yours are not kept" in said
    assert "\nyour functions in this run: causal_bias\n" in said
    mine = read_metrics(answers / "train_lm-alibi-0")[-1]
    assert mine["perplexity/one"] != pytest.approx(ours["perplexity/one"], rel=1e-4)


@pytest.mark.slow
def test_masked_language_models_train_with_them(tmp_path, corpus, ours_again, judge_here):
    succeed(call("course.start", tmp_path, exercises="8", no_check=True))
    answer(tmp_path, "masking", "mask_words", "print('mine'); return idx, idx")
    flags = dict(data=corpus, valid=0.2, out=tmp_path / "run")
    said = succeed(call("course.train", tmp_path, "train_mlm.py", *TINY, **flags)).out
    assert "mine" in said and len(read_metrics(tmp_path / "run")) == 3


def test_classifiers_train_with_them(tmp_path, corpus, ours_again, judge_here):
    succeed(call("course.start", tmp_path, exercises="7,9", no_check=True))
    answer(tmp_path, "classifier", "mean_pool", "return h[:, 0]")
    answer(tmp_path, "perplexity", "loss", "return F.cross_entropy(logits.mT, targets)")
    words = ["--n-layer", 1, "--n-head", 2, "--n-embd", 16, "--epochs", 1]
    flags = dict(data=corpus, out=tmp_path / "run")
    said = succeed(call("course.train", tmp_path, "train_classifier.py", *words, **flags)).out
    assert "mean_pool          yours: mean_pool: this is the first token." in said
    assert "\nyour functions in this run: mean_pool\nnot used in this run: loss\n" in said


def test_right_functions_classify_as_ours(tmp_path, corpus, ours_again):
    words = ["--n-layer", 1, "--n-head", 2, "--n-embd", 16, "--epochs", 2, "--head-dropout", 0]
    succeed(call("train_classifier", *words, data=corpus, out=tmp_path / "ours"))
    put_in(in_float64())
    succeed(call("train_classifier", *words, data=corpus, out=tmp_path / "mine"))
    for a, b in zip(read_metrics(tmp_path / "ours"), read_metrics(tmp_path / "mine")):
        assert a == pytest.approx(b, rel=1e-4)


def test_an_error_of_a_function_keeps_its_traceback(answers, corpus, tmp_path, ours_again):
    answer(answers, "perplexity", "loss", "return 1 / 0")
    course = in_float64()
    course.loss = Answer(answers / "ex07_perplexity.py").module.loss
    put_in(course)
    with pytest.raises(ZeroDivisionError) as raised:
        call("train_lm", *TINY, data=corpus, out=tmp_path / "run")
    assert raised.traceback[-1].path.name == "ex07_perplexity.py"
