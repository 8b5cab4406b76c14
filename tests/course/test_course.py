"""The course as a student meets it: start, check, train, and the sentences they print."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from helpers import assert_complains, call, contents, succeed

from course.exercises import EXERCISES, STUBS, file_name, make_sheet
from course.explain import explain
from course.judge import judge


@pytest.fixture
def answers(tmp_path):
    succeed(call("course.start", tmp_path / "answers"))
    return tmp_path / "answers"


def answer(folder, name, function, body):
    """Put `body` in place of the first NotImplementedError after `def function`."""
    path = folder / file_name(name)
    before, after = path.read_text(encoding="utf-8").split(f"def {function}(")
    done = after.replace("raise NotImplementedError", body, 1)
    path.write_text(f"{before}def {function}({done}", encoding="utf-8")


def verdict_on(folder, name, body, function="", **more):
    """The Verdict on an answer, in which one function has this body."""
    answer(folder, name, function or next(iter(EXERCISES[name])), body)
    return judge(folder / file_name(name), make_sheet(name), **more)


# --------------------------------------------------------------------------------------- start


def test_start_writes_ten_files_that_are_not_begun(answers):
    assert sorted(path.name for path in answers.iterdir()) == [file_name(n) for n in EXERCISES]
    told = succeed(call("course.check", answers)).out
    assert told.count("not begun\n") == 10 and "[----------] 0 of 10 done" in told
    assert f"Next: {answers / 'ex01_padding.py'}" in told


def test_start_never_overwrites_answers(answers):
    answer(answers, "alibi", "slopes", "return 1")
    before = contents(answers)
    told = succeed(call("course.start", answers)).out
    assert "ex03" not in told and "unchanged; delete or rename" in told
    (answers / "ex03_heads.py").unlink()
    told = succeed(call("course.start", answers)).out
    assert "ex03_heads.py" in told and "ex05" not in told and contents(answers) == before
    assert_complains(call("course.start", answers / "ex05_alibi.py"), "is a file")


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_names_what_the_sheet_calls(name):
    stub = (STUBS / file_name(name)).read_text(encoding="utf-8")
    assert stub.startswith(f'"""Exercise {list(EXERCISES).index(name) + 1}: ')
    for function, task in make_sheet(name).items():
        header = stub.split(f"def {function}(")[1].split("raise")[0]
        places = [header.find(f"{argument}: ") for argument in task["arguments"]]
        assert places == sorted(places) and -1 not in places
    assert stub.count("raise NotImplementedError") == len(EXERCISES[name])


# --------------------------------------------------------------------------------------- judge


RIGHT = {
    "next_words": """n = -(-(len(ids) - 1) // T)
    inputs, targets = torch.zeros(n * T).long(), torch.full((n * T,), -100)
    inputs[: len(ids) - 1], targets[: len(ids) - 1] = ids[:-1], ids[1:]
    return inputs.view(n, T), targets.view(n, T)""",
    "attend": """s = q @ k.mT / q.size(-1) ** 0.5
    s = s if bias is None else s + bias
    s = s if mask is None else s.masked_fill(~mask[:, None, None], -1e9)
    w = s.softmax(-1)
    return torch.dropout(w, dropout, True) @ v, w""",
}
WRONG_IN_SOME_CASES = [  # function, what is changed in the right answer, what the verdict says
    ("next_words", "-(-(len(ids) - 1) // T)", "(len(ids) - 1) // T + 1", "shape"),
    ("next_words", "return", "targets[targets == 0] = -100; return", "is -100, expected 0"),
    ("attend", "softmax(-1)", "softmax(-1).detach()", "gradient of q[0, 0, 0, 0] is 0, exp"),
    ("attend", "if mask is", "if bias is None or mask is", "padding is attended to"),
    ("attend", "if bias is", "if mask is None or bias is", "the bias is ignored"),
    ("attend", "(w, dropout, True)", "(w, 1 - dropout, dropout > 0)", "share of weights"),
    (
        "attend",
        "torch.dropout(w, dropout, True) @ v",
        "w @ torch.dropout(v, dropout, True)",
        "keys",
    ),
    ("attend", "q @", "torch.dropout(q, dropout, True) @", "mean square"),
]


@pytest.mark.parametrize("function, old, new, told", WRONG_IN_SOME_CASES)
def test_answers_that_are_wrong_in_some_cases_only(function, old, new, told, answers):
    name = "attention" if function == "attend" else "perplexity"
    path, right = answers / file_name(name), RIGHT[function]
    stub = path.read_text(encoding="utf-8")
    assert verdict_on(answers, name, right, function).status in ("done", "begun")
    path.write_text(stub, encoding="utf-8")
    verdict = verdict_on(answers, name, right.replace(old, new, 1), function)
    assert verdict.status in ("mistake", "difference") and told in verdict.message, verdict


@pytest.mark.parametrize(
    "first, source, told",
    [
        ("pass", "", "without gen"),
        ("torch.manual_seed(3)", "", "the same words whatever gen is"),
        ("torch.manual_seed(3)", ", generator=gen", "the same words whatever gen is"),
    ],
)
def test_every_random_number_comes_from_the_generator(first, source, told, answers):
    body = f"""{first}; chosen = (torch.rand(idx.shape) < rate) & (idx >= 5)
    dice = torch.rand(idx.shape{source})
    inputs = idx.masked_fill(chosen & (dice < 0.8), 2)
    return inputs, idx.masked_fill(~chosen, -100)"""
    verdict = verdict_on(answers, "masking", body, "mask_words")
    assert told in verdict.message, verdict


def test_random_results_of_another_shape_are_no_other_shares(answers):
    verdict = verdict_on(answers, "masking", "return idx[0], idx", "mask_words")
    assert "mask_words returns inputs of shape (" in verdict.message
    body = RIGHT["attend"].replace("@ v, w", "@ v, w.mean(1) if dropout else w")
    verdict = verdict_on(answers, "attention", body)
    assert "attend returns weights of shape (4, 64, 64), expected" in verdict.message


# --------------------------------------------------------------------------------------- check


def test_check_prints_done_the_mistake_and_what_is_next(answers):
    answer(answers, "heads", "split_heads", "return x.unflatten(2, (n_head, -1)).transpose(1, 2)")
    answer(answers, "heads", "join_heads", "return y.transpose(1, 2).flatten(2)")
    answer(answers, "block", "block", "x = x + dropout(attention(norm1(x)))\n    return norm2(x)")
    answer(answers, "attention", "attend", "return (q @ k.mT).softmax(-1) @ v")
    lines = succeed(call("course.check", answers)).out.splitlines()
    assert lines[2].split() == ["3", "heads", "done"]
    assert lines[1].endswith("attend returns one value, expected 2 (output, weights)")
    assert "output[0, 0, 0] is " in lines[5] and "24 of 24 numbers differ" in lines[5]
    assert lines[-2] == "[#---------] 1 of 10 done"
    told = succeed(call("course.check", answers, "6")).out
    assert "expected" in told and "|" in told and "[-] 0 of 1 done" in told


def test_a_difference_has_index_values_and_a_picture(answers):
    body = "bias = torch.zeros(n_head, T, T)\n    return bias - 9 * (n_head == 4)"
    verdict = verdict_on(answers, "alibi", body, "causal_bias")
    assert verdict.status == "difference"
    assert verdict.message == (
        "causal_bias: bias[0, 0, 1] is 0, expected -inf (40 of 50 numbers differ)"
    )
    lines = verdict.detail.splitlines()
    assert lines[0] == "causal_bias was called with n_head 2, T 5"
    assert lines[1].split() == ["expected", "|", "yours", "(bias[0])"]
    expected, yours = lines[3].split("|")
    assert expected.split() == ["-0.062", "0.000", "-inf", "-inf", "-inf"]
    assert yours.split() == ["0.000*", "0.000", "0.000*", "0.000*", "0.000*"]


def test_an_exercise_in_parts_says_what_is_missing(answers):
    body = "return 2.0 ** (-8 * torch.arange(1, n_head + 1) / n_head)"
    verdict = verdict_on(answers, "alibi", body)
    assert (verdict.status, verdict.n_right) == ("mistake", 0)
    assert "power of two" in verdict.message
    called, first = verdict.detail.splitlines()[:2]
    assert called == "slopes was called with n_head 6" and first.startswith("slopes[")
    answer(answers, "heads", "split_heads", "return torch.stack(x.chunk(n_head, -1), 1)")
    verdict = judge(answers / "ex03_heads.py", make_sheet("heads"))
    assert (verdict.status, verdict.n_right) == ("begun", 1)
    assert verdict.message == "right so far; join_heads not begun"


def test_an_answer_may_define_dataclasses(answers):
    path = answers / "ex05_alibi.py"
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    head += "@dataclass\nclass Head:\n    slope: float\n"
    path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert judge(path, make_sheet("alibi")).status == "not begun"


def test_a_function_that_calls_another_one_says_so(answers):
    answer(answers, "perplexity", "perplexity", "return sum(loss(*b) for b in batches).exp()")
    path, sheet = answers / "ex07_perplexity.py", make_sheet("perplexity")
    verdict = judge(path, sheet)
    assert verdict.status == "error" and verdict.message == "perplexity: loss is not begun"
    assert verdict.faults[:2] == ["next_words: not begun", "loss: not begun"]
    answer(answers, "perplexity", "loss", "return logits.mean()")
    lines = judge(path, sheet).faults
    assert lines[2].startswith("perplexity is ") and "calls" not in lines[1]
    assert ". It calls loss: correct that first. perplexity was called with " in lines[2]


@pytest.mark.parametrize("dropped", ["weights", "F.dropout(weights, dropout)"])
def test_a_mistake_is_named_though_dropout_is_missing_too(dropped, answers):
    body = """import torch.nn.functional as F
    scores = q @ k.mT / SCALE + (0 if bias is None else bias)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    weights = scores.softmax(DIM).nan_to_num()
    return DROPPED @ v, weights""".replace("DROPPED", dropped)
    size, path = "q.size(-1) ** 0.5", answers / "ex02_attention.py"
    stub = path.read_text(encoding="utf-8")
    once = "(q.size(-1) * (1 if mask is None or bias is not None else q.size(1))) ** 0.5"
    for scale, dim, found in (
        (once, "-1", "sqrt(n_embd)"),
        ("(q.size(1) * q.size(-1)) ** 0.5", "-1", "sqrt(n_embd)"),
        (size, "-2", "over the queries"),
        (size, "-1", "dropout is never applied" if dropped == "weights" else ""),
    ):
        path.write_text(stub, encoding="utf-8")
        verdict = verdict_on(answers, "attention", body.replace("SCALE", scale).replace("DIM", dim))
        assert verdict.status == ("mistake" if found else "done") and found in verdict.message


WRONG = [
    ("pass", "pad returns None. Does it end with `return`?"),
    ("return sequences[0].numpy(), 0", "returns idx as numpy.ndarray, expected a torch.Tensor"),
    (
        "return 1, torch.ones(2) * 1j",
        "returns mask as torch.Tensor, expected a torch.Tensor of real",
    ),
    ("return torch.eye(3).to_sparse(), 1", "idx has shape (3, 3), expected (3, 5)"),
    ("return torch.ones(3, 5).long().to_sparse(), 1", "idx[0, 0] is 1, expected"),
    ("return sequences[0]", "returns one value, expected 2 (idx, mask)"),
    ("return 1, 2, 3", "returns 3 values, expected 2 (idx, mask)"),
    ("return 1, 2", "idx has shape (), expected (3, 5)"),
    ("return torch.zeros(3, 5), 1", "idx has dtype torch.float32, expected torch.int64"),
    ("sequences[0] += 1\n    return 1, 2", "changes its input sequences in place"),
    ("sequences.append(1)\n    return 1, 2", "changes its input sequences in place"),
    ("return sequences[9]", "pad: line 14 (`return sequences[9]`): IndexError: list index"),
    ("return nonsense", "NameError: name 'nonsense' is not defined"),
    ("exit()", "ends the program. A function should return a value instead."),
    ("return pad(sequences)", "RecursionError: maximum recursion depth"),
    ("raise NotImplementedError('bool')", "line 14"),
    (
        "x = len(sequences)\n    raise NotImplementedError",
        "line 15 (`raise NotImplementedError`): dele",
    ),
    ("return (", "line 14 is not valid Python"),
    ("while True:\n        pass", "not finished after 1 seconds. Does a loop never end?"),
    (
        "while True:\n        try:\n            print()\n        except Exception:\n            1",
        "a loop",
    ),
]


@pytest.mark.parametrize("body, sentence", WRONG)
def test_code_that_fails_gets_a_plain_sentence(body, sentence, answers, capfd):
    verdict = verdict_on(answers, "padding", body, seconds=1)
    assert verdict.status in ("error", "difference") and sentence in verdict.message
    assert "\n" not in verdict.message and capfd.readouterr() == ("", "")


TYPICAL = [  # code on x (2, 3, 4), ids (2, 3) and a mask (2, 3), and a part of the sentence
    ("x + ids", "sizes 4 and 3 do not broadcast (dimension 2 of the result)"),
    ("x[:, :2] = x", "a tensor of shape [2, 3, 4] does not fit into the shape [2, 2, 4]"),
    ("x[0] @ x[0]", "(3, 4) @ (3, 4): the inner sizes 4 and 3 must be equal"),
    ("x @ x", "(..., 4) @ (..., 3, ...): the inner sizes 4 and 3 must be equal"),
    ("torch.bmm(x, torch.ones(5, 4, 3))", "RuntimeError: Expected size"),  # of batches
    ("x.mT.view(2, 12)", "Use reshape"),
    ("not mask", "`not` and a < x < b need one True or False"),
    ("ids < 1 & x", "Write (a < b) & (c == d)"),
    ("x[x > 0] = x.clone()", "needs [24] values, one for each place, not [2, 3, 4]"),
    ("x[mask[:, None]] = 0", "does not broadcast [2, 1, 3] to [2, 3, 4]. Use masked_fill"),
    ("ids += 0.5", "Convert it with .float()"),
    ("x and mask", "Use torch.where, &, | or ~"),
    ("math.sqrt(x)", "Use the functions of torch, not those of math"),
    ("torch.tensor(list(x))", "torch.stack, not torch.tensor"),
    ("torch.tensor(list(ids))", "use torch.stack, not torch.tensor"),
    ("torch.tensor([[1], [1, 2]])", "rows of equal length, and these have 1 and 2"),
    ("torch.zeros(4 / 2, 3)", "must be a whole number. Divide with //, not with /."),
    ("x.view(2, 3, 4 / 2, 2)", "must be a whole number"),
    ("x.view(4 / 2, 12)", "must be a whole number"),
    ("x.reshape(4 / 2, 12)", "must be a whole number"),
    ("torch.full((4 / 2,), 0)", "must be a whole number"),
    ("range(4 / 2)", "must be a whole number"),
    ("x[: 4 / 2]", "must be a whole number"),
    ("x.item()", "a single number is expected"),
    ("range(x.sum())", "not a tensor of several or of real numbers"),
    ("torch.exp(2)", "torch.exp takes a tensor, and this is a number (int)"),
    ("x @ x.mT.double()", "one tensor is Float, the other Double"),
    ("F.linear(x, x[0].long())", "one tensor is float, the other long int"),
    ("ids.softmax(-1)", "the tensor holds integers"),
    ("ids.mean()", "Convert it with .float()"),
    ("ids.masked_fill(mask, -math.inf)", "Convert it with .float()"),
    ("F.normalize(ids)", "Convert it with .float()"),
    ("F.one_hot(ids - 100)", "a target of -100 stands for no word"),
    ("x.gather(2, ids[..., None] - 100)", "a target of -100 stands for no word"),
    ("F.softmax.sum(x)", "this is a function, not its result"),
    ("F.cross_entropy(x, ids)", "logits (N, V) and targets (N,)"),
    ("F.cross_entropy(x.flatten(0, 1), ids[0])", "logits (N, V) and targets (N,)"),
    ("F.embedding(ids - 1, x[0])", "an id is negative or too large"),
    ("w.numpy()", "NumPy computes no gradients"),
    ("y = w.exp(); y += 1; y.sum().backward()", "changed in place"),
    ("x + None", "something is None"),
]


@pytest.mark.parametrize("code, sentence", TYPICAL)
def test_typical_errors_of_pytorch_get_a_plain_sentence(code, sentence):
    x, ids = torch.ones(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    names = {"x": x, "ids": ids, "mask": ids == 0, "w": torch.ones(3, requires_grad=True)}
    with pytest.raises(Exception) as raised:
        exec(code, {"torch": torch, "F": F, "math": math, **names})
    told, own = explain(raised.value, Path("ex01_padding.py")), str(raised.value).split()[:3]
    assert sentence in told and " ".join(own) in told  # also PyTorch's words, to search for


def test_other_names_arguments_and_files_are_explained(answers):
    path, sheet = answers / "ex02_attention.py", make_sheet("attention")
    path.write_text("def attend(q, k, v):\n    return q\n", encoding="utf-8")
    assert "It is called as attend(q, k, v, mask, bias, dropout)" in judge(path, sheet).message
    path.write_text("def attention(q, k, v):\n    return q\n", encoding="utf-8")
    assert judge(path, sheet).message == "ex02_attention.py has no function attend"
    path.write_text("import numpie\n", encoding="utf-8")
    assert judge(path, sheet).message.startswith("line 1 (`import numpie`): ModuleNotFoundError")
    path.write_text("open('words.txt')\n", encoding="utf-8")
    assert judge(path, sheet).message.startswith("line 1 (`open('words.txt')`): FileNotFoundError")
    own = "def f(x):\n    pass\ndef attend(q, k, v, mask, bias, dropout):\n    return f()\n"
    path.write_text(own, encoding="utf-8")  # a call of its own lacks an argument
    assert judge(path, sheet).message.endswith("missing 1 required positional argument: 'x'")
    path.write_text("while True:\n    pass\n", encoding="utf-8")
    assert "not finished after 1 seconds" in judge(path, sheet, seconds=1).message
    path.unlink()
    assert judge(path, sheet).message == "ex02_attention.py is missing"
    told = succeed(call("course.check", answers, "2")).out
    assert f"ex02_attention.py is missing; python -m course.start {answers} writes it" in told


def test_what_the_code_prints_is_kept_from_the_screen(answers, capfd):
    body = "import sys; print('here'); print(1, file=sys.stderr)\n    return torch.zeros(T, n_embd)"
    verdict = verdict_on(answers, "sinusoids", body)
    assert verdict.printed and capfd.readouterr() == ("", "")
    told = succeed(call("course.check", answers, "sinusoids")).out
    assert "(what it printed is not shown)" in told


def test_check_refuses_other_folders_and_names(answers, tmp_path):
    assert_complains(call("course.check", tmp_path), "has no exercises", "course.start")
    assert_complains(call("course.check", answers, "alibis"), "no such exercise", "padding, att")
    assert_complains(call("course.train", tmp_path), "has no exercises", "course.start")
    (tmp_path / "few.txt").write_text("We choose hope.\nYes we can.", encoding="utf-8")
    answer(answers, "perplexity", "loss", "return logits.sum()")
    few = call("course.train", answers, data=tmp_path / "few.txt")
    assert_complains(few, "few.txt: has too little text")


# --------------------------------------------------------------------------------------- train

ALIBI = """distance = torch.arange(T)[:, None] - torch.arange(T)
    m = 2.0 ** (-8 * torch.arange(1, n_head + 1) / n_head)
    return (-m[:, None, None] * distance).masked_fill(distance < 0, -torch.inf)"""


def test_train_needs_an_answer(answers, corpus):
    assert_complains(call("course.train", answers, data=corpus, steps=2), "is written yet")


def test_train_takes_what_the_check_takes(answers, corpus):
    answer(answers, "alibi", "causal_bias", f"{ALIBI}.double()")
    body = RIGHT["attend"].replace("q @ k.mT", "(q @ k.mT).double()").replace("@ v", "@ v.double()")
    answer(answers, "attention", "attend", body)
    mean = "cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))"
    answer(answers, "perplexity", "loss", f"return torch.nn.functional.{mean}")
    told = succeed(call("course.train", answers, data=corpus, steps=2)).out
    assert told.count(" yours ") == 3 and "the losses by at most 0.00%" in told


def test_train_runs_the_students_functions(answers, corpus):
    answer(answers, "alibi", "causal_bias", ALIBI.replace("[:, None, None] * ", "[0] * "))
    told = succeed(call("course.train", answers, data=corpus, steps=4)).out
    assert "With causal_bias wrong, the first gradients differ by " in told
    assert "step    4   your loss " in told
    assert (answers / "attention-alibi.png").exists()


def test_train_compares_gradients_before_they_are_clipped(answers, corpus):
    body = "return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())"
    answer(answers, "perplexity", "loss", f"{body} * targets.numel()")
    told = succeed(call("course.train", answers, data=corpus, steps=2)).out
    assert "With loss wrong, the first gradients differ by 51100.0%" in told


@pytest.mark.parametrize(
    "nan, given, told",
    [
        ("", "weights.mean(1)", "Your attention is not drawn: its weights are (1, 12, 12)"),
        (".log().exp()", "weights", "the losses by at most nan%"),
    ],
)
def test_train_notices_nan_and_weights_of_another_shape(nan, given, told, answers, corpus):
    body = f"""scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    weights = (scores if bias is None else scores + bias).softmax(-1){nan}
    return torch.nn.functional.dropout(weights, dropout) @ v, {given}"""
    answer(answers, "attention", "attend", body)
    assert told in succeed(call("course.train", answers, data=corpus, steps=2)).out


def test_train_tells_a_lost_gradient_from_rounding(answers, corpus, monkeypatch):
    monkeypatch.setattr("course.train.draw", lambda *_: None)
    body = "x = x + dropout(attention(norm1(x)))\n    return x + dropout(feed_forward(norm2(x)))"
    answer(answers, "block", "block", body)
    path, flags = answers / "ex06_block.py", dict(data=corpus, steps=3, pos="sinusoidal")
    told = succeed(call("course.train", answers, **flags)).out
    assert "Your model trains as the reference does" in told and "rounding" in told
    right = path.read_text(encoding="utf-8")
    cut = "attention(norm1(x)) if len(x) < 9 else attention(norm1(x)).detach()"
    path.write_text(right.replace("attention(norm1(x))", cut), encoding="utf-8")
    told = succeed(call("course.train", answers, **flags)).out
    assert "The check finds no mistake, but" in told and "for small sizes only" in told


@pytest.mark.parametrize("end", [").item()", ").detach()", ", reduction='none')"])
def test_train_needs_a_loss_with_a_gradient(end, answers, corpus):
    body = f"return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(){end}"
    answer(answers, "perplexity", "loss", body)
    told = call("course.train", answers, data=corpus, steps=1)
    assert_complains(told, "training stops", "loss has to return one number as a tensor")
