"""Read texts as one padded batch, to look at the attentions of a run."""

from dataclasses import dataclass

import torch

from data.batching import pad, send_all
from data.tokenizer import BOS, MASK, token_strings
from lab.inside.texts import (
    encode_texts,
    inputs_of_ancestors,
    most_tokens,
    nearest_ancestors,
    number_gaps,
)
from lab.inside.writing import Sampler, write_target


@dataclass
class Tokens:
    """What one attention reads: of each text the words of its queries and of its keys, and how many
    tokens the text of the queries had before it was cut."""

    queries: list
    keys: list
    typed: list
    first: int = 0  # number of the first text, counted from 0


@dataclass
class Batch:
    """Texts as the body of a run reads them."""

    inputs: dict  # all texts, padded
    alone: list  # of each text what the body reads of it alone, or of its thread
    parts: dict  # {part: Tokens}, as `attentions` names the parts


def read_batch(run, texts):
    """Return a Batch of texts. A thread reader takes all texts as one thread."""
    if run.kind == "thread":
        return read_thread(run, texts)
    if run.kind == "seq2seq":
        return read_sources(run, texts)
    ids, words, typed = encode_texts(run, texts, most_tokens(run))
    idx, mask = pad(ids)
    inputs = send_all({"idx": idx, "mask": mask}, run.device)
    alone = [{"idx": ids_of_text[None]} for ids_of_text in ids]
    return Batch(inputs, alone, {"": Tokens(words, words, typed)})


def read_thread(run, texts):
    """Return a Batch of a post, its replies, and the comment. Only the nearest texts above the
    comment are read."""
    *above, comment = texts
    (ids,), words, typed = encode_texts(run, [comment], most_tokens(run))
    idx = ids[None]  # (1, T)
    inputs = {"idx": idx, "mask": torch.ones_like(idx, dtype=torch.bool)}
    last = len(above)
    parts = {"decoder": Tokens(words, words, typed, last)}
    if above:
        nearest = nearest_ancestors(run, above)
        first = len(above) - len(nearest)
        ids_above, words_above, typed_above = encode_texts(run, nearest, most_tokens(run))
        inputs |= inputs_of_ancestors(run, ids_above)
        names = []  # of the keys of cross-attention: "2 the text"
        for number, words_of_text in enumerate(words_above, first + 1):
            names.append(" ".join([str(number), *words_of_text[1:]]))
        parts = {
            "encoder": Tokens(words_above, words_above, typed_above, first),
            "decoder": Tokens(words, words, typed, last),
            "cross": Tokens(words, [names], typed, last),
        }
    return Batch(inputs, [inputs] * len(texts), parts)


def read_sources(run, texts):
    """Return a Batch of an encoder-decoder. Its targets are what the run writes: the likeliest
    filling or translation."""
    ids, words, typed = encode_texts(run, texts, most_tokens(run), run.first_gap is not None)
    sources = []
    for ids_of_text, words_of_text in zip(ids, words):
        source = number_gaps(run, ids_of_text)
        names = token_strings(run.tokenizer, source)
        for t in (ids_of_text == MASK).nonzero().flatten().tolist():
            words_of_text[t] = names[t]  # [S0] in place of [MASK]
        sources.append(source)
    targets = []
    for source in sources:
        written = write_target(run, source, run.block_size - 1, Sampler())
        targets.append(torch.tensor([BOS, *written], device=run.device))
    words_written = [token_strings(run.tokenizer, target) for target in targets]
    n_written = [len(target) for target in targets]
    for written in words_written:
        if len(written) == run.block_size:
            written[-1] += " …"  # it did not end by itself
    idx, mask = pad(targets)
    source, source_mask = pad(sources)
    inputs = {"idx": idx, "mask": mask, "source": source, "source_mask": source_mask}
    alone = []
    for target, source in zip(targets, sources):
        alone.append({"idx": target[None], "source": source[None]})
    parts = {
        "encoder": Tokens(words, words, typed),
        "decoder": Tokens(words_written, words_written, n_written),
        "cross": Tokens(words_written, words, n_written),
    }
    return Batch(send_all(inputs, run.device), alone, parts)
