"""Turn text into ids and back: word level (the assignment's) or byte-level BPE.

Every sequence begins with [BOS], in encoders too, where BERT has [CLS].
"""

import re
from unicodedata import category, name

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer, WordLevelTrainer

from data.files import UserError, read_bytes

SPECIAL = ("[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]")
PAD, UNK, MASK, BOS, EOS = range(len(SPECIAL))

# As in the Penn Treebank: do + n't, it + 's, whole numbers, words (joiners inside), punctuation.
WORD = (
    r"\w+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|d|m|ll|S)\b|"
    r"\d[\d,.]*\d|\w+(?:[-.&\u200c\u200d]\w+)*|\.\.\.|--+|[^\w\s]"
)

# Marks without a space before them, or behind them
CLOSING = (*".,;:?!)]}%…”،؛؟।，。、；：？！）", "...", "n't", "n’t")
OPENING = tuple("([{$£“")
ELISION = re.compile(r"\b([cdjlmnosty]|(jus|lors|puis|quoi|quel|pres)?qu|aujourd|entr)['’]$", re.I)


def train_tokenizer(kind, texts, vocab_size=0):
    """Return a `tokenizers.Tokenizer` made of `texts` alone. kind "word": the vocab_size (0: all)
    most frequent words, by frequency, then spelling; others are [UNK]. kind "bpe": byte-level BPE
    with vocab_size entries (0: 4,000). Raises UserError for too small a vocabulary."""
    smallest = len(SPECIAL) + 1
    if kind == "bpe":
        smallest = len(SPECIAL) + 256  # every byte
    if vocab_size and vocab_size < smallest:
        problem = f"a {kind} vocabulary needs at least {smallest} entries"
        raise UserError(f"--vocab-size {vocab_size}: {problem}")
    options = {"special_tokens": list(SPECIAL), "show_progress": False}
    if kind == "word":
        tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
        tokenizer.normalizer = NFC()  # one character for ä, not a and two dots
        tokenizer.pre_tokenizer = Split(Regex(WORD), "removed", invert=True)
        trainer = WordLevelTrainer(vocab_size=vocab_size or 2**32, **options)
    elif kind == "bpe":
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = ByteLevel.alphabet()
        trainer = BpeTrainer(vocab_size=vocab_size or 4000, initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(texts, trainer)
    # "[MASK]" in a sentence is one token, with the space before it, not punctuation around a word;
    # so is "[EOS]" between two sentences, with the spaces around it
    for token in SPECIAL:
        strips_left = token in ("[MASK]", "[EOS]")
        strips_right = token == "[EOS]"
        added = AddedToken(token, special=True, lstrip=strips_left, rstrip=strips_right)
        tokenizer.add_special_tokens([added])
    return tokenizer


def add_sentinels(tokenizer, n):
    """Append n sentinels [S0], [S1], ... to a vocabulary, whose other ids stay as they are."""
    tokenizer.add_special_tokens([AddedToken(f"[S{i}]", special=True) for i in range(n)])


def load_tokenizer(path):
    """Return the tokenizer in a file. Raises UserError if it is missing, corrupt or foreign."""
    remedy = "use the tokenizer.json the run was trained with"
    raw = read_bytes(path, remedy)
    try:
        tokenizer = Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises a bare Exception for anything it cannot parse
        raise UserError(f"{path}: not a tokenizer file ({error!s:.80}); {remedy}") from None
    if [tokenizer.token_to_id(token) for token in SPECIAL] != list(range(len(SPECIAL))):
        raise UserError(f"{path}: does not begin with {' '.join(SPECIAL)}; {remedy}")
    return tokenizer


def is_word_level(tokenizer):
    """Return whether every token is a whole word."""
    return isinstance(tokenizer.model, WordLevel)


def encode(tokenizer, texts):
    """Return one list of ids per text, without [BOS]."""
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def end_with_eos(tokenizer):
    """Return a copy that adds [BOS] and [EOS], see `frame`."""
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", BOS), ("[EOS]", EOS)]
    )
    return tokenizer


def frame(tokenizer, ids):
    """Return [BOS] and ids; [EOS] follows if the tokenizer's file adds both, as RoBERTa's does."""
    if tokenizer.num_special_tokens_to_add(False) > 1:
        return [BOS, *ids, EOS]
    return [BOS, *ids]


def token_strings(tokenizer, ids):
    """Return tokens for a figure's axis: words as they are, BPE pieces with a visible space."""
    if is_word_level(tokenizer):
        return [tokenizer.id_to_token(int(i)) for i in ids]
    strings = []
    for i in ids:
        piece = tokenizer.decode([int(i)], skip_special_tokens=False)
        strings.append(piece.replace(" ", "␣").replace("\n", "⏎"))
    return strings


def detokenize(tokenizer, ids):
    """Return readable text of ids; of words, with spaces where English and French have them."""
    if not is_word_level(tokenizer):
        return tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)
    text = ""
    for token in token_strings(tokenizer, ids):
        text = append_word(text, token)
    return text


def append_word(text, word):
    """Return a text and one more word or mark. Only what stands before it decides whether there is
    a space between them, so that a text can be continued."""
    if text and needs_space(text, word):
        text += " "
    return text + word


def needs_space(text, word):
    """Return whether there is a space between a text and the next word or mark."""
    if word in CLOSING or text.endswith(OPENING) or ELISION.search(text):
        return False
    if word in ("'", "’"):  # d'une, o'clock, the boys' house
        return not (ELISION.search(text + word) or text.endswith("s"))
    if word[0] in "'’":  # it's
        return False
    is_quoted = text.count('"') % 2 == 1
    if word == '"':
        return not is_quoted
    return not (is_quoted and text.endswith('"'))


def word_starts(tokenizer):
    """Return (V,) bool: whether a token begins a word. In byte-level BPE, spaces, line ends and
    punctuation do, and Chinese and Japanese pieces, as these languages have no spaces."""
    V = tokenizer.get_vocab_size()
    if is_word_level(tokenizer):
        return torch.ones(V, dtype=torch.bool)
    return torch.tensor([begins_word(piece) for piece in token_strings(tokenizer, range(V))])


def begins_word(piece):
    """Return whether a BPE piece, as in `token_strings`, begins a word."""
    first = piece[0]
    if first == "\ufffd":  # some bytes of a letter
        return False
    if category(first)[0] in "PSZ":  # punctuation, symbols, spaces
        return True
    return name(first, "").startswith(("CJK", "HIRAGANA", "KATAKANA"))
