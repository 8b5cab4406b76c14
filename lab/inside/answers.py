"""Ask a trained model, of ids, not of texts: next words, continuations, fillings, losses."""

import torch

from data.batching import device_of
from data.tokenizer import BOS, EOS, MASK, SPECIAL
from nets.cached import CachedReader
from nets.ensemble import members_of
from nets.seq2seq import generate


def no_specials(logits):
    """Return logits (..., V) with -inf for [PAD], [UNK], [MASK], [BOS] and [EOS]."""
    return logits.index_fill(-1, torch.arange(len(SPECIAL), device=logits.device), -torch.inf)


def top_words(logits, temperature=1.0, top_k=None):
    """Return the k best words of logits (V,), without those at -inf, and their probabilities.
    Temperature 0 leaves only the best word."""
    n_word = int(logits.isfinite().sum())
    values, words = logits.topk(min(top_k or n_word, n_word) if temperature else 1)
    # Dividing by less than 1e-6 would give infinite scores.
    return words, (values / max(temperature, 1e-6)).softmax(-1)


def draw_word(words, probabilities, gen):
    """Return one of the words (1,). gen is on the CPU, so all devices draw the same numbers."""
    return words[torch.multinomial(probabilities.cpu(), 1, generator=gen).to(words.device)]


@torch.no_grad()
def next_words(model, ids, temperature=1.0, top_k=None, anchor=False):
    """Return the words that may follow ids (T,), as `top_words` does, without special tokens.

    Learned positions see only the last block_size tokens; with an anchor, [BOS] comes before them.
    """
    n = model.body.config.block_size
    if model.body.positions.ends and len(ids) > n:
        ids = torch.cat([ids[:anchor], ids[anchor - n :]])
    return top_words(no_specials(model(ids[None])[0, -1]), temperature, top_k)


@torch.no_grad()
def write(model, ids, n_tokens, temperature, top_k, gen, anchor=False):
    """Return ids (T,) continued by n_tokens, as `next_words` continues them one by one."""
    members, n_read, ends = members_of(model), 0, model.body.positions.ends
    readers = [CachedReader(member.body) for member in members]
    for _ in range(n_tokens):
        if ends and len(ids) > model.body.config.block_size:  # all positions change
            words = next_words(model, ids, temperature, top_k, anchor)
        else:
            unread, n_read = ids[None, n_read:], len(ids)
            h = [reader.read(unread)[0, -1] for reader in readers]  # of each member (C,)
            logs = [member.head(x).log_softmax(-1) for member, x in zip(members, h)]
            words = top_words(no_specials(torch.stack(logs).logsumexp(0)), temperature, top_k)
        ids = torch.cat([ids, draw_word(*words, gen)])
    return ids


def rewrite(model, source, first, n_tokens, temperature=0, top_k=None, gen=None):
    """Return what an encoder-decoder writes for source (S,) up to [EOS], a list of ids.

    first: id of the first sentinel, None for translation. Whatever ends a gap, a sentinel or [EOS],
    leads to the next gap of the source. Every gap gets a word, as in training.
    """
    ends = [] if first is None else [*source[source >= first].tolist(), EOS]  # of what is written
    is_empty = False  # the gap that is being filled

    def choose(logits):  # (1, V) -> (1,)
        nonlocal is_empty
        logits = logits[0]
        if ends:
            any_end = torch.tensor([EOS, *range(first, len(logits))], device=logits.device)
            end = logits[any_end].logsumexp(0)
            logits[slice(None) if ends[0] == first else any_end] = -torch.inf
            logits[ends[0]] = -torch.inf if is_empty else end
        word = draw_word(*top_words(logits, temperature, top_k), gen)
        if is_empty := bool(ends) and word.item() == ends[0]:
            ends.pop(0)
        return word

    if model.body.decoder.positions.ends:
        n_tokens = min(n_tokens, model.body.config.block_size)
    ids = generate(model, source[None], None, n_tokens, choose)[0].tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


@torch.no_grad()
def losses_of_blocks(model, inputs, targets):
    """Return the losses in nats (N,) of the targets (n, T) that are not negative, on the CPU."""
    device, parts = device_of(model), zip(inputs.split(64), targets.split(64))
    return torch.cat([model.losses(x.to(device), y).cpu() for x, y in parts])


def losses_of_masked(model, ids):
    """Return the words (N,) of ids (T,) but for [BOS] and [EOS], and the loss of each in nats (N,),
    masked while all others stay."""
    places = ((ids != BOS) & (ids != EOS)).nonzero()  # (N, 1)
    here = torch.arange(len(ids)) == places  # (N, T), the masked word of each row
    blocks = torch.where(here, MASK, ids), torch.where(here, ids, -100)
    return ids[places[:, 0]], losses_of_blocks(model, *blocks)
