"""The course's commands as students and teachers meet them: start, check, grade, train."""

import ast
import csv
import json
from types import SimpleNamespace

import pytest
from helpers import TINY, call, fails, succeed

import model
import nets.attention
import train_mlm
from course.exercises import EXERCISES, read_tasks, stub
from course.process import judge, load
from course.train import put_in
from lab.load import read_metrics

PAD = read_tasks("padding")[0]
SPLIT = "return x.unflatten(2, (n_head, -1)).transpose(1, 2)"
JOIN = "return y.transpose(1, 2).flatten(2)"


@pytest.fixture
def answers(tmp_path):
    succeed(call("course.start", tmp_path / "answers"))
    return tmp_path / "answers"


def answer(folder, name, function, body):
    """Put `body` in place of the first NotImplementedError after `def function`."""
    path = folder / EXERCISES[name].name
    before, after = path.read_text(encoding="utf-8").split(f"def {function}(")
    done = after.replace("raise NotImplementedError", body, 1)
    path.write_text(f"{before}def {function}({done}", encoding="utf-8")


# --------------------------------------------------------------------------------------- start


def test_start_writes_ten_files_that_are_not_begun(answers):
    files = [path.name for path in EXERCISES.values()]
    assert sorted(path.name for path in answers.iterdir()) == sorted([*files, "README.md"])
    assert len(files) == 10
    said = succeed(call("course.check", answers)).out
    assert said.count("not begun\n") == 10 and "[----------] 0 of 10 done" in said
    assert f"Next: {answers / 'ex01_padding.py'}" in said


def test_start_never_overwrites_answers(answers):
    answer(answers, "alibi", "slopes", "return 1")
    before = (answers / "ex05_alibi.py").read_text(encoding="utf-8")
    (answers / "ex03_heads.py").unlink()
    said = succeed(call("course.start", answers)).out
    assert "ex03_heads.py\n" in said and "ex05_alibi.py is there and stays" in said
    assert (answers / "ex05_alibi.py").read_text(encoding="utf-8") == before
    fails(call("course.start", answers / "ex05_alibi.py"), "is a file")


def test_a_handout_has_the_chosen_exercises(tmp_path):
    succeed(call("course.start", tmp_path / "handout", exercises="7, heads"))
    files = {"ex03_heads.py", "ex07_perplexity.py", "README.md"}
    assert {path.name for path in (tmp_path / "handout").iterdir()} == files
    fails(call("course.start", tmp_path / "new", exercises="2,99"), "99: no such exercise")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_has_all_functions_and_no_solution(name):
    source, text = EXERCISES[name].read_text(encoding="utf-8"), stub(name)
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert [function.name for function in functions] == [task.name for task in read_tasks(name)]
    for function in functions:
        assert ast.unparse(function.body[1:]) == "raise NotImplementedError"
        assert ast.get_docstring(function)
    assert "course" not in text and '__name__ == "__main__"' in text
    assert text.startswith(source.partition("\n\nimport")[0])


# --------------------------------------------------------------------------------------- check


def test_check_names_the_mistake_and_shows_the_numbers(answers):
    answer(answers, "heads", "split_heads", SPLIT)
    answer(answers, "heads", "join_heads", JOIN)
    answer(answers, "attention", "attend", "return (q @ k.mT).softmax(-1) @ v")
    answer(answers, "block", "block", "return norm1(x) + x")
    answer(answers, "alibi", "causal_bias", "return torch.zeros(n_head, T, T) - 9 * (n_head == 4)")
    answer(answers, "sinusoids", "sinusoids", "return half(T)\n\n\ndef half(T):\n    return T / 0")
    answer(answers, "perplexity", "perplexity", "return sum(loss(*b) for b in batches).exp()")
    answer(
        answers,
        "clap",
        "embed",
        "return F.normalize(table[idx], dim=-1) * (idx != mask_id)[..., None]",
    )
    said = succeed(call("course.check", answers)).out
    lines = [line for line in said.splitlines() if line[:3].strip().isdigit()]
    assert lines[1].endswith("attend returns 1 values, expected 2 (output, weights)")
    assert lines[2] == "  3 heads       done"
    difference = "causal_bias: bias[0, 0, 1] is 0, expected -inf (40 of 50 numbers differ)"
    assert lines[4] == f"  5 alibi       {difference}"
    assert "output[0, 0, 0] is " in lines[5] and " numbers differ)" in lines[5]
    assert lines[6] == "  7 perplexity  perplexity: loss is not begun"
    assert lines[9] == " 10 clap        logits not begun"
    assert said.splitlines()[-2] == "[#---------] 1 of 10 done"
    # Of an error, the traceback within the student's file
    path = answers / "ex04_sinusoids.py"
    line = path.read_text(encoding="utf-8").splitlines().index("    return T / 0") + 1
    assert (
        lines[3] == f"  4 sinusoids   sinusoids: line {line}: ZeroDivisionError: division by zero"
    )
    assert f'File "{path}", line {line}, in half\n    return T / 0' in said
    assert "judge.py" not in said
    # Of a named exercise, the numbers
    said = succeed(call("course.check", answers, "5", "heads")).out
    assert "causal_bias(2, 5)\n" in said and "expected\ntensor([[" in said
    assert "[#-] 1 of 2 done" in said


def test_check_refuses_other_folders_and_names(answers, tmp_path):
    fails(call("course.check", tmp_path), "has no exercises", "course.start")
    fails(call("course.check", answers, "alibis"), "no such exercise", "padding, attention")


WRONG = [  # what pad does, and what is said of it
    ("pass", "pad returns None. Does it end with `return`?"),
    ("return sequences[0].numpy(), 0", "returns idx as ndarray of Python, expected a torch.Tensor"),
    ("return 1, torch.ones(2) * 1j", "returns mask as complex, expected a torch.Tensor of real"),
    ("return torch.eye(3).to_sparse(), 1", "idx has shape (3, 3), expected (3, 5)"),
    ("return 1, 2, 3", "returns 3 values, expected 2 (idx, mask)"),
    ("return torch.zeros(3, 5), 1", "idx has dtype torch.float32, expected torch.int64"),
    ("sequences[0] += 1\n    return 1, 2", "changes its input sequences in place"),
    ("sequences.append(1)\n    return 1, 2", "changes its input sequences in place"),
    ("return sequences[9]", "pad: line 13: IndexError: list index out of range"),
    ("return pad(sequences)", "RecursionError: maximum recursion depth"),
    ("raise NotImplementedError('bool')", "pad: line 13: NotImplementedError: bool"),
    ("return (", "line 13: SyntaxError: '(' was never closed"),
    ("exit(3)", "line 13: SystemExit: 3"),
]


@pytest.mark.parametrize("body, said", WRONG)
def test_code_that_fails_gets_a_line(body, said, answers):
    answer(answers, "padding", "pad", body)
    path = answers / "ex01_padding.py"
    module, verdict = load(path)
    if not verdict:
        PAD.prepare(0)
        verdict = PAD.judge(module, path)
    assert verdict.status in ("error", "difference") and said in verdict.message, verdict
    assert "\n" not in verdict.message


def test_a_crash_or_an_endless_loop_costs_only_its_function(answers):
    path = answers / "ex05_alibi.py"
    path.write_text("print('x' * 10**6)\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    answer(answers, "alibi", "slopes", "while True: pass")
    answer(answers, "alibi", "causal_bias", "import os; os._exit(7)")
    answer(answers, "alibi", "encoder_bias", "import model")
    found = {function: verdict for _, function, verdict in judge({"alibi": path}, seconds=2)}
    loop = "line 18 in slopes: not finished after 2 seconds. Does a loop never end?"
    assert found["slopes"].message == loop
    assert found["causal_bias"].message.startswith("ends Python (exit code 7)")
    assert found["encoder_bias"].message.endswith("No module named 'model'")


def test_files_without_the_function(answers):
    path = answers / "ex01_padding.py"
    head = "from dataclasses import dataclass\n@dataclass\nclass Head:\n    slope: float\n"
    path.write_text(f"{head}def padding(x):\n    return x\n", encoding="utf-8")
    assert PAD.judge(load(path)[0], path).message.endswith("ex01_padding.py has no function pad")
    path.write_text("import numpie\n", encoding="utf-8")
    assert load(path)[1].message == "line 1: ModuleNotFoundError: No module named 'numpie'"
    path.unlink()
    assert "No such file" in load(path)[1].message


def test_a_check_that_does_not_work_says_so(answers, monkeypatch):
    monkeypatch.setattr("course.process.ROOT", answers)  # where there is no course
    with pytest.raises(RuntimeError, match="the check does not work here:\n.*course"):
        list(judge({"heads": answers / "ex03_heads.py"}, folder=answers))


# --------------------------------------------------------------------------------------- grade


def heads(split=SPLIT, join=JOIN, top=""):
    return f"{top}\ndef split_heads(x, n_head):\n    {split}\ndef join_heads(y):\n    {join}\n"


SUBMITTED = {  # {name: (text, feedback, points)}
    "ada": (heads(top="import os, shutil\nshutil.rmtree(os.getcwd())\n"), "heads: done", 1),
    "bob": (heads("raise NotImplementedError"), "heads: split_heads: not begun", 0.5),
}


def test_a_folder_of_submissions_is_graded(tmp_path):
    for name, (text, *_) in SUBMITTED.items():
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "ex03_heads.py").write_text(text, encoding="utf-8")
    for name in ("late", "_old"):
        (tmp_path / "in" / name).mkdir()
    out = tmp_path / "grades.csv"
    said = succeed(call("course.grade", tmp_path / "in", exercises="3", out=out)).out
    with open(out, encoding="utf-8", newline="") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    for name, (_, feedback, points) in SUBMITTED.items():
        assert rows[name]["feedback"] == feedback
        assert float(rows[name]["total"]) == float(rows[name]["heads"]) == points
    assert rows["late"]["feedback"] == "heads: ex03_heads.py was not handed in"
    assert len(rows) == len(SUBMITTED) + 1 == said.count(" of 1 points")


def test_one_submission_for_gradescope(tmp_path):
    (tmp_path / "ex03_heads.py").write_text(heads(join="return y"), encoding="utf-8")
    results = tmp_path / "results.json"
    succeed(call("course.grade", tmp_path, exercises="3,2", gradescope=results))
    found = json.loads(results.read_text(encoding="utf-8"))
    assert found["score"] == 0.5
    missing = "ex02_attention.py was not handed in"
    assert found["tests"][0] == {"name": "attention", "score": 0, "max_score": 1, "output": missing}
    assert found["tests"][1]["score"] == 0.5
    assert found["tests"][1]["output"].startswith("join_heads: output has shape (")


def test_grade_explains_mistakes(tmp_path):
    out = tmp_path / "grades.csv"
    fails(call("course.grade", tmp_path), "nothing to write", "--out")
    fails(call("course.grade", tmp_path / "no", out=out), "no such folder")
    fails(call("course.grade", tmp_path, out=out), "has no submissions")


# --------------------------------------------------------------------------------------- train


@pytest.fixture
def ours_again(monkeypatch):
    """Put the library's own functions back after a test of course.train."""
    places = [(model.Attention, "heads"), (nets.attention, "fused"), (model.Block, "forward")]
    places += [(model.LanguageModel, "loss"), (model.ALiBi, "bias"), (model, "sinusoids")]
    for owner, name in [*places, (train_mlm, "mask_tokens")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))


def solutions():
    """All solutions of the course; attention computes in float64."""
    found = {task.name: task.right for name in EXERCISES for task in read_tasks(name)}
    attend = found["attend"]
    found["attend"] = lambda q, k, v, *more: attend(q.double(), k.double(), v.double(), *more)
    return SimpleNamespace(**found)


@pytest.mark.parametrize("pos", ["alibi", "sinusoidal", "learned"])
def test_right_functions_train_as_ours(pos, tmp_path, corpus, finished, ours_again):
    ours = read_metrics(finished("train_lm", "--pos", pos))
    put_in(solutions())
    succeed(call("train_lm", "--pos", pos, *TINY, data=corpus, out=tmp_path / "run"))
    mine = read_metrics(tmp_path / "run")
    assert len(mine) == len(ours) == 3
    for a, b in zip(mine, ours):
        assert a == pytest.approx(b, rel=1e-4)


def test_a_wrong_function_changes_the_training(answers, corpus, finished, ours_again):
    answer(answers, "alibi", "causal_bias", "return torch.zeros(n_head, T, T)")
    said = succeed(call("course.train", answers, "--pos", "alibi", *TINY, data=corpus)).out
    assert "causal_bias  yours: causal_bias: bias[0, 0, 1] is 0, expected -inf" in said
    ours = read_metrics(finished("train_lm", "--pos", "alibi"))[-1]
    mine = read_metrics(answers / "train_lm-alibi-0")[-1]
    assert mine["perplexity/one"] != pytest.approx(ours["perplexity/one"], rel=1e-4)


def test_masked_language_models_train_with_the_functions(tmp_path, corpus, ours_again):
    succeed(call("course.start", tmp_path, exercises="8"))
    answer(tmp_path, "masking", "mask_words", "print('mine'); return idx, idx")
    flags = dict(data=corpus, valid=0.2, out=tmp_path / "run")
    said = succeed(call("course.train", tmp_path, "train_mlm.py", *TINY, **flags)).out
    assert "mine" in said and len(read_metrics(tmp_path / "run")) == 3


def test_an_error_of_a_function_keeps_its_traceback(answers, corpus, tmp_path, ours_again):
    answer(answers, "perplexity", "loss", "return 1 / 0")
    course = solutions()
    course.loss = load(answers / "ex07_perplexity.py")[0].loss
    put_in(course)
    with pytest.raises(ZeroDivisionError) as raised:
        call("train_lm", *TINY, data=corpus, out=tmp_path / "run")
    assert raised.traceback[-1].path.name == "ex07_perplexity.py"


def test_train_needs_an_answer(tmp_path, corpus):
    fails(call("course.train", tmp_path, data=corpus), "no function here runs yet")
