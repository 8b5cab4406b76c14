"""The work that is timed: sizes of models, and the batches that every implementation gets."""

from dataclasses import dataclass

import torch

TASKS = {
    "masked": "masked LM, 15% of the tokens predicted",
    "causal": "causal LM",
    "seq2seq": "encoder-decoder, source and target tokens counted",
}


@dataclass
class Size:
    """Architecture and batch of one table."""

    n_layer: int
    n_embd: int
    n_head: int
    block_size: int
    batch_size: int
    vocab_size: int
    n_ffn: int = 0  # 0: four times the width
    activation: str = "gelu"
    tasks: tuple = tuple(TASKS)
    train: bool = True  # False: evaluation only

    def __post_init__(self):
        self.n_ffn = self.n_ffn or 4 * self.n_embd


SIZES = {
    "tiny": Size(1, 16, 2, 8, 2, 50),
    "assignment": Size(4, 64, 2, 32, 16, 6000, n_ffn=100, activation="relu"),
    "assignment-gelu": Size(4, 64, 2, 32, 16, 6000),  # feed-forward layers as in GPT-2 and RoBERTa
    "small": Size(6, 384, 6, 256, 8, 8000),
    "base": Size(12, 768, 12, 128, 4, 30_000),
    "roberta-base": Size(12, 768, 12, 512, 32, 50_265, tasks=("masked",)),
    "gpt2-small": Size(12, 768, 12, 1024, 16, 50_257, tasks=("causal",)),
    "long": Size(12, 768, 12, 8192, 1, 50_257, tasks=("masked", "causal"), train=False),
    "longer": Size(12, 768, 12, 32_768, 1, 50_257, tasks=("masked", "causal"), train=False),
}
DEFAULT_SIZES = {"cpu": "assignment,small,base", "cuda": "roberta-base,gpt2-small,long,longer"}


def n_predicted(size, task):
    """Return how many tokens of a batch have a target."""
    tokens = size.batch_size * size.block_size
    return max(1, round(0.15 * tokens)) if task == "masked" else tokens


def make_batches(size, task):
    """Return four batches of random ids, the same at every call.

    Each has idx and targets (B, T), where -100 means no target; for seq2seq also source (B, T).
    """
    gen = torch.Generator().manual_seed(0)
    B, T = size.batch_size, size.block_size
    batches = []
    for _ in range(4):
        # Ids below 5 are special tokens
        blocks = torch.randint(5, size.vocab_size, (B, T + 1), generator=gen)
        idx, targets = blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous()
        if task == "masked":
            masked = torch.zeros(B * T, dtype=torch.bool)
            masked[torch.randperm(B * T, generator=gen)[: n_predicted(size, task)]] = True
            masked = masked.view(B, T)
            targets, idx = idx.masked_fill(~masked, -100), idx.masked_fill(masked, 2)  # [MASK]
        batch = {"idx": idx, "targets": targets}
        if task == "seq2seq":
            batch["source"] = torch.randint(5, size.vocab_size, (B, T), generator=gen)
        batches.append(batch)
    return batches
