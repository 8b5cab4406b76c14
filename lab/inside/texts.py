"""Read the texts that a user gives to a trained run."""

import re
import sys
from dataclasses import dataclass

import torch

from data import batching, spans
from data.files import TEXT_LIMIT, decode_text, non_empty_lines, read_bytes
from data.tokenizer import BOS, EOS, MASK, UNK, frame, is_word_level, token_strings
from lab.errors import require
from lab.inside import answers
from nets.device import send_all


def read_file(path):
    """Return the non-empty lines of a UTF-8 file, or for "-" of standard input.

    Raises DataError or UserError if it cannot be read, is not UTF-8 or is empty.
    """
    raw = sys.stdin.buffer.read() if path == "-" else read_bytes(path, TEXT_LIMIT, "check --file")
    where = "standard input" if path == "-" else path
    texts = non_empty_lines(decode_text(where, raw).removeprefix("\ufeff"))
    require((texts, f"--file {path}: contains no text; give one text per line"))
    return texts


def require_text(text):
    """Raise UserError if a text is not a string, for example a list of texts."""
    several = "give strings, each text as an argument of its own"
    require((isinstance(text, str), f"{str(text)[:40]}: is not a text; {several}"))


def unknown_words(run, text):
    """Return the words of a text that the run does not know, in order."""
    require_text(text)
    encoding = run.tokenizer.encode(text)
    offsets = zip(encoding.ids, encoding.offsets)
    return [text[start:end] for i, (start, end) in offsets if i == UNK]


def encode(run, text):
    """Return a text as it is shown, and its ids (T,) as the run reads them, [BOS] in front.

    Raises UserError for a text that this kind of run cannot answer.
    """
    require_text(text)
    config = run.model.body.config
    fills = run.kind in ("mlm", "thread") or "first_sentinel" in run.config
    text = text.rstrip() if run.kind == "lm" else text.strip()
    if not is_word_level(run.tokenizer):  # a byte-level token brings its own space
        text = re.sub(r" +(?=\[MASK\])", "", text)
    ids = frame(run.tokenizer, run.tokenizer.encode(text, add_special_tokens=False).ids)
    named = f"text {text[:80]!r}"
    masks = MASK in ids
    does = "continues a text" if run.kind == "lm" else "translates"
    require(
        (masks or not fills, f"{named}: no [MASK] found; put one where a word is missing"),
        (
            not masks or fills or run.kind == "classifier",
            f"{named}: {run.folder} {does}; for [MASK] use a run of train_mlm.py "
            "or of beyond.train_seq2seq --task infill",
        ),
        (
            run.kind == "lm" or len(ids) > len(frame(run.tokenizer, [])),
            f"{named}: contains no words; give a sentence",
        ),
        (
            run.kind in ("lm", "classifier")
            or config.pos != "learned"
            or len(ids) <= config.block_size,
            f"{named}: has {len(ids)} tokens with [BOS], but learned positions end at "
            f"{config.block_size}; shorten it",
        ),
    )
    return text, number_gaps(run, text, torch.tensor(ids, device=run.device))


def number_gaps(run, text, ids):
    """Return ids with [S0], [S1], ... in place of each [MASK] if the run fills gaps."""
    first, masked = run.config.get("first_sentinel"), ids == MASK
    if first is None:
        return ids
    n, most = int(masked.sum()), run.model.body.config.vocab_size - first
    many = f"has {n} [MASK]s, more than the {most} that {run.folder} was trained with; use fewer"
    require((n <= most, f"text {text[:80]!r}: {many}"))
    return ids.masked_scatter(masked, torch.arange(first, first + n, device=ids.device))


@dataclass
class Texts:
    """B texts as a run reads them, padded to T tokens."""

    idx: torch.Tensor  # (B, T)
    mask: torch.Tensor  # (B, T) bool, True for real tokens
    words: list  # the tokens of each text as they are shown, without padding
    first: int = 0  # number of the first of them among all texts given, counted from 0

    def inputs(self, device):
        """Return what a transformer reads, as keyword arguments."""
        return send_all({"idx": self.idx, "mask": self.mask}, device)

    def rows(self, device):
        """Return the ids (1, T) of each text without padding."""
        return [ids[None, : len(words)].to(device) for ids, words in zip(self.idx, self.words)]


def read(run, texts, first=0):
    """Return the Texts that the run reads. first: the number of the first one.

    An unknown word is shown as it was typed, with a star; … ends a truncated text. Notes on stdout
    name what is unknown and what is truncated. Raises UserError for a text without words.
    """
    sequences, shown, block_size = [], [], run.model.body.config.block_size
    for number, text in enumerate(texts, first + 1):
        require_text(text)
        encoding = run.tokenizer.encode(text, add_special_tokens=False)
        empty = f"text {text!r}: contains no words; give a sentence"
        require((set(encoding.ids) - {BOS, EOS}, empty))
        typed = [text[start:end] for start, end in encoding.offsets]
        tokens = token_strings(run.tokenizer, encoding.ids)
        words = [
            word + "*" if i == UNK and word != "[UNK]" else token
            for i, word, token in zip(encoding.ids, typed, tokens)
        ]
        around = len(frame(run.tokenizer, []))  # [BOS], and for RoBERTa [EOS]
        ids = frame(run.tokenizer, encoding.ids[: block_size - around])
        words = ["[BOS]", *words[: block_size - around], *["[EOS]"] * (around - 1)]
        if len(encoding.ids) + around > block_size:
            words[-1] += " …"
            print(
                f"  note: text {number} has {len(encoding.ids) + around} tokens with [BOS]"
                f"{' and [EOS]' * (around > 1)}; truncated to --block-size {block_size}"
            )
        if UNK in ids:
            unknown = [word for i, word in zip(ids, words) if i == UNK]
            print(
                f"  note: text {number}: {len(unknown)} of {len(ids) - around} tokens unknown "
                f"to this run, read as [UNK]: {' '.join(unknown)}"
            )
        sequences.append(torch.tensor(ids))
        shown.append(words)
    return Texts(*batching.pad(sequences), shown, first)


def read_both(run, texts):
    """Return the Texts that an encoder-decoder reads, sources and targets.

    The target of a text with [MASK] is its greedy filling, that of a run that translates its greedy
    translation. In other texts, gaps are drawn, the same ones every time, and the target is the
    text that was there.
    """
    given, first = read(run, texts), run.config.get("first_sentinel")
    sources, shown, targets = [], [], []
    for text, ids, words in zip(texts, given.rows("cpu"), given.words):  # ids (1, T)
        if first is not None and MASK not in ids:
            flags, mask = run.config["flags"], torch.ones_like(ids, dtype=torch.bool)
            how = first, batching.generator("gaps"), flags["mask_rate"], flags["mean_span"]
            ids, _, target, _ = spans.corrupt(ids, mask, *how)
            words = token_strings(run.tokenizer, ids[0])
            target = target[0, :-1].tolist()  # without [EOS]
        else:
            ids, masked = number_gaps(run, text, ids), ids == MASK
            names = zip(token_strings(run.tokenizer, ids[0]), words, masked[0])
            words = [name if gap else word for name, word, gap in names]
            tokens = run.model.body.config.block_size - 1
            how = dict(n_tokens=tokens, temperature=0, top_k=None, gen=None)
            target = answers.rewrite(run.model, ids[0].to(run.device), first, **how)
        sources.append(ids[0])
        shown.append(words)
        targets.append(torch.tensor([BOS, *target]))
    names = [token_strings(run.tokenizer, ids) for ids in targets]
    return Texts(*batching.pad(sources), shown), Texts(*batching.pad(targets), names)
