"""A plain transformer with one linear layer per head, as solutions of the assignment write it.

    python -m bench.per_head lm speeches

bench.assignment times poslab against it. Nothing here is shared with model.py.
"""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import data
from data import batching
from data.tokenizer import train_tokenizer


class Head(nn.Module):
    """One attention head. Returns (values (B, T, head_size), weights (B, T, T))."""

    def __init__(self, n_embd, head_size, block_size, causal):
        super().__init__()
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("visible", torch.tril(torch.ones(block_size, block_size)))
        self.causal = causal

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_size)
        T = x.size(1)
        scores = q @ k.transpose(1, 2) / math.sqrt(k.size(-1))
        if self.causal:
            scores = scores.masked_fill(self.visible[:T, :T] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return weights @ v, weights


class Layer(nn.Module):
    """Pre-norm block: attention by a list of heads, then a feed-forward layer."""

    def __init__(self, n_embd, n_head, n_ffn, block_size, causal):
        super().__init__()
        self.heads = nn.ModuleList(
            Head(n_embd, n_embd // n_head, block_size, causal) for _ in range(n_head)
        )
        self.project = nn.Linear(n_embd, n_embd)
        self.feed_forward = nn.Sequential(
            nn.Linear(n_embd, n_ffn), nn.ReLU(), nn.Linear(n_ffn, n_embd)
        )
        self.norm1, self.norm2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        normed = self.norm1(x)
        outputs, maps = zip(*(head(normed) for head in self.heads))
        x = x + self.project(torch.cat(outputs, dim=-1))
        return x + self.feed_forward(self.norm2(x)), maps


class PerHeadTransformer(nn.Module):
    """Returns (hidden states (B, T, C), a list of attention maps (B, T, T)).

    Padding is attended to like any other token.
    """

    def __init__(
        self, vocab_size, n_embd=64, n_head=2, n_layer=4, n_ffn=100, block_size=32, causal=False
    ):
        super().__init__()
        self.words = nn.Embedding(vocab_size, n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        self.layers = nn.ModuleList(
            Layer(n_embd, n_head, n_ffn, block_size, causal) for _ in range(n_layer)
        )
        self.norm = nn.LayerNorm(n_embd)

    def forward(self, idx):
        x = self.words(idx) + self.positions(torch.arange(idx.size(1)))
        all_maps = []
        for layer in self.layers:
            x, maps = layer(x)
            all_maps.extend(maps)
        return self.norm(x), all_maps


class PerHeadLanguageModel(nn.Module):
    """A causal language model: returns the mean loss of targets (B, T)."""

    def __init__(self, vocab_size):
        super().__init__()
        self.body = PerHeadTransformer(vocab_size, causal=True)
        self.head = nn.Linear(64, vocab_size)

    def forward(self, idx, targets):
        logits = self.head(self.body(idx)[0])
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class PerHeadClassifier(nn.Module):
    """A sentence classifier on the mean of all states."""

    def __init__(self, vocab_size, n_class):
        super().__init__()
        self.body = PerHeadTransformer(vocab_size)
        self.head = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, n_class))

    def logits(self, idx):
        return self.head(self.body(idx)[0].mean(1))

    def forward(self, idx, targets):
        return F.cross_entropy(self.logits(idx), targets)


def train_lm(folder, steps=500, batch_size=16, block_size=32):
    """Train a decoder and print the perplexity of every set at every 100 steps (part 2)."""
    corpus = data.load(folder)
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
                nats, blocks = 0.0, batching.consecutive_blocks(ids, block_size)
                for x, y in zip(*(part.split(batch_size) for part in blocks)):
                    with torch.no_grad():
                        nats += model(x, y).item() * (y != -100).sum().item()
                print(step, name, round(math.exp(nats / (len(ids) - 1)), 1), flush=True)
            model.train()
        if step < steps:
            gen = batching.generator(0, step)
            loss = model(*batching.random_blocks(sets["train"], block_size, batch_size, gen))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def train_classifier(folder, epochs=15, batch_size=16, block_size=32):
    """Train a classifier and print the accuracy on train and test after every epoch (part 1)."""
    corpus = data.load(folder)
    tokenizer = train_tokenizer("word", corpus.texts())

    def tensors(rows):
        sequences, _ = batching.sentences(tokenizer, [text for _, text in rows], block_size)
        idx = torch.stack([F.pad(ids, (0, block_size - len(ids))) for ids in sequences])
        return idx, torch.tensor([label for label, _ in rows])

    train, test = tensors(corpus.rows), tensors(corpus.test_rows)
    model = PerHeadClassifier(tokenizer.get_vocab_size(), len(corpus.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for which in torch.randperm(len(train[0])).split(batch_size):
            loss = model(train[0][which], train[1][which])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch + 1, *(f"{accuracy(model, *rows):.3f}" for rows in (train, test)), flush=True)


@torch.no_grad()
def accuracy(model, idx, labels, batch_size=16):
    """Return the share of rows idx (N, T) whose most probable class is the label (N,)."""
    batches = zip(idx.split(batch_size), labels.split(batch_size))
    return sum((model.logits(x).argmax(-1) == y).sum().item() for x, y in batches) / len(idx)


if __name__ == "__main__":
    {"lm": train_lm, "classifier": train_classifier}[sys.argv[1]](sys.argv[2])
