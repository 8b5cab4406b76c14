"""A plain transformer with one linear layer per head, as solutions of the assignment write it.

    python -m bench.per_head lm speeches

bench.assignment times poslab against it. No part of the model is shared with model.py.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

import data
from data import batching
from data.labelled import load_labelled
from data.tokenizer import train_tokenizer
from lab.command import main
from lab.flags import flag

N_EMBD, N_HEAD, N_LAYER, N_FFN, BLOCK_SIZE, BATCH_SIZE = 64, 2, 4, 100, 32, 16


@dataclass
class Flags:
    part: str = flag("", "part of the assignment", ("lm", "classifier"), positional=True)
    data: str = flag("", "corpus, as in the training scripts", positional=True)


class Head(nn.Module):
    """One attention head: x (B, T, N_EMBD) -> (B, T, N_EMBD / N_HEAD)."""

    def __init__(self, causal):
        super().__init__()
        head_size, self.causal = N_EMBD // N_HEAD, causal
        self.query = nn.Linear(N_EMBD, head_size, bias=False)
        self.key = nn.Linear(N_EMBD, head_size, bias=False)
        self.value = nn.Linear(N_EMBD, head_size, bias=False)
        self.register_buffer("visible", torch.tril(torch.ones(BLOCK_SIZE, BLOCK_SIZE)))

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_size)
        T = x.size(1)
        scores = q @ k.transpose(1, 2) / math.sqrt(k.size(-1))
        if self.causal:
            scores = scores.masked_fill(self.visible[:T, :T] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ v


class Layer(nn.Module):
    """Pre-norm block: attention by a list of heads, then a feed-forward layer."""

    def __init__(self, causal):
        super().__init__()
        self.heads = nn.ModuleList(Head(causal) for _ in range(N_HEAD))
        self.project = nn.Linear(N_EMBD, N_EMBD)
        self.feed_forward = nn.Sequential(
            nn.Linear(N_EMBD, N_FFN), nn.ReLU(), nn.Linear(N_FFN, N_EMBD)
        )
        self.norm1, self.norm2 = nn.LayerNorm(N_EMBD), nn.LayerNorm(N_EMBD)

    def forward(self, x):
        normed = self.norm1(x)
        x = x + self.project(torch.cat([head(normed) for head in self.heads], dim=-1))
        return x + self.feed_forward(self.norm2(x))


class PerHeadTransformer(nn.Module):
    """idx (B, T) -> hidden states (B, T, N_EMBD). Padding is attended to like any other token."""

    def __init__(self, vocab_size, causal):
        super().__init__()
        self.words = nn.Embedding(vocab_size, N_EMBD)
        self.positions = nn.Embedding(BLOCK_SIZE, N_EMBD)
        self.layers = nn.Sequential(*(Layer(causal) for _ in range(N_LAYER)))
        self.norm = nn.LayerNorm(N_EMBD)

    def forward(self, idx):
        x = self.words(idx) + self.positions(torch.arange(idx.size(1)))
        return self.norm(self.layers(x))


class PerHeadLanguageModel(nn.Module):
    """A causal language model: returns the mean loss of targets (B, T)."""

    def __init__(self, vocab_size):
        super().__init__()
        self.body = PerHeadTransformer(vocab_size, causal=True)
        self.head = nn.Linear(N_EMBD, vocab_size)

    def forward(self, idx, targets):
        logits = self.head(self.body(idx))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class PerHeadClassifier(nn.Module):
    """A sentence classifier on the mean of all states."""

    def __init__(self, vocab_size, n_class):
        super().__init__()
        self.body = PerHeadTransformer(vocab_size, causal=False)
        self.head = nn.Sequential(nn.Linear(N_EMBD, 100), nn.ReLU(), nn.Linear(100, n_class))

    def logits(self, idx):
        return self.head(self.body(idx).mean(1))

    def forward(self, idx, targets):
        return F.cross_entropy(self.logits(idx), targets)


def train(flags):
    train_part = {"lm": train_lm, "classifier": train_classifier}[flags.part]
    train_part(flags.data)


def train_lm(name, steps=500):
    """Train a decoder and print the perplexity of every set at every 100 steps (part 2)."""
    corpus = data.load(name)
    tokenizer = train_tokenizer("word", corpus.texts())
    sets = {
        name: batching.stream(tokenizer, lines)
        for name, lines in {"train": corpus.lines, **corpus.tests}.items()
    }
    model = PerHeadLanguageModel(tokenizer.get_vocab_size())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps + 1):
        if step % 100 == 0:
            model.eval()
            for name, ids in sets.items():
                nats, blocks = 0.0, batching.consecutive_blocks(ids, BLOCK_SIZE)
                for x, y in zip(*(part.split(BATCH_SIZE) for part in blocks)):
                    with torch.no_grad():
                        nats += model(x, y).item() * (y != -100).sum().item()
                print(step, name, round(math.exp(nats / (len(ids) - 1)), 1), flush=True)
            model.train()
        if step < steps:
            gen = batching.generator(0, step)
            loss = model(*batching.random_blocks(sets["train"], BLOCK_SIZE, BATCH_SIZE, gen))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train_classifier(name, epochs=15):
    """Train a classifier and print the accuracy on train and test after every epoch (part 1)."""
    corpus = load_labelled(name)
    tokenizer = train_tokenizer("word", corpus.texts())

    def tensors(rows):
        sequences, _ = batching.sentences(tokenizer, [text for _, text in rows], BLOCK_SIZE)
        idx = torch.stack([F.pad(ids, (0, BLOCK_SIZE - len(ids))) for ids in sequences])
        return idx, torch.tensor([label for label, _ in rows])

    train, test = tensors(corpus.rows), tensors(corpus.test_rows)
    model = PerHeadClassifier(tokenizer.get_vocab_size(), len(corpus.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for which in torch.randperm(len(train[0])).split(BATCH_SIZE):
            loss = model(train[0][which], train[1][which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch + 1, *(f"{accuracy(model, *rows):.3f}" for rows in (train, test)), flush=True)


@torch.no_grad()
def accuracy(model, idx, labels):
    """Return the share of rows idx (N, T) whose most probable class is the label (N,)."""
    batches = zip(idx.split(BATCH_SIZE), labels.split(BATCH_SIZE))
    return sum((model.logits(x).argmax(-1) == y).sum().item() for x, y in batches) / len(idx)


if __name__ == "__main__":
    main(train, Flags, __doc__)
