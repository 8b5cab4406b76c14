"""Read a corpus for masked language models, as sentences. Arguments are those of data/text.py."""

from dataclasses import dataclass
from functools import partial

import torch
from tokenizers import Tokenizer

from data import batching
from data.corpus import Corpus, hold_out
from data.files import UserError
from data.text import hash_ids, load_parts, read_prepared
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
    note: str  # what --split removed
    hash: str  # as in Text
    read: dict[str, Corpus]

    def batches(self, batch_size, seed):
        """Return a function of step -> idx, mask (B, T): of similar length, each once per epoch."""
        on_disk = torch.is_tensor(self.train)  # all of one length
        lengths = [0] * len(self.train) if on_disk else [len(ids) for ids in self.train]
        make = partial(batching.length_batches, lengths)
        rows_of = batching.by_epoch(len(self.train), batch_size, seed, make)

        def batch(step):
            found = [self.train[i] for i in rows_of(step)]
            if on_disk:
                found = [torch.tensor(frame(self.tokenizer, ids.tolist())) for ids in found]
            return batching.pad(found)

        return batch


def pair_up(sequences, T, gen):
    """Return [BOS] a [EOS] b of each sequence a but the last, of at most T ids, and (N,) long: 1 if
    b follows a in the text, or 0 if it is a random sentence, as in half of the pairs."""
    n, half, eos = len(sequences) - 1, T // 2, torch.tensor([EOS])
    follows, others = (torch.randint(m, (n,), generator=gen) for m in (2, n - 1))
    others += 2 * (others >= torch.arange(n))  # neither a nor what follows it
    seconds = torch.where(follows > 0, torch.arange(1, n + 1), others).tolist()
    both = [(a, sequences[i]) for a, i in zip(sequences, seconds)]
    same = [torch.equal(b, right) for (_, b), right in zip(both, sequences[1:])]  # copies too
    return [torch.cat([a[:half], eos, b[1 : T - half]]) for a, b in both], torch.tensor(same).long()


def pair_batches(sequences, T, batch_size, seed):
    """Return a function of step -> idx, mask (B, T), follows (B,), paired anew in every epoch."""

    def make(batch_size, gen):
        pairs, follows = pair_up(sequences, T, gen)
        rows = batching.length_batches([len(pair) for pair in pairs], batch_size, gen)
        return [(*batching.pad([pairs[i] for i in row]), follows[row]) for row in rows]

    return batching.by_epoch(len(sequences) - 1, batch_size, seed, make)


def read_sentences(
    data, T, tokenizer=None, kind="word", vocab_size=0, vocab_from="", valid=0, split="full", last=0
):
    """Return --data as Sentences of at most T tokens, or a prepared folder as full blocks of T,
    with its own validation set. last: hold out the last lines, which follow each other. Raises
    UserError as `read_text` does, and for too few lines."""
    if text := read_prepared(data, tokenizer, vocab_size, vocab_from, split != "full"):
        if "valid" not in text.streams:
            raise UserError(f"--data {data}: no validation set; prepare it with --valid 0.01")
        own, room = text.tokenizer, T - len(frame(text.tokenizer, []))
        if len(text.streams["train"]) <= room:
            raise UserError(f"--block-size {T}: the training text is shorter; use a smaller block")
        train = text.streams["train"][1:].unfold(0, room, room)  # (n, T), without the rest
        held = text.streams["valid"][1:].split(room)
        held = [torch.tensor(frame(own, ids.tolist())) for ids in held]
        return Sentences(text.name, own, train, held, train.numel(), 0, "", text.hash, {})
    found, vocabulary, read, note = load_parts(data, vocab_from, split)
    # A line of both files is read once per epoch; lines that follow each other stay as they are
    texts = found.lines if last else list(dict.fromkeys(found.texts()))
    kept, held_out = hold_out(texts, valid, name=data)
    if last:
        kept, known = texts[: -len(held_out)], {*texts[: -len(held_out)]}
        held_out = [text for text in texts[len(kept) :] if text not in known]
    tokenizer = tokenizer or train_tokenizer(kind, vocabulary.texts(held_out), vocab_size)
    train, n_long = batching.sentences(tokenizer, kept, T, split=True)
    held, _ = batching.sentences(tokenizer, held_out, T, split=True)
    n_tokens, digest = sum(map(len, train)), hash_ids(train + held)
    return Sentences(found.name, tokenizer, train, held, n_tokens, n_long, note, digest, read)
