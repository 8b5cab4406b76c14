"""Files: text in, errors that name line and remedy, and writing in one step."""

import hashlib

import pytest

from data.files import UserError, printable, read_json, read_lines, sha256, whole_file, write_json


def test_lines_are_read_without_line_ends_mark_and_empty_end(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\n  two – é\n\n\n".encode())
    assert read_lines(tmp_path / "a.txt") == ["one", "", "  two – é"]


@pytest.mark.parametrize("content, message", [
    (None, "a.txt: cannot be read .No such file or directory.; check the path"),
    (b" \n\n", "a.txt: the file is empty; give a file with text"),
    (b"one\ntwo\nna\xefve\n", "a.txt:3: not UTF-8 .byte 0xef.; .*iconv -f WINDOWS-1252"),
    ("one\ntwo".encode("utf-16"), "a.txt:1: not UTF-8 .byte 0xff.; .*iconv -f UTF-16"),
])  # fmt: skip
def test_a_file_that_is_no_text_names_line_and_remedy(content, message, tmp_path):
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_lines(tmp_path / "a.txt")
    assert "\n" not in str(error.value)


def test_a_corrupt_json_file_is_named_with_the_remedy(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(UserError, match="a.json: not valid JSON .*line 1.*; train again"):
        read_json(tmp_path / "a.json", "train again")
    write_json(tmp_path / "a.json", {"é": [1, 0.5]})
    assert read_json(tmp_path / "a.json") == {"é": [1, 0.5]}


def test_a_file_that_is_not_complete_leaves_the_old_one(tmp_path):
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(KeyboardInterrupt):
        with whole_file(tmp_path / "a.json") as file:
            file.write(b"2")
            raise KeyboardInterrupt
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert sha256(tmp_path / "a.json") == hashlib.sha256(b"1\n").hexdigest()


def test_a_printed_line_holds_no_control_characters():
    assert printable("a\nb\x1b[31m é") == "a\\nb\\x1b[31m é"
    assert printable("x" * 50, 10) == "x" * 10 + " ..."
