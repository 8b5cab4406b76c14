"""Optional packages: without safetensors or sacrebleu, only what needs them refuses to run."""

import sys

import pytest
from helpers import SHORT, assert_complains, call, make_run

from nets import roberta_files


@pytest.mark.parametrize("script", ["train_mlm", "train_classifier"])
def test_init_without_safetensors_names_the_package(tmp_path, monkeypatch, script):
    monkeypatch.setattr(roberta_files, "load_file", None)
    done = call(script, *SHORT[script], "--init", tmp_path, "--out", tmp_path / "run")
    assert_complains(done, "pip install safetensors")
    assert not (tmp_path / "run").exists()


def test_export_without_safetensors_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(roberta_files, "load_file", None)
    run = make_run(tmp_path / "mlm", "mlm", norm_first=False, head="roberta")
    done = call("export", run, "--out", tmp_path / "folder")
    assert_complains(done, "pip install safetensors")
    assert not (tmp_path / "folder").exists()


def test_translation_without_sacrebleu_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    more = ("--task", "translate", "--out", tmp_path / "run")
    done = call("train_seq2seq", *SHORT["train_seq2seq"], *more)
    assert_complains(done, "--task translate", "pip install sacrebleu")
    assert not (tmp_path / "run").exists()
