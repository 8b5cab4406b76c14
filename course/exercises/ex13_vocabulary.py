"""Exercise 13: a vocabulary of the training text, with [UNK] for other words.

The ids 0 to 4 are the special tokens. Then come the words of the training text: the most frequent
one first, equally frequent ones in alphabetical order, `size` entries in all with the special
tokens. For the words b a b c a b and size 7: 5 is b, 6 is a, and c is unknown.

The order must be the same in each process, which that of a Python set is not, and no word of a test
text may enter.

25 minutes, easy. Ids are int64. Source: Bengio et al. 2003, 4.1 (rare words become one token).
"""

import torch

SPECIAL = ["[PAD]", "[UNK]", "[MASK]", "[BOS]", "[EOS]"]


def vocabulary(words: list[str], size: int) -> dict[str, int]:
    """words: all words of the training text, in its order -> {word: id}, also special tokens."""
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: i for i, word in enumerate((SPECIAL + order)[:size])}


def encode(words: list[str], ids: dict[str, int]) -> torch.Tensor:
    """words of any text, ids from vocabulary -> their ids (N,); unknown words get that of [UNK]."""
    return torch.tensor([ids.get(word, ids["[UNK]"]) for word in words])
