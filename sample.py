"""Try a trained model on a sentence of your own.

python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."    fills each [MASK]
python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40                   goes on writing
python sample.py out/classifier-speeches-alibi-0 --text "Yes we can."                     says which class
python sample.py out/seq2seq-speeches-rope-0 --text "We will [MASK] the people."          writes what fits, one word or more
python sample.py out/translate-toy-rope-0 --text "We will trust the people."              translates
"""

import re
from dataclasses import dataclass

import torch

from data import batching, spans
from data.tokenizer import BOS, EOS, MASK, SPECIAL, UNK, detokenize, frame, is_word_level
from lab.command import main
from lab.errors import require
from lab.flags import flag
from lab.load import load_run
from lab.machine import prepare
from nets.encoder_decoder import generate


@dataclass
class Flags:
    run: str = flag(
        "",
        "run folder: of train_mlm.py, train_lm.py, train_seq2seq.py or train_classifier.py",
        positional=True,
    )
    text: str = flag(
        "",
        "a sentence with [MASK] in it, the beginning of a text, or a sentence to classify or translate",
    )
    tokens: int = flag(40, "tokens to write, at most (train_lm.py's and train_seq2seq.py's runs)")
    samples: int = flag(3, "texts to write (train_lm.py's and train_seq2seq.py's runs)")
    temperature: float = flag(
        0.8, "below 1: safer words, above: bolder ones; 0: always the likeliest (as for --samples)"
    )
    top_k: int = flag(0, "consider only so many words; 0: 10 for a mask, 50 for the next word")
    seed: int = flag(0, "seed of the sampling; the same seed writes the same text")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def sample(flags):
    require(
        (
            0 < flags.tokens <= 100_000,
            f"--tokens must be at least 1 and at most 100,000, got {flags.tokens}",
        ),
        (
            0 < flags.samples <= 10_000,
            f"--samples must be at least 1 and at most 10,000, got {flags.samples}",
        ),
        (flags.temperature >= 0, f"--temperature must not be negative, got {flags.temperature}"),
        (flags.top_k >= 0, f"--top-k must not be negative, got {flags.top_k}"),
    )
    device = prepare(flags)
    run = load_run(flags.run, device=device)
    {
        "mlm": show_fillings,
        "lm": show_continuations,
        "classifier": show_classes,
        "seq2seq": show_rewritings,
    }[run.kind](run, flags)


def read(run, text):
    """A text's ids as the run reads them, [BOS] in front, (T,); prints which words the run does not know."""
    encoding = run.tokenizer.encode(text, add_special_tokens=False)
    unknown = [
        text[start:end] for i, (start, end) in zip(encoding.ids, encoding.offsets) if i == UNK
    ]
    if unknown:
        print(f"note: unknown to this run, read as [UNK]: {' '.join(unknown)}")
    return torch.tensor(
        frame(run.tokenizer, encoding.ids), device=next(run.model.parameters()).device
    )


def no_specials(logits):
    """Logits (..., V) with those of [PAD], [UNK], [MASK], [BOS] and [EOS] at -inf: they are no words to answer with."""
    logits = logits.float().clone()
    logits[..., : len(SPECIAL)] = -torch.inf
    return logits


# ---------------------------------------------------------------------------- masks


@torch.no_grad()
def fill(model, ids, top_k):
    """ids (T,) with M masks -> the likeliest words at each, (M, k) ids and (M, k) probabilities among all words.

    Each mask is filled as if the others stayed masked. k is top_k, or less in a smaller vocabulary.
    """
    h = model.body(ids[None])[0, ids == MASK]  # (M, C)
    probabilities = no_specials(model.head(h)).softmax(-1)  # (M, V)
    values, words = probabilities.topk(min(top_k, probabilities.size(-1) - len(SPECIAL)))
    return words, values


def show_fillings(run, flags):
    """A table of words for each mask, then the sentence with the best ones."""
    # A byte-level piece brings its own space; one left in front of the mask would be a token of its own.
    text = flags.text if is_word_level(run.tokenizer) else re.sub(r" +(?=\[MASK\])", "", flags.text)
    require(
        (
            "[MASK]" in text,
            f"--text {flags.text!r}: put [MASK] where a word is to be filled in; "
            f"{run.folder} is a masked language model",
        )
    )
    ids = read(run, text)
    config = run.model.body.config
    require(
        (
            len(ids) <= config.block_size or config.pos != "learned",
            f"--text has {len(ids)} tokens with [BOS], but learned positions end at {config.block_size}; shorten it",
        )
    )
    words, probabilities = fill(run.model, ids, flags.top_k or 10)
    for number, (candidates, shares) in enumerate(zip(words, probabilities), 1):
        print(f"mask {number}")
        for word, share in zip(candidates, shares):
            print(f"  {share:6.1%}  {run.tokenizer.decode([int(word)]).strip()}")
    best = iter(run.tokenizer.decode([int(word)]) for word in words[:, 0])
    print(re.sub(r"\[MASK\]", lambda _: next(best), text).strip())


# ---------------------------------------------------------------------------- continuations


@torch.no_grad()
def next_words(model, ids, temperature, top_k):
    """ids (T,) -> the k words that may come next, (k,) likeliest first, and their probabilities (k,) after temperature.

    Learned positions see only the last block_size tokens. Temperature 0 leaves the likeliest word alone.
    """
    config = model.body.config
    context = ids[-config.block_size :] if config.pos == "learned" else ids
    return top_words(no_specials(model(context[None])[0, -1]), temperature, top_k)


def top_words(logits, temperature, top_k):
    """logits (V,), -inf for what may not come -> the k likeliest words (k,) and their probabilities (k,) after temperature."""
    values, words = logits.topk(min(top_k, int(logits.isfinite().sum())) if temperature else 1)
    return words, (values / max(temperature, 1e-6)).softmax(
        -1
    )  # smaller ones would give infinite scores


def write(model, ids, n_tokens, temperature, top_k, gen):
    """Go on after ids (T,): (T + n_tokens,). The random numbers come from gen, on the CPU, whatever the device."""
    for _ in range(n_tokens):
        words, probabilities = next_words(model, ids, temperature, top_k)
        chosen = torch.multinomial(probabilities.cpu(), 1, generator=gen).to(ids.device)
        ids = torch.cat([ids, words[chosen]])
    return ids


def show_continuations(run, flags):
    """The text and what the model makes of it; each sample has its own random numbers, so more samples change none."""
    require(
        (
            "[MASK]" not in flags.text,
            f"--text {flags.text!r}: {run.folder} writes on from a text; for [MASK] give a run of train_mlm.py",
        )
    )
    text = flags.text.rstrip()  # a space at the end would keep byte-level BPE from beginning a word
    prompt = read(run, text)
    shown = len(detokenize(run.tokenizer, prompt[1:]))
    for number in range(flags.samples if flags.temperature else 1):
        gen = batching.generator(flags.seed, "sample", number)
        ids = write(run.model, prompt, flags.tokens, flags.temperature, flags.top_k or 50, gen)
        print(f"--- {f'sample {number + 1}' if flags.temperature else 'likeliest words'}")
        print((text + detokenize(run.tokenizer, ids[1:])[shown:]).strip())


# ---------------------------------------------------------------------------- gaps and translations


def rewrite(model, source, first, n_tokens, temperature, top_k, gen):
    """source (S,) -> what the decoder writes, a list of ids up to [EOS].

    first: id of the first sentinel, None when the model translates. It begins with the source's first gap, and whatever ends
    a gap, any sentinel or [EOS], leads to the next one: each gets its turn.
    """
    order = (
        [] if first is None else [*source[source >= first].tolist(), EOS]
    )  # what is to end each gap, and to begin the first

    def choose(logits):  # (1, V) -> (1,)
        logits = logits[0]
        if order:
            ends = torch.tensor([EOS, *range(first, len(logits))], device=logits.device)
            end = logits[ends].logsumexp(0)
            logits[
                slice(None) if order[0] == first else ends
            ] = -torch.inf  # nothing stands in front of the first gap
            logits[order[0]] = end
        words, probabilities = top_words(logits, temperature, top_k)
        word = words[torch.multinomial(probabilities.cpu(), 1, generator=gen).to(words.device)]
        if order and word == order[0]:
            order.pop(0)
        return word

    ids = generate(model, source[None], None, BOS, EOS, n_tokens, choose)[0].tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


def show_rewritings(run, flags):
    """The text with its gaps filled, or its translation: with the likeliest words, then samples."""
    config, first = run.model.body.config, run.config.get("first_sentinel")
    masks = flags.text.count("[MASK]")
    require(
        (
            first is None or masks,
            f"--text {flags.text!r}: put [MASK] where words are to be filled in; {run.folder} fills gaps",
        ),
        (
            first is not None or not masks,
            f"--text {flags.text!r}: {run.folder} translates; for [MASK] give a run of --task infill",
        ),
        (
            first is None or masks <= config.vocab_size - first,
            f"--text has {masks} [MASK]s, but {run.folder} was trained with at most {config.vocab_size - (first or 0)} gaps",
        ),
    )
    # A byte-level piece brings its own space; one left in front of the mask would be a token of its own.
    source = read(
        run,
        flags.text.strip()
        if is_word_level(run.tokenizer)
        else re.sub(r" +(?=\[MASK\])", "", flags.text.strip()),
    )
    require(
        (len(source) > 1, "--text: holds no word; give a sentence"),
        (
            len(source) <= config.block_size or config.pos != "learned",
            f"--text has {len(source)} tokens with [BOS], but learned positions end at {config.block_size}; shorten it",
        ),
    )
    if first is not None:
        source[source == MASK] = torch.arange(first, first + masks, device=source.device)
    n_tokens = min(flags.tokens, config.block_size) if config.pos == "learned" else flags.tokens
    for number in range(flags.samples + 1 if flags.temperature else 1):
        gen = batching.generator(flags.seed, "sample", number)
        written = rewrite(
            run.model,
            source,
            first,
            n_tokens,
            flags.temperature if number else 0,
            flags.top_k or 50,
            gen,
        )
        print(f"--- {f'sample {number}' if number else 'likeliest words'}")
        if first is not None:
            # [MASK] stays where --tokens did not reach
            written = [
                MASK if i >= first else i
                for i in spans.restore(source[1:].tolist(), written, first)
            ]
        print(detokenize(run.tokenizer, written).strip())


# ---------------------------------------------------------------------------- classes


@torch.no_grad()
def show_classes(run, flags):
    """The probability of each class, likeliest first."""
    ids = read(run, flags.text)
    require(
        (
            len(ids) > len(frame(run.tokenizer, [])),
            "--text: holds no word; give a sentence to classify",
        )
    )
    block_size = run.model.body.config.block_size
    if len(ids) > block_size:
        print(f"note: only the first {block_size} of {len(ids)} tokens count, as in training")
    (cut,), _ = batching.sentences(run.tokenizer, [flags.text], block_size)
    shares = run.model(cut[None].to(ids.device))[0].softmax(-1)
    for label in shares.argsort(descending=True).tolist():
        print(f"{shares[label]:6.1%}  {run.config['classes'][label]}")


if __name__ == "__main__":
    main(sample, Flags, __doc__.split("\n")[0])
