"""Exercise 12: write text, with a cache of keys and values (Holtzman et al. 2020; Fan et al. 2018).

    p = softmax(logits / temperature) over the top_k words with the largest logits, 0 for all others

A decoder reads a new token alone if it keeps the keys and values of the tokens before it: its
output is the same as if it read the whole text again. For logits [1, 3, 2], temperature 1 and top_k
2 the probabilities are [0, 0.73, 0.27].

50 minutes, hard. Ids are int64, floats float32. Gradients must flow to logits, q, k and v.
Run this file to see the text that your functions write.
"""

import torch


def next_probabilities(logits, temperature, top_k):
    """logits (B, V) -> the probabilities (B, V) of the next word. No two logits are equal."""
    least = logits.topk(top_k).values[:, -1:]
    return (logits / temperature).masked_fill(logits < least, -torch.inf).softmax(-1)


def attend_with_cache(q, k, v, past):
    """q, k, v (B, H, T, D) of T new tokens; past: None, or (keys, values) (B, H, P, D) of the P
    tokens before them -> output (B, H, T, D), all keys and all values (B, H, P + T, D), old
    ones first.

    A new token sees the old ones, itself and the new ones before it. Divide scores by sqrt(D).
    """
    if past is not None:
        k = torch.cat([past[0], k], dim=2)
        v = torch.cat([past[1], v], dim=2)
    T, S = q.size(2), k.size(2)
    future = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    scores = (q @ k.mT / q.size(-1) ** 0.5).masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ v, k, v


def generate(model, ids, n, temperature, top_k, gen):
    """ids (B, T) -> (B, T + n): each text goes on with n sampled tokens.

    logits, past = model(ids, past) reads (B, t) tokens after the past, which is None at first, and
    returns logits (B, t, V). Let it read each token once; the last need not be read. Draw with
    torch.multinomial(p, 1, generator=gen), once for each new token.
    """
    past = None
    new = ids
    for _ in range(n):
        logits, past = model(new, past)
        p = next_probabilities(logits[:, -1], temperature, top_k)
        new = torch.multinomial(p, 1, generator=gen)
        ids = torch.cat([ids, new], dim=1)
    return ids


if __name__ == "__main__":
    text = "to be or not to be that is the question whether it is nobler in the mind to suffer "
    letters = sorted(set(text))
    counts = torch.zeros(len(letters), len(letters))
    for a, b in zip(text, text[1:]):
        counts[letters.index(a), letters.index(b)] += 1
    counts += torch.rand(counts.shape) / 100  # no two are equal

    def letter_pairs(ids, past):
        return counts[ids].log(), past

    start = torch.tensor([[letters.index("t")]])
    ids = generate(letter_pairs, start, 60, 0.8, 5, torch.Generator().manual_seed(0))
    print("".join(letters[i] for i in ids[0].tolist()))
