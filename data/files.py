"""Reading what a student hands in: plain UTF-8 text and `label<TAB>text` rows, with errors that name the line."""

import contextlib
import os
import sys
import time
from pathlib import Path


class DataError(ValueError):
    """Something is wrong with a file; the message names it and says what to do."""


def read_lines(path):
    """The lines of a UTF-8 text file, without line ends and without empty lines at the end.

    A byte-order mark is dropped; Windows line ends are read as line ends, and a note on stderr says so.
    Raises DataError for a file that is missing, empty, unreadable or not UTF-8 (with the line number).
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path given to --data") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a readable file to --data") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x}); save the file as UTF-8, for example "
                        f"with: iconv -f WINDOWS-1252 -t UTF-8") from None
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}:{line}: holds a NUL character, so it is no text file; save it as UTF-8 text")
    if "\r\n" in text:
        print(f"note: {path}: Windows line ends, read as line ends", file=sys.stderr)
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
            raise DataError(f"{path}:{number}: no tab; each line must be a label, a tab, and the text")
        if not label or not text.strip():
            raise DataError(f"{path}:{number}: no {'text after' if label else 'label before'} the tab; complete the line or remove it")
        if labels is not None and label not in labels:
            raise DataError(f"{path}:{number}: label {label[:40]!r} is no class; the classes are {', '.join(sorted(labels))}")
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


@contextlib.contextmanager
def alone(folder, wait):
    """Only one process at a time is inside; another calls `wait()` once, and waits. The system lets the next one in when a process dies, however it dies."""
    with open(Path(folder) / ".lock", "ab") as file:
        if not lock(file):
            wait()
            while not lock(file):
                time.sleep(0.1)
        yield


def lock(file):
    """Lock an open file until it is closed; False when another process has it."""
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
