"""Downloads from mirrors whose file is wrong or missing."""

import hashlib

import pytest

from data import download
from data.files import UserError

TEXT = b"Four score and seven years ago\n" * 2_000
FILES = {"train.txt": hashlib.sha256(TEXT).hexdigest()}


def test_a_file_comes_from_the_first_mirror_that_has_it_right(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "__file__", str(tmp_path / "download.py"))
    path, mirrors = tmp_path / "mine" / "train.txt", {"gone": f"file://localhost{tmp_path}/gone/"}
    for name, text in (("good", TEXT), ("wrong", TEXT[::-1]), ("cut", TEXT[:-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_bytes(text)
        mirrors[name] = f"file://localhost{tmp_path / name}/"
    with pytest.raises(UserError, match="train.txt: cannot .*localhost.*hash.*No such.*--data P"):
        download.download("mine", FILES, [mirrors["wrong"], mirrors["gone"]])
    assert not list(path.parent.iterdir())  # a wrong file gets no name
    for names in (["gone", "cut", "wrong", "good"], ["gone"]):  # it is not downloaded again
        assert download.download("mine", FILES, [mirrors[n] for n in names]) == path.parent
        assert list(path.parent.iterdir()) == [path] and path.read_bytes() == TEXT
    path.write_text("mine")
    with pytest.raises(UserError, match="train.txt: its sha256 is not the pinned one; delete"):
        download.download("mine", FILES, [mirrors["good"]])
