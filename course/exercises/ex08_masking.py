"""Exercise 8: hide words for masked language modelling (Devlin et al. 2019, 3.1).

Choose a share `rate` of the words at random. Of the chosen ones, 80% become MASK, 10% a random
word, and 10% stay as they are. All chosen words are to be predicted.
"""

import torch

from course.judge import Task, Wrong

MASK, N_SPECIAL = 2, 5  # ids below 5 are special tokens ([PAD], [UNK], [MASK], ...), not words


def mask_words(
    idx: torch.Tensor, vocab_size: int, rate: float, gen: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """idx (B, T) -> inputs (B, T), labels (B, T).

    Labels hold the original ids of the chosen words, and -100 elsewhere. Special tokens are neither
    chosen nor drawn as random words. Draw numbers with torch.rand(..., generator=gen).
    """
    chosen = (torch.rand(idx.shape, generator=gen) < rate) & (idx >= N_SPECIAL)
    dice = torch.rand(idx.shape, generator=gen)
    words = torch.randint(N_SPECIAL, vocab_size, idx.shape, generator=gen)
    inputs = torch.where(chosen & (dice < 0.8), MASK, idx)
    inputs = torch.where(chosen & (dice >= 0.8) & (dice < 0.9), words, inputs)
    return inputs, idx.masked_fill(~chosen, -100)


if __name__ == "__main__":
    idx = torch.arange(12).view(2, 6)
    print(*mask_words(idx, 12, 0.5, torch.Generator().manual_seed(0)), sep="\n")

# ---- only for the check


def masking_cases(gen):
    idx = torch.randint(5, 40, (64, 256), generator=gen)
    idx[:, 0], idx[:, 5:40], idx[::2, 200:] = 3, 1, 0  # [BOS], [UNK], [PAD]
    yield from ((idx, 40, 0.15), (idx, 40, 0.4))


def measure_masking(ask, idx, vocab_size, rate):
    """Mask many words and measure shares. Raises Wrong if the words do not depend on gen alone."""
    found, again, other = (
        ask(idx, vocab_size, rate, torch.Generator().manual_seed(seed), shapes=[idx.shape] * 2)
        for seed in (1, 1, 2)
    )
    if not all(torch.equal(found[name], again[name]) for name in found):
        raise Wrong("draws random numbers without gen. Give generator=gen to each torch function.")
    inputs, labels = found["inputs"], found["labels"]
    words, chosen = idx >= N_SPECIAL, labels != -100
    if torch.equal(labels, other["labels"]) and 0 < chosen[words].sum() < words.sum():
        raise Wrong("chooses the same words whatever gen is. Use gen as it is, without a seed.")
    drawn = chosen & (inputs != idx) & (inputs != MASK)
    shares = {
        "the share of words with a label": chosen[words],
        "the share of special tokens with a label": chosen[~words],
        "the share of labels that hold the original word": (labels == idx)[chosen],
        "the share of labelled words that become [MASK]": (inputs == MASK)[chosen],
        "the share of labelled words that become another word": drawn[chosen],
        "the share of tokens without label that are changed": (inputs != idx)[~chosen],
        "whether words with the id 5 are chosen": (chosen & (idx == N_SPECIAL)).any(),
        "whether random words are special tokens": (drawn & (inputs < N_SPECIAL)).any(),
        "whether random words are outside the vocabulary": (drawn & (inputs >= vocab_size)).any(),
        "the deviation between columns of their share of labels": chosen.float().mean(0).std(),
    }
    return {name: which.float().mean() for name, which in shares.items()}


TASKS = [Task(mask_words, masking_cases, "inputs", "labels", measure=measure_masking)]
