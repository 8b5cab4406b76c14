"""beyond.train_context: what a context tells, and perplexities by hand, for both tasks."""

import json
import math
import random
import shutil

import pytest
import torch
import torch.nn.functional as F
from helpers import TINY, call, fails, succeed

from beyond import train_context
from data.pairs import PAIR_VIEWS
from data.threads import THREAD_VIEWS
from data.tokenizer import BOS
from lab.load import read_metrics, read_result, read_run

SCRIPT, WORDS = "beyond.train_context", 8
LEARN = "--n-layer 1 --n-embd 32 --n-head 2 --n-ffn 64 --lr 0.01 --warmup 20".split()


def test_a_translation_tells_the_word_and_another_does_not(tmp_path):
    """Random words and the same words in cipher: one language alone gives a perplexity of WORDS at
    best, with the other one it is 1."""
    rng = random.Random(0)
    for name, count in (("train", 600), ("val", 40), ("test", 40)):
        rows = [rng.choices(range(WORDS), k=rng.randint(4, 6)) for _ in range(count)]
        for ending in ("en", "xx"):
            lines = (" ".join(f"{ending}{word}" for word in row) + "\n" for row in rows)
            (tmp_path / f"{name}.{ending}").write_text("".join(lines))
    steps = "--pos rope --pair-rate 0.7 --steps 150 --eval-every 150".split()
    argv = [*LEARN, *steps, "--task", "tlm", "--data", tmp_path]
    done = succeed(call(SCRIPT, *argv, out=tmp_path / "run"))
    assert "beside its translation" in done.out
    result = read_result(tmp_path / "run")
    for language in ("en", "xx"):
        keys = (f"perplexity/test-{language}-{view}" for view in PAIR_VIEWS)
        alone, paired, mispaired = (result[key] for key in keys)
        assert paired < 1.5 and 0.8 * WORDS < alone < 1.3 * WORDS and mispaired > alone, result
        assert result[f"gain/test-{language}"] == pytest.approx(math.log(alone / paired))


def test_ancestors_tell_the_word_and_another_trees_do_not(tmp_path):
    """240 posts with a comment and an answer, each the same animal as the post."""
    path, rng, lines = tmp_path / "same.jsonl", random.Random(0), []
    for n in range(240):
        animal = rng.choice("cat dog hen cow owl fox bee ant".split())
        said = [{"id": i, "parent_id": up, "body": animal} for i, up in (("a", ""), ("b", "t1_a"))]
        title = f"{animal} {n % 9} {n // 9 % 9} {n // 81}"
        lines.append(json.dumps({"id": str(n), "title": title, "comments": said}))
    path.write_text("\n".join(lines))
    argv = [*LEARN, *"--steps 150 --eval-every 150 --task threads".split(), "--data", path]
    succeed(call(SCRIPT, *argv, out=tmp_path / "run"))
    result = read_result(tmp_path / "run")
    ancestors, alone, shuffled = (result[f"perplexity/test-{view}"] for view in THREAD_VIEWS)
    assert ancestors < 0.6 * alone and alone < 8 and shuffled > 1.5 * alone, result


@pytest.mark.parametrize("task, set_name", [("tlm", "test-xx"), ("threads", "test")])
def test_the_numbers_are_those_by_hand(task, set_name, finished):
    folder = finished(SCRIPT, "--task", task, "--lr", "0.02")
    loaded, result = read_run(folder), read_result(folder)
    flags = train_context.Flags(**loaded.config["flags"])
    read = train_context.Translations if task == "tlm" else train_context.Threads
    for view, batches in read(flags, loaded.tokenizer).sets[set_name].items():
        nats = right = count = 0
        for inputs, mask, labels, more in batches:
            logits = loaded.model(inputs, mask, **more).detach()
            chosen = labels != -100
            nats += F.cross_entropy(logits[chosen], labels[chosen], reduction="sum").item()
            right += (logits.argmax(-1)[chosen] == labels[chosen]).sum().item()
            count += chosen.sum().item()
        key = f"{set_name}-{view}"
        assert result[f"perplexity/{key}"] == pytest.approx(math.exp(nats / count), rel=1e-4)
        assert result[f"accuracy/{key}"] == pytest.approx(right / count)
        assert result[f"tokens/{set_name}"] == count
    last = read_metrics(folder)[-1]
    valid = ("valid-en", "valid-xx") if task == "tlm" else ("valid",)
    alone, context = (
        sum(math.log(last[f"perplexity/{n}-{view}"]) / len(valid) for n in valid)
        for view in ("alone", "paired" if task == "tlm" else "ancestors")
    )
    # as often as each is trained
    assert last["loss/valid"] == pytest.approx(0.8 * context + 0.2 * alone, rel=1e-9)


def test_translations_start_from_an_mlm_run(pairs, tmp_path):
    # train_mlm.py reads both languages as one text
    succeed(call("train_mlm", *TINY, data=pairs, valid=0.2, out=tmp_path / "mlm"))
    for source, out in (("mlm", "tlm"), ("tlm", "again")):
        given = dict(init_from=tmp_path / source, data=pairs, out=tmp_path / out)
        succeed(call(SCRIPT, "--task", "tlm", **given, steps=0))
    mlm, tlm, again = (read_run(tmp_path / name).model for name in ("mlm", "tlm", "again"))
    idx = torch.tensor([[BOS, 5, 6, 7]])
    assert torch.equal(tlm(idx, languages=torch.ones_like(idx)), mlm(idx))
    assert torch.equal(again(idx), mlm(idx))
    assert not tlm.body.languages.weight.any()


def test_threads_start_from_an_mlm_run(threads, finished, tmp_path):
    mlm, out = finished("train_mlm"), tmp_path / "run"
    argv = [SCRIPT, "--task", "threads", "--data", threads, "--init-from"]
    succeed(call(*argv, mlm, steps=0, out=out))
    loaded, pretrained = read_run(out), read_run(mlm)
    assert loaded.kind == "thread" and loaded.tokenizer.to_str() == pretrained.tokenizer.to_str()
    idx = torch.randint(4, 20, (3, 9))
    expected = pretrained.model.body(idx)
    torch.testing.assert_close(loaded.model.body.encoder(idx), expected)
    torch.testing.assert_close(loaded.model(idx), pretrained.model.head(expected))
    fails(call(*argv, finished("train_lm"), out=tmp_path / "lm"), "kind lm")


def test_a_set_without_known_words_is_refused(pairs, tmp_path):
    data = shutil.copytree(pairs, tmp_path / "pairs")
    (data / "test.en").write_text("x\ny\n"), (data / "test.xx").write_text("x\ny\n")
    argv = (SCRIPT, *TINY, "--task", "tlm", "--data", data, "--out", tmp_path / "run")
    fails(call(*argv, vocab_size=15), "no word of test-en")


@pytest.mark.parametrize("script, task", [
    ("beyond.train_seq2seq", "translate"),
    ("beyond.train_seq2seq", "infill"),
    ("beyond.train_context", "tlm"),
    ("beyond.train_context", "threads"),
])  # fmt: skip
def test_without_a_validation_set_it_asks_for_one(script, task, tmp_path):
    fails(call(script, *TINY, task=task, valid=0, out=tmp_path / "x"), "--valid 0.0", "larger")


def test_with_pairs_for_validation_none_are_held_out(pairs, tmp_path):
    argv = [*TINY, "--task", "tlm", "--data", pairs, "--valid", 0]
    succeed(call("beyond.train_context", *argv, out=tmp_path / "run"))
