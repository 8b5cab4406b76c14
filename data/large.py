"""Read texts larger than memory, in pieces of whole lines, with the errors of files.py.

The lines of a range depend only on the bytes of that range, so ranges can be read in any order.
"""

import bisect
import hashlib
import itertools
import math
import os
import time
from dataclasses import dataclass

from data.corpora import wikitext
from data.corpus import normalize
from data.files import DataError, check_file, decode_text, non_empty_lines

PIECE = 2**20  # bytes read at a time, about
LONGEST_LINE = 2**24  # bytes


@dataclass
class Source:
    """A text file, and the set of a corpus its lines belong to."""

    file: str
    set: str
    wikitext: bool  # whether its lines need WikiText's repairs
    size: int
    mtime: int  # of its last change, in microseconds

    def describe(self):
        """Return its size and last change, for a message."""
        modified = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.mtime / 1e6))
        return f"{self.size:,} bytes, modified {modified}"


def open_source(file, name, is_wikitext=False):
    """Return the Source of a file. Raises DataError if it is missing, unreadable or empty."""
    check_file(file, math.inf, "give a text file")
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give a text file") from None
    if not status.st_size:
        raise DataError(f"{file}: the file is empty; give a file with text")
    return Source(os.fspath(file), name, is_wikitext, status.st_size, status.st_mtime_ns // 1000)


def find_line_start(file, at):
    """Return the first byte from `at` on where a line begins, or the end of the file."""
    if at <= 0:
        return 0
    file.seek(at - 1)
    rest = file.readline(LONGEST_LINE)
    if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
        raise DataError(
            f"{file.name}: the line around byte {at:,} is longer than {LONGEST_LINE:,} bytes; "
            "break it into lines"
        )
    return max(at, file.tell())  # a file that was cut short meanwhile ends before `at`


def cut_ranges(source, size):
    """Return [(begin, end), ...]: the file in ranges of about `size` bytes, cut between lines."""
    cuts = [0]
    with open(source.file, "rb") as file:
        while cuts[-1] < source.size:
            cuts.append(find_line_start(file, min(cuts[-1] + size, source.size)))
    return list(itertools.pairwise(cuts))


def read_pieces(source, begin, end, size):
    """Yield (position, bytes) of a range, about `size` bytes at a time and always whole lines."""
    with open(source.file, "rb") as file:
        while begin < end:
            stop = find_line_start(file, min(begin + size, end))
            file.seek(begin)
            yield begin, file.read(stop - begin)
            begin = stop


def split_lines(source, at, raw):
    """Return the lines of a piece at byte `at`, as `files.read_non_empty_lines` reads them."""
    text = decode_text(source.file, raw, lambda i: find_line(source.file, at + i))
    if at == 0:
        text = text.removeprefix("\ufeff")
    found = non_empty_lines(text)
    return [wikitext.repair(line) for line in found] if source.wikitext else found


def find_line(path, position):
    """Return the number of the line that a byte is in."""
    line = 1
    with open(path, "rb") as file:
        while raw := file.read(min(PIECE, position)):
            line += raw.count(b"\n")
            position -= len(raw)
    return line


def is_held_out(line, share):
    """Return whether a line is held out for validation, as about `share` of the distinct lines are.

    It depends on the line alone. corpus.hold_out draws an exact share, but needs all lines.
    """
    digest = hashlib.blake2b(normalize(line).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") < share * 2**56


def sample_lines(sources, size, valid):
    """Yield about `size` bytes of lines, spread evenly over the texts, without those held out."""
    found = False
    for source, begin, end in choose_pieces(sources, size):
        for at, raw in read_pieces(source, begin, end, PIECE):
            for line in split_lines(source, at, raw):
                if not (valid and is_held_out(line, valid)):
                    found = True
                    yield line
    if not found:
        raise no_text(sources)


def no_text(sources):
    """Return the DataError for texts without a line to train on."""
    remedy = "give a file with text, or a smaller --valid"
    return DataError(f"{sources[0].file}: holds no text to train on; {remedy}")


def choose_pieces(sources, size):
    """Return [(source, begin, end), ...], about `size` bytes in all, or everything there is."""
    ends = list(itertools.accumulate(source.size for source in sources))
    if ends[-1] <= size:
        return [(source, 0, source.size) for source in sources]
    n, chosen = max(1, size // PIECE), []
    for at in (ends[-1] * k // n for k in range(n)):
        i = bisect.bisect_right(ends, at)
        source, at = sources[i], at - (ends[i] - sources[i].size)
        with open(source.file, "rb") as file:
            begin = find_line_start(file, at)
            end = find_line_start(file, min(at + PIECE, source.size))
        chosen.append((source, begin, end))
    return chosen
