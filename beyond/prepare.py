"""Prepare a text of any size for training: tokens on disk for train_lm.py and train_mlm.py.

    python -m beyond.prepare big.txt more.txt --vocab-size 16000 --out out/big
    python train_lm.py --data out/big --pos alibi
    python -m beyond.prepare --check out/big

The text is never in memory as a whole. If preparing is stopped, the same command continues with the
missing shards. If several processes run it at once, one works and the others wait. --check compares
all checksums.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from data import large, sharding, shards
from data.corpus import check_set_name
from data.download import sha256
from data.files import MEGABYTE, write_whole
from data.locks import wait_for_lock
from data.tokenizer import check_vocab_size, load_tokenizer, train_tokenizer
from lab.command import main
from lab.errors import require
from lab.flags import flag, typed
from lab.live import LiveLine, clock


@dataclass
class Flags:
    text: list[str] = flag(
        None, "UTF-8 text files, or a folder in WikiText's form (train.txt, ...)", positional=True
    )
    out: str = flag("", "folder for the tokens")
    tokenizer: str = flag("bpe", "byte-level BPE, or word level", ("bpe", "word"))
    vocab_size: int = flag(0, "entries of the vocabulary; 0: 4000 BPE pieces, or every word")
    vocab_from: str = flag("", "use this tokenizer.json, or that of a run or prepared folder")
    valid: float = flag(
        None,
        "share of the lines held out as the set `valid`",
        shown="0.01, at most about 1 MB; 0 for a folder with valid.txt",
        at_least=0,
        below=1,
    )
    test: list[str] = flag((), "text file to use as a test set, named after the file")
    sample_mb: float = flag(64, "megabytes of text to make the tokenizer from", above=0)
    shard_mb: float = flag(
        64,
        "megabytes of text per shard, kept in memory and lost when stopped",
        at_least=0.001,
        at_most=1024,
    )
    threads: int = flag(0, "CPU threads", shown="all", at_least=0, at_most=4096)
    overwrite: bool = flag(False, "delete the tokens in --out and start again")
    check: bool = flag(False, "only compare prepared folders with their checksums")


def prepare(flags):
    """Write a prepared folder, or continue with it; with --check, verify the given ones."""
    check_flags(flags)
    if flags.check:
        for folder in map(Path, flags.text):
            index = shards.Prepared(folder, compare_checksums=True).index
            print(f"{shards.summarize(folder, index)}: no file was altered")
        return
    if flags.threads:  # the tokenizers library reads this when it first works in parallel
        os.environ["RAYON_NUM_THREADS"] = str(flags.threads)
    sources = open_sources(flags)
    settings = resolve_settings(flags, sources)
    folder = Path(flags.out)
    require_own(folder)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another process that prepares {folder}"
    try:
        with wait_for_lock(folder, on_wait=lambda: print(waiting, flush=True)):
            sharding.remove_leftovers(folder, flags.overwrite)
            index = sharding.read_begun(folder, settings, sources)
            index = index or begin(folder, flags, settings, sources)
            sharding.finish(folder, index, write_ranges(folder, index))
            print(shards.summarize(folder, index))
    except KeyboardInterrupt:
        print("\ninterrupted; continue with the same command", file=sys.stderr)
        raise SystemExit(130) from None


# ---------------------------------------------------------------------------- flags and files


def check_flags(flags):
    """Raise UserError or DataError for flags that are out of range or exclude each other."""
    asked = typed(flags, "tokenizer", "vocab_size", "sample_mb") if flags.vocab_from else ""
    own = f"--vocab-from {flags.vocab_from}: has its own vocabulary; leave {asked} out"
    is_out = flags.vocab_from and Path(flags.vocab_from).resolve() == Path(flags.out).resolve()
    require(
        (flags.out or flags.check, "--out is missing; give the folder for the tokens"),
        (not asked, own),
        (not is_out, f"--vocab-from {flags.vocab_from}: is also --out; give another --out"),
    )
    check_vocab_size(flags.tokenizer, flags.vocab_size)


def open_sources(flags):
    """Return the Sources, the training text first. Raises DataError for an unusable file and
    UserError for two sets of the same name."""
    sources = []
    for path in map(Path, flags.text):
        if path.is_dir():  # with the names of data/corpora/wikitext.py
            for part in ("train", "valid", "test"):
                name = part if part == "train" else f"wiki-{part}"
                sources.append(large.open_source(path / f"{part}.txt", name, is_wikitext=True))
        else:
            sources.append(large.open_source(path, "train"))
            if path.suffix in (".tsv", ".csv", ".jsonl"):
                print(f"note: {path} is read as plain text: whole lines, with all their columns")
    tests = [large.open_source(path, Path(path).stem) for path in flags.test]
    for test in tests:
        check_set_name(test.set, test.file)
    names = [source.set for source in sources + tests]
    taken = [test.file for test in tests if names.count(test.set) > 1]
    require((not taken, f"--test {' '.join(taken)}: another set has that name; rename the file"))
    return sorted(sources + tests, key=lambda source: source.set != "train")


def resolve_settings(flags, sources):
    """Return {flag: value} of all flags that decide what the shards of these sources hold."""
    valid, size = flags.valid, sum(source.size for source in sources if source.set == "train")
    if valid is None:
        has_valid = any(source.set == "wiki-valid" for source in sources)
        valid = 0.0 if has_valid else min(0.01, MEGABYTE / size)
    names = ("tokenizer", "vocab_size", "sample_mb", "shard_mb")
    settings = {name: getattr(flags, name) for name in names}
    vocab_from = sha256(find_tokenizer(flags.vocab_from)) if flags.vocab_from else ""
    return settings | {"vocab_from": vocab_from, "valid": valid}


def find_tokenizer(vocab_from):
    """Return the path of the tokenizer.json that --vocab-from names. Raises UserError."""
    path = Path(vocab_from) / "tokenizer.json" if Path(vocab_from).is_dir() else Path(vocab_from)
    problem = f"--vocab-from {vocab_from}: no such tokenizer.json"
    require((path.is_file(), f"{problem}; give that file or its folder"))
    return path


def require_own(folder):
    """Raise UserError unless --out is new, empty, or a prepared folder."""
    if not folder.exists():
        return
    require((folder.is_dir(), f"--out {folder}: is a file; choose another folder"))
    # Another process may begin now. It writes .lock first, so ask whether the folder is empty first
    own = not any(folder.iterdir()) or (folder / ".lock").exists() or shards.is_prepared(folder)
    problem = "is not empty and holds no prepared text; choose another folder"
    require((own, f"--out {folder}: {problem}"))


# ---------------------------------------------------------------------------- the tokens


def begin(folder, flags, settings, sources):
    """Make the tokenizer, and return the Index of a new folder without its shards."""
    if flags.vocab_from:
        tokenizer = load_tokenizer(find_tokenizer(flags.vocab_from))
        vocab_size = tokenizer.get_vocab_size()
        print(f"{vocab_size:,} entries in the vocabulary of {flags.vocab_from}", flush=True)
    else:
        started, n_bytes = time.perf_counter(), int(flags.sample_mb * MEGABYTE)
        train = [source for source in sources if source.set == "train"]
        lines = large.sample_lines(train, n_bytes, settings["valid"])
        tokenizer = train_tokenizer(flags.tokenizer, lines, flags.vocab_size)
        vocab_size, size = tokenizer.get_vocab_size(), sum(source.size for source in train)
        unit, name = (MEGABYTE, "MB") if size >= MEGABYTE else (2**10, "kB")
        print(
            f"{vocab_size:,} entries in the vocabulary"
            + ", all the text has," * (vocab_size < flags.vocab_size)
            + f" from {min(n_bytes, size) / unit:,.1f} of {size / unit:,.1f} {name} of text; "
            f"{time.perf_counter() - started:.0f} s",
            flush=True,
        )
    path = folder / "tokenizer.json"
    write_whole(path, tokenizer.to_str(pretty=True).encode())
    dtype = "uint32" if vocab_size > 2**16 else "uint16"
    index = shards.Index(dtype, vocab_size, sha256(path), settings, sources)
    index.write(folder / "plan.json")
    return index


def write_ranges(folder, index):
    """Return the Shards of all ranges of the text, after writing those that are missing."""
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    ranges = sharding.list_ranges(index)
    done = [sharding.find_shards(folder, index, n, part) for n, part in enumerate(ranges)]
    sizes = [end - begin for _, begin, end in ranges]
    there = [size for size, found in zip(sizes, done) if found is not None]
    if there:
        print(f"{len(there)} of {len(ranges)} parts are done; --check verifies them", flush=True)
    progress = Progress(sum(sizes), sum(there))
    for number, part in enumerate(ranges):
        if done[number] is None:
            where = folder, index, tokenizer, number, part
            done[number] = sharding.write_shards(*where, progress.add)
    return [shard for found in done for shard in found]


class Progress:
    """The share that is done: a live line on a terminal, otherwise a line at each tenth."""

    def __init__(self, size, done):
        self.size, self.done, self.before, self.tokens = size, done, done, 0
        self.started, self.live = time.perf_counter(), LiveLine()

    def add(self, n_bytes, tokens):
        """Count another piece."""
        tenth = self.done * 10 // self.size
        self.done, self.tokens = self.done + n_bytes, self.tokens + tokens
        now, is_last = time.perf_counter(), self.done == self.size
        rate = max(1, self.done - self.before) / (now - self.started)
        line = (
            f"{self.done / self.size:6.1%}  {rate / MEGABYTE:5.1f} MB/s  {self.tokens:,} tokens  "
            f"{clock((self.size - self.done) / rate)} left"
        )
        if sys.stderr.isatty():
            self.live.show(line)
            if is_last:
                self.live.clear()
                print(line, file=sys.stderr, flush=True)
        elif self.done * 10 // self.size > tenth:
            print(line, flush=True)


if __name__ == "__main__":
    main(prepare, Flags, __doc__)
