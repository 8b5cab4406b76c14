"""Prepare a large text: its tokens on disk, for train_lm.py and train_mlm.py.

    python -m data.prepare big.txt more.txt --vocab-size 16000 --out out/big
    python train_lm.py --data out/big --pos alibi

Writes train.bin and valid.bin, little-endian integers, [BOS] and then all tokens; tokenizer.json;
sentences.npy; and at the end meta.json: without it, a folder is incomplete. Texts are streamed.
"""

import hashlib
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from tqdm import tqdm

from data.corpus import copy_key
from data.files import UserError, decode, normalize_characters, whole_file, write_json, write_text
from data.leaks import hashes, read_hashes, write_hashes
from data.tokenizer import BOS, encode, load_tokenizer, train_tokenizer

SAMPLE = 64 * 2**20  # bytes of text, about, of which the tokenizer is made
N_LINES = 10_000  # encoded at a time


@dataclass
class Flags:
    text: tyro.conf.Positional[list[Path]]  # UTF-8 text files
    out: Path  # folder for the tokens
    tokenizer: Literal["bpe", "word"] = "bpe"  # byte-level BPE, or word level
    vocab_size: int = 0  # entries of the vocabulary; 0: 4000 BPE pieces, or every word
    vocab_from: Path | None = None  # a run or prepared folder whose tokenizer to use
    valid: float | None = None  # share of lines held out as `valid`; None: 0.01, at most 1 MB


def prepare(flags):
    """Write a prepared folder. Raises UserError for unusable files, and if --out is not empty."""
    size = measure(flags.text or [Path("TEXT")])
    folder = flags.out.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UserError(f"--out {folder}: is not empty; choose another folder")
    valid = flags.valid
    if valid is None:
        valid = min(0.01, 2**20 / size)

    seen = []  # arrays of the hashes of all text that the folder is made with
    if flags.vocab_from:
        seen.append(read_hashes(flags.vocab_from))
        tokenizer = load_tokenizer(flags.vocab_from.expanduser() / "tokenizer.json")
    else:
        lines = stream_lines(flags.text, valid, held_out=False)
        sample = islice(lines, 0, None, 1 + size // SAMPLE)
        tokenizer = train_tokenizer(flags.tokenizer, sample, flags.vocab_size)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))

    dtype = "<u4" if tokenizer.get_vocab_size() > 2**16 else "<u2"
    meta = {"dtype": dtype, "tokens": {}, "bytes": {}, "sha256": {}}
    names = ["train"]
    if valid:
        names.append("valid")
    for name in names:
        path = folder / f"{name}.bin"
        lines = stream_lines(flags.text, valid, held_out=name == "valid")
        lines = iter(tqdm(lines, name, unit=" lines", disable=None))
        n_tokens, n_bytes, digest = write_tokens(path, tokenizer, lines, dtype, seen)
        if n_tokens == 1:
            raise UserError(f"{path}: no text for this set; give more text, or another --valid")
        meta["tokens"][name] = n_tokens
        meta["bytes"][name] = n_bytes
        meta["sha256"][name] = digest
        print(f"{name}: {n_tokens - 1:,} tokens of {n_bytes:,} bytes")
    write_hashes(folder, seen)
    write_json(folder / "meta.json", meta)  # at the end: without it, a folder is incomplete
    print(f"{folder}: a vocabulary of {tokenizer.get_vocab_size():,}")


def measure(paths):
    """Return the size of all files in bytes. Raises UserError for a missing or empty one."""
    size = 0
    for path in paths:
        if not (path.is_file() and path.stat().st_size):
            raise UserError(f"{path}: no such file, or an empty one; give a file with text")
        size += path.stat().st_size
    return size


def write_tokens(path, tokenizer, lines, dtype, seen):
    """Write [BOS] and the tokens of lines, an iterator, to a file, and append the hashes of the
    lines to `seen`. Return the number of tokens with [BOS], that of bytes of text, and the sha256
    of the file."""
    ids = np.array([BOS], dtype)
    digest = hashlib.sha256(ids)
    n_tokens = 1
    n_bytes = 0
    with whole_file(path) as file:
        file.write(ids.data)
        while True:
            texts = [line + "\n" for line in islice(lines, N_LINES)]
            if not texts:
                break
            ids = []
            for line_ids in encode(tokenizer, texts):
                ids += line_ids
            ids = np.array(ids, dtype)
            file.write(ids.data)
            digest.update(ids)
            seen.append(hashes(texts))
            n_tokens += len(ids)
            n_bytes += len("".join(texts).encode())
    return n_tokens, n_bytes, digest.hexdigest()


def stream_lines(paths, valid, held_out):
    """Yield the lines of texts that are held out, about a share `valid`, or all others. The hash of
    a line decides, so that all copies of it are on one side."""
    for path in paths:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline=None) as file:
            for number, line in enumerate(file, start=1):  # \r, \n and \r\n end a line
                raw = line.rstrip("\n").encode("utf-8", "surrogateescape")
                text = normalize_characters(decode(path, raw, number))
                digest = hashlib.blake2b(copy_key(text).encode(), digest_size=7).digest()
                is_held_out = int.from_bytes(digest, "big") < valid * 2**56
                if text.strip() and is_held_out == held_out:
                    yield text


if __name__ == "__main__":
    try:
        prepare(tyro.cli(Flags, description=__doc__))
    except UserError as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        raise SystemExit(2) from None
