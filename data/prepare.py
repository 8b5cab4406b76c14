"""Prepare a large text: its tokens on disk, for train_lm.py and train_mlm.py.

    python -m data.prepare big.txt more.txt --vocab-size 16000 --out out/big
    python train_lm.py --data out/big --pos alibi

Writes for each set a file of little-endian integers, [BOS] and then all tokens; tokenizer.json; and
at the end meta.json, without which a folder is not complete. No text is in memory as a whole.
"""

import hashlib
import sys
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from tqdm import tqdm

from data.corpora import check_set_name
from data.corpus import normalize
from data.files import UserError, decode, sha256, whole_file, write_json, write_text
from data.tokenizer import BOS, encode, load_tokenizer, train_tokenizer

SAMPLE = 64 * 2**20  # bytes of text, about, of which the tokenizer is made


@dataclass
class Flags:
    text: tyro.conf.Positional[list[Path]]  # UTF-8 text files
    out: Path  # folder for the tokens
    tokenizer: Literal["bpe", "word"] = "bpe"  # byte-level BPE, or word level
    vocab_size: int = 0  # entries of the vocabulary; 0: 4000 BPE pieces, or every word
    vocab_from: Path | None = None  # a run or prepared folder whose tokenizer to use
    valid: float | None = None  # share of lines held out as `valid`; default: 0.01, at most 1 MB
    test: tyro.conf.UseAppendAction[list[Path]] = field(default_factory=list)  # text of a test set


def prepare(flags):
    """Write a prepared folder. Raises UserError for unusable files, and if --out is not empty."""
    folder, size = flags.out.expanduser(), 0
    for path in [*(flags.text or [Path("TEXT")]), *flags.test]:
        if not (path.is_file() and path.stat().st_size):
            raise UserError(f"{path}: no such file, or an empty one; give a file with text")
        size += path.stat().st_size if path in flags.text else 0
    for path in flags.test:
        check_set_name(path.stem, path)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"--out {folder}: is not empty; choose another folder")
    valid = min(0.01, 2**20 / size) if flags.valid is None else flags.valid

    def training(held_out=False):
        lines = chain.from_iterable(map(read_lines, flags.text))
        return (line for line in lines if is_held_out(line, valid) == held_out)

    if flags.vocab_from:
        tokenizer = load_tokenizer(flags.vocab_from.expanduser() / "tokenizer.json")
    else:
        sample = islice(training(), 0, None, 1 + size // SAMPLE)
        tokenizer = train_tokenizer(flags.tokenizer, sample, flags.vocab_size)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    dtype = "<u4" if tokenizer.get_vocab_size() > 2**16 else "<u2"
    sets = {"train": training()} | ({"valid": training(held_out=True)} if valid else {})
    sets |= {path.stem: read_lines(path) for path in flags.test}
    meta = {"dtype": dtype, "tokens": {}, "bytes": {}, "sha256": {}}
    for name, lines in sets.items():
        path, n_tokens, n_bytes = folder / f"{name}.bin", 1, 0
        lines = iter(tqdm(lines, name, unit=" lines", disable=None))
        with whole_file(path) as file:
            file.write(np.array([BOS], dtype).data)
            while texts := [line + "\n" for line in islice(lines, 10_000)]:
                ids = np.array([*chain(*encode(tokenizer, texts))], dtype)
                file.write(ids.data)
                n_tokens, n_bytes = n_tokens + len(ids), n_bytes + len("".join(texts).encode())
        if n_tokens == 1:
            raise UserError(f"{path}: no text for this set; give more text, or another --valid")
        meta["tokens"][name], meta["bytes"][name] = n_tokens, n_bytes
        meta["sha256"][name] = sha256(path)
        print(f"{name}: {n_tokens - 1:,} tokens of {n_bytes:,} bytes")
    write_json(folder / "meta.json", meta)
    print(f"{folder}: a vocabulary of {tokenizer.get_vocab_size():,}")


def read_lines(path):
    """Yield the non-empty lines of a text file. Raises UserError naming one that is not UTF-8."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            line = decode(path, raw, number).rstrip("\r\n")
            if line.strip():
                yield line


def is_held_out(line, share):
    """Return whether a line is held out, as about `share` of the distinct lines are."""
    digest = hashlib.blake2b(normalize(line).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") < share * 2**56


if __name__ == "__main__":
    try:
        prepare(tyro.cli(Flags, description=__doc__))
    except UserError as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        raise SystemExit(2) from None
