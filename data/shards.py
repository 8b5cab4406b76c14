"""Tokens on disk: shard files of ids and an index, written by prepare.py and read by memory mapping.

A prepared folder holds

    tokenizer.json     the tokenizer all ids are of
    train-00000.bin    ids of one range of one source file, uint16 or uint32 in little-endian order, without [BOS];
                       other sets alike
    index.json         what there is: see `Index`. Written last; a folder without it is unfinished
    plan.json          while unfinished: the index without its shards
    00000.done.json    while unfinished: the shards of a range that is done

Every file gets its name when it is whole and on disk. A shard depends on its range of the source and the tokenizer alone.
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from data.download import sha256
from data.files import MEGABYTE, DataError, read_json, write_whole
from data.large import Source
from data.tokenizer import BOS, frame, load_tokenizer

FORMAT, VERSION = "poslab tokens", 1
DTYPES = ("uint16", "uint32")
INDEX_LIMIT = 256 * MEGABYTE
# Shards no larger than this together are compared with their checksums whenever they are opened
HASHED_AT_OPENING = 64 * MEGABYTE
RESTORE = "restore the file, or prepare the text anew with --overwrite"
AGAIN = "run the same prepare.py command again, which makes it anew"


@dataclass
class Shard:
    file: str
    set: str
    source: int  # which of the sources
    range: tuple[int, int]  # of bytes in it
    tokens: int
    bytes: int  # of the text the tokens stand for, in UTF-8, a byte for each line end
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
        write_json(path, {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)})


def write_json(path, value):
    write_whole(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_index(path):
    """The Index in index.json or plan.json. DataError when the file is none."""
    value = read_json(path, RESTORE, INDEX_LIMIT)
    if value.pop("format", "") != FORMAT:
        raise DataError(
            f"{path}: not written by prepare.py; give a folder it wrote, or prepare the text into another --out"
        )
    if value.pop("version", 0) != VERSION:
        raise DataError(
            f"{path}: of another version of prepare.py; prepare the text anew with --overwrite"
        )
    try:
        value |= {
            "sources": [typed(Source, source) for source in value["sources"]],
            "shards": [typed(Shard, shard) for shard in value["shards"]],
        }
        return typed(Index, value)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not an index ({str(error)[:80]}); {RESTORE}") from None


def read_shards(path):
    """The list of Shards in a .done.json."""
    try:
        return [
            typed(Shard, shard) for shard in read_json(path, f"delete it and {AGAIN}")["shards"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a list of shards ({str(error)[:80]}); delete it and {AGAIN}"
        ) from None


def typed(cls, value):
    """A dataclass from a JSON object whose values are of its types. ValueError or TypeError otherwise."""
    for entry in dataclasses.fields(cls):
        kind = getattr(entry.type, "__origin__", entry.type)
        if not isinstance(value[entry.name], (list, tuple) if kind in (list, tuple) else kind):
            raise ValueError(f"{entry.name} is {str(value[entry.name])[:20]}")
    made = cls(**value)
    if cls is Shard:
        if (
            Path(made.file).name != made.file
            or not made.file.endswith(".bin")
            or made.tokens < 1
            or [type(n) for n in made.range] != [int, int]
        ):
            raise ValueError(f"shard {made.file[:40]}")
        made.range = tuple(made.range)
    if cls is Index and made.dtype not in DTYPES:
        raise ValueError(f"dtype {made.dtype[:20]}")
    if cls is Index and not all(
        isinstance(made.settings[name], (int, float)) for name in ("valid", "shard_mb")
    ):
        raise ValueError("settings")
    return made


# ---------------------------------------------------------------------------- writing


class Writer:
    """One shard file, written piece by piece; nothing has its name before `close`."""

    def __init__(self, folder, name, dtype):
        self.path, self.dtype, self.hash = Path(folder) / name, dtype, hashlib.sha256()
        self.partial = self.path.with_name(name + ".partial")
        self.file, self.tokens, self.bytes = open(self.partial, "wb"), 0, 0

    def add(self, ids, n_bytes):
        """ids: an array of any integer type; n_bytes: of the text they are of."""
        raw = ids.astype(np.dtype(self.dtype).newbyteorder("<")).tobytes()
        self.file.write(raw)
        self.hash.update(raw)
        self.tokens, self.bytes = self.tokens + len(ids), self.bytes + n_bytes

    def close(self, name, source, begin, end):
        """[the Shard]; [] and no file when nothing was added."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        if not self.tokens:
            self.partial.unlink()
            return []
        os.replace(self.partial, self.path)
        return [
            Shard(
                self.path.name,
                name,
                source,
                (begin, end),
                self.tokens,
                self.bytes,
                self.hash.hexdigest(),
            )
        ]


# ---------------------------------------------------------------------------- checking


def size_of(shard, dtype):
    return shard.tokens * np.dtype(dtype).itemsize


def is_whole(folder, shard, dtype):
    """Whether the shard's file is there with its size."""
    path = Path(folder) / shard.file
    return path.is_file() and path.stat().st_size == size_of(shard, dtype)


def check(folder, index, contents):
    """DataError that names each shard whose file is missing, cut short, or (with `contents`: their checksums are
    compared) altered."""
    folder, wrong = Path(folder), []
    for shard in index.shards:
        path = folder / shard.file
        if not path.is_file():
            wrong.append(f"{path}: is missing; {AGAIN}")
        elif not is_whole(folder, shard, index.dtype):
            wrong.append(
                f"{path}: has {path.stat().st_size:,} bytes instead of {size_of(shard, index.dtype):,}; {AGAIN}"
            )
        elif contents and sha256(path) != shard.sha256:
            wrong.append(
                f"{path}: was altered since it was written (its checksum differs); delete it and {AGAIN}"
            )
    if sha256(folder / "tokenizer.json") != index.tokenizer_sha256:
        wrong.append(
            f"{folder / 'tokenizer.json'}: was altered since the text was prepared; {RESTORE}"
        )
    if wrong:
        raise DataError(
            "; ".join(wrong[:5]) + (f"; and {len(wrong) - 5} more" if wrong[5:] else "")
        )


# ---------------------------------------------------------------------------- reading


def is_prepared(path):
    """Whether this is a folder of prepare.py, finished or not."""
    return any((Path(path) / name).is_file() for name in ("index.json", "plan.json"))


class Prepared:
    """A prepared folder, open for reading: `tokenizer`, `streams` {set: Stream}, `bytes` {set: bytes of its text},
    `settings` of prepare.py.

    DataError when it is unfinished or damaged. Sizes are compared at every opening; checksums only of small folders (see
    HASHED_AT_OPENING), since reading all of a large one takes minutes: `prepare.py --check` does it.
    """

    def __init__(self, folder):
        folder = Path(folder)
        if not (folder / "index.json").is_file():
            raise DataError(
                f"{folder}: is not prepared to the end; run the same prepare.py command again, "
                "which goes on where it was"
            )
        index = read_index(folder / "index.json")
        self.name, self.tokenizer, self.settings = (
            folder.resolve().name,
            load_tokenizer(folder / "tokenizer.json"),
            index.settings,
        )
        check(
            folder,
            index,
            sum(size_of(shard, index.dtype) for shard in index.shards) <= HASHED_AT_OPENING,
        )
        sets = {}
        for shard in index.shards:
            sets.setdefault(shard.set, []).append(shard)
        if "train" not in sets:
            raise DataError(f"{folder / 'index.json'}: lists no training text; {RESTORE}")
        if self.tokenizer.get_vocab_size() != index.vocab_size:
            raise DataError(
                f"{folder / 'index.json'}: is of a vocabulary of {index.vocab_size} entries, and "
                f"tokenizer.json has {self.tokenizer.get_vocab_size()}; {RESTORE}"
            )
        self.streams = {
            name: Stream(folder, shards, index.dtype, index.vocab_size)
            for name, shards in sets.items()
        }
        self.bytes = {name: sum(shard.bytes for shard in shards) for name, shards in sets.items()}


class Stream:
    """All tokens of a set in order, [BOS] in front: what `batching.stream` gives of the same lines, without being in memory.

    stream[a:b] and stream[positions], a LongTensor of any shape, are LongTensors. Only the pages they touch are read.
    """

    def __init__(self, folder, shards, dtype, vocab_size):
        self.folder, self.shards, self.vocab_size = Path(folder), shards, vocab_size
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.ends = np.cumsum([0, *(shard.tokens for shard in shards)])[1:]
        self.maps = [None] * len(shards)

    def __len__(self):
        return 1 + int(self.ends[-1])

    def __getitem__(self, where):
        if isinstance(where, slice):
            where = torch.arange(*where.indices(len(self)))
        token = where.reshape(-1).numpy() - 1  # -1: [BOS]
        ids = np.full(token.shape, BOS)
        shard = np.where(token < 0, -1, np.searchsorted(self.ends, token, side="right"))
        for i in np.unique(shard[shard >= 0]):
            here = shard == i
            ids[here] = self.map(i)[token[here] - (self.ends[i] - self.shards[i].tokens)]
            self.require_known(i, ids[here])
        return torch.from_numpy(ids).reshape(where.shape)

    def map(self, i):
        """The ids of shard i as an array that lies on disk."""
        if self.maps[i] is None:
            self.maps[i] = np.memmap(self.folder / self.shards[i].file, self.dtype, "r")
        return self.maps[i]

    def require_known(self, i, ids):
        if ids.max() >= self.vocab_size:
            raise DataError(
                f"{self.folder / self.shards[i].file}: holds id {ids.max()} of a vocabulary of "
                f"{self.vocab_size}, so it was altered; delete it and {AGAIN}"
            )

    def bincount(self, minlength):
        """(V,): how often each id stands in the stream."""
        counts = np.bincount([BOS], minlength=minlength)
        for i, shard in enumerate(self.shards):
            for at in range(0, shard.tokens, 2**20):
                ids = self.map(i)[at : at + 2**20]
                self.require_known(i, ids)
                counts += np.bincount(ids, minlength=minlength)
        return torch.from_numpy(counts)


class Blocks:
    """A stream as sequences of block_size tokens for an encoder, each framed as `batching.sentences` frames a line; the
    last may be shorter.

    Lines run on from one block to the next (RoBERTa's full sentences, Liu et al. 2019, section 4.2).
    """

    def __init__(self, stream, tokenizer, block_size):
        self.stream, self.tokenizer, self.room, self.tokens = (
            stream,
            tokenizer,
            block_size - len(frame(tokenizer, [])),
            len(stream) - 1,
        )

    def __len__(self):
        return -(-self.tokens // self.room)

    def __getitem__(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        begin = 1 + int(i) * self.room
        return torch.tensor(frame(self.tokenizer, self.stream[begin : begin + self.room].tolist()))
