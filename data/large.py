"""Reading a text larger than memory: in pieces that end where a line ends, with the complaints of files.py.

What a range of a file gives depends on the bytes of that range alone, so ranges can be read in any order and again.
"""

import bisect
import hashlib
import itertools
import math
import os
from dataclasses import dataclass

from data.corpora import wikitext
from data.corpus import normal
from data.files import DataError, check_file

PIECE = 2**20  # bytes read at a time, about
LONGEST_LINE = 2**24  # bytes


@dataclass
class Source:
    """A text file, and which set of a corpus its lines belong to."""

    file: str
    set: str
    wikitext: bool  # whether its lines are to be repaired as WikiText's are
    size: int
    mtime: int  # of its last change, in microseconds


def open_source(file, name, is_wikitext=False):
    """The Source of a file as it is now. DataError when it is missing, unreadable or empty."""
    check_file(file, math.inf, "give a text file")
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a text file") from None
    if not status.st_size:
        raise DataError(f"{file}: the file is empty; give a file with text")
    return Source(os.fspath(file), name, is_wikitext, status.st_size, status.st_mtime_ns // 1000)


def line_start(file, at):
    """The first byte from `at` on at which a line begins; the end of the file when none does."""
    if at <= 0:
        return 0
    file.seek(at - 1)
    rest = file.readline(LONGEST_LINE)
    if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
        raise DataError(
            f"{file.name}: the line around byte {at:,} is longer than {LONGEST_LINE:,} bytes; break it into lines"
        )
    return file.tell()


def ranges(source, size):
    """[(begin, end), ...]: the file cut into ranges of about `size` bytes, each at the start of a line."""
    cuts = [0]
    with open(source.file, "rb") as file:
        while cuts[-1] < source.size:
            cuts.append(line_start(file, min(cuts[-1] + size, source.size)))
    return list(itertools.pairwise(cuts))


def pieces(source, begin, end, size):
    """(position, bytes) of a range, about `size` bytes at a time and always whole lines."""
    with open(source.file, "rb") as file:
        while begin < end:
            stop = min(end, line_start(file, min(begin + size, end)))
            file.seek(begin)
            yield begin, file.read(stop - begin)
            begin = stop


def lines(source, at, raw):
    """The lines of a piece that are not empty, as `files.read_text` reads them. DataError for what is no UTF-8 text,
    naming the line."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place(source.file, at + error.start)}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
            f"{at + error.start:,}); save the file as UTF-8, for example with: "
            "iconv -f WINDOWS-1252 -t UTF-8"
        ) from None
    if "\0" in text:
        raise DataError(
            f"{place(source.file, at + raw.index(0))}: holds a NUL character, so it is no text file; "
            "save it as UTF-8 text"
        )
    if at == 0:
        text = text.removeprefix("\ufeff")
    found = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
    return [wikitext.repair(line) for line in found] if source.wikitext else found


def place(path, position):
    """file:line of a byte."""
    line = 1
    with open(path, "rb") as file:
        while position > 0:
            raw = file.read(min(PIECE, position))
            line, position = line + raw.count(b"\n"), position - len(raw) if raw else 0
    return f"{path}:{line}"


def is_held_out(line, share):
    """Whether a line belongs to the validation set: about `share` of all distinct lines do, and all copies of a line alike.

    corpus.hold_out draws exactly that share, but has to see the whole text.
    """
    return (
        int.from_bytes(hashlib.blake2b(normal(line).encode(), digest_size=7).digest(), "big")
        < share * 2**56
    )


def sample(sources, size, valid=0.0):
    """Lines of about `size` bytes spread evenly over the texts, those held out for validation left out; all lines of
    texts no larger."""
    ends = list(itertools.accumulate(source.size for source in sources))
    if ends[-1] <= size:
        spots = [(source, 0, source.size) for source in sources]
    else:
        n, spots = max(1, size // PIECE), []
        for at in (ends[-1] * k // n for k in range(n)):
            i = bisect.bisect_right(ends, at)
            at -= ends[i] - sources[i].size
            with open(sources[i].file, "rb") as file:
                spots.append(
                    (
                        sources[i],
                        line_start(file, at),
                        line_start(file, min(at + PIECE, sources[i].size)),
                    )
                )
    for source, begin, end in spots:
        for at, raw in pieces(source, begin, end, PIECE):
            yield from (
                line for line in lines(source, at, raw) if not (valid and is_held_out(line, valid))
            )
