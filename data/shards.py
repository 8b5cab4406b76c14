"""Tokens on disk: the files of a prepared folder, read by memory mapping. sharding.py writes them.

A prepared folder holds

    tokenizer.json     the tokenizer of all ids
    train-00000.bin    ids of one range of one source file, as little-endian uint16 or uint32,
                       without [BOS]; the same for other sets
    index.json         the Index, written last: a folder without it is unfinished
    plan.json          while unfinished: the index without its shards
    00000.done.json    while unfinished: the shards of a finished range

A file gets its name only when it is complete and on disk. A shard depends on nothing but its range
of the source and the tokenizer.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from data.download import sha256
from data.files import MEGABYTE, DataError, read_json, write_json
from data.large import Source
from data.tokenizer import BOS, frame, load_tokenizer

FORMAT, VERSION = "poslab tokens", 1
DTYPES = ("uint16", "uint32")
INDEX_LIMIT = 256 * MEGABYTE
# Checksums are compared at every opening if the shards together are no larger than this.
HASHED_AT_OPENING = 64 * MEGABYTE
RESTORE = "restore the file, or prepare the text again with --overwrite"
REMAKE = "run the same beyond.prepare command again to restore it"


@dataclass
class Shard:
    file: str
    set: str
    source: int  # index of the source
    range: tuple[int, int]  # its bytes in the source
    tokens: int
    bytes: int  # of the text the tokens stand for: UTF-8, and one byte per line end
    sha256: str


@dataclass
class Index:
    dtype: str
    vocab_size: int
    tokenizer_sha256: str
    settings: dict  # the flags that decide what the shards hold
    sources: list[Source]
    shards: list[Shard] = field(default_factory=list)

    def write(self, path):
        """Write index.json or plan.json."""
        write_json(path, {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)})

    def sets(self):
        """Return {set: its shards, in the order of the text}."""
        sets = {}
        for shard in self.shards:
            sets.setdefault(shard.set, []).append(shard)
        return sets


def read_index(path):
    """Return the Index in index.json or plan.json. Raises DataError if the file is not one."""
    value = read_json(path, RESTORE, INDEX_LIMIT)
    if value.pop("format", "") != FORMAT:
        raise DataError(
            f"{path}: not written by beyond.prepare; give a folder it wrote, or another --out"
        )
    if value.pop("version", 0) != VERSION:
        raise DataError(
            f"{path}: written by another version of beyond.prepare; "
            "prepare the text again with --overwrite"
        )
    try:
        value["sources"] = [parse_fields(Source, source) for source in value["sources"]]
        value["shards"] = [parse_shard(shard) for shard in value["shards"]]
        index = parse_fields(Index, value)
        shares = [index.settings[name] for name in ("valid", "shard_mb")]
        if index.dtype not in DTYPES or not all(isinstance(x, (int, float)) for x in shares):
            raise ValueError(f"dtype {index.dtype[:20]}, settings {str(index.settings)[:40]}")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a valid index ({str(error)[:80]}); {RESTORE}") from None
    return index


def parse_shard(value):
    """Return the Shard of a JSON object. Raises KeyError, TypeError or ValueError."""
    shard = parse_fields(Shard, value)
    is_plain_name = Path(shard.file).name == shard.file and shard.file.endswith(".bin")
    if not is_plain_name or shard.tokens < 1 or [type(n) for n in shard.range] != [int, int]:
        raise ValueError(f"shard {shard.file[:40]}")
    shard.range = tuple(shard.range)
    return shard


def parse_fields(cls, value):
    """Return a dataclass made of a JSON object. Raises KeyError, TypeError or ValueError."""
    for entry in dataclasses.fields(cls):
        kind = getattr(entry.type, "__origin__", entry.type)
        if not isinstance(value[entry.name], list if kind is tuple else kind):
            raise ValueError(f"{entry.name} is {str(value[entry.name])[:20]}")
    return cls(**value)


# ---------------------------------------------------------------------------- checking


def shard_size(shard, dtype):
    """Return the bytes that the file of a shard must have."""
    return shard.tokens * np.dtype(dtype).itemsize


def check_files(folder, index, compare_checksums):
    """Raise DataError naming every shard that is missing, truncated or, if compared, altered."""
    wrong = []
    for shard in index.shards:
        path, expected = folder / shard.file, shard_size(shard, index.dtype)
        if not path.is_file():
            wrong.append(f"{path}: is missing; {REMAKE}")
        elif (found := path.stat().st_size) != expected:
            wrong.append(f"{path}: has {found:,} bytes instead of {expected:,}; {REMAKE}")
        elif compare_checksums and sha256(path) != shard.sha256:
            wrong.append(f"{path}: was altered (its checksum differs); delete it and {REMAKE}")
    tokenizer = folder / "tokenizer.json"
    if sha256(tokenizer) != index.tokenizer_sha256:
        wrong.append(f"{tokenizer}: was altered since the text was prepared; {RESTORE}")
    if len(wrong) > 5:
        wrong[5:] = [f"and {len(wrong) - 5} more"]
    if wrong:
        raise DataError("; ".join(wrong))


# ---------------------------------------------------------------------------- reading


def is_prepared(path):
    """Return whether this is a prepared folder, finished or not."""
    return any((Path(path) / name).is_file() for name in ("index.json", "plan.json"))


class Prepared:
    """A prepared folder, open for reading. It has the fields of `streams.Text`, and `settings`.

    Raises DataError if it is missing, unfinished or corrupt. Comparing the checksums of a large
    folder takes minutes, so that is left to `beyond.prepare --check` (see HASHED_AT_OPENING).
    """

    floor, note = {}, ""

    def __init__(self, folder, compare_checksums=False):
        self.folder = folder = Path(folder)
        path = folder / "index.json"
        if not is_prepared(folder):
            raise DataError(f"{folder}: no prepared folder; give one that beyond.prepare wrote")
        if not path.is_file():
            raise DataError(
                f"{folder}: is not completely prepared; run the same beyond.prepare command again, "
                "which continues"
            )
        self.index = index = read_index(path)
        self.name, self.settings = folder.resolve().name, index.settings
        self.tokenizer = load_tokenizer(folder / "tokenizer.json")
        size = sum(shard_size(shard, index.dtype) for shard in index.shards)
        check_files(folder, index, compare_checksums or size <= HASHED_AT_OPENING)
        sets = index.sets()
        if "train" not in sets:
            raise DataError(f"{path}: lists no training text; {RESTORE}")
        if self.tokenizer.get_vocab_size() != index.vocab_size:
            raise DataError(
                f"{path}: has a vocabulary of {index.vocab_size} entries, but tokenizer.json has "
                f"{self.tokenizer.get_vocab_size()}; {RESTORE}"
            )
        self.streams = {
            name: Stream(folder, shards, index.dtype, index.vocab_size)
            for name, shards in sets.items()
        }
        self.sizes = {name: sum(shard.bytes for shard in shards) for name, shards in sets.items()}


class Stream:
    """All tokens of a set after [BOS]: equal to `batching.stream` of the same lines, but on disk.

    stream[a:b] and stream[positions], a LongTensor of any shape, return LongTensors. Only the pages
    they touch are read.
    """

    def __init__(self, folder, shards, dtype, vocab_size):
        self.folder, self.shards, self.vocab_size = folder, shards, vocab_size
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.ends = np.cumsum([shard.tokens for shard in shards])
        self.maps = [np.memmap(folder / shard.file, self.dtype, "r") for shard in shards]

    def __len__(self):
        return 1 + self.ends[-1]

    def __getitem__(self, where):
        if isinstance(where, slice):
            where = torch.arange(*where.indices(len(self)))
        token = where.reshape(-1).numpy() - 1  # -1 is [BOS]
        ids = np.full(token.shape, BOS)
        shard = np.where(token < 0, -1, np.searchsorted(self.ends, token, side="right"))
        for i in np.unique(shard[shard >= 0]):
            here = shard == i
            begin = self.ends[i] - self.shards[i].tokens
            found = self.maps[i][token[here] - begin]
            if found.max() >= self.vocab_size:
                path = self.folder / self.shards[i].file
                raise DataError(
                    f"{path}: holds id {found.max()} of a vocabulary of {self.vocab_size}, "
                    f"so it was altered; delete it and {REMAKE}"
                )
            ids[here] = found
        return torch.from_numpy(ids).reshape(where.shape)

    def bincount(self, minlength):
        """Return how often each id occurs in the stream, as torch.bincount does."""
        parts = (self[at : at + 2**20] for at in range(0, len(self), 2**20))
        return sum(part.bincount(minlength=minlength) for part in parts)


class Blocks:
    """A Stream as sequences for an encoder, each framed as in `batching.sentences`.

    Lines run on from one block of block_size tokens to the next (RoBERTa's full sentences, Liu et
    al. 2019, section 4.2). The last block may be shorter.
    """

    def __init__(self, stream, tokenizer, block_size):
        self.stream, self.tokenizer = stream, tokenizer
        self.room = block_size - len(frame(tokenizer, []))
        self.tokens = len(stream) - 1

    def __len__(self):
        return math.ceil(self.tokens / self.room)

    def __getitem__(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        begin = 1 + int(i) * self.room
        return torch.tensor(frame(self.tokenizer, self.stream[begin : begin + self.room].tolist()))


def summarize(folder, index):
    """Return the tokens of each set of a prepared folder, for printing."""
    words = []
    for name, shards in index.sets().items():
        tokens = sum(shard.tokens for shard in shards)
        bytes_each = sum(shard.bytes for shard in shards) / tokens
        words.append(f"{name} {tokens:,} tokens ({bytes_each:.2f} bytes each)")
    return f"{', '.join(words)}; {len(index.shards)} shards in {folder}"
