"""Downloads from mirrors whose file is wrong or missing."""

import hashlib

import pytest

from data import corpora
from data.files import UserError

TEXT = b"Four score and seven years ago\n" * 2_000
FILES = {"train.txt": hashlib.sha256(TEXT).hexdigest()}


@pytest.fixture
def mirrors(monkeypatch, tmp_path):
    """mirrors("wrong", "good") is a tuple of addresses that deliver such a file."""
    monkeypatch.setattr(corpora, "__file__", str(tmp_path / "corpora" / "__init__.py"))
    for name, text in (("good", TEXT), ("wrong", TEXT[::-1]), ("cut", TEXT[:-1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_bytes(text)
    return lambda *names: tuple(f"file://localhost{tmp_path / name}/" for name in names)


def test_a_file_comes_from_the_first_mirror_that_has_it_right(mirrors, tmp_path):
    for names in (["gone", "cut", "wrong", "good"], ["gone"]):  # it is not downloaded again
        assert corpora.download("mine", FILES, mirrors(*names)) == tmp_path / "mine"
        assert [path.name for path in (tmp_path / "mine").iterdir()] == ["train.txt"]
        assert (tmp_path / "mine" / "train.txt").read_bytes() == TEXT


def test_a_file_other_than_the_pinned_one_gets_no_name(mirrors, tmp_path):
    with pytest.raises(
        UserError, match="train.txt: cannot .*localhost.*hash.*No such.*--data PATH"
    ):
        corpora.download("mine", FILES, mirrors("wrong", "gone"))
    assert not list((tmp_path / "mine").iterdir())
    (tmp_path / "mine" / "train.txt").write_text("mine")
    with pytest.raises(UserError, match="train.txt: its sha256 is not the pinned one; delete"):
        corpora.download("mine", FILES, mirrors("good"))
