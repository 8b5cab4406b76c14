"""Prepare a text of any size for training: tokens on disk, which train_lm.py and train_mlm.py read without loading them.

    python -m beyond.prepare big.txt more.txt --vocab-size 16000 --out out/big
    python train_lm.py --data out/big --pos alibi

The text is never in memory as a whole. Stopped at any moment, the same command goes on with the shards that are missing;
any number of processes may give it at once, and one of them works. `python -m beyond.prepare --check out/big` compares every
shard with its checksum.
"""

import itertools
import os
import re
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import large, shards
from data.download import sha256
from data.files import MEGABYTE, DataError, alone, write_whole
from data.tokenizer import check_vocab_size, encode, load_tokenizer, train_tokenizer
from lab.command import main
from lab.errors import UserError, require
from lab.flags import flag
from lab.machine import clock

OURS = re.compile(
    r"(index|plan|tokenizer|\d+\.done)\.json|.+-\d{5,}\.bin|.+\.partial"
)  # what a prepared folder holds


@dataclass
class Flags:
    text: list[str] = flag(
        None,
        "UTF-8 text files, or a folder of train.txt, valid.txt and test.txt (WikiText's form)",
        positional=True,
    )
    out: str = flag("", "folder for the tokens")
    tokenizer: str = flag("bpe", "byte-level BPE, or word level", ("bpe", "word"))
    vocab_size: int = flag(
        0, "size of the vocabulary; 0: 4000 BPE pieces, or every word of the sample"
    )
    vocab_from: str = flag(
        "",
        "tokenizer.json, or folder with one (of a run, or prepared), to use instead of making a "
        "tokenizer",
    )
    valid: float = flag(
        None,
        "share of the lines held out as the set `valid` (default: 0.01, at most about a megabyte; "
        "0 for a folder with valid.txt)",
    )
    test: list[str] = flag((), "text file that becomes a test set of its name")
    sample_mb: float = flag(
        64, "megabytes, spread over the whole text, that the tokenizer is made from"
    )
    shard_mb: float = flag(
        64, "megabytes of text a shard; what is lost when the command is stopped"
    )
    threads: int = flag(0, "CPU threads; 0: all")
    overwrite: bool = flag(False, "delete the tokens in --out and start anew")
    check: bool = flag(False, "only compare prepared folders with their checksums")


def prepare(flags):
    check(flags)
    if flags.check:
        for folder in flags.text:
            print(verify(Path(folder)))
        return
    if flags.threads:
        os.environ["RAYON_NUM_THREADS"] = str(
            flags.threads
        )  # read by the tokenizers library when it first works in parallel
    folder, sources = Path(flags.out), texts(flags)
    settings = settings_of(flags, sources)
    require(
        (
            not folder.exists() or folder.is_dir(),
            f"--out {folder}: is a file; choose another folder",
        )
    )
    require(
        (
            not folder.exists()
            or (folder / ".lock").exists()
            or shards.is_prepared(folder)
            or not any(folder.iterdir()),
            f"--out {folder}: is not empty and holds no prepared text; choose another folder",
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone(
            folder,
            wait=lambda: print(f"waiting for another process that prepares {folder}", flush=True),
        ):
            index, tokenizer = begin(folder, flags, settings, sources)
            print(finish(folder, index, write_shards(folder, index, tokenizer)))
    except KeyboardInterrupt:
        print(
            "\ninterrupted; the same command goes on with the shards that are missing",
            file=sys.stderr,
        )
        raise SystemExit(130) from None


def check(flags):
    require(
        (flags.out or flags.check, "--out is missing; give the folder for the tokens"),
        (
            flags.valid is None or 0 <= flags.valid < 1,
            f"--valid must be at least 0 and below 1, got {flags.valid}",
        ),
        (flags.sample_mb > 0, f"--sample-mb must be above 0, got {flags.sample_mb}"),
        (flags.shard_mb >= 0.001, f"--shard-mb must be at least 0.001, got {flags.shard_mb}"),
        (flags.threads >= 0, f"--threads must not be negative, got {flags.threads}"),
        (
            not flags.vocab_from
            or (flags.tokenizer, flags.vocab_size) == (Flags.tokenizer, Flags.vocab_size),
            f"--vocab-from {flags.vocab_from}: brings its vocabulary along; leave --tokenizer and --vocab-size out",
        ),
    )
    check_vocab_size(flags.tokenizer, flags.vocab_size)


def texts(flags):
    """The Sources, training text first. DataError for a file that cannot be used."""
    sources = []
    for name in flags.text:
        if Path(name).is_dir():
            # As data/wikitext.py calls them
            for part, its_set in (
                ("train", "train"),
                ("valid", "wiki-valid"),
                ("test", "wiki-test"),
            ):
                sources.append(
                    large.open_source(Path(name) / f"{part}.txt", its_set, is_wikitext=True)
                )
        else:
            sources.append(large.open_source(name, "train"))
            if Path(name).suffix in (".tsv", ".csv", ".jsonl"):
                print(
                    f"note: {name} is read as plain text, every line whole, with all that separates its columns"
                )
    sources += [large.open_source(name, Path(name).stem) for name in flags.test]
    names = [source.set for source in sources if source.set != "train"]
    taken = [
        source.file
        for source in sources[len(sources) - len(flags.test) :]
        if source.set in ("train", "valid") or names.count(source.set) > 1
    ]
    require((not taken, f"--test {' '.join(taken)}: another set has that name; rename the file"))
    return sorted(sources, key=lambda source: source.set != "train")


def settings_of(flags, sources):
    """What decides, with the sources, what the shards hold; named as the flags."""
    size = sum(source.size for source in sources if source.set == "train")
    valid = flags.valid
    if valid is None:
        valid = (
            0.0
            if any(source.set == "wiki-valid" for source in sources)
            else min(0.01, MEGABYTE / size)
        )
    vocab_from = sha256(tokenizer_file(flags)) if flags.vocab_from else ""
    return dict(
        tokenizer=flags.tokenizer,
        vocab_size=flags.vocab_size,
        vocab_from=vocab_from,
        valid=valid,
        sample_mb=flags.sample_mb,
        shard_mb=flags.shard_mb,
    )


def tokenizer_file(flags):
    path = Path(flags.vocab_from)
    path = path / "tokenizer.json" if path.is_dir() else path
    require(
        (
            path.is_file(),
            f"--vocab-from {flags.vocab_from}: no such tokenizer.json; give that file, or a run folder with one",
        )
    )
    return path


def begin(folder, flags, settings, sources):
    """(Index, tokenizer): what the folder was begun with, or a new one. UserError when that was something else."""
    found = next(
        (folder / name for name in ("index.json", "plan.json") if (folder / name).is_file()), None
    )
    for path in sorted(folder.iterdir()):  # index.json first: without it, nobody reads the others
        if OURS.fullmatch(path.name) and (
            flags.overwrite or not found or path.suffix == ".partial"
        ):
            path.unlink()
    if found and not flags.overwrite:
        index = shards.read_index(found)
        require_same(folder, index, settings, sources)
        return index, load_tokenizer(folder / "tokenizer.json")

    train, started = [source for source in sources if source.set == "train"], time.perf_counter()
    size = sum(source.size for source in train)
    if flags.vocab_from:
        tokenizer = load_tokenizer(tokenizer_file(flags))
        print(
            f"{tokenizer.get_vocab_size():,} entries in the vocabulary of {flags.vocab_from}",
            flush=True,
        )
    else:
        lines = large.sample(train, int(flags.sample_mb * MEGABYTE), settings["valid"])
        tokenizer = train_tokenizer(flags.tokenizer, nonempty(lines, train), flags.vocab_size)
        unit, name = (MEGABYTE, "MB") if size >= MEGABYTE else (2**10, "kB")
        print(
            f"{tokenizer.get_vocab_size():,} entries in the vocabulary"
            + ", all that the text has," * (tokenizer.get_vocab_size() < flags.vocab_size)
            + f" from {min(flags.sample_mb * MEGABYTE, size) / unit:,.1f} of {size / unit:,.1f} {name} of text; "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    write_whole(folder / "tokenizer.json", tokenizer.to_str(pretty=True).encode())
    dtype = shards.DTYPES[tokenizer.get_vocab_size() > 2**16]
    index = shards.Index(
        dtype, tokenizer.get_vocab_size(), sha256(folder / "tokenizer.json"), settings, sources
    )
    index.write(folder / "plan.json")
    return index, tokenizer


def nonempty(lines, sources):
    """The same lines. DataError when there are none."""
    first = next(lines, None)
    if first is None:
        raise DataError(
            f"{sources[0].file}: holds no text to train on; give a file with text, or a smaller --valid"
        )
    return itertools.chain([first], lines)


def require_same(folder, index, settings, sources):
    if [(source.set, source.wikitext) for source in sources] != [
        (source.set, source.wikitext) for source in index.sources
    ]:
        raise UserError(
            f"--out {folder}: was begun with other texts "
            f"({' '.join(source.file for source in index.sources)}); give the same, or another --out"
        )
    for now, then in zip(sources, index.sources):
        if (now.size, now.mtime) != (then.size, then.mtime):
            raise DataError(
                f"{now.file}: has changed since {folder} was begun ({then.size:,} bytes then, {now.size:,} now, "
                f"modified {stamp(then)}, now {stamp(now)}); restore it, or start anew with --overwrite"
            )
    changed = [
        f"--{name.replace('_', '-')} {index.settings.get(name)!r}"
        for name in settings
        if settings[name] != index.settings.get(name)
    ]
    require(
        (
            not changed,
            f"--out {folder}: was begun with {', '.join(changed)}; give the same, choose another --out, "
            "or start anew with --overwrite",
        )
    )
    if sha256(folder / "tokenizer.json") != index.tokenizer_sha256:
        raise DataError(
            f"{folder / 'tokenizer.json'}: was altered since {folder} was begun; restore it, "
            "or start anew with --overwrite"
        )


def stamp(source):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(source.mtime / 1e6))


def write_shards(folder, index, tokenizer):
    """All shards of the index's sources, those that are not there yet being written."""
    parts = [
        (i, *part)
        for i, source in enumerate(index.sources)
        for part in large.ranges(source, int(index.settings["shard_mb"] * MEGABYTE))
    ]
    done = [done_before(folder, index, number, part) for number, part in enumerate(parts)]
    live = Live(
        sum(end - begin for _, begin, end in parts),
        sum(end - begin for (_, begin, end), there in zip(parts, done) if there is not None),
    )
    if any(there is not None for there in done):
        print(
            f"{sum(there is not None for there in done)} of {len(parts)} parts are done already and of the right size; "
            "--check reads them whole",
            flush=True,
        )
    for number, (i, begin, end) in enumerate(parts):
        if done[number] is None:
            done[number] = write_part(folder, index, tokenizer, number, i, begin, end, live)
            shards.write_json(
                folder / f"{number:05}.done.json",
                {"shards": [vars(shard) for shard in done[number]]},
            )
    return [shard for part in done for shard in part]


def done_before(folder, index, number, part):
    """The shards of a part if all of them are there, else None."""
    path, there = folder / f"{number:05}.done.json", None
    if path.is_file():
        there = shards.read_shards(path)
    elif index.shards:  # a finished folder of which a file may be lost
        there = [shard for shard in index.shards if (shard.source, *shard.range) == part]
    return (
        there
        if there is not None and all(shards.is_whole(folder, shard, index.dtype) for shard in there)
        else None
    )


def write_part(folder, index, tokenizer, number, i, begin, end, live):
    """Tokenise one range of one source. While the library encodes a piece on all cores, others are read, split into lines
    and written."""
    source, valid = index.sources[i], index.settings["valid"]
    names = ["train", "valid"] if source.set == "train" and valid else [source.set]
    writers = {
        name: shards.Writer(folder, f"{name}-{number:05}.bin", index.dtype) for name in names
    }

    def tokenise(at, raw):
        sets = {name: [] for name in names}
        for line in large.lines(source, at, raw):
            sets[
                "valid" if len(names) == 2 and large.is_held_out(line, valid) else source.set
            ].append(line + "\n")
        tokens = {}
        for name, some in sets.items():
            ids = [id for ids in encode(tokenizer, some) for id in ids]
            tokens[name] = np.array(ids, dtype=np.uint32), len("".join(some).encode())
        return len(raw), tokens

    with ThreadPoolExecutor(2) as pool:
        waiting = deque()
        for piece in itertools.chain(large.pieces(source, begin, end, large.PIECE), [None] * 3):
            if piece:
                waiting.append(pool.submit(tokenise, *piece))
            if waiting and (len(waiting) > 3 or not piece):
                n_bytes, sets = waiting.popleft().result()
                for name, (ids, its_bytes) in sets.items():
                    writers[name].add(ids, its_bytes)
                live.add(n_bytes, sum(len(ids) for ids, _ in sets.values()))
    now = large.open_source(source.file, source.set)
    if (now.size, now.mtime) != (source.size, source.mtime):
        raise DataError(
            f"{source.file}: was changed while it was being prepared; start anew with --overwrite"
        )
    return [
        shard for name, writer in writers.items() for shard in writer.close(name, i, begin, end)
    ]


def finish(folder, index, written):
    """Write index.json and remove what only an unfinished folder needs. Returns what to say."""
    if not any(shard.set == "train" for shard in written):
        raise DataError(
            f"{index.sources[0].file}: holds no text to train on; give a file with text, or a smaller --valid"
        )
    if index.shards and written != index.shards:
        raise DataError(
            f"{folder}: a shard made anew differs from the one it held, so the libraries have changed; "
            "prepare the text anew with --overwrite"
        )
    index.shards = written
    index.write(folder / "index.json")
    for path in [folder / "plan.json", *folder.glob("*.done.json")]:
        path.unlink(missing_ok=True)
    return describe(folder, index)


def verify(folder):
    require(
        (
            shards.is_prepared(folder),
            f"--check {folder}: no prepared folder; give one prepare.py wrote",
        )
    )
    shards.Prepared(folder)
    index = shards.read_index(folder / "index.json")
    shards.check(folder, index, contents=True)
    return describe(folder, index) + ": every file is as it was written"


def describe(folder, index):
    sets = {}
    for shard in index.shards:
        tokens, n_bytes = sets.get(shard.set, (0, 0))
        sets[shard.set] = tokens + shard.tokens, n_bytes + shard.bytes
    return (
        ", ".join(
            f"{name} {tokens:,} tokens ({n_bytes / tokens:.2f} bytes each)"
            for name, (tokens, n_bytes) in sets.items()
        )
        + f"; {len(index.shards)} shards in {folder}"
    )


class Live:
    """How far it is: one live line on a terminal, else a plain line at each tenth."""

    def __init__(self, size, done):
        self.size, self.done, self.before, self.tokens = size, done, done, 0
        self.started = self.shown = time.perf_counter()

    def add(self, n_bytes, tokens):
        tenth, self.done, self.tokens = (
            self.done * 10 // self.size,
            self.done + n_bytes,
            self.tokens + tokens,
        )
        now, last = time.perf_counter(), self.done == self.size
        rate = (self.done - self.before) / (now - self.started)
        line = (
            f"{self.done / self.size:6.1%}  {rate / MEGABYTE:5.1f} MB/s  {self.tokens:,} tokens  "
            f"{clock((self.size - self.done) / rate)} left"
        )
        if sys.stderr.isatty():
            if now - self.shown > 0.2 or last:
                self.shown = now
                print(f"\r{line} ", end="\n" if last else "", file=sys.stderr, flush=True)
        elif self.done * 10 // self.size > tenth:
            print(line, flush=True)


if __name__ == "__main__":
    main(prepare, Flags, __doc__.split("\n")[0])
