"""Optional packages: without safetensors or sacrebleu, only what needs them refuses to run."""

import sys

import pytest
from helpers import assert_complains, call, make_run

from nets import roberta_files

COMMANDS = ["train_mlm --init no/folder", "train_classifier --init no/folder", "export MLM"]
COMMANDS += ["train_seq2seq --task translate"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_package_is_named(command, tmp_path, monkeypatch):
    monkeypatch.setattr(roberta_files, "load_file", None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    mlm = make_run(tmp_path / "mlm", "mlm", norm_first=False, head="roberta")
    words = [mlm if word == "MLM" else word for word in command.split()]
    done = call(*words, out=tmp_path / "new")
    package = "sacrebleu" if "translate" in command else "safetensors"
    assert_complains(done, f"pip install {package}")
    assert not (tmp_path / "new").exists()
