"""The check's messages in other languages: the tables are complete, and composed where printed."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT, call, fails, succeed

from course.cases import CHECKS
from course.exercises import EXERCISES
from course.known import read_mistakes
from course.language import PLACE, Language, languages, read_table
from course.observe import Verdict

# The files whose sentences the check prints, beside those of mistakes.md
SPEAKERS = ("expectation", "observe", "judge", "measures", "differences", "worker")
TABLES = languages()[1:]
KEPT = re.compile(r"-?\b\d[\d.e]*\b|[\w.]*_\w+|\b[\w.]+\(|[\w.]+=[-\w]+|\[\w+\]")
NOT_SAID = (
    "can't allocate memory",  # by torch
    'File "f", (line \\d+ in (\\S+))',  # read in a traceback
    "No module named f for answers, which cannot import poslab",  # part of a traceback
    "the check does not work here:\nf",  # not to students
)


def literals_of(name):
    """Return the strings of a file, without docstrings, as lists of their parts; "" is a place."""
    nodes = list(ast.walk(ast.parse((ROOT / "course" / f"{name}.py").read_text("utf-8"))))
    skipped = [node.value for node in nodes if isinstance(node, ast.Expr)]
    literals = []
    for node in nodes:  # an f-string before its parts
        if isinstance(node, ast.JoinedStr):
            skipped += ast.walk(node)
            literals.append([getattr(part, "value", "") for part in node.values])
            literals[-1] = [part if isinstance(part, str) else "" for part in literals[-1]]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            literals.append([node.value])
    return literals


def has_words(text):
    return re.search(r"[a-z]{2,}[,:.]? .*[a-z]{2,}", text)


class Strict(Language):
    """Notes which words have no translation."""

    def __init__(self, name):
        super().__init__(name)
        self.missing = []

    def translate(self, sentence):
        translation = super().translate(sentence)
        if translation == sentence and has_words(sentence):
            self.missing.append(sentence)
        return translation


def is_translated(language, sentence):
    strict = Strict(language)
    return strict.translate(sentence) != sentence and not strict.missing


@pytest.mark.parametrize("language", TABLES)
def test_every_diagnosis_has_a_translation_and_none_is_left_over(language):
    table = read_table(language)
    assert list(table) == ["check", *CHECKS]
    missing = []
    left_over = []
    translations = {}
    for function in CHECKS:
        diagnoses = read_mistakes(function)
        missing += [f"{function}: {english}" for english in diagnoses.keys() - table[function]]
        left_over += [f"{function}: {english}" for english in table[function].keys() - diagnoses]
        for english, translation in table[function].items():  # the same sentence, one translation
            assert translations.setdefault(english, translation) == translation
    assert not missing, "\n".join(["to translate:", *missing])
    assert not left_over, "\n".join(["left over:", *left_over])
    text = (ROOT / "course" / f"mistakes.{language}.md").read_text(encoding="utf-8")
    assert text.count("\n- ") == sum(map(len, table.values()))


@pytest.mark.parametrize("language", TABLES)
def test_translations_keep_numbers_code_and_places(language):
    for entries in read_table(language).values():
        for english, translation in entries.items():
            kept = KEPT.findall(english)
            assert [word for word in kept if word not in translation] == [], english
            assert sorted(PLACE.findall(english)) == sorted(PLACE.findall(translation))


@pytest.mark.parametrize("language", TABLES)
@pytest.mark.parametrize("name", SPEAKERS)
def test_every_sentence_of_the_code_has_a_translation(name, language):
    words = Language(language).sentences.keys()
    missing = set()
    for parts in literals_of(name):
        if not has_words("7".join(part or " " for part in parts)):
            continue
        text = "".join(part or "f" for part in parts).strip()
        # Part of a sentence that begins with a function, a measure's or an error; or single words
        framed = [text, f"f {text}", text.removeprefix("f "), f"{text} f", f"Error: {text}"]
        known = any(is_translated(language, sentence) for sentence in framed)
        if not known and not words >= set(text.split()):
            missing.add(text)
    assert missing <= set(NOT_SAID)


@pytest.mark.parametrize("language", TABLES)
def test_no_translation_of_a_sentence_is_left_over(language):
    said = []
    for name in (*SPEAKERS, "known"):
        for parts in literals_of(name):
            said += parts
    for sentence in read_table(language)["check"]:
        for part in re.split(r"\{\w+\}|:", sentence):
            assert any(part.strip() in text for text in said), f"left over: {sentence}"


SHARE = "the share of special tokens with a label is 0.2832, expected 0"
NUMBERS = "bias[0, 0, 1] is 0, expected -inf (4 of 5 numbers differ)"
ATTEND = "分数没有除以 sqrt(D)。分数会随 D 增大，softmax 变得过于尖锐。"
LINES = [
    ("done", "完成"),
    ("1 of 13 done", "已完成 1 / 13"),
    ("slopes, encoder_bias not begun", "slopes, encoder_bias 尚未开始"),
    ("perplexity: loss is not begun", "perplexity: loss 尚未开始"),
    ("Next: a/ex02.py", "下一个：a/ex02.py"),
    ("a/ex01.py has no function pad", "a/ex01.py 中没有函数 pad"),
    (f"mask_words: {SHARE}", "mask_words: 带标签的特殊词元的比例 = 0.2832，应为 0"),
    (f"causal_bias: {NUMBERS}", "causal_bias: bias[0, 0, 1] = 0，应为 -inf（5 个数中有 4 个不同）"),
    (
        "attend: with dropout 0.2, the correlation of dropout between one head and the next is "
        "0.9, expected 0",
        "attend: dropout 为 0.2 时，“dropout”在相邻头之间的相关系数 = 0.9，应为 0",
    ),
    (
        "pad returns a tuple of 3 values, expected 2 (idx, mask)",
        "pad 返回的 tuple 含 3 个值，应返回 2 个值（idx, mask）",
    ),
    (
        "f: line 4: RecursionError: too deep. Does a function call itself without end?",
        "f: 第 4 行：RecursionError: too deep。是否有函数无休止地调用自己？",
    ),
    ("f: line 4: needs more than 4 GB of memory", "f: 第 4 行：需要超过 4 GB 的内存"),
    (
        "line 3 in f: not finished after 20 seconds. Does a loop never end?",
        "第 3 行，f 中：20 秒后仍未结束。是否有循环永不结束？",
    ),
    (
        "line 3 in <module>: f calls itself again and again. Does the recursion never end?",
        "第 3 行，<module> 中：f 不断地调用自己。递归是否永不结束？",
    ),
    # Words of Python and of students stay, also if they look like ours
    ("line 3: SyntaxError: '(' was never closed", "第 3 行：SyntaxError: '(' was never closed"),
    ("f: line 3: ValueError: x is 1, expected 2", "f: 第 3 行：ValueError: x is 1, expected 2"),
    ("f: line 3: KeyError: not begun", "f: 第 3 行：KeyError: not begun"),
    ("something new", "something new"),
    ("attend: something new.", "attend: something new."),
]


@pytest.mark.parametrize("line, translation", LINES)
def test_a_line_in_chinese(line, translation):
    assert Language("zh").translate(line) == translation
    assert Language().translate(line) == line


def test_mistakes_of_helpers_and_pairs_in_chinese():
    first, second = list(read_mistakes("loss"))[:2]
    loss = read_table("zh")["loss"]
    verdict = Verdict("mistake", f"perplexity: as in loss: {first} Also: as in loss: {second}")
    said = Language("zh").translate_verdict(verdict).message
    helper = "与 loss 中的错误相同："
    assert said == f"perplexity: {helper}{loss[first]}此外：{helper}{loss[second]}"


def test_a_detail_in_chinese():
    numbers = "expected\ntensor([0., 1.])\nyours\ntensor([1., 1.])"
    chinese = Language("zh")
    detail = f"slopes(2)\nslopes has shape (3,), expected (2,)\n{numbers}"
    said = chinese.translate_verdict(Verdict("difference", "", detail)).detail
    shapes = "slopes 的形状为 (3,)，应为 (2,)"
    assert said == f"slopes(2)\n{shapes}\n应为\ntensor([0., 1.])\n你的结果\ntensor([1., 1.])"
    traceback = Verdict("error", "", "expected\nyours\n")
    assert chinese.translate_verdict(traceback) == traceback


@pytest.fixture
def verdicts(monkeypatch):
    """Let an answer to exercise 2 have two verdicts."""
    message = f"attend: {list(read_mistakes('attend'))[2]}"
    found = {"attend": Verdict("mistake", message, "yours"), "hide_future": Verdict("not begun")}
    monkeypatch.setattr("course.judge.judge", lambda paths: {"attention": found})


def test_check_speaks_chinese(tmp_path, verdicts):
    shutil.copy(EXERCISES["attention"], tmp_path)
    said = call("course.check", tmp_path, "2", language="zh").out.splitlines()
    assert said[0] == f"  2 attention   attend: {ATTEND}"
    assert "你的结果" in said and "  2 attention   hide_future 尚未开始" in said
    assert said[-2:] == ["[-] 已完成 0 / 1", f"下一个：{tmp_path / 'ex02_attention.py'}"]
    functions = json.loads(call("course.check", tmp_path, json=True, language="zh").out)
    functions = functions["exercises"][0]["functions"]
    assert functions["attend"] == {
        "status": "mistake",
        "message": f"attend: {ATTEND}",
        "detail": "你的结果",
    }
    assert functions["hide_future"]["status"] == "not begun"


def test_english_reads_no_table(tmp_path, verdicts, monkeypatch):
    shutil.copy(EXERCISES["attention"], tmp_path)
    monkeypatch.setattr("course.language.read_table", None)
    assert "the scores are not divided by sqrt(D)" in call("course.check", tmp_path).out


def test_a_language_without_table(tmp_path):
    fails(call("course.check", tmp_path, language="fr"), "fr", "en", "zh")


@pytest.mark.slow
def test_a_handout_speaks_chinese(tmp_path):
    succeed(call("course.start", tmp_path, exercises="3"))
    path = tmp_path / "ex03_heads.py"
    path.write_text(path.read_text("utf-8").replace("raise NotImplementedError", "pass"), "utf-8")

    def check(*words):
        command = [sys.executable, "check.py", *words]
        # The handout's course, not ours
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
        )

    said = check("--language", "zh", "heads").stdout
    assert "split_heads 返回了 None。它是否以 `return` 结尾？" in said and "已完成 0 / 1" in said
    assert "split_heads returns None." in check().stdout
    other = check("--language", "fr")
    assert other.returncode == 2 and "fr" in other.stderr and "zh" in other.stderr
