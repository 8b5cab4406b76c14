"""Write the shards of a prepared folder (see shards.py), one range of a source file at a time."""

import hashlib
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from data import large, shards
from data.download import sha256
from data.files import MEGABYTE, DataError, read_json, write_json, write_whole
from data.tokenizer import encode

# Every file that a prepared folder can hold
OWN_FILES = re.compile(r"(index|plan|tokenizer|\d+\.done)\.json|.+-\d{5,}\.bin|.+\.partial")


def list_ranges(index):
    """Return [(source number, begin, end), ...], the ranges of all sources."""
    size = int(index.settings["shard_mb"] * MEGABYTE)
    return [
        (i, begin, end)
        for i, source in enumerate(index.sources)
        for begin, end in large.cut_ranges(source, size)
    ]


def find_shards(folder, index, number, part):
    """Return the Shards of range `number`, or None if a file of theirs is missing or corrupt.

    part: (source number, begin, end).
    """
    path = folder / f"{number:05}.done.json"
    if path.is_file():
        try:
            found = [shards.parse_shard(shard) for shard in read_json(path, "")["shards"]]
        except (KeyError, TypeError, ValueError):  # DataError is a ValueError
            return None
    elif index.shards:  # a finished folder that may have lost a file
        found = [shard for shard in index.shards if (shard.source, *shard.range) == part]
    else:
        return None
    for shard in found:
        file = folder / shard.file
        if not file.is_file() or file.stat().st_size != shards.shard_size(shard, index.dtype):
            return None
    return found


def write_shards(folder, index, tokenizer, number, part, on_progress):
    """Tokenize range `number` of the text; write and return its Shards, one per set.

    on_progress(bytes, tokens) is called after every piece. Raises DataError if the source changes.
    """
    i, begin, end = part
    source, dtype = index.sources[i], np.dtype(index.dtype).newbyteorder("<")
    share = index.settings["valid"] if source.set == "train" else 0
    pieces = {name: [] for name in ([source.set, "valid"] if share else [source.set])}

    def tokenize(at, raw):
        """Return (bytes read, {set: (ids, bytes of their text)})."""
        sets = {name: [] for name in pieces}
        for line in large.split_lines(source, at, raw):
            held_out = share and large.is_held_out(line, share)
            sets["valid" if held_out else source.set].append(line + "\n")
        encoded = {}
        for name, lines in sets.items():
            ids = np.array([i for line in encode(tokenizer, lines) for i in line], dtype)
            encoded[name] = ids, len("".join(lines).encode())
        return len(raw), encoded

    for n_bytes, encoded in map_ahead(tokenize, large.read_pieces(source, begin, end, large.PIECE)):
        for name, piece in encoded.items():
            pieces[name].append(piece)
        on_progress(n_bytes, sum(len(ids) for ids, _ in encoded.values()))
    if large.open_source(source.file, source.set, source.wikitext) != source:
        raise DataError(
            f"{source.file}: was changed while it was prepared; start again with --overwrite"
        )
    written = []
    for name, found in pieces.items():
        ids = np.concatenate([ids for ids, _ in found], dtype=dtype)  # little-endian
        if len(ids):
            file = f"{name}-{number:05}.bin"
            write_whole(folder / file, ids.data)
            about = len(ids), sum(n for _, n in found), hashlib.sha256(ids.data).hexdigest()
            written.append(shards.Shard(file, name, i, (begin, end), *about))
    write_json(folder / f"{number:05}.done.json", {"shards": [vars(shard) for shard in written]})
    return written


def map_ahead(function, items):
    """Yield function(*item) for each item in order; two threads work up to 4 items ahead.

    While the tokenizers library encodes one piece on all cores, others are read, split and written.
    """
    with ThreadPoolExecutor(2) as pool:
        waiting = deque()
        for item in items:
            waiting.append(pool.submit(function, *item))
            if len(waiting) == 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# ---------------------------------------------------------------------------- the folder


def remove_leftovers(folder, overwrite):
    """Delete partial files, and all prepared files when overwriting or if none was begun."""
    begun = shards.is_prepared(folder) and not overwrite
    # index.json first: without it, no script reads the others
    for path in sorted(folder.iterdir(), key=lambda path: path.name != "index.json"):
        if OWN_FILES.fullmatch(path.name) and (path.suffix == ".partial" or not begun):
            path.unlink()


def read_begun(folder, settings, sources):
    """Return the Index of a folder that was begun, None if it was not.

    Raises DataError if it was begun with other settings or texts, or if a file was changed since.
    """
    if not shards.is_prepared(folder):
        return None
    path, plan = folder / "index.json", folder / "plan.json"
    index = shards.read_index(path if path.is_file() else plan)
    if [(s.set, s.wikitext) for s in sources] != [(s.set, s.wikitext) for s in index.sources]:
        texts = " ".join(source.file for source in index.sources)
        raise DataError(
            f"--out {folder}: was begun with other texts ({texts}); give the same, or another --out"
        )
    for now, then in zip(sources, index.sources):
        if (now.size, now.mtime) != (then.size, then.mtime):
            raise DataError(
                f"{now.file}: has changed since {folder} was begun (then {then.describe()}, "
                f"now {now.describe()}); restore it, or start again with --overwrite"
            )
    changed = [
        f"--{name.replace('_', '-')} {index.settings.get(name)!r}"
        for name in settings
        if settings[name] != index.settings.get(name)
    ]
    if changed:
        raise DataError(
            f"--out {folder}: was begun with {', '.join(changed)}; give the same, "
            "choose another --out, or start again with --overwrite"
        )
    tokenizer = folder / "tokenizer.json"
    if sha256(tokenizer) != index.tokenizer_sha256:
        raise DataError(
            f"{tokenizer}: was altered since {folder} was begun; "
            "restore it, or start again with --overwrite"
        )
    return index


def finish(folder, index, written):
    """Write index.json with all shards, and remove what only an unfinished folder needs.

    Raises DataError without training text, and if a restored shard differs from the lost one.
    """
    if not any(shard.set == "train" for shard in written):
        raise large.no_text(index.sources)
    if index.shards and written != index.shards:
        raise DataError(
            f"{folder}: a restored shard differs from the lost one, so the libraries have changed; "
            "prepare the text again with --overwrite"
        )
    index.shards = written
    index.write(folder / "index.json")
    for path in [folder / "plan.json", *folder.glob("*.done.json")]:
        path.unlink(missing_ok=True)
