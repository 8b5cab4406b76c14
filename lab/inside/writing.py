"""Let a run write: continue a text word by word, fill its gaps, translate it."""

from dataclasses import dataclass

import torch

from data import spans
from data.tokenizer import EOS, MASK, detokenize
from lab.inside.texts import number_gaps
from nets.cached import CachedReader
from nets.ensemble import members_of
from nets.seq2seq import generate


@dataclass
class Sampler:
    """Draws words. The generator is on the CPU, so all devices draw the same numbers."""

    temperature: float = 0.0  # below 1, likelier words; 0: the likeliest
    top_k: int | None = None  # words to choose from, None: all
    generator: torch.Generator | None = None

    def draw(self, logits, first=EOS + 1):
        """Return one id (1,) of logits (V,), none before `first`."""
        words, probabilities = top_words(logits, self.temperature, self.top_k, first)
        place = torch.multinomial(probabilities.cpu(), 1, generator=self.generator)
        return words[place.to(words.device)]


def top_words(logits, temperature=1.0, top_k=None, first=EOS + 1):
    """Return the k best words of logits (V,) and their probabilities; at temperature 0 only the
    best. Ids before `first`, the special tokens, and words at -inf are left out."""
    logits = logits[first:]
    k = int(logits.isfinite().sum())
    if top_k:
        k = min(top_k, k)
    if temperature == 0:
        k = 1
    values, words = logits.topk(k)
    scaled = values / max(temperature, 1e-6)  # dividing by less would give infinite scores
    return first + words, scaled.softmax(-1)


# ------------------------------------------------------------------------------------ Causal LMs
def continue_text(run, text, ids, n_tokens, sampler):
    """Return a text, whose ids are (T,), continued by n_tokens."""
    continued = continue_ids(run, ids, n_tokens, sampler)
    n_characters = len(detokenize(run.tokenizer, ids[1:]))  # [BOS] is no text
    return text + detokenize(run.tokenizer, continued[1:])[n_characters:]


@torch.no_grad()
def continue_ids(run, ids, n_tokens, sampler):
    """Return ids (T,) continued by n_tokens."""
    members = members_of(run.model)
    readers = [CachedReader(member.body) for member in members]
    n_read = 0
    for _ in range(n_tokens):
        if reaches_the_end(run, ids):  # at each step all positions change, so nothing is reused
            logits = next_logits(run, ids)
        else:
            unread = ids[None, n_read:]  # (1, n)
            n_read = len(ids)
            log_probabilities = []
            for member, reader in zip(members, readers):
                h = reader.read(unread)[0, -1]  # (C,)
                log_probabilities.append(member.head(h).log_softmax(-1))
            logits = torch.stack(log_probabilities).logsumexp(0)  # (V,), of the sum over members
        ids = torch.cat([ids, sampler.draw(logits)])
    return ids


@torch.no_grad()
def next_logits(run, ids):
    """Return the logits (V,) of the word after ids (T,). Learned positions see only the last
    block_size tokens; with an anchor, [BOS] comes before them."""
    if reaches_the_end(run, ids):
        if run.anchor:
            ids = torch.cat([ids[:1], ids[1 - run.block_size :]])
        else:
            ids = ids[-run.block_size :]
    return run.model(ids[None])[0, -1]


def reaches_the_end(run, ids):
    """Return whether ids (T,) are more than learned positions can tell apart."""
    return run.half.positions.ends and len(ids) > run.block_size


# ------------------------------------------------------------------------------ Encoder-decoders
def rewrite_text(run, ids, n_tokens, sampler):
    """Return a text, whose ids are (T,), with its gaps filled, or its translation."""
    source = number_gaps(run, ids)
    target = write_target(run, source, n_tokens, sampler)
    if run.first_gap is not None:
        whole = torch.tensor(spans.restore(source[1:].tolist(), target, run.first_gap))
        # Gaps that n_tokens did not reach stay: a sentinel becomes [MASK] again
        target = whole.masked_fill(whole >= run.first_gap, MASK)
    return detokenize(run.tokenizer, target)


def write_target(run, source, n_tokens, sampler):
    """Return the ids that an encoder-decoder writes for source (S,), a list that ends before
    [EOS]."""
    if run.half.positions.ends:
        n_tokens = min(n_tokens, run.block_size)
    if run.first_gap is None:
        writer = Translator(sampler)
    else:
        writer = GapFiller(sampler, source, run.first_gap)
    ids = generate(run.model, source[None], None, n_tokens, writer.choose)[0].tolist()
    if EOS in ids:
        ids = ids[: ids.index(EOS)]
    return ids


class Translator:
    """Chooses the words of a translation."""

    def __init__(self, sampler):
        self.sampler = sampler

    def choose(self, logits):
        """logits (1, V) -> the next id (1,)."""
        return self.sampler.draw(logits[0], first=EOS)


class GapFiller:
    """Chooses the words of the gaps of a source, see data/spans.py.

    Whatever ends a gap, a sentinel or [EOS], leads to the next gap of the source. Every gap gets a
    word, as in training."""

    def __init__(self, sampler, source, first_gap):
        self.sampler = sampler
        self.first_gap = first_gap  # id of [S0]
        self.ends = [*source[source >= first_gap].tolist(), EOS]  # to come, each ends a gap
        self.is_empty = False  # whether the current gap has no word yet

    def choose(self, logits):
        """logits (1, V) -> the next id (1,)."""
        logits = logits[0]
        end = self.ends[0]
        all_ends = torch.tensor([EOS, *range(self.first_gap, len(logits))], device=logits.device)
        score_of_end = logits[all_ends].logsumexp(0)
        if end == self.first_gap:
            logits[:] = -torch.inf  # a target begins with the first sentinel
        else:
            logits[all_ends] = -torch.inf
        if not self.is_empty:
            logits[end] = score_of_end
        word = self.sampler.draw(logits, first=EOS)
        self.is_empty = word.item() == end
        if self.is_empty:
            self.ends.pop(0)
        return word
