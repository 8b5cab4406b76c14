"""Ask a trained model: words for masks, continuations, translations, losses.

The functions take models and ids. `OpenRun` (lab/inside/run.py) takes texts and gives texts.
"""

import torch

from data.tokenizer import BOS, EOS, MASK, SPECIAL
from nets.cached import CachedReader
from nets.device import device_of
from nets.encoder_decoder import generate
from nets.ensemble import members_of


def no_specials(logits):
    """Return logits (..., V) with -inf for [PAD], [UNK], [MASK], [BOS] and [EOS]."""
    logits = logits.clone()
    logits[..., : len(SPECIAL)] = -torch.inf
    return logits


# ---------------------------------------------------------------------------- masks


@torch.no_grad()
def fill(model, ids, **more):
    """Return the words for each mask of ids (T,) as `next_words` does, one pair per mask.

    Each mask is filled as if the others stayed masked. more: what else the body reads, such as a
    thread's ancestors.
    """
    h = model.body(ids[None], **more)[0, ids == MASK]  # (M, C)
    return [top_words(logits) for logits in no_specials(model.head(h))]


# ---------------------------------------------------------------------------- continuations


@torch.no_grad()
def next_words(model, ids, temperature=1.0, top_k=None, anchor=False):
    """Return the k words that may follow ids (T,), most likely first, and their probabilities (k,).

    Learned positions see only the last block_size tokens; with an anchor, [BOS] comes before them.
    Temperature 0 leaves only the best word. top_k None: all words but the special tokens.
    """
    config, context = model.body.config, ids
    if config.pos == "learned" and len(ids) > config.block_size:
        context = torch.cat([ids[:anchor], ids[anchor - config.block_size :]])
    return top_words(no_specials(model(context[None])[0, -1]), temperature, top_k)


def top_words(logits, temperature=1.0, top_k=None):
    """Return the k best words of logits (V,), without those at -inf, and their probabilities."""
    n_word = int(logits.isfinite().sum())
    values, words = logits.topk(min(top_k or n_word, n_word) if temperature else 1)
    # Dividing by less than 1e-6 would give infinite scores.
    return words, (values / max(temperature, 1e-6)).softmax(-1)


def draw_word(words, probabilities, gen):
    """Return one of the words (1,). gen is on the CPU, so all devices draw the same numbers."""
    return words[torch.multinomial(probabilities.cpu(), 1, generator=gen).to(words.device)]


@torch.no_grad()
def write(model, ids, n_tokens, temperature, top_k, gen, anchor=False):
    """Return ids (T,) continued by n_tokens, as `next_words` continues them one by one."""
    config, members = model.body.config, members_of(model)
    readers = [CachedReader(member.body) for member in members]
    for _ in range(n_tokens):
        if config.pos == "learned" and len(ids) > config.block_size:  # all positions change
            words = next_words(model, ids, temperature, top_k, anchor)
        else:
            unread = ids[None, readers[0].n_read :]
            h = [reader.read(unread)[0, -1] for reader in readers]  # of each member (C,)
            logs = [member.head(each).log_softmax(-1) for member, each in zip(members, h)]
            words = top_words(no_specials(torch.stack(logs).logsumexp(0)), temperature, top_k)
        ids = torch.cat([ids, draw_word(*words, gen)])
    return ids


# ---------------------------------------------------------------------------- gaps and translations


def rewrite(model, source, first, n_tokens, temperature, top_k, gen):
    """Return what the decoder writes for source (S,) up to [EOS], a list of ids.

    first: id of the first sentinel, None for translation. The output starts with the first gap of
    the source. Whatever ends a gap, a sentinel or [EOS], leads to the next gap of the source. Every
    gap gets a word, as in training.
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
        is_empty = bool(ends) and word.item() == ends[0]
        if is_empty:
            ends.pop(0)
        return word

    ids = generate(model, source[None], None, n_tokens, choose)[0].tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


# ---------------------------------------------------------------------------- losses


@torch.no_grad()
def losses_of_blocks(model, inputs, targets):
    """Return the losses in nats (N,) of the targets (n, T) that are not negative, on the CPU."""
    device, parts = device_of(model), zip(inputs.split(64), targets.split(64))
    return torch.cat([model.losses(x.to(device), y).cpu() for x, y in parts])


def losses_of_masked(model, ids):
    """Return the words (N,) of ids (T,), all but the special tokens that frame a sentence, and the
    loss in nats (N,) of each, masked while all others stay."""
    places = ((ids != BOS) & (ids != EOS)).nonzero()  # (N, 1)
    losses = [torch.zeros(0)]
    for i in range(0, len(places), 64):
        here = torch.arange(len(ids)) == places[i : i + 64]  # (n, T), the masked word of each row
        inputs, targets = torch.where(here, MASK, ids), torch.where(here, ids, -100)
        losses.append(losses_of_blocks(model, inputs, targets))
    return ids[places.squeeze(1)], torch.cat(losses)
