"""Reading what a student hands in: plain UTF-8 text and `label<TAB>text` rows, with errors that name the line; and JSON
nobody vouches for."""

import contextlib
import json
import math
import os
import stat
import sys
import time
from pathlib import Path

MEGABYTE = 2**20
TEXT_LIMIT = 1024 * MEGABYTE  # a text of more bytes is not read into memory
JSON_LIMIT = 16 * MEGABYTE  # nor a description
TOKENIZER_LIMIT = 64 * MEGABYTE


class DataError(ValueError):
    """Something is wrong with a file; the message names it and says what to do."""


def printable(text, most=2000):
    """A text that may quote a file or a path so that it does nothing to a terminal: what does not print is written as
    its escape."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= most else line[:most] + " ..."


def check_file(path, limit, remedy, smaller="restore the file"):
    """Raises DataError, with the remedy, for a file that is missing or no regular one, and for one of more than `limit`
    bytes."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in a path that a file gave
        raise DataError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}); {remedy}"
        ) from None
    if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, a device may have no end
        raise DataError(
            f"{path}: is {'a folder' if stat.S_ISDIR(found.st_mode) else 'no regular file'}; {remedy}"
        )
    if found.st_size > limit:
        raise DataError(f"{path}: is larger than {limit / MEGABYTE:,.0f} MB; {smaller}")


def read_bytes(path, limit, remedy, smaller="restore the file"):
    """A file's content. Raises DataError as `check_file` does, before anything is read, and for an unreadable one."""
    check_file(path, limit, remedy, smaller)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None


def parse_json(text):
    """json.loads, but ValueError also for NaN, Infinity, numbers too large for a float or 64 bits, and too deep a nesting."""

    def refuse(name):
        raise ValueError(f"{name} is no number in JSON")

    def decimal(digits):
        value = float(digits)
        return value if math.isfinite(value) else refuse(digits[:20])

    def whole(digits):
        return int(digits) if len(digits) < 19 else refuse(digits[:20] + "...")

    try:
        return json.loads(text, parse_constant=refuse, parse_float=decimal, parse_int=whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path, remedy, limit=JSON_LIMIT):
    """The object in a JSON file. Raises DataError, with the remedy, when there is none in it."""
    try:
        value = parse_json(read_bytes(path, limit, remedy).decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except DataError:
        raise
    except UnicodeEncodeError:
        raise DataError(
            f"{path}: holds half a character (a lone surrogate), which no text can; {remedy}"
        ) from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not valid JSON ({str(error)[:80]}); {remedy}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a JSON object; {remedy}")
    return value


def read_lines(path):
    """The lines of a UTF-8 text file, without line ends and without empty lines at the end.

    A byte-order mark is dropped; Windows line ends are read as line ends, and a note on stderr says so.
    Raises DataError for a file that is missing, empty, unreadable or not UTF-8 (with the line number).
    """
    path = Path(path)
    raw = read_bytes(
        path,
        TEXT_LIMIT,
        "check the path given to --data",
        "prepare it with prepare.py, or split it",
    )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8, for example "
            f"with: iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(
            f"{path}:{line}: holds a NUL character, so it is no text file; save it as UTF-8 text"
        )
    if "\r\n" in text:
        print(printable(f"note: {path}: Windows line ends, read as line ends"), file=sys.stderr)
        text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise DataError(f"{path}: the file is empty; give a file with text")
    return lines


def read_text(path):
    """The non-empty lines of a text file; raises DataError as `read_lines` does."""
    return [line for line in read_lines(path) if line.strip()]


def read_rows(path, labels=None):
    """[(label, text), ...] of a file of `label<TAB>text` lines, labels as strings.

    With `labels`, any other label raises DataError, as do a line without a tab and one without a text.
    """
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, text = line.partition("\t")
        label = label.strip()
        if not tab:
            raise DataError(
                f"{path}:{number}: no tab; each line must be a label, a tab, and the text"
            )
        if not label or not text.strip():
            raise DataError(
                f"{path}:{number}: no {'text after' if label else 'label before'} the tab; "
                "complete the line or remove it"
            )
        if labels is not None and label not in labels:
            raise DataError(
                f"{path}:{number}: label {label[:40]!r} is no class; the classes are {', '.join(sorted(labels))}"
            )
        rows.append((label, text.strip()))
    return rows


def write_whole(path, content):
    """Write bytes to a file that appears under its name only when it is whole and on disk."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_text(path, text):
    """Replace a text file in one step."""
    write_whole(path, text.encode("utf-8"))


def write_json(path, value):
    """Replace a JSON file in one step. Raises ValueError for NaN and infinities."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def alone(folder, wait):
    """Only one process at a time is inside; another calls `wait()` once, and waits. The system lets the next one in when
    a process dies, however it dies."""
    with open(Path(folder) / ".lock", "ab") as file:
        if not lock(file):
            wait()
            while not lock(file):
                time.sleep(0.1)
        yield


held = []  # folders this process has for itself, open


def hold(folder):
    """Keep other processes out of a folder until `let_go`, or this one's end, however it comes. BlockingIOError when
    another has it.

    It is the folder that is locked, so nothing is written; on Windows, where that cannot be, nothing is locked.
    """
    if os.name == "nt":
        return
    held.append(os.open(folder, os.O_RDONLY))
    if not lock(held[-1]):
        raise BlockingIOError(f"{folder} is held by another process")


def let_go():
    while held:
        os.close(held.pop())


def lock(file):
    """Lock an open file, or its descriptor, until it is closed; False when another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(0)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
