"""Tasks: their lines against definitions written as loops, and when which lines are drawn."""

import random

import pytest
import torch

from data.batching import generator
from data.files import UserError
from data.readers import TASK_NAMES, find_task
from data.tasks import TASKS
from data.tokenizer import PAD, token_strings


def sort(shown, last):
    return [letter for letter in "abcdefghijklmnopqrstuvwxyz" for s in shown if s == letter]


def count(shown, last):
    *letters, question, asked = shown
    assert question == "?"
    return [str(sum(letter == asked for letter in letters))]


def flipflop(shown, last):
    memory = None
    for sign, bit in zip(shown[::2], shown[1::2]):
        assert sign in "wi" and bit in "01"
        memory = bit if sign == "w" else memory
    return [memory]


def recall(shown, last):
    values = dict(zip(shown[::2], shown[1::2]))
    assert 2 * len(values) == len(shown)
    return [values[last]]


def add(shown, last):
    plus = shown.index("+")
    total = sum(int("".join(reversed(part))) for part in (shown[:plus], shown[plus + 1 :]))
    return list(reversed(str(total).zfill(plus + 1)))


def parity(shown, last):
    odd = False
    for symbol in shown:
        odd = odd != (symbol == "1")
    return ["1" if odd else "0"]


DEFINED = dict(copy=lambda shown, last: shown, reverse=lambda shown, last: [*reversed(shown)])
DEFINED |= dict(sort=sort, count=count, flipflop=flipflop, recall=recall, add=add, parity=parity)
SIZES = dict(count=lambda n: n + 2, flipflop=lambda n: 2 * n, recall=lambda n: 2 * n)  # before =
SIZES |= dict(add=lambda n: 2 * n + 1)


@pytest.mark.parametrize("name", TASKS)
def test_lines_are_as_defined_and_only_answers_are_targets(name):
    task, gen, same = TASKS[name](), random.Random(1), random.Random(1)
    for n, x, y in zip((1, 3, 8), *task.lines([1, 3, 8], gen)):
        parts = task.line(n, same)  # prompt, answer; recall: next key, answer, ...
        shown = parts[0][: SIZES.get(name, int)(n)]
        assert len(parts) == (16 if name == "recall" else 2) and parts[0][len(shown)] == "="
        for prompt, answer in zip(parts[::2], parts[1::2]):
            assert answer == DEFINED[name](shown, prompt[-1])
        assert task.solve(" ".join(parts[0])) == parts[1]
        hidden = [[s if i % 2 else "[PAD]" for s in part] for i, part in enumerate(parts)]
        for ids, expected in (x, ["[BOS]"] + sum(parts, [])), (y.clamp(0), sum(hidden, [])):
            padded = expected + ["[PAD]"] * (len(ids) - len(expected))
            assert token_strings(task.tokenizer, ids) == padded[: len(ids)]
        assert ((y >= 0) == (y.clamp(0) > PAD)).all()


def test_recall_asks_each_key_once_in_test_lines():
    task = TASKS["recall"]()
    for name, (inputs, targets) in task.streams.items():
        for ids, labels in zip(inputs, targets):
            keys = ids[labels >= 0].tolist()  # an answer is the target of the key before it
            assert len(keys) == len(set(keys)) == min(int(name), 8)


@pytest.mark.parametrize("name", TASKS)
def test_training_mixes_lengths_and_tests_have_one_each(name):
    task = TASKS[name](4)

    def ends(x):  # the lengths that occur, by where = stands
        places = (x == task.tokenizer.token_to_id("=")).int().argmax(1)
        return [n for n in range(1, 17) if 1 + SIZES.get(name, int)(n) in places.tolist()]

    assert ends(task.batch(0, 200, generator(0, 7))[0]) == [1, 2, 3, 4]
    assert {"4", "6", "8", "16"} <= task.streams.keys()
    assert all(ends(x) == [int(n)] and len(x) == 400 for n, (x, _) in task.streams.items())


def test_batches_depend_on_seed_and_step_and_tests_on_neither():
    one, other = TASKS["copy"](), TASKS["copy"]()
    other.batch(0, 5, generator(3, 3))
    for a, b in zip(one.batch(0, 8, generator(0, 1)), other.batch(0, 8, generator(0, 1))):
        assert torch.equal(a, b)
    assert not torch.equal(*(one.batch(0, 8, generator(0, step))[0][:, :9] for step in (1, 2)))
    assert one.hash == other.hash != TASKS["copy"](5).hash


@pytest.mark.parametrize("name, text", [
    ("copy", "a b c"), ("copy", "="), ("copy", "a = b"), ("copy", "a word ="), ("count", "a b a ="),
    ("flipflop", "i 0 ="), ("recall", "a 1 b 2 = c"),
])  # fmt: skip
def test_a_text_that_is_no_prompt_is_told(name, text):
    with pytest.raises(UserError, match=f"no prompt of {name}; give one like '.* ="):
        TASKS[name]().solve(text)


def test_the_names_of_tasks_are_known_without_loading_them():
    assert TASK_NAMES == tuple(TASKS)
    task = find_task("copy", "7")  # as it is typed
    assert (task.length, find_task("copy", "7")) == (7, task)
    assert find_task("copy").length == 16 and find_task("toy") is find_task(None) is None
