"""Turn text into ids and back: word level (the assignment's) or byte-level BPE.

Both are plain `tokenizers` files. Every sequence begins with [BOS], in encoders too, where BERT
has [CLS]. Sentences end with [EOS] only with RoBERTa's own tokenizer, see `frame`.
"""

from unicodedata import category, name

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from data.files import TOKENIZER_LIMIT, DataError, read_bytes

SPECIAL = ("[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]")
PAD, UNK, MASK, BOS, EOS = range(len(SPECIAL))

# Contractions split as in the Penn Treebank (do + n't, it + 's), whole numbers, words, punctuation.
WORD = (
    r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|d|m|ll|S)\b|"
    r"\d[\d,.]*\d|\w+(?:[-.&]\w+)*|\.\.\.|--+|[^\w\s]"
)
# Byte-level BPE writes a byte as its character of Latin-1, or if that is invisible, as Ā, ā, Ă, ...
VISIBLE = [byte for byte in range(256) if chr(byte).isprintable() and byte != ord(" ")]
OTHERS = [byte for byte in range(256) if byte not in VISIBLE]
BYTES = {chr(byte): bytes([byte]) for byte in VISIBLE}
BYTES |= {chr(256 + n): bytes([byte]) for n, byte in enumerate(OTHERS)}


def train_tokenizer(kind, texts, vocab_size=0):
    """Return a `tokenizers.Tokenizer` whose vocabulary is made of `texts` alone.

    kind "word": all words of the texts, or with vocab_size > 0 the most frequent ones; others are
    [UNK]. Ids follow frequency, then spelling, so they are the same in every process. kind "bpe":
    byte-level BPE with vocab_size entries (0: 4,000), to which no text is unknown. Raises DataError
    for a vocabulary too small, see `check_vocab_size`.
    """
    check_vocab_size(kind, vocab_size)
    if kind == "word":
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.NFC()  # one character for ä, not a and two dots
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        trainer = trainers.WordLevelTrainer(
            vocab_size=vocab_size or 2**32, special_tokens=list(SPECIAL), show_progress=False
        )
    elif kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size or 4000,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        raise ValueError(f"no tokenizer {kind!r} yet; add it here")
    tokenizer.train_from_iterator(texts, trainer)
    # As a special token, "[MASK]" typed in a sentence is the mask, not punctuation around a word.
    # It includes the space before it, which byte-level BPE would otherwise make a token of.
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, lstrip=token == "[MASK]") for token in SPECIAL]
    )
    return tokenizer


def check_vocab_size(kind, vocab_size):
    """Raise DataError unless a vocabulary has room for the special tokens and, in BPE, all bytes.

    0 means no limit.
    """
    smallest = len(SPECIAL) + (256 if kind == "bpe" else 1)
    if vocab_size and vocab_size < smallest:
        raise DataError(
            f"--vocab-size {vocab_size}: a {kind} vocabulary needs at least {smallest} entries"
        )


def add_sentinels(tokenizer, n):
    """Append n sentinels [S0], [S1], ... to a vocabulary; return the id of [S0].

    The other ids stay as they are, so all ids from that of [S0] on are sentinels.
    """
    tokenizer.add_special_tokens([AddedToken(f"[S{i}]", special=True) for i in range(n)])
    return tokenizer.token_to_id("[S0]")


def load_tokenizer(path):
    """Return the tokenizer in a file. Raises DataError if it is missing, corrupt or foreign."""
    text = read_bytes(path, TOKENIZER_LIMIT, "a run folder holds the tokenizer it was trained with")
    try:
        tokenizer = Tokenizer.from_str(text.decode("utf-8"))
        tokenizer.encode("\0")  # no vocabulary of words has it, so this needs [UNK]
    except Exception as error:  # the library raises a bare Exception for anything it cannot parse
        raise DataError(
            f"{path}: not a tokenizer file ({str(error)[:80]}); "
            "train the run again or restore the file"
        ) from None
    if sorted(tokenizer.get_vocab().values()) != list(range(tokenizer.get_vocab_size())):
        raise DataError(
            f"{path}: its ids are not 0, 1, 2, ... without a gap; "
            "restore the file or train the run again"
        )
    if [tokenizer.token_to_id(token) for token in SPECIAL] != list(range(len(SPECIAL))):
        raise DataError(
            f"{path}: does not begin with {' '.join(SPECIAL)}; "
            "use the tokenizer.json the run was trained with"
        )
    return tokenizer


def is_word_level(tokenizer):
    """Return whether every token is a whole word."""
    return isinstance(tokenizer.model, models.WordLevel)


def encode(tokenizer, texts):
    """Return one list of ids per text, without [BOS]."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def frame(tokenizer, ids):
    """Return ids with [BOS] in front, as a model of sentences reads them.

    [EOS] follows if the tokenizer's file adds both to a text, as RoBERTa's does.
    """
    return [BOS, *ids, *[EOS] * (tokenizer.num_special_tokens_to_add(False) > 1)]


def token_strings(tokenizer, ids):
    """Return tokens for a figure's axis: words as they are, BPE pieces with a visible space.

    A piece of a letter is shown as its bytes: \\xe4.
    """
    ids = [int(i) for i in ids]
    if is_word_level(tokenizer):
        return [tokenizer.id_to_token(i) for i in ids]
    return [piece_string(tokenizer, i).replace(" ", "␣").replace("\n", "⏎") for i in ids]


def piece_string(tokenizer, i):
    """Return the text of a BPE piece, or its bytes if they are not whole letters."""
    text, token = tokenizer.decode([i], skip_special_tokens=False), tokenizer.id_to_token(i)
    if "\ufffd" not in text or not set(token) <= BYTES.keys():
        return text
    return b"".join(map(BYTES.get, token)).decode("utf-8", "backslashreplace")


def detokenize(tokenizer, ids):
    """Return readable text of ids; at word level, with spaces where English has them."""
    if not is_word_level(tokenizer):
        return tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
    text = ""
    for token in token_strings(tokenizer, ids):
        joins = (
            token in ".,;:?!)%…”،؛؟।，。、；：？！）"
            or token in ("n't", "n’t", "...")
            or (token[0] in "'’" and len(token) > 1)
        )
        text += token if joins or not text or text[-1] in "($“" else " " + token
    return text


def word_starts(tokenizer):
    """Return (V,) bool: whether a token begins a word.

    In byte-level BPE, spaces, line ends and punctuation do, and any Chinese or Japanese piece, as
    these languages have no spaces.
    """
    if is_word_level(tokenizer):
        return torch.ones(tokenizer.get_vocab_size(), dtype=torch.bool)
    pieces = token_strings(tokenizer, range(tokenizer.get_vocab_size()))
    return torch.tensor([begins_word(piece) for piece in pieces])


def begins_word(piece):
    """Return whether a piece of byte-level BPE, as `token_strings` shows it, begins a word."""
    punctuation = category(piece[0])[0] in "PSZ" and not piece.startswith(r"\x")  # a byte
    return punctuation or name(piece[0], "").startswith(("CJK", "HIRAGANA", "KATAKANA"))
