"""Examples of an encoder-decoder: texts with gaps to fill, or pairs of sentences to translate.

`flags` have the fields of beyond/train_seq2seq.py: data, task, languages, tokenizer, vocab_size,
valid, block_size, mask_rate and mean_span.
"""

import torch

import data
from data import spans
from data.batching import generator, length_batches, pad, sentences
from data.corpora.pairs import load_pairs
from data.corpus import hold_out_valid
from data.files import DataError
from data.tokenizer import BOS, EOS, add_sentinels, encode, train_tokenizer

DRAWS = 5  # corruptions of each text of a test set: more masked words, less noise


def read_examples(flags):
    """Return (name, tokenizer, first sentinel, {set: examples}, {set: targets as text}, {set: how
    many were too long}). An example is a text, or a pair of source and target."""
    T = flags.block_size
    if flags.task == "infill":
        corpus = data.load(flags.data)
        if not corpus.lines:
            raise DataError(f"--data {flags.data}: holds no running text; see --task translate")
        lines, valid = hold_out_valid(corpus.lines, flags)
        texts = corpus.texts(valid)
    else:
        corpus = load_pairs(flags.data, flags.languages).with_valid(flags)
        lines, valid, texts = corpus.train, corpus.valid, corpus.texts()
    sets = {"train": lines, "valid": valid} | corpus.tests
    tokenizer = train_tokenizer(flags.tokenizer, texts, flags.vocab_size)
    first = tokenizer.get_vocab_size()
    if flags.task == "infill":
        add_sentinels(tokenizer, spans.most(T - 1, flags.mask_rate, flags.mean_span)[1])
        found = {name: sentences(tokenizer, part, T, split=True)[0] for name, part in sets.items()}
        return corpus.name, tokenizer, first, found, {}, {}
    encoded = {name: encode_pairs(tokenizer, part) for name, part in sets.items()}
    n_long = {n: sum(max(map(len, pair)) > T for pair in part) for n, part in encoded.items()}
    encoded["train"] = [pair for pair in encoded["train"] if max(map(len, pair)) <= T]
    if not encoded["train"]:
        raise DataError(f"--block-size {T}: every training pair is longer; use a larger one")
    found = {n: [(a[:T], b[:T]) for a, b in part] for n, part in encoded.items()}
    targets = {name: [target for _, target in part] for name, part in sets.items()}
    return " to ".join(corpus.languages), tokenizer, first, found, targets, n_long


def encode_pairs(tokenizer, pairs):
    """Return pairs of texts as pairs of tensors, [BOS] source and target [EOS]."""
    sources, targets = (encode(tokenizer, side) for side in zip(*pairs))
    both = zip(sources, targets)
    return [(torch.tensor([BOS, *source]), torch.tensor([*target, EOS])) for source, target in both]


def make_batch(examples, gen, flags, first):
    """Return source, source_mask (B, S) and inputs, labels (B, U) of examples.

    inputs are what the decoder reads, [BOS] and the target without its end. labels are what it
    is to write, -100 on padding.
    """
    if flags.task == "infill":
        how = first, gen, flags.mask_rate, flags.mean_span
        source, source_mask, target, target_mask = spans.corrupt(*pad(examples), *how)
    else:
        (source, source_mask), (target, target_mask) = (pad(side) for side in zip(*examples))
    inputs = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], dim=1)
    return source, source_mask, inputs, target.masked_fill(~target_mask, -100)


def length(example):
    """Return the tokens of a text, or of both sides of a pair."""
    return len(example) if torch.is_tensor(example) else sum(map(len, example))


def fixed_batches(examples, flags, first):
    """Return batches whose gaps depend on neither the seed nor the step."""
    batches = []
    for draw in range(DRAWS if flags.task == "infill" else 1):
        for rows in length_batches([length(example) for example in examples], 64):
            gen = generator("gaps", draw, *rows.tolist())
            batches.append(make_batch([examples[i] for i in rows], gen, flags, first))
    return batches
