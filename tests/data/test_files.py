"""Files: text in, errors that name line and remedy, and writing in one step."""

import pytest

from data.files import UserError, printable, read_json, read_lines, whole_file, write_json


def test_lines_are_read_without_line_ends_mark_and_empty_end(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\n  two – é\n\n\n".encode())
    assert read_lines(tmp_path / "a.txt") == ["one", "", "  two – é"]
    (tmp_path / "a.txt").write_bytes("a\u200bb\rA\u030a <unk>\r\nc".encode())
    assert read_lines(tmp_path / "a.txt") == ["a b", "Å [UNK]", "c"]
    assert read_lines(tmp_path / "a.txt", as_is=True) == ["a\u200bb", "A\u030a <unk>", "c"]
    assert printable("a\nb\x1b[31m é") == "a\\nb\\x1b[31m é" and printable("xxx", 1) == "x ..."


@pytest.mark.parametrize("content, message", [
    (b" \n\n", "a.txt: the file is empty; give a file with text"),
    (b"one\ntwo\nna\xefve\n", "a.txt:3: not UTF-8 .byte 0xef.; .*iconv -f WINDOWS-1252"),
    ("one\ntwo".encode("utf-16"), "a.txt:1: not UTF-8 .byte 0xff.; .*iconv -f UTF-16"),
])  # fmt: skip
def test_a_file_that_is_no_text_names_line_and_remedy(content, message, tmp_path):
    with pytest.raises(UserError, match="a.txt: cannot be read .No such file.*; check the path"):
        read_lines(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        read_lines(tmp_path / "a.txt")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_complete_leaves_the_old_one(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(UserError, match="a.json: not valid JSON .*line 1.*; train again"):
        read_json(tmp_path / "a.json", "train again")
    write_json(tmp_path / "a.json", {"é": 0.5})
    with pytest.raises(KeyboardInterrupt):
        with whole_file(tmp_path / "a.json") as file:
            file.write(b"2")
            raise KeyboardInterrupt
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"é": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
