"""GPT-2 as minimal codebases write it, for bench/rivals.py."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class UsualGPT(nn.Module):
    """Pre-norm blocks, fused causal attention, dropout modules. Returns the mean loss.

    Computes the logits of all tokens at once.
    """

    logits = "all"

    def __init__(self, size):
        super().__init__()
        C = size.n_embd
        self.words = nn.Embedding(size.vocab_size, C)
        self.places = nn.Embedding(size.block_size, C)
        self.drop = nn.Dropout(0.0)
        self.layers = nn.ModuleList(UsualBlock(size) for _ in range(size.n_layer))
        self.norm = nn.LayerNorm(C)
        self.head = nn.Linear(C, size.vocab_size, bias=False)
        self.apply(init)
        self.head.weight = self.words.weight

    def forward(self, idx, targets):
        places = self.places(torch.arange(idx.size(1), device=idx.device))
        x = self.drop(self.words(idx) + places)  # (B, T, C)
        for layer in self.layers:
            x = layer(x)
        return mean_loss(self.head(self.norm(x)), targets)


class UsualBlock(nn.Module):
    """Attention with one matrix for query, key and value, then a feed-forward layer."""

    def __init__(self, size):
        super().__init__()
        C, self.n_head = size.n_embd, size.n_head
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, size.n_ffn), nn.Linear(size.n_ffn, C)
        self.act = activation(size)
        self.drop1, self.drop2 = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(C, dim=2)
        )  # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        x = x + self.drop1(self.out(y.transpose(1, 2).contiguous().view(B, T, C)))
        return x + self.drop2(self.down(self.act(self.up(self.norm2(x)))))


def activation(size):
    return nn.ReLU() if size.activation == "relu" else nn.GELU()


def init(module):
    """Set the weights of one module to a normal distribution of std 0.02, its bias to zero."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def mean_loss(logits, targets):
    """Return the cross-entropy of logits (B, T, V), averaged over the targets (B, T)."""
    return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100)
