"""studies.repeat: a run that was handed in is repeated, and numbers that moved are named."""

import json
import shutil

import pytest
from helpers import ROOT, TINY, call, fails, succeed


@pytest.mark.slow
def test_a_run_is_repeated_and_a_number_that_moved_is_named(tmp_path, corpus):
    run = tmp_path / "run"
    succeed(call("train_lm", *TINY, data=corpus, out=run))
    printed = succeed(call("studies.repeat", run, out=tmp_path / "again")).out
    assert "no number moved by more than 1%" in printed
    assert "--out" in printed and str(run) not in printed
    result = json.loads((run / "result.json").read_text("utf-8"))
    result["perplexity/one"] *= 0.9
    (run / "result.json").write_text(json.dumps(result), "utf-8")
    outcome = call("studies.repeat", run, out=tmp_path / "again")
    assert outcome.code == 1 and "\nmoved by more than 1%: perplexity/one" in outcome.out
    assert "+11.11%" in outcome.out


@pytest.mark.slow
def test_the_students_code_is_run(tmp_path, corpus):
    run = tmp_path / "run"
    succeed(call("train_lm", *TINY, data=corpus, out=run))
    code = tmp_path / "code"
    code.mkdir()
    for name in ("data", "lab", "nets"):
        shutil.copytree(ROOT / name, code / name)
    shutil.copy(ROOT / "train_lm.py", code)
    text = (ROOT / "model.py").read_text("utf-8")
    (code / "model.py").write_text(
        text.replace("self.token_vectors(idx), i", "9 * self.token_vectors(idx), i"), "utf-8"
    )
    outcome = call("studies.repeat", run, code=code, out=tmp_path / "again")
    assert outcome.code == 1 and "moved by more than 1%" in outcome.out
    (code / "train_lm.py").unlink()
    fails(call("studies.repeat", run, code=code, out=tmp_path / "again"), "has no train_lm.py")


def test_what_cannot_be_repeated(tmp_path):
    fails(call("studies.repeat", tmp_path), "result.json")
    result = {"command": "torchrun --nproc-per-node 2 train_lm.py"}
    (tmp_path / "result.json").write_text(json.dumps(result), "utf-8")
    fails(call("studies.repeat", tmp_path), "not a command of one process")
