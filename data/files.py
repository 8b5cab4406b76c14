"""Read text and JSON with errors that name file, line and remedy; write files in one step."""

import contextlib
import hashlib
import json
import os
import sys
import unicodedata
from pathlib import Path


class UserError(ValueError):
    """A flag or a file of the user's is wrong. One line: flag or file, problem, remedy."""


def printable(text, most=2000):
    """Return one line of at most `most` characters; control characters become escapes."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= most else line[:most] + " ..."


def read_bytes(path, remedy="check the path"):
    """Return a file's bytes. Raises UserError, which ends with the remedy, if that fails."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None


def decode(path, raw, line=1):
    """Return the text of bytes that begin at a line of a file. Raises UserError if not UTF-8."""
    try:
        return raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        at = error.start
    now = "UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
    command = f'iconv -f {now} -t UTF-8 "{path}" > new.txt'
    remedy = f"save it as UTF-8 text (in Excel: CSV UTF-8), or convert it: {command}"
    where = f"{path}:{line + raw.count(10, 0, at)}"
    raise UserError(f"{where}: not UTF-8 (byte 0x{raw[at]:02x}); {remedy}")


def clean(text):
    """Return a text in NFC, without marks that cannot be seen, and with [UNK] for <unk>."""
    for old, new in ("\ufeff", ""), ("\u200b", ""), ("\xad", ""), ("<unk>", "[UNK]"):
        text = text.replace(old, new)
    return unicodedata.normalize("NFC", text)


def read_lines(path, as_is=False):
    """Return the lines of a UTF-8 text file, without line ends and without empty lines at the end;
    see `clean`, or as_is. Raises UserError if it is empty, unreadable or not UTF-8."""
    read = decode(path, read_bytes(path)).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    lines = read if as_is else [clean(line) for line in read]
    if n := sum(map(str.__ne__, read, lines)):
        how = "read in NFC, without U+FEFF, U+200B and U+00AD, and with [UNK] for <unk>"
        print(f"note: {path}: {n:,} lines changed: {how}", file=sys.stderr)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{path}: the file is empty; give a file with text")
    return lines


def read_non_empty_lines(path, as_is=False):
    """Return the non-empty lines of a text file. Raises UserError as `read_lines` does."""
    return [line for line in read_lines(path, as_is) if line.strip()]


def read_json(path, remedy="restore the file"):
    """Return the value in a JSON file. Raises UserError, which ends with the remedy."""
    raw = read_bytes(path, remedy)
    try:
        return json.loads(raw)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); {remedy}") from None


@contextlib.contextmanager
def whole_file(path):
    """Open a file to write bytes to; it gets its name only when it is complete and on disk."""
    partial = Path(f"{path}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path, text):
    """Replace a text file in one step."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path, value):
    """Replace a JSON file in one step. Raises ValueError for NaN and infinities."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sha256(path):
    """Return the sha256 of a file in hexadecimal."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def hash_of(value):
    """Return the sha256 of the repr of texts and numbers, to tell when data has changed."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
