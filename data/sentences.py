"""Read a corpus for masked language models, as sentences. Arguments are those of data/text.py."""

from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Tokenizer

from data.batching import by_epoch, hash_ids, length_batches, pad, sentences
from data.corpus import Corpus
from data.files import UserError
from data.leaks import find_overlaps, hold_out
from data.text import is_prepared, load_parts, read_prepared, refuse_flags
from data.tokenizer import EOS, frame, train_tokenizer


@dataclass
class Sentences:
    """Sentences as tensors of ids that begin with [BOS]; or, on disk, full blocks (n, T) of running
    text without it (RoBERTa's full sentences, Liu et al. 2019, section 4.2)."""

    name: str
    tokenizer: Tokenizer
    train: list[torch.Tensor] | torch.Tensor
    valid: list[torch.Tensor]
    n_tokens: int  # of train
    n_long: int  # lines longer than a block, which were split
    share_seen: float  # of held-out lines, that share leaks.RUN words with a training line
    note: str  # what --split removed
    hash: str  # as in Text
    corpora: dict[str, Corpus]  # as in Text

    def batches(self, batch_size, seed):
        """Return a function of step -> idx, mask (B, T): of similar length, each once per epoch."""
        on_disk = torch.is_tensor(self.train)
        if on_disk:
            lengths = [0] * len(self.train)  # all of one length
        else:
            lengths = [len(ids) for ids in self.train]
        make = partial(length_batches, lengths)
        rows_of = by_epoch(len(self.train), batch_size, seed, make)

        def batch(step):
            sequences = [self.train[i] for i in rows_of(step)]
            if on_disk:
                sequences = [frame_ids(self.tokenizer, ids) for ids in sequences]
            return pad(sequences)

        return batch


def frame_ids(tokenizer, ids):
    """Return a tensor of ids with [BOS], and [EOS] if the tokenizer adds it."""
    return torch.tensor(frame(tokenizer, ids.tolist()))


def pair_up(sequences, T, gen):
    """Return [BOS] a [EOS] b of each sequence a but the last, of at most T ids, and (N,) long: 1 if
    b follows a in the text, or 0 if it is a random sentence, as in half of the pairs."""
    n = len(sequences) - 1
    is_next = torch.randint(2, (n,), generator=gen) > 0
    others = torch.randint(n - 1, (n,), generator=gen)
    others += 2 * (others >= torch.arange(n))  # neither a nor what follows it
    seconds = torch.where(is_next, torch.arange(1, n + 1), others).tolist()

    half = T // 2
    eos = torch.tensor([EOS])
    pairs = []
    follows = []
    for i, second in enumerate(seconds):
        a = sequences[i]
        b = sequences[second]
        pairs.append(torch.cat([a[:half], eos, b[1 : T - half]]))
        follows.append(torch.equal(b, sequences[i + 1]))  # also a copy of the next sentence
    return pairs, torch.tensor(follows).long()


def pair_batches(sequences, T, batch_size, seed):
    """Return a function of step -> idx, mask (B, T), follows (B,), paired anew in every epoch."""

    def make(batch_size, gen):
        pairs, follows = pair_up(sequences, T, gen)
        batches = []
        for rows in length_batches([len(pair) for pair in pairs], batch_size, gen):
            idx, mask = pad([pairs[i] for i in rows])
            batches.append((idx, mask, follows[rows]))
        return batches

    return by_epoch(len(sequences) - 1, batch_size, seed, make)


def read_sentences(
    data, T, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0, split="full"
):
    """Return --data as Sentences of at most T tokens, the texts of lines and rows, each once; or a
    prepared folder as full blocks of T. Raises UserError as `read_text` does, and for too few
    lines."""
    if is_prepared(data):
        refuse_flags(data, vocab_size, vocab_from, split != "full")
        return read_blocks(data, T, tokenizer)
    corpus, vocabulary, corpora, note = load_parts(data, vocab_from, split)
    texts = list(dict.fromkeys(corpus.texts()))  # a line of both files is read once per epoch
    kept, held_out = hold_out(texts, valid, name=data)
    if not tokenizer:
        tokenizer = train_tokenizer(kind, vocabulary.texts(held_out), vocab_size)
    return make_sentences(corpus.name, tokenizer, T, kept, held_out, note, corpora)


def read_in_order(
    data, T, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0, split="full"
):
    """Return the same as `read_sentences`, but of lines that follow each other, for pairs of next
    sentences: copies stay in their place, and the last lines are held out, those that are new."""
    if is_prepared(data):
        refuse_flags(data, vocab_size, vocab_from, split != "full")
        return read_blocks(data, T, tokenizer)
    corpus, vocabulary, corpora, note = load_parts(data, vocab_from, split)
    _, held_out = hold_out(corpus.lines, valid, name=data)  # only how many
    cut = len(corpus.lines) - len(held_out)
    kept = corpus.lines[:cut]
    known = set(kept)
    held_out = [text for text in corpus.lines[cut:] if text not in known]
    if not tokenizer:
        tokenizer = train_tokenizer(kind, vocabulary.texts(held_out), vocab_size)
    return make_sentences(corpus.name, tokenizer, T, kept, held_out, note, corpora)


def make_sentences(name, tokenizer, T, kept, held_out, note, corpora):
    """Return the Sentences of the texts to train on and of those held out, of at most T tokens."""
    train, n_long = sentences(tokenizer, kept, T, split=True)
    valid, _ = sentences(tokenizer, held_out, T, split=True)
    overlaps = find_overlaps(held_out, kept)
    return Sentences(
        name=name,
        tokenizer=tokenizer,
        train=train,
        valid=valid,
        n_tokens=sum(map(len, train)),
        n_long=n_long,
        share_seen=len(overlaps) / max(1, len(held_out)),
        note=note,
        hash=hash_ids(train + valid),
        corpora=corpora,
    )


def read_blocks(data, T, tokenizer):
    """Return a prepared folder as Sentences: its training text as full blocks of T tokens, and its
    own validation set. Raises UserError as `read_prepared`, and if one of them is too short."""
    text = read_prepared(data, tokenizer)
    if "valid" not in text.streams:
        raise UserError(f"--data {data}: no validation set; prepare it with --valid 0.01")
    room = T - len(frame(text.tokenizer, []))
    if len(text.streams["train"]) <= room:
        raise UserError(f"--block-size {T}: the training text is shorter; use a smaller block")
    train = text.streams["train"][1:].unfold(0, room, room)  # (n, room), without the rest
    valid = text.streams["valid"][1:].split(room)
    return Sentences(
        name=text.name,
        tokenizer=text.tokenizer,
        train=train,
        valid=[frame_ids(text.tokenizer, ids) for ids in valid],
        n_tokens=train.numel(),
        n_long=0,
        share_seen=0.0,
        note="",
        hash=text.hash,
        corpora={},
    )
