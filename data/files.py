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
    line = ""
    for character in text:
        if character.isprintable():
            line += character
        else:
            line += character.encode("unicode_escape").decode()
    if len(line) > most:
        line = line[:most] + " ..."
    return line


def read_bytes(path, remedy="check the path"):
    """Return the bytes of a file, or of standard input for "-". Raises UserError, which ends with
    the remedy, if it cannot be read."""
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None


def decode(path, raw, line=1):
    """Return the text of bytes of a file. line: the number of the line they begin at. Raises
    UserError naming the line if they are not UTF-8."""
    try:
        return raw.decode().removeprefix("\ufeff")  # the byte order mark that Windows writes
    except UnicodeDecodeError as error:
        at = error.start
    encoding = "WINDOWS-1252"
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encoding = "UTF-16"
    command = f'iconv -f {encoding} -t UTF-8 "{path}" > new.txt'
    remedy = f"save it as UTF-8 text (in Excel: CSV UTF-8), or convert it: {command}"
    line += raw.count(b"\n", 0, at)
    raise UserError(f"{path}:{line}: not UTF-8 (byte 0x{raw[at]:02x}); {remedy}")


def normalize_characters(text):
    """Return a text in NFC, without invisible marks, and with [UNK] for <unk>. Otherwise words that
    look the same would have different ids."""
    text = text.replace("\ufeff", "")  # byte order mark
    text = text.replace("\u200b", " ")  # zero width space, which separates words of Khmer and Thai
    text = text.replace("\xad", "")  # soft hyphen
    text = text.replace("<unk>", "[UNK]")  # as WikiText and the Penn Treebank write it
    return unicodedata.normalize("NFC", text)


def strip_invisible(text):
    """Return a text without spaces and invisible characters (category Cf) at its ends."""
    invisible = [c for c in text if c.isspace() or unicodedata.category(c) == "Cf"]
    return text.strip("".join(invisible))


def read_lines(path, as_is=False):
    """Return the lines of a UTF-8 text file, without line ends and without empty lines at the end.
    as_is: without `normalize_characters`. Raises UserError if the file is empty, unreadable or not
    UTF-8."""
    text = decode(path, read_bytes(path))
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # lines of Windows and of old Macs
    lines = text.split("\n")
    if not as_is:
        normalized = [normalize_characters(line) for line in lines]
        n_changed = sum(map(str.__ne__, lines, normalized))
        if n_changed:
            rules = "read in NFC, without U+FEFF and U+00AD, a space for U+200B, [UNK] for <unk>"
            print(f"note: {path}: {n_changed:,} lines changed: {rules}", file=sys.stderr)
        lines = normalized
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UserError(f"{path}: the file is empty; give a file with text")
    return lines


def read_non_empty_lines(path, as_is=False):
    """Return the non-empty lines of a text file. Raises UserError as `read_lines` does."""
    return [line for line in read_lines(path, as_is) if line.strip()]


def read_json(path, remedy="restore the file"):
    """Return the value in a JSON file. Raises UserError, which ends with the remedy, if the file is
    unreadable or not JSON."""
    raw = read_bytes(path, remedy)
    try:
        return json.loads(raw)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); {remedy}") from None


@contextlib.contextmanager
def whole_file(path):
    """Open a file to write bytes to. It gets its name only when it is complete and on disk, so an
    interrupted program leaves the old file."""
    partial = Path(f"{path}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a power failure must not leave an empty file with this name
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


def short_name(name, most=200):
    """Return the name of a file in at most so many bytes, as file systems allow 255. The end of a
    longer one becomes a short hash."""
    encoded = name.encode()
    if len(encoded) <= most:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:8]
    return f"{encoded[: most - 9].decode(errors='ignore')}-{digest}"


def sha256(path):
    """Return the sha256 of a file in hexadecimal."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def hash_of(value):
    """Return the sha256 of the repr of texts and numbers, to tell when data has changed."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
