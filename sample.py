"""Try a trained model on your own sentences: continue, fill [MASK], classify, translate.

    python sample.py out/lm-speeches-alibi-0 --text "My fellow" --tokens 40
    python sample.py out/mlm-speeches-alibi-0 --text "We will [MASK] the American people."
    python sample.py out/classifier-speeches-alibi-0 --text "Yes we can." --text "God bless."
    python sample.py out/seq2seq-toy-rope-0 --text "We will [MASK] the people."
    python sample.py out/translate-toy-rope-0 --file sentences.txt
    python sample.py out/thread-toy-learned-0 --text POST --text REPLY --text "A [MASK] comment."

--text may be repeated, and --file reads one text per line; "-" is standard input. For a run of
train_thread.py the texts are one thread: the post, its replies, and last the comment to fill.
"""

import re
from dataclasses import dataclass

import torch

from data import batching, spans
from data.tokenizer import BOS, EOS, MASK, SPECIAL, detokenize
from lab.command import main
from lab.flags import flag
from lab.inside.texts import encode, read_file, unknown_words
from lab.load import load_run
from lab.machine import set_up_device
from nets.encoder_decoder import generate
from nets.thread_reader import ancestor_inputs


@dataclass
class Flags:
    run: str = flag("", "run folder of a train_*.py script", positional=True)
    text: list[str] = flag(
        (),
        "the text to continue, fill, classify or translate; may be repeated (thread runs: "
        "the post, replies, last the comment to fill)",
    )
    file: str = flag("", "file of more texts, one per line; -: standard input")
    tokens: int = flag(40, "most tokens to write", at_least=1, at_most=100_000)
    samples: int = flag(3, "texts to write", at_least=1, at_most=10_000)
    temperature: float = flag(0.8, "below 1: more likely words; 0: the most likely", at_least=0)
    top_k: int = flag(0, "words to choose from", shown="10 for a mask, 50 else", at_least=0)
    seed: int = flag(0, "seed of the sampling")
    device: str = flag("auto", "where to compute", ("auto", "cpu", "cuda", "mps"))


def sample(flags):
    run = load_run(flags.run, device=set_up_device(flags))
    texts = [*flags.text, *(read_file(flags.file) if flags.file else [])] or [""]
    above = texts[:-1] if run.kind == "thread" else []  # ancestors of the text to fill
    encoded = [encode(run, text) for text in texts[len(above) :]]  # all are valid
    for number, (text, ids) in enumerate(encoded, 1):
        if len(encoded) > 1:
            print("\n" * (number > 1) + f"text {number}: {text}")
        unknown = [word for given in (*above, text) for word in unknown_words(run, given)]
        if unknown:
            print(f"note: unknown words, read as [UNK]: {' '.join(unknown)}")
        if run.kind == "lm":
            show_continuations(run, text, ids, flags)
        elif run.kind == "seq2seq":
            show_rewritings(run, ids, flags)
        elif run.kind == "classifier":
            show_classes(run, text, ids)
        else:
            show_fillings(run, text, ids, flags.top_k or 10, above)


def no_specials(logits):
    """Return logits (..., V) with -inf for [PAD], [UNK], [MASK], [BOS] and [EOS]."""
    logits = logits.float().clone()
    logits[..., : len(SPECIAL)] = -torch.inf
    return logits


# ---------------------------------------------------------------------------- masks


@torch.no_grad()
def fill(model, ids, top_k, **more):
    """Return the most likely words at each of the M masks of ids (T,), and their probabilities.

    Both are (M, k), with k = top_k or fewer in a small vocabulary. Each mask is filled as if the
    others stayed masked. more: what else the body reads, such as a thread's ancestors.
    """
    h = model.body(ids[None], **more)[0, ids == MASK]  # (M, C)
    probabilities = no_specials(model.head(h)).softmax(-1)  # (M, V)
    values, words = probabilities.topk(min(top_k, probabilities.size(-1) - len(SPECIAL)))
    return words, values


def show_fillings(run, text, ids, top_k, above=()):
    """Print a table of words for each mask, then the text with the best ones."""
    more = {}
    if above:
        nearest = above[-run.config["reader"]["n_ancestors"] :]
        texts, _ = batching.sentences(run.tokenizer, nearest, run.model.body.config.block_size)
        more = batching.to(ids.device, ancestor_inputs(*batching.pad(texts)))
    words, probabilities = fill(run.model, ids, top_k, **more)
    for number, (candidates, shares) in enumerate(zip(words, probabilities), 1):
        print(f"mask {number}")
        for word, share in zip(candidates, shares):
            print(f"  {share:6.1%}  {run.tokenizer.decode([int(word)]).strip()}")
    best = iter(run.tokenizer.decode([int(word)]) for word in words[:, 0])
    print(re.sub(r"\[MASK\]", lambda _: next(best), text).strip())


# ---------------------------------------------------------------------------- continuations


@torch.no_grad()
def next_words(model, ids, temperature, top_k):
    """Return the k words that may follow ids (T,), most likely first, and their probabilities (k,).

    Learned positions see only the last block_size tokens. Temperature 0 leaves only the best word.
    """
    config = model.body.config
    context = ids[-config.block_size :] if config.pos == "learned" else ids
    return top_words(no_specials(model(context[None])[0, -1]), temperature, top_k)


def top_words(logits, temperature, top_k):
    """Return the k best words of logits (V,), without those at -inf, and their probabilities."""
    values, words = logits.topk(min(top_k, int(logits.isfinite().sum())) if temperature else 1)
    # Dividing by less than 1e-6 would give infinite scores.
    return words, (values / max(temperature, 1e-6)).softmax(-1)


def draw_word(words, probabilities, gen):
    """Return one of the words (1,). gen is on the CPU, so all devices draw the same numbers."""
    return words[torch.multinomial(probabilities.cpu(), 1, generator=gen).to(words.device)]


def write(model, ids, n_tokens, temperature, top_k, gen):
    """Return ids (T,) continued by n_tokens."""
    for _ in range(n_tokens):
        ids = torch.cat([ids, draw_word(*next_words(model, ids, temperature, top_k), gen)])
    return ids


def show_continuations(run, text, prompt, flags):
    """Print the text with its continuations. Each sample has random numbers of its own."""
    shown = len(detokenize(run.tokenizer, prompt[1:]))
    for number in range(flags.samples if flags.temperature else 1):
        gen = batching.generator(flags.seed, "sample", number)
        ids = write(run.model, prompt, flags.tokens, flags.temperature, flags.top_k or 50, gen)
        print(f"--- sample {number + 1}" if flags.temperature else "--- most likely words")
        print((text + detokenize(run.tokenizer, ids[1:])[shown:]).strip())


# ---------------------------------------------------------------------------- gaps and translations


def rewrite(model, source, first, n_tokens, temperature, top_k, gen):
    """Return what the decoder writes for source (S,) up to [EOS], a list of ids.

    first: id of the first sentinel, None for translation. The output starts with the first gap of
    the source. Whatever ends a gap, a sentinel or [EOS], leads to the next gap of the source.
    """
    ends = [] if first is None else [*source[source >= first].tolist(), EOS]  # of what is written

    def choose(logits):  # (1, V) -> (1,)
        logits = logits[0]
        if ends:
            any_end = torch.tensor([EOS, *range(first, len(logits))], device=logits.device)
            end = logits[any_end].logsumexp(0)
            logits[slice(None) if ends[0] == first else any_end] = -torch.inf
            logits[ends[0]] = end
        word = draw_word(*top_words(logits, temperature, top_k), gen)
        if ends and word == ends[0]:
            ends.pop(0)
        return word

    ids = generate(model, source[None], None, BOS, EOS, n_tokens, choose)[0].tolist()
    return ids[: ids.index(EOS)] if EOS in ids else ids


def show_rewritings(run, source, flags):
    """Print the source with its gaps filled, or its translation: the most likely, then samples."""
    config, first = run.model.body.config, run.config.get("first_sentinel")
    if first is not None:
        masks = source == MASK
        source[masks] = first + torch.arange(int(masks.sum()), device=source.device)
    n_tokens = min(flags.tokens, config.block_size) if config.pos == "learned" else flags.tokens
    for number in range(flags.samples + 1 if flags.temperature else 1):
        gen, temperature = batching.generator(flags.seed, "sample", number), flags.temperature
        choice = temperature if number else 0, flags.top_k or 50
        written = rewrite(run.model, source, first, n_tokens, *choice, gen)
        print(f"--- sample {number}" if number else "--- most likely words")
        if first is not None:  # [MASK] stays where --tokens did not reach
            whole = spans.restore(source[1:].tolist(), written, first)
            written = [MASK if i >= first else i for i in whole]
        print(detokenize(run.tokenizer, written).strip())


# ---------------------------------------------------------------------------- classes


@torch.no_grad()
def show_classes(run, text, ids):
    """Print the probability of each class, the most likely first."""
    block_size = run.model.body.config.block_size
    if len(ids) > block_size:
        print(f"note: only the first {block_size} of {len(ids)} tokens count, as in training")
    (cut,), _ = batching.sentences(run.tokenizer, [text], block_size)
    shares = run.model(cut[None].to(ids.device))[0].softmax(-1)
    for label in shares.argsort(descending=True).tolist():
        print(f"{shares[label]:6.1%}  {run.config['classes'][label]}")


if __name__ == "__main__":
    main(sample, Flags, __doc__)
