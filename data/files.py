"""Read text and JSON with errors that name file, line and remedy; write files atomically."""

import contextlib
import json
import math
import os
import stat
from pathlib import Path

MEGABYTE = 2**20
# The most bytes of each kind of file that are read into memory.
TEXT_LIMIT = 1024 * MEGABYTE
JSON_LIMIT = 16 * MEGABYTE
TOKENIZER_LIMIT = 64 * MEGABYTE


class DataError(ValueError):
    """A file cannot be used. The message names the file and the remedy."""


def printable(text, most=2000):
    """Return one line of at most `most` characters that is safe to print.

    Control characters and line ends, which a quoted path or file may hold, become escapes.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= most else line[:most] + " ..."


# ---------------------------------------------------------------------------- reading


def check_file(path, limit, remedy, smaller="restore the file"):
    """Raise DataError for a file that is missing, not a regular file, or larger than `limit` bytes.

    remedy: ends the message of the first two; smaller: ends the message of a file too large.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason}); {remedy}") from None
    if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device might never end
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise DataError(f"{path}: is {kind}; {remedy}")
    if found.st_size > limit:
        raise DataError(f"{path}: is larger than {limit / MEGABYTE:,.0f} MB; {smaller}")


def read_bytes(path, limit, remedy, smaller="restore the file"):
    """Return a file's content. Raises DataError as `check_file` does, and if it cannot be read."""
    check_file(path, limit, remedy, smaller)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None


def parse_json(text):
    """Return what json.loads returns, but only finite floats and integers of 64 bits.

    Raises ValueError for any other number, and for nesting that is too deep.
    """

    def refuse(digits):
        raise ValueError(f"{digits[:20]} is not a number JSON can hold")

    def parse_float(digits):
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits)

    def parse_int(digits):
        value = int(digits[:20])
        return value if -(2**63) <= value < 2**63 else refuse(digits)

    try:
        return json.loads(text, parse_constant=refuse, parse_float=parse_float, parse_int=parse_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, remedy, limit=JSON_LIMIT):
    """Return the object in a JSON file. Raises DataError with the remedy for anything else."""
    raw = read_bytes(path, limit, remedy)
    try:
        value = parse_json(raw.decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DataError(
            f"{path}: holds half a character (a lone surrogate), which is not valid text; {remedy}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not valid JSON ({str(error)[:80]}); {remedy}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object; {remedy}")
    return value


DOCUMENTS = (b"%PDF", b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # begin PDF, .docx and .xlsx, .doc


def how_to_convert(path, raw):
    """Return in words how to make a file UTF-8 that begins with these bytes."""
    if raw.startswith(DOCUMENTS):
        return "it is a PDF, Word, Excel or zip file; open it and save its text as UTF-8"
    now = "UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
    command = f'iconv -f {now} -t UTF-8 "{path}" > new.txt'
    return f"save the file as UTF-8 (in Excel: CSV UTF-8), or convert it: {command}"


def decode_text(path, raw, line_of=None):
    """Return the text of a file's bytes. Raises DataError naming the line if they are not UTF-8
    text. line_of(i): the line of byte i, for bytes that do not begin the file."""
    line_of = line_of or (lambda i: 1 + raw.count(b"\n", 0, i))
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        where, byte = f"{path}:{line_of(error.start)}", f"byte 0x{raw[error.start]:02x}"
        raise DataError(f"{where}: not UTF-8 ({byte}); {how_to_convert(path, raw)}") from None
    if "\0" in text:
        nul = "holds a NUL character, so it is not a text file; save it as UTF-8 text"
        raise DataError(f"{path}:{line_of(raw.index(0))}: {nul}")
    return text


def read_lines(path):
    """Return the lines of a UTF-8 text file, without line ends and without empty lines at the end.

    Drops a byte-order mark and accepts Windows line ends (CRLF). Raises DataError for a file that
    is missing, empty, unreadable or not UTF-8, naming the line.
    """
    smaller = "prepare it with beyond.prepare, or split it"
    raw = read_bytes(path, TEXT_LIMIT, "check the path", smaller)
    lines = decode_text(path, raw).removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path}: the file is empty; give a file with text")
    return lines


def read_non_empty_lines(path):
    """Return the non-empty lines of a text file. Raises DataError as `read_lines` does."""
    return [line for line in read_lines(path) if line.strip()]


def non_empty_lines(text):
    """Return the lines of a text as `read_non_empty_lines` does those of a file."""
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


# ---------------------------------------------------------------------------- writing


@contextlib.contextmanager
def whole_file(path, previous=None):
    """Open a file to write bytes to; it gets its name only when it is complete and on disk.

    If the process dies before, the old file is still there. previous: a path to keep it at.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if previous and path.exists():
        os.replace(path, previous)
    os.replace(partial, path)


def write_whole(path, content):
    """Replace a file of bytes in one step."""
    with whole_file(path) as file:
        file.write(content)


def write_text(path, text):
    """Replace a text file in one step."""
    write_whole(path, text.encode("utf-8"))


def write_json(path, value):
    """Replace a JSON file in one step. Raises ValueError for NaN and infinities."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
